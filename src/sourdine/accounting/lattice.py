"""A pair's privacy loss on an even grid, rounded so that the result errs on a known side.

`above` is connect-the-dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022): the mass of each
cell is split between its two ends so that the masses of P and Q are both kept. H_eps is then the
chord over the grid, which lies above the convex true curve: the result dominates the pair.

`below` merges instead. Merging outcomes is post-processing, so it can only lower H_eps. Cells are
centred on the grid points; a merged cell has loss ln(p/q) close to its point but not on it, and is
brought there by merging it with a small part of one neighbour. What still misses the grid is
rounded down: P's mass may be lowered, never raised.

Both change the variance of one step by O(h^2) and its mean by as little, so the gap between the two
composed bounds is about steps * h^2 * (tilt + 1) / 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sourdine.accounting.normal import Array
from sourdine.accounting.pairs import ROUNDING, Pair, Reversed


@dataclass(frozen=True)
class Lattice:
    """Masses of P at the losses origin + h * (first, first + 1, ...), and at infinite loss."""

    origin: float
    first: int
    p: Array
    infinite: float

    def losses(self, h: float) -> Array:
        return _points(self.origin, h, self.first, len(self.p))


def _points(origin: float, h: float, first: int, count: int) -> Array:
    points: Array = origin + h * np.arange(first, first + count, dtype=np.float64)
    return points


def _origin(pair: Pair) -> float:
    """A point that the grid should contain: an end of the support, where mass may pile up."""
    if np.isfinite(pair.low):
        return pair.low
    return pair.high if np.isfinite(pair.high) else 0.0


def _indices(pair: Pair, origin: float, h: float, low: float, high: float) -> tuple[int, int]:
    first = int(np.floor((max(low, pair.low) - origin) / h + 1e-6))
    last = int(np.ceil((min(high, pair.high) - origin) / h - 1e-6))
    return first, max(last, first + 1)


def above(pair: Pair, h: float, low: float, high: float) -> Lattice:
    """A pair on the grid that dominates the given one; losses are kept between low and high.

    Mass below the first point is moved up to it; what lies above the last point goes to it as far
    as Q's mass allows, the rest of P becomes mass at infinite loss.
    """
    origin = _origin(pair)
    first, last = _indices(pair, origin, h, low, high)
    last += pair.high <= high  # past the end, so that rounding leaves no atom above the last point
    edges = _points(origin, h, first, last + 1 - first)
    p, q = pair.masses(edges)
    scale = np.exp(edges)
    cell_p, cell_q = p[1:-1], q[1:-1]
    up = np.clip((cell_p - cell_q * scale[:-1]) / -np.expm1(-h), 0.0, cell_p)
    out = np.zeros(len(edges))
    out[:-1] = cell_p - up
    out[1:] += up
    out[0] += p[0]
    finite = max(0.0, float(p[-1]) - pair.infinite)
    top = min(finite, float(q[-1] * scale[-1]))
    out[-1] += top
    return Lattice(origin, first, out, pair.infinite + (finite - top))


def below(pair: Pair, h: float, low: float, high: float) -> Lattice:
    """A pair on the grid that the given one dominates; mass outside low and high is dropped.

    Dropping an outcome drops a term (p - e^eps q)_+ >= 0 from H_eps, so P need not sum to one.
    """
    origin, ends = _origin(pair), (-np.inf, np.inf)
    if not _aligned(pair, h):
        # An end of the support where mass may pile up has no neighbour beyond it, so the grid is
        # laid through the loss of that end cell.
        if np.isfinite(pair.low):
            edge = _end_cell(pair, h)
            origin, ends = edge - h / 2, (edge, np.inf)
        elif np.isfinite(pair.high):
            edge = -_end_cell(Reversed(pair), h)
            origin, ends = edge + h / 2, (-np.inf, edge)
    first, last = _indices(pair, origin, h, low, high)
    points = _points(origin, h, first, last + 1 - first)
    edges = np.append(points, points[-1] + h) - h / 2
    edges = np.where(edges < ends[0] - h / 4, -np.inf, edges)
    edges = np.where(edges > ends[1] + h / 4, np.inf, edges)
    if _aligned(pair, h):
        # Atoms at the ends stand alone: nothing beyond them could pull a merged cell back.
        edges[-2] = pair.high - 1e-9 * h if edges[-2] < pair.high < edges[-1] else edges[-2]
        edges[1] = pair.low + 1e-9 * h if edges[0] < pair.low < edges[1] else edges[1]
    p, q = (part[1:-1] for part in pair.masses(edges))
    p, q = _merge_neighbours(p, q, points)
    return Lattice(origin, *_round_down(p, q, points, h, first), pair.infinite)


def _end_cell(pair: Pair, h: float) -> float:
    """An edge e such that all of the pair below e, merged, has loss e - h/2."""
    start, stop = pair.low, pair.low + h
    while _reach(pair, stop) < h / 2 and stop - pair.low < 1e9 * h:
        stop = pair.low + 2 * (stop - pair.low)
    for _ in range(60):
        middle = (start + stop) / 2
        start, stop = (middle, stop) if _reach(pair, middle) < h / 2 else (start, middle)
    return stop


def _reach(pair: Pair, edge: float) -> float:
    p, q = pair.masses(np.array([edge]))
    return edge - float(np.log(p[0] / q[0])) if p[0] > 0 and q[0] > 0 else 0.0


def _aligned(pair: Pair, h: float) -> bool:
    if pair.spacing is None:
        return False
    cells = pair.spacing / h
    return cells > 0.5 and abs(cells - round(cells)) < 1e-6


def _merge_neighbours(p: Array, q: Array, points: Array) -> tuple[Array, Array]:
    """Give each cell a part of the neighbour that pulls ln(p/q) onto its grid point."""
    excess = p - np.exp(points) * q  # positive: the cell's loss lies above its point
    pull = np.zeros((2, len(p)))  # what a whole neighbour would change the excess by
    pull[0, 1:] = p[:-1] - np.exp(points[1:]) * q[:-1]  # from below, negative
    pull[1, :-1] = p[1:] - np.exp(points[:-1]) * q[1:]  # from above, positive
    kept = np.ones(len(p))
    up = np.zeros(len(p))  # share of each cell that goes to the point above, and below
    down = np.zeros(len(p))
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(8):
            need = kept * excess
            from_below = np.where((need > 0) & (pull[0] < 0), -need / pull[0], 0.0)
            from_above = np.where((need < 0) & (pull[1] > 0), -need / pull[1], 0.0)
            up[:-1] = np.minimum(from_below[1:], 0.49)
            down[1:] = np.minimum(from_above[:-1], 0.49)
            kept = 1 - up - down
    merged = []
    for part in (p, q):
        moved = kept * part
        moved[1:] += up[:-1] * part[:-1]
        moved[:-1] += down[1:] * part[1:]
        merged.append(moved)
    return merged[0], merged[1]


def _round_down(p: Array, q: Array, points: Array, h: float, first: int) -> tuple[int, Array]:
    """Place each merged cell on the highest grid point that is not above its loss."""
    with np.errstate(divide="ignore", invalid="ignore"):
        miss = np.log(p / q) - points
    miss = np.where((p > 0) & (q > 0), miss, 0.0)
    drop = np.maximum(np.ceil(-(miss + ROUNDING) / h), 0).astype(int)
    p = np.where(miss > 0, q * np.exp(points), p)
    out = np.zeros(len(p) + int(drop.max(initial=0)))
    np.add.at(
        out,
        np.arange(len(p)) - drop + len(out) - len(p),
        p * (drop == 0) + (np.minimum(p, q * np.exp(points - h * drop)) * (drop > 0)),
    )
    return first - (len(out) - len(p)), out
