"""Laws that every accountant must obey, tried on random plans."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourdine.accounting import Promise, amplified, curve, group
from sourdine.accounting.atoms import Atoms
from sourdine.accounting.pairs import tails
from sourdine.events import Event, GaussianEvent, GdpEvent, LaplaceEvent, PoissonEvent

noises = st.floats(0.6, 8.0)
rates = st.floats(1e-3, 0.3)
counts = st.integers(1, 2000)
deltas = st.sampled_from([1e-4, 1e-6, 1e-9])


def cost(event: Event, delta: float) -> tuple[float, float]:
    return curve(event, accuracy=1e-3).epsilon(delta)


def not_above(cheaper: tuple[float, float], dearer: tuple[float, float]) -> bool:
    """cheaper <= dearer, as far as two intervals can refute it."""
    return cheaper[0] <= dearer[1] + 1e-12


def plan(rate: float, noise: float, count: int) -> Event:
    return PoissonEvent(rate, GaussianEvent(noise)) * count


@given(rates, noises, counts, deltas, st.floats(1.01, 3.0))
def test_more_noise_never_costs_more(
    rate: float, noise: float, count: int, delta: float, more: float
) -> None:
    assert not_above(
        cost(plan(rate, noise * more, count), delta), cost(plan(rate, noise, count), delta)
    )


@given(rates, noises, counts, deltas, st.integers(1, 2000))
def test_fewer_steps_never_cost_more(
    rate: float, noise: float, count: int, delta: float, more: int
) -> None:
    assert not_above(
        cost(plan(rate, noise, count), delta), cost(plan(rate, noise, count + more), delta)
    )


@given(rates, noises, counts, deltas, st.floats(1.01, 2.0))
def test_a_smaller_rate_never_costs_more(
    rate: float, noise: float, count: int, delta: float, more: float
) -> None:
    assert not_above(
        cost(plan(rate, noise, count), delta), cost(plan(rate * more, noise, count), delta)
    )


@given(rates, noises, counts, deltas)
def test_amplification_never_hurts(rate: float, noise: float, count: int, delta: float) -> None:
    assert not_above(cost(plan(rate, noise, count), delta), cost(GaussianEvent(noise) * count, delta))


@settings(max_examples=15)
@given(rates, noises, st.integers(1, 300), noises, st.integers(1, 20), deltas)
def test_composition_commutes(
    rate: float, noise: float, count: int, scale: float, other: int, delta: float
) -> None:
    one, two = plan(rate, noise, count), LaplaceEvent(10 * scale) * other
    assert one + two == two + one
    assert cost(one + two, delta) == cost(two + one, delta)
    assert not_above(cost(one, delta), cost(one + two, delta))


@given(noises, st.integers(2, 6), st.floats(0.1, 4.0))
def test_group_privacy(noise: float, size: int, epsilon: float) -> None:
    """k records together are a Gaussian of k times the distance; the group bound must cover it."""
    promise = Promise(epsilon, max(curve(GaussianEvent(noise)).delta(epsilon).upper, 1e-150))
    together = group(promise, size)
    assert curve(GaussianEvent(noise / size)).delta(together.epsilon).lower <= together.delta * (
        1 + 1e-9
    )


@given(st.floats(0.05, 3.0), st.floats(0.01, 1.0), st.floats(0.05, 3.0))
def test_amplification_theorem_covers_the_exact_step(
    noise_epsilon: float, rate: float, delta_exponent: float
) -> None:
    event = GaussianEvent(1 / noise_epsilon)
    delta = 10 ** (-2 - delta_exponent)
    base = Promise(curve(event).epsilon(delta).upper, delta)
    after = amplified(base, rate)
    if after.epsilon > 0:
        assert curve(PoissonEvent(rate, event)).delta(after.epsilon).lower <= after.delta * (1 + 1e-9)


laws = st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6)


def random_pair(first: list[float], second: list[float]) -> tuple[np.ndarray, np.ndarray]:
    p, q = np.array(first), np.array(second)
    return p / p.sum(), q / q.sum()


def atoms(p: np.ndarray, q: np.ndarray) -> Atoms:
    return Atoms(np.log(p / q), p, q)


@given(laws, laws, st.lists(laws, min_size=3, max_size=3), st.floats(0.0, 2.0))
def test_post_processing_never_helps_the_attacker(
    first: list[float], second: list[float], kernel: list[list[float]], epsilon: float
) -> None:
    p, q = random_pair(first, second)
    mapped = np.array(kernel)
    mapped = mapped / mapped.sum(axis=0)  # each output of the mechanism is sent on at random
    before, after = (
        left - math.exp(epsilon) * right
        for left, right in (tails(atoms(p, q), epsilon), tails(atoms(mapped @ p, mapped @ q), epsilon))
    )
    assert after <= before + 1e-12


@given(laws, laws, st.floats(1e-3, 1 - 1e-3))
def test_side_information_does_not_help(first: list[float], second: list[float], prior: float) -> None:
    """Whatever an attacker believed before, no output moves the odds by more than e^epsilon."""
    p, q = random_pair(first, second)
    epsilon = float(np.abs(np.log(p / q)).max())
    posterior_odds = prior * p / ((1 - prior) * q)
    prior_odds = prior / (1 - prior)
    assert (posterior_odds <= math.exp(epsilon) * prior_odds * (1 + 1e-12)).all()
    assert (posterior_odds >= math.exp(-epsilon) * prior_odds * (1 - 1e-12)).all()


@given(st.floats(0.1, 3.0), st.floats(0.02, 0.98))
def test_no_prior_beats_the_trade_off(mu: float, prior: float) -> None:
    """An attacker with any prior guesses right no more often than the trade-off curve allows."""
    from scipy import stats

    # The best guess for a prior thresholds the likelihood ratio; its two errors lie on the curve.
    threshold = mu / 2 + math.log((1 - prior) / prior) / mu
    fpr, fnr = float(stats.norm.sf(threshold)), float(stats.norm.cdf(threshold - mu))
    proven = curve(GdpEvent(mu, "zero-out")).tradeoff(fpr).lower
    assert fnr >= proven - 1e-12


def test_a_tenth_less_noise_is_told_apart() -> None:
    """The twin of the monotonicity tests: the intervals are narrow enough to refute a wrong plan."""
    claimed = curve(plan(0.01, 1.0, 1000)).epsilon(1e-6)
    weaker = curve(plan(0.01, 0.9, 1000)).epsilon(1e-6)
    assert weaker.lower > claimed.upper


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
def test_tiny_deltas_stay_ordered(delta: float) -> None:
    found = curve(plan(0.01, 1.0, 500))
    tight, loose = found.epsilon(delta), found.epsilon(delta * 1.5)
    assert loose.lower <= tight.upper
    assert tight.upper - tight.lower < 1e-3
