"""The privacy curve of an event: epsilon, delta and trade-off, each as an interval.

Guarantee: the upper end is proven. It is H_eps of a pair that dominates the event (pairs.py,
lattice.py), with truncated mass counted as lost and rounding errors bounded (convolution.py). The
lower end is what some mechanism and data that the event describes really give away, so no accountant
could claim less; it is no promise to anyone, but shows how tight the upper end is.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import special

from sourdine import checks, notebook
from sourdine.accounting import exact, shuffle
from sourdine.accounting.dominating import Worst, gaussian_mu, shuffled_mu, worst, zcdp_rho
from sourdine.accounting.numerical import Direction
from sourdine.accounting.pairs import ROUNDING, Pair, tails
from sourdine.accounting.parallel import alternatives
from sourdine.accounting.search import largest_above, smallest_below
from sourdine.errors import ContradictionError, InputError, NotAccountable
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    Event,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    compose,
)

_MOST_LAPLACE = 12
_MOST_EXACT = 100.0  # largest epsilon of one Laplace release that the closed form integrates well
_MOST_STEPS = 10**12
_LARGEST = 700.0


class Interval(NamedTuple):
    """A number known up to an interval; `upper` is the proven bound."""

    lower: float
    upper: float


class PrivacyCurve(ABC):
    """delta as a function of epsilon >= 0, for the worse of the two directions."""

    infinite: float = 0.0
    """What delta is not below, however large epsilon is."""

    @abstractmethod
    def delta(self, epsilon: float) -> Interval:
        """The smallest delta for this epsilon >= 0."""

    def epsilon(self, delta: float) -> Interval:
        """The smallest epsilon >= 0 for this delta in (0, 1)."""
        delta = checks.delta(delta)
        if self.infinite > delta:
            return Interval(math.inf, math.inf)
        return Interval(
            largest_above(lambda e: self.delta(e).lower, delta),
            smallest_below(lambda e: self.delta(e).upper, delta),
        )

    def epsilon_upper(self, delta: float) -> float:
        """Only the proven end of epsilon, for searches."""
        return self.epsilon(delta).upper

    def tradeoff(self, fpr: float) -> Interval:
        """The smallest false-negative rate of any test of membership with this false-positive rate.

        f(a) = sup over epsilon >= 0 of max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))
        (Dong, Roth, Su 2022, Proposition 2.5), with delta the worse of the two directions. Here the
        *lower* end is the proven bound; the upper one bounds this f, which a test in one direction
        alone need not reach.
        """
        fpr = checks.not_negative("fpr", fpr)
        if fpr > 1:
            raise InputError(f"fpr is {fpr:g}, but a false-positive rate is at most 1.")
        if fpr == 1:
            return Interval(0.0, 0.0)
        points = [0.0, *np.geomspace(1e-3, 1.0 - math.log(max(fpr, 1e-12)), 24).tolist()]
        bounds = {point: self.delta(point) for point in points}

        def power(epsilon: float, delta: float) -> float:
            return max(1 - delta - math.exp(epsilon) * fpr, math.exp(-epsilon) * (1 - delta - fpr))

        # Any epsilon gives a proven bound. For the other end, delta between two points is at least its
        # value at the right one; halve the intervals that leave room for more than is known.
        for _ in range(12):
            known = max(power(point, bound.lower) for point, bound in bounds.items())
            grid = sorted(bounds)
            loose = [
                (left + right) / 2
                for left, right in pairwise(grid)
                if power(left, bounds[right].lower) > known + 1e-4
            ]
            if not loose:
                break
            bounds |= {point: self.delta(point) for point in loose}
        grid = sorted(bounds)
        proven = max(power(point, bound.upper) for point, bound in bounds.items())
        possible = max(power(left, bounds[right].lower) for left, right in pairwise(grid))
        possible = max(possible, power(grid[-1], 0.0))
        return Interval(max(0.0, proven), max(0.0, possible))

    def _repr_html_(self) -> str:
        return notebook.curve(self.epsilon_upper)


class ExactCurve(PrivacyCurve):
    """A closed form, known up to rounding."""

    def __init__(self, profile: exact.Profile, infinite: float = 0.0) -> None:
        self._profile = profile
        self.infinite = infinite

    def delta(self, epsilon: float) -> Interval:
        value, error = self._profile(checks.not_negative("epsilon", epsilon))
        return Interval(min(1.0, max(0.0, value - error)), min(1.0, value + error))


class OneStepCurve(PrivacyCurve):
    """A single release, straight from its pairs: P(L > e) - exp(e) Q(L > e)."""

    def __init__(self, found: Worst) -> None:
        self._above = (found.forward, found.backward)
        self._attained = found.attained or ()
        self.infinite = max((_certain(pair.infinite) for pair in self._attained), default=0.0)

    def delta(self, epsilon: float) -> Interval:
        epsilon = checks.not_negative("epsilon", epsilon)
        lower = max((_hockey(pair, epsilon, -1) for pair in self._attained), default=0.0)
        return Interval(lower, max(_hockey(pair, epsilon, +1) for pair in self._above))


class ComposedCurve(PrivacyCurve):
    """A composition on the grid, both directions."""

    def __init__(self, found: list[tuple[Worst, int]], accuracy: float, cap: PrivacyCurve) -> None:
        self._cap = cap
        above = zip(*[((w.forward, n), (w.backward, n)) for w, n in found], strict=True)
        seen = [(w.attained, n) for w, n in found if w.attained is not None]
        below = zip(*[((a[0], n), (a[1], n)) for a, n in seen], strict=True) if seen else [(), ()]
        self._directions = [
            Direction(tuple(over), tuple(under), accuracy)
            for over, under in zip(above, below, strict=True)
        ]
        if self._directions[0] == self._directions[1]:
            del self._directions[1]

    def delta(self, epsilon: float) -> Interval:
        epsilon = checks.not_negative("epsilon", epsilon)
        lower = upper = 0.0
        for direction in self._directions:
            if direction.delta_rough(epsilon) > lower:
                lower = max(lower, direction.delta_lower(epsilon))
                upper = max(upper, direction.delta_upper(epsilon))
        return _consistent(lower, min(upper, self._cap.delta(epsilon).upper))

    def epsilon(self, delta: float) -> Interval:
        delta = checks.delta(delta)
        lower = upper = 0.0
        for direction in self._directions:
            # The second direction is usually the easier one: a rough bound often settles it.
            if upper == 0.0 or direction.epsilon_rough(delta) > lower:
                here = direction.epsilon_upper(delta)
                upper = max(upper, here)
                lower = max(lower, direction.epsilon_lower(delta, here))
        return _consistent(lower, min(upper, self._cap.epsilon_upper(delta)))

    def epsilon_upper(self, delta: float) -> float:
        upper = 0.0
        for direction in self._directions:
            if upper == 0.0 or direction.epsilon_rough(delta) > upper:
                upper = max(upper, direction.epsilon_upper(delta))
        return min(upper, self._cap.epsilon_upper(delta))


class WorstCurve(PrivacyCurve):
    """The worst of several curves at each point: a unit meets one of them (accounting/parallel.py)."""

    def __init__(self, curves: list[PrivacyCurve]) -> None:
        self._curves = curves
        self.infinite = max(curve.infinite for curve in curves)

    def delta(self, epsilon: float) -> Interval:
        return _highest([curve.delta(epsilon) for curve in self._curves])

    def epsilon(self, delta: float) -> Interval:
        return _highest([curve.epsilon(delta) for curve in self._curves])

    def epsilon_upper(self, delta: float) -> float:
        return max(curve.epsilon_upper(delta) for curve in self._curves)


class ShuffledCurve(PrivacyCurve):
    """Shuffled batches alone: no amplification above, the threshold attack below."""

    def __init__(self, event: ShuffledEvent, adjacency: str, above: PrivacyCurve) -> None:
        self._event, self._adjacency, self._above = event, adjacency, above

    def delta(self, epsilon: float) -> Interval:
        lower = shuffle.lower_delta(self._event, self._adjacency, epsilon)
        upper = self._above.delta(epsilon).upper
        return Interval(min(lower, upper), upper)

    def epsilon(self, delta: float) -> Interval:
        lower = shuffle.lower_epsilon(self._event, self._adjacency, checks.delta(delta))
        upper = self._above.epsilon(delta).upper
        return Interval(min(lower, upper), upper)


class TruncatedCurve(PrivacyCurve):
    """Lots that are cut when they grow too large, which happens at all with probability `cut` at most.

    Both neighbours then differ from their untruncated twins by at most `cut` in total variation, so
    delta grows by at most (1 + e^epsilon) cut (after Chua et al. 2024), and falls by no more.
    """

    def __init__(self, untruncated: PrivacyCurve, cut: float) -> None:
        self._untruncated, self._cut = untruncated, cut

    def delta(self, epsilon: float) -> Interval:
        epsilon = checks.not_negative("epsilon", epsilon)
        lower = self._untruncated.delta(epsilon).lower - self._extra(epsilon)
        # The bound rises again for large epsilon; what holds at a smaller one holds here too.
        upper = min(self._upper(epsilon / 2**halvings) for halvings in range(8))
        return Interval(max(0.0, lower), min(1.0, upper))

    def epsilon(self, delta: float) -> Interval:
        delta = checks.delta(delta)
        # delta(e) <= delta - x and (1 + e^e) cut <= x, for an x that grows until both hold.
        upper, kept = math.inf, self._extra(0.0)
        while kept < delta / 2:
            found = self._untruncated.epsilon_upper(delta - kept)
            if self._extra(found) <= kept:
                upper = found
                break
            kept = max(2 * kept, self._extra(found))
        total = delta + self._extra(upper)
        lower = self._untruncated.epsilon(total).lower if total < 1 else 0.0
        return Interval(min(lower, upper), upper)

    def _upper(self, epsilon: float) -> float:
        return self._untruncated.delta(epsilon).upper + self._extra(epsilon)

    def _extra(self, epsilon: float) -> float:
        return (1 + math.exp(min(epsilon, _LARGEST))) * self._cut


class ZcdpCurve(PrivacyCurve):
    """rho-zCDP: delta from the best Rényi order; nothing is known to be attained."""

    def __init__(self, rho: float) -> None:
        self._rho = rho

    def delta(self, epsilon: float) -> Interval:
        epsilon = checks.not_negative("epsilon", epsilon)
        # Every order proves a bound; the best is near 1 + (epsilon - rho) / 2 rho or close to 1.
        best = max((epsilon / self._rho - 1) / 2, 1e-3)
        orders = 1 + np.concatenate([best * np.geomspace(0.2, 5, 400), np.geomspace(1e-3, 1e3, 100)])
        logs = (orders - 1) * (orders * self._rho - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        return Interval(0.0, min(1.0, math.exp(min(0.0, float(logs.min())))))


def curve(event: Event, adjacency: str = "zero-out", *, accuracy: float = 1e-6) -> PrivacyCurve:
    """The privacy curve of an event under an adjacency.

    Closed forms are used where they exist: Gaussian composition, Laplace composition, randomized
    response and other pure or approximate promises, and single releases. Everything else is composed
    on a grid chosen so that epsilon is known to about `accuracy`, as far as memory allows.

    Raises NotAccountable where no proof covers the event under this adjacency.
    """
    checks.adjacency(adjacency)
    checks.positive("accuracy", accuracy)
    if not isinstance(event, Event):
        raise InputError(f"{event!r} is no event; build one, for instance GaussianEvent(1.0).")
    return _curve(event, adjacency, accuracy)


@functools.lru_cache(maxsize=16)  # ledger, certificate, card and report ask about the same event
def _curve(event: Event, adjacency: str, accuracy: float) -> PrivacyCurve:
    options = alternatives(event, adjacency)
    if options != (event,):
        each = [curve(option, adjacency, accuracy=accuracy) for option in options]
        return WorstCurve(each) if len(each) > 1 else each[0]
    parts = event.parts
    if any(isinstance(part, SelectionEvent) for part, _ in parts):
        from sourdine.accounting.selection import selection_curve  # noqa: PLC0415 (it needs curves)

        return selection_curve(event, adjacency, accuracy)
    if any(isinstance(part, TruncatedPoissonEvent) for part, _ in parts):
        return _truncated(event, adjacency, accuracy)
    if any(isinstance(part, NonPrivateEvent) for part, _ in parts):
        return ExactCurve(lambda _: (1.0, 0.0), infinite=1.0)
    if not parts:
        return ExactCurve(lambda _: (0.0, 0.0))
    mu = gaussian_mu(event, adjacency)
    if mu is not None:
        return ExactCurve(exact.gaussian(mu))
    rho = zcdp_rho(event, adjacency)
    if rho is not None:
        return ZcdpCurve(rho)
    if len(parts) == 1:
        closed = _closed_form(*parts[0], adjacency)
        if closed is not None:
            return closed
    if sum(count for _, count in parts) > _MOST_STEPS:
        raise NotAccountable(
            f"more than {_MOST_STEPS:g} steps are beyond double precision; take fewer."
        )
    found = [(worst(part, adjacency), count) for part, count in parts]
    return ComposedCurve(found, accuracy, _without_sampling(event, adjacency))


def _truncated(event: Event, adjacency: str, accuracy: float) -> PrivacyCurve:
    """The curve of the untruncated lots, and the probability that any of them had to be cut."""
    if adjacency == "add-remove":
        raise NotAccountable(
            "how often a lot is cut depends on the number of records, which add-remove hides; ask for "
            "adjacency zero-out."
        )
    whole: Event = NOTHING
    cut = 0.0
    for part, count in event.parts:
        if isinstance(part, TruncatedPoissonEvent):
            # The number of records in a lot is binomial, for both neighbours at most this one.
            cut += count * float(special.bdtrc(part.most, part.records, part.rate))
            part = part.untruncated  # noqa: PLW2901
        whole = whole + count * part
    return TruncatedCurve(curve(whole, adjacency, accuracy=accuracy), min(1.0, cut * (1 + 1e-9)))


def _without_sampling(event: Event, adjacency: str) -> PrivacyCurve:
    """A looser curve that always answers: sampling never hurts, and plain noise has a closed form.

    It matters where the noise is so small that losses overflow the grid.
    """
    whole = compose(
        count * (part.event if isinstance(part, PoissonEvent) else part) for part, count in event.parts
    )
    mu = gaussian_mu(whole, adjacency)
    if mu is not None:
        return ExactCurve(exact.gaussian(mu))
    bounds = [(worst(part, adjacency), count) for part, count in event.parts]
    pairs = [(pair, count) for found, count in bounds for pair in (found.forward, found.backward)]
    if any(pair.infinite for pair, _ in pairs):
        return ExactCurve(lambda _: (1.0, 0.0))
    # Pure epsilon-DP: the largest loss of each direction, added up.
    most = max(sum(pair.high * count for pair, count in pairs[side::2]) for side in (0, 1))
    return ExactCurve(lambda epsilon: (0.0 if epsilon >= most else 1.0, 0.0))


def _closed_form(event: Event, count: int, adjacency: str) -> PrivacyCurve | None:
    found = worst(event, adjacency)
    match event:
        case ShuffledEvent():
            mu = shuffled_mu(event, adjacency) * math.sqrt(count)
            return ShuffledCurve(event, adjacency, ExactCurve(exact.gaussian(mu)))
        case ApproximateEvent():
            failed = -math.expm1(count * math.log1p(-event.delta))
            profile = exact.randomized_response(event.epsilon, count, event.delta)
            return ExactCurve(profile, failed * (1 - 1e-12))
        case RandomizedResponseEvent(buckets=2) if event.flip < 1:
            epsilon0 = math.log((1 - event.flip / 2) / (event.flip / 2))
            return ExactCurve(exact.randomized_response(epsilon0, count))
        case LaplaceEvent() if 1 < count <= _MOST_LAPLACE and found.forward.high <= _MOST_EXACT:
            return ExactCurve(exact.laplace(found.forward.high, count))
    return OneStepCurve(found) if count == 1 else None


def _highest(intervals: list[Interval]) -> Interval:
    return Interval(max(each.lower for each in intervals), max(each.upper for each in intervals))


def _consistent(lower: float, upper: float) -> Interval:
    if lower > upper * (1 + 1e-9) + 1e-12:
        raise ContradictionError(
            f"the bounds {lower!r} and {upper!r} exclude each other: this is a bug of sourdine. Use "
            "neither, and report the event (SECURITY.md)."
        )
    return Interval(min(lower, upper), upper)


def _certain(infinite: float) -> float:
    """Infinite mass as a lower bound; what only stands for a far tail (atoms.py) is not attained."""
    return infinite if infinite > 1e-140 else 0.0


def _hockey(pair: Pair, epsilon: float, side: int) -> float:
    p, q = tails(pair, epsilon)
    if epsilon > _LARGEST or q < 1e-290:  # Q has no digits left: what P has may not be all excess
        return min(1.0, p * (1 + ROUNDING)) if side > 0 else _certain(pair.infinite)
    scaled = math.exp(epsilon) * q
    return min(1.0, max(0.0, p - scaled + side * ROUNDING * (p + scaled)))
