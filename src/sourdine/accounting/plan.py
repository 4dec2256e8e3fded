"""Choosing the tilt, the window and the grid before anything is composed.

Nothing here enters a proof: a poor plan widens the interval, it never moves a bound the wrong way.
Every bound is evaluated afterwards on the masses that were really composed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sourdine.accounting.convolution import Window
from sourdine.accounting.normal import Array
from sourdine.accounting.pairs import Pair

LARGEST = 700.0  # losses past e^700 overflow; no such epsilon says anything
_WINDOW_TAIL = 1e-14  # mass of the tilted law that may wrap around
_TILTS = np.concatenate(([0.0], np.geomspace(1e-4, 1e4, 241)))


@dataclass(frozen=True)
class Sketch:
    """A rough picture of one direction of a composition: its moments, quickly."""

    parts: Sequence[tuple[Pair, int]]
    delta: float

    @cached_property
    def steps(self) -> int:
        return sum(count for _, count in self.parts)

    @cached_property
    def _cells(self) -> list[tuple[Array, Array, int, float, float]]:
        """Per part: the loss and mass of cells, its count, and the losses to cut it at.

        Cut off is what could not change delta by a relative 1e-10: above, that goes to infinite
        loss; below, it counts as a little less negative.
        """
        sides = np.geomspace(1e-9, LARGEST, 1200)
        edges = np.concatenate((-sides[::-1], sides))
        out = []
        for pair, count in self.parts:
            p, q = pair.masses(edges)
            finite = np.append(p[:-1], max(0.0, p[-1] - pair.infinite))
            tail = np.cumsum(finite[::-1])[::-1]
            head = np.cumsum(finite)
            with np.errstate(divide="ignore", invalid="ignore"):
                loss = np.log(p / q)
            high = tail > 1e-10 * self.delta / self.steps
            low = head > 1e-14 / self.steps
            good = np.isfinite(loss) & high & low
            ends = np.concatenate(([-LARGEST], edges, [LARGEST]))
            if not good.any():  # all losses are too large to tell apart
                loss, p, good = np.full(len(p), LARGEST), np.full(len(p), 1e-300), good | True
            out.append(
                (loss[good], p[good], count, float(ends[:-1][good][0]), float(ends[1:][good][-1]))
            )
        return out

    def cuts(self) -> list[tuple[float, float]]:
        """For each part, the losses outside which its law is cut."""
        return [(low, high) for _, _, _, low, high in self._cells]

    @cached_property
    def _tilts(self) -> Array:
        """Candidate tilts, larger where the total loss is small."""
        square = sum(count * float((p * loss**2).sum()) for loss, p, count, _, _ in self._cells)
        return _TILTS / min(1.0, max(1e-10, math.sqrt(square)))

    @cached_property
    def _cumulants(self) -> tuple[Array, Array]:
        """K(t) = ln E[e^(t L)] of the total loss, for tilts of both signs."""
        orders = np.concatenate((-self._tilts[:0:-1], self._tilts))
        total = np.zeros(len(orders))
        for loss, p, count, _, _ in self._cells:
            exponent = orders[:, None] * loss[None, :] + np.log(p)[None, :]
            peak = exponent.max(axis=1)
            total += count * (peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1)))
        return orders, total

    def cumulant(self, order: Array | float) -> Array:
        orders, total = self._cumulants
        return np.asarray(np.interp(order, orders, total))

    def renyi_epsilon(self) -> float:
        """Epsilon at the sketch's delta by the improved Rényi conversion: a rough upper value."""
        t = self._tilts[1:]
        cost = self.cumulant(t) - np.log(self.delta) + t * np.log(t) - (1 + t) * np.log1p(t)
        return float(np.min(cost / t))

    def best_tilt(self, epsilon: float) -> float:
        """The tilt that minimises the Chernoff bound K(t) - t epsilon."""
        return float(self._tilts[np.argmin(self.cumulant(self._tilts) - self._tilts * epsilon)])

    @cached_property
    def _windows(self) -> tuple[Array, ...]:
        """For each tilt: where the tilted law starts and ends, and the orders that show it."""
        tilts = self._tilts[::3]
        orders, k = self._cumulants
        at = self.cumulant(tilts)
        apart = orders[None, :] - tilts[:, None]
        excess = k[None, :] - at[:, None] - np.log(_WINDOW_TAIL)
        rise = apart > 0.02 * tilts[:, None] + 1e-9
        fall = apart < -0.02 * tilts[:, None] - 1e-9
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(rise, excess / apart, np.inf)
            starts = np.where(fall, excess / apart, -np.inf)
        last, first = ends.argmin(axis=1), starts.argmax(axis=1)
        cuts = [(count * low, count * high) for _, _, count, low, high in self._cells]
        end = np.minimum(ends.min(axis=1), sum(high for _, high in cuts))
        start = np.maximum(starts.max(axis=1), sum(low for low, _ in cuts))
        return tilts, start, np.maximum(end, start + 1e-7), orders[last] - tilts, tilts - orders[first]

    def window(
        self, epsilon: float, accuracy: float, coarsest: float, sizes: tuple[int, int]
    ) -> Window:
        """The narrowest window whose expected error is at most the accuracy, else the best one.

        A large tilt makes rounding weigh less; a small one makes the tilted law lighter, hence the
        window narrower and the grid finer. The first size limits how far the grid is refined for
        the accuracy, the second how far to keep it below `coarsest`.
        """
        tilts, starts, ends, ups, downs = self._windows
        widths = ends - starts
        best = self.best_tilt(epsilon)
        h = self.grid(epsilon, accuracy)
        grids = np.minimum(np.maximum(h, widths / (sizes[0] - 32)), coarsest)
        longest = max(high - low for low, high in self.cuts()) / (1 << 21)  # a step must fit memory too
        grids = np.maximum(np.maximum(grids, widths / (sizes[1] - 32)), longest)
        weights = np.sqrt(np.minimum(20.0, 1 / (2 * tilts + 1e-9)) / h) * self._norm(epsilon, h)
        rounding = np.exp(np.minimum(self.cumulant(tilts) - tilts * epsilon, 300.0)) * weights
        rounding *= 1e-13 * self.steps / (self.delta * (best + 1e-3))
        gaps = self.steps * (best + 1) / 12 * grids**2
        # A window must not start above epsilon; if all do, delta is nearly one: take the lowest.
        error = np.where(starts <= max(epsilon, starts.min()), rounding + gaps, np.inf)
        bearable = self.steps * (best + 1) / 12 * min(h, coarsest) ** 2
        good = error <= max(1.5 * bearable, 1.1 * error.min())
        chosen = int(np.argmin(np.where(good, widths / grids, np.inf)))
        h = self._fitted(max(min(float(grids[chosen]), float(widths[chosen]) / 256), longest))
        start, tilt, up, down = (float(of[chosen]) for of in (starts, tilts, ups, downs))
        return Window(h, start, _transform_size(float(widths[chosen]) / h + 16), tilt, up, down)

    def _norm(self, epsilon: float, h: float) -> float:
        """About the l2 norm of the tilted law on a grid of width h, from its transform."""
        tilt = self.best_tilt(epsilon)
        frequencies = np.concatenate(([0.0], np.geomspace(1e-3, np.pi / h, 80)))
        log_size = np.zeros(len(frequencies))
        for loss, p, count, _, _ in self._cells:
            exponent = tilt * loss
            weight = p * np.exp(exponent - exponent.max())
            heavy = weight > 1e-12 * weight.max()  # the others change nothing but the time it takes
            weight = weight[heavy]
            angles = np.outer(frequencies, loss[heavy])
            size = np.hypot(np.cos(angles) @ weight, np.sin(angles) @ weight) / weight.sum()
            log_size += count * np.log(np.maximum(size, 1e-300))
        power = np.exp(np.maximum(2 * log_size, -600.0))
        return float(np.sqrt(min(1.0, h / np.pi * np.trapezoid(power, frequencies))))

    def grid(self, epsilon: float, accuracy: float) -> float:
        """The grid at which a bound is expected to be off by the accuracy."""
        return float(np.sqrt(12 * accuracy / (self.steps * (self.best_tilt(epsilon) + 1))))

    def chernoff_delta(self, epsilon: float) -> float:
        """Roughly delta at this epsilon, within (1e-20, 0.1]."""
        bound = float(np.min(self.cumulant(self._tilts) - self._tilts * epsilon))
        return float(np.clip(np.exp(bound), 1e-20, 0.1))

    def _fitted(self, h: float) -> float:
        """A grid no coarser than h on which the atoms of the most frequent part fall."""
        spacings = [(count, pair.spacing) for pair, count in self.parts if pair.spacing]
        if not spacings:
            return h
        _, spacing = max(spacings)
        return spacing / float(np.ceil(spacing / h)) if spacing > h else h


def _transform_size(least: float) -> int:
    """The smallest 2^a or 3 * 2^a from `least` on."""
    power = 1 << math.ceil(math.log2(least))
    return power * 3 // 4 if power * 3 // 4 >= least else power
