"""Whether a column holds numbers or text.

A typed column (Parquet, frames) says so itself: true/false, whole, floating and decimal types are
numbers; strings, categories, dates and times are text, the last two written as ISO 8601, in UTC
where they carry a zone. Lists, structs, durations and the like are refused.

The cells of a .csv are all strings. A column is read as numbers when every cell that is not missing
is a plain number ("3", "-0.5", "1e-3", "inf"; spaces around it do not count) or every one is true
or false in any case. One cell that is neither makes the whole column text, wherever it stands in
the file, and text keeps every cell as it was written, "NA" included (tables.py takes off the spaces
around it). That is how columns are kept and shown; whether a question reads numbers or text is decided
by the question (tables.py).

Codes stay text: a column with a cell that starts with "+", with a zero before another digit ("007"),
or that is a whole number of more than 15 digits. As doubles, two such codes could become one, and
with them two persons. For the same reason a typed column of whole numbers that reaches 10^15 is text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind_is

from sourdine import checks
from sourdine.errors import InputError

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None")
"""What stands for a missing value in a .csv column that otherwise holds numbers."""
CODE = r"^(\+|-?0[0-9]|-?[0-9]{16,}$)"
NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
HEAD = 1000


def settle(column: Any, label: str) -> Any:
    """The column as float64 (missing values null or NaN) or as large_string.

    A cell that is neither, such as bytes that are not UTF-8, is missing; a column of nothing else is
    refused. `label` names it in messages.
    """
    try:
        return _settled(column, label)
    except pa.ArrowException:
        pass
    cells = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    parts = _halved(cells, label)
    kinds = [part.type for part in parts if part is not None and not kind_is.is_null(part.type)]
    if not kinds:
        raise InputError(
            f"{label} cannot be turned into numbers or text, or holds bytes that are not UTF-8; mend "
            "it, or leave the column out."
        )
    whole = [pa.array([None], kinds[0]) if part is None else part.cast(kinds[0]) for part in parts]
    chunks = [chunk for part in whole for chunk in getattr(part, "chunks", [part])]
    return pa.chunked_array(chunks, kinds[0])


def _halved(cells: Any, label: str) -> list[Any]:
    """The column in pieces that can be settled, and None for each single cell that cannot."""
    try:
        return [_settled(cells, label)]
    except pa.ArrowException:
        if len(cells) == 1:
            return [None]
        middle = len(cells) // 2
        return _halved(cells.slice(0, middle), label) + _halved(cells.slice(middle), label)


def named(column: Any, label: str) -> Any:
    """A column of names as large_string, each as it was written.

    Doubles would make one person of "1.1" and "1.10", so whole numbers are the only numbers taken;
    whatever else stands among them names nobody. A column without any is refused.
    """
    settled = settle(column, label)
    kind = column.type.value_type if kind_is.is_dictionary(column.type) else column.type
    if not kind_is.is_float64(settled.type):
        return settled
    if kind_is.is_integer(kind):
        return column.cast(kind).cast(pa.large_string())
    # A gap in a column of whole numbers makes pandas turn all of them into doubles.
    values = settled.to_numpy()
    with np.errstate(invalid="ignore"):
        whole = (np.abs(values) < checks.MOST) & (values == np.trunc(values))
    if whole.any() and not kind_is.is_boolean(kind):
        texts = [str(int(value)) if fits else None for value, fits in zip(values, whole, strict=True)]
        return pa.chunked_array([pa.array(texts, pa.large_string())])
    raise InputError(
        f"{label} tells who is who, but holds numbers that need not be whole, by which two persons "
        "could become one; turn it into text or whole numbers."
    )


def written(column: Any, label: str) -> Any:
    """A column of texts or classes as large_string; two different numbers never become one text.

    A whole number has no point, also where a gap beside it made the column one of doubles.
    """
    settled = settle(column, label)
    if not kind_is.is_float64(settled.type):
        return settled
    if kind_is.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not kind_is.is_floating(column.type):
        return column.cast(pa.large_string())
    return pa.chunked_array(
        [[_number(value) for value in chunk.to_numpy(zero_copy_only=False)] for chunk in column.chunks],
        pa.large_string(),
    )


def _number(value: np.floating[Any]) -> str | None:
    if np.isnan(value):
        return None
    whole = abs(value) < checks.MOST and value == int(value)
    return str(int(value) if whole else value)


def _settled(column: Any, label: str) -> Any:
    kind = column.type
    if kind_is.is_dictionary(kind):
        return _settled(column.cast(kind.value_type), label)
    if kind_is.is_run_end_encoded(kind):
        return _settled(pa.chunked_array([pc.run_end_decode(c) for c in column.chunks]), label)
    if kind_is.is_boolean(kind):
        return column.cast(pa.uint8()).cast(pa.float64())
    if kind_is.is_integer(kind) or (kind_is.is_decimal(kind) and kind.scale == 0):
        return column.cast(pa.large_string() if _are_codes(column) else pa.float64())
    if kind_is.is_floating(kind) or kind_is.is_decimal(kind):
        return column.cast(pa.float64())
    if kind_is.is_temporal(kind) and not (kind_is.is_duration(kind) or kind_is.is_interval(kind)):
        return _iso(column)
    if kind_is.is_null(kind):
        return column.cast(pa.large_string())
    return _text(column, label)


def guess(cells: Any) -> Any:
    """Cells of a .csv as the numbers they stand for, or as they are."""
    # Most columns of text show it in their first cells: no need to go through all the others.
    if _numbers(cells.slice(0, HEAD)) is None:
        return cells
    numbers = _numbers(cells)
    return cells if numbers is None or numbers.null_count == len(numbers) else numbers


def parsed(cells: Any) -> npt.NDArray[np.float64]:
    """Each cell as the number that it stands for by itself, NaN where it stands for none.

    true and false are 1 and 0. A code such as "007" is no number, see above.
    """
    trimmed = pc.ascii_trim_whitespace(cells)
    is_number = pc.and_not(
        pc.match_substring_regex(trimmed, NUMBER), pc.match_substring_regex(trimmed, CODE)
    )
    values = pc.if_else(is_number, trimmed, pa.scalar(None, trimmed.type)).cast(pa.float64())
    truth = pc.index_in(pc.ascii_lower(trimmed), value_set=pa.array(["false", "true"], trimmed.type))
    found = pc.coalesce(values, truth.cast(pa.float64())).to_numpy(zero_copy_only=False) + 0.0
    found[~np.isfinite(found)] = np.nan
    return np.asarray(found, dtype=np.float64)


def number_in(text: str) -> float | None:
    """The number that a text stands for, as a cell would."""
    found = float(parsed(pa.array([text], pa.large_string()))[0])
    return None if np.isnan(found) else found


def _numbers(cells: Any) -> Any:
    """The cells as doubles, null where missing; None when they are not all numbers."""
    trimmed = pc.ascii_trim_whitespace(cells)
    gone = pc.is_in(trimmed, value_set=pa.array(MISSING))
    known = pc.if_else(gone, pa.scalar(None, trimmed.type), trimmed)
    if pc.any(pc.match_substring_regex(known, CODE)).as_py():
        return None
    try:
        return known.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    truth = pc.index_in(pc.ascii_lower(known), value_set=pa.array(["false", "true"]))
    return truth.cast(pa.float64()) if truth.null_count == known.null_count else None


def _are_codes(column: Any) -> bool:
    ends = pc.min_max(column).as_py()
    return any(end is not None and abs(end) >= checks.MOST for end in ends.values())


def _iso(column: Any) -> Any:
    """Dates and times as text that does not depend on the unit they were stored in."""
    kind = column.type
    if kind_is.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    text = column.cast(pa.large_string())
    text = pc.replace_substring(text, " ", "T")
    return pc.replace_substring_regex(text, r"(?:(\.[0-9]*[1-9])|\.)0+(Z?)$", r"\1\2")


def _text(column: Any, label: str) -> Any:
    kind = column.type
    strings = kind_is.is_string(kind) or kind_is.is_large_string(kind) or kind_is.is_string_view(kind)
    # Parquet files of older writers mark strings as plain bytes.
    raw = kind_is.is_binary(kind) or kind_is.is_large_binary(kind) or kind_is.is_binary_view(kind)
    if not strings and not raw:
        raise InputError(
            f"{label} holds values of type {_plain(kind)}, which are neither numbers nor text; turn "
            "them into one of the two, or leave the column out."
        )
    column.validate(full=True)
    return column.cast(pa.large_string())


def _plain(kind: Any) -> str:
    """The type without its inner names and metadata, which may come from the data."""
    return str(kind).split("<", 1)[0].split("[", 1)[0]
