"""Shadow models: what a record's score is with it and without it, seen on models of one's own.

Shadows are made by whatever made the target, on halves of a pool of records (Shokri et al. 2017;
Carlini et al. 2022). Who is in which half is drawn here, never looking at the target, so that no score
made from shadows knows who was in the target: an attack with poor shadows is weak, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, special

from sourdine import checks
from sourdine.attacks.lira import Inside
from sourdine.attacks.scores import LEAST, logit, places, text_of, token_loss
from sourdine.attacks.target import Classifies, Floats, Predicts, Record, Target
from sourdine.errors import InputError

_STEPS = 2000
_STILL = 1e-5
"""Largest slope at which a head counts as trained."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """What N shadows say of the n records of a pool.

    inside: N x n, who trained which. phi: N x n, the logit of the true label, or the mean log
    probability of a text's tokens. likely: N x n, the probability that RMIA compares. vectors:
    N x n x c, the whole answers of classifiers, with the column of each record's true label.
    """

    inside: Inside
    phi: Floats
    likely: Floats
    vectors: Floats | None = None
    places: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __post_init__(self) -> None:
        if self.inside.ndim != 2 or not self.inside.shape == self.phi.shape == self.likely.shape:
            raise InputError("shadows need one row for each model and one column for each record.")

    def __repr__(self) -> str:
        return f"<Shadows: {len(self.inside)} models, {self.inside.shape[1]} records>"


def halves(records: int, shadows: int, seed: int) -> Inside:
    """Who is in which shadow: each record in exactly half of them, each shadow with half the records.

    Shadows come in pairs, a random half and what is left; so their number is even.
    """
    records, shadows = checks.whole("records", records, least=2), checks.whole("shadows", shadows)
    if shadows % 2:
        raise InputError(f"shadows is {shadows}, but each record is in half of them: take an even one.")
    rng = np.random.default_rng(checks.whole("seed", seed, least=0))
    inside = np.zeros((shadows, records), dtype=np.bool_)
    for pair in range(0, shadows, 2):
        inside[pair, rng.permutation(records)[: records // 2]] = True
        inside[pair + 1] = ~inside[pair]
    return inside


def train_shadows(
    train: Callable[[list[Record], int], Target], pool: Sequence[Record], shadows: int, *, seed: int = 0
) -> Shadows:
    """Shadows made by `train(records, seed)`, which must make models as the target was made.

    The pool is the records under attack, members first and then others, perhaps with more of the kind.
    """
    inside = halves(len(pool), shadows, seed)
    answers: list[Floats] = []
    order: np.ndarray[Any, np.dtype[np.int64]] | None = None
    for number, used in enumerate(inside):
        model = train([record for record, used_ in zip(pool, used, strict=True) if used_], number)
        if isinstance(model, Classifies):
            found = places(model, pool)
            if order is not None and not np.array_equal(order, found):
                raise InputError("two shadows name their labels in other orders; fix it in train.")
            order = found
            answers.append(np.asarray(model.probabilities(pool), np.float64))
        elif isinstance(model, Predicts):
            logs = model.token_logs([text_of(record) for record in pool])
            answers.append(np.array([token_loss(one) for one in logs]))
        else:
            raise InputError("train must make a target that classifies or predicts tokens.")
    stacked = np.stack(answers)
    if order is None:
        return Shadows(inside, stacked, np.exp(stacked))
    return from_vectors(inside, stacked, order)


def from_vectors(
    inside: Inside, vectors: Floats, places: np.ndarray[Any, np.dtype[np.int64]]
) -> Shadows:
    """Shadows from the answers of N classifiers: N x n x c probabilities."""
    phi = np.stack([logit(answer, places) for answer in vectors])
    likely = np.take_along_axis(vectors, places[None, :, None], axis=2)[..., 0]
    return Shadows(inside, phi, likely, vectors, places)


def train_heads(
    features: Floats,
    places: np.ndarray[Any, np.dtype[np.int64]],
    inside: Inside,
    *,
    classes: int,
    penalty: float = 1e-3,
) -> Floats:
    """Many logistic heads at once on one matrix of frozen features; N x n x c probabilities.

    Head s minimises the mean loss of its own records plus penalty |W|^2 / 2, without a penalty on the
    bias. As all heads see the same x, one matrix B = sum of x x' / (2 least half) + penalty curves at
    least as much as the loss of each (Boehning 1992): it is factored once, and steps B^-1 slope, with
    Nesterov's (1983) momentum and restarts (O'Donoghue and Candes 2015), never overshoot. Stops where
    no slope is above 1e-5, else after 2,000 steps; a head that is not quite trained is a weaker shadow,
    nothing worse.
    """
    x = np.column_stack([np.asarray(features, np.float64), np.ones(len(features))])
    heads, (n, d) = len(inside), x.shape
    penalties = np.full((d, 1, 1), checks.not_negative("penalty", penalty))
    penalties[-1] = 0.0
    truth = np.zeros((n, 1, classes))
    truth[np.arange(n), 0, places] = 1.0
    share = (inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)).T[:, :, None]
    curved = x.T @ x * (share.max() / 2) + np.diag(penalties[:, 0, 0])
    curved += np.eye(d) * (1e-10 * np.trace(curved))  # columns may repeat each other
    factor = linalg.cho_factor(curved)
    w = np.zeros((d, heads, classes))
    ahead, momentum = w, 1.0

    def probabilities(weights: Floats) -> Floats:
        found: Floats = special.softmax((x @ weights.reshape(d, -1)).reshape(n, heads, -1), axis=2)
        return found

    for _ in range(_STEPS):
        error = share * (probabilities(ahead) - truth)
        slope = (x.T @ error.reshape(n, -1)).reshape(d, heads, -1) + penalties * ahead
        if np.abs(slope).max() < _STILL:
            w = ahead
            break
        moved = ahead - linalg.cho_solve(factor, slope.reshape(d, -1)).reshape(slope.shape)
        if np.sum(slope * (moved - w)) > 0:
            ahead, momentum = moved, 1.0
        else:
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = moved + (momentum - 1) / following * (moved - w)
            momentum = following
        w = moved
    return np.moveaxis(probabilities(w), 1, 0)


def learned(shadows: Shadows, vectors: Floats) -> Floats:
    """Shokri et al. 2017: a classifier of confidence vectors, one for each class, trained on shadows.

    Each shadow's answers are examples, with whether it was trained on the record as their truth. A
    logistic regression on log probabilities; the score is its log odds. A class of which all or no
    answers are inside gets a score of zero.
    """
    if shadows.vectors is None or shadows.places is None:
        raise InputError("these shadows have no confidence vectors; they must be classifiers.")
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    found = np.zeros(len(vectors))
    for place in np.unique(shadows.places):
        rows = shadows.places == place
        seen = np.log(np.maximum(shadows.vectors[:, rows].reshape(-1, vectors.shape[1]), LEAST))
        truth = shadows.inside[:, rows].reshape(-1)
        if truth.all() or not truth.any():
            continue
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(seen, truth)
        found[rows] = model.decision_function(np.log(np.maximum(vectors[rows], LEAST)))
    return found
