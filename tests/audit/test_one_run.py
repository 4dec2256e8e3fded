"""The one-run bound against reference values, exact arithmetic and its own proof."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sourdine.audit.bound import Bound, Counts
from sourdine.audit.one_run import GaussianOneRun, OneRun, one_run_epsilon, p_value
from sourdine.errors import InputError

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "audit_bounds.json").read_text(encoding="utf-8")
)
JAX = 2e-7  # where jax_privacy's own bisection stops


@pytest.mark.parametrize("row", GOLDEN["one_run"], ids=str)
def test_epsilon_of_the_reference(row: dict[str, float]) -> None:
    found = one_run_epsilon(row["m"], row["r"], row["v"], row["delta"])
    assert found == pytest.approx(row["eps_lb"], abs=1e-9)
    assert found <= row["eps_lb"]
    assert found == pytest.approx(row["jax"], abs=JAX)


@pytest.mark.parametrize("row", GOLDEN["one_run_p"], ids=str)
def test_p_values_of_the_reference(row: dict[str, float]) -> None:
    found = p_value(row["m"], row["r"], row["v"], row["eps"], row["delta"])
    assert found == pytest.approx(row["p"], rel=1e-9)
    assert found >= row["p"]


def test_all_right_has_a_closed_form() -> None:
    for r, golden in ((100, "r100"), (10, "r10")):
        expected = math.log(0.05 ** (1 / r) / (1 - 0.05 ** (1 / r)))
        assert expected == pytest.approx(GOLDEN["one_run_all_right"][golden], abs=1e-12)
        assert one_run_epsilon(1000, r, r, 0.0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("row", GOLDEN["jax_gaussian_one_run"], ids=str)
def test_gaussian_epsilon_of_the_reference(row: dict[str, float]) -> None:
    counts = Counts(row["m"], row["r"], row["v"])
    assert GaussianOneRun().epsilon(counts, row["delta"], 0.05) == pytest.approx(row["eps_lb"], abs=JAX)


def exact(m: int, r: int, v: int, epsilon: float, delta: float) -> mpmath.mpf:
    """p(v, epsilon) with 40 digits, mass by mass."""
    with mpmath.workdps(40):
        odds = mpmath.exp(epsilon)
        masses = [(1 + odds) ** -r]
        for k in range(r):
            masses.append(masses[-1] * odds * (r - k) / (k + 1))
        window, slope = mpmath.mpf(0), mpmath.mpf(0)
        for i in range(1, v + 1):
            window += masses[v - i]
            slope = max(slope, window / i)
        return min(mpmath.mpf(1), mpmath.fsum(masses[v:]) + 2 * m * mpmath.mpf(delta) * slope)


@pytest.mark.parametrize(
    ("m", "r", "v", "epsilon", "delta"),
    [
        (10_000, 10_000, 6000, 0.37, 1e-5),
        (10_000, 10_000, 9990, 6.0, 1e-6),
        (10_000, 600, 400, 0.5, 1e-4),
        (3000, 3000, 1600, 0.0, 1e-5),
        (100, 100, 100, 4.0, 1e-2),
        (50, 50, 26, 0.01, 0.0),
    ],
)
def test_p_values_are_never_too_small(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    """The slack is five times what rounding was seen to take: the result lies above by 0.8 of it."""
    ratio = float(mpmath.mpf(p_value(m, r, v, epsilon, delta)) / exact(m, r, v, epsilon, delta)) - 1
    slack = 1e-10 + 1e-14 * r
    assert 0.8 * slack < ratio < 1.2 * slack


def test_no_count_is_off_by_one() -> None:
    """Randomized response attains the bound: the first count that refutes its epsilon is rarer than
    alpha, and the count below is not."""
    for r in (1, 5, 40, 333):
        for epsilon in (0.0, 0.3, 1.0, 4.0):
            counts = np.arange(r + 1)
            found = np.array([one_run_epsilon(r, r, int(v), 0.0) for v in counts])
            tails = stats.binom.sf(counts - 1, r, 1 / (1 + math.exp(-epsilon)))
            assert np.array_equal(found > epsilon, tails < 0.05)


results = st.integers(1, 300).flatmap(
    lambda m: st.integers(1, m).flatmap(
        lambda r: st.tuples(st.just(m), st.just(r), st.integers((r + 1) // 2, r))
    )
)
deltas = st.sampled_from([0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
alphas = st.sampled_from([1e-6, 1e-3, 0.05, 0.3, 0.36])


@given(results, deltas, alphas)
def test_what_is_refuted_is_an_interval(
    result: tuple[int, int, int], delta: float, alpha: float
) -> None:
    """The shape that the search needs, on a grid: p is below alpha up to the bound, nowhere beyond."""
    bound = OneRun().epsilon(Counts(*result), delta, alpha)
    for epsilon in np.linspace(0, 12, 400):
        p = p_value(*result, float(epsilon), delta)
        if epsilon <= bound - 1e-8:
            assert p < alpha
        elif epsilon > bound + 1e-8:
            assert p >= alpha


@given(results, deltas, alphas)
def test_monotone(result: tuple[int, int, int], delta: float, alpha: float) -> None:
    m, r, v = result
    for method in (OneRun(), GaussianOneRun()):
        if method != OneRun() and delta == 0:
            continue
        bound = method.epsilon(Counts(m, r, v), delta, alpha)
        assert 0 <= bound < math.inf
        assert method.epsilon(Counts(m, r, v - 1), delta, alpha) <= bound + 1e-8
        assert method.epsilon(Counts(m, r, v), min(2 * delta, 0.9), alpha) <= bound + 1e-8
        assert method.epsilon(Counts(m, r, v), delta, alpha / 2) <= bound + 1e-8


def test_nothing_is_proven() -> None:
    assert p_value(10, 0, 0, 1.0, 0.0) == 1.0
    for m, r, v, delta in ((10, 0, 0, 0.0), (10, 10, 0, 0.0), (0, 0, 0, 1e-5), (1000, 1000, 500, 1e-5)):
        assert one_run_epsilon(m, r, v, delta) == 0.0
    for delta in (0.5, 0.3, 0.05):  # 2 m delta beyond what perfect guesses can outweigh
        assert one_run_epsilon(100, 100, 100, delta) == 0.0
        assert p_value(100, 100, 100, 0.0, delta) > 0.05
    assert one_run_epsilon(100, 100, 100, 1e-3) > 2
    assert GaussianOneRun().epsilon(Counts(10, 10, 0), 1e-5, 0.05) == 0.0


def test_a_low_confidence_proves_no_more_than_63_percent() -> None:
    kept = one_run_epsilon(100, 100, 60, 1e-5, confidence=1 - 1 / math.e)
    assert one_run_epsilon(100, 100, 60, 1e-5, confidence=0.1) == pytest.approx(kept, abs=1e-9)


def test_start_above() -> None:
    counts = Counts(1000, 200, 180)
    whole = OneRun().epsilon(counts, 1e-5, 0.05)
    assert OneRun().epsilon(counts, 1e-5, 0.05, above=1.0) == pytest.approx(whole, abs=1e-9)
    for method in (OneRun(), GaussianOneRun()):
        assert method.epsilon(counts, 1e-5, 0.05, above=9.0) == 9.0


def test_ten_thousand_canaries_are_quick() -> None:
    start = time.process_time()
    for method in (OneRun(), GaussianOneRun()):
        method.epsilon(Counts(10_000, 10_000, 6000), 1e-5, 0.05)
    assert time.process_time() - start < 1


def test_numbers_that_make_no_sense() -> None:
    for counts in ((10, 11, 5), (10, 5, 6)):
        with pytest.raises(InputError, match="each canary gets one guess at most"):
            one_run_epsilon(*counts, 0.0)
    with pytest.raises(InputError, match="correct is -1"):
        p_value(10, 5, -1, 1.0, 0.0)
    with pytest.raises(InputError, match=r"delta in \[0, 1\)"):
        one_run_epsilon(10, 5, 5, 1.0)
    with pytest.raises(InputError, match="epsilon is -1"):
        p_value(10, 5, 5, -1.0, 0.0)
    with pytest.raises(InputError, match="confidence is 1"):
        one_run_epsilon(10, 5, 5, 0.0, confidence=1.0)
    with pytest.raises(InputError, match="infinite epsilon"):
        GaussianOneRun().epsilon(Counts(10, 10, 10), 0.0, 0.05)


def test_a_bound_is_never_rounded_up() -> None:
    bound = Bound(1.2999999, 1e-5, 0.95, "one run", None, 1000, 200, 180)
    assert bound.printed == "1.299"
    for epsilon, printed in (
        (0.0, "0"),
        (5.6005, "5.6"),
        (math.nextafter(1.3, 0), "1.299"),
        (12.0, "12"),
    ):
        assert replace(bound, epsilon=epsilon).printed == printed
    assert str(bound) == (
        "Epsilon is at least 1.299 at delta=1e-05 with confidence 0.95 "
        "(one run: 180 of 200 guesses right, 1000 canaries)."
    )
    conditional = Bound(2.0, 1e-5, 0.95, "one run", "if the mechanism is Gaussian", 10, 10, 10)
    assert "confidence 0.95, if the mechanism is Gaussian (" in str(conditional)
