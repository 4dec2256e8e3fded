"""The privacy loss as an object, and the attack on shuffled batches."""

import math

import numpy as np
import pytest

from sourdine.accounting import PrivacyLoss, curve
from sourdine.errors import InputError
from sourdine.events import ApproximateEvent, GaussianEvent, LaplaceEvent, PoissonEvent, ShuffledEvent


def test_the_tail_is_not_delta() -> None:
    """ERRATA of the lectures: for mu = epsilon = 1 the tail is 0.309 and delta 0.127."""
    loss = PrivacyLoss.of(GaussianEvent(1.0))
    assert loss.tail(1.0) == pytest.approx(0.3085, abs=1e-4)
    assert loss.delta(1.0) == pytest.approx(0.126936737507, rel=1e-9)


@pytest.mark.parametrize(
    "event", [GaussianEvent(1.0), LaplaceEvent(2.0), PoissonEvent(0.2, GaussianEvent(0.8))]
)
def test_samples_follow_the_curve(event: GaussianEvent) -> None:
    """E[(1 - e^(epsilon - L))_+] over draws is delta, within 6 standard errors (false alarm below 1e-6)."""
    draws = PrivacyLoss.of(event).sample(200_000, np.random.default_rng(11))
    for epsilon in (0.0, 0.2, 0.45):
        values = np.maximum(0.0, -np.expm1(epsilon - draws))
        assert values.mean() == pytest.approx(
            PrivacyLoss.of(event).delta(epsilon), abs=6 * values.std() / math.sqrt(len(values)) + 1e-3
        )


def test_mass_that_only_one_neighbour_produces_has_infinite_loss() -> None:
    draws = PrivacyLoss.of(ApproximateEvent(0.5, 0.1, "zero-out")).sample(
        20_000, np.random.default_rng(3)
    )
    assert np.isinf(draws).mean() == pytest.approx(0.1, abs=0.015)


def test_histogram_adds_up() -> None:
    p, q = PrivacyLoss.of(GaussianEvent(1.0)).histogram(np.linspace(-8, 8, 200))
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    assert q.sum() == pytest.approx(1.0, abs=1e-9)


def test_only_a_single_release_has_a_loss_to_draw() -> None:
    with pytest.raises(InputError, match="single release"):
        PrivacyLoss.of(2 * GaussianEvent(1.0))


@pytest.mark.parametrize(
    ("sigma", "batches", "lower"),
    [
        (1.0, 100, 4.681),
        (0.8, 100, 6.282),
        (0.6, 1000, 8.833),
        (0.5, 1000, 10.997),
        (0.4, 10_000, 14.45),
    ],
)
def test_shuffling_against_the_published_attack(sigma: float, batches: int, lower: float) -> None:
    """Chua et al. 2024 at delta 1e-6, beside a Poisson plan of the same noise."""
    found = curve(ShuffledEvent(sigma, batches)).epsilon(1e-6)
    poisson = curve(batches * PoissonEvent(1 / batches, GaussianEvent(sigma))).epsilon(1e-6)
    assert found.lower == pytest.approx(lower, abs=1e-3)
    assert poisson.upper < found.lower <= found.upper


def test_the_shuffling_attack_by_simulation() -> None:
    """Largest of T batches, record present or not; the threshold test refutes epsilon at 6 deviations."""
    rng = np.random.default_rng(5)
    sigma, batches, runs, epsilon = 1.0, 20, 200_000, 1.0
    noise = sigma * rng.standard_normal((runs, batches))
    present, absent = noise.copy(), noise
    present[:, 0] += 2
    absent[:, 0] += 1
    threshold = 3.4
    p, q = (present.max(axis=1) >= threshold).mean(), (absent.max(axis=1) >= threshold).mean()
    error = 6 * math.sqrt((p + math.exp(2 * epsilon) * q) / runs)
    assert (
        p - math.exp(epsilon) * q <= curve(ShuffledEvent(sigma, batches)).delta(epsilon).lower + error
    )
    assert p - math.exp(epsilon) * q > 0


def test_one_batch_is_a_plain_gaussian() -> None:
    found = curve(ShuffledEvent(1.5, 1)).epsilon(1e-6)
    assert found.upper == pytest.approx(curve(GaussianEvent(1.5)).epsilon(1e-6).upper, rel=1e-9)
    assert found.lower == pytest.approx(found.upper, abs=1e-3)


def test_epochs_add_up_without_amplification() -> None:
    found = curve(ShuffledEvent(2.0, 100, epochs=9))
    assert found.epsilon(1e-6).upper == pytest.approx(
        curve(9 * GaussianEvent(2.0)).epsilon(1e-6).upper, rel=1e-9
    )
    assert found.delta(1.0).lower <= found.delta(1.0).upper
    replaced = curve(ShuffledEvent(2.0, 100), "replace-one").epsilon(1e-6)
    assert replaced.upper == pytest.approx(
        curve(GaussianEvent(2.0), "replace-one").epsilon(1e-6).upper, rel=1e-9
    )
    assert curve(2 * ShuffledEvent(2.0, 100)).epsilon(1e-6).upper > found.epsilon(0.5).lower
