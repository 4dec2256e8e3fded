"""Which shapes the batches of a run have, where each new one costs seconds (sgd/graphs.py).

Padding all texts to the longest wastes most of the work; a shape for every length costs more than it
saves. Between the two lies the cut of lengths into classes that is cheapest for this run: units of a
class make batches of their own, all padded to its longest (`Collate.at_least` in text/examples.py).

    cost of a class = (a shape) * shapes + steps * batches * (rows * length + (a batch))

in tokens, with rows and batches as they are on average over the lots to come. A class has batches of a
few sizes, or of one, which hold what it usually has; what is beyond that goes to the next class.

None of this changes what is in a sum, only what it takes to make it; of other shapes, last digits are
other ones (docs/sharp-edges.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ALIGNED = 8  # lengths are multiples, which products of halves ask for
_USUAL = 0.25  # deviations above the mean that a class has room for
# The same without a next class, or as much as batches may hold; and how many sizes these may have.
_WAYS = (
    (2, 1),
    (3, 1),
    *((far, parts) for far in (4, math.inf) for parts in (4, 16, 64)),
    (math.inf, 1),
)
_MOST = 24  # shapes


@dataclass(frozen=True)
class Costs:
    """Of a new shape, and of a batch however small it is: how many tokens could be made instead."""

    shape: float
    batch: float

    def shared(self, examples: int) -> Costs:
        """The same for units of so many examples."""
        return Costs(self.shape / examples, self.batch / examples)


@dataclass(frozen=True)
class Kind:
    """Batches of units of at most `size`: equal ones of at most `most` rows, in multiples of `step`.

    room: units beyond that go to the next kind. Without a size, what is collated has the shape that it
    has.
    """

    size: int | None
    most: int
    step: int
    room: int | None = None

    def cut(self, count: int) -> list[int]:
        """The rows of the batches that hold so many, as few as will do; none is without a unit."""
        if not count:
            return []
        many = -(-count // self.most)
        return [min(self.most, -(-count // (many * self.step)) * self.step)] * many


@dataclass(frozen=True)
class _Plan:
    """Classes, what they cost in tokens, and how many shapes they have."""

    cost: float = 0.0
    shapes: int = 0
    kinds: tuple[Kind, ...] = ()

    def __add__(self, other: _Plan) -> _Plan:
        return _Plan(self.cost + other.cost, self.shapes + other.shapes, self.kinds + other.kinds)


def whole(most: int) -> tuple[Kind, ...]:
    """One class of all units, of which nobody knows how large they are."""
    return (Kind(None, most, -(-most // 16)),)


def kinds(sizes: Sequence[int], rate: float, most: int, steps: int, costs: Costs) -> tuple[Kind, ...]:
    """The cheapest classes for lots that take each of these units with this rate, smallest first.

    most: rows of a batch.
    """
    known, units_of = np.unique(np.asarray(sizes, dtype=np.int64), return_counts=True)
    lengths, place = np.unique([length(int(size)) for size in known], return_inverse=True)
    counts = np.bincount(place, weights=units_of).astype(np.int64)
    best = [_Plan()]
    for end in range(1, len(lengths) + 1):
        size, units = int(lengths[end - 1]), counts[:end][::-1].cumsum()[::-1]
        last = end == len(lengths)
        options = (
            before + _cheapest(int(own), rate, size, most, steps, costs, last)
            for before, own in zip(best, units, strict=True)
        )
        best.append(min(options, key=lambda plan: plan.cost))
    if best[-1].shapes > _MOST:
        return kinds(sizes, rate, most, steps, Costs(2 * costs.shape, costs.batch))
    return best[-1].kinds


def length(size: int) -> int:
    """Sizes are rounded up: to multiples of 8, from 128 on of 16, from 256 on of 32, and so on."""
    step = max(_ALIGNED, (1 << (max(1, size) - 1).bit_length()) // 16)
    return -(-max(1, size) // step) * step


def _cheapest(
    units: int, rate: float, size: int, most: int, steps: int, costs: Costs, last: bool
) -> _Plan:
    """One class of so many units, made in the cheapest way; a next class takes a few for nothing."""
    mean = units * rate
    spread = math.sqrt(mean * max(0.0, 1 - rate))
    counts = np.arange(max(0, math.floor(mean - 3 * spread)), math.ceil(mean + 3 * spread) + 1)
    chances = np.exp(-0.5 * ((counts - mean) / max(spread, 0.5)) ** 2)
    found = []
    for deviations, parts in _WAYS if last else (*_WAYS, (_USUAL, 1)):
        top = math.ceil(min(units, max(1, mean + deviations * spread)))
        batches = -(-top // most)
        rows = -(-top // batches) if deviations < math.inf else most
        room = rows * batches if deviations == _USUAL else None
        kind = Kind(size, rows, -(-rows // parts), room)
        many, each = _cut(kind, counts if room is None else counts.clip(max=room))
        tokens = float(np.average(many * (each * size + costs.batch), weights=chances))
        shapes = len(np.unique(each[many > 0]))
        found.append(_Plan(costs.shape * shapes + steps * tokens, shapes, (kind,)))
    return min(found, key=lambda plan: plan.cost)


def _cut(kind: Kind, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `Kind.cut` of each count: how many batches, of how many rows."""
    many = -(-counts // kind.most)
    return many, np.minimum(kind.most, -(-counts // np.maximum(1, many * kind.step)) * kind.step)
