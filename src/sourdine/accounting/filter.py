"""A privacy filter: may one more release be made, whatever the earlier ones have shown?

An analyst who looks at answers before choosing the next question makes the *cost* of the composition
random, which the sum of events alone does not cover. A filter fixes the budget (epsilon, delta) first
and grants a charge only while, on the path taken, one of two rules holds with the charge included:

1. pure: the epsilons add up to at most epsilon (order infinity; Rogers et al. 2016, Theorem 3.6);
2. Rényi: the divergences of one order a, fixed in advance from the budget alone, add up to at most
   B = epsilon - ln(1 - 1/a) + (ln delta_R + ln a) / (a - 1), so that the whole interaction is
   (a, B)-RDP (Feldman and Zrnic 2021, Theorem 3.1) and (epsilon, delta_R)-DP (Canonne, Kamath, Steinke
   2020, Proposition 12).

Failure probabilities of approximate releases add up to at most delta_A under both rules, and
delta_R + delta_A = delta.

Guarantee: everything granted is together (epsilon, delta)-DP. Proof: set aside what approximate
releases do with their delta_i, together at most delta_A (Kairouz, Oh, Viswanath 2015: the rest is
pure). Split the transcripts by the rule that holds at their end. Where it is the first, the likelihood
ratio is at most e^epsilon. The others are transcripts of the interaction that stops when the second
rule would fail, whose sum only grows; together they exceed e^epsilon times their probability under the
neighbour by at most delta_R. One order only: choosing the best of several at the end would need delta
for each.

Runs may be open at the same time and interleave: composition holds for concurrent interactions too,
with parameters chosen on the way (Haney et al. 2023).

What runs on disjoint parts of the data counts for the dearest part, in each of the three sums: all that
the proof needs is that no sum is below what the unit in question was given (accounting/parallel.py).

A plan that is fixed before it runs may enter as one promise (epsilon_p, delta_p) from its own curve
where that is cheaper than the sum of its steps, as it is for Poisson lots with little noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sourdine.accounting.curves import curve
from sourdine.accounting.dominating import worst
from sourdine.accounting.parallel import check_parallel
from sourdine.accounting.rdp import improved, pure, renyi
from sourdine.budget import Budget
from sourdine.errors import ContradictionError, NotAccountable
from sourdine.events import (
    DiscreteGaussianEvent,
    Event,
    NonPrivateEvent,
    ParallelEvent,
    SelectionEvent,
)

_APPROXIMATE = 0.25  # the share of delta that is kept for approximate releases
_PLAN = 0.05  # the share of that which one plan takes when it enters as a promise
_SMALL = 0.02  # a charge this small beside the limit is not worth a curve of its own
_BITS = 300  # costs are added up in steps of 2^-300: exact, but for some below 1e-74
_UNIT = 1 << _BITS
_SLACK = 1e-12  # ten times 0.1 is not above 1: sums of doubles are compared to twelve digits


@dataclass(frozen=True)
class Cost:
    """What one release counts for: its epsilon if pure, its divergence of the order, its delta."""

    pure: float
    renyi: float
    delta: float

    def __post_init__(self) -> None:
        if not min(self.pure, self.renyi, self.delta) >= 0:  # the proof needs sums that only grow
            raise ContradictionError(f"{self} is no cost: this is a bug of sourdine; report it.")

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.pure + other.pure, self.renyi + other.renyi, self.delta + other.delta)


class Tab:
    """A running sum of costs: exact, so that what is taken back leaves nothing behind."""

    def __init__(self) -> None:
        self._steps = [0, 0, 0]
        self._infinite = [0, 0, 0]

    def add(self, cost: Cost, times: int = 1) -> None:
        """One more cost, so many times; -1 takes it back."""
        for at, value in enumerate((cost.pure, cost.renyi, cost.delta)):
            if math.isinf(value):
                self._infinite[at] += times
            else:
                self._steps[at] += times * math.ceil(math.ldexp(value, _BITS))

    def cost(self) -> Cost:
        """The sum, rounded once."""
        known = zip(self._steps, self._infinite, strict=True)
        return Cost(*(math.inf if infinite else steps / _UNIT for steps, infinite in known))


class Filter:
    """The two rules for one budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.delta_approximate = _APPROXIMATE * budget.delta
        self.delta_renyi = budget.delta - self.delta_approximate
        self.order = _order(budget.epsilon, self.delta_renyi)
        self.limit = _limit(self.order, budget.epsilon, self.delta_renyi)
        self._costs: dict[Event, Cost] = {}
        self._alone: dict[Event, float] = {}

    def alone(self, event: Event) -> float:
        """What an event costs by its own curve, as an epsilon at the budget's delta."""
        if event not in self._alone:
            self._alone[event] = self._epsilon_alone(event)
        return self._alone[event]

    def _epsilon_alone(self, event: Event) -> float:
        try:
            return curve(event, self.budget.adjacency).epsilon_upper(self.budget.delta)
        except NotAccountable:  # known by its Rényi cost only
            return self.epsilon(self.cost(event))

    def cost(self, event: Event) -> Cost:
        """What an event counts for, by a rule that looks at nothing but the event and the budget."""
        if event not in self._costs:
            self._costs[event] = self._cost(event)
        return self._costs[event]

    def _cost(self, event: Event) -> Cost:
        adjacency = self.budget.adjacency
        cost = _whole(event, adjacency, self.order)
        if cost is None:
            cost = Cost(math.inf, math.inf, 0.0)
        elif math.isfinite(cost.pure) or cost.renyi <= _SMALL * self.limit:
            return cost
        try:
            share = _PLAN * self.delta_approximate
            epsilon = curve(event, adjacency).epsilon_upper(share)
        except NotAccountable:
            if math.isinf(cost.renyi):
                raise
            return cost
        whole = Cost(epsilon, pure(epsilon, self.order), share)
        return whole if whole.renyi < cost.renyi else cost

    def total(self, counts: Mapping[Event, int]) -> Cost:
        """All events together, each so many times."""
        tab = Tab()
        for event, count in counts.items():
            tab.add(self.cost(event), count)
        return tab.cost()

    def allows(self, total: Cost) -> bool:
        """Whether one of the rules holds."""
        if total.delta > self.delta_approximate * (1 + _SLACK):
            return False
        return total.pure <= self.budget.epsilon * (1 + _SLACK) or total.renyi <= self.limit * (
            1 + _SLACK
        )

    def epsilon(self, total: Cost) -> float:
        """The smallest epsilon whose filter of the same order would have granted this total."""
        if total.delta > self.delta_approximate * (1 + _SLACK):
            return math.inf
        converted = max(0.0, improved(self.order, total.renyi, self.delta_renyi))
        return min(total.pure, converted)

    def left(self, total: Cost) -> float:
        """The largest epsilon of one more pure release that would be granted."""
        if total.delta > self.delta_approximate * (1 + _SLACK):
            return 0.0
        by_sum = self.budget.epsilon - total.pure
        room = self.limit - total.renyi
        low, high = 0.0, 2 * self.budget.epsilon + 1
        for _ in range(60 if room > 0 else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if pure(middle, self.order) <= room else (low, middle)
        return max(0.0, by_sum, low)


def _limit(order: float, epsilon: float, delta: float) -> float:
    """B: the divergence of this order that still converts to (epsilon, delta)."""
    return epsilon - improved(order, 0.0, delta)


def _order(epsilon: float, delta: float) -> float:
    """The order at which Gaussian noise that just fits is converted best: 1 + sqrt(ln(1/delta) / rho).

    rho is what (epsilon, delta) pays for, epsilon = rho + 2 sqrt(rho ln(1/delta)). Three digits, so
    that every machine that opens a ledger comes to the same order.
    """
    log = math.log(1 / delta)
    root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))  # sqrt(rho)
    return 1 + float(f"{math.sqrt(log) / root:.3g}")


