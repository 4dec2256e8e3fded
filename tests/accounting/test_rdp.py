"""Rényi costs: the papers' numbers, what is refused, and that it never undercuts the exact curve."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourdine import dp_events
from sourdine.accounting import curve, moments_epsilon, renyi
from sourdine.accounting.rdp import Renyi
from sourdine.errors import InputError, NotAccountable
from sourdine.events import (
    ApproximateEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
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
    with pytest.raises(NotAccountable, match="discrete-gaussian"):
        renyi(DiscreteGaussianEvent(2.0))
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
