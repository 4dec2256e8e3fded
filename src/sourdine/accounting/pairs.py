"""Dominating pairs: the worst two output laws that neighbouring data can produce.

(P, Q) dominates a mechanism when, for all neighbours D, D' and every epsilon,
    H_eps(M(D) || M(D')) <= H_eps(P || Q),   H_eps(P || Q) = sup_S P(S) - e^eps Q(S).
The product of dominating pairs dominates the composition, adaptive or not (Zhu, Dong, Wang 2022,
"Optimal accounting of differential privacy via characteristic function", Theorem 10).

A pair is known here only through its loss L = ln(dP/dQ): `masses(edges)` gives the mass of P and
of Q below the first edge, in each cell between two edges, and above the last one. Cell masses
carry full relative accuracy: they are sums of positive terms, on edges that are rounded (`ROUNDING`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sourdine.accounting import normal
from sourdine.accounting.normal import Array

ROUNDING = 1e-13
"""A cell's mass is that of a cell with edges off by at most so much loss, to this relative error."""


class Pair(Protocol):
    """One direction of a dominating pair, seen through its privacy loss."""

    @property
    def low(self) -> float:
        """Smallest finite loss, -inf if unbounded."""

    @property
    def high(self) -> float:
        """Largest finite loss, inf if unbounded."""

    @property
    def infinite(self) -> float:
        """P's mass at loss +inf."""

    @property
    def vanishing(self) -> float:
        """Q's mass at loss -inf."""

    @property
    def spacing(self) -> float | None:
        """Distance that a grid should divide so that the atoms fall on it; None without atoms."""

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Masses of P and Q in the len(edges) + 1 parts that ascending edges cut the loss into.

        P's mass at loss +inf counts as above the last edge, Q's at -inf as below the first.
        """


@dataclass(frozen=True)
class Normal:
    """N(mu, 1) against N(0, 1): a Gaussian mechanism with sensitivity / deviation = mu.

    The loss is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q (Dong, Roth, Su 2022).
    """

    mu: float
    low: float = -np.inf
    high: float = np.inf
    infinite: float = 0.0
    vanishing: float = 0.0
    spacing: float | None = None

    def masses(self, edges: Array) -> tuple[Array, Array]:
        under_p = _between(edges / self.mu - self.mu / 2)
        under_q = _between(edges / self.mu + self.mu / 2)
        return under_p, under_q


@dataclass(frozen=True)
class Slab:
    """A loss with density share/2 e^((l - epsilon)/2) on (-epsilon, epsilon) and atoms at both ends.

    P has mass `end` at epsilon and e^-epsilon `end` at -epsilon, Q the other way round.
    """

    epsilon: float
    end: float
    share: float
    infinite: float = 0.0
    vanishing: float = 0.0

    @property
    def low(self) -> float:
        return -self.epsilon

    @property
    def high(self) -> float:
        return self.epsilon

    @property
    def spacing(self) -> float | None:
        return 2 * self.epsilon

    def masses(self, edges: Array) -> tuple[Array, Array]:
        cuts = np.concatenate(([-np.inf], edges, [np.inf]))
        inner = np.clip(cuts, self.low, self.high)
        a, b = inner[:-1], inner[1:]
        width = -self.share * np.expm1((a - b) / 2)
        under_p = np.exp((b - self.epsilon) / 2) * width
        under_q = np.exp((-a - self.epsilon) / 2) * width
        if self.end:
            at_low = (cuts[:-1] < self.low) & (cuts[1:] >= self.low)
            at_high = (cuts[:-1] < self.high) & (cuts[1:] >= self.high)
            small = self.end * np.exp(-self.epsilon)
            under_p = under_p + self.end * at_high + small * at_low
            under_q = under_q + self.end * at_low + small * at_high
        return under_p, under_q


@dataclass(frozen=True)
class Reversed:
    """(Q, P) for a given (P, Q)."""

    pair: Pair

    @property
    def low(self) -> float:
        return -self.pair.high

    @property
    def high(self) -> float:
        return -self.pair.low

    @property
    def infinite(self) -> float:
        return self.pair.vanishing

    @property
    def vanishing(self) -> float:
        return self.pair.infinite

    @property
    def spacing(self) -> float | None:
        return self.pair.spacing

    def masses(self, edges: Array) -> tuple[Array, Array]:
        p, q = self.pair.masses(-edges[::-1])
        return q[::-1], p[::-1]


@dataclass(frozen=True)
class Sampled:
    """((1 - rate) Q + rate P, Q): the pair after Poisson sampling, record present on the left.

    Its loss is ln(1 - rate + rate e^L) (Zhu, Dong, Wang 2022, Theorem 11; Li, Qardaji, Su 2012).
    """

    pair: Pair
    rate: float

    @property
    def low(self) -> float:
        return self._amplified(-np.inf if self.pair.vanishing else self.pair.low)

    @property
    def high(self) -> float:
        return self._amplified(self.pair.high)

    @property
    def infinite(self) -> float:
        return self.rate * self.pair.infinite

    @property
    def vanishing(self) -> float:
        return 0.0 if self.rate < 1 else self.pair.vanishing

    @property
    def spacing(self) -> float | None:
        return None if self.pair.spacing is None else self.high - self.low

    def _amplified(self, loss: float) -> float:
        if self.rate == 1 or loss == np.inf:
            return loss
        if loss > 500:
            return loss + float(np.log(self.rate))
        return float(np.log1p(self.rate * np.expm1(loss)))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            small = np.log1p(np.maximum(np.expm1(edges) / self.rate, -1.0))
            large = edges - np.log(self.rate) + np.log1p((self.rate - 1) * np.exp(-edges))
        p, q = self.pair.masses(np.where(edges < 30, small, large))
        return (1 - self.rate) * q + self.rate * p, q


@dataclass(frozen=True)
class Swapped:
    """Poisson-sampled Gaussian under replace-one: the two records pull in opposite directions.

    P = (1-rate) N(0,1) + rate N(mu,1), Q = (1-rate) N(0,1) + rate N(-mu,1), with mu the clip over
    the deviation (Lebeda, Regehr, Kamath, Steinke 2024, "Avoiding pitfalls for privacy accounting
    of subsampled mechanisms under composition"). The loss rises with x and is odd in it.
    """

    mu: float
    rate: float
    low: float = -np.inf
    high: float = np.inf
    infinite: float = 0.0
    vanishing: float = 0.0
    spacing: float | None = None

    def masses(self, edges: Array) -> tuple[Array, Array]:
        # With y = e^(mu x) and c = rate e^(-mu^2/2): c y^2 - (1-rate)(e^l - 1) y - c e^l = 0.
        size = np.abs(edges)
        log_c = np.log(self.rate) - self.mu**2 / 2
        # Divided by e^l, and in logarithms, so that no loss overflows.
        linear = -(1 - self.rate) * np.expm1(-size)
        root = np.sqrt(linear**2 + 4 * np.exp(2 * log_c - size))
        x = np.sign(edges) * (np.log((linear + root) / 2) + size - log_c) / self.mu
        x = np.where(edges == 0, 0.0, x)
        centre, right, left = _between(x), _between(x - self.mu), _between(x + self.mu)
        stay = (1 - self.rate) * centre
        return stay + self.rate * right, stay + self.rate * left


@dataclass(frozen=True)
class Spliced:
    """Fixed-size sampling without replacement, replace-one (Zhu, Dong, Wang 2022, Theorem 11).

    H_eps is that of ((1-rate) Q + rate P, Q) for eps >= 0 and that of (P, (1-rate) P + rate Q)
    below, where (P, Q) dominates the mechanism under replace-one. Both halves have the total
    variation rate * TV(P, Q); what is left of either law sits at loss zero.
    """

    pair: Pair
    rate: float
    _above: Pair = field(init=False, repr=False)
    _below: Pair = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_above", Sampled(self.pair, self.rate))
        object.__setattr__(self, "_below", Reversed(Sampled(Reversed(self.pair), self.rate)))

    @property
    def low(self) -> float:
        return self._below.low

    @property
    def high(self) -> float:
        return self._above.high

    @property
    def infinite(self) -> float:
        return self._above.infinite

    @property
    def vanishing(self) -> float:
        return self._below.vanishing

    @property
    def spacing(self) -> float | None:
        return self._above.spacing

    def masses(self, edges: Array) -> tuple[Array, Array]:
        low, high = edges[edges < 0], edges[edges > 0]
        p_low, q_low = self._below.masses(np.append(low, 0.0))
        p_high, q_high = self._above.masses(np.concatenate(([0.0], high)))
        p_low, q_low, p_high, q_high = p_low[:-1], q_low[:-1], p_high[1:], q_high[1:]
        rest = 1 - p_low.sum() - p_high.sum()
        p = np.concatenate((p_low, p_high))
        q = np.concatenate((q_low, q_high))
        if low.size + high.size < edges.size:  # zero itself is an edge: its atom lies below it
            where = low.size
        else:  # one cell straddles zero: join its halves
            where = low.size
            p[where] += p[where + 1]
            q[where] += q[where + 1]
            p, q = np.delete(p, where + 1), np.delete(q, where + 1)
        p[where] += rest
        q[where] += rest
        return p, q


def laplace(epsilon: float) -> Slab:
    """The Laplace mechanism with sensitivity / scale = epsilon."""
    return Slab(epsilon, end=0.5, share=0.5)


def bounded_range(epsilon: float) -> Slab:
    """The exponential mechanism, whose loss has range epsilon (Dong, Durfee, Rogers 2020).

    Its worst pairs put the loss on {t, t - epsilon} for some t in [0, epsilon]; the largest
    hockey stick at s over all t is (e^(epsilon/2) - e^(s/2))^2 / (e^epsilon - 1), reached where
    e^t = e^((epsilon + s)/2). That profile is itself the one of a pair, without atoms.
    """
    return Slab(epsilon, end=0.0, share=float(-1 / np.expm1(-epsilon)))


def tails(pair: Pair, loss: float) -> tuple[float, float]:
    """P(L > loss) and Q(L > loss)."""
    p, q = pair.masses(np.array([loss]))
    return float(p[1]), float(q[1])


def _between(cuts: Array) -> Array:
    ends: Sequence[Array] = (np.array([-np.inf]), cuts, np.array([np.inf]))
    cuts = np.concatenate(ends)
    return normal.mass(cuts[:-1], cuts[1:])
