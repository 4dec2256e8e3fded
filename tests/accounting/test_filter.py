"""The filter: never looser than the truth, tight where it can be, and one order only."""

import functools
import math
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.accounting import curve
from sourdine.accounting.filter import Cost, Filter
from sourdine.accounting.rdp import renyi
from sourdine.budget import Budget
from sourdine.errors import NotAccountable
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
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    ZcdpEvent,
    compose,
)

EVENTS = [
    GaussianEvent(20.0),
    LaplaceEvent(15.0),
    DiscreteLaplaceEvent(0.01, 5, "zero-out"),
    DiscreteGaussianEvent(600.0, 32, "zero-out"),
    ApproximateEvent(0.1, 0.0, "zero-out"),
    ApproximateEvent(0.1, 1e-9, "zero-out"),
    ExponentialEvent(0.2, "zero-out"),
    ZcdpEvent(0.002, "zero-out"),
    50 * PoissonEvent(0.01, GaussianEvent(2.0)),
    PoissonEvent(0.1, LaplaceEvent(2.0)),
    FixedSizeEvent(10_000, 10, GaussianEvent(4.0)),
    ShuffledEvent(30.0, 100),
    CorrelatedEvent(40.0, (0.8, 0.6), 30, 3, 10),
]


@given(
    st.lists(
        st.sampled_from([event for event in EVENTS if event.kind != "zcdp"]), min_size=1, max_size=8
    )
)
def test_what_is_allowed_costs_no_more_than_the_budget(events: list[Event]) -> None:
    budget = Budget(1.0, 1e-6)
    found = Filter(budget)
    total = found.total(Counter(events))
    exact = curve(compose(events), accuracy=1e-4).epsilon_upper(budget.delta)
    if found.allows(total):
        assert exact <= budget.epsilon + 1e-4
    assert found.epsilon(total) >= exact - 1e-4


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_every_kind_has_a_cost(event: Event) -> None:
    cost = Filter(Budget(1.0)).cost(event)
    assert math.isfinite(cost.renyi) and cost.renyi > 0
    assert cost.pure > 0


def test_many_small_charges_fit_better_than_their_sum() -> None:
    found = Filter(Budget(1.0, 1e-6))
    event = ApproximateEvent(0.01, 0.0, "zero-out")
    assert found.allows(found.total({event: 400}))
    assert not found.allows(found.total({event: 600}))


@pytest.mark.parametrize(
    "budget", [Budget(0.1, 1e-9), Budget(1.0), Budget(3.0, 1e-5), Budget(8.0, 1e-6)]
)
def test_gaussian_noise_loses_little_to_the_fixed_order(budget: Budget) -> None:
    """Against the best order chosen afterwards with the whole delta, at the rim of the budget."""
    found = Filter(budget)
    mu = math.sqrt(2 * found.limit / found.order)
    afterwards = renyi(GaussianEvent(1 / mu)).epsilon(budget.delta)
    assert 0.95 * budget.epsilon < afterwards <= 1.01 * budget.epsilon  # its orders are a grid


def test_the_order_depends_on_the_budget_alone() -> None:
    assert Filter(Budget(1.0)).order == Filter(Budget(1.0)).order
    assert Filter(Budget(0.1)).order > Filter(Budget(1.0)).order > Filter(Budget(9.0)).order


def test_failure_probabilities_are_kept_apart() -> None:
    found = Filter(Budget(1.0, 1e-6))
    event = ApproximateEvent(1e-3, 1e-7, "zero-out")
    assert found.allows(found.total({event: 2}))
    assert not found.allows(found.total({event: 3}))
    assert found.epsilon(found.total({event: 3})) == math.inf


def test_ten_tenths_are_one() -> None:
    found = Filter(Budget(1.0))
    assert found.allows(found.total({ApproximateEvent(0.1, 0.0, "zero-out"): 10}))
    assert not found.allows(Cost(1.0 + 1e-9, math.inf, 0.0))


