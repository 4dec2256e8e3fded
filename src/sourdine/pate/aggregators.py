"""From votes to an answer with noise: LNMax, GNMax, Confident-GNMax and Interactive-GNMax.

An aggregator answers in two moves, and each has its price:

- `passes` decides whether a question is answered at all; it costs `check` for every question asked
  (None where every question is answered, which says nothing);
- `choose` names a class; it costs `answer` for every question answered.

Noise is made of integers on a grid (mechanisms/additive.py) and added to whole votes, so that nothing
leaks through floating point; ties are broken by a coin. Votes of neighbours differ as pate/votes.py
says, under add-remove and zero-out; a record that is replaced may move two votes, so replace-one is
not covered.

Guarantee: `choose` is the argmax of counts with independent noise, post-processing of a release that
moves two coordinates by 1. `passes` compares the largest count, which moves by at most 1, plus ONE draw
with the threshold. (The lecture that the project grew from writes the draw inside of the maximum, one
for each class: that is another mechanism, with the l2 distance of all counts.)

Several answers, where a question may depend on earlier answers and `choose` runs only where `passes`
allowed it: the checks are one interactive mechanism and the answers another, asked in turn. Concurrent
composition of interactive mechanisms costs no more than one after the other, for every trade-off
function (Vadhan and Zhang 2023), so at most Q checks and A answers have the curve of
Q check + A answer together, in whatever order they come (pate/labelling.py keeps to both numbers).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import Event
from sourdine.mechanisms.additive import Gaussian, Laplace
from sourdine.mechanisms.sensitivity import Moves
from sourdine.pate.votes import Counts, Votes
from sourdine.rng import Source, secure

NO_ANSWER = -1
"""In place of a class where nobody answered."""
ADJACENCY = "add-remove"
"""What the events hold under; the accountant takes it for zero-out too."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Aggregator(ABC):
    """See the top of this file; without a check, as LNMax and GNMax are."""

    name: ClassVar[str]

    @functools.cached_property
    @abstractmethod
    def noise(self) -> Laplace | Gaussian:
        """On each of the counts."""

    @property
    def check(self) -> Event | None:
        """What every question costs; None for nothing."""
        return None

    @property
    def answer(self) -> Event:
        """What every answer costs beside it."""
        return self.noise.event

    def plan(self, questions: int, answers: int) -> Event:
        """What so many questions cost, of which so many are answered at most."""
        answered = answers * self.answer
        return answered if self.check is None else questions * self.check + answered

    def passes(self, votes: Votes, source: Source, beliefs: Floats | None = None) -> Flags:
        """Which questions are answered; beliefs: the student's, a distribution for each question."""
        return np.ones(len(votes), dtype=bool)

    def choose(self, votes: Votes, source: Source) -> Counts:
        """The class with the most votes after noise, for each question."""
        noise = np.array(self.noise.noise(votes.counts.size, source), dtype=np.int64)
        steps = votes.counts * _steps(self.noise) + noise.reshape(votes.counts.shape)
        best = steps == steps.max(axis=1, keepdims=True)
        found: Counts = best.argmax(axis=1)
        for row in np.flatnonzero(best.sum(axis=1) > 1):  # a coin, so that no class is favoured
            ties = np.flatnonzero(best[row])
            found[row] = ties[source.below(len(ties))]
        return found

    def release(self, votes: Votes, source: Source | None = None) -> int | None:
        """The answer to one question, or None."""
        source = source or secure()
        if len(votes) != 1:
            raise InputError(f"one question is asked at a time, but these are votes on {len(votes)}.")
        return int(self.choose(votes, source)[0]) if self.passes(votes, source)[0] else None


@dataclass(frozen=True)
class LNMax(Aggregator):
    """argmax_j n_j + Lap(scale) (Papernot et al. 2017): pure 2 / scale, and less by its curve."""

    scale: float
    name: ClassVar[str] = "LNMax"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive("scale", self.scale))

    @functools.cached_property
    def noise(self) -> Laplace:
        return Laplace(2 / self.scale, Moves(1, 2), ADJACENCY)


