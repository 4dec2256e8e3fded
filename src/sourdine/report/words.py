"""How numbers and events are put into words; bounds are rounded to the safe side."""

from __future__ import annotations

import json
import math
from dataclasses import fields

from sourdine import digits as numbers
from sourdine.errors import EventFileError
from sourdine.events import (
    ApproximateEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonEvent,
)

UNKNOWN = "UNKNOWN"
NOT_ACCOUNTED = "NOT ACCOUNTED"


def above(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, rounded up: a printed bound still holds."""
    return _infinite(value) or numbers.above(value, digits)


def below(value: float, digits: int = 3) -> str:
    """The same, rounded down."""
    return _infinite(value) or numbers.below(value, digits)


def number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, rounded to the nearest."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return _infinite(value) or numbers.nearest(value, digits)


def share(value: float) -> str:
    """A probability as a percentage with two digits, rounded up and never above 100 %."""
    return f"{above(min(1.0, value) * 100, 2)} %"


def of_hundred(value: float) -> int:
    """How many of 100 a share is at most. What rounding errors add past a whole number is dropped."""
    return min(100, math.ceil(value * 100 - 1e-9))


def chance(probability: float) -> str:
    """A small probability as "1 in 1,000,000", never rounded to a smaller one."""
    return f"1 in {math.floor(1 / probability * (1 + 1e-12)):,}"


def _infinite(value: float) -> str:
    """Words for what is no number, "" for what is one."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    return ""


def event_of(document: object) -> Event | None:
    """The event in a certificate's JSON, or None where it says UNKNOWN, NOT ACCOUNTED or none.

    Raises EventFileError for a document that is neither.
    """
    if isinstance(document, str | None):
        return None
    try:
        return Event.from_json(json.dumps(document))
    except (TypeError, ValueError) as error:
        if isinstance(error, EventFileError):
            raise
        raise EventFileError(
            "an event of the certificate is damaged; render the report from an unchanged certificate."
        ) from None


def described(event: Event) -> str:
    """An event in one line that a person can read."""
    match event:
        case ComposedEvent():
            return "; ".join(counted(part, count) for part, count in event.parts) or "nothing"
        case ParallelEvent():
            each = " or ".join(f"({described(branch)})" for branch in event.events)
            return f"{each}, whichever a unit's part of the data meets"
        case PoissonEvent():
            return f"a Poisson lot at rate {number(event.rate)} with {described(event.event)}"
        case GaussianEvent():
            return f"Gaussian noise of multiplier {number(event.noise_multiplier)}"
        case LaplaceEvent():
            return f"Laplace noise of multiplier {number(event.noise_multiplier)}"
        case DiscreteGaussianEvent():
            sigma, moved = number(event.sigma), event.sensitivity
            return f"integer Gaussian noise of deviation {sigma} on what one unit moves by {moved}"
        case ApproximateEvent():
            return f"a release with epsilon {above(event.epsilon)} and delta {above(event.delta)}"
    stated = [f"{field.name} {_plain(getattr(event, field.name))}" for field in fields(event)]
    return f"{event.kind} ({', '.join(stated)})".replace("_", " ")


def _plain(value: object) -> str:
    return described(value) if isinstance(value, Event) else str(value)


def counted(event: Event, count: int) -> str:
    """An event with its number of repetitions."""
    return f"{count:,} × {described(event)}" if count > 1 else described(event)
