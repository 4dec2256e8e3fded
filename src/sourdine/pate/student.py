"""The student: learns from the few noisy answers and from all of the public text.

A linear head on frozen features, fitted by least squares to the indicators of the answered classes. The
text that nobody answered enters in two ways:

- Weights get the prior N(0, S^p / ridge), where S is the covariance of all public features: what public
  text hardly varies in is not where classes differ. p = 0 is plain ridge regression, which sees the
  answered texts alone.
- Self-training (Scudder 1965; Yarowsky 1995): the head names classes for all public texts, and is
  fitted again to the surest half of each class, some rounds long.

p and ridge, then the rounds, are chosen by cross-validation on the answers themselves.

Guarantee: all of this is post-processing of public text and of answers that were charged; it costs
nothing, however often it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError
from sourdine.pate.aggregators import NO_ANSWER, Floats
from sourdine.pate.votes import Counts

POWERS = (0.0, 0.5, 1.0)
RIDGES = tuple(float(10.0**x) for x in np.arange(-1, 4.1, 0.5))
ROUNDS = (0, 2)
_FOLDS = 5
_SURE = 0.5  # of the texts that get a class, the share that is learnt from
_TEMPERATURES = tuple(2.0**x for x in range(7))
FEWEST = 10
"""Answers below which nothing is learnt."""


@dataclass(frozen=True, eq=False)
class Student:
    """Scores of the classes are weight x + bias; their softmax is what the student believes."""

    weight: Floats
    bias: Floats
    how: dict[str, float]
    """What cross-validation chose."""

    def scores(self, features: Any) -> Floats:
        return np.asarray(np.asarray(features, dtype=np.float64) @ self.weight.T + self.bias)

    def beliefs(self, features: Any) -> Floats:
        """The probability of each class."""
        return _softmax(self.scores(features))

    def predict(self, features: Any) -> Counts:
        return np.asarray(self.scores(features).argmax(axis=1))


@dataclass(frozen=True)
class _Way:
    """One way to fit."""

    power: float
    ridge: float
    rounds: int


class _Frame:
    """All public features in the eigenvectors of their covariance."""

    def __init__(self, features: Floats) -> None:
        self.mean = features.mean(axis=0)
        spread = np.cov(features.T) if len(features) > 1 else np.eye(features.shape[1])
        values, self.vectors = np.linalg.eigh(np.atleast_2d(spread))
        self.values = np.maximum(values / max(values.max(), 1e-30), 1e-6)
        self.rows = (features - self.mean) @ self.vectors

    def scaled(self, power: float) -> Floats:
        """Rows in which weights have the same prior in every direction."""
        return np.asarray(self.rows * self.values ** (power / 2))

    def student(self, way: _Way, fit: tuple[Floats, Floats], temperature: float) -> Student:
        weight, bias = fit
        back = temperature * weight * self.values ** (way.power / 2) @ self.vectors.T
        how = {"power": way.power, "ridge": way.ridge, "rounds": float(way.rounds)}
        return Student(back, temperature * bias - back @ self.mean, how)


def fit_student(
    features: Any,
    labels: Any,
    classes: int,
    *,
    powers: Sequence[float] = POWERS,
    ridges: Sequence[float] = RIDGES,
    rounds: Sequence[int] = ROUNDS,
) -> Student:
    """A student from features of all public texts, and a class or NO_ANSWER for each."""
    rows, answers = np.asarray(features, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    known = np.flatnonzero(answers != NO_ANSWER)
    if rows.ndim != 2 or answers.shape != (len(rows),):
        raise InputError("the student needs a row of features and a label or NO_ANSWER for each text.")
    if not np.isfinite(rows).all():
        raise InputError("features of public texts must be finite numbers.")
    classes = checks.whole("classes", classes, least=2)
    if len(known) and not (answers[known].min() >= 0 and answers[known].max() < classes):
        raise InputError(f"an answer lies outside of 0 to {classes - 1}.")
    if len(known) < FEWEST:
        raise InputError(
            f"{len(known)} answers are too few to learn from, at least {FEWEST} are needed: ask more "
            "questions, lower the threshold, or take more teachers."
        )
    frame = _Frame(rows)
    ways = [_Way(p, r, 0) for p in powers for r in ridges]
    errors, _ = _validated(frame, answers, known, classes, ways)
    best = ways[int(np.argmin(errors))]
    ways = [replace(best, rounds=n) for n in rounds]
    errors, held = _validated(frame, answers, known, classes, ways)
    at = int(np.argmin(errors))
    fit = _fit(frame.scaled(best.power), answers, known, classes, [ways[at]])[0]
    return frame.student(ways[at], fit, _temperature(held[at], answers[known]))


def _validated(
    frame: _Frame, answers: Counts, known: NDArray[np.int64], classes: int, ways: Sequence[_Way]
) -> tuple[list[float], list[Floats]]:
    """For each way, its mean squared error on answers that it did not see, and its scores there."""
    held = [np.zeros((len(known), classes)) for _ in ways]
    folds = np.arange(len(known)) % _FOLDS
    for power in sorted({way.power for way in ways}):
        x = frame.scaled(power)
        chosen = [at for at, way in enumerate(ways) if way.power == power]
        for fold in range(_FOLDS):
            seen, unseen = known[folds != fold], known[folds == fold]
            fits = _fit(x, answers, seen, classes, [ways[at] for at in chosen])
            for at, (weight, bias) in zip(chosen, fits, strict=True):
                held[at][folds == fold] = x[unseen] @ weight.T + bias
    aims = np.eye(classes)[answers[known]] - 1 / classes
    return [float(((scores - aims) ** 2).mean()) for scores in held], held


def _fit(
    x: Floats, answers: Counts, known: NDArray[np.int64], classes: int, ways: Sequence[_Way]
) -> list[tuple[Floats, Floats]]:
    """Weights and bias for each of these ways, which share their power and so their rows."""
    solved = _Solver(x[known], answers[known], classes)
    found = []
    for way in ways:
        weight, bias = solved(way.ridge)
        for _ in range(way.rounds):
            sure, named = _sure(x @ weight.T + bias)
            together = np.concatenate([x[known], x[sure]]), np.concatenate([answers[known], named])
            weight, bias = _Solver(*together, classes)(way.ridge)
        found.append((weight, bias))
    return found


class _Solver:
    """Ridge regression on the indicators of classes, for any number of ridges at once."""

    def __init__(self, rows: Floats, labels: Counts, classes: int) -> None:
        aims = np.eye(classes)[labels] - 1 / classes
        self.bias = aims.mean(axis=0)
        self.mean = rows.mean(axis=0)
        centred = rows - self.mean
        values, self.vectors = np.linalg.eigh(centred.T @ centred)
        self.values = np.maximum(values, 0.0)
        self.products = self.vectors.T @ (centred.T @ (aims - self.bias))

    def __call__(self, ridge: float) -> tuple[Floats, Floats]:
        weight = (self.vectors @ (self.products / (self.values + ridge)[:, None])).T
        return weight, self.bias - weight @ self.mean


def _sure(scores: Floats) -> tuple[NDArray[np.int64], Counts]:
    """The surest half of the texts that each class is named for."""
    named = scores.argmax(axis=1)
    ordered = np.sort(scores, axis=1)
    margin = ordered[:, -1] - ordered[:, -2]
    kept = [_surest(np.flatnonzero(named == j), margin) for j in range(scores.shape[1])]
    places = np.sort(np.concatenate(kept))
    return places, named[places]


def _surest(places: NDArray[np.int64], margin: Floats) -> NDArray[np.int64]:
    most = int(np.ceil(_SURE * len(places)))
    return places[np.argsort(-margin[places], kind="stable")[:most]]


def _temperature(scores: Floats, labels: Counts) -> float:
    """The factor on scores under which unseen answers are likeliest: beliefs as sure as they may be."""

    def loss(factor: float) -> float:
        found = _softmax(factor * scores)[np.arange(len(labels)), labels]
        return float(-np.log(np.maximum(found, 1e-12)).mean())

    return min(_TEMPERATURES, key=loss)


def _softmax(scores: Floats) -> Floats:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
