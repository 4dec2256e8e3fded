"""Which fields a certificate has and what each may hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import Event

FORMAT = "sourdine.certificate"
VERSION = 1
UNKNOWN, NOT_ACCOUNTED, NONE = "UNKNOWN", "NOT ACCOUNTED", "none"
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Kind:
    """What a single field may hold, in words and as a test."""

    says: str
    fits: Callable[[Any], bool]

    def or_else(self, word: object) -> Kind:
        """The same, or this one value."""
        return Kind(
            f"{self.says} or {json.dumps(word)}", lambda value: value == word or self.fits(value)
        )


def digits(value: object, count: int) -> bool:
    """Whether a value is a text of so many lower-case hex digits."""
    return isinstance(value, str) and len(value) == count and bool(_HEX.fullmatch(value))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _hashes(value: object) -> bool:
    return isinstance(value, dict) and all(digits(found, 64) for found in value.values())


def _event(value: object) -> bool:
    try:
        return isinstance(value, dict) and bool(event_in(value).parts)
    except InputError:
        return False


def event_in(plain: object) -> Event:
    """The event that a field holds."""
    return Event.from_json(json.dumps(plain))


TEXT = Kind("a text", lambda value: isinstance(value, str) and bool(value))
MAYBE_EMPTY = Kind("a text", lambda value: isinstance(value, str))
WHOLE = Kind("a whole number above 0", _whole)
COUNT = WHOLE.or_else(UNKNOWN)
SIZE = Kind("a number, zero or above", lambda value: _number(value) and value >= 0)
SMALL = Kind("a number between 0 and 1", lambda value: _number(value) and 0 < value < 1)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
HASHES = Kind("an object of SHA-256 hashes", _hashes)
EVENT = Kind("an event", _event)
UNIT = Kind("example or user", lambda value: value in checks.UNITS)
ADJACENCY = Kind("zero-out, add-remove or replace-one", lambda value: value in checks.ADJACENCIES)
POINT = {"delta": SMALL, "epsilon_lower": SIZE, "epsilon": SIZE}
FINDING = {"attack": TEXT, "lower_bound": SIZE, "confidence": SMALL, "delta": SMALL}
SIGNATURE = {
    "algorithm": Kind('"Ed25519"', lambda value: value == "Ed25519"),
    "public_key": Kind("64 hex digits", lambda value: digits(value, 64)),
    "value": Kind("128 hex digits", lambda value: digits(value, 128)),
}

SHAPE: dict[str, Any] = {
    "format": TEXT,
    "version": WHOLE,
    "made": TEXT,
    "by": {"sourdine": TEXT, "accountant": TEXT, "python": TEXT},
    "released": {"what": TEXT, "to": TEXT, "files": HASHES},
    "guarantee": {
        "unit": UNIT,
        "contribution_bound": COUNT,
        "adjacency": ADJACENCY,
        "epsilon": SIZE,
        "epsilon_lower": SIZE,
        "delta": SMALL,
        "curve": [POINT],
        "mu": SIZE.or_else(None),
        "budget": {"epsilon": SIZE, "delta": SMALL},
    },
    "events": EVENT,
    "sampling": {"assumed": TEXT, "executed": TEXT},
    "accesses": [
        {"what": TEXT, "cost": EVENT.or_else(NOT_ACCOUNTED).or_else(NONE), "why": MAYBE_EMPTY}
    ],
    "randomness": {"source": TEXT, "numbers": TEXT},
    "audit": (UNKNOWN, [FINDING]),
    "utility": OBJECT,
    "data": {
        "fingerprint": TEXT,
        "records": COUNT,
        "users": COUNT,
        "text": (UNKNOWN, [TEXT]),
        "label": TEXT,
    },
    "model": {"base": TEXT, "trained": TEXT, "parameters": COUNT},
    "training": OBJECT,
    "not_covered": [TEXT],
    "signature": (UNKNOWN, SIGNATURE),
}
"""A dict names exactly the fields of an object; a list its items; a pair is one word, or a shape."""


def check(name: str, value: object, shape: Any) -> None:
    """Refuse a value that has not this shape, by the name of the first field that is wrong."""
    match shape:
        case Kind():
            if not shape.fits(value):
                raise InputError(f"{name} is not {shape.says}: the certificate is damaged.")
            _check_plain(name, value)
        case (word, other):
            if value != word:
                check(name, value, other)
        case [item]:
            if not isinstance(value, list):
                raise InputError(f"{name} is not a list: the certificate is damaged.")
            for place, found in enumerate(value, 1):
                check(f"{name}, item {place}", found, item)
        case _:
            _check_fields(name, value, shape)


def _check_fields(name: str, value: object, shape: Mapping[str, Any]) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{name} is not an object: the certificate is damaged.")
    for field in shape:
        if field not in value:
            raise InputError(f"{name} has no field {field!r}, which every certificate has.")
    for field in value:
        if field not in shape:
            raise InputError(f"{name} has a field {field!r}, which no certificate of this version has.")
    for field, inner in shape.items():
        check(field if name == "the certificate" else f"{name}.{field}", value[field], inner)


def _check_plain(name: str, value: object) -> None:
    """Free fields too hold finite numbers and texts that can be written down."""
    match value:
        case float() if not math.isfinite(value):
            raise InputError(f"{name} holds a number that is not finite: it proves nothing.")
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InputError(f"{name} holds half a character; write it in plain UTF-8.") from None
        case dict():
            for field, inner in value.items():
                _check_plain(name, field)
                _check_plain(f"{name}.{field}", inner)
        case list():
            for inner in value:
                _check_plain(name, inner)


def ordered(value: Any, shape: Any) -> Any:
    """The same value with fields in the order of the shape; free ones by name."""
    match shape:
        case (word, other):
            return value if value == word else ordered(value, other)
        case [item]:
            return [ordered(found, item) for found in value]
        case dict():
            return {field: ordered(value[field], inner) for field, inner in shape.items()}
        case _:
            return _sorted(value)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
