"""LiRA: the reference vector, the shared variance, and shadows that are balanced."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sourdine.attacks import lira
from sourdine.attacks.roc import Roc
from sourdine.attacks.shadows import Shadows, from_vectors, halves, learned, train_heads
from sourdine.errors import InputError

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "membership.json").read_text(encoding="utf-8")
)["lira"]
SHADOWS = np.array([*GOLDEN["phi_in"], *GOLDEN["phi_out"]])[:, None]
INSIDE = np.repeat([True, False], 4)[:, None]


def test_the_reference_vector() -> None:
    observed = [GOLDEN["phi_obs"]]
    assert lira.online(observed, SHADOWS, INSIDE)[0] == pytest.approx(GOLDEN["online"], abs=1e-6)
    z = lira.offline(observed, SHADOWS, INSIDE)
    assert stats.norm.cdf(z)[0] == pytest.approx(GOLDEN["offline"], abs=1e-6)


def test_offline_is_one_sided_and_does_not_saturate() -> None:
    """Phi would be 1 for both of the first two, and a two-sided score would name the last."""
    several = np.tile(SHADOWS, (1, 3)), np.tile(INSIDE, (1, 3))
    high, higher, low = lira.offline([20.0, 30.0, -20.0], *several)
    assert higher > high > 0 > low


def test_few_shadows_share_one_variance_and_many_do_not() -> None:
    rng = np.random.default_rng(2)
    spread = np.array([0.1, 3.0])
    for count, shared in ((16, True), (63, True), (64, False), (128, False)):
        phi = rng.normal([5.0, -5.0], spread, (count, 2))
        inside = np.arange(count)[:, None] % 2 == np.array([[0, 1]])
        out = [phi[~inside[:, at], at] for at in (0, 1)]
        distance = np.array([5.3, -4.7]) - [one.mean() for one in out]
        # Of each record around its own mean: that the means are 10 apart does not count.
        own = [one.std() for one in out]
        pooled = np.average(np.square(own), weights=[len(one) for one in out]) ** 0.5
        z = lira.offline(np.array([5.3, -4.7]), phi, inside)
        assert z == pytest.approx(distance / (pooled if shared else own))


def test_constant_scores_do_not_divide_by_zero() -> None:
    inside = halves(6, 4, 0)
    assert np.isfinite(lira.online(np.ones(6), np.ones((4, 6)), inside)).all()
    assert np.isfinite(lira.offline(np.zeros(6), np.ones((4, 6)), inside)).all()


@pytest.mark.parametrize(
    ("observed", "shadows", "inside", "message"),
    [
        ([1.0], np.ones((2, 1)), [[True], [True]], "1 records have no shadow that was trained without"),
        ([1.0], np.ones((2, 1)), [[False], [False]], "trained with them"),
        ([1.0, 2.0], np.ones((2, 1)), [[True], [False]], "shapes do not fit"),
        ([np.inf], np.ones((2, 1)), [[True], [False]], "not finite"),
    ],
)
def test_shadows_that_do_not_serve(
    observed: list[float], shadows: np.ndarray, inside: list[list[bool]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        lira.online(observed, shadows, inside)


@pytest.mark.parametrize(("records", "shadows"), [(2, 2), (7, 4), (100, 16)])
def test_each_record_is_in_half_of_the_shadows(records: int, shadows: int) -> None:
    inside = halves(records, shadows, 3)
    assert (inside.sum(axis=0) == shadows // 2).all()
    assert set(inside.sum(axis=1)) <= {records // 2, records - records // 2}
    assert (inside == halves(records, shadows, 3)).all()
    if records == 100:
        assert (inside != halves(records, shadows, 4)).any()


def test_an_odd_number_of_shadows_is_refused() -> None:
    with pytest.raises(InputError, match="take an even one"):
        halves(10, 3, 0)


def heads(classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(120, 10)), rng.integers(0, classes, 120)
    inside = halves(120, 6, 0)
    return x, y, inside, train_heads(x, y, inside, classes=classes, penalty=0.05)


@pytest.mark.parametrize("classes", [2, 3])
def test_many_heads_at_once_are_those_of_scikit_learn(classes: int) -> None:
    """C = 1 / (penalty n); a binary one there has half the weights, hence half the penalty here."""
    linear = pytest.importorskip("sklearn.linear_model")
    x, y, inside, found = heads(classes)
    for used, answer in zip(inside, found, strict=True):
        strength = 1 / (0.05 * used.sum()) * (2 if classes == 2 else 1)
        model = linear.LogisticRegression(C=strength, tol=1e-9, max_iter=5000).fit(x[used], y[used])
        assert answer == pytest.approx(model.predict_proba(x), abs=2e-4)


def test_a_classifier_of_confidence_vectors() -> None:
    """Shokri's attack learns from other shadows who was in this one; blind to order, it would not."""
    pytest.importorskip("sklearn")
    _, y, inside, found = heads(2)
    known = from_vectors(inside[1:], found[1:], y)
    scores = learned(known, found[0])
    assert Roc(scores[inside[0]], scores[~inside[0]]).auc > 0.55
    mixed = Shadows(~known.inside, known.phi, known.likely, known.vectors, known.places)
    wrong = learned(mixed, found[0])
    assert Roc(wrong[inside[0]], wrong[~inside[0]]).auc < 0.45
    with pytest.raises(InputError, match="no confidence vectors"):
        learned(Shadows(known.inside, known.phi, known.likely), found[0])
