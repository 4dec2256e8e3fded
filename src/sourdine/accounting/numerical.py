"""One direction of a composition on the grid: bounds on delta and epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from sourdine.accounting import lattice
from sourdine.accounting.convolution import Total, total
from sourdine.accounting.lattice import Lattice
from sourdine.accounting.pairs import Pair, tails
from sourdine.accounting.plan import LARGEST, Sketch
from sourdine.accounting.search import largest_above, smallest_below

Parts = tuple[tuple[Pair, int], ...]
_KEPT = 6  # composed laws held in memory, for curves that are asked many questions


@dataclass(frozen=True)
class Grade:
    """How finely to compose, and on which side of the truth."""

    rounded: Callable[[Pair, float, float, float], Lattice]
    looser: float
    least: float
    coarsest: float
    sizes: tuple[int, int]


# The upper grid is finer than dp-accounting's default of 1e-4 while memory allows. The rough grade only
# ever skips work.
_ABOVE = Grade(lattice.above, looser=1.0, least=0.0, coarsest=5e-5, sizes=(1 << 19, 1 << 22))
_BELOW = Grade(lattice.below, looser=2.0, least=0.0, coarsest=1.5e-4, sizes=(1 << 18, 1 << 21))
_ROUGH = Grade(lattice.above, looser=1.0, least=1e-3, coarsest=1.0, sizes=(1 << 14, 1 << 14))


@dataclass
class Direction:
    """The pairs that dominate (`above`) and those that are attained (`below`), in one direction."""

    above: Parts
    below: Parts
    accuracy: float
    _sketches: dict[tuple[Parts, int], Sketch] = field(default_factory=dict, compare=False)
    _totals: dict[tuple[Grade, int, float], Total] = field(default_factory=dict, compare=False)

    def epsilon_rough(self, delta: float) -> float:
        """A proven but loose upper bound, quickly."""
        if self._overflows(delta):
            return math.inf
        guess = self._sketch(self.above, delta).renyi_epsilon()
        return self._epsilon_above(_ROUGH, delta, guess)

    def epsilon_upper(self, delta: float) -> float:
        rough = self.epsilon_rough(delta)
        if rough == 0.0 or self._overflows(delta):
            return rough
        guess = min(rough, self._sketch(self.above, delta).renyi_epsilon())
        return min(rough, self._epsilon_above(_ABOVE, delta, guess))

    def epsilon_lower(self, delta: float, upper: float) -> float:
        """A true lower bound, planned around an upper one."""
        if not self.below or not 0 < upper < math.inf or self._overflows(delta):
            return 0.0
        most = sum(count * pair.high for pair, count in self.below)
        guess = min(upper, 0.99 * most, self._sketch(self.below, delta).renyi_epsilon())
        best = 0.0
        for _ in range(3):
            composed = self._total(_BELOW, delta, guess)
            root = largest_above(composed.lower, delta, guess, float(composed.losses[-1]))
            best = max(best, root)
            if abs(root - guess) <= 0.1 * guess or root == 0:
                break
            guess = root
        return best

    def delta_rough(self, epsilon: float) -> float:
        if epsilon >= self._top:
            return self._lost
        if self._overflows(0.5):
            return 1.0
        return self._total(_ROUGH, self._delta_guess(epsilon), epsilon).upper(epsilon)

    def delta_upper(self, epsilon: float) -> float:
        if epsilon >= self._top:
            return self._lost
        if self._overflows(0.5):
            return 1.0
        return self._total(_ABOVE, self._delta_guess(epsilon), epsilon).upper(epsilon)

    def delta_lower(self, epsilon: float) -> float:
        if not self.below or self._overflows(0.5):
            return 0.0
        return self._total(_BELOW, self._delta_guess(epsilon), epsilon).lower(epsilon)

    def _epsilon_above(self, grade: Grade, delta: float, guess: float) -> float:
        """The root of the upper bound; planned anew where the guess was far from it."""
        best = self._top if self._lost <= delta else math.inf
        guess = min(guess, 0.99 * self._top)  # past the largest loss there is nothing to plan for
        for _ in range(3):
            composed = self._total(grade, delta, guess)
            root = smallest_below(composed.upper, delta, guess, float(composed.losses[-1]))
            best = min(best, root)
            if math.isinf(root) or abs(root - guess) <= 0.1 * guess:
                break
            guess = root
        return best

    @cached_property
    def _top(self) -> float:
        """The largest finite loss of the whole composition: from there on delta is what is lost."""
        most = sum(count * pair.high for pair, count in self.above)
        return most + 1e-12 * max(1.0, abs(most))

    @cached_property
    def _lost(self) -> float:
        """The composed mass at infinite loss, rounded up."""
        kept = math.fsum(count * math.log1p(-pair.infinite) for pair, count in self.above)
        return -math.expm1(kept) * (1 + 1e-14)

    def _overflows(self, delta: float) -> bool:
        """Whether one step has more than delta of its mass at losses that the grid cannot hold."""
        return any(tails(pair, LARGEST)[0] > delta for pair, _ in self.above)

    def _delta_guess(self, epsilon: float) -> float:
        return self._sketch(self.above, 1e-20).chernoff_delta(epsilon)

    def _sketch(self, parts: Parts, delta: float) -> Sketch:
        """Cut at the decade below delta, so that nearby questions share one sketch."""
        decade = math.floor(math.log10(delta) + 1e-9)
        key = (parts, decade)
        if key not in self._sketches:
            self._sketches[key] = Sketch(parts, 10.0**decade)
        return self._sketches[key]

    def _total(self, grade: Grade, delta: float, epsilon: float) -> Total:
        parts = self.below if grade is _BELOW else self.above
        sketch = self._sketch(parts, delta)
        accuracy = max(grade.least, grade.looser * self.accuracy)
        asked = math.sqrt(self.accuracy / 1e-6)
        coarsest = grade.coarsest * (max(1.0, asked) if grade is _ABOVE else 1.0)
        sizes = (min(int(grade.sizes[0] / min(asked, 1.0)), grade.sizes[1]), grade.sizes[1])
        window = sketch.window(epsilon, accuracy, coarsest, sizes)
        key = (grade, round(math.log10(sketch.delta)), window.tilt)
        if key not in self._totals:
            lattices = [
                (grade.rounded(pair, window.h, low, high), count)
                for (pair, count), (low, high) in zip(parts, sketch.cuts(), strict=True)
            ]
            if len(self._totals) >= _KEPT:
                del self._totals[next(iter(self._totals))]
            self._totals[key] = total(lattices, window)
        return self._totals[key]
