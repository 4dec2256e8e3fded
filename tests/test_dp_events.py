"""dp-accounting's events survive the journey in both directions."""

import pytest
from dp_accounting import dp_event as dp

from sourdine.dp_events import from_dp_event, to_dp_event
from sourdine.errors import EventFileError, NotAccountable
from sourdine.events import (
    NOTHING,
    Event,
    ForeignEvent,
    GaussianEvent,
    GdpEvent,
    NonPrivateEvent,
    PoissonEvent,
)

TWINS = [
    dp.GaussianDpEvent(1.5),
    dp.LaplaceDpEvent(2.0),
    dp.DiscreteLaplaceDpEvent(0.5, 3),
    dp.RandomizedResponseDpEvent(0.4, 3),
    dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)),
    dp.SampledWithoutReplacementDpEvent(100, 10, dp.LaplaceDpEvent(1.0)),
    dp.NonPrivateDpEvent(),
]
FOREIGN = [
    dp.ZCDpEvent(0.1),
    dp.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]),
    dp.SingleEpochTreeAggregationDpEvent(1.0, [3, 4]),
    dp.RepeatAndSelectDpEvent(dp.GaussianDpEvent(1.0), 5.0, 1.0),
    dp.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
    dp.SampledWithReplacementDpEvent(10, 3, dp.GaussianDpEvent(2.0)),
    dp.UnsupportedDpEvent(),
    dp.GaussianDpEvent(0.0),
]


@pytest.mark.parametrize("event", TWINS, ids=lambda event: type(event).__name__)
def test_twins(event: dp.DpEvent) -> None:
    assert to_dp_event(from_dp_event(event)) == event
    assert not isinstance(from_dp_event(event), ForeignEvent)


@pytest.mark.parametrize("event", FOREIGN, ids=lambda event: type(event).__name__)
def test_foreign_events_travel_unchanged(event: dp.DpEvent) -> None:
    wrapped = from_dp_event(event)
    assert isinstance(wrapped, ForeignEvent)
    assert to_dp_event(Event.from_json(wrapped.to_json())) == event


def test_compositions() -> None:
    step = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
    event = from_dp_event(dp.ComposedDpEvent([dp.SelfComposedDpEvent(step, 7), step, dp.NoOpDpEvent()]))
    assert event == 8 * PoissonEvent(0.1, GaussianEvent(1.0))
    assert to_dp_event(event) == dp.ComposedDpEvent([dp.SelfComposedDpEvent(step, 8)])
    assert to_dp_event(NOTHING) == dp.NoOpDpEvent()
    assert from_dp_event(dp.NonPrivateDpEvent()) == NonPrivateEvent()


def test_what_dp_accounting_cannot_say_is_refused() -> None:
    with pytest.raises(NotAccountable):
        to_dp_event(GdpEvent(1.0, "zero-out"))
    with pytest.raises(NotAccountable, match="adjacency"):
        to_dp_event(GaussianEvent(1.0, adjacency="replace-one"))
    with pytest.raises(EventFileError, match="NoSuchEvent"):
        to_dp_event(ForeignEvent('{"class": "NoSuchEvent", "fields": {}}'))
