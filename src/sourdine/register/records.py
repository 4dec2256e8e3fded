"""Whose records a table holds: a keyed fingerprint of all its columns, and a sketch of its rows.

The same table gives the same fingerprint as CSV, JSON lines, Parquet or a frame, in whatever order its
rows and columns stand, and whichever columns a run reads. So every cell is brought into one form: a
number as the shortest decimal of its double, true and false in lower case, a date at midnight as the
date, a missing value as nothing, space at the ends removed. Two different cells may become one form;
then two tables count as the same records, which adds up too much and never too little.

The sketch holds the 1,024 smallest of the keyed hashes of the rows (bottom-k, Cohen and Kaplan 2007).
From two sketches follows an estimate of the share of the smaller table that stands in the other.

Fingerprint and sketch are private: with the key, anyone could ask for a row. They stay in the register.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind_is
from numpy.typing import NDArray

from sourdine.data.corpus import Corpus
from sourdine.data.fingerprint import own_key
from sourdine.data.kinds import MISSING, settle
from sourdine.data.sources import Source, find
from sourdine.data.tables import Table
from sourdine.errors import InputError

SKETCH = 1024
_DOMAIN = b"sourdine records 1"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_MIDNIGHT = r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]00:00(:00(\.0*)?)?(Z|\+00:00)?$"
_BETWEEN = "\x1f"
_BLOCK = 1 << 16  # rows in memory as Python objects at once

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Records:
    """What is known of the records of a table; equal fingerprints are equal tables."""

    name: str
    fingerprint: str
    sketch: Hashes
    rows: int

    def shared_with(self, other: Records) -> float:
        """About which share of the smaller table's different rows the larger one holds."""
        if self.fingerprint == other.fingerprint:
            return 1.0
        # Below the lower of the two thresholds both sketches are complete.
        reach = min(_threshold(self.sketch), _threshold(other.sketch))
        mine, theirs = self.sketch[self.sketch <= reach], other.sketch[other.sketch <= reach]
        fewest = min(len(mine), len(theirs))
        return len(np.intersect1d(mine, theirs)) / fewest if fewest else 0.0


def identify(source: Any, encoding: str = "utf-8") -> Records | None:
    """The records of anything that tables are read from; None where some column cannot be read.

    Of a corpus or a table that was read from a file all columns of the file count. A column that no run
    reads must not decide whether a run is made, so nothing is raised for its cells.
    """
    try:
        found = find(origin(source), encoding)
        columns = found.load(list(range(len(found.columns))))
    except InputError:
        return None
    names = [str(name) for name in found.columns]
    order = sorted(range(len(names)), key=lambda at: (names[at], at))
    cells = [_form(columns[at]) for at in order]
    if not cells or len({len(column) for column in cells}) > 1 or not len(cells[0]):
        return None
    key = hmac.new(own_key(), _DOMAIN, hashlib.sha256).digest()
    hashes = np.sort(_hashes(cells, key))
    mac = hmac.new(key, _BETWEEN.join(names[at] for at in order).encode(), hashlib.sha256)
    mac.update(hashes.astype("<u8").data)
    return Records(_named(found), mac.hexdigest(), np.unique(hashes)[:SKETCH], len(hashes))


def origin(given: Any) -> Any:
    """The file behind a corpus or a table, or its columns where there is none."""
    if isinstance(given, Corpus):
        given = given.table() if given.path is None else given.path
    if isinstance(given, Table):
        columns = {name: given.numbers.get(name, given.texts.get(name)) for name in given.columns}
        return columns if given.path is None else given.path
    return given


def _named(found: Source) -> str:
    return found.name if found.path is None else str(found.path.resolve())


def _threshold(sketch: Hashes) -> int:
    """Up to here every row of the table is in its sketch."""
    return int(sketch[-1]) if len(sketch) == SKETCH else int(np.iinfo(np.uint64).max)


def _hashes(cells: Sequence[Any], key: bytes) -> Hashes:
    """A keyed hash of each row: of 8 bytes, so that two of 10^7 rows share one in 1 of 3e5 tables."""
    between = pa.scalar(_BETWEEN, pa.large_string())
    found = np.empty(len(cells[0]), np.uint64)
    for start in range(0, len(found), _BLOCK):
        rows = pc.binary_join_element_wise(*(x.slice(start, _BLOCK) for x in cells), between)
        texts = rows.cast(pa.large_binary()).to_pylist()
        digests = b"".join([hashlib.blake2b(row, key=key, digest_size=8).digest() for row in texts])
        found[start : start + _BLOCK] = np.frombuffer(digests, "<u8")
    return found


def _form(column: Any) -> Any:
    """The cells of a column, each in the form that does not depend on how it was stored."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if kind_is.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kind_is.is_boolean(column.type):
        text = column.cast(pa.large_string())
    elif kind_is.is_integer(column.type) or kind_is.is_floating(column.type):
        text = _numbers(column)
    else:
        try:
            settled = settle(column, "")
        except InputError:  # lists and the like: where they stand, and not what they hold
            return pa.array([""] * len(column), pa.large_string())
        text = _numbers(settled) if kind_is.is_floating(settled.type) else _texts(settled)
    if isinstance(text, pa.ChunkedArray):
        text = text.combine_chunks()
    return pc.fill_null(text.cast(pa.large_string()), "")


def _numbers(column: Any) -> Any:
    values = column.cast(pa.float64(), safe=False)
    known = pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    return pc.add(known, 0.0).cast(pa.large_string())  # -0 becomes 0


def _texts(column: Any) -> Any:
    text = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    text = pc.if_else(pc.is_in(text, value_set=pa.array(MISSING, pa.large_string())), "", text)
    lower = pc.utf8_lower(text)
    truth = pc.is_in(lower, value_set=pa.array(["true", "false"], pa.large_string()))
    text = pc.replace_substring_regex(pc.if_else(truth, lower, text), _MIDNIGHT, r"\1")
    is_number = pc.match_substring_regex(text, _NUMBER)
    if not pc.any(is_number).as_py():
        return text
    parsed = pc.if_else(is_number, text, pa.scalar(None, text.type)).cast(pa.float64())
    return pc.coalesce(_numbers(parsed), text)
