"""Where the accountant once was wrong, vacuous or out of memory; most were found by attacking it."""

import math

import pytest

from sourdine.accounting import curve
from sourdine.errors import InputError, NotAccountable
from sourdine.events import (
    ApproximateEvent,
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    FixedSizeEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
    ShuffledEvent,
)


def black_box(epsilon: float, delta: float = 0.0) -> ApproximateEvent:
    return ApproximateEvent(epsilon, delta, "zero-out")


def test_epsilon_far_below_the_law_claims_nothing() -> None:
    """Once, a bound that underflowed to zero was taken for a proof: 3e-15 was reported where delta is 1."""
    found = curve(PoissonEvent(0.9999999, GaussianEvent(63.32189)) * 1_576_970, accuracy=2.175e-4)
    assert found.delta(5.0).upper >= 0.999


def test_infinite_mass_is_not_swallowed_by_a_finite_atom() -> None:
    """Once, an atom that rounded to just above the grid hid the mass at infinite loss."""
    event = PoissonEvent(
        0.30731304616933125, ApproximateEvent(9.086353180953012, 2.5532760581920502e-14, "add-remove")
    )
    found = curve(event * 2)
    assert found.delta(18.672706361906023).upper >= 1.569e-14
    assert found.epsilon(1e-14).upper == math.inf


@pytest.mark.parametrize(
    ("event", "epsilon", "truth"),
    [
        (black_box(33.0), 32.967, 0.0324614404),
        (black_box(38.0), 37.962, 0.0372870591),
        (black_box(25.0) + black_box(25.5), 50.4, 0.0951625820),
        (LaplaceEvent(1 / 30) * 2, 59.9999999994, 1.49999332e-10),
        (LaplaceEvent(0.001), 999.0, 0.393469340287),
    ],
)
def test_large_losses_keep_their_digits(event: Event, epsilon: float, truth: float) -> None:
    """1 - expit(33) has no digits left; the gap to the largest loss carries the rounding of that loss."""
    found = curve(event).delta(epsilon)
    assert found.lower <= truth * (1 + 1e-8)
    assert found.upper >= truth * (1 - 1e-8)


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (PoissonEvent(1e-9, GaussianEvent(1e4)) * 1000, 1e-9),
        (PoissonEvent(0.1, LaplaceEvent(1e6)) * 1000, 1e-6),
        (LaplaceEvent(0.02) * 20, 1000.001),
        (PoissonEvent(1.0, LaplaceEvent(0.02)) * 20, 1000.001),
        (PoissonEvent(0.5, LaplaceEvent(1e-4)) * 20, 2e5),
        (PoissonEvent(0.5, GaussianEvent(0.02)) * 10, 13_251.0),
        (ExponentialEvent(2000.0, "zero-out") * 3, 6000.001),
        (GaussianEvent(1e-6), 6e11),
    ],
)
def test_extreme_noise_gets_an_answer(event: Event, most: float) -> None:
    found = curve(event).epsilon(1e-6)
    assert 0 <= found.lower <= found.upper <= most


def test_contradicting_bounds_are_refused() -> None:
    from sourdine.accounting.curves import _consistent
    from sourdine.errors import ContradictionError

    assert _consistent(1.0, 1.0 - 1e-13) == (1.0 - 1e-13, 1.0 - 1e-13)
    with pytest.raises(ContradictionError, match="report"):
        _consistent(1.1, 1.0)


@pytest.mark.parametrize("event", [None, 3, GaussianEvent])
def test_only_events_have_a_curve(event: object) -> None:
    with pytest.raises(InputError, match="no event"):
        curve(event)  # type: ignore[arg-type]


def test_a_false_positive_rate_is_a_probability() -> None:
    with pytest.raises(InputError, match="fpr"):
        curve(GaussianEvent(1.0)).tradeoff(2.0)


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (PoissonEvent(0.01, GaussianEvent(1.0)) * 10**7, 1124.0),
        (PoissonEvent(0.05, GaussianEvent(2.0)) * 10**6, 581.0),
    ],
)
def test_long_plans_stay_below_renyi(event: Event, most: float) -> None:
    """Once, a rough bound that failed sent these to the bound without sampling: 5e6 instead of 1e3."""
    assert 0 < curve(event).epsilon_upper(1e-6) < most


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(NotAccountable, match="steps"):
        curve(10**13 * PoissonEvent(0.1, GaussianEvent(1.0)))


def test_several_releases_on_one_lot_have_no_proof_under_replace_one() -> None:
    with pytest.raises(NotAccountable, match="one release"):
        curve(PoissonEvent(0.1, 2 * GaussianEvent(1.0)), "replace-one")


@pytest.mark.parametrize(
    ("event", "epsilon", "truth"),
    [
        (10 * PoissonEvent(0.5, GaussianEvent(1.0)), 10.0, 2.1176e-5),
        (1000 * black_box(1.0), 699.5, 1.0869e-19),
        (3600 * black_box(0.5), 699.9, 6.01e-20),
        (450 * black_box(1.7), 699.9, 1.53e-14),
    ],
)
def test_far_tails(event: Event, epsilon: float, truth: float) -> None:
    """Truths by 60-digit arithmetic; one direction's losses end before epsilon, or Q underflows."""
    found = curve(event).delta(epsilon)
    assert found.lower <= truth * (1 + 1e-2)
    assert truth * (1 - 1e-2) <= found.upper <= max(1.01 * truth, 1e-11)


def test_past_the_largest_loss_only_infinite_mass_is_left() -> None:
    found = curve(2 * DiscreteLaplaceEvent(0.5) + black_box(0.1, 1e-5))
    assert found.delta(1.2).upper == pytest.approx(1e-5, rel=1e-9)
    assert found.epsilon(1e-9).upper == math.inf
    assert curve(5 * PoissonEvent(0.3, GaussianEvent(0.6)), "add-remove").epsilon(1e-10).upper < 20.7
    near_the_end = curve(3 * DiscreteLaplaceEvent(1.5428, 3)).epsilon(2.6e-5)
    assert 13.8 < near_the_end.lower <= near_the_end.upper < 13.886


def test_delta_equal_to_the_lost_mass_is_no_contradiction() -> None:
    """On the plateau any epsilon has that delta; the lower end must not climb along it."""
    for delta in (0.1, 1e-3):
        found = curve(black_box(1.0, delta) + 2 * LaplaceEvent(1.0)).epsilon(delta)
        assert found.lower <= 3.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    "inner",
    [PoissonEvent(0.5, GaussianEvent(1.0)), ShuffledEvent(1.0, 10), ExponentialEvent(1.0, "zero-out")],
)
def test_sampling_what_sampling_need_not_amplify_is_refused(inner: Event) -> None:
    with pytest.raises(NotAccountable):
        curve(PoissonEvent(0.1, inner))
    with pytest.raises(NotAccountable):
        curve(FixedSizeEvent(10, 3, inner))


def test_fixed_size_lots_claim_no_more_than_is_attained() -> None:
    """The best adaptive pair of two exponential mechanisms, unsampled, reaches 0.10883 at epsilon 0.7."""
    event = FixedSizeEvent(1000, 999, ExponentialEvent(1.0, "replace-one"))
    assert curve(2 * event, "replace-one").delta(0.7).lower <= 0.10883
