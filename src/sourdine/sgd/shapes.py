"""Which shapes the batches of a run have, where each new one costs a proof, or a graph (sgd/graphs.py).

Padding all texts to the longest wastes most of the work; a shape for every length costs more than it
saves. Between the two lies the cut of lengths into classes that is cheapest for this run: units of a
class make batches of their own, all padded to its longest (`Collate.at_least` in text/examples.py).

    cost of a class = shapes * ((a shape) + proofs * rows * length)
                      + steps * batches * (rows * length + (a batch))

in tokens, with rows and batches as they are on average over the lots to come. A class has batches of a
few sizes, or of one, which hold what it usually has; what is beyond that goes to the next class.

None of this changes what is in a sum, only what it takes to make it; of other shapes, last digits are
other ones (docs/sharp-edges.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

_ALIGNED = 8  # lengths are multiples, which products of halves ask for on a GPU
_FINE = 2  # the same on a CPU
_USUAL = 0.25  # deviations above the mean that a class has room for
# The same without a next class, or as much as batches may hold; and how many sizes these may have.
_WAYS = (
    (2, 1),
    (3, 1),
    *((far, parts) for far in (4, math.inf) for parts in (4, 16, 64)),
    (math.inf, 1),
)
_GRAPHS, _SHAPES = 24, 256  # at the most: with graphs, which take memory; without, which takes little
_SECOND = 1 << 21  # tokens that a tiny model makes in a second on a GPU, as measured on an H200
_TINY = 1 << 24  # parameters


@dataclass(frozen=True)
class Costs:
    """Of a new shape, and of a batch however small it is: how many tokens could be made instead.

    proofs: how many batches of its own a new shape costs besides. most: shapes. aligned: what lengths
    are multiples of.
    """

    shape: float
    batch: float
    proofs: float = 0.0
    most: float = math.inf
    aligned: int = _ALIGNED

    def shared(self, examples: int) -> Costs:
        """The same for units of so many examples."""
        return replace(self, shape=self.shape / examples, batch=self.batch / examples)


def by_graphs(parameters: int, seconds: float) -> Costs:
    """Of a model with so many parameters on a GPU, where a graph for a new shape takes so long."""
    return Costs(seconds * _speed(parameters), _speed(parameters) / 256, most=_GRAPHS)


def eagerly(parameters: int, cpu: bool) -> Costs:
    """The same without graphs: a new shape costs a proof, a batch the time that starts its kernels."""
    if cpu:
        return Costs(0, 128, 1, most=_SHAPES, aligned=_FINE)
    return Costs(0, _speed(parameters) / 8, 1, most=_SHAPES)


def _speed(parameters: int) -> float:
    return _SECOND / (1 + parameters / _TINY)


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
class _Class:
    """A class, how many shapes it has, and what a proof of each and the batches of a step cost."""

    kind: Kind
    shapes: int
    proofs: float
    batches: float


def whole(most: int) -> tuple[Kind, ...]:
    """One class of all units, of which nobody knows how large they are."""
    return (Kind(None, most, -(-most // 16)),)


def alike(units: int, rate: float, most: int, steps: int, costs: Costs) -> tuple[Kind, ...]:
    """The cheapest class for lots that take each of so many units, all of one size, with this rate."""
    found = kinds([1] * units, rate, most, steps, replace(costs, aligned=1))
    return tuple(replace(kind, size=None) for kind in found) or whole(most)


def kinds(sizes: Sequence[int], rate: float, most: int, steps: int, costs: Costs) -> tuple[Kind, ...]:
    """The cheapest classes for lots that take each of these units with this rate, smallest first.

    most: rows of a batch.
    """
    known, units_of = np.unique(np.asarray(sizes, dtype=np.int64), return_counts=True)
    rounded = [length(int(size), costs.aligned) for size in known]
    lengths, place = np.unique(rounded, return_inverse=True)
    counts = np.bincount(place, weights=units_of).astype(np.int64)
    ending = list[list[list[_Class]]]()  # for each length, from each length on: all ways
    for end, size in enumerate(map(int, lengths)):
        units, last = counts[: end + 1][::-1].cumsum()[::-1], end + 1 == len(lengths)
        ending.append([_ways(int(own), rate, size, most, costs.batch, last) for own in units])
    dearer = 1.0  # what shapes cost, until there are few enough
    while True:
        best: list[tuple[float, int, tuple[Kind, ...]]] = [(0.0, 0, ())]
        for starting in ending:
            options = (
                (cost + dearer * fixed + steps * one.batches, shapes + one.shapes, (*before, one.kind))
                for (cost, shapes, before), ways in zip(best, starting, strict=True)
                for one in ways
                for fixed in (costs.shape * one.shapes + costs.proofs * one.proofs,)
            )
            best.append(min(options, key=lambda option: option[0]))
        if best[-1][1] <= costs.most:
            return best[-1][2]
        dearer *= 2


def length(size: int, aligned: int = _ALIGNED) -> int:
    """Sizes are rounded up: to multiples of 8, say, from 256 on of 16, from 512 on of 32, and so on."""
    step = max(aligned, (1 << (max(1, size) - 1).bit_length()) // 32)
    return -(-max(1, size) // step) * step


def _ways(units: int, rate: float, size: int, most: int, batch: float, last: bool) -> list[_Class]:
    """The ways to make a class of so many units; a next class takes a few for nothing."""
    mean = units * rate
    spread = math.sqrt(mean * max(0.0, 1 - rate))
    counts = np.arange(max(0, math.floor(mean - 3 * spread)), math.ceil(mean + 3 * spread) + 1)
    chances = np.exp(-0.5 * ((counts - mean) / max(spread, 0.5)) ** 2)
    chances /= chances.sum()
    found = dict[Kind, _Class]()
    for deviations, parts in _WAYS if last else (*_WAYS, (_USUAL, 1)):
        top = math.ceil(min(units, max(1, mean + deviations * spread)))
        batches = -(-top // most)
        rows = -(-top // batches) if deviations < math.inf else most
        room = rows * batches if deviations == _USUAL else None
        kind = Kind(size, rows, -(-rows // parts), room)
        if kind in found:
            continue
        many, each = _cut(kind, counts if room is None else counts.clip(max=room))
        tokens = float(chances @ (many * (each * size + batch)))
        new = set(each[many > 0].tolist())
        found[kind] = _Class(kind, len(new), size * sum(new), tokens)
    return list(found.values())


def _cut(kind: Kind, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `Kind.cut` of each count: how many batches, of how many rows."""
    many = -(-counts // kind.most)
    return many, np.minimum(kind.most, -(-counts // np.maximum(1, many * kind.step)) * kind.step)
