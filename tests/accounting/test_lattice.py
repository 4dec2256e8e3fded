"""The two roundings err on the sides that they claim, for every pair and for coarse and fine grids.

The check is an attack: the optimal test at every epsilon. A lattice that fell below the pair anywhere (or, for
`below`, rose above it) would let an accountant claim less than the mechanism gives away.
"""

import numpy as np
import pytest
from plans import PAIRS

from sourdine.accounting import lattice
from sourdine.accounting.lattice import Lattice
from sourdine.accounting.pairs import Pair, tails

GRIDS = (0.3, 0.01, 3e-4)
EPSILONS = np.concatenate((np.linspace(-2.5, 2.5, 41), [1e-5, 1e-4, 1e-3, -1e-4, 0.7999, 3.7]))


def hockey(found: Lattice, h: float, epsilon: float) -> float:
    losses = found.losses(h)
    return found.infinite + float(np.sum(found.p * np.maximum(0.0, -np.expm1(epsilon - losses))))


def truth(pair: Pair, epsilon: float) -> float:
    p, q = tails(pair, epsilon)
    return float(p - np.exp(epsilon) * q)


@pytest.mark.parametrize("h", GRIDS)
@pytest.mark.parametrize("name", PAIRS)
def test_above_dominates(name: str, h: float) -> None:
    found = lattice.above(PAIRS[name], h, -40.0, 40.0)
    assert found.p.sum() + found.infinite == pytest.approx(1.0, abs=1e-12)
    for epsilon in EPSILONS:
        assert hockey(found, h, epsilon) >= truth(PAIRS[name], epsilon) - 1e-13


@pytest.mark.parametrize("h", GRIDS)
@pytest.mark.parametrize("name", PAIRS)
def test_below_is_dominated(name: str, h: float) -> None:
    found = lattice.below(PAIRS[name], h, -40.0, 40.0)
    for epsilon in EPSILONS:
        assert hockey(found, h, epsilon) <= truth(PAIRS[name], epsilon) + 1e-12


@pytest.mark.parametrize("name", PAIRS)
def test_cutting_the_support_keeps_the_side(name: str) -> None:
    pair, h = PAIRS[name], 1e-3
    above, below = lattice.above(pair, h, -0.5, 0.6), lattice.below(pair, h, -0.5, 0.6)
    for epsilon in EPSILONS:
        assert hockey(above, h, epsilon) >= truth(pair, epsilon) - 1e-13
        assert hockey(below, h, epsilon) <= truth(pair, epsilon) + 1e-12


@pytest.mark.parametrize("name", ["normal", "sampled", "swapped", "laplace", "spliced", "sampled-back"])
def test_both_close_in_with_the_square_of_the_grid(name: str) -> None:
    pair = PAIRS[name]

    def gap(h: float) -> float:
        above, below = lattice.above(pair, h, -40.0, 40.0), lattice.below(pair, h, -40.0, 40.0)
        return max(hockey(above, h, e) - hockey(below, h, e) for e in EPSILONS)

    assert gap(1e-3) < 0.04 * gap(1e-2) + 1e-9


def test_a_lattice_that_rounds_to_the_nearest_point_is_caught() -> None:
    """The twin of test_above_dominates: plain rounding falls below the pair."""
    pair, h = PAIRS["normal"], 0.3
    edges = h * (np.arange(-40, 42) - 0.5)
    nearest = Lattice(0.0, -40, pair.masses(edges)[0][1:-1], 0.0)
    assert any(hockey(nearest, h, e) < truth(pair, e) - 1e-13 for e in EPSILONS)