@dataclass(frozen=True)
class GNMax(Aggregator):
    """argmax_j n_j + N(0, sigma^2) (Papernot et al. 2018, Prop. 8): Gaussian, mu = sqrt(2) / sigma."""

    sigma: float
    name: ClassVar[str] = "GNMax"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))

    @functools.cached_property
    def noise(self) -> Gaussian:
        return Gaussian(self.sigma, Moves(1, 2), ADJACENCY)


@dataclass(frozen=True)
class ConfidentGNMax(Aggregator):
    """GNMax where max_j n_j + N(0, sigma_check^2) >= threshold, else nothing (Papernot et al. 2018)."""

    threshold: float
    sigma_check: float
    sigma: float
    name: ClassVar[str] = "Confident-GNMax"

    def __post_init__(self) -> None:
        for field in ("sigma_check", "sigma"):
            object.__setattr__(self, field, checks.positive(field, getattr(self, field)))
        object.__setattr__(self, "threshold", checks.finite("threshold", self.threshold))

    @functools.cached_property
    def noise(self) -> Gaussian:
        return Gaussian(self.sigma, Moves(1, 2), ADJACENCY)

    @functools.cached_property
    def check_noise(self) -> Gaussian:
        return Gaussian(self.sigma_check, 1.0, ADJACENCY)

    @property
    def check(self) -> Event:
        return self.check_noise.event

    def passes(self, votes: Votes, source: Source, beliefs: Floats | None = None) -> Flags:
        top = votes.counts.max(axis=1) * _steps(self.check_noise)
        return self._compared(top, source)

    def _compared(self, top: Counts, source: Source) -> Flags:
        """Whether each number, in grid steps, passes the threshold with noise of its own."""
        noise = np.array(self.check_noise.noise(len(top), source), dtype=np.int64)
        return np.asarray(top + noise >= _on_grid(self.threshold, self.check_noise))


@dataclass(frozen=True)
class InteractiveGNMax(ConfidentGNMax):
    """Asks whether the teachers differ from the student (Papernot et al. 2018, Algorithm 2).

    max_j (n_j - teachers p_j) + N(0, sigma_check^2) >= threshold, where p is what the student believes:
    public, as all that it learnt from are answers. One vote moves the maximum by at most 1, as p is the
    same for neighbours. Elsewhere a student that is sure (above `sure`) keeps its own label, for free
    (`confirmed`).
    """

    sure: float = 0.9
    name: ClassVar[str] = "Interactive-GNMax"

    def passes(self, votes: Votes, source: Source, beliefs: Floats | None = None) -> Flags:
        if beliefs is None:
            raise InputError("Interactive-GNMax compares with the student: give its beliefs.")
        expected = votes.teachers * _beliefs(beliefs, votes)
        # Rounded to the grid by itself, so that whole votes still move by whole steps.
        rounded = np.rint(expected * _steps(self.check_noise)).astype(np.int64)
        return self._compared((votes.counts * _steps(self.check_noise) - rounded).max(axis=1), source)

    def confirmed(self, beliefs: Floats, passed: Flags) -> Counts:
        """The student's own label where it was not corrected and is sure, else NO_ANSWER."""
        own = np.where(beliefs.max(axis=1) > self.sure, beliefs.argmax(axis=1), NO_ANSWER)
        return np.where(passed, NO_ANSWER, own)


def _beliefs(beliefs: Floats, votes: Votes) -> Floats:
    found = np.asarray(beliefs, dtype=np.float64)
    if found.shape != votes.counts.shape or not np.isfinite(found).all() or (found < 0).any():
        raise InputError("beliefs are a distribution over the classes for each question.")
    if not np.allclose(found.sum(axis=1), 1, atol=1e-3):
        raise InputError("beliefs add up to 1 for each question; give probabilities, not scores.")
    return found


def _steps(noise: Laplace | Gaussian) -> int:
    """How many grid steps a vote is: a power of two, or one."""
    steps = 1 / noise.grid
    if steps.denominator != 1:
        raise InputError(f"a vote is no whole number of steps of {float(noise.grid):g}.")
    return int(steps)


def _on_grid(value: float, noise: Gaussian) -> int:
    """The least grid step at or above a value."""
    return int(-(-Fraction(value) // noise.grid))
