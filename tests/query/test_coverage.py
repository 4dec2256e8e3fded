"""Confidence intervals cover at their nominal rate over 2,000 repetitions.

Seeded, so that a red build can be repeated; a right interval fails with probability below 1e-6.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from sourdine.budget import Budget
from sourdine.ledger import Ledger
from sourdine.mechanisms import Gaussian, Laplace, RandomizedResponse
from sourdine.query import Answer, Session
from sourdine.query.answers import ratio_interval
from sourdine.rng import seeded

pytestmark = pytest.mark.usefixtures("any_epsilon")

REPETITIONS, FALSE_ALARM = 2_000, 1e-6
N = 300
AGE = [20 + (row * row) % 50 for row in range(N)]
CITY = ["Paris" if row % 3 == 0 else "Rome" for row in range(N)]
PARIS = [age for age, city in zip(AGE, CITY, strict=True) if city == "Paris"]


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of answers, without writing down each charge: these tests are about intervals alone."""
    monkeypatch.setattr(Ledger, "charge", lambda *_, **__: None)


def covers(hits: int, confidence: float, most: float) -> bool:
    """At least the nominal rate, and not above `most`, within what chance allows."""
    least = stats.binom.ppf(FALSE_ALARM, REPETITIONS, confidence)
    return bool(least <= hits <= stats.binom.ppf(1 - FALSE_ALARM, REPETITIONS, most))


QUESTIONS: dict[str, tuple[Callable[[Session], Answer], float]] = {
    "count": (lambda s: s.count(epsilon=0.5, where="city == Paris"), len(PARIS)),
    "sum": (lambda s: s.sum("age", low=0, high=80, epsilon=0.5), sum(AGE)),
    "mean, n public": (lambda s: s.mean("age", low=0, high=80, epsilon=0.5), float(np.mean(AGE))),
    "mean, n private": (
        lambda s: s.mean("age", low=0, high=80, epsilon=0.5, where="city == Paris"),
        float(np.mean(PARIS)),
    ),
}


@pytest.mark.parametrize("confidence", [0.95, 0.8])
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name: str, confidence: float) -> None:
    ask, truth = QUESTIONS[name]
    data = {"age": AGE, "city": CITY}
    asked = Session(data, Budget(1e6), source=seeded(3), confidence=confidence)
    answers = [ask(asked) for _ in range(REPETITIONS)]
    hits = sum(answer.low <= truth <= answer.high for answer in answers)
    # Whole counts cannot hit a rate exactly: at most 3% of the mass lies at the rim.
    assert covers(hits, confidence, confidence + 0.03), hits / REPETITIONS


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.4])
def test_surveys(gamma: float) -> None:
    response, source = RandomizedResponse.of_gamma(gamma), seeded(4)
    truths = ["yes"] * 60 + ["no"] * 140
    shares = [
        response.estimate([response.release(truth, source) for truth in truths])["yes"]
        for _ in range(REPETITIONS)
    ]
    hits = sum(share.low <= 0.3 <= share.high for share in shares)
    assert covers(hits, 0.95, 0.98), hits / REPETITIONS
    mean = np.mean([share.value for share in shares])
    error = np.std([share.value for share in shares]) / np.sqrt(REPETITIONS)
    assert abs(mean - 0.3) < 5 * error  # unbiased


def test_surveys_with_four_choices() -> None:
    response, source = RandomizedResponse.of_epsilon(1.5, "abcd"), seeded(5)
    truths = ["a"] * 80 + ["b"] * 60 + ["c"] * 60
    shares = [
        response.estimate([response.release(truth, source) for truth in truths])
        for _ in range(REPETITIONS)
    ]
    for choice, truth in zip("abcd", (0.4, 0.3, 0.3, 0.0), strict=True):
        hits = sum(share[choice].low <= truth <= share[choice].high for share in shares)
        assert covers(hits, 0.95, 0.985), (choice, hits / REPETITIONS)


@pytest.mark.parametrize("mechanism", [Laplace(0.7), Laplace(3.0, 2.0), Gaussian(2.0), Gaussian(0.3)])
def test_single_numbers(mechanism: Laplace | Gaussian) -> None:
    source, width = seeded(6), mechanism.half_width(0.9)
    hits = sum(abs(mechanism.release(1.23, source) - 1.23) <= width for _ in range(REPETITIONS))
    assert covers(hits, 0.9, 0.93), hits / REPETITIONS


def test_a_tenth_too_narrow_is_noticed() -> None:
    mechanism, source = Laplace(0.7), seeded(7)
    width = 0.9 * mechanism.half_width(0.9)
    hits = sum(abs(mechanism.release(1.23, source) - 1.23) <= width for _ in range(REPETITIONS))
    assert hits / REPETITIONS < 0.885


def test_quantile_intervals_are_never_below_their_confidence() -> None:
    asked = Session({"age": AGE}, Budget(1e6), source=seeded(8), confidence=0.8)
    answers = [asked.quantile("age", 0.5, low=0, high=100, epsilon=2.0, steps=100) for _ in range(300)]
    values = np.sort(AGE)
    middle = float(values[N // 2 - 1]), float(values[N // 2])
    hits = sum(answer.low <= middle[1] and answer.high >= middle[0] for answer in answers)
    assert hits >= stats.binom.ppf(FALSE_ALARM, 300, 0.8)


def test_variance_intervals_are_never_below_their_confidence() -> None:
    asked = Session({"age": AGE}, Budget(1e6), source=seeded(9), confidence=0.8)
    answers = [asked.variance("age", low=0, high=80, epsilon=1.0) for _ in range(500)]
    hits = sum(answer.low <= np.var(AGE) <= answer.high for answer in answers)
    assert hits >= stats.binom.ppf(FALSE_ALARM, 500, 0.8)


def test_a_count_lost_in_noise_says_nothing() -> None:
    assert ratio_interval(3.0, -1.0, (10.0, 10.0), (0.1, 1.0), 0.05) == (-1.0, 1.0)
    low, high = ratio_interval(3.0, 2.0, (10.0, 10.0), (0.1, 1.0), 0.05)
    assert (low, high) == (-1.0, 1.0)