def _sum(costs: Iterable[tuple[Cost, int]]) -> Cost:
    counted = list(costs)
    return Cost(
        math.fsum(cost.pure * count for cost, count in counted),
        math.fsum(cost.renyi * count for cost, count in counted),
        math.fsum(cost.delta * count for cost, count in counted),
    )


def _whole(event: Event, adjacency: str, order: float) -> Cost | None:
    """All parts of an event, or None where only the curve of one is known."""
    parts = [(_part(part, adjacency, order), count) for part, count in event.parts]
    known = [(cost, count) for cost, count in parts if cost is not None]
    return _sum(known) if len(known) == len(parts) else None


def _dearest(event: ParallelEvent, adjacency: str, order: float) -> Cost | None:
    """The largest of each sum over the branches."""
    check_parallel(adjacency)
    branches = [_whole(branch, adjacency, order) for branch in event.events]
    known = [cost for cost in branches if cost is not None]
    if len(known) < len(branches):
        return None
    return Cost(*(max(getattr(cost, name) for cost in known) for name in ("pure", "renyi", "delta")))


@functools.lru_cache(maxsize=1 << 16)
def _part(event: Event, adjacency: str, order: float) -> Cost | None:
    """One uncomposed event, or None where only its curve is known."""
    if isinstance(event, NonPrivateEvent):
        return Cost(math.inf, math.inf, 0.0)
    if event.data_dependent:
        raise NotAccountable(
            "the cost of these votes was computed from private data and bounds nothing for others; "
            "charge the data-independent event of the answers."
        )
    if isinstance(event, ParallelEvent):
        return _dearest(event, adjacency, order)
    epsilon, delta = _pure(event, adjacency)
    if delta:
        return Cost(epsilon, pure(epsilon, order), delta)
    try:
        (divergence,) = renyi(event, adjacency, (order,)).values
    except NotAccountable:
        return Cost(epsilon, pure(epsilon, order), 0.0) if math.isfinite(epsilon) else None
    # dp-accounting's moments are good to about 1e-10; a little more, for as many as may be added up.
    return Cost(epsilon, divergence * (1 + 1e-9) + 1e-12 / (order - 1), 0.0)


