"""The ends of the rates and what a claim allows, against exact sums and the trade-off curve."""

import math

import numpy as np
import pytest
from scipy import stats

from sourdine.accounting import curve
from sourdine.audit.regions import Allowed, ends, proven_epsilon
from sourdine.events import ApproximateEvent, Event, GaussianEvent, LaplaceEvent, PoissonEvent


@pytest.mark.parametrize("level", [2.5e-7, 1e-2, 0.2])
@pytest.mark.parametrize("count", [4, 100, 100_000])
def test_ends_cover(count: int, level: float) -> None:
    """P(end excludes p) is at most the level, by sums of the binomial; and not far below it."""
    k = np.unique(np.geomspace(1, count, 50).astype(int))
    k = np.unique(np.concatenate([[0], k, count - k]))
    upper, lower = ends(k, k, count, level)
    assert np.all(stats.binom.cdf(k, count, upper)[k < count] <= level)
    assert np.all(stats.binom.sf(k - 1, count, lower)[k > 0] <= level)
    assert np.all(stats.binom.cdf(k, count, upper)[k < count] > level * (1 - 1e-3))
    assert np.all(stats.binom.sf(k - 1, count, lower)[k > 0] > level * (1 - 1e-3))
    assert upper[-1] == 1.0 and lower[0] == 0.0
    assert np.all(lower < k / count + (k == 0)) and np.all(upper > k / count - (k == count))


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(1.0),
        LaplaceEvent(0.7),
        PoissonEvent(0.3, GaussianEvent(0.5)),
        ApproximateEvent(1.0, 0.01, "zero-out"),
    ],
    ids=str,
)
def test_what_is_allowed_is_the_tradeoff_curve(event: Event) -> None:
    """Never below the proven end of 1 - f, else an honest mechanism could be accused."""
    claimed = curve(event)
    allowed = Allowed(claimed, 10**5, getattr(event, "epsilon", math.inf))
    rates = np.array([1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0])
    for rate, rough in zip(rates, allowed.roughly(rates), strict=True):
        found, exact = allowed.at(rate), claimed.tradeoff(rate)
        assert 1 - exact.upper - 1e-9 <= found <= 1 - exact.lower + 1e-3
        assert found <= rough <= found + 0.03


def test_proven_epsilon() -> None:
    assert proven_epsilon(0.1, 0.5, 0.0) == pytest.approx(math.log(5))
    assert proven_epsilon(0.5, 0.9, 0.0) == pytest.approx(math.log(5))
    assert proven_epsilon(0.1, 0.5, 0.2) == pytest.approx(math.log(3))
    assert proven_epsilon(1.0, 0.0, 0.0) == proven_epsilon(0.1, 0.1, 0.5) == 0.0
