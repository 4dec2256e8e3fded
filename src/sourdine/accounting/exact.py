"""Privacy profiles delta(epsilon) that have a closed form.

A profile returns delta and a bound on its rounding error: `_UNIT`s times the size of the terms, with
the number of units measured against 40-digit arithmetic in tests/accounting/test_exact.py and doubled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import interpolate, special

Profile = Callable[[float], tuple[float, float]]
_UNIT = 2.0**-53
_SUBNORMAL = 1e-290


def gaussian(mu: float) -> Profile:
    """Phi(-e/mu + mu/2) - exp(e) Phi(-e/mu - mu/2) (Balle and Wang 2018, Theorem 8).

    In the tail both terms share the factor phi(a): they are phi(a) m(-a) and phi(a) m(mu - a) with
    Mills' ratio m, which neither overflows nor cancels as the plain difference would.
    """

    def delta(epsilon: float) -> tuple[float, float]:
        a = mu / 2 - epsilon / mu
        if a > 0:
            first = float(special.ndtr(a))
            second = math.exp(epsilon + float(special.log_ndtr(a - mu)))
        else:
            density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
            first, second = density * _mills(-a), density * _mills(mu - a)
        units = 8 + 2 * (abs(epsilon) + a * a + abs(a) * (mu + epsilon / mu))
        return max(0.0, first - second), units * _UNIT * (first + second)

    return delta


def _mills(x: float) -> float:
    return float(math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2)))


def randomized_response(epsilon0: float, count: int, delta0: float = 0.0) -> Profile:
    """Optimal composition of (epsilon0, delta0)-DP (Kairouz, Oh, Viswanath 2015, Theorem 3.3).

    The number of true answers is binomial under both neighbours; the loss is (2k - count) epsilon0.
    """
    # 1 - keep would lose all digits of a large epsilon0.
    keep, lie = float(special.expit(epsilon0)), float(special.expit(-epsilon0))

    def delta(epsilon: float) -> tuple[float, float]:
        # The smallest k with a loss above epsilon; one less changes nothing, its term is zero there.
        least = max(0, math.floor((epsilon / epsilon0 + count) / 2)) + 1 if epsilon0 else count + 1
        above_p = above_q = lost = 0.0
        if least <= count:
            above_p = float(special.betainc(least, count - least + 1, keep))
            above_q = float(special.betainc(least, count - least + 1, lie))
            if above_q < _SUBNORMAL or epsilon > 700:  # no digits left: only the upper end holds
                lost, above_q = above_p, 0.0
            above_q *= math.exp(min(epsilon, 700.0))
        failed = -math.expm1(count * math.log1p(-delta0))
        error = 64 * _UNIT * (math.sqrt(count) + count * epsilon0 + epsilon) * (above_p + above_q)
        return failed + (1 - failed) * max(0.0, above_p - above_q), error + lost + 8 * _UNIT * failed

    return delta


def laplace(epsilon0: float, count: int) -> Profile:
    """`count` Laplace mechanisms of epsilon0 each: a finite sum of integrals over B-splines.

    A step's loss is +epsilon0 with probability 1/2, -epsilon0 with e^-epsilon0 / 2, and has density
    e^((l - epsilon0)/2) / 4 between. With i, j and m steps of each kind the sum of the last ones has
    density (epsilon0/2)^m e^((s - m epsilon0)/2) n_m(u), where n_m is the density of m uniform
    numbers and s = epsilon0 (2u - m). Exact for small counts; the grid serves larger ones.
    """
    nodes, weights = np.polynomial.legendre.leggauss(24)
    splines = {m: interpolate.BSpline.basis_element(np.arange(m + 1.0)) for m in range(1, count + 1)}

    # The gap to the largest loss count * epsilon0 carries the rounding of that product.
    shift = 8 * _UNIT * count * epsilon0
    fine = math.ceil(epsilon0 / 8)

    def delta(epsilon: float) -> tuple[float, float]:
        value = at(epsilon)
        return value, 256 * _UNIT * (1 + epsilon) * value + at(epsilon - shift) - at(epsilon + shift)

    def at(epsilon: float) -> float:
        total = 0.0
        for m in range(count + 1):
            for i in range(count - m + 1):
                j = count - m - i
                log_ways = math.lgamma(count + 1) - sum(math.lgamma(n + 1) for n in (i, j, m))
                ways = math.exp(log_ways - (i + j) * math.log(2) - j * epsilon0)
                gap = epsilon - (i - j) * epsilon0
                if m == 0:
                    total += ways * max(0.0, -math.expm1(min(gap, 0.0)))
                    continue
                start = max(0.0, (gap / epsilon0 + m) / 2)
                if start >= m:
                    continue
                # A spline's knots are whole numbers; between them e^(epsilon0 u) may be steep.
                knots = np.arange(math.floor(start * fine) + 1.0, m * fine + 1) / fine
                cuts = np.unique(np.append(knots, start))
                half = np.diff(cuts)[:, None] / 2
                u = cuts[:-1, None] + half * (1 + nodes)
                s = epsilon0 * (2 * u - m)
                value = -np.expm1(gap - s) * np.exp((s - m * epsilon0) / 2) * splines[m](u)
                total += ways * (epsilon0 / 2) ** m * float((half * weights * value).sum())
        return total

    return delta
