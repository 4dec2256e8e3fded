"""The transform's bounds hold: against direct convolution, at every tilt, and with narrow windows."""

import math

import numpy as np
import pytest
from plans import PAIRS

from sourdine.accounting import lattice
from sourdine.accounting.convolution import Total, Window, total

H = 0.05


def direct(found: lattice.Lattice, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses and masses of the sum, by plain convolution (all terms positive, so relatively exact)."""
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, found.p)
    losses = count * found.origin + H * (count * found.first + np.arange(len(law)))
    return losses, law, -math.expm1(count * math.log1p(-found.infinite))


def hockey(losses: np.ndarray, law: np.ndarray, infinite: float, epsilon: float) -> float:
    return infinite + float(np.sum(law * np.maximum(0.0, -np.expm1(epsilon - losses))))


def composed(
    name: str, count: int, tilt: float, points: int, start: float | None = None
) -> tuple[Total, lattice.Lattice]:
    found = lattice.above(PAIRS[name], H, -6.0, 6.0)
    lowest = count * (found.origin + H * found.first)
    window = Window(H, lowest if start is None else start, points, tilt, up=1.0, down=1.0)
    return total([(found, count)], window), found


@pytest.mark.parametrize("tilt", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(
    "name", ["normal", "sampled", "laplace", "approximate", "response-5", "swapped"]
)
def test_bounds_enclose_direct_convolution(name: str, tilt: float) -> None:
    result, found = composed(name, 12, tilt, 4096)
    losses, law, infinite = direct(found, 12)
    for epsilon in np.linspace(0.0, 5.0, 26):
        exact = hockey(losses, law, infinite, epsilon)
        assert result.lower(epsilon) <= exact * (1 + 1e-12)
        assert result.upper(epsilon) >= exact * (1 - 1e-12)


def test_tilting_reaches_tiny_delta() -> None:
    """At 1e-30 an untilted transform knows nothing; the tilted one knows six digits."""
    found = lattice.above(PAIRS["normal"], H, -20.0, 20.0)
    lowest = 12 * (found.origin + H * found.first)
    tilted, plain = (total([(found, 12)], Window(H, lowest, 16384, t, 1.0, 1.0)) for t in (5.0, 0.0))
    losses, law, infinite = direct(found, 12)
    epsilon = float(losses[np.cumsum(law[::-1])[::-1] < 1e-30][0])
    exact = hockey(losses, law, infinite, epsilon)
    assert exact < 1e-30
    assert tilted.upper(epsilon) == pytest.approx(exact, rel=1e-6)
    assert tilted.lower(epsilon) == pytest.approx(exact, rel=1e-6)
    assert plain.upper(epsilon) > 1e3 * exact


@pytest.mark.parametrize("points", [64, 128, 256])
def test_a_window_too_narrow_widens_the_interval_but_keeps_it_true(points: int) -> None:
    result, found = composed("normal", 12, 0.5, points, start=-1.0)
    losses, law, infinite = direct(found, 12)
    for epsilon in np.linspace(0.0, 3.0, 13):
        exact = hockey(losses, law, infinite, epsilon)
        assert result.lower(epsilon) <= exact * (1 + 1e-12)
        assert result.upper(epsilon) >= exact * (1 - 1e-12)


def test_below_the_window_nothing_is_claimed() -> None:
    result, _ = composed("normal", 12, 2.0, 128, start=3.0)
    assert result.upper(1.0) == 1.0


def test_two_parts_compose_like_their_convolution() -> None:
    first, second = (lattice.above(PAIRS[name], H, -6.0, 6.0) for name in ("sampled", "laplace"))
    lowest = 5 * (first.origin + H * first.first) + 3 * (second.origin + H * second.first)
    result = total([(first, 5), (second, 3)], Window(H, lowest, 4096, 0.7, 1.0, 1.0))
    losses_1, law_1, _ = direct(first, 5)
    losses_2, law_2, _ = direct(second, 3)
    law = np.convolve(law_1, law_2)
    losses = losses_1[0] + losses_2[0] + H * np.arange(len(law))
    for epsilon in (0.0, 0.4, 1.5, 2.3):
        exact = hockey(losses, law, 0.0, epsilon)
        assert result.lower(epsilon) <= exact * (1 + 1e-12)
        assert result.upper(epsilon) >= exact * (1 - 1e-12)
        assert result.upper(epsilon) - result.lower(epsilon) <= 1e-9


@pytest.mark.parametrize("size", [1 << 12, 3 << 11, 1 << 16, 3 << 15])
def test_transform_error_is_within_the_butterfly_bound(size: int) -> None:
    """Against a transform in extended precision, on laws from smooth to spiked."""
    from scipy import fft

    from sourdine.accounting import convolution

    rng = np.random.default_rng(7)
    bound = convolution._BUTTERFLY * (np.log2(size) + 2)
    for sharpness in (1.0, 30.0):
        law = rng.random(size) ** sharpness
        law /= law.sum()
        precise = fft.rfft(law.astype(np.longdouble))
        assert np.abs(fft.rfft(law) - precise).max() <= bound
