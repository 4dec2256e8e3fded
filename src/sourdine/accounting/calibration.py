"""Finding the noise, the steps or the rate that a budget pays for, never above it.

The cost falls with the noise and rises with steps and rate, so each search is for a crossing. It runs
on coarse curves, whose upper end is proven as well; the last value is checked on a fine one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sourdine import checks
from sourdine.accounting.curves import Interval, curve
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.events import Event, GaussianEvent, PoissonEvent

_CLOSE = 2e-4  # how much of the budget may stay unused, relative


@dataclass(frozen=True)
class Plan:
    """Poisson lots of `rate` for `steps` steps with this noise, and what that costs."""

    noise_multiplier: float
    rate: float
    steps: int
    epsilon: Interval
    delta: float
    adjacency: str
    event: Event


def calibrate(
    budget: Budget,
    *,
    noise_multiplier: float | None = None,
    rate: float | None = None,
    steps: int | None = None,
    mechanism: Callable[[float], Event] = GaussianEvent,
) -> Plan:
    """Fill in the one of noise_multiplier, rate and steps that is not given.

    The plan found is the cheapest in noise, or the longest in steps, or the largest in rate, whose
    proven epsilon at the budget's delta is not above the budget's. At most 0.1% of it stays unused,
    but for steps, which are whole, and where a noise multiplier of 0.001 or a rate of 1 is already
    enough. Raises BudgetError where nothing fits.
    """
    if not isinstance(budget, Budget):
        raise InputError(f"{budget!r} is no budget; give one, for instance Budget(3, 1e-6).")
    if (noise_multiplier, rate, steps).count(None) != 1:
        raise InputError(
            "give exactly two of noise multiplier, rate and steps: the third is what calibration finds."
        )
    if rate is not None:
        rate = checks.rate(rate)
    if steps is not None:
        steps = checks.whole("steps", steps)
    if noise_multiplier is not None:
        checks.positive("noise_multiplier", noise_multiplier)

    def plan(noise: float, share: float, count: int) -> Event:
        return PoissonEvent(share, mechanism(noise)) * count

    if noise_multiplier is None:
        assert rate is not None and steps is not None  # noqa: S101 (for the type checker)
        fixed_rate, fixed_steps = rate, steps
        noise = _smallest(budget, lambda x: plan(x, fixed_rate, fixed_steps))
        return _checked(budget, noise, rate, steps, plan)
    if rate is None:
        assert steps is not None  # noqa: S101
        fixed_steps, fixed_noise = steps, noise_multiplier
        found = 1 / _smallest(budget, lambda x: plan(fixed_noise, 1 / max(x, 1.0), fixed_steps), 1.0)
        return _checked(budget, noise_multiplier, found, steps, plan)
    fixed_rate, fixed_noise = rate, noise_multiplier
    count = _most(budget, lambda n: plan(fixed_noise, fixed_rate, n))
    return _checked(budget, noise_multiplier, rate, count, plan)


def least_noise(budget: Budget, plan: Callable[[float], Event]) -> float:
    """The smallest noise multiplier whose plan fits the budget, for any way of drawing lots."""
    return _smallest(budget, plan)


def _cost(budget: Budget, event: Event) -> float:
    accuracy = 0.2 * _CLOSE * budget.epsilon
    found = curve(event, budget.adjacency, accuracy=accuracy).epsilon_upper(budget.delta)
    if found > 1.05 * budget.epsilon:
        # Of a few steps at a small rate, a coarse grid does not keep the accuracy it is chosen for.
        finer = curve(event, budget.adjacency).epsilon_upper(budget.delta)
        found = finer if finer < 0.9 * found else found
    return found


def _smallest(budget: Budget, event: Callable[[float], Event], least: float = 1e-3) -> float:
    """The smallest x >= least whose event fits the budget; the cost falls with x."""
    low = high = max(1.0, least)
    low_cost = high_cost = _cost(budget, event(high))
    while high_cost > budget.epsilon:
        if high > 1e9:
            raise BudgetError(
                f"nothing fits epsilon={budget.epsilon:g} at delta={budget.delta:g}; take fewer steps "
                "or ask for a larger budget."
            )
        low, low_cost, high = high, high_cost, 4 * high
        high_cost = _cost(budget, event(high))
    while low_cost <= budget.epsilon:
        if low <= least:
            return low
        high, high_cost, low = low, low_cost, max(least, low / 4)
        low_cost = _cost(budget, event(low))
    # ln cost is nearly straight in ln x: regula falsi, kept a little inside the bracket.
    while high_cost < budget.epsilon * (1 - _CLOSE) and high > low * (1 + 1e-9):
        guess = math.sqrt(low * high)
        if math.isfinite(low_cost) and high_cost > 0:
            slope = math.log(high / low) / math.log(high_cost / low_cost)
            guess = high * (budget.epsilon * (1 - 0.4 * _CLOSE) / high_cost) ** slope
            guess = min(max(guess, low * (high / low) ** 0.02), high * (low / high) ** 0.002)
        cost = _cost(budget, event(guess))
        if cost <= budget.epsilon:
            high, high_cost = guess, cost
        else:
            low, low_cost = guess, cost
    return high


def _most(budget: Budget, event: Callable[[int], Event]) -> int:
    """The largest whole number whose event fits the budget; the cost rises with it."""
    low, high = 0, 1
    while _cost(budget, event(high)) <= budget.epsilon:
        low, high = high, 4 * high
        if high > 1 << 40:
            raise BudgetError("more than 10^12 steps fit this budget; lower the noise or the budget.")
    if low == 0:
        raise BudgetError(
            f"not even one step fits epsilon={budget.epsilon:g} at delta={budget.delta:g}; raise the "
            "noise multiplier, lower the rate, or ask for a larger budget."
        )
    while high - low > max(1, low // 5000):
        middle = (low + high) // 2
        low, high = (middle, high) if _cost(budget, event(middle)) <= budget.epsilon else (low, middle)
    return low


def _checked(
    budget: Budget, noise: float, rate: float, steps: int, plan: Callable[[float, float, int], Event]
) -> Plan:
    """The plan with its interval; the coarse bound of the search stands where it is the tighter one."""
    event = plan(noise, rate, steps)
    found = curve(event, budget.adjacency).epsilon(budget.delta)
    upper = found.upper if found.upper <= budget.epsilon else _cost(budget, event)
    return Plan(
        noise,
        rate,
        steps,
        Interval(min(found.lower, upper), upper),
        budget.delta,
        budget.adjacency,
        event,
    )
