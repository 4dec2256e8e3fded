"""Noise on the output: a convex head is trained exactly, and its weights are released with noise once.

The head is multinomial logistic regression on frozen features. With rows x_i of norm at most 1, W of K
rows, n = `records` (public, or declared) and lambda = `regularisation`, it is the minimiser of

    J(W) = 1/n sum_i CE(W x_i, y_i) + lambda/2 |W|^2       (all norms Frobenius).

Sensitivity (Chaudhuri, Monteleoni, Sarwate 2011, Corollary 8, for K classes). Let J' be J without the
terms of one unit, which has at most m rows; W and W' the minimisers. J' is lambda-strongly convex, so

    lambda |W - W'|^2 <= <grad J'(W) - grad J'(W'), W - W'> = <grad J'(W) - grad J(W), W - W'>,

as both grad J(W) and grad J'(W') are 0. What is left is minus 1/n times the gradients of the unit's
terms at W, each (p - e_y) x^T with norm |p - e_y| |x| <= sqrt(2), since p and e_y are distributions.
By Cauchy and Schwarz |W - W'| <= sqrt(2) m / (lambda n). Replacing a unit takes some terms away and
adds others: the triangle inequality over the J without the unit gives twice that.

Solver. What is released is not W but some V with |grad J(V)| <= tau, or nothing. By strong convexity
|V - W| <= tau / lambda, for both neighbours: so the sensitivity is (sqrt(2) m / n + 2 tau) / lambda,
at most twice that when a unit is replaced. tau = 1e-4 sqrt(2) / n is fixed before anything is seen; the
norm computed counts with a bound on its rounding error on top (`_rounding`).

Guarantee: noise of deviation noise_multiplier times that sensitivity on each weight, drawn once:
GaussianEvent(noise_multiplier); the accountant doubles the distance under replace-one. Wu et al. 2017
treat stochastic gradient steps in the same way; an exact minimiser needs no bound on the steps.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import Event, GaussianEvent
from sourdine.rng import Source, secure
from sourdine.text.releases import first_rows, noisy

FEATURES, BIAS = math.sqrt(0.75), 0.5
"""How the unit norm of a row is shared between the features and the constant that makes the bias."""
_TOLERANCE = 1e-4
_NORM = 4.0
_BLOCK = 1024
_NEWTON_STEPS, _INNER_STEPS = 100, 500


class Weights(NamedTuple):
    """A linear head on features of norm 1: class scores are weight x + bias."""

    weight: Tensor
    bias: Tensor

    def scores(self, features: Tensor) -> Tensor:
        """One score for each class and row, with features scaled as they were for training."""
        rows, _ = unit_rows(features)
        return rows @ self.weight.to(rows).T + self.bias.to(rows)


def event(noise_multiplier: float) -> Event:
    """What `fit_output` costs."""
    return GaussianEvent(noise_multiplier)


def ridge(records: int, noise_multiplier: float, classes: int, most_per_user: int = 1) -> float:
    """The regularisation to take, from public numbers alone.

    It makes the sum of two losses least. Regularising costs at most lambda/2 R^2 in the mean loss, with
    R the norm of a good W, taken as 4 (a shorter W of the same direction decides alike). Noise of
    deviation s = noise_multiplier sqrt(2) m / (lambda n) costs s^2/2 times the trace of the Hessian of
    one term, (1 - |p|^2) |x|^2 <= 1 - 1/K: the dimension does not enter, as |x| <= 1. Epsilon enters by
    the noise multiplier. Hence lambda^3 = 4 (1 - 1/K) (noise_multiplier m / (n R))^2,
    and at least 1/n, where noise is no concern.
    """
    n, m = checks.whole("records", records), checks.whole("most_per_user", most_per_user)
    sigma = checks.positive("noise_multiplier", noise_multiplier)
    curvature = 1 - 1 / checks.whole("classes", classes, least=2)
    return float(max(1 / n, (4 * curvature * (sigma * m / (n * _NORM)) ** 2) ** (1 / 3)))


def sensitivity(records: int, regularisation: float, most_per_user: int = 1) -> float:
    """How far one unit moves the weights found, in Frobenius norm, under zero-out."""
    move = math.sqrt(2) * most_per_user / records + 2 * _tolerance(records)
    return move / regularisation * (1 + 1e-12)


def fit_output(
    features: Tensor,
    labels: Tensor | Sequence[int],
    classes: int,
    *,
    regularisation: float,
    noise_multiplier: float,
    records: int,
    source: Source | None = None,
    users: Sequence[Hashable] | None = None,
    most_per_user: int = 1,
) -> Weights:
    """The head with noise on its weights; `event(noise_multiplier)` is to be charged before.

    Label -1 is a record that is nothing: its term is 0. So are rows whose features are not finite, and
    those past the first `most_per_user` of a user. The terms are divided by `records`, however many
    there are; under add-remove that number is declared.
    """
    strength = checks.positive("regularisation", regularisation)
    noise_multiplier = checks.positive("noise_multiplier", noise_multiplier)
    records, classes = checks.whole("records", records), checks.whole("classes", classes, least=2)
    rows, finite = unit_rows(features)
    targets = targets_of(labels, len(rows), classes).to(rows.device)
    counted = first_rows(users, len(rows), most_per_user)
    kept = torch.tensor(counted, dtype=torch.bool, device=rows.device)
    kept = kept & finite & (targets >= 0)
    constant = rows.new_ones((len(rows), 1))
    # A billionth less than 1, so that no rounding takes a row past it.
    x = (1 - 1e-9) * torch.cat([FEATURES * rows, BIAS * constant], dim=1)
    exact = minimiser(x[kept], targets[kept], classes, strength, records)
    deviation = noise_multiplier * sensitivity(records, strength, most_per_user)
    released = noisy(exact, deviation, source or secure())
    return Weights(FEATURES * released[:, :-1], BIAS * released[:, -1])


def unit_rows(features: Tensor) -> tuple[Tensor, Tensor]:
    """Each row over its norm in double precision, and whether it was finite; rows of zeros stay."""
    if features.dim() != 2 or features.shape[1] == 0:
        raise InputError(
            f"features have shape {tuple(features.shape)}; give a matrix with a row for each record."
        )
    rows = features.detach().to(torch.float64)
    norms = rows.norm(dim=1, keepdim=True)
    finite = torch.isfinite(norms)
    # The square of a smaller norm would lose digits in double precision.
    usable = finite & (norms > 1e-100)
    return torch.where(usable, rows, 0.0) / torch.where(usable, norms, 1.0), finite[:, 0]


def minimiser(x: Tensor, labels: Tensor, classes: int, strength: float, records: int) -> Tensor:
    """Weights whose gradient of J is surely at most tau in norm, by Newton steps with inner CG.

    Steps are halved until the gradient is smaller: along a Newton direction it always falls, and unlike
    the value of J it can be told apart to the last digits.
    """
    weights = x.new_zeros((classes, x.shape[1]))
    tolerance = _tolerance(records)
    gradient, likely = _gradient(weights, x, labels, strength, records)
    for _ in range(_NEWTON_STEPS):
        # Below the tolerance, so that there is room for the rounding bound.
        if float(gradient.norm()) <= tolerance / 10:
            break
        step, size = _newton_step(gradient, x, likely, strength, records), float(gradient.norm())
        length = 1.0
        while True:
            trial = weights + length * step
            gradient, likely = _gradient(trial, x, labels, strength, records)
            if float(gradient.norm()) <= (1 - 1e-4 * length) * size or length < 1e-9:
                break
            length /= 2
        weights = trial
    reached = float(gradient.norm()) + _rounding(weights, len(x), strength, records)
    if not reached <= tolerance:
        raise InputError(
            "the head was not found to the accuracy that its sensitivity is stated for, so nothing was "
            "released. Use a larger regularisation."
        )
    return weights


def _tolerance(records: int) -> float:
    return _TOLERANCE * math.sqrt(2) / records


def targets_of(labels: Tensor | Sequence[int], rows: int, classes: int) -> Tensor:
    """Labels as a tensor, one for each row: a class, or -1 for nothing."""
    targets = torch.as_tensor(labels, dtype=torch.int64)
    if targets.shape != (rows,):
        raise InputError(f"there are {rows} rows of features, but labels of another number.")
    if rows and not -1 <= int(targets.min()) <= int(targets.max()) < classes:
        raise InputError(f"a label is not among 0 to {classes - 1}, nor -1 for nothing.")
    return targets


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(_BLOCK) for tensor in tensors), strict=True)


def _gradient(
    weights: Tensor, x: Tensor, labels: Tensor, strength: float, records: int
) -> tuple[Tensor, Tensor]:
    """The gradient of J, and the probabilities of all classes for each row."""
    likely = torch.softmax(x @ weights.T, dim=1)
    total = torch.zeros_like(weights)
    for p, rows, y in _blocks(likely, x, labels):
        total += (p - torch.nn.functional.one_hot(y, len(weights))).T @ rows
    return total / records + strength * weights, likely


def _newton_step(gradient: Tensor, x: Tensor, likely: Tensor, strength: float, records: int) -> Tensor:
    """A step s with |H s + gradient| small beside the gradient: conjugate gradients on H."""
    step, residual = torch.zeros_like(gradient), -gradient
    direction, square = residual, float(residual.square().sum())
    goal = square * min(0.1, math.sqrt(square)) ** 2
    for _ in range(_INNER_STEPS):
        if square <= goal:
            break
        moved = x @ direction.T
        moved = likely * (moved - (likely * moved).sum(1, keepdim=True))
        bent = moved.T @ x / records + strength * direction
        length = square / float((direction * bent).sum())
        step, residual = step + length * direction, residual - length * bent
        last, square = square, float(residual.square().sum())
        direction = residual + square / last * direction
    return step


def _rounding(weights: Tensor, rows: int, strength: float, records: int) -> float:
    """A bound on the error of the gradient as computed, in Frobenius norm.

    With u = 2^-53 and a sum of k terms wrong by at most k u times the sum of their sizes (Higham 2002,
    section 3.1): logits are off by (d + 2) u |W| in norm, and softmax, whose slope is at most 1, by 4 u
    |W| + (K + 16) u of its own; a block adds up _BLOCK terms of norm sqrt(2) and the blocks are added
    up; then + lambda W. Doubled, for products of errors.
    """
    classes, width = weights.shape
    size = float(weights.norm())
    summed = math.sqrt(2) * (_BLOCK + rows / _BLOCK + 4)
    softmax = (width + 6) * size + classes + 16
    own = (summed + softmax) * rows / records + 3 * strength * size
    return 2 * 2.0**-53 * own
