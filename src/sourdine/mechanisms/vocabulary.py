"""Counts of words that nobody declared: noise, and silence below a threshold."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import ApproximateEvent, Event
from sourdine.mechanisms.additive import Laplace
from sourdine.mechanisms.sensitivity import words
from sourdine.rng import Source


@dataclass(frozen=True)
class OpenCounts:
    """Noisy counts of the words that occur, of which one unit uses at most `most`.

    Laplace noise of scale c / epsilon on each count, c = most (2 most under replace-one), released only
    where it is at least T (Korolova et al. 2009). A word that one unit alone uses has count 1 and comes
    out with probability p = P(1 + X >= T) = e^(-a (T - 1)) / (1 + e^-a), a = epsilon / c.

    Guarantee: (epsilon, delta)-DP with most * p <= delta. Words that both neighbours have cost a each.
    Words that only one has are silent on both sides but for probability most * p, and that silence
    costs at most -ln(1 - p) <= a each.
    """

    epsilon: float
    delta: float
    most: int = 10
    adjacency: str = "zero-out"

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", checks.delta(self.delta))
        object.__setattr__(self, "most", checks.whole("most", self.most))
        a = self.noise.parameter
        if math.exp(-a * (self.least - 1)) / (1 + math.exp(-a)) > -math.expm1(-a):
            raise InputError("delta is too large for so small an epsilon; lower it, 1e-6 is usual.")

    @functools.cached_property
    def noise(self) -> Laplace:
        """The noise on each count."""
        return Laplace(self.epsilon, words(self.most, self.adjacency), self.adjacency, whole=True)

    @functools.cached_property
    def least(self) -> int:
        """T, the smallest noisy count that comes out."""
        a = self.noise.parameter
        return 1 + max(1, math.ceil(math.log(self.most / (self.delta * (1 + math.exp(-a)))) / a))

    @property
    def event(self) -> Event:
        return ApproximateEvent(self.epsilon, self.delta, self.adjacency)

    def release(self, counts: Mapping[str, int], source: Source | None = None) -> dict[str, int]:
        """Words with their noisy counts, the most frequent first."""
        used = [word for word, count in counts.items() if count > 0]  # others must not come out
        if not used:
            return {}
        noisy = self.noise.release([counts[word] for word in used], source)
        kept = {word: int(x) for word, x in zip(used, noisy, strict=True) if x >= self.least}
        # Sorted, because the order in which words were met is private too.
        return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))
