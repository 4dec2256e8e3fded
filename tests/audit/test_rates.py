"""Bounds from the errors of many runs against reference values and exact arithmetic."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.audit.rates import (
    Rates,
    _Posterior,
    credible_epsilon,
    credible_interval,
    gaussian_rates_epsilon,
    rates_epsilon,
)
from sourdine.errors import InputError

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "audit_bounds.json").read_text(encoding="utf-8")
)


def read(row: dict[str, int]) -> Rates:
    return Rates(row["tp"], row["n_in"], row["fp"], row["n_out"])


@pytest.mark.parametrize("row", GOLDEN["clopper_pearson"], ids=str)
def test_rates_of_the_reference(row: dict[str, float]) -> None:
    assert read(row).errors(0.05) == pytest.approx((row["fpr_ub"], row["fnr_ub"]), abs=1e-8)
    found = rates_epsilon(read(row), row["delta"])
    assert found.epsilon == pytest.approx(row["eps_lb"], abs=1e-8)
    assert found.epsilon <= row["eps_lb"] and found.conditional is None


@pytest.mark.parametrize("row", GOLDEN["gaussian"], ids=str)
def test_gaussian_rates_of_the_reference(row: dict[str, float]) -> None:
    found = gaussian_rates_epsilon(read(row), 1e-5)
    assert found.epsilon == pytest.approx(row["eps_at_1e5"], abs=1e-7)
    assert found.epsilon <= row["eps_at_1e5"] and found.conditional == "if the mechanism is Gaussian"


@pytest.mark.parametrize("number", range(len(GOLDEN["credible"])))
def test_credible_intervals_of_the_reference(number: int) -> None:
    """To 1e-6, but for the ends that 20-digit quadrature shows the reference itself to miss."""
    row = GOLDEN["credible"][number]
    near = {2: 2.1e-6, 5: 1.3e-6}.get(number, 1e-6)
    lower, upper = credible_interval(read(row), row["delta"])
    assert lower == pytest.approx(row["eps_lo"], abs=near)
    assert upper == pytest.approx(row["eps_hi"], abs=7e-4 if number == 2 else near)
    one_sided = credible_epsilon(read(row), row["delta"])
    assert one_sided.epsilon == pytest.approx(row["eps_one_sided_lo"], abs=near)
    assert "Bayesian" in str(one_sided.conditional)


@pytest.mark.parametrize("row", GOLDEN["credible_mass"], ids=str)
def test_the_quadrature_is_exact(row: dict[str, float]) -> None:
    counts = GOLDEN["credible"][row["row"]]
    posterior = _Posterior(read(counts), counts["delta"])
    assert posterior.at_most(row["epsilon"]) == pytest.approx(row["mass"], abs=1e-13)


def test_the_posterior_is_normalised() -> None:
    """Up to the mass of a rate within one double of 1, 1e-8 at worst."""
    for rates in (Rates(1000, 1000, 0, 1000), Rates(3, 10, 9, 10), Rates(1, 1, 1, 1)):
        for delta in (0.0, 1e-5, 0.3):
            assert _Posterior(rates, delta).at_most(500.0) == pytest.approx(1, abs=1e-7)


runs = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(runs, runs, st.sampled_from([1e-6, 1e-3, 0.1]), st.sampled_from([0.7, 0.95, 0.999]))
def test_proven_bounds_are_monotone(
    seen_in: tuple[int, int], seen_out: tuple[int, int], delta: float, confidence: float
) -> None:
    rates = Rates(*seen_in, *seen_out)
    for method in (rates_epsilon, gaussian_rates_epsilon):
        bound = method(rates, delta, confidence).epsilon
        assert 0 <= bound < math.inf
        assert method(rates, 2 * delta, confidence).epsilon <= bound + 1e-9
        assert method(rates, delta, (1 + confidence) / 2).epsilon <= bound + 1e-9
        if rates.true_positives > 0 and rates.false_positives < rates.runs_out:
            worse = Rates(seen_in[0] - 1, seen_in[1], seen_out[0] + 1, seen_out[1])
            assert method(worse, delta, confidence).epsilon <= bound + 1e-9


def test_no_errors_prove_a_finite_epsilon() -> None:
    for runs_of_each in (1, 10, 1000, 10**6):
        rates = Rates(runs_of_each, runs_of_each, 0, runs_of_each)
        most = max(0.0, math.log(max(runs_of_each / 3.5, 1)))
        assert rates_epsilon(rates, 0.0).epsilon <= most
        assert rates_epsilon(rates, 0.5).epsilon <= rates_epsilon(rates, 0.0).epsilon
        lower, upper = credible_interval(rates, 0.0)
        assert 0 <= lower < upper < math.inf


def test_nothing_is_proven_by_chance_or_by_a_test_that_is_wrong() -> None:
    for rates in (Rates(0, 10, 0, 10), Rates(5, 10, 5, 10), Rates(0, 10, 10, 10)):
        for method in (rates_epsilon, gaussian_rates_epsilon):
            assert method(rates, 1e-5).epsilon == 0.0
    assert rates_epsilon(Rates(1000, 1000, 0, 1000), 0.999).epsilon == 0.0


def test_what_a_bound_says() -> None:
    bound = rates_epsilon(Rates(900, 1000, 100, 1000), 1e-5)
    assert (bound.canaries, bound.guesses, bound.correct) == (2000, 2000, 1800)
    assert str(bound).startswith("Epsilon is at least 1.989 at delta=1e-05 with confidence 0.95 (many")


def test_rates_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="true_positives is 11, more than the 10 runs of runs_in"):
        Rates(11, 10, 0, 10)
    with pytest.raises(InputError, match="runs_out is 0"):
        Rates(1, 10, 0, 0)
    with pytest.raises(InputError, match="false_positives is -1"):
        Rates(1, 10, -1, 10)
    good = Rates(9, 10, 1, 10)
    with pytest.raises(InputError, match="infinite epsilon"):
        gaussian_rates_epsilon(good, 0.0)
    for method in (rates_epsilon, credible_interval, credible_epsilon):
        with pytest.raises(InputError, match="delta is 1"):
            method(good, 1.0)
        with pytest.raises(InputError, match="confidence is 0"):
            method(good, 0.0, 0.0)
