"""What the report and the model card both read from a certificate and its metrics.

Both are plain mappings; what is missing or of another kind reads as UNKNOWN or is passed over.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from jinja2 import Environment, PackageLoader, StrictUndefined

from sourdine.report.plots import Measured
from sourdine.report.words import NOT_ACCOUNTED, UNKNOWN, described, event_of

ABSENCE = {
    "zero-out": "blanked out, while the number of records is public",
    "add-remove": "left out, so that even the number of records stays private",
    "replace-one": "exchanged for any other",
}
_NAMES = {
    "macro_f1": "macro F1",
    "matthews": "Matthews correlation",
    "largest_class": "share of the largest class",
}


@dataclass(frozen=True)
class Access:
    """One look at the data: what for, what it cost, and "warning" or "unknown" where it shows none."""

    what: str
    cost: str
    why: str
    mark: str


@functools.cache
def environment() -> Environment:
    """Templates of this package; everything put into a page of HTML is escaped."""
    loader = PackageLoader("sourdine.report", "templates")
    return Environment(
        loader=loader,
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


NOTHING_TRAINED = "nothing"
"""What trains, in the certificate of encodings: an encoder is used as it is."""


def subject(certificate: Mapping[str, Any]) -> str:
    """What the run made, in a few words."""
    model = section(certificate, "model")
    base, made = text(model, "base"), "A private text classifier"
    if model.get("trained") == NOTHING_TRAINED:
        made = "Private encodings of texts"
    return made if base == UNKNOWN else f"{made} from {base}"


def named(certificate: Mapping[str, Any]) -> str:
    """What the run made, where a sentence points to it."""
    encodings = section(certificate, "model").get("trained") == NOTHING_TRAINED
    return "these encodings" if encodings else "this model"


def looks(certificate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The accesses to the data that a certificate lists."""
    listed = certificate.get("accesses")
    found = listed if isinstance(listed, list | tuple) else ()
    return [access for access in found if isinstance(access, Mapping)]


def accesses(certificate: Mapping[str, Any]) -> list[Access]:
    """The same in words."""
    found = []
    for access in looks(certificate):
        event = event_of(access.get("cost"))
        cost = text(access, "cost") if event is None else described(event)
        mark = {NOT_ACCOUNTED: "warning", UNKNOWN: "unknown"}.get(cost, "")
        found.append(Access(text(access, "what"), cost, str(access.get("why", "")), mark))
    return found


def measurements(metrics: Mapping[str, Any]) -> list[Measured]:
    """The metrics that have a value, each with its interval, and its reference where there is one."""
    reference = section(metrics, "reference")
    found = []
    for name, given in metrics.items():
        value = given.get("value") if isinstance(given, Mapping) else None
        if not number(value):
            continue
        low, high = (_number_or(given.get(end), value) for end in ("low", "high"))
        beside = reference.get(name) if name != "largest_class" else None  # says nothing of a model
        beside = beside.get("value") if isinstance(beside, Mapping) else beside
        spoken = _NAMES.get(name, name.replace("_", " "))
        found.append(Measured(spoken, value, low, high, beside if number(beside) else None))
    return found


def useless(metrics: Mapping[str, Any]) -> str:
    """In words where a model is no better than always one answer; "" where it is, or nobody knows."""
    if metrics.get("beats_largest_class") is not False:
        return ""
    name = section(metrics, "largest_class").get("name")
    which = f" ({name})" if name else ""
    return (
        f"This model is no better than always answering the most frequent class{which}: the interval "
        "of its accuracy does not lie above the share of that class."
    )


def classes(metrics: Mapping[str, Any]) -> str:
    """The names of the classes, as they were released; "" where metrics do not say."""
    return ", ".join(strings(metrics.get("classes")))


def confidence(metrics: Mapping[str, Any]) -> str:
    """The confidence that all intervals share, as "95 %"; empty where they differ or state none."""
    stated = [m.get("confidence") for m in metrics.values() if isinstance(m, Mapping) and "value" in m]
    shared = stated[0] if stated and all(other == stated[0] for other in stated) else None
    return f"{shared * 100:.4g} %" if number(shared) else ""


def section(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside another; empty where there is none."""
    found = mapping.get(name)
    return found if isinstance(found, Mapping) else {}


def text(mapping: Mapping[str, Any], name: str) -> str:
    """A field as text; UNKNOWN where it is missing."""
    return str(mapping.get(name, UNKNOWN))


def strings(value: object) -> list[str]:
    """The items of a list, as texts."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def number(value: object) -> TypeGuard[float]:
    """Whether this is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number_or(value: object, other: float) -> float:
    return value if number(value) else other
