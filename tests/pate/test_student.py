"""The student: what unlabelled text adds, what noise it bears, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from sourdine.errors import InputError
from sourdine.pate.aggregators import NO_ANSWER
from sourdine.pate.student import fit_student


def public(
    count: int = 1200, classes: int = 2, width: int = 60, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Classes that differ where the text varies most, and many directions that say nothing."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, classes, count)
    centres = 1.6 * np.random.default_rng(7).normal(size=(classes, width)) * (np.arange(width) < 4)
    x = centres[truth] + draw.normal(size=(count, width)) * np.where(np.arange(width) < 4, 1.0, 0.3)
    return x, truth


def noisy(truth: np.ndarray, share: float, known: int, classes: int, seed: int = 1) -> np.ndarray:
    draw = np.random.default_rng(seed)
    found = np.where(draw.random(len(truth)) < share, draw.integers(0, classes, len(truth)), truth)
    found[known:] = NO_ANSWER
    return found


@pytest.mark.parametrize("classes", [2, 4])
def test_it_learns_from_few_noisy_answers(classes: int) -> None:
    x, truth = public(classes=classes)
    fresh, told = public(classes=classes, seed=3)
    student = fit_student(x, noisy(truth, 0.3, 150, classes), classes)
    best = fit_student(x, truth, classes)
    reached, most = ((s.predict(fresh) == told).mean() for s in (student, best))
    assert reached > 0.85 * most > 0.5


def test_unlabelled_text_helps() -> None:
    """The prior by public covariance beats plain ridge regression, on the mean of several draws."""
    gains = []
    for seed in range(6):
        x, truth = public(seed=seed)
        fresh, told = public(seed=seed + 50)
        answers = noisy(truth, 0.5, 80, 2, seed)
        ours, plain = (
            (fit_student(x, answers, 2, powers=powers, rounds=(0,)).predict(fresh) == told).mean()
            for powers in ((0.0, 0.5, 1.0), (0.0,))
        )
        gains.append(ours - plain)
    assert np.mean(gains) > 0.01


def test_self_training_is_one_of_the_ways() -> None:
    x, truth = public()
    student = fit_student(x, noisy(truth, 0.0, 40, 2), 2, powers=(0.0,), rounds=(3,))
    assert student.how["rounds"] == 3
    plain = fit_student(x, noisy(truth, 0.0, 40, 2), 2, powers=(0.0,), rounds=(0,))
    assert not np.allclose(student.weight, plain.weight)


def test_beliefs_are_as_sure_as_the_answers_are() -> None:
    x, truth = public()
    sure = fit_student(x, noisy(truth, 0.0, 400, 2), 2).beliefs(x)
    unsure = fit_student(x, noisy(truth, 0.8, 400, 2), 2).beliefs(x)
    np.testing.assert_allclose(sure.sum(axis=1), 1)
    assert sure.max(axis=1).mean() > unsure.max(axis=1).mean() + 0.1


def test_it_depends_on_answers_and_public_text_alone() -> None:
    x, truth = public()
    answers = noisy(truth, 0.2, 100, 2)
    one, two = fit_student(x, answers, 2), fit_student(x.copy(), answers.copy(), 2)
    assert np.array_equal(one.weight, two.weight) and np.array_equal(one.bias, two.bias)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"labels": np.full(50, NO_ANSWER)}, "0 answers are too few"),
        ({"labels": np.arange(50) % 3}, "outside of 0 to 1"),
        ({"labels": np.zeros(49, int)}, "for each text"),
        ({"features": np.full((50, 4), np.nan)}, "finite"),
        ({"classes": 1}, "classes"),
    ],
)
def test_what_it_refuses(change: dict[str, object], why: str) -> None:
    draw = np.random.default_rng(0)
    given = {"features": draw.normal(size=(50, 4)), "labels": draw.integers(0, 2, 50), "classes": 2}
    with pytest.raises(InputError, match=why):
        fit_student(**(given | change))  # type: ignore[arg-type]


def test_one_class_only() -> None:
    """Where every answer is the same, so is every prediction: no crash."""
    x, _ = public(100)
    assert (fit_student(x, np.zeros(100, int), 2).predict(x) == 0).all()
