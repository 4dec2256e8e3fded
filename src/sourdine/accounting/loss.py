"""The privacy loss random variable as an object: to sample, to draw, and to teach with.

L = ln(dP/dQ)(x) with x drawn from P; (epsilon, delta)-DP says that E[(1 - e^(epsilon - L))_+] <= delta.
The often quoted P(L > epsilon) <= delta is sufficient, not equivalent: for mu = epsilon = 1 the tail is
0.309 and delta 0.127.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sourdine import checks
from sourdine.accounting.dominating import worst
from sourdine.accounting.normal import Array
from sourdine.accounting.pairs import Pair, tails
from sourdine.errors import InputError
from sourdine.events import Event


@dataclass(frozen=True)
class PrivacyLoss:
    """The loss of one release in its worse direction (the record present on the left)."""

    pair: Pair

    @classmethod
    def of(cls, event: Event, adjacency: str = "zero-out") -> PrivacyLoss:
        """The loss of an event that is not composed."""
        if len(event.parts) != 1 or event.parts[0][1] != 1:
            raise InputError("the privacy loss is drawn for a single release; ask for one step of it.")
        return cls(worst(event, checks.adjacency(adjacency)).forward)

    def tail(self, epsilon: float) -> float:
        """P(L > epsilon)."""
        return tails(self.pair, epsilon)[0]

    def delta(self, epsilon: float) -> float:
        """E[(1 - e^(epsilon - L))_+], the true delta."""
        p, q = tails(self.pair, epsilon)
        return float(p - np.exp(epsilon) * q)

    def histogram(self, edges: Array) -> tuple[Array, Array]:
        """Mass of the loss between edges, when x is drawn from P and when from Q."""
        p, q = self.pair.masses(np.asarray(edges, dtype=np.float64))
        return p[1:-1], q[1:-1]

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Draws of L under P, to within 1/1000 of the range that holds all but 1e-12 of its mass.

        For study only: nothing that protects anyone is drawn here.
        """
        count = checks.whole("count", count)
        edges = self._range()
        p, q = self.pair.masses(edges)
        with np.errstate(divide="ignore", invalid="ignore"):
            cells = np.clip(np.log(p / q), np.append(edges[0], edges), np.append(edges, edges[-1]))
        cells[-1] = np.inf if q[-1] == 0 else cells[-1]
        drawn: Array = rng.choice(cells, size=count, p=p / p.sum())
        return drawn

    def _range(self) -> Array:
        sides = np.geomspace(1e-6, 700.0, 2000)
        edges = np.concatenate((-sides[::-1], sides))
        p, _ = self.pair.masses(edges)
        inside = (np.cumsum(p)[:-1] > 1e-12) & (np.cumsum(p[::-1])[::-1][1:] > 1e-12)
        low, high = edges[inside][0], edges[inside][-1]
        low, high = max(low, self.pair.low), min(1.01 * high, self.pair.high)
        return np.linspace(low, high, 1001) if high > low else np.array([low, low + 1e-9])
