"""Rényi differential privacy and the moments accountant.

M is (a, r)-RDP when the Rényi divergence of order a between its outputs on neighbours is at most r
(Mironov 2017). Costs of one order add up under composition. The moments accountant (Abadi et al. 2016)
is the same thing: the log moment of order lambda is lambda times the divergence of order lambda + 1.

The divergences of sampled Gaussians come from dp-accounting, the field's own implementation; its
REPLACE_ONE is refused here for plain Gaussian events, which it does not double (it would report 14.13
where 33.10 is exact).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sourdine import checks
from sourdine.accounting.parallel import check_parallel
from sourdine.errors import InputError, NotAccountable
from sourdine.events import (
    ApproximateEvent,
    CorrelatedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    ForeignEvent,
    GaussianEvent,
    GdpEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ParallelEvent,
    PateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    ShuffledEvent,
    ZcdpEvent,
)

if TYPE_CHECKING:
    from sourdine.accounting.atoms import Atoms

ORDERS: tuple[float, ...] = (
    *(1 + x / 20 for x in range(1, 20)),
    *(2 + x / 10 for x in range(80)),
    *(float(x) for x in range(10, 64)),
    *(float(x) for x in range(64, 257, 8)),
    512.0,
    1024.0,
    4096.0,
)
MOMENTS: tuple[float, ...] = tuple(float(moment + 1) for moment in range(1, 33))
"""Orders of the moments 1 to 32 that Abadi et al. computed."""


@dataclass(frozen=True)
class Renyi:
    """Bounds `values[i]` on the Rényi divergence of order `orders[i]`."""

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __add__(self, other: Renyi) -> Renyi:
        if self.orders != other.orders:
            raise InputError(
                "Rényi costs add up at equal orders only; compute both at the same orders."
            )
        pairs = zip(self.values, other.values, strict=True)
        return Renyi(self.orders, tuple(a + b for a, b in pairs))

    def epsilon_classic(self, delta: float) -> float:
        """min over a of r + ln(1/delta) / (a - 1) (Abadi et al. 2016, Theorem 2; Mironov 2017)."""
        delta = checks.delta(delta)
        return max(
            0.0, min(classic(a, r, delta) for a, r in zip(self.orders, self.values, strict=True))
        )

    def epsilon(self, delta: float) -> float:
        """min over a of the improved conversion (Canonne, Kamath, Steinke 2020, Proposition 12)."""
        delta = checks.delta(delta)
        return max(
            0.0, min(improved(a, r, delta) for a, r in zip(self.orders, self.values, strict=True))
        )

    def delta(self, epsilon: float) -> float:
        """The improved conversion solved for delta."""
        epsilon = checks.not_negative("epsilon", epsilon)
        logs = [
            (a - 1) * (r - epsilon) + (a - 1) * math.log1p(-1 / a) - math.log(a)
            for a, r in zip(self.orders, self.values, strict=True)
        ]
        return min(1.0, math.exp(min(0.0, *logs)))

    def group(self, doublings: int) -> Renyi:
        """The cost for 2^c records together: order a/2^c costs 3^c r(a) (Mironov 2017, Prop. 2).

        Only orders of at least 2^(c+1) carry over.
        """
        doublings = checks.whole("doublings", doublings, least=0)
        size = 2**doublings
        kept = [(a, r) for a, r in zip(self.orders, self.values, strict=True) if a >= 2 * size]
        if not kept:
            raise InputError(f"no order of at least {2 * size} is known; compute higher orders first.")
        return Renyi(tuple(a / size for a, _ in kept), tuple(3**doublings * r for _, r in kept))


def classic(order: float, value: float, delta: float) -> float:
    """r + ln(1/delta) / (a - 1)."""
    return value + math.log(1 / delta) / (order - 1)


def improved(order: float, value: float, delta: float) -> float:
    """r + ln(1 - 1/a) - (ln delta + ln a) / (a - 1)."""
    return value + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def renyi(event: Event, adjacency: str = "zero-out", orders: Sequence[float] = ORDERS) -> Renyi:
    """The Rényi cost of an event at the given orders."""
    checks.adjacency(adjacency)
    if any(order <= 1 for order in orders):
        raise InputError("every Rényi order must be above 1.")
    total = Renyi(tuple(orders), (0.0,) * len(orders))
    for part, count in event.parts:
        one = tuple(count * value for value in _one(part, adjacency, orders))
        total = total + Renyi(tuple(orders), one)
    return total


def moments_epsilon(event: Event, delta: float, adjacency: str = "zero-out") -> float:
    """Abadi's accountant as published: moments 1 to 32, classic conversion."""
    return renyi(event, adjacency, MOMENTS).epsilon_classic(delta)


def gaussian(mu: float, order: float) -> float:
    """a mu^2 / 2."""
    return order * mu**2 / 2


def laplace(epsilon: float, order: float) -> float:
    """Mironov 2017, Table II, with the scale b = 1 / epsilon."""
    up = math.log(order / (2 * order - 1)) + (order - 1) * epsilon
    down = math.log((order - 1) / (2 * order - 1)) - order * epsilon
    return _above(_log_add(up, down), abs(up) + order * epsilon + 2, epsilon, order)


def response(keep: float, order: float) -> float:
    """Randomized response that tells the truth with probability `keep` (Mironov 2017, Table II)."""
    return _response(math.log(keep), math.log1p(-keep), order)


def _response(true: float, false: float, order: float) -> float:
    """The same from the logarithms of both probabilities."""
    same = order * true + (1 - order) * false
    other = order * false + (1 - order) * true
    size = order * (abs(true) + abs(false)) + 2
    return _above(_log_add(same, other), size, abs(true - false), order)


