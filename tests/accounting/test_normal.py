"""Interval masses keep full relative accuracy where a plain difference would lose it."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.accounting.normal import mass
from sourdine.accounting.pairs import ROUNDING


def exact(lower: float, upper: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        low, high = mpmath.mpf(lower), mpmath.mpf(upper)
        if low > 0:
            low, high = -high, -low
        return mpmath.ncdf(high) - mpmath.ncdf(low)


@given(st.floats(-14, 14), st.floats(-9, 1.3))
def test_relative_error_is_below_the_bound_the_proof_uses(start: float, log_width: float) -> None:
    end = start + 10**log_width
    truth = exact(start, end)
    found = mass(np.array([start]), np.array([end]))[0]
    assert abs(found - truth) <= ROUNDING * truth


def test_infinite_ends() -> None:
    lower = np.array([-np.inf, 0.0, -np.inf, 3.0])
    upper = np.array([0.0, np.inf, np.inf, 3.0])
    assert mass(lower, upper) == pytest.approx([0.5, 0.5, 1.0, 0.0], abs=1e-15)


def test_a_plain_difference_would_fail() -> None:
    """The reason for this file: far out, the difference of two ndtr is off by far more than ROUNDING."""
    from scipy.special import ndtr

    truth = exact(2.0, 2.0 + 1e-9)
    plain = ndtr(2.0 + 1e-9) - ndtr(2.0)
    assert abs(plain - truth) > 1e6 * ROUNDING * truth
