"""How far one unit can move an answer, and the helpers that say so for the usual questions.

Everything depends on the adjacency. Under zero-out and add-remove a unit is there or contributes
nothing; under replace-one it may turn into any other, which is up to twice as far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sourdine import checks
from sourdine.errors import InputError


@dataclass(frozen=True)
class Moves:
    """One unit moves at most `coordinates` coordinates of the answer, each by at most `each`.

    This knows more than a norm: noise in different coordinates is independent, so that the whole
    release is exactly the composition of `coordinates` scalar ones.
    """

    each: float
    coordinates: int = 1

    def __post_init__(self) -> None:
        # Stored as plain numbers: numpy's would overflow or round in the exact arithmetic behind.
        object.__setattr__(self, "each", checks.positive("sensitivity", self.each))
        object.__setattr__(self, "coordinates", checks.whole("coordinates", self.coordinates))

    @property
    def l1(self) -> float:
        return self.each * self.coordinates

    @property
    def l2(self) -> float:
        return self.each * math.sqrt(self.coordinates)


@dataclass(frozen=True)
class Ball:
    """One unit moves a vector of `dimension` coordinates by at most `radius` in norm.

    The norm is l1 for Laplace and l2 for Gaussian noise.
    """

    radius: float
    dimension: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", checks.positive("sensitivity", self.radius))
        object.__setattr__(self, "dimension", checks.whole("dimension", self.dimension))


Sensitivity = Moves | Ball


def count(adjacency: str, *, rows: int = 1) -> Moves:
    """How many rows: a unit with at most `rows` rows moves the count by so many."""
    checks.adjacency(adjacency)
    return Moves(checks.whole("rows", rows))


def total(low: float, high: float, adjacency: str, *, rows: int = 1, fixed: bool = False) -> Moves:
    """The sum of values in [low, high].

    Absence takes max(|low|, |high|) a row away. Under replace-one a row may also go from one end to the
    other, high - low; that is all it can do where the unit surely has exactly `rows` rows in the sum
    (`fixed`: no filter, one row a unit).
    """
    checks.adjacency(adjacency)
    low, high = bounds(low, high)
    away = max(abs(low), abs(high))
    if adjacency == "replace-one":
        away = high - low if fixed else max(away, high - low)
    return Moves(away * checks.whole("rows", rows))


def mean(low: float, high: float, records: int, adjacency: str) -> Moves:
    """The mean of a *public* number of values in [low, high].

    An absent value counts as the middle: (high - low) / 2n under zero-out, (high - low) / n under
    replace-one. Under add-remove n is private, and the mean has no such bound.
    """
    checks.adjacency(adjacency)
    low, high = bounds(low, high)
    records = checks.whole("records", records)
    if adjacency == "add-remove":
        raise InputError(
            "under add-remove the number of records is private, so a mean has no sensitivity of its "
            "own; release a noisy sum and a noisy count, as Session.mean does."
        )
    return Moves((high - low) / records / (1 if adjacency == "replace-one" else 2))


def histogram(adjacency: str, *, rows: int = 1, bins: int | None = None) -> Sensitivity:
    """Counts of disjoint bins: a row is in one bin, and replacing it changes two.

    A unit with several rows may put them all in one bin or spread them; then only the l1 norm is known,
    and the number of bins is needed.
    """
    checks.adjacency(adjacency)
    sides = 2 if adjacency == "replace-one" else 1
    if checks.whole("rows", rows) == 1:
        return Moves(1, sides)
    if bins is None:
        raise InputError("a unit with several rows in a histogram needs the number of bins.")
    return Ball(sides * rows, bins)


def attributes(number: int, low: float, high: float, adjacency: str) -> Moves:
    """The sum of `number` attributes of every person, each in [low, high].

    For bits l1 = d and l2 = sqrt(d): the reason why Gaussian noise wins for many attributes.
    """
    one = total(low, high, adjacency, fixed=True)
    return Moves(one.each, checks.whole("number", number))


def bounds(low: float, high: float) -> tuple[float, float]:
    """Two finite numbers, the first below the second, far enough apart to divide by the distance."""
    low, high = checks.finite("low", low), checks.finite("high", high)
    if not low < high:
        raise InputError(f"low is {low:g} and high is {high:g}, but low must be below high.")
    if high - low < 1e-12 * max(1.0, abs(low), abs(high)):
        raise InputError(f"low {low:g} and high {high:g} are too close to tell values apart.")
    return low, high
