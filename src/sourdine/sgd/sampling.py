"""Which records make up a lot.

The event of a training step assumes a way of drawing lots; each class here draws in exactly one way and
makes the event that belongs to it, so that the two cannot drift apart. Which records were in a lot must
stay secret: whoever knows loses the amplification. A lot may be empty; that step still adds noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import Event, GaussianEvent, PoissonEvent, ShuffledEvent, TruncatedPoissonEvent
from sourdine.rng import Source

Indices = NDArray[np.int64]


class Lots(ABC):
    """A way to draw lots of about `lot_size` out of `records` records.

    `lot_size` is planned, not counted: sums are divided by it, never by how many records came.
    """

    records: int
    lot_size: float

    @abstractmethod
    def draw(self, step: int, source: Source) -> Indices:
        """The records of one lot, by their places, in rising order."""

    def stream(self, step: int) -> int:
        """The number of the random stream that the lot of a step is drawn from."""
        return step

    @abstractmethod
    def event(self, release: Event, steps: int) -> Event:
        """What so many steps cost, where `release` is a noisy clipped sum over one lot."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", checks.whole("records", self.records))
        size = checks.positive("lot_size", self.lot_size)
        if size > self.records:
            raise InputError(
                f"the lot size {size:g} is larger than the {self.records} records; take at most all."
            )
        object.__setattr__(self, "lot_size", size)


@dataclass(frozen=True)
class PoissonLots(Lots):
    """Each record enters with probability rate = lot_size / records, independently of the others.

    Drawn by skipping: the records passed over between two that enter are geometric, floor(ln U /
    ln(1 - rate)), so the work grows with the lot and not with the records. U has 53 bits, which moves
    the law of a lot by less than 2^-52 for each record in it.
    """

    records: int
    lot_size: float

    @property
    def rate(self) -> float:
        return self.lot_size / self.records

    def draw(self, step: int, source: Source) -> Indices:
        if self.rate == 1:
            return np.arange(self.records)
        found: list[Indices] = []
        last, log = -1, math.log1p(-self.rate)
        while last < self.records:
            left = (self.records - last) * self.rate
            count = int(left + 4 * math.sqrt(left) + 16)  # seldom not enough; then once more
            # A skip past all records ends the lot, however long it is.
            skips = np.minimum(np.log(_uniform(count, source)) / log, float(self.records))
            places = last + np.cumsum(skips.astype(np.int64) + 1)
            found.append(places)
            last = int(places[-1])
        drawn = np.concatenate(found)
        return drawn[: np.searchsorted(drawn, self.records)]

    def event(self, release: Event, steps: int) -> Event:
        return steps * PoissonEvent(self.rate, release)


@dataclass(frozen=True)
class TruncatedPoissonLots(Lots):
    """Poisson lots of which at most `most` records are kept, chosen at random."""

    records: int
    lot_size: float
    most: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "most", checks.whole("most", self.most))
        if self.most < self.lot_size:
            raise InputError(
                f"lots of {self.lot_size:g} cut at {self.most} would be cut most of the time; allow at "
                f"least {math.ceil(self.lot_size + 8 * math.sqrt(self.lot_size))}."
            )

    def draw(self, step: int, source: Source) -> Indices:
        drawn = PoissonLots(self.records, self.lot_size).draw(step, source)
        if len(drawn) <= self.most:
            return drawn
        return np.sort(drawn[_order(len(drawn), source)[: self.most]])

    def event(self, release: Event, steps: int) -> Event:
        rate = self.lot_size / self.records
        return steps * TruncatedPoissonEvent(rate, self.records, self.most, release)


@dataclass
class ShuffledLots(Lots):
    """Epochs over shuffled records, for comparison: no amplification is known, and none is claimed.

    An epoch has floor(records / lot_size) lots of exactly that size; the rest of it is left out. All
    lots of an epoch come from one stream, from which its order is made once.
    """

    records: int
    lot_size: float
    _epoch: int = field(default=-1, init=False, repr=False)
    _order: Indices = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lot_size != int(self.lot_size):
            raise InputError(f"shuffled lots have a whole size, not {self.lot_size:g}.")

    @property
    def lots(self) -> int:
        """Lots in an epoch."""
        return int(self.records // self.lot_size)

    def stream(self, step: int) -> int:
        return step // self.lots

    def draw(self, step: int, source: Source) -> Indices:
        epoch, place = divmod(step, self.lots)
        if self._epoch != epoch:
            self._epoch, self._order = epoch, _order(self.records, source)
        size = int(self.lot_size)
        return np.sort(self._order[place * size : (place + 1) * size])

    def event(self, release: Event, steps: int) -> Event:
        if not isinstance(release, GaussianEvent):
            raise InputError("shuffled lots are accounted for with Gaussian noise only.")
        return ShuffledEvent(release.noise_multiplier, self.lots, -(-steps // self.lots))


def usual_most(lot_size: float, records: int) -> int:
    """The size that a Poisson lot does not pass, but for one in thirty thousand."""
    spread = math.sqrt(lot_size * (1 - lot_size / records))
    return min(records, math.ceil(lot_size + 4 * spread))


def _uniform(count: int, source: Source) -> NDArray[np.float64]:
    """Numbers in (0, 1], of 53 bits each."""
    bits = np.frombuffer(source.bytes(8 * count), dtype=np.uint64) >> np.uint64(11)
    return (bits.astype(np.float64) + 1.0) * 2.0**-53


def _order(count: int, source: Source) -> Indices:
    """A random order: by 64-bit keys, of which two are equal with probability below count^2 / 2^65."""
    keys = np.frombuffer(source.bytes(8 * count), dtype=np.uint64)
    return np.argsort(keys, kind="stable").astype(np.int64)
