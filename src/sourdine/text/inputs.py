"""Noise on the input: each record is released by itself, and training on what came out costs nothing.

Features of norm 1 get Gaussian noise, labels get randomized response (Warner 1965), both once. Nobody
has to be trusted: each person can do it at home, which is local privacy.

Guarantee: a record appears in one release of its own, whose noise is independent of all others; so what
neighbours differ in is this one release, a composition of

- features: norm at most 1, deviation noise_multiplier: GaussianEvent(noise_multiplier);
- label: with probability `flip` uniform over all K classes. When a record is replaced that is
  RandomizedResponseEvent(flip, K). Under zero-out a record that is nothing is a zero vector with a
  uniform label; against it a label has likelihood ratio K - (K - 1) flip if it is the true one and flip
  if it is another, so it is ln max(K - (K - 1) flip, 1 / flip)-DP, stated as an ApproximateEvent.

A unit with m rows has m such releases. Add-remove is refused: how many rows come out shows n.

What it is good for: contrast. Noise for one record has norm noise_multiplier sqrt(d), some 40 times
the record for d = 384 at epsilon 3. Training averages it away only as records come in, so that the
error is sqrt(n) times what noise on one sum over all records would leave, at the same epsilon.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from sourdine import checks
from sourdine.accounting import least_noise
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError, NotAccountable
from sourdine.events import Event, GaussianEvent, compose
from sourdine.mechanisms.response import flip_event, least_flip
from sourdine.rng import Source, secure
from sourdine.sgd.noise import add_noise_
from sourdine.text.output import Weights, targets_of, unit_rows
from sourdine.text.releases import first_rows

_SHARES = tuple(share / 10 for share in range(1, 10))


@dataclass(frozen=True)
class Split:
    """How a budget is shared between features and label."""

    noise_multiplier: float
    flip: float
    event: Event


def event(
    noise_multiplier: float, flip: float, classes: int, adjacency: str = "zero-out", rows: int = 1
) -> Event:
    """What `perturb` costs a unit with at most so many rows."""
    flip, classes = _flip(flip), checks.whole("classes", classes, least=2)
    parts: list[Event] = [GaussianEvent(noise_multiplier)]
    if checks.adjacency(adjacency) == "add-remove":
        raise NotAccountable(
            "a release for each record shows how many there are, so add-remove says nothing about "
            "it; ask for adjacency zero-out or replace-one."
        )
    if adjacency == "replace-one" or flip < 1:
        parts.append(flip_event(flip, classes, adjacency))
    return compose(parts) * checks.whole("rows", rows)


def split(budget: Budget, classes: int, dimension: int, rows: int = 1) -> Split:
    """The noise and the flips that a budget pays for, shared without a look at the data.

    The sum of x (e_y - 1/K) over the records, which linear training rests on, has its signal multiplied
    by 1 - flip, and in each direction the noise of one record, with variance noise_multiplier^2, beside
    what the features have themselves, 1/d. The label gets the share of epsilon, in tenths, that
    makes (1 - flip)^2 / (noise_multiplier^2 + 1/d) largest.
    """
    dimension = checks.whole("dimension", dimension)
    rows = checks.whole("rows", rows)
    best, most = None, 0.0
    for share in _SHARES:
        flip = least_flip(share * budget.epsilon / rows, classes, budget.adjacency)
        plan = functools.partial(
            event, flip=flip, classes=classes, adjacency=budget.adjacency, rows=rows
        )
        try:
            # A little more than the least, so that a ledger which adds up more finely takes it too.
            noise = least_noise(budget, plan) * (1 + 1e-4)
        except BudgetError:
            continue
        worth = (1 - flip) ** 2 / (noise**2 + 1 / dimension)
        if worth > most:
            best, most = Split(noise, flip, plan(noise)), worth
    if best is None:
        raise BudgetError(
            f"no noise on inputs fits epsilon={budget.epsilon:g} at delta={budget.delta:g}; allow "
            "fewer rows a user or ask for a larger budget."
        )
    return best


def perturb(
    features: Tensor,
    labels: Tensor | Sequence[int],
    classes: int,
    *,
    noise_multiplier: float,
    flip: float,
    source: Source | None = None,
    users: Sequence[Hashable] | None = None,
    most_per_user: int = 1,
) -> tuple[Tensor, Tensor]:
    """Noisy features and labels, one for each record; `event` is to be charged before.

    Label -1 is a record that is nothing: zeros with noise and a uniform label. So are rows whose
    features are not finite, and those past the first `most_per_user` of a user.
    """
    noise_multiplier = checks.positive("noise_multiplier", noise_multiplier)
    flip, classes = _flip(flip), checks.whole("classes", classes, least=2)
    source = source or secure()
    rows, finite = unit_rows(features.cpu())
    targets = targets_of(labels, len(rows), classes).cpu()
    there = torch.tensor(first_rows(users, len(rows), most_per_user), dtype=torch.bool)
    there = there & finite & (targets >= 0)
    # A millionth less than 1, so that rounding to float32 takes no row past it.
    released = ((1 - 1e-6) * torch.where(there[:, None], rows, 0.0)).to(torch.float32)
    add_noise_([released], noise_multiplier, source)
    coin = Fraction(flip)
    answers = [
        label if own and not source.bernoulli(coin) else source.below(classes)
        for label, own in zip(targets.tolist(), there.tolist(), strict=True)
    ]
    return released, torch.tensor(answers, dtype=torch.int64)


def train_on_noisy(
    features: Tensor, labels: Tensor, classes: int, *, noise_multiplier: float, flip: float
) -> Weights:
    """A linear head by least squares, from moments that are corrected for the known noise.

    (y_k - flip / K) / (1 - flip) has the mean of the true indicator of class k. The covariance of noisy
    features is that of the true ones plus noise_multiplier^2 I, which is taken away (Fuller 1987); what
    is left of the noise has eigenvalues up to noise_multiplier^2 (2 sqrt(d/n) + d/n), and below it a
    direction counts with 1/d, the mean of the eigenvalues of features of norm 1. With covariance a and
    noise of variance v on the covariance b with the label, the weight is a b / (a^2 + v) (Wiener).
    Post-processing: it sees nothing but what was released.
    """
    if _flip(flip) == 1:
        raise InputError("with flip 1 every label is a fair die and tells nothing; use a smaller one.")
    x = features.to(torch.float64)
    n, d = x.shape
    if n < 2:
        raise InputError(f"{n} records are too few to train on; give at least 2.")
    chosen = torch.nn.functional.one_hot(targets_of(labels, n, classes), classes).to(torch.float64)
    answers = (chosen - flip / classes) / (1 - flip)
    middle, shares = x.mean(0), answers.mean(0)
    x, answers = x - middle, answers - shares
    variance = noise_multiplier**2
    values, vectors = torch.linalg.eigh(x.T @ x / n)
    known = values - variance - variance * (2 * math.sqrt(d / n) + d / n)
    own = known.clamp(min=1 / d)[:, None]
    shaken = (variance + 1 / d) * answers.var(0) / n
    both = vectors.T @ (x.T @ answers / n)
    weight = (vectors @ (own * both / (own**2 + shaken))).T
    return Weights(weight.float(), (shares - weight @ middle).float())


def _flip(flip: float) -> float:
    flip = checks.positive("flip", flip)
    if flip > 1:
        raise InputError(f"flip is {flip:g}, but it is a probability in (0, 1].")
    return flip
