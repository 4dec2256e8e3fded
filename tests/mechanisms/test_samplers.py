"""The samplers have the law that is stated, for secure sources (opendp) and seeded ones (ours)."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from sourdine.errors import InputError
from sourdine.mechanisms import exact
from sourdine.rng import secure, seeded

FALSE_ALARM = 1e-6
DRAWS = 30_000


def pvalue(drawn: list[int], weight) -> float:
    """Chi-square against a law on the integers, far tails pooled."""
    reach = max(4, *(abs(x) for x in drawn))
    x = np.arange(-reach - 2000, reach + 2001)
    p = weight(x.astype(float))
    p /= p.sum()
    order = np.argsort(np.abs(x), kind="stable")
    expected, observed = [], []
    counts = dict(zip(*np.unique(drawn, return_counts=True), strict=True))
    room, seen = 0.0, 0
    for i in order:  # pool from the middle outwards, at least 20 expected a bin
        room += p[i] * len(drawn)
        seen += counts.get(x[i], 0)
        if room >= 20:
            expected.append(room)
            observed.append(seen)
            room, seen = 0.0, 0
    expected[-1] += room
    observed[-1] += seen
    return float(stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue)


@pytest.mark.parametrize("source", [secure(), seeded(1)], ids=lambda source: source.kind)
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5])
def test_laplace(source, scale: float) -> None:
    drawn = exact.laplace(scale, DRAWS, source)
    assert pvalue(drawn, lambda x: np.exp(-np.abs(x) / scale)) > FALSE_ALARM
    assert pvalue(drawn, lambda x: np.exp(-np.abs(x) / (0.9 * scale))) < FALSE_ALARM
    assert stats.binomtest(sum(x > 0 for x in drawn), sum(x != 0 for x in drawn)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("source", [secure(), seeded(2)], ids=lambda source: source.kind)
@pytest.mark.parametrize("sigma", [0.4, 1.0, 6.3])
def test_gaussian(source, sigma: float) -> None:
    drawn = exact.gaussian(sigma, DRAWS, source)
    assert pvalue(drawn, lambda x: np.exp(-((x / sigma) ** 2) / 2)) > FALSE_ALARM
    assert pvalue(drawn, lambda x: np.exp(-((x / (0.9 * sigma)) ** 2) / 2)) < FALSE_ALARM
    assert stats.binomtest(sum(x > 0 for x in drawn), sum(x != 0 for x in drawn)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(7, 3)])
def test_coins_of_e_to_the_minus_x(exponent: Fraction) -> None:
    source = seeded(3)
    heads = sum(exact.bernoulli_exp(exponent, source) for _ in range(DRAWS))
    assert stats.binomtest(heads, DRAWS, math.exp(-exponent)).pvalue > FALSE_ALARM


def test_seeded_draws_repeat_and_secure_ones_do_not() -> None:
    assert exact.laplace(9.0, 50, seeded(4)) == exact.laplace(9.0, 50, seeded(4))
    assert exact.gaussian(99.0, 50, seeded(4)) == exact.gaussian(99.0, 50, seeded(4))
    assert exact.laplace(9.0, 50, secure()) != exact.laplace(9.0, 50, secure())


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**51])
def test_noise_that_cannot_be_drawn(scale: float) -> None:
    for draw in (exact.laplace, exact.gaussian):
        with pytest.raises(InputError, match="cannot be drawn"):
            draw(scale, 1, secure())
