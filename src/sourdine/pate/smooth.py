"""How fast data-dependent costs of PATE change with the votes: local and smooth sensitivity.

One record moves one vote of every query. Let beta(q) be the cost of a GNMax answer at a fixed order a
(`analysis.rdp_gnmax`). One moved vote brings q at most to B_U(q) and at least to B_L(q),

    B_U(q) = min(1, (m - 1)/2 erfc(erfcinv(2 q / (m - 1)) - 1/sigma)),   B_L(q): the same with + 1/sigma

(Papernot et al. 2018, Appendix B). Let q0 be the largest q at which beta is below a / sigma^2, and
q1 = B_L(q0). Under two conditions

    C5: beta is non-decreasing,      C6: beta(B_U(q)) - beta(q) is non-decreasing on (0, q1),

the change LS(q) = max(beta(B_U(q)) - beta(q), beta(q) - beta(B_L(q))) rises to q1, is largest between
q1 and q0, and falls after it. So within d moved votes it is largest where q came nearest to [q1, q0]:
votes go from the second class to the first while q > q0, from the first to the second while q < q1.
Neither condition holds everywhere (C6 fails at sigma 20, order 25, ten classes). Both are checked here
at 20,001 values of q, evenly spaced in sqrt(ln(1/q)) from 1e-300 on, and the order is refused where one
fails by more than rounding. That is evidence on a fine grid, not a proof between its points.

The threshold check needs no condition: its cost is a function of the largest count alone, and all of
its values are looked at.

Guarantee: for votes D, `changes[d]` is at least every |f(D') - f(D'')| of neighbours D' and D'' with D'
at most d records from D, and S(D) = max_d e^(-beta d) changes[d] is smooth: S(D) <= e^beta S(D') for
neighbours (Nissim, Raskhodnikova, Smith 2007, Definition 2.2). It is computed in doubles, and holds to
about nine digits. Two departures from the published procedure, which are both needed for that:
- A record may move its vote in some queries only, so each query takes the worst within d moves, not
  that at d moves exactly. The published threshold check does the latter, and falls again with d.
- The published total weighs LS by the chance p of an answer, though p changes with the votes too. Here
  the answers that count are those that were given (known to all), or the dearest ones.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sourdine import checks
from sourdine.errors import InputError, NotAccountable
from sourdine.pate import analysis

Floats = NDArray[np.float64]
_POINTS = 20_001
_LOWEST = math.log(1e-300)
_ROUNDING = 1e-9  # a difference of two costs is a hundredth of them and good to 1e-11


@dataclass(frozen=True)
class AnswerCost:
    """beta(q) of GNMax answers at one order, and where it bends."""

    sigma: float
    classes: int
    order: float
    grid: float = 0.0

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.whole("classes", self.classes, least=2)
        if not self.order > 1:
            raise InputError(f"the Rényi order is {self.order:g}, but it must be above 1.")

    @property
    def most(self) -> float:
        """a / sigma^2."""
        return self.order / self.sigma**2

    def cost(self, log_q: Floats) -> Floats:
        """beta(q)."""
        return np.asarray(analysis.rdp_gnmax(log_q.ravel(), self.sigma, [self.order])[:, 0])

    def above(self, log_q: Floats) -> Floats:
        """ln B_U(q)."""
        return self._moved(log_q, 1.0)

    def below(self, log_q: Floats) -> Floats:
        """ln B_L(q)."""
        return self._moved(log_q, -1.0)

    def _moved(self, log_q: Floats, sign: float) -> Floats:
        # erfc(y) / 2 = Phi(-sqrt(2) y), so that all of it can stay in logarithms.
        others = math.log(self.classes - 1)
        point = special.ndtri_exp(log_q - others) + sign * math.sqrt(2) / self.sigma
        return np.asarray(np.minimum(0.0, others + special.log_ndtr(point)))

    @functools.cached_property
    def log_q0(self) -> float:
        """ln of the largest q at which beta(q) < a / sigma^2; minus infinity if there is none.

        It is looked for below e^-(1 + 1/sigma)^2, as in the original. For little noise beta bends
        later; `change` is a bound wherever q0 is put.
        """

        def better(log_q: float) -> bool:
            return bool(self.cost(np.array([log_q]))[0] < self.most)

        high = -max((1 + 1 / self.sigma) ** 2, ((self.order - 1) / self.sigma) ** 2)
        low = high
        while not better(low):
            high, low = low, 1.5 * low
            if low < 1e6 * _LOWEST:
                return -math.inf
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if better(middle) else (low, middle)
        return low

    @functools.cached_property
    def log_q1(self) -> float:
        """ln B_L(q0)."""
        return float(self.below(np.array([self.log_q0]))[0])

    @functools.cached_property
    def conditions(self) -> tuple[bool, bool]:
        """Do C5 and C6 hold at all points of the grid?"""
        log_q = -(np.linspace(math.sqrt(-_LOWEST), 1e-6, _POINTS) ** 2)
        cost = self.cost(log_q)
        below = log_q[log_q <= self.log_q1]
        rise = self.cost(self.above(below)) - self.cost(below)
        return _rises(cost), _rises(rise)

    def check(self) -> None:
        """Refuses an order at which the sensitivity is not known."""
        rising, convex = self.conditions
        if not (rising and convex):
            raise NotAccountable(
                f"no smooth sensitivity is known at order {self.order:g} for sigma {self.sigma:g} and "
                f"{self.classes} classes: condition {'C6' if rising else 'C5'} of Papernot et al. 2018 "
                "fails. Use another order, chosen without the votes, or more noise."
            )
        if self.grid and self.log_q0 > special.log_ndtr(-1.0):
            raise NotAccountable(
                f"at order {self.order:g} the bound is used where teachers agree so little that noise "
                "on a grid is not covered; use a larger order."
            )

    def change(self, log_q: Floats) -> Floats:
        """LS(q) below q1; from there on a bound on it that does not rise with q."""
        little = log_q < self.log_q1
        cost = self.cost(log_q)
        rise = np.maximum(self.cost(self.above(log_q)) - cost, cost - self.cost(self.below(log_q)))
        # By C5 no q' >= q costs more than a / sigma^2, nor, one vote on, less than B_L(q). At q0 that
        # is LS(q1), as beta(q0) = a / sigma^2 wherever beta has no jump.
        fall = self.most - self.cost(self.below(np.maximum(log_q, self.log_q0)))
        return np.where(little, rise, fall)


def changes_gnmax(counts: ArrayLike, answers: AnswerCost) -> Floats:
    """LS of the cost of each query within d = 0, ..., K - 1 moved votes (Algorithms 3 to 5)."""
    rows, where = _distinct(counts)
    return _gnmax(rows, answers)[where]


def changes_threshold(
    counts: ArrayLike, threshold: float, sigma: float, order: float, grid: float = 0.0
) -> Floats:
    """LS of the cost of each threshold check within d = 0, ..., K - 1 moved votes."""
    exactly = threshold_at(counts, threshold, sigma, order, grid)
    return np.asarray(np.maximum.accumulate(exactly, axis=1))


def threshold_at(
    counts: ArrayLike, threshold: float, sigma: float, order: float, grid: float = 0.0
) -> Floats:
    """The same at d moved votes exactly, as published; no bound by itself (see the top)."""
    rows = analysis.votes(counts)
    teachers = _teachers(rows)
    cost = analysis.rdp_threshold(np.arange(teachers + 1), threshold, sigma, [order], grid)[:, 0]
    steps = np.concatenate([[0.0], np.abs(np.diff(cost)), [0.0]])
    change = np.concatenate([np.maximum(steps[:-1], steps[1:]), [0.0]])  # the last: no such count
    distances = np.arange(teachers)
    tops = rows.max(1).astype(int)[:, None]
    up, down = tops + distances, tops - distances
    up[up > teachers] = down[down < 1] = teachers + 1  # some class has a vote
    return np.asarray(np.maximum(change[up], change[down]))


def changes_realised(
    counts: ArrayLike,
    answered: ArrayLike,
    threshold: float,
    sigma1: float,
    sigma2: float,
    order: float,
    grid: float = 0.0,
) -> Floats:
    """Those of `analysis.realised` at one order, for the answers that were given."""
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != (len(np.asarray(counts)),):
        raise InputError("`answered` must hold one True or False for every row of votes.")
    checked = changes_threshold(counts, threshold, sigma1, order, grid).sum(0)
    rows, where = _distinct(counts)
    times = np.bincount(where[mask], minlength=len(rows))
    return np.asarray(checked + times @ _gnmax(rows, _answers(rows, sigma2, order, grid)))


def changes_at_most(
    counts: ArrayLike,
    answers: int,
    threshold: float,
    sigma1: float,
    sigma2: float,
    order: float,
    grid: float = 0.0,
) -> Floats:
    """Those of `analysis.at_most` at one order: the sum of the largest moves by no more than the sum of
    as many largest changes."""
    answers = checks.whole("answers", answers, least=0)
    checked = changes_threshold(counts, threshold, sigma1, order, grid).sum(0)
    rows, where = _distinct(counts)
    change = -np.sort(-_gnmax(rows, _answers(rows, sigma2, order, grid))[where], axis=0)
    return np.asarray(checked + change[:answers].sum(0))


def smooth_sensitivity(changes: ArrayLike, beta: float) -> float:
    """max over d of e^(-beta d) changes[d]; `changes` is a total over all queries."""
    beta = checks.positive("beta", beta)
    total = np.asarray(changes, np.float64)
    if total.ndim != 1 or not len(total) or not (np.isfinite(total) & (total >= 0)).all():
        raise InputError("changes must be a list of numbers, zero or above: one for each distance.")
    return float((np.exp(-beta * np.arange(len(total))) * total).max())


def _gnmax(rows: Floats, answers: AnswerCost) -> Floats:
    """For rows that are sorted, largest first."""
    answers.check()
    if rows.shape[1] != answers.classes:
        raise InputError(f"these are votes on {rows.shape[1]} classes, not on {answers.classes}.")
    rows, teachers = rows.copy(), _teachers(rows)
    found = np.empty((len(rows), teachers))
    highest = answers.change(np.array([answers.log_q1]))[0] if answers.log_q0 > -math.inf else 0.0
    log_q = _log_q(rows, answers)
    moving = np.flatnonzero((log_q < answers.log_q1) | (log_q > answers.log_q0))
    now = np.full(len(rows), highest)
    now[moving] = answers.change(log_q[moving])
    # +1: too little agreement, votes go to the first class; -1: too much.
    sign = np.where(log_q > answers.log_q0, 1.0, -1.0)
    for distance in range(teachers):
        found[:, distance] = now
        moving = moving[(sign[moving] < 0) | (rows[moving, 1] > 0)]
        if not len(moving):
            found[:, distance:] = now[:, None]
            break
        rows[moving, 0] += sign[moving]
        rows[moving, 1] -= sign[moving]
        rows[moving] = -np.sort(-rows[moving], axis=1)
        log_q = _log_q(rows[moving], answers)
        short = sign[moving] > 0
        going = np.where(short, log_q > answers.log_q0, log_q < answers.log_q1)
        now[moving] = highest
        moving, log_q = moving[going], log_q[going]
        now[moving] = answers.change(log_q)
    return found


def _log_q(rows: Floats, answers: AnswerCost) -> Floats:
    """Without the jump of `analysis.log_q_gnmax` to its cap, on whose two sides lie neighbours."""
    union = analysis.log_union(rows, answers.sigma, answers.grid)
    return np.minimum(union, math.log1p(-1 / answers.classes))


def _answers(rows: Floats, sigma: float, order: float, grid: float) -> AnswerCost:
    return AnswerCost(sigma, rows.shape[1], order, grid)


def _distinct(counts: ArrayLike) -> tuple[Floats, NDArray[np.intp]]:
    """Sorted rows, equal ones once, and which of them each query has."""
    ordered = -np.sort(-analysis.votes(counts), axis=1)
    rows, where = np.unique(ordered, axis=0, return_inverse=True)
    return rows, where.ravel()


def _teachers(rows: Floats) -> int:
    sums = rows.sum(1)
    if not len(sums) or (sums != sums[0]).any() or sums[0] < 1:
        raise InputError("every teacher votes once a query, but the rows of votes differ in sum.")
    return int(sums[0])


def _rises(values: Floats) -> bool:
    return bool((np.diff(values) >= -_ROUNDING * values[1:]).all())
