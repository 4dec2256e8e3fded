"""Dominating pairs: both laws add up, and the loss of every cell lies inside the cell."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import PAIRS

from sourdine.accounting import pairs
from sourdine.accounting.pairs import Normal, Reversed, Sampled, Spliced, Swapped, tails


@pytest.mark.parametrize("name", PAIRS)
def test_masses_add_up_and_losses_lie_in_their_cells(name: str) -> None:
    pair = PAIRS[name]
    edges = np.linspace(-3.0, 3.0, 4001) + 1e-5
    p, q = pair.masses(edges)
    assert (p >= 0).all() and (q >= 0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    inner = (p[1:-1] > 1e-200) & (q[1:-1] > 1e-200)
    loss = np.log(p[1:-1][inner] / q[1:-1][inner])
    assert (loss >= edges[:-1][inner] - 1e-12).all()
    assert (loss <= edges[1:][inner] + 1e-12).all()


@pytest.mark.parametrize("name", PAIRS)
def test_support_ends_where_it_says(name: str) -> None:
    pair = PAIRS[name]
    if math.isfinite(pair.high):
        above_p, above_q = tails(pair, pair.high + 1e-9)
        assert above_p == pytest.approx(pair.infinite, abs=1e-15)
        assert above_q == pytest.approx(0.0, abs=1e-15)
    if math.isfinite(pair.low):
        below_p = pair.masses(np.array([pair.low - 1e-9]))[0][0]
        assert below_p == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("name", PAIRS)
def test_reversing_twice_changes_nothing(name: str) -> None:
    edges = np.linspace(-2.0, 2.0, 101) + 1e-4
    for twice, once in zip(
        Reversed(Reversed(PAIRS[name])).masses(edges), PAIRS[name].masses(edges), strict=True
    ):
        assert twice == pytest.approx(once, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("rate", "mu", "loss"), [(0.01, 1.0, 0.3), (1e-4, 2.0, 2.0), (0.5, 0.3, -0.1)])
def test_sampled_tails_against_fifty_digits(rate: float, mu: float, loss: float) -> None:
    with mpmath.workdps(50):
        q, m = mpmath.mpf(rate), mpmath.mpf(mu)
        x = (
            mpmath.log((mpmath.e ** mpmath.mpf(loss) - 1 + q) / q) / m + m / 2
        )  # where the loss is `loss`
        above_q = 1 - mpmath.ncdf(x)
        above_p = (1 - q) * above_q + q * (1 - mpmath.ncdf(x - m))
    found = tails(Sampled(Normal(mu), rate), loss)
    assert found[0] == pytest.approx(float(above_p), rel=pairs.ROUNDING)
    assert found[1] == pytest.approx(float(above_q), rel=pairs.ROUNDING)


def test_sampling_everything_is_no_sampling() -> None:
    edges = np.linspace(-3.0, 3.0, 301)
    for sampled, plain in zip(
        Sampled(Normal(1.0), 1.0).masses(edges), Normal(1.0).masses(edges), strict=True
    ):
        assert sampled == pytest.approx(plain, rel=1e-11)


def test_swapped_inverts_its_own_loss() -> None:
    """At x, the loss is ln of the two mixtures' densities; the mass above it must be the mass above x."""
    mu, rate = 0.8, 0.07
    for x in (-2.0, -0.3, 0.4, 3.0, 9.0):
        up, down = (math.exp(sign * mu * x - mu**2 / 2) for sign in (1, -1))
        loss = math.log((1 - rate + rate * up) / (1 - rate + rate * down))
        above_p, _ = tails(Swapped(mu, rate), loss)
        expected = (1 - rate) * mpmath.ncdf(-x) + rate * mpmath.ncdf(mu - x)
        assert above_p == pytest.approx(float(expected), rel=1e-9)


@given(st.floats(0.05, 3.0), st.floats(0.01, 0.99), st.floats(-2.0, 2.0))
def test_spliced_follows_the_theorem_on_both_sides(mu: float, rate: float, epsilon: float) -> None:
    base = Normal(mu)
    halves = Sampled(base, rate) if epsilon >= 0 else Reversed(Sampled(Reversed(base), rate))
    found, expected = (
        p - math.exp(epsilon) * q
        for p, q in (tails(Spliced(base, rate), epsilon), tails(halves, epsilon))
    )
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.floats(0.01, 6.0), st.floats(0.0, 1.0))
def test_bounded_range_covers_every_offset(epsilon: float, share: float) -> None:
    """The profile is the supremum over pairs with losses t and t - epsilon, and some t attains it."""
    pair = pairs.bounded_range(epsilon)
    s = epsilon * (2 * share - 1) * 0.999
    p, q = tails(pair, s)
    value = p - math.exp(s) * q
    best = 0.0
    for t in [*np.linspace(0.0, epsilon, 50), (epsilon + s) / 2]:
        high = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
        low = 1 - high
        best = max(
            best, high * max(0.0, 1 - math.exp(s - t)) + low * max(0.0, 1 - math.exp(s - t + epsilon))
        )
    assert value == pytest.approx(best, rel=1e-9, abs=1e-14)
