"""How many teachers voted for each class: all that an aggregator may see of them.

A row of `counts` belongs to a question, n_j teachers voted for class j, and every teacher votes once on
every question: sum_j n_j = `teachers`. One record lies with one teacher (pate/teachers.py), so that
between neighbours at most one vote of each row moves from a class to another:

    two counts move by 1 (l2 distance sqrt(2), l1 distance 2), and max_j n_j by at most 1.

Under replace-one a record may leave one teacher for another, and everything counts twice. Labels in
place of counts would break all of this without a sign, so they are recognised and refused.

`origin` says whose votes they are. What is planned on private votes (a threshold, the noise, how many
questions) depends on them and would have to be charged, so planners take public or simulated ones only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError
from sourdine.rng import Source

PRIVATE, PUBLIC, SIMULATED = "private", "public", "simulated"
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Votes:
    """See the top of this file. counts: a row for each question, a column for each class."""

    counts: Counts
    teachers: int
    origin: str = PRIVATE

    def __post_init__(self) -> None:
        object.__setattr__(self, "teachers", checks.whole("teachers", self.teachers, least=2))
        object.__setattr__(self, "counts", _checked(self.counts, self.teachers))
        if self.origin not in (PRIVATE, PUBLIC, SIMULATED):
            raise InputError(f"votes are private, public or simulated, not {self.origin!r}.")

    @classmethod
    def of_labels(cls, labels: Any, classes: int, origin: str = PRIVATE) -> Votes:
        """Votes from labels: a row for each teacher, a column for each question, classes from 0."""
        array = np.asarray(labels)
        classes = checks.whole("classes", classes, least=2)
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
            raise InputError("labels are whole numbers, a row for each teacher, a column a question.")
        if array.size and not (array.min() >= 0 and array.max() < classes):
            raise InputError(f"a label lies outside of 0 to {classes - 1}, the {classes} classes.")
        counts = np.stack([(array == j).sum(axis=0) for j in range(classes)], axis=1)
        return cls(counts, len(array), origin)

    @property
    def classes(self) -> int:
        return int(self.counts.shape[1])

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, rows: slice | Sequence[int] | NDArray[Any]) -> Votes:
        """The votes on some of the questions."""
        return Votes(self.counts[rows], self.teachers, self.origin)

    def __repr__(self) -> str:  # the generated one would print the votes
        return f"<{self.origin} votes of {self.teachers} teachers on {len(self)} questions>"


def simulated(
    questions: int,
    teachers: int,
    classes: int,
    *,
    accuracy: float,
    source: Source,
    certainty: float = 3.0,
) -> Votes:
    """Votes of teachers of this accuracy, made up: nothing in them depends on any data.

    On each question the share of teachers that are right is drawn from a Beta law with mean `accuracy`
    and the weight of `certainty` answers (small: some questions are easy and others hopeless); the
    others spread over the wrong classes, most on a first one, as confusions do.
    """
    accuracy = checks.probability("accuracy", accuracy)
    generator = np.random.default_rng(int.from_bytes(source.bytes(16)))  # no secret: nothing is hidden
    right = generator.beta(certainty * accuracy, certainty * (1 - accuracy), questions)
    wrong = generator.dirichlet([0.5] * (classes - 1), questions)
    shares = np.concatenate([right[:, None], (1 - right[:, None]) * wrong], axis=1)
    shares /= shares.sum(axis=1, keepdims=True)
    return Votes(generator.multinomial(teachers, shares), teachers, SIMULATED)


def _checked(counts: Any, teachers: int) -> Counts:
    array = np.asarray(counts)
    if array.ndim != 2 or array.shape[1] < 2:
        raise InputError(
            "votes are counts, a row for each question and a column for each class, at least two; make "
            "them from labels by Votes.of_labels(labels, classes)."
        )
    with np.errstate(invalid="ignore"):
        found = array.astype(np.int64)
    if not np.array_equal(found, array) or (found < 0).any():
        raise InputError("votes are whole numbers from 0; noise is added by an aggregator, not before.")
    if (found.sum(axis=1) != teachers).any():
        alike = "These look like" if teachers in array.shape else "If these are"
        raise InputError(
            f"the {teachers} teachers vote once on every question, so every row of counts adds up to "
            f"{teachers}, but not here. {alike} the teachers' labels, make counts of them by "
            "Votes.of_labels(labels, classes)."
        )
    found.setflags(write=False)
    return found
