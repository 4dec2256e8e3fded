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


def grouped(groups: int, adjacency: str, *, rows: int = 1, spread: float = 1.0) -> Sensitivity:
    """Sums over disjoint groups of rows: what counts, histograms, sums and means by key rest on.

    A row adds at most 1 in size to the sum of its group, and changes it by at most `spread` if replaced
    by another of the group (1 for counts, up to 2 for values in [-1, 1]). Replacing may also take it to
    another group, and several rows of a unit may meet in one group or not: where a sum may change by
    more than 1, only the l1 norm is known.
    """
    replaced = checks.adjacency(adjacency) == "replace-one"
    rows = checks.whole("rows", rows)
    if checks.whole("groups", groups) == 1:
        return Moves(rows * (spread if replaced else 1.0))
    if rows == 1 and (not replaced or spread <= 1):
        return Moves(1.0, 2 if replaced else 1)
    return Ball(rows * (2.0 if replaced else 1.0), groups)


def count(adjacency: str, *, rows: int = 1) -> Sensitivity:
    """How many rows: a unit with at most `rows` rows moves the count by so many."""
    return grouped(1, adjacency, rows=rows)


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
    if bins is None:
        if checks.whole("rows", rows) > 1:
            raise InputError("a unit with several rows in a histogram needs the number of bins.")
        bins = 2  # with one row a unit, more bins change nothing
    return grouped(bins, adjacency, rows=rows)


def words(most: int, adjacency: str) -> Moves:
    """Counts of words: a unit counts once for a word, and for at most `most` words."""
    most = checks.whole("most", most)
    return Moves(1, 2 * most if checks.adjacency(adjacency) == "replace-one" else most)


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
