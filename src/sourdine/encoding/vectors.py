"""Records as vectors of bounded size: features that are clipped, with the label inside or apart.

A record (x, y) becomes z = [v ; s e_y]: its features v = f(x) under a public map, clipped to norm C,
beside the unit vector of its label with weight s. By how much z moves decides the noise:

    replace-one   |z - z'|_2 <= sqrt((2C)^2 + 2 s^2)      |z - z'|_1 <= 2 C_1 + 2 s
    zero-out      |z|_2      <= sqrt(C^2 + s^2)           |z|_1      <= C_1 + s

where C_1 = C if features are clipped in the l1 norm and C sqrt(d) if in the l2 norm. Without a label
inside, s is 0. A neighbour that replaces a record changes features *and* label.

Guarantee: no row of `clipped` is longer than the clip, rounding included; a row that is not finite
becomes zero, whatever the others are. Nothing is fitted to the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError, NotAccountable

Floats = NDArray[np.float64]
_LESS = 1 - 1e-6  # so that rounding to single precision takes no row past the clip


@dataclass(frozen=True)
class Shape:
    """How a record is laid out: `dimension` features of norm `clip`, then `classes` for the label.

    norm: 2 or 1, in which features are clipped. weight: s above; 0 where the label is not inside.
    """

    dimension: int
    clip: float
    norm: int = 2
    classes: int = 0
    weight: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension)
        checks.positive("clip", self.clip)
        checks.not_negative("weight", self.weight)
        if self.norm not in (1, 2):
            raise InputError(f"features are clipped in the l1 or the l2 norm, not in l{self.norm}.")

    @property
    def width(self) -> int:
        """Numbers of a record."""
        return self.dimension + (self.classes if self.weight else 0)

    def moved(self, adjacency: str, norm: int = 2) -> float:
        """How far one record moves, in the l2 or the l1 norm."""
        twice = _twice(adjacency)
        if norm == 2:  # a vector clipped in l1 is no longer in l2
            return math.hypot(twice * self.clip, math.sqrt(twice) * self.weight)
        features = self.clip if self.norm == 1 else self.clip * math.sqrt(self.dimension)
        return twice * (features + self.weight)


def _twice(adjacency: str) -> int:
    match checks.adjacency(adjacency):
        case "replace-one":
            return 2
        case "zero-out":
            return 1
    raise NotAccountable(
        "encodings show how many records there are, so add-remove says nothing about them; ask for "
        "adjacency replace-one or zero-out."
    )


def clipped(features: Floats, clip: float, norm: int = 2) -> Floats:
    """Rows scaled down to the clip where they are longer; rows that are not finite become zero."""
    rows = checked(features, "features")
    finite = np.asarray(np.isfinite(rows).all(1))
    rows = np.where(finite[:, None], rows, 0.0)
    largest = np.maximum(np.abs(rows).max(1, initial=0.0), np.finfo(float).tiny)[:, None]
    shape = rows / largest  # whose squares neither overflow nor vanish
    sizes = np.linalg.norm(shape, ord=norm, axis=1)[:, None]
    with np.errstate(over="ignore"):
        long = largest * sizes > _LESS * clip
    return np.where(long, shape * (_LESS * clip / np.maximum(sizes, 1e-300)), rows)


def joined(features: Floats, labels: NDArray[np.int64] | None, shape: Shape) -> Floats:
    """z for every record; label -1 stands for none, and is all zeros."""
    rows = clipped(features, shape.clip, shape.norm)
    if rows.shape[1] != shape.dimension:
        raise InputError(f"features have {rows.shape[1]} numbers, not {shape.dimension}.")
    if not shape.weight:
        return rows
    if labels is None:
        raise InputError("labels are to be inside the vectors, but there are none.")
    inside = shape.weight * _LESS * indicators(labels, shape.classes)
    if len(inside) != len(rows):
        raise InputError(f"there are {len(rows)} records, but {len(inside)} labels.")
    return np.concatenate([rows, inside], axis=1)


def indicators(labels: NDArray[np.int64], classes: int) -> Floats:
    """A row of zeros with a one in the place of the label; no one for label -1."""
    found = np.asarray(labels, dtype=np.int64)
    if found.ndim != 1 or (found >= classes).any() or (found < -1).any():
        raise InputError(f"labels are whole numbers from 0 to {classes - 1}, or -1 for none.")
    return np.asarray(found[:, None] == np.arange(classes), dtype=np.float64)


def checked(rows: Floats, name: str) -> Floats:
    """A matrix of numbers, with at least one column."""
    found = np.asarray(rows, dtype=np.float64)
    if found.ndim != 2 or not found.shape[1]:
        raise InputError(f"{name} must be a table with a row for each record, not {found.shape}.")
    return found
