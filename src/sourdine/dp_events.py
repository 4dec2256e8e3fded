"""Events to and from dp-accounting's DpEvents, without loss.

What both know is translated; any other DpEvent travels in a ForeignEvent, and events that only
sourdine knows have no DpEvent. dp-accounting takes a second to import, so nothing here is imported
before it is needed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sourdine.errors import EventFileError, NotAccountable
from sourdine.events import (
    NOTHING,
    ComposedEvent,
    DiscreteLaplaceEvent,
    Event,
    FixedSizeEvent,
    ForeignEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    compose,
)

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """dp-accounting without its warnings: of overflow in far tails, which it then treats as lost, and
    of Rényi orders that it leaves out. Its bounds hold all the same."""
    import dp_accounting.rdp  # noqa: F401, PLC0415 (it makes the logger that is asked for below)

    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def from_dp_event(event: DpEvent) -> Event:
    """The event that says the same as dp-accounting's."""
    from dp_accounting import dp_event as dp  # noqa: PLC0415

    match event:
        case dp.NoOpDpEvent():
            return NOTHING
        case dp.NonPrivateDpEvent():
            return NonPrivateEvent()
        case dp.GaussianDpEvent() if event.noise_multiplier > 0:
            return GaussianEvent(event.noise_multiplier)
        case dp.LaplaceDpEvent() if event.noise_multiplier > 0:
            return LaplaceEvent(event.noise_multiplier)
        case dp.DiscreteLaplaceDpEvent() if event.noise_parameter > 0:
            return DiscreteLaplaceEvent(event.noise_parameter, event.sensitivity)
        case dp.RandomizedResponseDpEvent() if event.num_buckets > 1 and event.noise_parameter > 0:
            return RandomizedResponseEvent(event.noise_parameter, event.num_buckets)
        case dp.PoissonSampledDpEvent() if event.sampling_probability > 0:
            return PoissonEvent(event.sampling_probability, from_dp_event(event.event))
        case dp.SampledWithoutReplacementDpEvent() if event.sample_size > 0:
            inner = from_dp_event(event.event)
            return FixedSizeEvent(event.source_dataset_size, event.sample_size, inner)
        case dp.SelfComposedDpEvent():
            return from_dp_event(event.event) * int(event.count)
        case dp.ComposedDpEvent():
            return compose(from_dp_event(part) for part in event.events)
        case _:
            return ForeignEvent(json.dumps(_plain(event), sort_keys=True, allow_nan=False))


def to_dp_event(event: Event) -> DpEvent:
    """The DpEvent that says the same, or NotAccountable where dp-accounting has none."""
    from dp_accounting import dp_event as dp  # noqa: PLC0415

    if getattr(event, "adjacency", None) is not None:
        raise NotAccountable(
            "dp-accounting's events cannot say under which adjacency noise was chosen."
        )
    match event:
        case ComposedEvent():
            parts = [dp.SelfComposedDpEvent(to_dp_event(part), count) for part, count in event.items]
            return dp.ComposedDpEvent(parts) if parts else dp.NoOpDpEvent()
        case GaussianEvent():
            return dp.GaussianDpEvent(event.noise_multiplier)
        case LaplaceEvent():
            return dp.LaplaceDpEvent(event.noise_multiplier)
        case DiscreteLaplaceEvent():
            return dp.DiscreteLaplaceDpEvent(event.parameter, event.sensitivity)
        case RandomizedResponseEvent():
            return dp.RandomizedResponseDpEvent(event.flip, event.buckets)
        case PoissonEvent():
            return dp.PoissonSampledDpEvent(event.rate, to_dp_event(event.event))
        case FixedSizeEvent():
            inner = to_dp_event(event.event)
            return dp.SampledWithoutReplacementDpEvent(event.records, event.sample, inner)
        case SelectionEvent() if event.eta >= 0:
            # It states the law by its mean, which gives gamma back to nine digits, on the safe side.
            return dp.RepeatAndSelectDpEvent(to_dp_event(event.event), event.expected, event.eta)
        case NonPrivateEvent():
            return dp.NonPrivateDpEvent()
        case ForeignEvent():
            return _restored(json.loads(event.text))
        case _:
            raise NotAccountable(f"dp-accounting has no event of kind {event.kind!r}.")


def _plain(value: object) -> Any:
    import attr  # noqa: PLC0415
    from dp_accounting import dp_event as dp  # noqa: PLC0415

    if isinstance(value, dp.DpEvent):
        fields = {name.name: _plain(getattr(value, name.name)) for name in attr.fields(type(value))}
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return float(value)  # type: ignore[arg-type]  # numpy scalars


def _restored(plain: Any) -> Any:
    from dp_accounting import dp_event as dp  # noqa: PLC0415

    if isinstance(plain, dict):
        kind = getattr(dp, str(plain.get("class")), None)
        if not (isinstance(kind, type) and issubclass(kind, dp.DpEvent)):
            raise EventFileError(f"dp-accounting has no event class {plain.get('class')!r}; update it.")
        return kind(**{name: _restored(value) for name, value in plain["fields"].items()})
    return [_restored(item) for item in plain] if isinstance(plain, list) else plain
