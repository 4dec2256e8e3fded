"""Noisy counts beside the training: labels that nobody declared, and the confusion matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
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
