"""How often a bound is false, by trying: at most at the rate it promises, under every rule.

Each count of 1,000 trials at 5% may exceed its mean by the binomial margin at FALSE_ALARM: a true bound
fails a test here with probability 1e-6. Twins with a mistake that people make fail by far. Seeds are
fixed.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats

from sourdine.accounting import curve
from sourdine.audit.bound import Counts
from sourdine.audit.one_run import GaussianOneRun, OneRun
from sourdine.audit.rates import Rates, credible_epsilon, gaussian_rates_epsilon, rates_epsilon
from sourdine.audit.rules import Bonferroni, Fixed, Rule, Split, lower_bound
from sourdine.events import GaussianEvent

FALSE_ALARM = 1e-6
TRIALS = 1000
ALPHA = 0.05
MOST = int(stats.binom.isf(FALSE_ALARM, TRIALS, ALPHA))  # 86
CANARIES = 300
DELTA = 1e-5
SIGMA = 3.730631634815935  # epsilon 1 at 1e-5
Mechanism = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def nothing(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    return noise.standard_normal(len(coins))


def constant(coins: np.ndarray, _: np.random.Generator) -> np.ndarray:
    return np.zeros(len(coins))


def coarse(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    return noise.integers(0, 3, len(coins)).astype(float)


def laplace(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    return coins + noise.laplace(0, 1, len(coins))


def gaussian(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    return coins + SIGMA * noise.standard_normal(len(coins))


def response(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    """Tells the truth with the odds e : 1; what epsilon 1 allows at most."""
    return (coins == (noise.random(len(coins)) < 1 / (1 + np.exp(-1)))).astype(float)


def published(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    """Each canary is published with probability 0.05, else nothing: (0, 0.05)-DP."""
    return np.where(noise.random(len(coins)) < 0.05, 2.0 * coins - 1, 0.0)


def trials(mechanism: Mechanism, first: bool = False) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores and coins of TRIALS audits; with members at the front where `first`."""
    noise = np.random.default_rng(20262)
    for _ in range(TRIALS):
        coins = noise.random(CANARIES) < 0.5
        coins = np.sort(coins)[::-1] if first else coins
        yield mechanism(coins, noise), coins


def alarms(
    mechanism: Mechanism,
    epsilon: float,
    rule: Rule,
    bounds: tuple = (OneRun(),),
    delta: float = DELTA,
    first: bool = False,
) -> int:
    found = (
        lower_bound(scores, coins, delta=delta, rule=rule, bounds=bounds)
        for scores, coins in trials(mechanism, first)
    )
    return sum(bound.epsilon > epsilon for bound in found)


