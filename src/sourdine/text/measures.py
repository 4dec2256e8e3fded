"""What a confusion matrix says about a model: metrics with intervals, and how they compare.

Guarantee: everything here is computed from the matrix alone. Where its cells are noisy, metrics and
intervals are post-processing and cost nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from sourdine import checks
from sourdine.text.releases import Floats

_RESAMPLES = 1000


@dataclass(frozen=True)
class Metric:
    """A number with an interval that holds noise and the choice of test records, roughly."""

    value: float
    low: float
    high: float
    confidence: float


def measured(
    matrix: Floats, deviation: float, records: int | None, labels: Sequence[str]
) -> dict[str, Any]:
    """All metrics as plain values, the accuracy beside what always one answer reaches.

    beats_largest_class: whether the interval of the accuracy lies above the share of the most frequent
    class. labels: the names of the classes, which are released with the model.
    """
    right, largest = accuracy(matrix, deviation, records), largest_class(matrix, deviation, records)
    return {
        "accuracy": vars(right),
        "largest_class": {**vars(largest), "name": labels[int(matrix.sum(axis=1).argmax())]},
        "beats_largest_class": right.low > largest.value,
        "matthews": vars(matthews(matrix, deviation, records)),
        "macro_f1": vars(macro_f1(matrix, deviation, records)),
        "classes": list(labels),
    }


def plausible(matrix: Floats, records: int | None = None) -> Floats:
    """The nearest matrix (l2) without negative cells whose cells add up to `records`.

    Cutting negative cells alone would add records that nobody has, most where true cells are empty.
    The total is the noisy one where the number of records is not public.
    """
    total = max(1.0, float(matrix.sum()) if records is None else float(records))
    cells = np.sort(matrix.ravel())[::-1]
    excess = (np.cumsum(cells) - total) / np.arange(1, cells.size + 1)
    taken = excess[int(np.nonzero(cells > excess)[0][-1])]
    projected: Floats = np.maximum(matrix - taken, 0.0)
    return projected


def accuracy(
    matrix: Floats, deviation: float, records: int | None = None, confidence: float = 0.95
) -> Metric:
    """The share of right answers: the noisy diagonal over the number of records.

    Interval: all p with (found - p)^2 <= z^2 (p (1 - p) / n + K deviation^2 / n^2), Wilson's (1927)
    with the variance of the noise on K cells added. Where n is not public, the noisy total stands for
    it, and the noise of all K^2 cells counts: K (1 - p)^2 + (K^2 - K) p^2 in place of K.
    """
    checks.probability("confidence", confidence)
    return _share(float(np.trace(matrix)), matrix, deviation, records, confidence)


def largest_class(
    matrix: Floats, deviation: float, records: int | None = None, confidence: float = 0.95
) -> Metric:
    """The share of the most frequent class: the accuracy of always answering it.

    Interval: each of the K shares has one as in `accuracy`, at confidence 1 - (1 - confidence) / K, so
    that all hold together (Bonferroni). The largest share lies between their largest lower end and
    their largest upper end.
    """
    each = 1 - (1 - checks.probability("confidence", confidence)) / len(matrix)
    shares = [_share(float(row.sum()), matrix, deviation, records, each) for row in matrix]
    value, low, high = (max(getattr(x, end) for x in shares) for end in ("value", "low", "high"))
    return Metric(value, low, high, confidence)


def _share(
    right: float, matrix: Floats, deviation: float, records: int | None, confidence: float
) -> Metric:
    """The share of the records that K of the K^2 cells count together, `right`; see `accuracy`."""
    classes = len(matrix)
    z = float(special.ndtri((1 + confidence) / 2))
    n = max(1.0, float(matrix.sum())) if records is None else float(checks.whole("records", records))
    found = min(1.0, max(0.0, right / n))
    cells = float(classes)
    if records is None:
        cells = classes * (1 - found) ** 2 + (classes**2 - classes) * found**2
    noise = cells * (checks.not_negative("deviation", deviation) / n) ** 2
    a, b, c = 1 + z * z / n, 2 * found + z * z / n, found**2 - z * z * noise
    root = math.sqrt(b * b - 4 * a * c)
    low, high = (b - root) / (2 * a), (b + root) / (2 * a)
    return Metric(found, min(found, max(0.0, low)), max(found, min(1.0, high)), confidence)


def macro_f1(
    matrix: Floats, deviation: float, records: int | None = None, confidence: float = 0.95
) -> Metric:
    """The mean over all classes of 2 TP / (2 TP + FP + FN), 0 for a class that is nowhere."""
    return _resampled(_macro_f1, matrix, deviation, records, confidence, least=0.0)


def matthews(
    matrix: Floats, deviation: float, records: int | None = None, confidence: float = 0.95
) -> Metric:
    """Matthews' correlation for K classes (Gorodkin 2004); 0 where all answers are alike."""
    return _resampled(_matthews, matrix, deviation, records, confidence, least=-1.0)


def _resampled(
    metric: Callable[[Floats], Floats],
    matrix: Floats,
    deviation: float,
    records: int | None,
    confidence: float,
    *,
    least: float,
) -> Metric:
    """A metric of the plausible matrix, with the basic bootstrap interval (Davison and Hinkley 1997).

    Test records are drawn again from the plausible matrix and noise is added again; the interval is
    2 value - quantile, which takes away to first order the bias that noise puts into the metric. It
    works on noisy numbers only and gives the same interval each time: no private randomness is needed.
    """
    outside = (1 - checks.probability("confidence", confidence)) / 2
    checks.not_negative("deviation", deviation)
    likely = plausible(matrix, records)
    value = float(metric(likely[None])[0])
    n = max(1, round(float(likely.sum())))
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(n, likely.ravel() / likely.sum(), _RESAMPLES).reshape(-1, *matrix.shape)
    again = drawn + deviation * rng.standard_normal(drawn.shape)
    values = metric(np.stack([plausible(one, records) for one in again]))
    top, bottom = np.quantile(values, [1 - outside, outside])
    low, high = max(least, 2 * value - float(top)), min(1.0, 2 * value - float(bottom))
    return Metric(value, min(low, value), max(high, value), confidence)


def _macro_f1(matrices: Floats) -> Floats:
    right = np.diagonal(matrices, axis1=1, axis2=2)
    both = matrices.sum(axis=1) + matrices.sum(axis=2)
    score: Floats = np.divide(2 * right, both, out=np.zeros_like(both), where=both > 0).mean(axis=1)
    return score


def _matthews(matrices: Floats) -> Floats:
    right = np.diagonal(matrices, axis1=1, axis2=2).sum(axis=1)
    predicted, true, n = matrices.sum(axis=1), matrices.sum(axis=2), matrices.sum(axis=(1, 2))
    covariance = right * n - (predicted * true).sum(axis=1)
    spread = (n**2 - (predicted**2).sum(axis=1)) * (n**2 - (true**2).sum(axis=1))
    # Rounding leaves a trace of spread where there is none.
    usable = spread > 1e-12 * n**4
    score: Floats = np.divide(covariance, np.sqrt(np.abs(spread)), np.zeros_like(n), where=usable)
    return score