def test_a_plan_enters_the_cheaper_way() -> None:
    found = Filter(Budget(1.0))
    noisy = 1000 * PoissonEvent(0.01, GaussianEvent(2.0))  # moments behave at the filter's order
    assert found.cost(noisy).delta == 0.0
    sharp = 100 * PoissonEvent(0.01, GaussianEvent(0.8))  # and explode here
    cost = found.cost(sharp)
    assert 0 < cost.delta < found.delta_approximate
    assert cost.pure == curve(sharp).epsilon_upper(cost.delta)


def test_no_privacy_is_infinite_and_unknown_events_are_refused() -> None:
    found = Filter(Budget(1.0))
    assert found.cost(NonPrivateEvent()).renyi == math.inf
    with pytest.raises(NotAccountable, match="no meaning under zero-out"):
        found.cost(RandomizedResponseEvent(0.5))
    assert Filter(Budget(2.0, adjacency="replace-one")).cost(RandomizedResponseEvent(0.5, 4)).pure == (
        pytest.approx(math.log(5))
    )


@given(st.floats(0.0, 1.2), st.floats(0.0, 1.0))
def test_what_is_left_fits_and_no_more(pure: float, share: float) -> None:
    found = Filter(Budget(1.0))
    total = Cost(pure, share * found.limit, 0.0)
    left = found.left(total)
    if left > 1e-5:
        more = found.cost(ApproximateEvent(left * (1 - 1e-9), 0.0, "zero-out"))
        assert found.allows(Cost(total.pure + more.pure, total.renyi + more.renyi, 0.0))
        more = found.cost(ApproximateEvent(left * (1 + 1e-6), 0.0, "zero-out"))
        assert not found.allows(Cost(total.pure + more.pure, total.renyi + more.renyi, 0.0))


MENU = (ApproximateEvent(0.15, 0.0, "zero-out"), ApproximateEvent(0.5, 0.0, "zero-out"))


def adversary(budget: Budget, allows: Callable[[Cost], bool]) -> float:
    """The most that an adaptive analyst reaches: E[(1 - e^(epsilon - L))_+] at the best stopping time.

    Each question is randomized response, the worst mechanism of its epsilon. After every answer the
    analyst knows the loss so far and asks the small question, the large one, or stops; the filter alone
    decides what is granted. Exact, by dynamic programming over all transcripts.
    """
    costs = [Filter(budget).cost(event) for event in MENU]
    keep = [1 / (1 + math.exp(-event.epsilon)) for event in MENU]

    @functools.cache
    def best(small: int, large: int, net_small: int, net_large: int) -> float:
        loss = net_small * MENU[0].epsilon + net_large * MENU[1].epsilon
        value = max(0.0, -math.expm1(budget.epsilon - loss))
        for which, (more_small, more_large) in enumerate(((1, 0), (0, 1))):
            counts = small + more_small, large + more_large
            sums = Cost(
                *(
                    sum(n * getattr(c, name) for n, c in zip(counts, costs, strict=True))
                    for name in ("pure", "renyi", "delta")
                )
            )
            if allows(sums):
                up = best(*counts, net_small + more_small, net_large + more_large)
                down = best(*counts, net_small - more_small, net_large - more_large)
                value = max(value, keep[which] * up + (1 - keep[which]) * down)
        return value

    return best(0, 0, 0, 0)


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-2), Budget(1.5, 1e-3), Budget(0.7, 5e-2)])
def test_an_adaptive_analyst_never_gets_more_than_the_budget(budget: Budget) -> None:
    found = Filter(budget)
    assert 0 < adversary(budget, found.allows) <= budget.delta


def test_a_filter_that_grants_more_is_caught() -> None:
    budget = Budget(1.0, 1e-2)
    found = Filter(budget)
    assert adversary(budget, lambda total: total.renyi <= 2 * found.limit) > budget.delta
    assert adversary(budget, lambda total: total.pure <= 2 * budget.epsilon) > budget.delta
