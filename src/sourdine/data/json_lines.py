"""Files of JSON objects, one a line or in one list, as cells that are strings.

Each value is kept as it was written, as in a .csv, and typed afterwards by the whole column: a number
keeps its digits, true and false their names, and null or a name that a line lacks is missing. Empty
lines are skipped. Lists and objects inside a column are refused when that column is asked for.

No message quotes what a line holds.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from sourdine.data import delimited
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
        self._cells: dict[str, list[str | None]] = {}
        self._places: list[str] = []
        self._nested: dict[str, str] = {}
        try:
            self._read()
        except UnicodeError:
            raise InputError(self._misread()) from None
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{self.name} is damaged or cut short; copy or write it again.") from None
        if not self._places:
            raise InputError(f"{self.name} is empty: it holds no rows; there is nothing to compute on.")
        if len(self._places) == 1 and len(self._nested) == len(self._cells):
            raise InputError(
                f"{self.name} holds one object with everything in it; write one JSON object a line, "
                "one for each record."
            )
        self.columns = tuple(self._cells)

    def load(self, places: list[int]) -> list[Any]:
        """The columns at these places, as strings."""
        return [self._column(self.columns[at]) for at in places]

    def _column(self, name: str) -> Any:
        if name in self._nested:
            raise InputError(
                f"{self._nested[name]} of {self.name} holds a list or an object in column {name!r}, "
                "which is neither a number nor text; write it as one of the two, or leave the column "
                "out."
            )
        try:
            array = pa.array(self._cells[name], pa.string())
        except UnicodeEncodeError:
            array = None
        if array is None:
            where = next(
                place
                for place, cell in zip(self._places, self._cells[name], strict=True)
                if cell is not None and not _encodes(cell)
            )
            raise InputError(
                f"{where} of {self.name} holds half a character (a lone surrogate) in column {name!r}; "
                "mend it, or leave the column out."
            )
        return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

    def _read(self) -> None:
        with self._stream() as stream:
            for place, record in self._records(stream):
                self._add(place, record)

    def _add(self, place: str, record: dict[str, Any]) -> None:
        cells = self._cells
        for name in record:
            if name not in cells:
                cells[name] = [None] * len(self._places)
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
                self._nested.setdefault(name, place)
                value = None
            column.append(value)
        self._places.append(place)

    def _records(self, stream: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each object and where it stands, in words."""
        lines = iter(stream)
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if number == 1 and line.lstrip().startswith("["):
                yield from self._items(line + "".join(lines))
                return
            yield f"line {number}", self._object(line, f"line {number}")

    def _items(self, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
        items = _parsed(text)
        if not isinstance(items, list):
            raise InputError(
                f"{self.name} starts as a list and is not valid JSON, or goes on behind it; write one "
                "JSON object a line."
            )
        for number, item in enumerate(items, 1):
            yield f"item {number}", self._checked(item, f"item {number}")

    def _object(self, line: str, place: str) -> dict[str, Any]:
        return self._checked(_parsed(line), place)

    def _checked(self, value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        if value is _DOUBLED:
            raise InputError(f"{place} of {self.name} has the same name twice; give each column once.")
        raise InputError(
            f"{place} of {self.name} is not one whole JSON object; write one object a line, such as "
            '{"text": "...", "label": "..."}.'
        )

    def _stream(self) -> io.TextIOWrapper:
        opened = gzip.open if self.path.suffix.lower() == ".gz" else open
        # A byte-order mark is no part of the text.
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        return io.TextIOWrapper(opened(self.path, "rb"), encoding=encoding, newline="\n")

    def _misread(self) -> str:
        with self.path.open("rb") as file:
            proposed = "utf-16" if file.read(2) in WIDE else "latin-1"
        return f"{self.name} is not written in {self.encoding}; state its encoding, such as {proposed}."


class _DoubledError(ValueError):
    pass


_DOUBLED = object()


def _parsed(text: str) -> Any:
    """The value, numbers as they were written; None where it is no JSON at all."""
    try:
        return json.loads(
            text, object_pairs_hook=_mapping, parse_int=str, parse_float=str, parse_constant=str
        )
    except _DoubledError:
        return _DOUBLED
    except (ValueError, RecursionError):
        return None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubledError
    return found


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
