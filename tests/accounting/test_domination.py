"""Attacks on the claims that a pair is the worst one, each with a twin that shows the attack can win."""

import math

import numpy as np
import pytest
from scipy import stats

from sourdine.accounting import curve
from sourdine.accounting.pairs import Normal, Sampled, Swapped, tails
from sourdine.events import FixedSizeEvent, GaussianEvent

X = np.linspace(-12.0, 12.0, 60_001)


def quadrature_error(epsilon: float) -> float:
    """The sum misses each kink of (p - e^epsilon q)_+ by at most slope * cell^2 / 8.

    A normal density has slope at most 0.242; two normal parts against two cross at most four times.
    """
    return 4 * 0.242 * (1 + math.exp(epsilon)) * float(X[1] - X[0]) ** 2 / 8


def hockey(p: np.ndarray, q: np.ndarray, cell: float, epsilon: float) -> float:
    return float(np.maximum(0.0, p - math.exp(epsilon) * q).sum() * cell)


def fixed_size_lots(other: float, record: float, mu: float, rate: float, epsilon: float) -> float:
    """One fixed-size lot under zero-out; without the record, another contribution takes its place."""
    without = (1 - rate) * stats.norm.pdf(X - mu * other)
    p, q = (without + rate * stats.norm.pdf(X - mu * place) for place in (record, 0.0))
    cell = X[1] - X[0]
    return max(hockey(p, q, cell, epsilon), hockey(q, p, cell, epsilon))


CASES = [(1.0, 0.1), (0.5, 0.5), (2.0, 0.02), (1.5, 0.9)]
PLACES = [(other, record) for other in np.linspace(-1, 1, 9) for record in (-1.0, -0.5, 1.0)]


@pytest.mark.parametrize(("mu", "rate"), CASES)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7, 2.0])
def test_fixed_size_lots_under_zero_out(mu: float, rate: float, epsilon: float) -> None:
    event = FixedSizeEvent(1000, round(1000 * rate), GaussianEvent(1 / mu))
    claimed = curve(event, "zero-out").delta(epsilon)
    strongest = max(fixed_size_lots(*place, mu, rate, epsilon) for place in PLACES)
    assert strongest <= claimed.upper + quadrature_error(epsilon)
    assert claimed.lower <= strongest + quadrature_error(epsilon)


def test_the_poisson_pair_would_be_too_small_for_fixed_size_lots() -> None:
    """The twin: another record in the freed place beats what Poisson lots of the same rate give away."""
    p, q = tails(Sampled(Normal(1.5), 0.9), 0.7)
    strongest = max(fixed_size_lots(*place, 1.5, 0.9, 0.7) for place in PLACES)
    assert strongest > p - math.exp(0.7) * q + 1e-3


def two_records(angle: float, length: float, mu: float, rate: float, epsilon: float) -> float:
    """A Poisson lot under replace-one, where the two records point in any two directions of a plane."""
    side = np.linspace(-9.0, 9.0, 601)
    x, y = np.meshgrid(side, side)

    def law(u: float, v: float) -> np.ndarray:
        away = np.exp(-((x - u) ** 2 + (y - v) ** 2) / 2)
        return ((1 - rate) * np.exp(-(x**2 + y**2) / 2) + rate * away) / (2 * math.pi)

    q = law(mu * length * math.cos(angle), mu * length * math.sin(angle))
    return hockey(law(mu, 0.0), q, (side[1] - side[0]) ** 2, epsilon)


@pytest.mark.parametrize(
    ("mu", "rate", "epsilon"), [(1.0, 0.1, 0.0), (1.0, 0.1, 0.4), (2.0, 0.05, 1.0), (0.7, 0.6, 0.3)]
)
def test_opposite_records_are_the_worst_pair(mu: float, rate: float, epsilon: float) -> None:
    p, q = tails(Swapped(mu, rate), epsilon)
    claimed = p - math.exp(epsilon) * q
    for angle in np.linspace(0.0, math.pi, 7):
        for length in (0.0, 0.5, 1.0):
            assert two_records(angle, length, mu, rate, epsilon) <= claimed + 2e-6
    assert two_records(math.pi, 1.0, mu, rate, epsilon) == pytest.approx(claimed, abs=1e-5)


def test_a_pair_at_right_angles_would_be_too_small() -> None:
    """The twin: an accountant that took orthogonal records for the worst case would be caught."""
    p, q = tails(Swapped(1.0, 0.1), 0.4)
    assert two_records(math.pi / 2, 1.0, 1.0, 0.1, 0.4) < p - math.exp(0.4) * q - 1e-3