def _pure(event: Event, adjacency: str) -> tuple[float, float]:
    """The largest loss, and the mass that has no bound; (inf, 0) where losses have no end."""
    if isinstance(event, SelectionEvent):
        epsilon, infinite = _pure_sum(event.event, adjacency)
        if infinite:
            return math.inf, 0.0
        return (2 + event.eta) * epsilon * (1 + 1e-15), 0.0  # accounting/selection.py
    if isinstance(event, ParallelEvent):
        check_parallel(adjacency)
        branches = [_pure_sum(branch, adjacency) for branch in event.events]
        return max(most for most, _ in branches), max(infinite for _, infinite in branches)
    try:
        found = worst(event, adjacency)
    except NotAccountable:
        if event.kind in ("zcdp", "dp-accounting", "truncated-poisson"):  # no pairs, but other bounds
            return math.inf, 0.0
        raise
    if isinstance(event, DiscreteGaussianEvent):  # its atoms are cut in the far tail
        return math.inf, 0.0
    highest = max(found.forward.high, found.backward.high)
    return highest, max(found.forward.infinite, found.backward.infinite)


def _pure_sum(event: Event, adjacency: str) -> tuple[float, float]:
    """The same for all parts together."""
    if any(isinstance(part, NonPrivateEvent) for part, _ in event.parts):
        return math.inf, 0.0
    found = [(*_pure(part, adjacency), count) for part, count in event.parts]
    return sum(most * count for most, _, count in found), sum(mass * n for _, mass, n in found)
