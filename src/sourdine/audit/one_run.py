"""Lower bounds on epsilon from one run with many canaries, each in or out by its own coin.

Protocol. m canaries; canary i goes in where an independent fair coin S_i says so. From what the run
released, and from nothing else that depends on the coins, r of them get a guess, in or out; r is fixed
beforehand. v guesses are right.

Theorem (Steinke, Nasr, Jagielski 2023, Theorem 5.2). If the run is (epsilon, delta)-DP for one canary
in or out, then for W ~ Bin(r, q), q = 1 / (1 + e^-epsilon), and every v,

    P[at least v right] <= p(v, epsilon) = f(v) + 2 m delta max_{1<=i<=v} (f(v - i) - f(v)) / i,

f(t) = P[W >= t]. The bound is the supremum of the epsilons with p(v, epsilon) < alpha.

Guarantee: it exceeds the true epsilon with probability at most alpha. Proof: the run keeps every
epsilon' >= epsilon. Let v' be the least count that refutes any of them; it refutes one of them, say
epsilon', so P[at least v' right] <= p(v', epsilon') < alpha. No shape of p is needed.

Search. That bisection finds the supremum needs a shape. Write c = 2 m delta.
- If c >= v, then p >= f(v) + (1 - f(v)) = 1 for all epsilon: nothing can be proven.
- Where v <= (r + 1) q, f(v) = P[Beta(v, r - v + 1) <= q] is at least the chance that this variable is
  below its mean v / (r + 1), which for log-concave densities is at least 1/e (Grünbaum 1960). So with
  alpha <= 1/e all that is refuted lies where v > (r + 1) q, right of the mode of W.
- There p grows with q. For a window a = v - i <= W < v, dp/dq = r ((1 - c/i) g(v - 1) + (c/i) g(a - 1))
  with g the masses of Bin(r - 1, q). For the best window P[W = a] >= mean >= P[W = v - 1] >= P[W = v],
  so g(a - 1) / g(v - 1) = a P[W = a] / (v P[W = v]) >= a / v = 1 - i / v >= 1 - i / c. The sum is
  (c/i) g(v - 1) (g(a - 1) / g(v - 1) - (1 - i / c)) >= 0 where c <= v.
- There p falls with v: f does, and so does the mean over the best window below v, from which P[W = v]
  drops out as its smallest mass.
Hence the refuted epsilons are an interval from 0, and more correct guesses never lower the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from sourdine import checks
from sourdine.audit.bound import GAUSSIAN, Counts, alpha_of, checked_delta, gaussian_epsilon

_TOLERANCE = 1e-10
_GRUNBAUM = 1 / math.e


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The probability that an (epsilon, delta)-DP run allows to this many correct guesses, or more.

    Rounded upwards by more than the arithmetic is wrong. 1 where nothing is correct.
    """
    counts = Counts(canaries, guesses, correct)
    return _Tail(counts, checked_delta(delta)).p(checks.not_negative("epsilon", epsilon))


