"""Noisy counts: labels above a threshold, the confusion matrix, and metrics with honest intervals."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from sourdine.accounting import curve
from sourdine.audit import check_mechanism
from sourdine.errors import InputError
from sourdine.rng import seeded
from sourdine.text import measures, releases
from sourdine.text.measures import (
    Metric,
    accuracy,
    largest_class,
    macro_f1,
    matthews,
    measured,
    plausible,
)
from sourdine.text.releases import Confusion, Labels

FALSE_ALARM = 1e-6


class Lower(Labels):
    """A threshold that is half a deviation too low."""

    @property
    def threshold(self) -> float:
        return super().threshold - 0.5 * self.deviation


def shown(mechanism: Labels, units: int) -> int:
    """How many units with labels of their own have one of them shown: the event that delta pays for."""
    most = mechanism.most_per_unit
    labels = [f"{unit} {place}" for unit in range(units) for place in range(most)]
    users = [unit for unit in range(units) for _ in range(most)]
    found = mechanism.release(labels, seeded(3), users)
    return len({label.split()[0] for label in found})


@pytest.mark.parametrize("most", [1, 4])
def test_a_label_of_one_unit_stays_silent_but_for_delta(most: int) -> None:
    units, delta = 40_000, 0.05
    found = shown(Labels(2.0, delta, most), units)
    assert stats.binom.sf(found - 1, units, delta) > FALSE_ALARM
    assert found > 0.85 * delta * units  # delta is used, not wasted
    caught = shown(Lower(2.0, delta, most), units)
    assert stats.binom.sf(caught - 1, units, delta) < FALSE_ALARM


def common(mechanism: Labels, claim: Labels, used: int, draws: int = 60_000) -> Any:
    """Whether a label comes out that `used` others use, with one unit more and without; many at once."""
    source = seeded(7)

    def many(count: int, draws: int) -> Any:
        out = set(mechanism.release([f"{i}" for i in range(draws) for _ in range(count)], source))
        return [float(f"{i}" in out) for i in range(draws)]

    return check_mechanism(
        many, (used, used + 1), claim.event, many=many, draws=draws, false_alarm=FALSE_ALARM
    )


def test_a_common_label_keeps_the_promise_and_a_tenth_less_noise_is_caught() -> None:
    honest = Labels(0.8, 1e-6)
    assert common(honest, honest, 4).kept
    assert not common(Labels(0.72, 1e-6), honest, 4).kept


def test_the_event_of_labels_is_noise_and_delta() -> None:
    mechanism = Labels(2.0, 1e-7)
    found = curve(mechanism.event, "zero-out").epsilon(1e-6)
    noise_alone = curve(Confusion(2, 2.0).event, "zero-out")
    assert noise_alone.epsilon_upper(1e-6) < found.upper
    # Delta is taken off: what is left for the noise is a little more than 9e-7.
    assert found.upper == pytest.approx(noise_alone.epsilon_upper(9e-7), rel=1e-5)
    replaced = Labels(2.0, 1e-7, adjacency="replace-one").event
    assert curve(replaced, "replace-one").epsilon_upper(1e-6) > found.upper


def test_labels_come_out_by_name_and_units_count_once() -> None:
    mechanism = Labels(0.5, 1e-6)
    rows: list[str | None] = ["pear", "apple", "rare", None] + ["pear", "apple"] * 20
    assert mechanism.release(rows, seeded(1)) == ["apple", "pear"]
    assert mechanism.release([], seeded(1)) == []
    assert mechanism.release([None, None], seeded(1)) == []
    loud = ["mine"] * 1000 + ["ours"] * 50
    users = [0] * 1000 + list(range(1, 51))
    several = Labels(0.5, 1e-6, most_per_unit=1000)
    assert several.release(loud, seeded(1), users) == []  # noise for a thousand labels hides all
    assert Labels(0.5, 1e-6, most_per_unit=3).release(loud, seeded(1), users) == ["ours"]


def test_rows_past_the_first_are_not_looked_at() -> None:
    first, users = ["a"] * 30, [*range(30), *range(30)]
    mechanism = Labels(0.5, 1e-6)
    assert mechanism.release([*first, *["b"] * 30], seeded(1), users) == ["a"]
    with pytest.raises(InputError, match="users="):
        Labels(0.5, 1e-6, 2).release(first, seeded(1))
    with pytest.raises(InputError, match="named for 2"):
        mechanism.release(first, seeded(1), [1, 2])


def test_one_unit_moves_the_matrix_by_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Any] = []

    def record(values: Any, deviation: float, _: Any) -> Any:
        handed.append((values.numpy(), deviation))
        return values

    monkeypatch.setattr(releases, "noisy", record)
    rng = np.random.default_rng(1)
    worst = 0.0
    for most in (1, 3):
        users = [0] * 5 + [user for user in range(1, 6) for _ in range(4)]
        for round_ in range(100):
            true, predicted = rng.integers(0, 3, 25), rng.integers(0, 3, 25)
            if round_ % 10 == 0:
                true[:5] = predicted[:5] = 1  # all rows of the unit in one cell
            absent = true.copy()
            absent[:5] = -1
            mechanism = Confusion(3, 2.0, most)
            for rows in (true, absent):
                mechanism.release(list(rows), list(predicted), seeded(0), users)
            (one, deviation), (two, _) = handed[-2:]
            assert deviation == 2.0 * most
            worst = max(worst, float(np.linalg.norm(one - two)) / most)
            assert np.linalg.norm(one - two) <= most
    assert worst == 1.0


@pytest.mark.parametrize(("less", "kept"), [(1.0, True), (0.9, False)])
def test_the_matrix_keeps_its_promise_and_a_tenth_less_noise_is_caught(
    less: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a unit in one cell, against the same unit as nothing."""
    source, drawn = seeded(9), releases.noisy

    def many(rows: list[int], count: int) -> Any:
        def repeated(values: Any, deviation: float, _: Any) -> Any:
            return drawn(values.expand(count, 2, 2), less * deviation, source)

        monkeypatch.setattr(releases, "noisy", repeated)
        return Confusion(2, 0.7, 3).release(rows, [1, 1, 1, 0], source, [0, 0, 0, 1])[:, 1, 1]

    found = check_mechanism(
        *(many, ([1, 1, 1, 0], [-1, -1, -1, 0]), Confusion(2, 0.7, 3).event),
        many=many,
        draws=200_000,
        false_alarm=FALSE_ALARM,
    )
    assert found.kept == kept


