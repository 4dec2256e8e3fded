"""Dominating pairs with finitely many losses: discrete noise, randomized response, black boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from sourdine.accounting.normal import Array

FAR = 1e300
"""Stands for an infinite loss of an atom: beyond every finite edge, yet before an infinite one."""


@dataclass(frozen=True, eq=False)  # compared by identity: arrays neither hash nor compare
class Atoms:
    """Finitely many losses with their masses; a loss of FAR holds what Q never produces, -FAR P."""

    losses: Array
    p: Array
    q: Array
    spacing: float | None = None

    @property
    def low(self) -> float:
        return float(self.losses[self.losses > -FAR].min())

    @property
    def high(self) -> float:
        return float(self.losses[self.losses < FAR].max())

    @property
    def infinite(self) -> float:
        return float(self.p[self.losses == FAR].sum())

    @property
    def vanishing(self) -> float:
        return float(self.q[self.losses == -FAR].sum())

    def masses(self, edges: Array) -> tuple[Array, Array]:
        part = np.searchsorted(edges, self.losses, side="left")
        count = len(edges) + 1
        p: Array = np.bincount(part, self.p, count).astype(np.float64)
        q: Array = np.bincount(part, self.q, count).astype(np.float64)
        return p, q


def discrete_gaussian(sigma: float, sensitivity: int) -> Atoms:
    """Integers with probability proportional to e^(-x^2 / 2 sigma^2), moved by the sensitivity.

    Canonne, Kamath, Steinke 2020. Integers past 26 sigma, below 1e-146 in mass, count as lost.
    """
    reach = int(np.ceil(26 * sigma)) + sensitivity
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weight = np.exp(-0.5 * (x / sigma) ** 2)
    weight /= weight.sum()
    step = sensitivity / sigma**2
    losses = np.concatenate(([-FAR], step * (x[:-sensitivity] + sensitivity / 2), [FAR]))
    p = np.concatenate(([0.0], weight[:-sensitivity], [1e-146]))
    q = np.concatenate(([1e-146], weight[sensitivity:], [0.0]))
    return Atoms(losses, p, q, step)


def discrete_laplace(parameter: float, sensitivity: int) -> Atoms:
    """Integers with probability proportional to e^(-parameter |x|), moved by the sensitivity."""
    a, s = parameter, sensitivity
    losses = a * np.arange(-s, s + 1, 2, dtype=np.float64)
    top = 1 / (1 + np.exp(-a))  # P(X <= 0)
    inner = np.tanh(a / 2) * np.exp(-a * np.arange(s - 1, 0, -1))  # P(X = s - 1), ..., P(X = 1)
    p = np.concatenate(([np.exp(-a * s) * top], inner, [top]))
    return Atoms(losses, p, p[::-1].copy(), 2 * a)


def randomized_response(flip: float, buckets: int) -> Atoms:
    """k-ary randomized response: with probability flip the answer is drawn uniformly."""
    other = flip / buckets
    keep = 1 - flip + other
    top = float(np.log(keep / other))
    p, q = np.array([other, keep]), np.array([keep, other])
    if buckets == 2:
        return Atoms(np.array([-top, top]), p, q, 2 * top)
    rest = (buckets - 2) * other
    return Atoms(np.array([-top, 0.0, top]), np.insert(p, 1, rest), np.insert(q, 1, rest), top)


def approximate(epsilon: float, delta: float) -> Atoms:
    """The pair that dominates every (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath 2015)."""
    p = (1 - delta) * special.expit(np.array([-epsilon, epsilon]))  # 1 - keep would lose its digits
    if delta == 0:
        return Atoms(np.array([-epsilon, epsilon]), p, p[::-1].copy(), 2 * epsilon)
    losses = np.array([-FAR, -epsilon, epsilon, FAR])
    under_p = np.array([0.0, p[0], p[1], delta])
    return Atoms(losses, under_p, under_p[::-1].copy(), 2 * epsilon)