def pure(epsilon: float, order: float) -> float:
    """The most that any epsilon-DP mechanism can cost: randomized response (Bun and Steinke 2016)."""
    lie = -_log_add(0.0, epsilon)
    return min(_response(lie + epsilon, lie, order), order * epsilon**2 / 2 * (1 + 1e-15))


def _atoms(pair: Atoms, order: float) -> float:
    """ln sum p^a q^(1-a) / (a - 1), over finitely many finite losses."""
    import numpy as np  # noqa: PLC0415
    from scipy import special  # noqa: PLC0415

    with np.errstate(divide="ignore"):  # a probability that underflowed adds nothing
        terms = np.log(pair.p) + (order - 1) * pair.losses
    size = 2 * (order - 1) * pair.high + math.log(len(terms)) + 50
    return _above(float(special.logsumexp(terms)), size, pair.high, order)


def _above(moment: float, size: float, epsilon: float, order: float) -> float:
    """moment / (a - 1), but never below the truth.

    The logarithm of a sum near 1 cancels: it is off by a few units in the last place of its terms,
    which are at most `size`. A cost a little too low, or negative, charged a million times, would be a
    gift. Small ones are bounded by a epsilon^2 / 2 instead, which every epsilon-DP mechanism keeps (Bun
    and Steinke 2016, Proposition 1.4).
    """
    rounded = (moment + 8 * 2.0**-53 * size) / (order - 1)
    return min(rounded, order * (epsilon + 1e-15) ** 2 / 2)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, Proposition 1.3)."""
    rho, delta = checks.not_negative("rho", rho), checks.delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _log_add(a: float, b: float) -> float:
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _one(event: Event, adjacency: str, orders: Sequence[float]) -> list[float]:
    from sourdine.accounting.atoms import Atoms  # noqa: PLC0415 (scipy on demand)
    from sourdine.accounting.dominating import (  # noqa: PLC0415
        distance,
        gaussian_mu,
        shuffled_mu,
        worst,
    )

    match event:
        case GaussianEvent() | GdpEvent() | CorrelatedEvent():
            mu = gaussian_mu(event, adjacency) or 0.0
            return [gaussian(mu, order) for order in orders]
        case ShuffledEvent():
            worst(event, adjacency)  # refuses add-remove
            return [gaussian(shuffled_mu(event, adjacency), order) for order in orders]
        case LaplaceEvent():
            epsilon = worst(event, adjacency).forward.high
            return [laplace(epsilon, order) for order in orders]
        case ApproximateEvent(delta=0.0):
            worst(event, adjacency)
            return [pure(event.epsilon, order) for order in orders]
        case ExponentialEvent():
            worst(event, adjacency)
            # A loss of range epsilon is (epsilon^2 / 8)-zCDP (Cesar and Rogers 2021, Lemma 3.4).
            return [min(event.epsilon**2 / 8 * order, pure(event.epsilon, order)) for order in orders]
        case RandomizedResponseEvent(buckets=2):
            worst(event, adjacency)
            true, false = math.log1p(-event.flip / 2), math.log(event.flip / 2)
            return [_response(true, false, order) for order in orders]
        case DiscreteLaplaceEvent() | RandomizedResponseEvent():
            pair = worst(event, adjacency).forward
            assert isinstance(pair, Atoms)  # noqa: S101 (for the type checker)
            return [_atoms(pair, order) for order in orders]
        case DiscreteGaussianEvent():
            # At most that of the continuous one (Canonne, Kamath, Steinke 2020, Theorem 4).
            mu = event.sensitivity * distance(event, adjacency) / event.sigma
            return [gaussian(mu, order) for order in orders]
        case ZcdpEvent():
            distance(event, adjacency)
            return [event.rho * order for order in orders]
        case SelectionEvent():
            from sourdine.accounting.selection import divergences  # noqa: PLC0415 (it needs renyi)

            return divergences(event, adjacency, orders)
        case ParallelEvent():
            check_parallel(adjacency)
            # Costs add up, so the dearest alternative takes the dearest branch at every repetition.
            branches = [renyi(branch, adjacency, orders).values for branch in event.events]
            return [max(costs) for costs in zip(*branches, strict=True)]
        case PateEvent():
            return _pate(event, adjacency, orders)
        case NonPrivateEvent():
            return [math.inf] * len(orders)
        case PoissonEvent(event=GaussianEvent(adjacency=None)):
            return _dp_accounting(event, adjacency, orders)
        case ForeignEvent():
            return _dp_accounting(event, adjacency, orders)
        case _:
            raise NotAccountable(
                f"the Rényi accountant does not know events of kind {event.kind!r}; use method pld."
            )


def _pate(event: PateEvent, adjacency: str, orders: Sequence[float]) -> list[float]:
    if event.adjacency != adjacency:
        raise NotAccountable(
            f"this PATE cost was computed under {event.adjacency}; it gives no bound under {adjacency}."
        )
    known = dict(zip(event.orders, event.rdp, strict=True))
    return [known.get(order, math.inf) for order in orders]


def _dp_accounting(event: Event, adjacency: str, orders: Sequence[float]) -> list[float]:
    from dp_accounting import NeighboringRelation  # noqa: PLC0415 (takes a second to import)
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    from sourdine import dp_events  # noqa: PLC0415

    if adjacency == "replace-one":
        raise NotAccountable(
            "the Rényi accountant does not serve replace-one for sampled events; use method pld, or "
            "adjacency zero-out or add-remove."
        )
    accountant = RdpAccountant(list(orders), NeighboringRelation.ADD_OR_REMOVE_ONE)
    inner = dp_events.to_dp_event(event)
    if not accountant.supports(inner):
        raise NotAccountable(f"dp-accounting's Rényi accountant does not know {inner}.")
    with dp_events.quiet():
        accountant.compose(inner)
    return [float(value) for value in accountant._rdp]
