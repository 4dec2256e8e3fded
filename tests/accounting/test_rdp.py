"""Rényi costs: the papers' numbers, what is refused, and that it never undercuts the exact curve."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourdine import dp_events
from sourdine.accounting import curve, moments_epsilon, renyi, zcdp_epsilon
from sourdine.accounting.rdp import Renyi
from sourdine.errors import InputError, NotAccountable
from sourdine.events import (
    ApproximateEvent,
    CorrelatedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    FixedSizeEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    ZcdpEvent,
)


def test_abadi_2016() -> None:
    """q = 0.01, sigma = 4, 10,000 steps, delta 1e-5: 1.26 in the paper."""
    event = 10_000 * PoissonEvent(0.01, GaussianEvent(4.0))
    assert moments_epsilon(event, 1e-5) == pytest.approx(1.26, abs=0.005)
    assert curve(event).epsilon(1e-5).upper == pytest.approx(0.947, abs=5e-4)


@pytest.mark.parametrize(
    ("cohort", "moments", "exact"), [(5000, 4.634, 3.899), (1667, 2.314, 1.262), (1250, 2.038, 0.950)]
)
def test_mcmahan_2018(cohort: int, moments: float, exact: float) -> None:
    """763,430 users, z = 1, 5,000 rounds, delta 1e-9. The paper's sigma is noise on the average, not z."""
    event = 5_000 * PoissonEvent(cohort / 763_430, GaussianEvent(1.0))
    assert moments_epsilon(event, 1e-9) == pytest.approx(moments, abs=5e-4)
    assert curve(event).epsilon(1e-9).upper == pytest.approx(exact, abs=1e-3)


@settings(max_examples=20)
@given(st.floats(0.5, 6.0), st.floats(1e-3, 0.3), st.integers(1, 2000))
def test_never_below_the_exact_curve(noise: float, rate: float, count: int) -> None:
    event = PoissonEvent(rate, GaussianEvent(noise)) * count
    assert renyi(event).epsilon(1e-6) >= curve(event, accuracy=1e-3).epsilon(1e-6).lower
    assert renyi(event).epsilon(1e-6) <= renyi(event).epsilon_classic(1e-6)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (20 * LaplaceEvent(5.0), "zero-out"),
        (30 * RandomizedResponseEvent(0.8), "replace-one"),
        (10 * ApproximateEvent(0.1, 0.0, "zero-out"), "zero-out"),
        (ShuffledEvent(2.0, 10, 3), "zero-out"),
        (CorrelatedEvent(3.0, (0.8, 0.6), 30, 3, 10), "replace-one"),
        (GaussianEvent(3.0) * 4, "replace-one"),
    ],
)
def test_other_mechanisms_are_covered(event: Event, adjacency: str) -> None:
    exact = curve(event, adjacency)
    cost = renyi(event, adjacency)
    assert cost.epsilon(1e-6) >= exact.epsilon(1e-6).lower
    assert cost.delta(0.5) >= exact.delta(0.5).lower


def test_replace_one_is_doubled_for_plain_and_refused_for_sampled_noise() -> None:
    assert renyi(100 * GaussianEvent(4.0), "replace-one").epsilon(1e-5) > 33.1
    with pytest.raises(NotAccountable, match="replace-one"):
        renyi(PoissonEvent(0.1, GaussianEvent(1.0)), "replace-one")


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(NotAccountable, match="fixed-size"):
        renyi(FixedSizeEvent(100, 10, GaussianEvent(2.0)))
    with pytest.raises(InputError, match="above 1"):
        renyi(GaussianEvent(1.0), orders=[1.0])
    assert math.isinf(renyi(NonPrivateEvent()).epsilon(1e-6))


def test_pate_costs_stay_at_their_own_orders() -> None:
    event = PateEvent((2.0, 8.0), (0.1, 0.5), "zero-out")
    assert event.data_dependent
    assert renyi(event, orders=[2.0, 8.0]).values == (0.1, 0.5)
    assert renyi(event, orders=[3.0]).values == (math.inf,)
    with pytest.raises(NotAccountable, match="zero-out"):
        renyi(event, "replace-one")


def test_a_foreign_event_goes_through_dp_accounting() -> None:
    from dp_accounting import dp_event as dp

    event = dp_events.from_dp_event(dp.ZCDpEvent(rho=0.1))
    assert renyi(event, orders=[5.0]).values[0] == pytest.approx(0.5)


def test_group_privacy_of_renyi_costs() -> None:
    """Two records are a Gaussian of twice the distance: 4 times the cost at half the order or below."""
    one = renyi(GaussianEvent(3.0), orders=[4.0, 8.0, 16.0])
    pair = one.group(1)
    assert pair.orders == (2.0, 4.0, 8.0)
    exact = renyi(GaussianEvent(1.5), orders=pair.orders)
    assert all(bound >= true for bound, true in zip(pair.values, exact.values, strict=True))
    assert one.group(0) == one
    with pytest.raises(InputError, match="order"):
        one.group(4)


