"""Composition and amplification theorems by name: what they promise from (epsilon, delta) alone.

They know nothing of the mechanism beyond its (epsilon, delta), so a curve computed from the event is
never looser. They are here to compare, to teach, and for promises that come without an event.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sourdine import checks
from sourdine.accounting import exact
from sourdine.accounting.curves import ExactCurve
from sourdine.errors import InputError


class Promise(NamedTuple):
    """(epsilon, delta)-DP."""

    epsilon: float
    delta: float = 0.0


def basic(promises: list[Promise]) -> Promise:
    """Epsilons and deltas add up (Dwork et al. 2006; adaptive: Dwork and Lei 2009)."""
    checked = [_checked(promise) for promise in promises]
    return Promise(math.fsum(p.epsilon for p in checked), math.fsum(p.delta for p in checked))


def advanced(promise: Promise, count: int, slack: float) -> Promise:
    """epsilon sqrt(2 k ln(1/slack)) + k epsilon (e^epsilon - 1), k delta + slack.

    Dwork, Rothblum, Vadhan 2010, Theorem III.3. Better than basic composition for small epsilon only;
    take the smaller of the two.
    """
    epsilon, delta = _checked(promise)
    count, slack = checks.whole("count", count), checks.delta(slack)
    drift = count * epsilon * math.expm1(epsilon)
    return Promise(_spread(epsilon, count, slack) + drift, count * delta + slack)


def advanced_tanh(promise: Promise, count: int, slack: float) -> Promise:
    """The same with the drift k epsilon tanh(epsilon / 2), delta 1 - (1 - delta)^k (1 - slack).

    Kairouz, Oh, Viswanath 2015, Theorem 3.4 (its second bound); never looser than `advanced`.
    """
    epsilon, delta = _checked(promise)
    count, slack = checks.whole("count", count), checks.delta(slack)
    drift = count * epsilon * math.tanh(epsilon / 2)
    failed = -math.expm1(count * math.log1p(-delta) + math.log1p(-slack))
    return Promise(_spread(epsilon, count, slack) + drift, failed)


def optimal(promise: Promise, count: int, *, delta: float) -> Promise:
    """The smallest epsilon for a total delta (Kairouz, Oh, Viswanath 2015, Theorem 3.3)."""
    epsilon0, delta0 = _checked(promise)
    profile = exact.randomized_response(epsilon0, checks.whole("count", count), delta0)
    return Promise(ExactCurve(profile).epsilon(checks.delta(delta)).upper, delta)


def optimal_delta(promise: Promise, count: int, *, epsilon: float) -> Promise:
    """The smallest delta for a total epsilon, by the same theorem."""
    epsilon0, delta0 = _checked(promise)
    profile = exact.randomized_response(epsilon0, checks.whole("count", count), delta0)
    return Promise(epsilon, sum(profile(checks.not_negative("epsilon", epsilon))))


def amplified(promise: Promise, rate: float) -> Promise:
    """ln(1 + rate (e^epsilon - 1)), rate delta after Poisson sampling (Li, Qardaji, Su 2012)."""
    epsilon, delta = _checked(promise)
    rate = checks.rate(rate)
    return Promise(math.log1p(rate * math.expm1(epsilon)), rate * delta)


def group(promise: Promise, size: int) -> Promise:
    """k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1) for k records together.

    The delta stands outside the probability, and the geometric sum is tighter than the usual
    k e^((k-1) epsilon) delta (`group_simple`).
    """
    epsilon, delta = _checked(promise)
    size = checks.whole("size", size)
    grown = math.expm1(size * epsilon) / math.expm1(epsilon) if epsilon else float(size)
    return Promise(size * epsilon, min(1.0, delta * grown))


def group_simple(promise: Promise, size: int) -> Promise:
    """k epsilon, k e^((k-1) epsilon) delta (Dwork and Roth 2014, after Theorem 2.2)."""
    epsilon, delta = _checked(promise)
    size = checks.whole("size", size)
    return Promise(size * epsilon, min(1.0, size * math.exp((size - 1) * epsilon) * delta))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest deviation of Gaussian noise at sensitivity 1 (Balle and Wang 2018, Algorithm 1)."""
    epsilon, delta = checks.epsilon(epsilon), checks.delta(delta)
    low, high = 1e-6, 1.0
    while sum(exact.gaussian(1 / high)(epsilon)) > delta:
        high *= 2
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if sum(exact.gaussian(1 / middle)(epsilon)) > delta else (low, middle)
        )
        if high <= low * (1 + 1e-14):
            break
    return high


def gaussian_sigma_classic(epsilon: float, delta: float) -> float:
    """sqrt(2 ln(1.25/delta)) / epsilon: proven for epsilon < 1 only, and refused from there on.

    At epsilon 10 and delta 1e-8 it would give 0.611 where 0.616 is needed.
    """
    epsilon, delta = checks.epsilon(epsilon), checks.delta(delta)
    if epsilon >= 1:
        raise InputError(
            f"the classic formula for Gaussian noise is proven for epsilon below 1, not {epsilon:g}; "
            "use gaussian_sigma, which is exact for every epsilon."
        )
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _spread(epsilon: float, count: int, slack: float) -> float:
    return epsilon * math.sqrt(2 * count * math.log(1 / slack))


def _checked(promise: Promise) -> Promise:
    epsilon = checks.not_negative("epsilon", promise[0])
    delta = promise[1] if promise[1] == 0 else checks.delta(promise[1])
    return Promise(epsilon, delta)
