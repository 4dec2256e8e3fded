"""Regions of outputs: what a claim allows them, what draws prove about them, which to test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize, special

from sourdine.accounting import PrivacyCurve
from sourdine.audit.scores import Floats, Pair

_GRID = 32
_THRESHOLDS = 200


class Allowed:
    """The largest true-positive rate that a claimed curve allows at each false-positive rate.

    tpr <= min over epsilon of min(e^epsilon fpr + delta, 1 - e^-epsilon (1 - fpr - delta)), with the
    proven end of delta. Each epsilon gives a valid bound, so a grid loses strength, never truth.
    """

    def __init__(self, curve: PrivacyCurve, tested: int, corner: float) -> None:
        self._curve = curve
        most = math.log(tested)  # larger epsilons allow anything to rates of 1 / tested and more
        grid = most * np.linspace(0, 1, _GRID) ** 2
        self._grid = np.unique(np.append(grid, corner)) if corner < most else grid
        self._deltas = np.array([self._delta(epsilon) for epsilon in self._grid])

    def _delta(self, epsilon: float) -> float:
        return self._curve.delta(float(epsilon)).upper

    def roughly(self, fpr: Floats) -> Floats:
        """The bound by the grid alone, for many rates."""
        bounds: Floats = _bound(self._grid, self._deltas, fpr[:, None]).min(axis=1)
        return bounds

    def at(self, fpr: float) -> float:
        """The bound for one rate, with the best epsilon between those of the grid.

        delta is convex in e^epsilon, so each of the two bounds has one valley only and the search finds
        its floor. Should it miss, the bound of the grid stands.
        """
        bounds = _bound(self._grid, self._deltas, fpr)
        best = int(np.argmin(bounds))
        finer = optimize.minimize_scalar(
            lambda epsilon: float(_bound(epsilon, self._delta(epsilon), fpr)),
            bounds=(self._grid[max(best - 1, 0)], self._grid[min(best + 1, len(self._grid) - 1)]),
            method="bounded",
            options={"xatol": 3e-3},
        )
        return min(1.0, float(bounds[best]), float(finer.fun))


def _bound(epsilon: Any, delta: Any, fpr: Any) -> Any:
    return np.minimum(np.exp(epsilon) * fpr + delta, 1 - np.exp(-epsilon) * (1 - fpr - delta))


def ends(k0: Any, k1: Any, count: int, level: float) -> tuple[Any, Any]:
    """The upper end of Clopper and Pearson (1934) for k0 of count, and the lower end for k1.

    Each is wrong with probability at most `level`.
    """
    upper = np.where(k0 < count, special.betainccinv(k0 + 1, np.maximum(count - k0, 1e-9), level), 1.0)
    lower = np.where(k1 > 0, special.betaincinv(np.maximum(k1, 1e-9), count - k1 + 1, level), 0.0)
    # Outwards by more than the inversion and rounding are wrong.
    upper = np.minimum(1.0, upper + 1e-9 * upper * (1 - upper) + 2e-16)
    return upper, np.maximum(0.0, lower - 1e-9 * lower * (1 - lower) - 2e-16)


def proven_epsilon(upper: Any, lower: Any, delta: float) -> Any:
    """The epsilon at `delta` that fpr <= upper and tpr >= lower prove; zero where it is none."""
    ratio = np.maximum((lower - delta) / upper, (1 - upper - delta) / (1 - lower))
    return np.log(np.maximum(1.0, ratio))


def choose(
    scores: list[Pair], allowed: Allowed, delta: float, tested: int, level: float
) -> list[tuple[int, float]]:
    """Two regions, as score and threshold: of the clearest violation, and of the largest epsilon.

    Both go by the ends to expect of `tested` draws. A violation is clear where it is large in units of
    what the ends take from it, a number of its standard deviations; it is proven above 1.
    """
    regions: list[tuple[int, float]] = []
    counts: list[Any] = []
    for which, pair in enumerate(scores):
        zero, one = (np.sort(side) for side in pair)
        both = np.sort(np.concatenate([zero, one]))
        last = len(both) - 1
        # Evenly, and geometrically towards both ends: small deltas are spent in the tails.
        tail = np.geomspace(1, len(both), 40) - 1
        ranks = np.concatenate([np.linspace(0, last, _THRESHOLDS), tail, last - tail]).astype(int)
        thresholds = np.unique(both[ranks])
        if len(thresholds) > 1:
            thresholds = thresholds[1:]  # the region of all outputs tells nothing
        regions += [(which, float(threshold)) for threshold in thresholds]
        counts.append([len(side) - np.searchsorted(side, thresholds) for side in (zero, one)])
    fpr, tpr = np.concatenate(counts, axis=1) / len(scores[0][0])
    upper, lower = ends(fpr * tested, tpr * tested, tested, level)
    limit = allowed.roughly(fpr)
    taken = (tpr - lower) + (allowed.roughly(upper) - limit)
    clearest = int(np.argmax((tpr - limit) / (taken + 1e-12)))
    largest = int(np.argmax(proven_epsilon(upper, lower, delta)))
    return [regions[clearest], regions[largest]]
