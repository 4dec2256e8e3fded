"""Events: frozen, hashable, composable, and files that load for ever."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.budget import Budget
from sourdine.errors import EventFileError, InputError
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    ComposedEvent,
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
    ParallelEvent,
    PateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    ZcdpEvent,
    compose,
)

GOLDEN = Path(__file__).parent / "golden" / "events-v1.json"
EVERY_KIND: list[Event] = [
    GaussianEvent(1.1),
    GaussianEvent(2.0, adjacency="replace-one"),
    LaplaceEvent(0.1),
    DiscreteGaussianEvent(3.3, 2),
    DiscreteLaplaceEvent(0.25, 3, "add-remove"),
    RandomizedResponseEvent(0.5, 4),
    ApproximateEvent(0.3, 1e-9, "zero-out"),
    ExponentialEvent(0.7, "replace-one"),
    GdpEvent(0.9, "zero-out"),
    PoissonEvent(0.01, GaussianEvent(1.0)),
    FixedSizeEvent(1000, 32, LaplaceEvent(2.0)),
    ShuffledEvent(0.8, 100, 3),
    PateEvent((2.0, 3.5), (0.1, 0.25), "zero-out"),
    NonPrivateEvent(),
    ForeignEvent('{"class": "ZCDpEvent", "fields": {"rho": 0.1, "xi": 0.0}}'),
    3 * PoissonEvent(0.5, 2 * GaussianEvent(1.0)) + LaplaceEvent(4.0),
    NOTHING,
    ZcdpEvent(0.125, "zero-out"),
    TruncatedPoissonEvent(0.01, 10_000, 160, GaussianEvent(1.0)),
    CorrelatedEvent(1.5, (0.8, 0.6), 30, 3, 10, True),
    SelectionEvent(GaussianEvent(2.0), 0.5, 0.1),
    ParallelEvent((10 * PoissonEvent(0.1, GaussianEvent(1.5)), GaussianEvent(4.0))),
]
positive = st.floats(1e-6, 1e6)
simple = st.one_of(
    positive.map(GaussianEvent),
    positive.map(LaplaceEvent),
    st.builds(PoissonEvent, st.floats(1e-9, 1.0), positive.map(GaussianEvent)),
    st.builds(DiscreteLaplaceEvent, positive, st.integers(1, 9)),
    st.builds(ShuffledEvent, positive, st.integers(1, 99), st.integers(1, 9)),
)
composed = st.lists(st.tuples(simple, st.integers(1, 10**12)), max_size=5).map(
    lambda parts: compose(event * count for event, count in parts)
)


@given(composed)
def test_json_round_trip_is_lossless(event: Event) -> None:
    again = Event.from_json(event.to_json())
    assert again == event
    assert hash(again) == hash(event)
    assert again.to_json() == event.to_json()


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: event.kind)
def test_every_kind_round_trips(event: Event) -> None:
    assert Event.from_json(event.to_json()) == event


def test_files_of_version_1_load_for_ever() -> None:
    documents = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert [Event.from_json(json.dumps(document)) for document in documents] == EVERY_KIND


@given(composed, composed, composed)
def test_addition_is_associative_and_commutative(a: Event, b: Event, c: Event) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + NOTHING == a
    assert 2 * a + 3 * a == 5 * a
    assert 0 * a == NOTHING


def test_composition_flattens_and_counts() -> None:
    step = PoissonEvent(0.1, GaussianEvent(1.0))
    assert 2 * (3 * step + LaplaceEvent(1.0)) == compose([6 * step, 2 * LaplaceEvent(1.0)])
    assert step + step == ComposedEvent(((step, 2),))
    assert 1 * step == step


def test_events_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GaussianEvent(1.0).noise_multiplier = 2.0  # type: ignore[misc]


def test_data_dependence_shows_through_composition() -> None:
    pate = PateEvent((2.0,), (0.1,), "zero-out")
    assert (pate + GaussianEvent(1.0)).data_dependent
    assert ParallelEvent((pate, GaussianEvent(1.0))).data_dependent
    assert not (2 * GaussianEvent(1.0)).data_dependent


@pytest.mark.parametrize(
    "build",
    [
        lambda: GaussianEvent(0.0),
        lambda: GaussianEvent(math.nan),
        lambda: GaussianEvent(math.inf),
        lambda: GaussianEvent(True),
        lambda: GaussianEvent("1.0"),
        lambda: PoissonEvent(0.5, NOTHING),
        lambda: ComposedEvent(((GaussianEvent(1.0), -1),)),
        lambda: GaussianEvent(1.0, adjacency="nearby"),
        lambda: LaplaceEvent(-1.0),
        lambda: DiscreteGaussianEvent(1.0, 0),
        lambda: DiscreteLaplaceEvent(1.0, 1.5),
        lambda: RandomizedResponseEvent(1.5),
        lambda: RandomizedResponseEvent(0.5, 1),
        lambda: ApproximateEvent(1.0, 1.0, "zero-out"),
        lambda: PoissonEvent(0.0, GaussianEvent(1.0)),
        lambda: PoissonEvent(1.1, GaussianEvent(1.0)),
        lambda: PoissonEvent(0.5, "gaussian"),
        lambda: FixedSizeEvent(10, 11, GaussianEvent(1.0)),
        lambda: ShuffledEvent(1.0, 0),
        lambda: CorrelatedEvent(1.0, (1.0, 0.5), 10, 2, 1),
        lambda: ParallelEvent(()),
        lambda: ParallelEvent((GaussianEvent(1.0), NOTHING)),
        lambda: ParallelEvent(GaussianEvent(1.0)),
        lambda: PateEvent((), (), "zero-out"),
        lambda: PateEvent((1.0,), (0.1,), "zero-out"),
        lambda: PateEvent((2.0,), (-0.1,), "zero-out"),
        lambda: GaussianEvent(1.0) * 1.5,
        lambda: GaussianEvent(1.0) * -1,
        lambda: Budget(0.0),
        lambda: Budget(math.nan),
        lambda: Budget(1.0, 0.0),
        lambda: Budget(1.0, unit="household"),
        lambda: Budget(1.0, adjacency="nearby"),
    ],
)
def test_impossible_values_are_refused(build: object) -> None:
    with pytest.raises(InputError):
        build()  # type: ignore[operator]


def test_only_events_add_up() -> None:
    with pytest.raises(TypeError):
        GaussianEvent(1.0) + 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": "sourdine.event", "version": 2, "event": {}}', "update sourdine"),
        ('{"format": "sourdine.event", "version": "one", "event": {}}', "version"),
        ('{"format": "sourdine.event", "version": 1, "event": {"kind": "gauss', "cut short"),
        ('{"format": "sourdine.certificate", "version": 1}', "no event"),
        ('{"format": "sourdine.event", "version": true, "event": {}}', "version"),
        ("[1, 2]", "no event"),
        (
            '{"format": "sourdine.event", "version": 1, "event": '
            + '{"kind": "poisson", "rate": 0.5, "event": ' * 600
            + "{}"
            + "}" * 601,
            "nested|cut short|no kind",
        ),
        ("", "cut short"),
        ('{"format": "sourdine.event", "version": 1}', "no kind"),
        ('{"format": "sourdine.event", "version": 1, "event": {"kind": "magic"}}', "magic"),
        ('{"format": "sourdine.event", "version": 1, "event": {"kind": "gaussian"}}', "damaged"),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "gaussian", "noise_multiplier": -1}}',
            "above zero",
        ),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "gaussian", "noise_multiplier": 1, "x": 2}}',
            "damaged",
        ),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "composed", "items": [{"count": 1}]}}',
            "damaged",
        ),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "composed", "items": [{"count": -1, "event": {"kind": "non-private"}}]}}',
            "damaged",
        ),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "composed", "items": [{"count": 1.5, "event": {"kind": "non-private"}}]}}',
            "damaged",
        ),
        ('{"format": "sourdine.event", "version": 1, "event": {"kind": ["a"]}}', "kind"),
        ('{"format": "sourdine.event", "version": 1, "event": {"kind": "parallel"}}', "damaged"),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "parallel", "events": 3}}',
            "at least one",
        ),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "parallel", "events": [[]]}}',
            "no kind",
        ),
        (
            '{"format": "sourdine.event", "version": 1, "event": {"kind": "gaussian", "noise_multiplier": NaN}}',
            "above zero",
        ),
    ],
)
def test_damaged_files_say_what_to_do(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Event.from_json(text)


def test_a_damaged_file_is_an_event_file_error() -> None:
    with pytest.raises(EventFileError):
        Event.from_json("{")


def test_equal_numbers_make_equal_events() -> None:
    import numpy as np

    assert GaussianEvent(1) == GaussianEvent(np.float32(1.0)) == GaussianEvent(1.0)
    assert GaussianEvent(1).to_json() == GaussianEvent(np.float64(1.0)).to_json()
    assert DiscreteGaussianEvent(1.0, 2.0).sensitivity == 2  # type: ignore[arg-type]
    assert (10**15 - 1) * GaussianEvent(1.0) != 10**15 * GaussianEvent(1.0)
