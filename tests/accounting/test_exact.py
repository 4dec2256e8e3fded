"""Closed forms against 40-digit arithmetic, within the rounding error that they declare."""

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.accounting import exact


@given(st.floats(-3.5, 1.7), st.floats(-1.0, 1.7))
def test_gaussian(log_mu: float, log_scale: float) -> None:
    mu = 10**log_mu
    epsilon = mu * 10**log_scale * 0.2 + mu**2 / 2
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        truth = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    value, error = exact.gaussian(mu)(epsilon)
    assert abs(value - truth) <= error
    assert error <= 1e-8 * value + 1e-300


def binomial_delta(epsilon: float, epsilon0: float, count: int) -> mpmath.mpf:
    with mpmath.workdps(40):
        e0, e = mpmath.mpf(epsilon0), mpmath.mpf(epsilon)
        keep = 1 / (1 + mpmath.exp(-e0))
        start = max(0, int(mpmath.floor((e / e0 + count) / 2)) + 1)
        term = mpmath.binomial(count, start) * keep**start * (1 - keep) ** (count - start)
        total = mpmath.mpf(0)
        for k in range(start, min(count, start + 30 * int(math.sqrt(count)) + 5) + 1):
            total += term * (1 - mpmath.exp(e - (2 * k - count) * e0))
            term *= mpmath.mpf(count - k) / (k + 1) * keep / (1 - keep)
        return total


@pytest.mark.parametrize(
    ("epsilon0", "count", "epsilon"),
    [
        (0.01, 100_000, 19.4),
        (0.1, 1_000, 19.3),
        (1.0, 10, 9.99),
        (1e-3, 1_000_000, 3.0),
        (0.5, 50, 22.0),
        (2.0, 3, 0.0),
    ],
)
def test_randomized_response(epsilon0: float, count: int, epsilon: float) -> None:
    value, error = exact.randomized_response(epsilon0, count)(epsilon)
    assert abs(value - binomial_delta(epsilon, epsilon0, count)) <= error


@pytest.mark.parametrize(("epsilon0", "epsilon"), [(1.0, 0.3), (1.0, 1.7), (0.1, 0.15), (3.0, 5.9)])
def test_two_laplace_mechanisms_by_integration(epsilon0: float, epsilon: float) -> None:
    """delta = E[(1 - e^(epsilon - L1 - L2))_+], integrated over the first output."""
    with mpmath.workdps(25):
        e0, e = mpmath.mpf(epsilon0), mpmath.mpf(epsilon)

        def one(target: mpmath.mpf) -> mpmath.mpf:
            """E[(1 - e^(target - L))_+] for one step, by its density and atoms."""
            top = (1 - mpmath.exp(target - e0)) / 2 if target < e0 else mpmath.mpf(0)
            low = max(-e0, target)
            body = mpmath.mpf(0)
            if low < e0:
                body = mpmath.quad(
                    lambda s: (1 - mpmath.exp(target - s)) * mpmath.exp((s - e0) / 2) / 4, [low, e0]
                )
            bottom = (
                mpmath.exp(-e0) / 2 * (1 - mpmath.exp(target + e0)) if target < -e0 else mpmath.mpf(0)
            )
            return top + body + bottom

        kinks = sorted({-e0, e0, *[k for k in (e - e0, e + e0) if -e0 < k < e0]})
        truth = one(e - e0) / 2 + mpmath.exp(-e0) / 2 * one(e + e0)
        truth += mpmath.quad(lambda s: mpmath.exp((s - e0) / 2) / 4 * one(e - s), kinks)
    value, error = exact.laplace(epsilon0, 2)(epsilon)
    assert abs(value - truth) <= error


def test_one_laplace_mechanism() -> None:
    value, _ = exact.laplace(1.0, 1)(0.5)
    assert value == pytest.approx(-math.expm1(-0.25), rel=1e-13)
