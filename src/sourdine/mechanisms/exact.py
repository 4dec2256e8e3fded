"""Exact samplers: integers whose law is the stated one, without any floating point.

Ordinary floats have holes that give the data away (Mironov 2012). A secure source draws through
opendp, whose samplers are proven; opendp has no seed, so seeded sources use the algorithms of Canonne,
Kamath and Steinke 2020 below (Algorithms 1 to 3), which need only uniform integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from sourdine.errors import InputError
from sourdine.rng import Source

_MOST_SCALE = 2.0**50  # opendp draws 64-bit integers; noise beyond them is rarer than e^-8000


def laplace(scale: float, count: int, source: Source) -> list[int]:
    """Integers x with probability proportional to e^(-|x| / scale)."""
    _check(scale)
    if source.kind == "secure":
        return list(_opendp_laplace(scale)([0] * count))
    ratio = Fraction(scale)
    return [_laplace(ratio.numerator, ratio.denominator, source) for _ in range(count)]


def gaussian(sigma: float, count: int, source: Source) -> list[int]:
    """Integers x with probability proportional to e^(-x^2 / (2 sigma^2))."""
    _check(sigma)
    if source.kind == "secure":
        return list(_opendp_gaussian(sigma)([0] * count))
    variance = Fraction(sigma) ** 2
    return [_gaussian(variance.numerator, variance.denominator, source) for _ in range(count)]


def bernoulli_exp(exponent: Fraction, source: Source) -> bool:
    """True with probability e^-exponent, for any exponent >= 0 (Algorithm 1)."""
    if exponent < 0:
        raise InputError(f"e^{-exponent} is no probability.")
    return _accepted(exponent.numerator, exponent.denominator, source)


def _accepted(numerator: int, denominator: int, source: Source) -> bool:
    """True with probability e^-(numerator / denominator)."""
    # A whole exponent needs so many heads in a row of coins with e^-1 each.
    while numerator > denominator:
        if not _bernoulli_exp(1, 1, source):
            return False
        numerator -= denominator
    common = math.gcd(numerator, denominator)  # smaller numbers take fewer random bits
    return _bernoulli_exp(numerator // common, denominator // common, source)


def _bernoulli_exp(numerator: int, denominator: int, source: Source) -> bool:
    """e^-g as the alternating series of g^k / k!, one coin of g / k after the other; 0 <= g <= 1."""
    k = 1
    while source.below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def _laplace(t: int, s: int, source: Source) -> int:
    """Scale t / s (Algorithm 2)."""
    while True:
        low = source.below(t)
        if not _bernoulli_exp(low, t, source):
            continue
        high = 0
        while _bernoulli_exp(1, 1, source):
            high += 1
        size = (low + t * high) // s
        negative = source.below(2) == 1
        if size or not negative:  # zero has one sign only
            return -size if negative else size


def _gaussian(n: int, d: int, source: Source) -> int:
    """Variance n / d: Laplace noise of that width, accepted where the laws agree (Algorithm 3)."""
    t = math.isqrt(n // d) + 1
    while True:
        x = _laplace(t, 1, source)
        # (|x| - variance / t)^2 / (2 variance), in whole numbers: fractions take most of the time.
        above, below = (abs(x) * t * d - n) ** 2, 2 * n * d * t * t
        if _accepted(above, below, source):
            return x


def _check(scale: float) -> None:
    if not 0 < scale <= _MOST_SCALE:
        raise InputError(
            f"noise of {scale:g} grid units cannot be drawn; measure in larger units, so that it stays "
            f"below {_MOST_SCALE:.1g}."
        )


@functools.lru_cache(maxsize=256)
def _opendp_laplace(scale: float) -> Callable[[list[int]], list[int]]:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    measurement: Callable[[list[int]], list[int]] = dp.m.make_laplace(*space, scale=scale)
    return measurement


@functools.lru_cache(maxsize=256)
def _opendp_gaussian(sigma: float) -> Callable[[list[int]], list[int]]:
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    measurement: Callable[[list[int]], list[int]] = dp.m.make_gaussian(*space, scale=sigma)
    return measurement


@functools.lru_cache(maxsize=1)
def _opendp():  # type: ignore[no-untyped-def]
    import opendp.prelude as dp  # noqa: PLC0415 (loaded only where it draws)

    dp.enable_features("contrib")
    return dp
