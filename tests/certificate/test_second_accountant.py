"""The second opinion: it agrees with the truth, and finds claims that are too low."""

import pytest

from sourdine.accounting import curve
from sourdine.certificate import second
from sourdine.certificate.second import opinion
from sourdine.errors import NotAccountable
from sourdine.events import (
    ApproximateEvent,
    CorrelatedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    FixedSizeEvent,
    ForeignEvent,
    GaussianEvent,
    GdpEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
)

G = GaussianEvent
LABELS = ApproximateEvent(0.1, 1e-8, "zero-out")
TIGHT = [
    (300 * PoissonEvent(0.1, G(2.86)) + LABELS + G(40.0), "zero-out", 1e-6),
    (300 * PoissonEvent(0.1, G(2.86)), "add-remove", 1e-9),
    (50 * PoissonEvent(1.0, G(11.0)), "zero-out", 1e-6),
    (5000 * PoissonEvent(0.01, G(3.1)), "zero-out", 1e-6),
    (100 * PoissonEvent(0.1, G(2.0)), "replace-one", 1e-6),
    (3 * G(1.0) + G(2.0), "replace-one", 1e-6),
    (10 * LaplaceEvent(5.0), "zero-out", 1e-6),
    (10 * LaplaceEvent(5.0), "replace-one", 1e-6),
    (50 * PoissonEvent(0.1, LaplaceEvent(3.0)), "zero-out", 1e-6),
    (20 * RandomizedResponseEvent(0.5, 3), "replace-one", 1e-6),
    (5 * DiscreteGaussianEvent(4.0, 2), "zero-out", 1e-6),
    (30 * DiscreteLaplaceEvent(0.1, 2), "zero-out", 1e-6),
    (5 * LABELS, "zero-out", 1e-6),
    (GdpEvent(0.5, "zero-out"), "zero-out", 1e-6),
    (CorrelatedEvent(4.0, (1.0, 0.5), 100, 3, 10), "zero-out", 1e-6),
]


@pytest.mark.parametrize(("event", "adjacency", "delta"), TIGHT)
def test_it_meets_the_truth_from_both_sides(event: Event, adjacency: str, delta: float) -> None:
    truth = curve(event, adjacency).epsilon(delta)
    found = opinion(event, adjacency, delta, truth.upper)
    assert found.lower <= truth.upper and truth.lower <= found.upper
    assert found.lower > 0.97 * truth.upper, "a claim that is 3% too low would be noticed"
    assert found.upper < 1.03 * truth.lower


@pytest.mark.parametrize(
    "event", [4 * ExponentialEvent(0.5, "zero-out"), ShuffledEvent(2.0, 10, 3) + G(50.0)]
)
def test_where_nothing_is_known_to_be_attained_it_says_so(event: Event) -> None:
    truth = curve(event).epsilon(1e-6)
    found = opinion(event, "zero-out", 1e-6, truth.upper)
    assert found.lower <= truth.lower and found.upper >= truth.upper * (1 - 1e-3)


@pytest.mark.parametrize("delta", [1e-10, 1e-11, 1e-12, 1e-15])
@pytest.mark.parametrize("steps", [300, 3000])
def test_at_a_tiny_delta_it_says_less_but_nothing_false(delta: float, steps: int) -> None:
    """Without its margins dp-accounting's ends cross the truth there."""
    event = steps * PoissonEvent(0.1, G(4.17))
    truth = curve(event).epsilon(delta)
    found = opinion(event, "zero-out", delta, truth.upper)
    assert found.lower <= truth.upper and truth.lower <= found.upper


@pytest.mark.parametrize("claimed", [0.0, 1e-9, 1.0, 1e6])
def test_a_false_claim_moves_only_the_width_of_the_grid(claimed: float) -> None:
    event = 300 * PoissonEvent(0.1, G(3.2))
    truth = curve(event).epsilon(1e-6)
    found = opinion(event, "zero-out", 1e-6, claimed)
    assert found.lower <= truth.upper and truth.lower <= found.upper


def test_renyi_where_there_is_no_distribution() -> None:
    rho = ForeignEvent('{"class": "ZCDpEvent", "fields": {"rho": 0.01, "xi": 0.0}}')
    found = opinion(rho + 10 * PoissonEvent(0.1, G(3.0)), "zero-out", 1e-6, 1.0)
    assert "Rényi" in found.method and found.lower == 0.0
    assert found.upper > curve(10 * PoissonEvent(0.1, G(3.0))).epsilon(1e-6).upper


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (FixedSizeEvent(100, 10, G(1.0)), "zero-out"),
        (PoissonEvent(0.1, G(1.0) + LaplaceEvent(1.0)), "zero-out"),
        (ForeignEvent('{"class": "ZCDpEvent", "fields": {"rho": 0.01, "xi": 0.0}}'), "replace-one"),
        (ApproximateEvent(1.0, 0.0, "replace-one"), "zero-out"),
    ],
)
def test_no_opinion_is_said_to_be_none(event: Event, adjacency: str) -> None:
    with pytest.raises(NotAccountable):
        opinion(event, adjacency, 1e-6, 1.0)


def test_no_privacy_at_all() -> None:
    assert opinion(NonPrivateEvent(), "zero-out", 1e-6, 1.0).upper == float("inf")


def test_no_warning_of_another_library(caplog: pytest.LogCaptureFixture) -> None:
    """The Rényi accountant logs a warning for each order that it leaves out."""
    event = PoissonEvent(0.5, 2 * GaussianEvent(1e5))
    second._renyi(event, "zero-out", 1e-6)
    assert caplog.text.count("Excluding this order") > 1
    caplog.clear()
    assert "Rényi" in opinion(event, "zero-out", 1e-6, 1.0).method
    assert not caplog.text
    second._renyi(event, "zero-out", 1e-6)
    assert "Excluding this order" in caplog.text, "others may log again"
