"""Files of JSON objects, one a line or in one list, as cells that are strings.

Each value is kept as it was written, as in a .csv, and typed afterwards by the whole column: a number
keeps its digits, true and false their names, and null or a name that a line lacks is missing. Empty
lines are skipped. A line that is no JSON object, and a cell that is neither a number nor text, are
faults of one record and count as missing (faults.py).

No message quotes what a line holds.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from sourdine.data import delimited
from sourdine.data.faults import ERRORS, NOTHING, Faults
from sourdine.errors import InputError

MOST_COLUMNS = 10_000
"""Past it, the names inside the objects are data themselves, such as the names of persons."""
WIDE = (b"\xff\xfe", b"\xfe\xff")
"""How a text in UTF-16 starts."""


class File:
    """One file of JSON objects, read whole; its columns are the names in them, as they first appear."""

    def __init__(self, path: Path, encoding: str) -> None:
        self.path = path
        self.name = path.name
        self.encoding = delimited.known_encoding(encoding)
        self.faults = Faults()
        self._cells: dict[str, list[str | None]] = {}
        self._rows = 0
        self._nested: Counter[str] = Counter()
        try:
            self._check_wide()
            self._read()
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{self.name} is damaged or cut short; copy or write it again.") from None
        if not self._rows:
            raise InputError(f"{self.name} is empty: it holds no rows; there is nothing to compute on.")
        if not self._cells:
            raise InputError(
                f"no line of {self.name} is one whole JSON object; write one object a line, such as "
                '{"text": "...", "label": "..."}, and state the encoding if it is not utf-8.'
            )
        if self._rows == 1 and len(self._nested) == len(self._cells):
            raise InputError(
                f"{self.name} holds one object with everything in it; write one JSON object a line, "
                "one for each record."
            )
        self.columns = tuple(self._cells)

    def load(self, places: list[int]) -> list[Any]:
        """The columns at these places, as strings."""
        return [self._column(self.columns[at]) for at in places]

    def _column(self, name: str) -> Any:
        if self._nested[name] == self._rows:
            raise InputError(
                f"{self.name} holds a list or an object in column {name!r} of every record, which is "
                "neither a number nor text; write it as one of the two, or leave the column out."
            )
        fault = f"with a list or an object in column {name!r}, {NOTHING} there"
        self.faults.count(fault, self._nested[name])
        cells = self._cells[name]
        try:
            array = pa.array(cells, pa.string())
        except UnicodeEncodeError:
            whole = [cell if cell is None or _encodes(cell) else None for cell in cells]
            broken = sum(cell is not None for cell in cells) - sum(cell is not None for cell in whole)
            fault = f"with bytes that are not {self.encoding}, or half a character, in column {name!r}"
            self.faults.count(f"{fault}, {NOTHING} there", broken)
            array = pa.array(whole, pa.string())
        return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

    def _read(self) -> None:
        with self._stream() as stream:
            for record in self._records(stream):
                known = (
                    record is not None and len(record) <= MOST_COLUMNS and all(map(_encodes, record))
                )
                if not known:
                    self.faults.count(f"without one whole JSON object, {NOTHING}")
                self._add(record if known and record is not None else {})

    def _add(self, record: dict[str, Any]) -> None:
        cells = self._cells
        for name in record:
            if name not in cells:
                cells[name] = [None] * self._rows
        if len(cells) > MOST_COLUMNS:
            raise InputError(
                f"{self.name} has more than {MOST_COLUMNS:,} different names in its objects, as if "
                "they were data; give every record the same few columns."
            )
        for name, column in cells.items():
            value = record.get(name)
            if isinstance(value, bool):
                value = "true" if value else "false"
            elif isinstance(value, dict | list):
                self._nested[name] += 1
                value = None
            column.append(value)
        self._rows += 1

    def _records(self, stream: io.TextIOWrapper) -> Iterator[dict[str, Any] | None]:
        """Each object, or None where there is none."""
        start = stream.readline()
        rest: Iterable[str] = stream
        if start.lstrip().startswith("["):
            whole = start + stream.read()
            items = _parsed(whole)
            if isinstance(items, list):
                yield from map(_object, items)
                return
            rest = whole.split("\n")[1:]  # no list, but lines of which the first is no object
        for line in itertools.chain([start], rest):
            if line.strip():
                yield _object(_parsed(line))

    def _stream(self) -> io.TextIOWrapper:
        opened = gzip.open if self.path.suffix.lower() == ".gz" else open
        # A byte-order mark is no part of the text.
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        raw = opened(self.path, "rb")
        return io.TextIOWrapper(raw, encoding=encoding, errors=ERRORS, newline="\n")

    def _check_wide(self) -> None:
        with self.path.open("rb") as file:
            if self.encoding == "utf-8" and file.read(2) in WIDE:
                raise InputError(
                    f"{self.name} is not written in {self.encoding}; state its encoding, such as "
                    "utf-16."
                )


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) and value.get(_DOUBLED) is None else None


_DOUBLED = "\udc80 a name that stands twice"  # half a character: no column can be called so


def _parsed(text: str) -> Any:
    """The value, numbers as they were written; None where it is no JSON at all."""
    try:
        return json.loads(
            text, object_pairs_hook=_mapping, parse_int=str, parse_float=str, parse_constant=str
        )
    except (ValueError, RecursionError):
        return None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else {_DOUBLED: True}


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
