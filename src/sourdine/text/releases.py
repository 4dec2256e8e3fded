"""Noisy counts beside the training: labels that nobody declared, and the confusion matrix.

Metrics are computed from the noisy matrix alone, so that they and their intervals cost nothing more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import ApproximateEvent, Event, GaussianEvent, compose
from sourdine.rng import Source, secure
from sourdine.sgd.noise import normal, round_

Floats = NDArray[np.float64]
_NO_LOSS = 1e-12
"""Stands for epsilon 0, the least that an event can state."""
_RESAMPLES = 1000


def noisy(values: torch.Tensor, deviation: float, source: Source) -> torch.Tensor:
    """Values of float64 with N(0, deviation^2) noise each, as float32 on the grid of sgd/noise.py.

    The noise meets the values in double precision: turning them into float32 comes after it and is
    post-processing, so that no rounding of the values counts as a move.
    """
    drawn = normal(tuple(values.shape), source).to(torch.float64)
    result = values.to("cpu", torch.float64).add(drawn, alpha=deviation).to(torch.float32)
    round_(result, deviation)
    return result


def first_rows(users: Sequence[Hashable] | None, rows: int, most: int) -> list[bool]:
    """Which rows count: the first `most` of each user, whatever stands in them.

    What one user brings decides nothing for the rows of others. Without users each row is a unit.
    """
    most = checks.whole("most_per_unit", most)
    if users is None:
        if most != 1:
            raise InputError("several rows a unit are for users; say whose each row is with users=.")
        return [True] * rows
    if len(users) != rows:
        raise InputError(f"there are {rows} rows, but users are named for {len(users)}.")
    seen: Counter[Hashable] = Counter()
    kept = []
    for user in users:
        seen[user] += 1
        kept.append(seen[user] <= most)
    return kept


@dataclass(frozen=True)
class Labels:
    """The labels that occur, where nobody declared them: how many units use each, above a threshold.

    A unit counts once for a label and for at most m = `most_per_unit` labels, so that it moves the
    counts by sqrt(m) in l2. Noise has deviation s = sigma sqrt(m); a label comes out where its noisy
    count is at least T = 1 + s Phi^-1(1 - delta / m), rounded up.

    Guarantee: dominated by GaussianEvent(sigma) + ApproximateEvent(0, delta). Take neighbours that
    differ in one unit, and split the labels into those S that some other unit uses and those E that no
    other does. The answers about S and about E have independent noise: this is a composition. About S:
    a function of counts with Gaussian noise that one unit moves by sqrt(m), or twice that when it is
    replaced. About E: a label of E has count 1, or 0 and stays silent; it comes out with probability
    Phi(-(T - 1) / s) = delta / m. A unit that is absent brings no label of E, so the two answers
    differ with probability at most m (delta / m): total variation delta, which is (0, delta)-DP in
    both directions. A unit that is replaced has other labels there: what both have cancels, and of
    what only one has nothing comes out but with probability delta on either side, so that the total
    variation is the larger of the two.
    """

    sigma: float
    delta: float
    most_per_unit: int = 1
    adjacency: str = "zero-out"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))
        object.__setattr__(self, "delta", checks.delta(self.delta))
        object.__setattr__(self, "most_per_unit", checks.whole("most_per_unit", self.most_per_unit))
        checks.adjacency(self.adjacency)

    @property
    def deviation(self) -> float:
        """The deviation of the noise on one count."""
        return self.sigma * math.sqrt(self.most_per_unit)

    @property
    def threshold(self) -> float:
        """T, the least noisy count that comes out; half of what is added is the grid of the noise."""
        far = -float(special.ndtri(self.delta / self.most_per_unit))
        return 1 + self.deviation * (far + 2.0**-10)

    @property
    def event(self) -> Event:
        silence = ApproximateEvent(_NO_LOSS, self.delta, self.adjacency)
        return compose([GaussianEvent(self.sigma), silence])

    def release(
        self,
        labels: Sequence[str | None],
        source: Source | None = None,
        users: Sequence[Hashable] | None = None,
    ) -> list[str]:
        """The labels that come out, sorted by name; None is a record that is nothing."""
        kept = first_rows(users, len(labels), self.most_per_unit)
        owners: Sequence[Hashable] = range(len(labels)) if users is None else users
        # A user who repeats a label counts once for it.
        pairs = {
            (owner, label)
            for owner, label, used in zip(owners, labels, kept, strict=True)
            if used and label is not None
        }
        counts = Counter(label for _, label in pairs)
        names = sorted(counts)
        exact = torch.tensor([float(counts[name]) for name in names], dtype=torch.float64)
        answers = noisy(exact, self.deviation, source or secure()).tolist()
        return [name for name, count in zip(names, answers, strict=True) if count >= self.threshold]


@dataclass(frozen=True)
class Confusion:
    """A noisy confusion matrix of declared classes: row = true class, column = predicted class.

    Guarantee: a record adds 1 to one cell. The at most m = `most_per_unit` records of a unit move the
    matrix by m in l2, when all meet in one cell; noise has deviation sigma m: GaussianEvent(sigma).
    The model must not have been chosen by the records that are counted, unless that was charged too.
    """

    classes: int
    sigma: float
    most_per_unit: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", checks.whole("classes", self.classes, least=2))
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))
        object.__setattr__(self, "most_per_unit", checks.whole("most_per_unit", self.most_per_unit))

    @property
    def deviation(self) -> float:
        """The deviation of the noise on one cell."""
        return self.sigma * self.most_per_unit

    @property
    def event(self) -> Event:
        return GaussianEvent(self.sigma)

    def release(
        self,
        true: Sequence[int],
        predicted: Sequence[int],
        source: Source | None = None,
        users: Sequence[Hashable] | None = None,
    ) -> Floats:
        """The matrix with noise, as it comes: cells may be negative. True class -1 is nothing."""
        exact = torch.from_numpy(self.count(true, predicted, users))
        counted: Floats = noisy(exact, self.deviation, source or secure()).numpy().astype(np.float64)
        return counted

    def count(
        self, true: Sequence[int], predicted: Sequence[int], users: Sequence[Hashable] | None = None
    ) -> Floats:
        """The matrix without noise: private, unless the records are public."""
        if len(true) != len(predicted):
            raise InputError(f"{len(true)} true classes stand beside {len(predicted)} predicted ones.")
        rows, columns = np.asarray(true, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
        kept = np.asarray(first_rows(users, len(rows), self.most_per_unit), dtype=bool) & (rows != -1)
        rows, columns = rows[kept], columns[kept]
        for name, classes in (("true", rows), ("predicted", columns)):
            if classes.size and not 0 <= classes.min() <= classes.max() < self.classes:
                raise InputError(f"a {name} class is not among 0 to {self.classes - 1}.")
        cells = np.bincount(rows * self.classes + columns, minlength=self.classes**2)
        exact: Floats = cells.astype(np.float64).reshape(self.classes, self.classes)
        return exact


@dataclass(frozen=True)
class Metric:
    """A number with an interval that holds noise and the choice of test records, roughly."""

    value: float
    low: float
    high: float
    confidence: float


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
    classes = len(matrix)
    z = float(special.ndtri((1 + checks.probability("confidence", confidence)) / 2))
    n = max(1.0, float(matrix.sum())) if records is None else float(checks.whole("records", records))
    found = min(1.0, max(0.0, float(np.trace(matrix)) / n))
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
