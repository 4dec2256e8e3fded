"""Exposure: known answers, the exact rank, what no model that never met a secret reaches."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram import Ngram, sentences
from scipy import stats

from sourdine.attacks import exposure
from sourdine.attacks.exposure import (
    Extrapolated,
    Measured,
    Rank,
    extrapolate,
    measure,
    rank,
    surprises,
)
from sourdine.attacks.secrets import Format, draw, plant
from sourdine.attacks.target import Record
from sourdine.errors import InputError
from sourdine.rng import seeded

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "exposure.json").read_text())
FALSE_ALARM = 1e-6
numbers = st.floats(0, 100).map(lambda number: round(number, 1))  # so that there are ties


@pytest.mark.parametrize("row", GOLDEN["ranks"], ids=str)
def test_known_ranks(row: dict[str, float]) -> None:
    assert Rank(row["rank"], row["candidates"]).bits == pytest.approx(row["bits"], abs=1e-6)


def test_the_known_extrapolation() -> None:
    row = GOLDEN["extrapolated"]
    found = extrapolate(row["surprise"], np.random.default_rng(0).normal(100, 10, 1000))
    assert found.bits == pytest.approx(row["bits"], abs=1e-6)
    assert found.poor is None and found.doubt > 0.5


@given(numbers, st.lists(numbers, max_size=30))
def test_the_rank_is_the_worst_place_that_a_sort_may_give(mine: float, others: list[float]) -> None:
    found = rank(mine, others)
    everyone = sorted([(value, 0) for value in others] + [(mine, 1)])  # at a tie, others first
    assert found.rank == 1 + everyone.index((mine, 1))
    assert 0 <= found.bits <= math.log2(len(others) + 1)


@given(st.lists(numbers, min_size=2, max_size=30), st.floats(0, 10))
def test_few_candidates_have_a_high_exposure(values: list[float], bits: float) -> None:
    """The guarantee, exactly: among all that the secret might be, at most 2^-e have exposure e."""
    found = [rank(v, values[:at] + values[at + 1 :]).bits for at, v in enumerate(values)]
    assert sum(one >= bits for one in found) <= len(values) * 2**-bits + 1e-9


def test_the_other_order_of_ties_would_break_the_guarantee() -> None:
    """Twin: were the secret put first among equals, a model that tells nothing apart would expose it."""
    kind = Rank(1 + sum(other < 1.0 for other in [1.0] * 7), 8)
    assert kind.bits == 3.0 and rank(1.0, [1.0] * 7).bits == 0.0


@pytest.mark.parametrize("shape", [-3.0, 0.0, 0.7, 3.0])
@pytest.mark.parametrize("z", [-1.0, -4.0, -12.0])
def test_the_tail_of_the_curve(shape: float, z: float) -> None:
    with mpmath.workdps(30):
        density = lambda t: 2 * mpmath.npdf(t) * mpmath.ncdf(shape * t)  # noqa: E731
        cuts = [z - 40, z - 10, z - 3, z - 1, z - 0.3, z - 0.1, z - 0.03, z]
        true = float(mpmath.log(mpmath.quad(density, cuts)))
    assert exposure._log_below(z, shape) == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize("shape", [-2.0, 0.0, 2.0])
def test_what_is_extrapolated_is_close_to_the_truth(shape: float) -> None:
    """From 2,000 candidates to exposures of 10 to 20 bits, far past log2 2001 = 11."""
    law = stats.skewnorm(shape, 40.0, 5.0)
    others = law.rvs(2000, random_state=np.random.default_rng(1))
    for bits in (10, 15, 20):
        found = extrapolate(float(law.ppf(2.0**-bits)), others)
        assert found.poor is None and found.bits == pytest.approx(bits, rel=0.15)


def test_a_poor_fit_is_named() -> None:
    rng = np.random.default_rng(2)
    two = np.concatenate([rng.normal(20, 1, 500), rng.normal(60, 1, 500)])
    found = extrapolate(15.0, two)
    assert found.poor is not None and "Kolmogorov" in found.poor and found.doubt < 0.01


@pytest.mark.parametrize("away", [0.0, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("kind", ["exponential", "two values", "one apart", "heavy", "tiny spread"])
def test_odd_candidates_give_finite_numbers(kind: str, away: float) -> None:
    rng = np.random.default_rng(5)
    others = {
        "exponential": rng.exponential(3, 200),
        "two values": rng.integers(0, 2, 200).astype(float),
        "one apart": np.append(np.full(99, 5.0), 6.0),
        "heavy": rng.standard_cauchy(200),
        "tiny spread": rng.normal(1e6, 1e-3, 200),
    }[kind]
    found = extrapolate(float(others.min() - away * np.ptp(others)), others)
    assert 0 <= found.bits < math.inf
    if kind not in ("tiny spread", "heavy"):
        assert found.poor is not None
    if kind == "exponential":
        assert "its shape grows without bound" in (found.poor or "")


def test_a_fair_fit_is_seldom_called_poor() -> None:
    """Nominal 1% or less: of 100 fits more than 8 would be called poor with probability 1e-6."""
    rng = np.random.default_rng(3)
    poor = sum(extrapolate(0.0, rng.normal(50, 5, 200)).poor is not None for _ in range(100))
    assert poor <= stats.binom.isf(FALSE_ALARM, 100, 0.01)


@pytest.mark.parametrize(
    ("mine", "others", "message"),
    [
        (math.nan, [1.0], "surprise is NaN"),
        (1.0, [math.nan], "without NaN"),
        (1.0, [[1.0]], "list of numbers"),
    ],
)
def test_damaged_numbers_are_refused(mine: float, others: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rank(mine, others)


@pytest.mark.parametrize("others", [[1.0] * 49, [1.0] * 100, [math.inf] + [1.0, 2.0] * 50])
def test_no_curve_where_none_fits(others: list[float]) -> None:
    with pytest.raises(InputError, match="no curve can be fitted"):
        extrapolate(0.5, others)
    assert rank(0.5, others).rank == 1


def test_impossible_ranks() -> None:
    with pytest.raises(InputError, match="rank is 0"):
        Rank(0, 3)
    with pytest.raises(InputError, match="only 3 candidates"):
        Rank(4, 3)
    assert rank(1.0, []).bits == 0.0
    assert rank(math.inf, [1.0, math.inf]).rank == 3


NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn")
FORMATS = [f"the code of {name} is {{digits:3}}" for name in NAMES]


def planted(repetitions: tuple[int, ...]) -> tuple[Ngram, list]:
    canaries = draw(FORMATS, repetitions, seeded(1))
    records = plant([Record((text,)) for text in sentences(100)], canaries, seeded(2))
    return Ngram([record.texts[0] for record in records]), canaries


def test_exposure_grows_with_repetitions() -> None:
    target, canaries = planted((1, 10, 50))
    found = measure(target, canaries, source=seeded(3))
    assert all(one.exact and one.ranked.candidates == 1000 for one in found)
    bits = {times: [m.bits for m in found if m.canary.repetitions == times] for times in (1, 10, 50)}
    assert min(bits[50]) == pytest.approx(math.log2(1000))
    surprise = {m.canary.repetitions: m.surprise for m in found}
    assert surprise[1] > surprise[10] > surprise[50]


def test_the_rank_by_the_target_is_that_of_brute_force() -> None:
    target, canaries = planted((1,))
    for one in measure(target, canaries[:2]):
        every = surprises(target, list(one.canary.format.candidates()))
        assert one.surprise == every[one.canary.number]
        assert one.ranked.rank == int(np.sum(every <= one.surprise))


def test_a_secret_that_was_never_met_is_not_exposed() -> None:
    """Of 2,000 independent secrets unknown to the target, at most Binomial(2000, 2^-5) have 5 bits.

    False alarm 1e-6; the twin below shows that secrets that were met do not pass.
    """
    target, _ = planted((1, 10, 50))
    form = Format("the code of Gus is {digits:3}")
    every = surprises(target, list(form.candidates()))
    source = seeded(5)
    drawn = [draw([form], (1,), source)[0] for _ in range(2000)]
    bits = [rank(every[c.number], np.delete(every, c.number)).bits for c in drawn]
    assert sum(one >= 5 for one in bits) <= stats.binom.isf(FALSE_ALARM, 2000, 2**-5)


def test_twin_secrets_that_were_met_are_exposed() -> None:
    target, canaries = planted((10,))
    found = [one.bits for one in measure(target, canaries)]
    # Six with 9 bits or more would have probability 2^-54, had the target never met them.
    assert min(found) >= 9


@pytest.mark.parametrize(
    ("exact", "curve", "poor", "bits"),
    [
        (True, 9.0, None, 3.0),  # the rank among all is the truth
        (False, 9.0, None, 9.0),
        (False, 50.0, None, 6 * math.log2(10)),  # never more than there is
        (False, 9.0, "does not fit", 3.0),  # by rank, which is low
    ],
)
def test_the_best_number_there_is(exact: bool, curve: float, poor: str | None, bits: float) -> None:
    (canary,) = draw(["{digits:6}"], (1,))
    fitted = Extrapolated(curve, 0.0, 0.0, 1.0, 0.5, poor)
    assert Measured(canary, 1.0, Rank(4, 32), fitted, exact).bits == pytest.approx(bits)


def test_sampled_candidates_and_the_curve() -> None:
    target, _ = planted((10,))
    canary = draw(["the code of Ada is {digits:9}"], (1,), seeded(7))[0]
    (found,) = measure(target, [canary], most=300, source=seeded(8))
    assert not found.exact and found.ranked.candidates == 301
    assert found.extrapolated is not None and 0 <= found.bits <= 9 * math.log2(10)
    (again,) = measure(target, [canary], most=300, source=seeded(8))
    assert again == found
    (few,) = measure(target, [canary], most=10)
    assert few.extrapolated is None and few.bits == few.ranked.bits