def test_metrics_without_noise_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    true = rng.integers(0, 4, 500)
    predicted = np.where(rng.random(500) < 0.6, true, rng.integers(0, 4, 500))
    matrix = metrics.confusion_matrix(true, predicted).astype(float)
    found = [metric(matrix, 0.0, 500).value for metric in (accuracy, macro_f1, matthews)]
    wanted = [
        metrics.accuracy_score(true, predicted),
        metrics.f1_score(true, predicted, average="macro"),
        metrics.matthews_corrcoef(true, predicted),
    ]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_the_plausible_matrix_is_the_nearest() -> None:
    rng = np.random.default_rng(4)
    noisy = rng.normal(0, 5, (3, 3)) + np.diag([40.0, 20.0, 5.0])
    near = plausible(noisy, 70)
    assert near.min() >= 0
    assert near.sum() == pytest.approx(70)
    distance = np.linalg.norm(near - noisy)
    for other in rng.dirichlet(np.ones(9), 2000).reshape(-1, 3, 3):
        assert np.linalg.norm(noisy - (0.9 * near + 0.1 * 70 * other)) >= distance
    assert plausible(np.full((2, 2), -5.0)).sum() == pytest.approx(1)  # not even one record is left


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("metric", [accuracy, largest_class, macro_f1, matthews])
def test_intervals_hold_the_truth(metric: Any, public: bool) -> None:
    """95% intervals for the metric of all records that might have been tested; 100 tests each.

    The draws are seeded; over many the coverage was 0.93 to 0.98.
    """
    law = np.array([[0.35, 0.04, 0.01], [0.06, 0.28, 0.02], [0.03, 0.05, 0.16]])
    truth = metric(1e6 * law, 0.0, 1_000_000).value
    rng, n, held = np.random.default_rng(8), 600, 0
    for _ in range(100):
        noisy = rng.multinomial(n, law.ravel()).reshape(3, 3) + rng.normal(0, 8, (3, 3))
        found = metric(noisy, 8.0, n if public else None)
        assert found.low <= found.value <= found.high
        held += found.low <= truth <= found.high
    assert held >= 85
    noiseless = metric(n * law, 0.0, n)
    noise = metric(n * law, 8.0, n)
    assert noise.high - noise.low > 1.1 * (noiseless.high - noiseless.low)


