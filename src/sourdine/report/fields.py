"""Every field of a certificate as rows that a person can read; none is left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sourdine.events import FORMAT
from sourdine.report.reading import section
from sourdine.report.words import NOT_ACCOUNTED, UNKNOWN, above, below, described, event_of, number

ORDER = (
    *("guarantee", "released", "accesses", "events", "sampling", "randomness", "training", "model"),
    *("data", "utility", "audit", "not_covered", "by", "made", "format", "version", "signature"),
)
_MARKS = {UNKNOWN: "unknown", NOT_ACCOUNTED: "warning"}
_LATER = "in certificate.json, as this page was written before the folder was sealed"
_HASH = re.compile("[0-9a-f]{32,}")


@dataclass(frozen=True)
class Row:
    """A field: its name, its value in words, and how it is shown: "", "unknown", "warning", "hash"."""

    name: str
    value: str
    mark: str = ""


@dataclass(frozen=True)
class Part:
    """A top-level key of the certificate with all its fields."""

    name: str
    rows: tuple[Row, ...]


def parts(certificate: Mapping[str, Any]) -> list[Part]:
    """The certificate, known keys first in a sensible order, then whatever else it holds.

    Keys that hold a single value stand together in a part of their own. A draft says where its hashes
    and its signature will stand: the report is one of the files that they are of.
    """
    if certificate.get("signature") == UNKNOWN:
        certificate = {**certificate, "signature": _LATER}
        if section(certificate, "released").get("files") == {}:
            listed = {"files": f"{_LATER}, each with its hash"}
            certificate["released"] = {**section(certificate, "released"), **listed}
    known = [key for key in ORDER if key in certificate]
    keys = [*known, *(key for key in certificate if key not in ORDER)]
    found, single = [], []
    for key in keys:
        rows = tuple(_rows("", certificate[key]))
        if len(rows) == 1 and not rows[0].name:
            single.append(Row(_spaced(key), rows[0].value, rows[0].mark))
        else:
            found.append(Part(_spaced(key), rows))
    return [*found, Part("other fields", tuple(single))] if single else found


def _rows(name: str, value: Any) -> Iterator[Row]:
    if isinstance(value, Mapping) and value.get("format") == FORMAT:
        event = event_of(value)
        yield Row(name, UNKNOWN if event is None else described(event))
    elif isinstance(value, Mapping) and value and set(value) <= {"delta", "epsilon", "epsilon_lower"}:
        yield Row(name, ", ".join(f"{_spaced(key)} {_bound(key, value[key])}" for key in value))
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _rows(f"{name} · {_spaced(key)}" if name else _spaced(str(key)), inner)
    elif _holds_mappings(value):
        for i, inner in enumerate(value, 1):
            yield from _rows(f"{name} {i}".strip(), inner)
    else:
        written = plain(value)
        yield Row(name, written, _MARKS.get(written, "hash" if _HASH.fullmatch(written) else ""))


def plain(value: Any) -> str:
    """A single value or a list of them, in words; numbers as they stand in the file."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else number(value)
    if isinstance(value, Sequence):
        return "; ".join(plain(item) for item in value) or "none"
    return "none" if value is None or value == {} else str(value)


def _bound(key: str, value: Any) -> str:
    """One end of an interval, shortened and rounded outwards."""
    if isinstance(value, float | int):
        return below(value, 6) if key == "epsilon_lower" else above(value, 6)
    return plain(value)


def _holds_mappings(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and any(isinstance(item, Mapping) for item in value)


def _spaced(key: str) -> str:
    return key if "." in key else key.replace("_", " ")  # with a dot it names a file
