"""The second opinion: what dp-accounting, written by others, says an event costs.

Upper end: its privacy loss distributions, rounded up ("connect the dots"), composed by it; where it
knows none for some part, its Rényi accountant. Lower end: the same distributions rounded down.

Its arithmetic is not exact. Each composition sets 1e-15 of mass aside as lost for ever, also when it
rounds down, and its transforms leave noise of about the size of rounding in each of up to millions of
cells. At a tiny delta its rounded-down epsilon is no lower bound for that reason, and its rounded-up
one no upper bound (at 1e-12, 300 Poisson lots, it said 2.99957 where 2.99962 is attained). So it is
asked for the lower end at delta * (1 + 1e-3) + 1e-11 and for the upper one at delta * (1 - 1e-3) -
1e-11. Epsilon falls as delta grows, so both bounds hold at delta, as long as those errors stay below
1e-11. At deltas near 1e-11 that says little, and below nothing.

Each part is built as a distribution of its own, not by dp-accounting's PLDAccountant, which (0.6.0)
counts a repeated randomized response once and knows no (epsilon, delta) promises. Its Rényi accountant
is not asked under replace-one, where it takes plain Gaussian noise at half the distance.

It has no parallel events: it is asked for each alternative that one unit may meet (accounting/
parallel.py), and the largest of its answers is its opinion.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from sourdine.accounting.dominating import distance
from sourdine.accounting.parallel import alternatives
from sourdine.dp_events import quiet, to_dp_event
from sourdine.errors import NotAccountable
from sourdine.events import (
    ApproximateEvent,
    CorrelatedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    GaussianEvent,
    GdpEvent,
    LaplaceEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
)

_GAP = 0.02  # rounding down may cost half of this share of epsilon
_COARSE, _FINE = 1e-3, 2e-6  # the widest and the narrowest grid
_CELLS = 300_000  # of one step's distribution: what builds it runs in Python, a second for 100,000
_DEVIATIONS = 10.0  # losses past so many deviations are cut by dp-accounting
_SHARE, _MARGIN = 1e-3, 1e-11  # see the top of this file
_ATTAINED_BY_NOBODY = (ExponentialEvent, ShuffledEvent)


@dataclass(frozen=True)
class Opinion:
    """An independent interval for epsilon, and who gave it."""

    lower: float
    upper: float
    method: str


@functools.lru_cache(maxsize=256)
def opinion(event: Event, adjacency: str, delta: float, claimed: float) -> Opinion:
    """dp-accounting's interval for epsilon at delta, or NotAccountable where it has none.

    claimed: about what epsilon is; it decides how fine the grid is, and enters no bound.
    """
    each = [_opinion(one, adjacency, delta, claimed) for one in alternatives(event, adjacency)]
    methods = " and ".join(dict.fromkeys(one.method for one in each))
    return Opinion(max(one.lower for one in each), max(one.upper for one in each), methods)


def _opinion(event: Event, adjacency: str, delta: float, claimed: float) -> Opinion:
    with quiet():
        try:
            width = _width(event, adjacency, claimed)
            upper = _composed(event, adjacency, width, above=True)
            lower = _composed(event, adjacency, width, above=False)
        except NotAccountable:
            return Opinion(0.0, _renyi(event, adjacency, delta), "dp-accounting's Rényi accountant")
        low = float(lower.get_epsilon_for_delta(delta * (1 + _SHARE) + _MARGIN))
        safe = delta * (1 - _SHARE) - _MARGIN
        high = float(upper.get_epsilon_for_delta(safe)) if safe > 0 else math.inf
        return Opinion(max(0.0, low), high, "dp-accounting's loss distributions")


def _composed(event: Event, adjacency: str, width: float, *, above: bool) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    whole = pld.identity(width, pessimistic_estimate=above)
    mu = _mu(
        [(part, count) for part, count in event.parts if not isinstance(part, PoissonEvent)], adjacency
    )
    if mu:
        whole = whole.compose(_gaussian(1 / mu, 1.0, width, above))
    for part, count in event.parts:
        if not above and isinstance(part, _ATTAINED_BY_NOBODY):
            continue
        if _mu([(part, 1)], adjacency) and not isinstance(part, PoissonEvent):
            continue  # is in mu
        whole = whole.compose(_one(part, adjacency, width, above).self_compose(count))
    return whole


def _mu(parts: list[tuple[Event, int]], adjacency: str) -> float:
    """mu of all that is plain Gaussian noise."""
    squares = 0.0
    for part, count in parts:
        match part:
            case GaussianEvent():
                mu = distance(part, adjacency) / part.noise_multiplier
            case GdpEvent():
                mu = distance(part, adjacency) * part.mu
            case CorrelatedEvent():
                mu = distance(part, adjacency) * part.sensitivity / part.noise_multiplier
            case _:
                mu = 0.0
        squares += count * mu * mu
    return math.sqrt(squares)


def _gaussian(
    deviation: float, rate: float, width: float, above: bool, *, swapped: bool = False
) -> Any:
    from dp_accounting import NeighboringRelation  # noqa: PLC0415
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    relation = NeighboringRelation.REPLACE_ONE if swapped else NeighboringRelation.ADD_OR_REMOVE_ONE
    return pld.from_gaussian_mechanism(
        deviation,
        sampling_prob=rate,
        value_discretization_interval=width,
        pessimistic_estimate=above,
        use_connect_dots=above,
        neighboring_relation=relation,
    )


def _one(part: Event, adjacency: str, width: float, above: bool) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    grid: dict[str, Any] = {"value_discretization_interval": width, "pessimistic_estimate": above}
    match part:
        case LaplaceEvent():
            scale = part.noise_multiplier / distance(part, adjacency)
            return pld.from_laplace_mechanism(scale, use_connect_dots=above, **grid)
        case DiscreteLaplaceEvent():
            moved = part.sensitivity * distance(part, adjacency)
            return pld.from_discrete_laplace_mechanism(part.parameter, moved, **grid)
        case DiscreteGaussianEvent():
            moved = part.sensitivity * distance(part, adjacency)
            return pld.from_discrete_gaussian_mechanism(part.sigma, moved, **grid)
        case RandomizedResponseEvent() if adjacency == "replace-one" and part.flip < 1:
            return pld.from_randomized_response(part.flip, part.buckets, **grid)
        case ApproximateEvent():
            distance(part, adjacency)
            return _promise(part.epsilon, part.delta, grid)
        case ExponentialEvent():
            distance(part, adjacency)
            return _promise(part.epsilon, 0.0, grid)
        case ShuffledEvent() if adjacency != "add-remove":
            times = 2 if adjacency == "replace-one" else 1
            mu = times * math.sqrt(part.epochs) / part.noise_multiplier
            return _gaussian(1 / mu, 1.0, width, above)
        case PoissonEvent(rate=1.0):
            mu = _mu(list(part.event.parts), adjacency)
            if mu and all(_mu([(inner, 1)], adjacency) for inner, _ in part.event.parts):
                return _gaussian(1 / mu, 1.0, width, above)
        case PoissonEvent(event=GaussianEvent(adjacency=None) as inner):
            swapped = adjacency == "replace-one"
            return _gaussian(inner.noise_multiplier, part.rate, width, above, swapped=swapped)
        case PoissonEvent(event=LaplaceEvent(adjacency=None) as inner) if adjacency != "replace-one":
            scale, rate = inner.noise_multiplier, part.rate
            return pld.from_laplace_mechanism(scale, sampling_prob=rate, use_connect_dots=above, **grid)
    raise NotAccountable(f"dp-accounting has no loss distribution for events of kind {part.kind!r}.")


def _promise(epsilon: float, delta: float, grid: dict[str, Any]) -> Any:
    """The worst (epsilon, delta)-DP mechanism: it fails with delta, else it is randomized response."""
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    kept, softplus = math.log1p(-delta), math.log1p(math.exp(-epsilon))
    true, lie = kept - softplus, kept - epsilon - softplus
    present, absent = {"true": true, "lie": lie}, {"true": lie, "lie": true}
    if delta:
        present["shown"] = absent["hidden"] = math.log(delta)
    return pld.from_two_probability_mass_functions(absent, present, **grid)


def _width(event: Event, adjacency: str, claimed: float) -> float:
    """A grid fine enough to say something, and coarse enough to take seconds."""
    steps = sum(count for part, count in event.parts if not _mu([(part, 1)], adjacency))
    widest = max((_range(part, adjacency) for part, _ in event.parts), default=0.0)
    fine = max(_FINE, widest / _CELLS, min(claimed, 100.0) / 1_000_000)
    return max(fine, min(_COARSE, _GAP * max(claimed, 0.2) / (steps + 2)))


def _range(part: Event, adjacency: str) -> float:
    """How far apart the smallest and the largest loss of one release are, roughly."""
    rate, inner = (part.rate, part.event) if isinstance(part, PoissonEvent) else (1.0, part)
    mu = _mu(list(inner.parts), adjacency)
    if not mu:
        return 0.0
    most = min(mu * _DEVIATIONS + mu * mu / 2, 700.0)
    return math.log1p(rate * math.expm1(most)) - math.log1p(rate * math.expm1(-most))


def _renyi(event: Event, adjacency: str, delta: float) -> float:
    from dp_accounting import NeighboringRelation  # noqa: PLC0415
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    if adjacency == "replace-one":
        raise NotAccountable("dp-accounting's Rényi accountant is not sound under replace-one.")
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    inner = to_dp_event(event)
    if not accountant.supports(inner):
        kinds = ", ".join(sorted({part.kind for part, _ in event.parts}))
        raise NotAccountable(f"dp-accounting knows no cost for all of: {kinds}.")
    accountant.compose(inner)
    return float(accountant.get_epsilon(delta))
