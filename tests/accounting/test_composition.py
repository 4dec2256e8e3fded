"""Theorems by name: every value of facts.json to 1e-9 relative, and their relations."""

import pytest
from plans import facts

from sourdine.accounting import (
    Promise,
    advanced,
    advanced_tanh,
    amplified,
    basic,
    curve,
    gaussian_sigma,
    gaussian_sigma_classic,
    group,
    group_simple,
    optimal,
    optimal_delta,
    rdp,
)
from sourdine.errors import InputError
from sourdine.events import ApproximateEvent, GaussianEvent, LaplaceEvent, PoissonEvent

FACTS = facts()
CLOSE = 1e-9


def close(expected: float) -> object:
    return pytest.approx(expected, rel=CLOSE, abs=0)


@pytest.mark.parametrize("fact", FACTS["basic"])
def test_basic(fact: dict[str, float]) -> None:
    total = basic([Promise(fact["eps0"], fact["delta0"])] * int(fact["k"]))
    assert total.epsilon == close(fact["eps"])
    assert total.delta == close(fact["delta"])


@pytest.mark.parametrize("fact", FACTS["advanced_DRV"])
def test_advanced(fact: dict[str, float]) -> None:
    promise, count = Promise(fact["eps0"], fact["delta0"]), int(fact["k"])
    assert advanced(promise, count, fact["delta_prime"]).epsilon == close(fact["eps_drv"])
    assert advanced_tanh(promise, count, fact["delta_prime"]).epsilon == close(fact["eps_tanh"])
    assert basic([promise] * count).epsilon == close(fact["basic"])
    best = optimal(promise, count, delta=fact["delta_prime"]).epsilon
    assert best <= min(fact["eps_tanh"], fact["basic"]) * (1 + CLOSE)


def test_delta_of_advanced_composition_adds_the_slack() -> None:
    assert advanced(Promise(0.1, 1e-6), 10, 1e-5).delta == close(2e-5)
    assert advanced_tanh(Promise(0.1, 1e-6), 10, 1e-5).delta == pytest.approx(2e-5, rel=1e-4)


@pytest.mark.parametrize("fact", FACTS["KOV_optimal"])
def test_optimal_delta(fact: dict[str, float]) -> None:
    promise, count = Promise(fact["eps0"], fact["delta0"]), int(fact["k"])
    assert optimal_delta(promise, count, epsilon=fact["eps"]).delta == close(fact["delta"])
    event = ApproximateEvent(fact["eps0"], fact["delta0"], "zero-out") * count
    assert curve(event).delta(fact["eps"]).upper == close(fact["delta"])


@pytest.mark.parametrize("fact", FACTS["KOV_eps_at_delta"])
def test_optimal_epsilon(fact: dict[str, float]) -> None:
    assert optimal(Promise(fact["eps0"]), int(fact["k"]), delta=fact["delta"]).epsilon == close(
        fact["eps"]
    )


@pytest.mark.parametrize("fact", FACTS["amplification"])
def test_amplification(fact: dict[str, float]) -> None:
    after = amplified(Promise(fact["eps1"], fact["delta1"]), fact["beta"])
    assert after.epsilon == close(fact["eps2"])
    assert after.delta == close(fact["delta2"])


@pytest.mark.parametrize("fact", FACTS["group"])
def test_group(fact: dict[str, float]) -> None:
    promise, size = Promise(fact["eps"], fact["delta"]), int(fact["k"])
    assert group(promise, size).epsilon == close(fact["eps_k"])
    assert group(promise, size).delta == close(fact["delta_k_tight"])
    assert group_simple(promise, size).delta == close(fact["delta_k_simple"])


@pytest.mark.parametrize("fact", FACTS["analytic_gaussian"])
def test_gaussian_noise(fact: dict[str, float]) -> None:
    assert gaussian_sigma(fact["eps"], fact["delta"]) == close(fact["sigma_exact"])
    if fact["eps"] < 1:
        assert gaussian_sigma_classic(fact["eps"], fact["delta"]) == close(fact["sigma_classic"])
    else:
        with pytest.raises(InputError, match="below 1"):
            gaussian_sigma_classic(fact["eps"], fact["delta"])


@pytest.mark.parametrize("fact", FACTS["gaussian_delta"])
def test_gaussian_delta(fact: dict[str, float]) -> None:
    assert curve(GaussianEvent(fact["sigma"])).delta(fact["eps"]).upper == close(fact["delta"])


@pytest.mark.parametrize("fact", FACTS["laplace_delta_single"])
def test_laplace_delta(fact: dict[str, float]) -> None:
    assert curve(LaplaceEvent(fact["b"])).delta(fact["eps"]).upper == close(fact["delta"])


@pytest.mark.parametrize("fact", FACTS["laplace_composition_exact"])
def test_laplace_composition(fact: dict[str, float]) -> None:
    found = curve(LaplaceEvent(fact["b"]) * int(fact["k"])).epsilon(fact["delta"])
    assert found.upper == close(fact["eps"])
    assert found.lower == close(fact["eps"])


@pytest.mark.parametrize("fact", FACTS["subsampled_gaussian_T1_exact"])
def test_one_sampled_step(fact: dict[str, float]) -> None:
    found = curve(PoissonEvent(fact["q"], GaussianEvent(fact["sigma"]))).epsilon(fact["delta"])
    assert found.upper == close(fact["eps"])
    assert found.lower == close(fact["eps"])


@pytest.mark.parametrize("fact", FACTS["rdp_to_dp_fixed_alpha"])
def test_conversions_at_one_order(fact: dict[str, float]) -> None:
    assert rdp.classic(fact["alpha"], fact["rdp"], fact["delta"]) == close(fact["classic"])
    assert rdp.improved(fact["alpha"], fact["rdp"], fact["delta"]) == close(fact["CKS"])


@pytest.mark.parametrize("fact", FACTS["rdp_to_dp_gaussian_continuous_alpha"])
def test_conversions_at_the_best_order(fact: dict[str, float]) -> None:
    event = GaussianEvent(fact["sigma"]) * int(fact["T"])
    for order, expected, convert in (
        (fact["alpha_classic"], fact["eps_classic"], "epsilon_classic"),
        (fact["alpha_CKS"], fact["eps_CKS"], "epsilon"),
    ):
        cost = rdp.renyi(event, orders=[order])
        assert getattr(cost, convert)(fact["delta"]) == close(expected)
    assert curve(event).epsilon(fact["delta"]).upper == close(fact["eps_exact_BalleWang"])


@pytest.mark.parametrize("fact", FACTS["rdp_pure"])
def test_divergences_of_pure_mechanisms(fact: dict[str, float]) -> None:
    if fact["kind"] == "laplace":
        assert rdp.laplace(1 / fact["b"], fact["alpha"]) == close(fact["rdp"])
    else:
        assert rdp.response(fact["p"], fact["alpha"]) == close(fact["rdp"])


@pytest.mark.parametrize("fact", FACTS["zcdp"])
def test_zcdp(fact: dict[str, float]) -> None:
    assert rdp.zcdp_epsilon(fact["rho"], fact["delta"]) == close(fact["eps_simple"])
