"""Session: budgeted questions to a table of private records.

    with Session("reviews.csv", Budget(1, 1e-6, unit="user"), user="author") as s:
        s.count(epsilon=0.1)
        s.mean("stars", low=1, high=5, epsilon=0.1, where=["country == France"])

Every question takes its epsilon, is charged before it is drawn (curator.py), and returns an Answer with
the confidence interval of its noise, or one Answer for each declared key. The formulas below speak of
x, a value moved to [-1, 1] by the declared bounds: x = (v - middle) / half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError
from sourdine.mechanisms import Exponential, Laplace
from sourdine.mechanisms.sensitivity import bounds
from sourdine.query.answers import Answer, ratio_interval
from sourdine.query.curator import FINE, Mask, exact_sums
from sourdine.query.words import Words


class Session(Words):
    """Budgeted questions to a table of private records.

    data: a path to CSV, TSV or Parquet, or a pandas, polars or pyarrow table. budget: a Budget, or a
    Ledger to draw on. user: the column that names the person, for unit "user", of whom rows_per_user
    rows count. columns, missing, encoding: what to read and how; see `sourdine.data.tables.read`.

    A row without a number where one is needed counts as nothing: it adds nothing to a sum, is in no bin
    and no quantile. Where the number of rows is public, a mean counts it as the middle of the bounds.

    Ask count, sum, mean, variance, quantile, histogram, word_counts and top_words, each with an
    epsilon; `where` takes conditions such as "stars >= 4", `by` and `keys` group.
    """

    def count(
        self,
        *,
        epsilon: float,
        where: Sequence[str] = (),
        by: str | None = None,
        keys: Sequence[Any] | None = None,
    ) -> Any:
        """How many rows; for each key of a column where `by` and `keys` are given."""
        groups = self._groups(self._mask(where), by, keys)
        label = self._label("count", None, where, by)
        counts = [int(group.sum()) for group in groups]
        return self._counted(label, counts, epsilon, keys)

    def histogram(
        self,
        column: str,
        *,
        epsilon: float,
        edges: Sequence[float] | None = None,
        keys: Sequence[Any] | None = None,
        where: Sequence[str] = (),
    ) -> dict[str, Answer]:
        """How many rows in each bin: [e0, e1), ..., [ek-1, ek] of numbers, or each declared key.

        Rows outside every bin are not counted.
        """
        if (edges is None) == (keys is None):
            raise InputError("give either edges (bins of numbers) or keys (values to count).")
        mask = self._mask(where)
        label = self._label("histogram", column, where)
        if edges is None:
            counts = [int(group.sum()) for group in self._groups(mask, column, keys)]
            names = list(keys or ())
        else:
            cuts = [checks.finite("an edge", edge) for edge in edges]
            if len(cuts) < 2 or any(a >= b for a, b in pairwise(cuts)):
                raise InputError("edges must be at least two numbers, each above the one before.")
            counts = np.histogram(self._known(column, mask), cuts)[0].tolist()
            names = [f"{_plain(a)} to {_plain(b)}" for a, b in pairwise(cuts)]
        found: dict[str, Answer] = self._counted(label, counts, epsilon, names)
        return found

    def _counted(
        self, label: str, counts: list[int], epsilon: float, keys: Sequence[Any] | None
    ) -> Any:
        noise = Laplace(epsilon, self._moves(len(counts), 1.0), self.adjacency, whole=True)
        (released,) = self._released(label, [(noise, counts)])
        width = noise.half_width(self.confidence)
        return self._answers(label, keys, [(x, x - width, x + width) for x in released])

    def sum(
        self,
        column: str,
        *,
        low: float,
        high: float,
        epsilon: float,
        where: Sequence[str] = (),
        by: str | None = None,
        keys: Sequence[Any] | None = None,
    ) -> Any:
        """The sum of a column clipped to [low, high].

        Where the number of rows is public, sum = n middle + half (sum of x). Else the values themselves
        are counted in parts of top = max(|low|, |high|), which is what an absent row takes away.
        """
        low, high = bounds(low, high)
        mask = self._mask(where)
        groups = self._groups(mask, by, keys)
        label = self._label("sum", column, where, by)
        size = self._size(mask) if by is None else None
        if size is not None:
            unit, base, spread = (high - low) / 2, size * (low + high) / 2, 2.0
            values = self._scaled(column, low, high)
        else:
            unit, base = max(abs(low), abs(high)), 0.0
            spread = max(1.0, (high - low) / unit + 4 / FINE)
            values = _fixed(np.clip(self.table.number(column), low, high) / unit)
        noise = Laplace(epsilon, self._moves(len(groups), spread), self.adjacency)
        (released,) = self._released(label, [(noise, exact_sums(values, groups))])
        # Each value is rounded to 1 / FINE; that matters beside the noise past a billion rows only.
        width = noise.half_width(self.confidence) + (size or 0) / (2 * FINE)
        found = [base + unit * np.array([x, x - width, x + width]) for x in released]
        return self._answers(label, keys, found)

    def mean(
        self,
        column: str,
        *,
        low: float,
        high: float,
        epsilon: float,
        where: Sequence[str] = (),
        by: str | None = None,
        keys: Sequence[Any] | None = None,
    ) -> Any:
        """The mean of a column clipped to [low, high].

        middle + half (sum of x) / n. Where the number of rows is not public it is released too, for
        half of epsilon, and the interval is Fieller's.
        """
        low, high = bounds(low, high)
        mask = self._mask(where)
        groups = self._groups(mask, by, keys)
        label = self._label("mean", column, where, by)
        size = self._size(mask) if by is None else None
        moments = self._moments(label, column, [self._scaled(column, low, high)], groups, size, epsilon)
        half, middle = (high - low) / 2, (low + high) / 2
        outside = 1 - self.confidence
        found = [middle + half * np.array(one[0].interval(outside)) for one in moments]
        return self._answers(label, keys, found)

    def variance(
        self,
        column: str,
        *,
        low: float,
        high: float,
        epsilon: float,
        where: Sequence[str] = (),
    ) -> Answer:
        """The variance of a column clipped to [low, high]: half^2 (mean of x^2 - (mean of x)^2).

        Its interval joins those of both means, each with half of what may lie outside: at least as
        confident as stated.
        """
        low, high = bounds(low, high)
        mask = self._mask(where)
        label = self._label("variance", column, where)
        x = self._scaled(column, low, high)
        square = _fixed(2 * (x / FINE) ** 2 - 1)  # in [-1, 1] too
        square[np.isnan(self.table.number(column))] = 0  # what has no number adds to neither
        groups = self._groups(mask, None, None)
        (both,) = self._moments(label, column, [x, square], groups, self._size(mask), epsilon)
        outside = (1 - self.confidence) / 2
        (mean, mean_low, mean_high), second = (moment.interval(outside) for moment in both)
        value, least, most = ((y + 1) / 2 for y in second)
        squares = (mean_low**2, mean_high**2)
        nearest = 0.0 if mean_low <= 0 <= mean_high else min(squares)
        found = np.array([value - mean**2, least - max(squares), most - nearest])
        scale = ((high - low) / 2) ** 2
        answer: Answer = self._answers(label, None, [scale * np.clip(found, 0.0, 1.0)])
        return answer

    def quantile(
        self,
        column: str,
        level: float,
        *,
        low: float,
        high: float,
        epsilon: float,
        where: Sequence[str] = (),
        steps: int = 1000,
    ) -> Answer:
        """The value below which a share `level` of a column lies, on a grid of `steps` steps.

        The exponential mechanism (Smith 2011) over the cells [c_j, c_j+1) of the grid: with L_j rows
        below c_j of N, a cell spans the ranks L_j - level N to L_j+1 - level N, and its score is minus
        the distance of a target rank from that span. The estimate has target 0 and half of epsilon. The
        interval's ends have targets -r and r, a quarter each, where r is so large that with the
        confidence asked the left end is not above, and the right end not below, the exact quantile.
        """
        low, high = bounds(low, high)
        level = checks.probability("level", level)
        steps = checks.whole("steps", steps)
        mask = self._mask(where)
        label = self._label(f"quantile {level:g}", column, where)
        values = np.sort(np.clip(self._known(column, mask), low, high))
        cells = low + (high - low) * np.arange(steps + 1) / steps
        below = np.searchsorted(values, cells, side="left").tolist()
        ranks = [count - Fraction(level) * len(values) for count in below]
        # A row moves its ranks by at most max(level, 1 - level), a replaced one by 1.
        move = 1.0 if self.adjacency == "replace-one" else math.nextafter(max(level, 1 - level), 2.0)
        middle, ends = (
            Exponential(share * checks.release_epsilon(epsilon), move * self._rows, self.adjacency)
            for share in (0.5, 0.25)
        )
        far = Fraction(ends.gap(len(cells), 1 - (1 - self.confidence) / 2))
        asked = [(middle, Fraction(0)), (ends, -far), (ends, far)]
        chosen = self._released(label, [(choice, _scores(ranks, at)) for choice, at in asked])
        value, least = float(cells[chosen[0]]), float(cells[chosen[1]])
        most = float(cells[min(chosen[2] + 1, steps)])
        return Answer(value, min(least, value), max(most, value), self.confidence, label)

    def _known(self, column: str, mask: Mask | None) -> NDArray[np.float64]:
        """The numbers of the rows in question; a row without one is in no bin and has no rank."""
        values = self.table.number(column)
        return values[~np.isnan(values) & (True if mask is None else mask)]

    def _scaled(self, column: str, low: float, high: float) -> NDArray[np.int64]:
        """x = (v - middle) / half in [-1, 1], counted in 1 / FINE; 0 where there is no number."""
        x = (np.clip(self.table.number(column), low, high) - (low + high) / 2) / ((high - low) / 2)
        return _fixed(x)

    def _moments(
        self,
        label: str,
        column: str,
        values: Sequence[NDArray[np.int64]],
        groups: list[Mask],
        size: int | None,
        epsilon: float,
    ) -> list[list[Moment]]:
        """Means of several values over each group: noisy sums over a public or a noisy count."""
        share = checks.release_epsilon(epsilon) / (len(values) + (size is None))
        noise = Laplace(share, self._moves(len(groups), 2.0), self.adjacency)
        drawn = [(noise, exact_sums(one, groups)) for one in values]
        if size is not None:
            sums = self._released(label, drawn)
            return [[Moment(one[0], size, noise, None) for one in sums]]
        counting = Laplace(share, self._moves(len(groups), 1.0), self.adjacency, whole=True)
        known = ~np.isnan(self.table.number(column))  # a row without a number is in no mean
        counts = [int((group & known).sum()) for group in groups]
        *sums, sizes = self._released(label, [*drawn, (counting, counts)])
        return [
            [Moment(one[at], count, noise, counting) for one in sums] for at, count in enumerate(sizes)
        ]

    def _answers(self, label: str, keys: Sequence[Any] | None, found: Sequence[Any]) -> Any:
        answers = [
            Answer(float(value), float(low), float(high), self.confidence, label)
            for value, low, high in found
        ]
        return answers[0] if keys is None else dict(zip(map(str, keys), answers, strict=True))


class Moment:
    """A mean of values in [-1, 1], from a noisy sum and a public or noisy count."""

    def __init__(self, total: float, count: float, noise: Laplace, counting: Laplace | None) -> None:
        self._total, self._count, self._noise, self._counting = total, count, noise, counting

    def interval(self, outside: float) -> tuple[float, float, float]:
        """The mean and both ends, which leave out the truth with probability `outside`."""
        if self._counting is None:
            width = self._noise.half_width(1 - outside) / self._count + 0.5 / FINE
            mean = self._total / self._count
            # A mean beyond the range keeps an interval inside it: wider than need be, never a point.
            ends = min(mean, 1.0) - width, max(mean, -1.0) + width
        else:
            mean = self._total / self._count if self._count >= 1 else 0.0
            widths = self._noise.scale, self._counting.scale
            ends = ratio_interval(
                self._total, self._count, widths, (float(self._noise.grid), 1.0), outside
            )
        low, mean, high = (min(1.0, max(-1.0, x)) for x in (ends[0], mean, ends[1]))
        return mean, low, high


def _plain(number: float) -> str:
    """All its digits, and no more: bins must not share a name."""
    return str(int(number)) if number.is_integer() else repr(number)


def _fixed(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers in [-1, 1] counted in 1 / FINE; clipped again, since rounding may step over the rim."""
    inside = np.nan_to_num(np.clip(x, -1.0, 1.0), nan=0.0)  # NaN is no number, and would weigh 2^33
    return np.rint(inside * FINE).astype(np.int64)


def _scores(ranks: list[Fraction], target: Fraction) -> list[Fraction]:
    """Minus the distance of a target from each cell's span; the outer cells reach to infinity."""
    last = len(ranks) - 1
    scores = []
    for at, rank in enumerate(ranks):
        left = rank - target if at > 0 else None
        right = ranks[at + 1] - target if at < last else None
        if left is not None and left > 0:
            scores.append(-left)
        elif right is not None and right < 0:
            scores.append(right)
        else:
            scores.append(Fraction(0))
    return scores