def one_run_epsilon(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """A lower bound on epsilon at `delta` that is false with probability at most 1 - confidence.

    Edge cases: zero without guesses, with no more right than chance allows, and where 2 m delta is so
    large that nothing can be proven. Always finite: r of r right prove logit(alpha^(1/r)) at delta 0.
    A confidence below 1 - 1/e = 0.63 proves no more than that one.
    """
    counts = Counts(canaries, guesses, correct)
    return OneRun().epsilon(counts, checked_delta(delta), alpha_of(confidence))


@dataclass(frozen=True)
class OneRun:
    """The bound of the theorem above; holds for every mechanism."""

    name: ClassVar[str] = "one run"
    conditional: ClassVar[str | None] = None

    def epsilon(self, counts: Counts, delta: float, alpha: float, above: float = 0.0) -> float:
        """The largest epsilon that is refuted at level alpha; `above` where that is not larger."""
        alpha = min(alpha, _GRUNBAUM)
        tail = _Tail(counts, delta)
        if tail.p(above) >= alpha:
            return above
        # p >= f(v), and f(v) = alpha is solved by a quantile of a beta law: nothing above is refuted.
        below = special.betainccinv(counts.guesses - counts.correct + 1, counts.correct, alpha)
        return largest(lambda e: tail.p(e) < alpha, above, math.log(1 / below - 1) + _TOLERANCE)


class _Tail:
    """p(v, epsilon) of one result, for any epsilon."""

    def __init__(self, counts: Counts, delta: float) -> None:
        self._guesses, self._correct = counts.guesses, counts.correct
        self._shift = 2 * counts.canaries * delta
        # Rounding of the logarithms below, measured at a fifth of this against exact arithmetic.
        self._slack = 1 + 1e-10 + 1e-14 * counts.guesses
        if 0 < self._shift < counts.correct:
            wrong = counts.guesses - np.arange(counts.correct - 1, -1, -1.0)
            self._wrong = wrong
            self._ways = -np.log(counts.guesses + 1) - special.betaln(
                counts.guesses - wrong + 1, wrong + 1
            )
            self._sizes = np.arange(1.0, counts.correct + 1)

    def p(self, epsilon: float) -> float:
        r, v = self._guesses, self._correct
        if self._shift >= v:  # also where nothing is correct
            return 1.0
        total = float(special.betainc(v, r - v + 1, special.expit(epsilon)))
        if self._shift > 0:
            # Masses of W = v - 1, v - 2, ..., 0; the mean of the first i is (f(v - i) - f(v)) / i.
            logs = self._ways - self._wrong * epsilon - r * math.log1p(math.exp(-epsilon))
            means = np.cumsum(np.exp(logs)) / self._sizes
            total += self._shift * float(means.max())
        return min(1.0, total * self._slack)


@dataclass(frozen=True)
class GaussianOneRun:
    """The bound for a run that is a Gaussian mechanism of unknown noise, at any delta above 0.

    Mahloujifar, Melis, Chaudhuri 2025 (Auditing f-DP in one run), Theorem 3.2 and Algorithm 3. With p_j
    the chance of exactly j right of r, R_i = sum_{j>=i} j p_j / m and H_i = sum_{j>=i} (r - j) p_j / m,
    an f-DP run has H_i >= g(R_{i+1}), g the inverse of 1 - f; for mu-Gaussian privacy g(x) =
    Phi(Phi^-1(x) - mu). If v or more are right with probability alpha, R_v + H_v = alpha r / m, and

        H_i >= max(H_{i+1}, g(R_{i+1})),   R_i = R_{i+1} + i / (r - i) (H_i - H_{i+1})

    down to i = 0. Where that brings R_0 + H_0 above r / m, which is what it must be, mu is refuted. A
    larger mu makes g smaller, and with it all H_i and R_i (sum the R_i by parts: i / (r - i) falls with
    i). So the refuted mus are an interval from 0.

    Guarantee: `mu` exceeds the true one with probability at most alpha, for every mu-Gaussian DP run.
    As a bound on epsilon it is conditional: another mechanism may need that mu for the sake of some
    other delta, and have a smaller epsilon at this one.
    """

    name: ClassVar[str] = "one run, Gaussian"
    conditional: ClassVar[str | None] = GAUSSIAN

    def epsilon(self, counts: Counts, delta: float, alpha: float, above: float = 0.0) -> float:
        """The largest epsilon that is refuted at level alpha; `above` where that is not larger."""
        return max(above, gaussian_epsilon(self.mu(counts, alpha), delta))

    def mu(self, counts: Counts, alpha: float) -> float:
        """The largest mu that is refuted at level alpha; zero where none is."""
        if not _refuted(counts, 0.0, alpha):
            return 0.0
        high = 1.0
        while _refuted(counts, high, alpha):  # ends: g(x) is zero in doubles for mu above 80
            high *= 2
        return largest(lambda mu: _refuted(counts, mu, alpha), 0.0, high)


def _refuted(counts: Counts, mu: float, alpha: float) -> bool:
    m, r, v = counts.canaries, counts.guesses, counts.correct
    if v == 0:
        return False
    right, wrong = alpha * v / m, alpha * (r - v) / m
    most = r / m * (1 + 1e-9)  # by more than the sums are wrong
    for i in range(v - 1, -1, -1):
        least = math.erfc((mu - float(special.ndtri(right))) / math.sqrt(2)) / 2
        if least <= wrong:  # and so it stays
            return False
        right += i / (r - i) * (least - wrong)
        wrong = least
        if right + wrong > most:
            return True
        if right >= 1:  # by rounding only
            return False
    return False


def largest(refuted: Callable[[float], bool], low: float, high: float) -> float:
    """The upper end of an interval of refuted numbers that holds `low`, not `high`; never above it."""
    while high - low > _TOLERANCE * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