def test_costs_add_at_equal_orders_only() -> None:
    cost = Renyi((2.0,), (0.1,))
    assert (cost + cost).values == (0.2,)
    with pytest.raises(InputError, match="equal orders"):
        cost + Renyi((3.0,), (0.1,))


ORDERS_TRIED = (1.01, 1.5, 2.0, 7.3, 60.5)


def divergence(p: list[mpmath.mpf], q: list[mpmath.mpf], order: float) -> mpmath.mpf:
    a = mpmath.mpf(order)
    return mpmath.log(mpmath.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1)


def laplace_atoms(parameter: float, moved: int) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
    """A discrete Laplace law and its shift, the two tails as one atom each."""
    a = mpmath.mpf(parameter)
    tail, inner = 1 / (1 + mpmath.exp(-a)), mpmath.tanh(a / 2)
    p = [tail, *(inner * mpmath.exp(-a * x) for x in range(1, moved)), tail * mpmath.exp(-a * moved)]
    return p, p[::-1]


@pytest.mark.parametrize("order", ORDERS_TRIED)
@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 0.3, 2.0])
def test_costs_are_never_below_the_truth_and_hardly_above(order: float, size: float) -> None:
    """Forty digits against doubles, down to where the logarithm of a sum near 1 has none left."""
    with mpmath.workdps(40):
        e = mpmath.mpf(size)
        truth = [1 / (1 + mpmath.exp(-e)), 1 / (1 + mpmath.exp(e))]
        keep = RandomizedResponseEvent(4 / (4 + math.expm1(size)), 4)
        other = mpmath.mpf(keep.flip) / 4
        four = [1 - 3 * other, other, other, other]
        a = mpmath.mpf(order)
        exact_laplace = mpmath.log(
            a / (2 * a - 1) * mpmath.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)
        ) / (a - 1)
        known = [
            (
                ApproximateEvent(size, 0.0, "zero-out"),
                "zero-out",
                divergence(truth, truth[::-1], order),
            ),
            (
                DiscreteLaplaceEvent(size / 3, 3),
                "zero-out",
                divergence(*laplace_atoms(size / 3, 3), order),
            ),
            (keep, "replace-one", divergence(four, [four[1], four[0], *four[2:]], order)),
            (LaplaceEvent(1 / size), "zero-out", exact_laplace),
        ]
        for event, adjacency, expected in known:
            (found,) = renyi(event, adjacency, (order,)).values
            assert found >= expected * (1 - mpmath.mpf(10) ** -15), event
            # The fallback a eps^2 / 2 for tiny losses is at most a factor 2 above, for Laplace noise 1.
            assert found <= max(2.01 * order * expected, expected * 1.001 + 1e-12)


@pytest.mark.parametrize("order", ORDERS_TRIED)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.2])
def test_discrete_gaussians_cost_no_more_than_continuous_ones(order: float, sigma: float) -> None:
    with mpmath.workdps(40):
        weight = [
            mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for x in range(-400, 401)
        ]
        total = mpmath.fsum(weight)
        p = [w / total for w in weight]
        exact = divergence(p[:-2], p[2:], order)
        (found,) = renyi(DiscreteGaussianEvent(sigma, 2), orders=(order,)).values
        assert found >= exact * (1 - mpmath.mpf(10) ** -12)
        if sigma > 1:
            assert found == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("order", ORDERS_TRIED)
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_the_exponential_mechanism_costs_at_least_every_loss_of_that_range(
    order: float, epsilon: float
) -> None:
    (found,) = renyi(ExponentialEvent(epsilon, "zero-out"), orders=(order,)).values
    for share in (0.01, 0.2, 0.5, 0.8, 0.99):
        high, low = share * epsilon, (share - 1) * epsilon
        q = -math.expm1(low) / (math.exp(high) - math.exp(low))  # so that P adds up to 1
        moment = q * math.exp(order * high) + (1 - q) * math.exp(order * low)
        assert found >= math.log(moment) / (order - 1) - 1e-12


def test_zcdp_is_above_the_gaussian_that_it_describes() -> None:
    for mu in (0.05, 0.5, 2.0):
        stated, exact = curve(ZcdpEvent(mu**2 / 2, "zero-out")), curve(GaussianEvent(1 / mu))
        for delta in (1e-3, 1e-6, 1e-9):
            assert (
                exact.epsilon_upper(delta)
                <= stated.epsilon_upper(delta)
                < zcdp_epsilon(mu**2 / 2, delta)
            )
    both = curve(ZcdpEvent(0.1, "zero-out") + GaussianEvent(2.0))
    assert both.epsilon_upper(1e-6) == pytest.approx(
        curve(ZcdpEvent(0.225, "zero-out")).epsilon_upper(1e-6), rel=1e-9
    )
    with pytest.raises(NotAccountable, match="no dominating pair"):
        curve(ZcdpEvent(0.1, "zero-out") + LaplaceEvent(2.0))
    with pytest.raises(NotAccountable, match="calibrated under zero-out"):
        curve(ZcdpEvent(0.1, "zero-out"), "replace-one")
