"""Counts and labels told apart, neighbours as close as they are said to be, made-up votes."""

from __future__ import annotations

import numpy as np
import pytest

from sourdine.errors import InputError
from sourdine.pate.votes import Votes, simulated
from sourdine.rng import seeded


def labels(teachers: int, questions: int, classes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, (teachers, questions))


def test_counts_of_labels() -> None:
    given = labels(30, 7, 4)
    votes = Votes.of_labels(given, 4)
    assert votes.teachers == 30 and votes.classes == 4 and len(votes) == 7
    for question in range(7):
        assert votes.counts[question].tolist() == np.bincount(given[:, question], minlength=4).tolist()


def test_labels_for_counts_are_recognised() -> None:
    """The mistake seen in public code: epsilon 0.057 for 1.62, as labels look like lopsided counts."""
    given = labels(250, 40, 10)
    for matrix in (given, given.T):
        with pytest.raises(InputError, match=r"look like the teachers' labels.*Votes\.of_labels"):
            Votes(matrix, 250)
    with pytest.raises(InputError, match=r"a column for each class.*Votes\.of_labels"):
        Votes(given[:, 0], 250)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([[5.5, 4.5]], "whole numbers"),
        ([[11, -1]], "whole numbers"),
        ([[np.nan, 10]], "whole numbers"),
        ([[10]], "at least two"),
        ([[5, 4]], "adds up to 10"),
    ],
)
def test_what_cannot_be_counts(counts: list[list[float]], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Votes(np.array(counts), 10)


def test_labels_out_of_range() -> None:
    with pytest.raises(InputError, match="outside of 0 to 2"):
        Votes.of_labels([[0, 3]], 3)
    with pytest.raises(InputError, match="whole numbers"):
        Votes.of_labels([[0.5, 1.0]], 3)


def test_one_teacher_moves_one_vote_of_each_question() -> None:
    given = labels(50, 200, 5)
    other = given.copy()
    other[7] = np.random.default_rng(2).integers(0, 5, 200)
    apart = Votes.of_labels(given, 5).counts - Votes.of_labels(other, 5).counts
    assert set(np.abs(apart).sum(axis=1)) <= {0, 2}
    assert np.abs(apart).max() == 1
    tops = [Votes.of_labels(x, 5).counts.max(axis=1) for x in (given, other)]
    assert np.abs(tops[0] - tops[1]).max() == 1


def test_counts_cannot_be_changed_and_are_not_printed() -> None:
    votes = Votes(np.array([[6, 4]]), 10)
    with pytest.raises(ValueError, match="read-only"):
        votes.counts[0, 0] = 7
    assert repr(votes) == "<private votes of 10 teachers on 1 questions>"


def test_simulated_votes_have_the_accuracy_asked_for() -> None:
    votes = simulated(4000, 100, 5, accuracy=0.7, source=seeded(1))
    assert votes.origin == "simulated"
    assert votes.counts[:, 0].mean() / 100 == pytest.approx(0.7, abs=0.02)
    assert (votes.counts.sum(axis=1) == 100).all()
