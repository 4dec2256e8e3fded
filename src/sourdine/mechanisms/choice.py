"""Choosing one of several candidates by their scores: the exponential mechanism and noisy max.

Scores are exact numbers (integers, Fractions, or floats taken as they are), of which one unit moves
each by at most `sensitivity`. Both mechanisms are drawn exactly: all they need is a coin with
probability e^(-epsilon gap / 2 Delta), where gap is the distance to the best score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import ApproximateEvent, Event, ExponentialEvent
from sourdine.mechanisms.exact import bernoulli_exp
from sourdine.rng import Source, secure


@dataclass(frozen=True)
class _Choice:
    epsilon: float
    sensitivity: float = 1.0
    adjacency: str = "zero-out"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.release_epsilon(self.epsilon))
        object.__setattr__(self, "sensitivity", checks.positive("sensitivity", self.sensitivity))
        checks.adjacency(self.adjacency)

    def _exponents(self, scores: Sequence[int | float | Fraction]) -> list[Fraction]:
        """epsilon (best - score) / 2 Delta for each candidate."""
        if not len(scores):
            raise InputError("there is no candidate to choose from.")
        # numpy's integers would overflow inside a Fraction.
        plain = [score.item() if isinstance(score, np.generic) else score for score in scores]
        if any(isinstance(score, float) and not math.isfinite(score) for score in plain):
            raise InputError("a score that is no finite number cannot be compared.")
        exact = [Fraction(score) for score in plain]
        unit = Fraction(self.epsilon) / (2 * Fraction(self.sensitivity))
        best = max(exact)
        return [unit * (best - score) for score in exact]

    def gap(self, candidates: int, confidence: float = 0.95) -> float:
        """How far below the best the chosen score is at most, with this confidence.

        P(gap >= (2 Delta / epsilon) (ln k + t)) <= e^-t (McSherry and Talwar 2007; permute-and-flip is
        never worse, McKenna and Sheldon 2020).
        """
        outside = 1 - checks.probability("confidence", confidence)
        return 2 * self.sensitivity / self.epsilon * (math.log(candidates) - math.log(outside))


@dataclass(frozen=True)
class Exponential(_Choice):
    """Candidate i with probability proportional to e^(epsilon u_i / 2 Delta).

    McSherry and Talwar 2007, Theorem 6: epsilon-DP; its privacy loss has range epsilon, which the
    event tells. Gumbel noise before the maximum is the same mechanism.
    """

    @property
    def event(self) -> Event:
        return ExponentialEvent(self.epsilon, self.adjacency)

    def release(self, scores: Sequence[int | float | Fraction], source: Source | None = None) -> int:
        """The index of the chosen candidate."""
        source = source or secure()
        exponents = self._exponents(scores)
        while True:  # a uniform candidate, kept with probability e^-exponent: exact rejection
            chosen = source.below(len(exponents))
            if bernoulli_exp(exponents[chosen], source):
                return chosen


@dataclass(frozen=True)
class NoisyMax(_Choice):
    """The largest score after exponential noise of scale 2 Delta / epsilon: report noisy max.

    Drawn as permute-and-flip (McKenna and Sheldon 2020), the same mechanism (Ding et al. 2021):
    candidates in random order, each taken with probability e^(-epsilon gap / 2 Delta). Pure
    epsilon-DP; its expected score is never below that of the exponential mechanism.
    """

    @property
    def event(self) -> Event:
        return ApproximateEvent(self.epsilon, 0.0, self.adjacency)

    def release(self, scores: Sequence[int | float | Fraction], source: Source | None = None) -> int:
        """The index of the chosen candidate."""
        source = source or secure()
        exponents = self._exponents(scores)
        left = list(range(len(exponents)))
        while True:  # the best candidate has exponent 0 and is always taken, so this ends
            at = source.below(len(left))
            chosen = left[at]
            if bernoulli_exp(exponents[chosen], source):
                return chosen
            left[at] = left[-1]
            left.pop()
