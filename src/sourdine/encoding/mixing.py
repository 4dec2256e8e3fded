"""The mixing matrix: which records go into which encoding, with which coefficients.

Guarantee: Lambda is drawn from n, the number of outputs and k alone, before any record is looked at.
It may be shown to anyone; `PoissonRows` may not, as its amplification rests on nobody knowing who is
in a row.

- `Mixing`: k different records a row, coefficients |g| / sum |g| of normal g (TextHide) or 1/k each.
  Everyone appears equally often, as far as n divides T k: then the largest column norm is close to the
  mean one, and noise is paid for by the largest.
- `Stream`: rows that come one after the other, for a cap S on the sum of squared coefficients of each
  record: a row that would take one of its records past the cap is denied before it is made. The denial
  depends on coefficients alone. A record is in a row once: two coefficients that cancel in a sum of
  their own would not cancel to the last digit in the mixture.
- `PoissonRows`: each record enters each row with probability q by itself, with the fixed weight 1/k
  (not 1 / how many there are: that number is private). A row costs no more than a Gaussian step of
  DP-SGD at rate q; the rows compose.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.encoding.noises import Columns
from sourdine.encoding.vectors import Floats
from sourdine.errors import BudgetError, InputError
from sourdine.events import Event, GaussianEvent, PoissonEvent
from sourdine.rng import Source, secure

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Mixing:
    """`places` (T, k) of records and their `coefficients` (T, k); `records` is n."""

    places: Places
    coefficients: Floats
    records: int

    def __post_init__(self) -> None:
        if self.places.shape != self.coefficients.shape or self.places.ndim != 2:
            raise InputError("places and coefficients must have a row for each output, of one shape.")
        if self.places.size and not 0 <= self.places.min() <= self.places.max() < self.records:
            raise InputError(f"places are numbers of records, from 0 to {self.records - 1}.")
        if not np.isfinite(self.coefficients).all():
            raise InputError("coefficients must be finite numbers.")

    def columns(self) -> Columns:
        """The largest l2 and l1 norm of a column; a record twice in a row counts with the sum."""
        squares, sums = np.zeros(self.records), np.zeros(self.records)
        order = np.argsort(self.places, axis=1, kind="stable")
        places = np.take_along_axis(self.places, order, 1)
        own = np.take_along_axis(self.coefficients, order, 1)
        for place in range(1, places.shape[1]):  # equal neighbours are added up in the later one
            same = places[:, place] == places[:, place - 1]
            own[:, place] += np.where(same, own[:, place - 1], 0.0)
            own[:, place - 1] = np.where(same, 0.0, own[:, place - 1])
        np.add.at(squares, places, own**2)
        np.add.at(sums, places, np.abs(own))
        return Columns(math.sqrt(float(squares.max(initial=0.0))), float(sums.max(initial=0.0)))

    def mix(self, rows: Floats) -> Floats:
        """Lambda Z."""
        found = np.zeros((len(self.places), rows.shape[1]))
        for place in range(self.places.shape[1]):
            found += self.coefficients[:, place, None] * rows[self.places[:, place]]
        return found


def draw_mixing(
    records: int, outputs: int, mixed: int, source: Source | None = None, *, even: bool = False
) -> Mixing:
    """T rows of k different records each, everyone as often as everyone else, or once more."""
    records, outputs = checks.whole("records", records), checks.whole("outputs", outputs)
    if checks.whole("mixed", mixed) > records:
        raise InputError(f"{mixed} records are to be mixed, but there are only {records}.")
    chance = generator(source or secure())
    found: list[Places] = []
    while sum(map(len, found)) < outputs:
        # Shifts by different amounts of one random order: different records, everyone once a column.
        order = chance.permutation(records)
        shifts = chance.choice(records, mixed, replace=False)
        found.append(np.stack([np.roll(order, shift) for shift in shifts], axis=1))
    places = np.concatenate(found)[:outputs].astype(np.int64)
    shares = np.full((outputs, mixed), 1 / mixed) if even else weights(outputs, mixed, chance)
    return Mixing(places, shares, records)


def weights(rows: int, mixed: int, chance: np.random.Generator, *, signed: bool = False) -> Floats:
    """|g| / sum |g| for normal g; g / sum g if signed, which has no bound."""
    drawn = chance.standard_normal((rows, mixed))
    drawn = drawn if signed else np.abs(drawn)
    return np.asarray(drawn / drawn.sum(1, keepdims=True))


def generator(source: Source) -> np.random.Generator:
    """NumPy's generator, keyed by a source: for what may be known, not for noise."""
    return np.random.default_rng(int.from_bytes(source.bytes(32)))


class Stream:
    """Rows one by one, with a cap on what they use of any record; see the top of this file."""

    def __init__(self, records: int, cap: float) -> None:
        self.records, self.cap = checks.whole("records", records), checks.positive("cap", cap)
        self.used = np.zeros(self.records)
        self._lock = threading.Lock()

    @property
    def columns(self) -> Columns:
        """What is paid for: the cap, whatever has been used of it."""
        return Columns(math.sqrt(self.cap), math.inf)

    def take(self, places: Sequence[int], coefficients: Sequence[float]) -> Mixing:
        """One row; denied, with nothing used, if it would take a record past the cap."""
        own = np.array([coefficients], dtype=np.float64)
        row = Mixing(np.array([places], dtype=np.int64), own, self.records)
        if len(np.unique(row.places)) < row.places.size:
            raise InputError("a record is twice in this row; give it once, with one coefficient.")
        with self._lock:  # two threads must not both be granted what is left
            after = self.used.copy()
            after[row.places[0]] += own[0] ** 2
            if (after > self.cap).any():
                raise BudgetError(
                    f"a record of this row has used up its share of {self.cap:g}; mix others, or begin "
                    "a new stream, which is charged again."
                )
            self.used = after
        return row


@dataclass(frozen=True)
class PoissonRows:
    """T secret rows: each record with probability `rate`, weight 1 / (rate n), n public (zero-out)."""

    records: int
    outputs: int
    rate: float

    def __post_init__(self) -> None:
        checks.whole("records", self.records)
        checks.whole("outputs", self.outputs)
        object.__setattr__(self, "rate", math.floor(checks.rate(self.rate) * 2**32) / 2**32)
        if not self.rate:
            raise InputError("the rate is so small that nobody would ever be drawn.")

    @property
    def weight(self) -> float:
        """Of a record that is in a row."""
        return 1 / (self.rate * self.records)

    def event(self, multiplier: float) -> Event:
        """For noise of deviation multiplier * weight * (how far one record moves under zero-out)."""
        return self.outputs * PoissonEvent(self.rate, GaussianEvent(multiplier))

    def mix(self, rows: Floats, source: Source) -> Floats:
        """Sums over the records of each row, by coins that nobody sees."""
        found = np.zeros((self.outputs, rows.shape[1]))
        least = np.uint64(round(self.rate * 2**32))
        for place in range(self.outputs):
            coins = np.frombuffer(source.bytes(4 * len(rows)), dtype="<u4").astype(np.uint64)
            found[place] = rows[coins < least].sum(0)
        return found * self.weight
