"""A random number of trials: K has its law, the best is kept, and what is kept has the law it costs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from sourdine.accounting import curve
from sourdine.errors import InputError
from sourdine.events import RandomizedResponseEvent, SelectionEvent, expected_trials
from sourdine.mechanisms.selection import RandomTrials, choose
from sourdine.rng import Source, secure, seeded

FALSE_ALARM = 1e-6
DRAWS = 15_000
LAWS = [(1.0, 0.1), (0.0, 0.05), (-0.5, 0.02), (0.3, 0.3), (20.0, 0.7)]


class Fixed(Source):
    """A source that draws what the test says."""

    def __init__(self, number: int) -> None:
        super().__init__(bytes(32), "seeded")
        self._number = number

    def below(self, bound: int) -> int:
        assert 0 <= self._number < bound
        return self._number


def masses(eta: float, gamma: float, most: int) -> np.ndarray:
    """P(K = k) for k = 1, ..., most, from the recursion, normalised by its sum."""
    ratios = [(1 - gamma) * (k + eta) / (k + 1) for k in range(1, most)]
    weights = np.cumprod([1.0, *ratios])
    return weights / weights.sum()


def pvalue(drawn: list[int], p: np.ndarray) -> float:
    """Chi-square with bins of at least 20 expected draws."""
    counts = np.bincount(drawn, minlength=len(p) + 1)[1:]
    expected, observed = [0.0], [0]
    for mass, count in zip(p, counts, strict=False):
        if expected[-1] >= 20:
            expected.append(0.0)
            observed.append(0)
        expected[-1] += mass * len(drawn)
        observed[-1] += int(count)
    scaled = np.array(expected) * sum(observed) / sum(expected)
    return float(stats.chisquare(observed, scaled).pvalue)


@pytest.mark.parametrize(("eta", "gamma"), LAWS)
def test_the_number_of_trials_has_its_law(eta: float, gamma: float) -> None:
    source = seeded(1)
    trials = RandomTrials(eta, gamma)
    drawn = [trials.number(source) for _ in range(DRAWS)]
    law = masses(eta, gamma, 4000)
    assert pvalue(drawn, law) > FALSE_ALARM
    assert pvalue(drawn, masses(1.2 * eta + 0.3, gamma, 4000)) < FALSE_ALARM
    mean = float(law @ np.arange(1, 4001))
    assert trials.expected == pytest.approx(mean, rel=1e-9)
    below = np.cumsum(law)
    for confidence in (0.05, 0.5, 0.95, 0.999):
        assert trials.most(confidence) == 1 + int(np.searchsorted(below, confidence))


def test_secure_sources_serve_too() -> None:
    drawn = [RandomTrials(1.0, 0.1).number(secure()) for _ in range(3000)]
    assert pvalue(drawn, masses(1.0, 0.1, 400)) > FALSE_ALARM


@pytest.mark.parametrize("gamma", [0.5, 0.25, 2.0**-10])
def test_the_law_is_exact_to_the_last_bits(gamma: float) -> None:
    """P(K <= k) = 1 - (1 - gamma)^k for eta 1: K changes there, to within 8 of 2^256 steps."""
    trials = RandomTrials(1.0, gamma)
    for k in (1, 2, 7):
        edge = math.floor((1 - (1 - Fraction(gamma)) ** k) * 2**256)
        assert trials.number(Fixed(edge - 8)) == k
        assert trials.number(Fixed(edge + 8)) == k + 1


@pytest.mark.parametrize(
    ("eta", "gamma"),
    [(1.0, 0.1), (0.0, 1 - 2.0**-53), (1e-300, 0.3), (500.0, 0.1), (-1 + 1e-12, 0.1), (0.0, 1e-3)],
)
def test_the_largest_draw_ends(eta: float, gamma: float) -> None:
    trials = RandomTrials(eta, gamma)
    assert trials.number(Fixed(0)) >= 1
    assert trials.most(0.99) <= trials.number(Fixed(2**256 - 1)) < 10**6


def test_gamma_near_one_is_one_trial() -> None:
    assert {RandomTrials(0.0, 1 - 2.0**-53).number(seeded(n)) for n in range(50)} == {1}


def test_the_best_is_kept_and_the_first_of_equals() -> None:
    trials = RandomTrials(1.0, 0.05)
    for seed in range(30):
        seen: list[tuple[int, float]] = []

        def trial(number: int, seen: list[tuple[int, float]] = seen) -> tuple[tuple[int, float], float]:
            seen.append((number, float((number * 7) % 5)))
            return seen[-1], seen[-1][1]

        best = trials.release(trial, seeded(seed))
        assert len(seen) == trials.number(seeded(seed))
        assert [number for number, _ in seen] == list(range(len(seen)))
        highest = max(score for _, score in seen)
        assert best == next(one for one in seen if one[1] == highest)


def test_a_score_that_is_no_number_loses() -> None:
    trials = RandomTrials(20.0, 0.5)
    scores = [math.nan, -5.0, math.nan, -7.0]
    assert trials.release(lambda n: (n, scores[n % 4]), seeded(1)) == 1
    assert trials.release(lambda n: (n, math.nan), seeded(1)) == 0


def test_what_is_released_keeps_its_cost() -> None:
    """A bit by randomized response, scored by itself: the optimal test on draws, in both directions.

    The twin: the same draws against the cost of one trial.
    """
    event = RandomizedResponseEvent(0.6)
    trials = RandomTrials(1.0, 0.3)
    shown = []
    for bit in (1, 0):
        source, noise = seeded(10 + bit), seeded(20 + bit)

        def trial(_: int, bit: int = bit, noise: Source = noise) -> tuple[int, float]:
            answer = noise.below(2) if noise.bernoulli(Fraction(event.flip)) else bit
            return answer, -float(answer)  # a zero is rare under 1, and wins

        shown.append([trials.release(trial, source) for _ in range(DRAWS)])
    spread = math.sqrt(math.log(4 / FALSE_ALARM) / (2 * DRAWS))  # Hoeffding, both samples
    p, q = (float(np.mean(draws)) for draws in shown)
    found = curve(trials.event(event), "replace-one")
    proven = []
    for epsilon in (0.0, 0.2, 0.5, 0.85, 1.2, 2.0):
        slack = spread * (1 + math.exp(epsilon))
        lower = max(p - math.exp(epsilon) * q, (1 - q) - math.exp(epsilon) * (1 - p)) - slack
        assert lower <= found.delta(epsilon).upper
        proven.append(lower > curve(event, "replace-one").delta(epsilon).upper)
    assert any(proven)


def test_the_event() -> None:
    trial = RandomizedResponseEvent(0.6)
    assert RandomTrials(1, 0.1).event(trial) == SelectionEvent(trial, 1.0, 0.1)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1e-9, 1.0, 30.0])
@pytest.mark.parametrize("expected", [1.001, 3.0, 10.0, 1000.0])
def test_choosing_gamma(eta: float, expected: float) -> None:
    assert expected_trials(eta, choose(expected, eta)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "build",
    [
        lambda: RandomTrials(-1.0, 0.1),
        lambda: RandomTrials(1.0, 1.0),
        lambda: RandomTrials(1.0, 1e-9),
        lambda: RandomTrials(1.0, 0.1).most(1.0),
        lambda: choose(1.0, 0.0),
        lambda: choose(0.5, 0.0),
        lambda: choose(1e20, 0.0),
    ],
)
def test_impossible_trials_are_refused(build: object) -> None:
    with pytest.raises(InputError):
        build()  # type: ignore[operator]