def test_metrics_are_the_same_each_time_and_stay_in_range() -> None:
    matrix = np.array([[9.0, -3.0], [-2.0, 7.0]])
    for metric, least in ((accuracy, 0), (largest_class, 0), (macro_f1, 0), (matthews, -1)):
        found = metric(matrix, 3.0, 10)
        assert found == metric(matrix, 3.0, 10)
        assert least <= found.low <= found.value <= found.high <= 1
        assert isinstance(found, Metric)
        drowned = metric(np.array([[-50.0, 30.0], [20.0, -60.0]]), 40.0)
        assert all(math.isfinite(x) for x in (drowned.value, drowned.low, drowned.high))
    assert matthews(np.array([[10.0, 0.0], [5.0, 0.0]]), 0.0, 15).value == 0


def test_the_largest_class_is_what_always_one_answer_reaches() -> None:
    always = np.array([[0.0, 30.0, 0.0], [0.0, 50.0, 0.0], [0.0, 20.0, 0.0]])
    found = measured(always, 0.0, 100, ["a", "b", "c"])
    assert found["largest_class"]["name"] == "b" and found["largest_class"]["value"] == 0.5
    assert found["accuracy"]["value"] == 0.5 and found["matthews"]["value"] == 0
    assert found["beats_largest_class"] is False and found["classes"] == ["a", "b", "c"]
    # A class that many records have and none is said to have counts all the same.
    assert measured(always.T, 0.0, 100, ["a", "b", "c"])["largest_class"]["value"] == 1.0


def test_a_useless_model_is_told_from_a_useful_one_through_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Always the first class, which 80% have, and a model that is right on 92%; 400 tests of 500 each.

    Over 4,000 draws the useless model beat the share in 0.1% of them, the useful one in 99.98%.
    """
    monkeypatch.setattr(measures, "_RESAMPLES", 10)  # of metrics that are not looked at here
    rng, labels = np.random.default_rng(4), ["much", "little"]

    def beaten(law: Any) -> float:
        found = []
        for _ in range(400):
            exact = rng.multinomial(500, law.ravel()).reshape(2, 2)
            noisy = exact + rng.normal(0, 5, (2, 2))
            found.append(measured(noisy, 5.0, None, labels)["beats_largest_class"])
        return float(np.mean(found))

    assert beaten(np.array([[0.8, 0.0], [0.2, 0.0]])) < 0.01
    assert beaten(np.array([[0.77, 0.03], [0.05, 0.15]])) > 0.9


def test_classes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match="a true class is not among 0 to 1") as caught:
        Confusion(2, 1.0).release([0, 44], [0, 1])
    assert "44" not in str(caught.value)
    with pytest.raises(InputError, match="predicted class"):
        Confusion(2, 1.0).release([0, 1], [0, -1])
    with pytest.raises(InputError, match="beside"):
        Confusion(2, 1.0).release([0, 1], [0])
