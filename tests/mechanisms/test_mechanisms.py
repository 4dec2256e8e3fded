"""What mechanisms cost, how they round, what they refuse."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.accounting import curve, gaussian_sigma
from sourdine.errors import InputError
from sourdine.events import (
    ApproximateEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    NonPrivateEvent,
    ZcdpEvent,
)
from sourdine.mechanisms import (
    Ball,
    Exponential,
    Gaussian,
    Laplace,
    Moves,
    NoisyMax,
    OpenCounts,
    RandomizedResponse,
    sensitivity,
)
from sourdine.mechanisms.additive import _rounded
from sourdine.mechanisms.exact import bernoulli_exp
from sourdine.rng import seeded

# Laplace and Gaussian noise.


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("each", [1.0, 0.3, 4.0, 1e-6, 1e6])
def test_laplace_costs_its_epsilon_whatever_the_grid(epsilon: float, each: float) -> None:
    mechanism = Laplace(epsilon, each)
    ((part, count),) = mechanism.event.parts
    assert isinstance(part, DiscreteLaplaceEvent) and count == 1
    assert part.parameter * part.sensitivity == pytest.approx(epsilon, rel=1e-15)
    assert part.sensitivity * mechanism.grid == Fraction(each)
    assert mechanism.scale == pytest.approx(each / epsilon)
    assert mechanism.grid <= Fraction(mechanism.scale) / 64 or mechanism.grid == Fraction(each)
    assert 1 / math.nextafter(1 / part.parameter, math.inf) <= part.parameter  # no less noise than that


def test_of_scale() -> None:
    assert Laplace.of_scale(2.0, 3.0).epsilon == 1.5
    assert Laplace.of_scale(2.0, Moves(1, 3)).epsilon == 1.5


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e3), st.integers(0, 12), st.floats(0, 1))
def test_rounding_moves_with_the_answer(x: float, each: float, halvings: int, share: float) -> None:
    grid = Fraction(each) / 2**halvings
    y = Fraction(x) + Fraction(each) * Fraction(share)
    assert 0 <= _rounded(y, grid) - _rounded(Fraction(x), grid) <= 2**halvings


def test_a_vector_is_the_composition_of_its_moved_coordinates() -> None:
    event = Laplace(1.2, Moves(2.0, 4)).event
    assert event == 4 * DiscreteLaplaceEvent(0.3 / 32, 32, "zero-out")
    assert curve(event).epsilon_upper(1e-9) <= 1.2 * (1 + 1e-12)
    event = Gaussian(3.0, Moves(1.0, 4)).event
    ((part, count),) = event.parts
    assert isinstance(part, DiscreteGaussianEvent) and count == 4
    # Within the grid's error of the continuous mechanism with l2 sensitivity 2.
    assert curve(event).epsilon_upper(1e-6) == pytest.approx(
        curve(Gaussian(1.5).event).epsilon_upper(1e-6), rel=1e-3
    )


def test_balls_are_known_by_their_norm_alone() -> None:
    assert Laplace(1.0, Ball(3.0, 10), "add-remove").event == ApproximateEvent(1.0, 0.0, "add-remove")
    event = Gaussian(2.0, Ball(1.0, 50)).event
    assert isinstance(event, ZcdpEvent)
    assert 1 / 8 < event.rho < 1.003 / 8  # rounding of 50 coordinates included
    assert Gaussian(2.0, Ball(1, 50), whole=True).event.rho == pytest.approx(1 / 8, rel=1e-11)
    # The noise of a ball in the l1 norm allows for the rounding of every coordinate.
    mechanism = Laplace(1.0, Ball(3.0, 10))
    assert mechanism.scale >= 3.0 + 10 * float(mechanism.grid)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (5.0, 1e-9), (20.0, 1e-5)])
def test_calibrated_gaussian_noise_keeps_to_the_budget_and_wastes_little(
    epsilon: float, delta: float
) -> None:
    mechanism = Gaussian.calibrated(epsilon, delta, 3.0)
    assert curve(mechanism.event).epsilon_upper(delta) <= epsilon
    exact = 3.0 * gaussian_sigma(epsilon, delta)
    assert exact * (1 - 1e-3) <= mechanism.sigma <= exact * 1.003


def test_whole_gaussian_noise_is_calibrated_too() -> None:
    mechanism = Gaussian.calibrated(8.0, 1e-6, Moves(1, 2), whole=True)
    assert curve(mechanism.event).epsilon_upper(1e-6) <= 8.0


def test_the_classic_formula_is_for_small_epsilon() -> None:
    assert Gaussian.classic(0.5, 1e-5).sigma == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 0.5)
    with pytest.raises(InputError, match="below 1"):
        Gaussian.classic(1.0, 1e-5)


def test_releases_are_floats_on_the_grid() -> None:
    mechanism = Laplace(1.0, 4.0)
    value = mechanism.release(2.5, seeded(1))
    assert isinstance(value, float)
    assert (Fraction(value) / mechanism.grid).denominator == 1
    vector = Laplace(1.0, Moves(4.0)).release(np.array([1.0, 2.0, 3.0]), seeded(1))
    assert vector.shape == (3,) and vector.dtype == np.float64
    whole = Laplace(1.0, Moves(1), whole=True).release([5, 6], seeded(1))
    assert all(x == int(x) for x in whole)
    assert Laplace(1.0).release(np.int64(3), seeded(1)) == Laplace(1.0).release(3, seeded(1))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: Laplace(1.0).release([1.0, 2.0]), "a vector was given"),
        (lambda: Laplace(1.0, Ball(1.0, 3)).release([1.0]), "stated for 3"),
        (lambda: Laplace(1.0).release(math.nan), "no finite number"),
        (lambda: Gaussian(1.0, Moves(1)).release([math.inf]), "no finite number"),
        (lambda: Laplace(0.0), "epsilon is 0"),
        (lambda: Laplace(1.0, 0.0), "sensitivity is 0"),
        (lambda: Laplace(1.0, 1.0, "sideways"), "adjacency"),
        (lambda: Laplace(1.0, 1.5, whole=True), "move by whole numbers"),
        (lambda: Gaussian(-1.0), "sigma is -1"),
        (lambda: Gaussian(math.nan), "sigma is nan"),
        (lambda: Moves(1.0, 0), "coordinates is 0"),
        (lambda: Ball(-1.0, 2), "sensitivity is -1"),
        (lambda: Laplace(1.0).half_width(1.0), "confidence"),
    ],
)
def test_bad_input(act: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        act()


# Choices.


@pytest.mark.parametrize("mechanism", [Exponential(2.0), NoisyMax(2.0)])
def test_the_gap_is_kept_with_its_confidence(mechanism: Exponential | NoisyMax) -> None:
    scores = [0.0, 5.0, 9.5, 10.0]
    source = seeded(2)
    bound = mechanism.gap(len(scores), 0.9)
    worse = sum(10.0 - scores[mechanism.release(scores, source)] > bound for _ in range(2000))
    assert worse <= 200 + 5 * math.sqrt(180)


def test_noisy_max_is_no_worse_than_the_exponential_mechanism() -> None:
    scores, source = [0, 1, 2, 3], seeded(3)
    means = [
        np.mean([scores[mechanism.release(scores, source)] for _ in range(20_000)])
        for mechanism in (Exponential(1.0), NoisyMax(1.0))
    ]
    assert means[1] > means[0] + 0.05


def test_the_exponential_mechanism_has_its_law() -> None:
    from scipy import stats

    mechanism, scores, source = Exponential(1.5, 2.0), [0, 1, 3], seeded(4)
    drawn = [mechanism.release(scores, source) for _ in range(30_000)]
    weight = np.exp(1.5 * np.array(scores) / 4)
    expected = 30_000 * weight / weight.sum()
    assert stats.chisquare(np.bincount(drawn, minlength=3), expected).pvalue > 1e-6


def test_far_scores_take_no_time_and_are_never_chosen() -> None:
    assert {NoisyMax(1.0).release([0, 10**9], seeded(5)) for _ in range(50)} == {1}
    assert {Exponential(1.0).release([10**9, 0], seeded(5)) for _ in range(50)} == {0}


@pytest.mark.parametrize("kind", [Exponential, NoisyMax])
def test_numpy_scores_do_not_overflow(kind: Any) -> None:
    scores = np.array([0, 2561])
    for parameter in (0.1, np.float64(0.1), np.float32(0.1)):
        mechanism = kind(parameter, np.int64(1))
        assert {mechanism.release(scores, seeded(6)) for _ in range(50)} == {1}
    with pytest.raises(InputError, match="no probability"):
        bernoulli_exp(Fraction(-1), seeded(1))


def test_parameters_are_kept_as_plain_numbers() -> None:
    for mechanism in (Laplace(np.float32(0.1), np.int64(3)), Gaussian(np.float32(2), Fraction(1))):
        assert type(mechanism.sensitivity) is float
        with pytest.raises(InputError, match="a vector was given"):
            mechanism.release([1.0, 2.0])
    shape = Moves(np.int64(3), np.int64(2))
    assert (type(shape.each), type(shape.coordinates)) == (float, int)
    assert type(Laplace(np.float32(0.1)).epsilon) is float
    assert Laplace(1.0).release(np.float32(3), seeded(1)) == Laplace(1.0).release(3, seeded(1))


@pytest.mark.parametrize("value", ["x", None, {1: 2}])
def test_noise_is_for_numbers(value: Any) -> None:
    with pytest.raises(InputError, match="noise is added to a number or a vector"):
        Laplace(1.0).release(value)


@pytest.mark.parametrize("epsilon", [1e9, 1001.0])
def test_an_epsilon_that_is_no_privacy_is_refused(epsilon: float) -> None:
    for act in (
        lambda: Laplace(epsilon),
        lambda: Exponential(epsilon),
        lambda: RandomizedResponse.of_epsilon(epsilon),
        lambda: OpenCounts(epsilon, 1e-6),
    ):
        with pytest.raises(InputError, match="no privacy at all"):
            act()


def test_many_releases_at_once_are_single_ones() -> None:
    mechanism = Laplace(1.0, 2.0)
    many = mechanism.releases(1.25, 5, seeded(2))
    source = seeded(2)
    assert many.tolist() == [mechanism.release(1.25, source) for _ in range(5)]


@pytest.mark.parametrize("kind", [Exponential, NoisyMax])
def test_choices_refuse(kind: Any) -> None:
    with pytest.raises(InputError, match="no candidate"):
        kind(1.0).release([])
    with pytest.raises(InputError, match="no finite number"):
        kind(1.0).release([1.0, math.nan])
    with pytest.raises(InputError, match="sensitivity"):
        kind(1.0, 0.0)


# Randomized response.


def test_the_lectures_numbers() -> None:
    coins = RandomizedResponse.of_coins()
    assert coins == RandomizedResponse.of_gamma(0.25)
    assert coins.epsilon == pytest.approx(math.log(3))
    assert coins.gamma == 0.25
    assert coins.posterior(0.5, "yes") == 0.75
    assert coins.posterior(0.5, "no", "yes") == 0.25
    for gamma in (0.05, 0.3, 0.45):
        assert RandomizedResponse.of_gamma(gamma).epsilon == pytest.approx(
            math.log((0.5 + gamma) / (0.5 - gamma))
        )


@given(st.floats(0.05, 8), st.integers(2, 9))
def test_the_epsilon_asked_for_is_never_passed(epsilon: float, k: int) -> None:
    response = RandomizedResponse.of_epsilon(epsilon, [str(i) for i in range(k)])
    assert response.epsilon == pytest.approx(epsilon, rel=1e-12)
    assert curve(response.event, "replace-one").epsilon_upper(1e-12) <= epsilon * (1 + 1e-9)


@given(st.floats(0.01, 0.49), st.floats(0.01, 0.99))
def test_the_odds_rise_by_e_to_the_epsilon_at_most(gamma: float, prior: float) -> None:
    response = RandomizedResponse.of_gamma(gamma)
    after = response.posterior(prior, "yes")
    assert after / (1 - after) <= math.exp(response.epsilon) * prior / (1 - prior) * (1 + 1e-9)


def test_both_ends_of_gamma() -> None:
    blind, bare = RandomizedResponse.of_gamma(0.0), RandomizedResponse.of_gamma(0.5)
    assert blind.epsilon == 0.0
    assert curve(blind.event, "replace-one").epsilon(1e-6).upper == 0.0
    with pytest.raises(InputError, match="no estimate"):
        blind.estimate(["yes", "no"])
    assert bare.epsilon == math.inf and bare.event == NonPrivateEvent()
    assert bare.release("yes") == "yes"
    assert bare.estimate(["yes", "no"])["yes"].value == 0.5
    assert bare.posterior(0.1, "yes") == 1.0
    assert bare.posterior(0.1, "no", "yes") == 0.0


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: RandomizedResponse.of_gamma(0.6), "between 0"),
        (lambda: RandomizedResponse.of_gamma(-0.1), "gamma is -0.1"),
        (lambda: RandomizedResponse.of_gamma(0.2, "abc"), "two choices"),
        (lambda: RandomizedResponse(0.5, ("a", "a")), "different choices"),
        (lambda: RandomizedResponse.of_coins(1.0), "strictly between"),
        (lambda: RandomizedResponse.of_coins().posterior(1.5, "yes"), "prior"),
        (lambda: RandomizedResponse.of_coins().posterior(0.5, "maybe"), "must be among"),
        (lambda: RandomizedResponse.of_epsilon(1.0, "abc").posterior(0.5, "a"), "two choices"),
        (lambda: RandomizedResponse.of_coins().estimate([]), "nobody has answered"),
        (lambda: RandomizedResponse.of_epsilon(800.0), "more is the truth"),
    ],
)
def test_responses_refuse(act: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        act()


# Open vocabularies.


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_threshold_holds_the_delta(adjacency: str) -> None:
    for epsilon, delta, most in ((1.0, 1e-6, 10), (0.1, 1e-9, 1), (8.0, 1e-4, 3)):
        mechanism = OpenCounts(epsilon, delta, most, adjacency)
        a = mechanism.noise.parameter
        chance = math.exp(-a * (mechanism.least - 1)) / (1 + math.exp(-a))
        assert most * chance <= delta < most * chance * math.exp(a) * (1 + 1e-9)
        assert mechanism.event == ApproximateEvent(epsilon, delta, adjacency)


def test_words_come_out_sorted_and_absent_ones_never() -> None:
    found = OpenCounts(2.0, 1e-6, 1).release({"z": 900, "a": 900, "rare": 1, "none": 0}, seeded(1))
    assert set(found) == {"a", "z"}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert OpenCounts(2.0, 1e-6, 1).release({}) == {}


def test_a_delta_too_large_for_its_epsilon_is_refused() -> None:
    with pytest.raises(InputError, match="delta is too large"):
        OpenCounts(1e-6, 0.5, 1)


# Sensitivities.


def test_sensitivities_of_the_usual_questions() -> None:
    assert sensitivity.count("add-remove") == Moves(1)
    assert sensitivity.count("replace-one", rows=3) == Moves(3)
    assert sensitivity.total(-2, 5, "zero-out") == Moves(5)
    assert sensitivity.total(-2, 5, "replace-one") == Moves(7)
    assert sensitivity.total(3, 5, "replace-one") == Moves(5)
    assert sensitivity.total(3, 5, "replace-one", fixed=True) == Moves(2)
    assert sensitivity.mean(0, 10, 50, "replace-one") == Moves(0.2)
    assert sensitivity.mean(0, 10, 50, "zero-out") == Moves(0.1)
    assert sensitivity.histogram("zero-out") == Moves(1, 1)
    assert sensitivity.histogram("replace-one") == Moves(1, 2)
    assert sensitivity.histogram("replace-one", rows=3, bins=9) == Ball(6, 9)
    assert sensitivity.grouped(3, "replace-one", spread=2.0) == Ball(2, 3)
    assert sensitivity.grouped(1, "replace-one", rows=2, spread=2.0) == Moves(4)
    assert sensitivity.words(5, "zero-out") == Moves(1, 5)
    assert sensitivity.words(5, "replace-one") == Moves(1, 10)
    bits = sensitivity.attributes(16, 0, 1, "zero-out")
    assert (bits.l1, bits.l2) == (16, 4)


@pytest.mark.parametrize(
    "act",
    [
        lambda: sensitivity.mean(0, 10, 50, "add-remove"),
        lambda: sensitivity.total(5, 3, "zero-out"),
        lambda: sensitivity.histogram("zero-out", rows=2),
        lambda: sensitivity.count("sideways"),
    ],
)
def test_sensitivities_refuse(act: Any) -> None:
    with pytest.raises(InputError):
        act()
