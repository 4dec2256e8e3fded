"""What becomes of labels: inside the vectors, by randomized response, or public.

Guarantee: a label is never released as it is unless the owner declares it public, which is then said in
the certificate. By randomized response each label is answered once, and everything made of the answer
is post-processing; since a neighbour changes features and label together, the two costs add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.budget import Budget
from sourdine.encoding.vectors import Floats, indicators
from sourdine.errors import InputError
from sourdine.mechanisms.response import least_flip
from sourdine.rng import Source

Classes = NDArray[np.int64]
_MOST = 25.0
"""Epsilon of one answer; with more it would be the truth."""


@dataclass(frozen=True)
class Inside:
    """In the vector, as s e_y, under the same noise; `weight` is s over the clip."""

    weight: float = 1.0
    said = "inside the vectors, under their noise"

    def __post_init__(self) -> None:
        checks.positive("weight", self.weight)


@dataclass(frozen=True)
class Randomized:
    """Answered once by randomized response, with this share of epsilon."""

    share: float = 0.3
    said = "by randomized response"

    def __post_init__(self) -> None:
        checks.probability("share", self.share)

    def flip(self, budget: Budget, classes: int) -> float:
        """The probability of a uniform answer."""
        epsilon = min(self.share * budget.epsilon, _MOST)
        return least_flip(epsilon, classes, budget.adjacency)

    def answers(self, labels: Classes, flip: float, classes: int, source: Source) -> Classes:
        """One answer for each label; for no label (-1) a uniform one."""
        coin = Fraction(flip)
        return np.array(
            [
                int(label) if label >= 0 and not source.bernoulli(coin) else source.below(classes)
                for label in labels
            ],
            dtype=np.int64,
        )


@dataclass(frozen=True)
class Public:
    """Declared public by the owner: released as they are, and not protected at all."""

    said = "declared public by the owner, not protected"


Labels = Inside | Randomized | Public
LABELS: dict[str, type[Inside | Randomized | Public]] = {
    "inside": Inside,
    "randomized": Randomized,
    "public": Public,
}


def places(labels: Sequence[str], known: Sequence[str]) -> Classes:
    """The number of each label among those that are known; -1 for any other."""
    known = tuple(known)
    if len(known) < 2 or len(set(known)) < len(known):
        raise InputError("give at least two different labels with labels=.")
    where = {label: place for place, label in enumerate(known)}
    return np.array([where.get(label, -1) for label in labels], dtype=np.int64)


def unbiased(answers: Classes, flip: float, classes: int) -> Floats:
    """(indicator - flip / K) / (1 - flip): its mean is the indicator of the true label."""
    return np.asarray((indicators(answers, classes) - flip / classes) / (1 - flip))