RULES = {
    "fixed": Fixed(30, 30),
    "fixed, few": Fixed(10),
    "all": Fixed(CANARIES // 2, CANARIES // 2),
    "bonferroni": Bonferroni(),
    "split": Split(),
}
METHODS = {
    "one run": (OneRun(),),
    "Gaussian": (GaussianOneRun(),),
    "both": (OneRun(), GaussianOneRun()),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", METHODS)
def test_epsilon_zero(rule: str, method: str) -> None:
    assert alarms(nothing, 0.0, RULES[rule], METHODS[method]) <= MOST


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mechanism", [constant, coarse])
def test_ties_tell_nothing_though_members_come_first(rule: str, mechanism: Mechanism) -> None:
    assert alarms(mechanism, 0.0, RULES[rule], delta=0.0, first=True) <= MOST


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mechanism", [laplace, response])
def test_pure_epsilon_one(rule: str, mechanism: Mechanism) -> None:
    assert alarms(mechanism, 1.0, RULES[rule], delta=0.0) <= MOST


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", ["one run", "Gaussian"])
def test_gaussian_epsilon_one(rule: str, method: str) -> None:
    assert alarms(gaussian, 1.0, RULES[rule], METHODS[method]) <= MOST


@pytest.mark.parametrize("rule", RULES)
def test_one_in_twenty_published(rule: str) -> None:
    assert alarms(published, 0.0, RULES[rule], delta=0.05) <= MOST


def test_the_promised_rate_is_used() -> None:
    """A bound that is never false would pass all of the above: this one is false as often as it may be,
    but for the steps of a binomial (100 guesses: 4.4%)."""
    assert alarms(response, 1.0, Fixed(50, 50), delta=0.0) > 0.02 * TRIALS


# Twins: mistakes that the tests above would catch.


def test_the_best_threshold_without_correction_is_caught() -> None:
    """Over all k_in and k_out. Seen: 573 of 1,000 at a nominal 5%."""
    ks = np.arange(CANARIES // 2 + 1)
    guesses = ks[:, None] + ks
    needed = stats.binom.isf(ALPHA, guesses, 0.5) + 1  # refutes epsilon 0 at delta 0
    false = 0
    for scores, coins in trials(nothing):
        ranked = coins[np.argsort(-scores)]
        right_in = np.append(0, np.cumsum(ranked))[ks]
        right_out = np.append(0, np.cumsum(~ranked[::-1]))[ks]
        false += bool((right_in[:, None] + right_out >= needed).any())
    assert false > 4 * MOST


def test_ties_in_the_order_of_the_input_are_caught() -> None:
    false = 0
    for scores, coins in trials(constant, first=True):
        right = int(coins[np.argsort(-scores, kind="stable")][:30].sum())
        false += OneRun().epsilon(Counts(CANARIES, 30, right), 0.0, ALPHA) > 0
    assert false == TRIALS


def test_a_split_that_guesses_what_it_chose_on_is_caught() -> None:
    """Chooses among all k on all canaries, then counts them all."""
    ks = np.arange(1, CANARIES // 2 + 1)
    false = 0
    for scores, coins in trials(nothing):
        right = np.cumsum(coins[np.argsort(-scores)])[: len(ks)]
        best = int(np.argmax((right - ks / 2) / np.sqrt(ks)))
        false += OneRun().epsilon(Counts(CANARIES, best + 1, int(right[best])), 0.0, ALPHA) > 0
    assert false > 2 * MOST


def test_delta_left_out_is_caught() -> None:
    assert alarms(published, 0.0, Fixed(6), delta=0.0) > 5 * MOST


def test_too_much_confidence_in_a_mechanism_is_caught() -> None:
    """Randomized response of epsilon 1 that claims 0.7."""
    assert alarms(response, 0.7, RULES["all"], delta=0.0) > 5 * MOST


def test_gaussian_beyond_its_condition_is_caught() -> None:
    """Laplace noise is no Gaussian noise: its epsilon at 1e-5 is 1, and more is said of it."""
    assert alarms(laplace, 1.0, Fixed(100, 100), (GaussianOneRun(),)) > MOST


# Many runs.


def error_rates(fpr: float, tpr: float, runs: int) -> Iterator[Rates]:
    noise = np.random.default_rng(20263)
    for _ in range(TRIALS):
        yield Rates(int(noise.binomial(runs, tpr)), runs, int(noise.binomial(runs, fpr)), runs)


def false_rates(
    method: Callable[..., object], pairs: Iterator[Rates], true: float, delta: float
) -> int:
    return sum(method(rates, delta).epsilon > true for rates in pairs)


@pytest.mark.parametrize("runs", [20, 1000])
def test_many_runs_at_epsilon_zero(runs: int) -> None:
    for rate in (0.02, 0.3, 0.5):
        for method in (rates_epsilon, gaussian_rates_epsilon):
            assert false_rates(method, error_rates(rate, rate, runs), 0.0, DELTA) <= MOST


def test_many_runs_at_epsilon_one() -> None:
    """Randomized response and a Gaussian mechanism, with the tests that attain their curves."""
    honest = 1 / (1 + np.exp(-1))
    for runs in (50, 1000):
        rates = error_rates(1 - honest, honest, runs)
        assert false_rates(rates_epsilon, rates, 1.0, 0.0) <= MOST
    true = curve(GaussianEvent(SIGMA)).epsilon(DELTA).upper
    for threshold in (0.0, 2 * SIGMA):
        fpr, tpr = stats.norm.sf(threshold, 0, SIGMA), stats.norm.sf(threshold, 1, SIGMA)
        for method in (rates_epsilon, gaussian_rates_epsilon):
            assert false_rates(method, error_rates(fpr, tpr, 1000), true, DELTA) <= MOST


def test_plain_rates_without_ends_are_caught() -> None:
    def plain(rates: Rates) -> float:
        return rates.true_positives / max(rates.false_positives, 1)

    assert sum(plain(rates) > 1 for rates in error_rates(0.3, 0.3, 1000)) > 5 * MOST


def test_a_credible_interval_promises_no_rate() -> None:
    """Its prior gives epsilon 0 no mass, so that it is false there always; the result says Bayesian."""
    few = (rates for rates, _ in zip(error_rates(0.3, 0.3, 100), range(5), strict=False))
    assert false_rates(credible_epsilon, few, 0.0, 0.0) == 5


# Power: 10,000 canaries, the default rule. The shares are medians of 15 audits.


@pytest.mark.parametrize(
    ("mechanism", "bounds", "share"),
    [
        (laplace, METHODS["one run"], 0.75),
        (gaussian, METHODS["one run"], 0.40),
        (gaussian, METHODS["Gaussian"], 0.50),
    ],
)
def test_most_of_epsilon_is_found(mechanism: Mechanism, bounds: tuple, share: float) -> None:
    noise = np.random.default_rng(20264)
    found = []
    for _ in range(15):
        coins = noise.random(10_000) < 0.5
        bound = lower_bound(mechanism(coins, noise), coins, delta=DELTA, bounds=bounds)
        found.append(bound.epsilon)
    assert share < np.median(found) and max(found) < 1.0
