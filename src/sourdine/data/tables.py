"""A table of private records in memory, checked whole when it is loaded.

Guarantee: whatever can be wrong with a cell is found by `read`, before anything is asked of the
table. No later step can fail because of what one record holds, so no later error tells anything
about it. And no message, here or at load, quotes the content of a cell.

A column holds numbers or text. Whole, decimal and true/false values are numbers, kept as doubles;
everything else is text, with an empty string where a value is missing. `kinds.py` has the rules.

Spaces and tabs around a text are no part of it, wherever the table comes from. Some programs write
", " between the cells of a .csv: whoever asked for "yes" would not find " yes", and pay for the answer.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sourdine.data import kinds, sources
from sourdine.errors import InputError

MOST = float(np.finfo(np.float64).max)
SPACES = " \t"
"""What is taken off both ends of a text."""
SHOWN = 12
"""How many column names a message lists at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Checked columns of equal length. Made by `read`.

    numbers: finite doubles, read-only, none missing. texts: `pyarrow.LargeStringArray`, one chunk,
    no nulls. name: where the table came from, for messages. path: its file, if it was one.
    """

    rows: int
    columns: tuple[str, ...]
    numbers: dict[str, npt.NDArray[np.float64]]
    texts: dict[str, Any]
    name: str
    path: Path | None = None

    def number(self, name: str) -> npt.NDArray[np.float64]:
        """The column of numbers called `name`."""
        self._check(name)
        if name not in self.numbers:
            raise InputError(
                f"column {name!r} of {self.name} holds text, and numbers are needed here; name a "
                "column of numbers, or mend the source and load it again."
            )
        return self.numbers[name]

    def text(self, name: str) -> Any:
        """The column of text called `name`."""
        self._check(name)
        if name not in self.texts:
            raise InputError(
                f"column {name!r} of {self.name} holds numbers, and text is needed here; name a "
                "column of text."
            )
        return self.texts[name]

    def _check(self, name: str) -> None:
        if name not in self.columns:
            raise InputError(_unknown(name, self.columns, self.name))

    def __repr__(self) -> str:
        # The generated one would print the cells.
        kinds_by_name = ", ".join(
            f"{name}: {'number' if name in self.numbers else 'text'}" for name in self.columns
        )
        return f"Table({self.name!r}, {kinds_by_name})"


def read(
    source: str | Path | Mapping[str, Sequence[Any]] | Any,
    *,
    columns: Sequence[str] | None = None,
    missing: Mapping[str, float] | None = None,
    encoding: str = "utf-8",
    names: Sequence[str] = (),
    written: Sequence[str] = (),
) -> Table:
    """Load and check a table.

    source: a path to .csv, .tsv, .jsonl, .ndjson or .json with an object a line (each also as .gz) or
    .parquet; a pandas or polars DataFrame; a pyarrow Table; a datasets.Dataset; a dict of sequences;
    or what `sources.find` made of one. The index of a pandas frame is not read.
    columns: the columns to read, in this order; the others are neither read nor checked. An empty list
    tells the number of rows alone.
    missing: for a column of numbers, the value that takes the place of missing, NaN and infinite
    ones. Without it such a column is refused. It is chosen without looking at the data.
    encoding: how the characters of a text file are written; nothing else needs it.
    names: columns that tell who is who; they are text, whatever they look like.
    written: columns of texts or classes; they are text too, and numbers of any kind are written out.
    """
    found = sources.find(source, encoding)
    path = found.path
    if isinstance(columns, list) and not columns:
        rows = len(found.load([0])[0]) if found.columns else 0
        if rows == 0:
            raise InputError(f"{found.name} holds no rows; there is nothing to compute on.")
        return Table(rows, (), {}, {}, found.name, path)
    places = _places(found.columns, columns, found.name)
    stated = _stated(missing, found.columns, found.name)
    arrays = found.load(list(places.values()))
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise InputError(f"the columns of {found.name} differ in length; give each row every column.")
    rows = lengths.pop()
    if rows == 0:
        raise InputError(f"{found.name} holds no rows; there is nothing to compute on.")
    numbers: dict[str, npt.NDArray[np.float64]] = {}
    texts: dict[str, Any] = {}
    for name, array in zip(places, arrays, strict=True):
        label = f"column {name!r} of {found.name}"
        if name in names:
            settled = kinds.named(array, label)
        elif name in written:
            settled = kinds.written(array, label)
        else:
            settled = kinds.settle(kinds.guess(array) if found.written else array, label)
        if pa.types.is_float64(settled.type):
            numbers[name] = _finite(settled, stated.get(name), name, label)
        elif name in stated:
            raise InputError(f"missing states a number for {label}, which holds text; leave it out.")
        else:
            filled = settled.fill_null("") if settled.null_count else settled
            texts[name] = pc.utf8_trim(filled.combine_chunks(), SPACES)
    return Table(rows, tuple(places), numbers, texts, found.name, path)


def _places(names: Sequence[str], columns: Sequence[str] | None, table: str) -> dict[str, int]:
    """Where each wanted column stands, in the order wanted."""
    if not names:
        raise InputError(f"{table} holds no columns; there is nothing to compute on.")
    wanted = names if columns is None else _listed(columns)
    seen = Counter(names)
    where = {name: at for at, name in enumerate(names)}
    for name in wanted:
        if name not in where:
            raise InputError(_unknown(name, names, table))
        if seen[name] > 1:
            raise InputError(f"{table} has two columns called {name!r}; rename one, or leave them out.")
        if not name.strip():
            raise InputError(
                f"{table} has a column without a name, perhaps a row index; write it without the index "
                "(pandas: index=False), give it a name, or name the columns to read."
            )
    return {name: where[name] for name in wanted}


def _listed(columns: Sequence[str]) -> list[str]:
    names = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else []
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise InputError(
            "columns must be a list of column names, each once, for instance columns=['text']."
        )
    return names


def _stated(missing: Mapping[str, float] | None, names: Sequence[str], table: str) -> dict[str, float]:
    """The values that stand in for missing ones, checked."""
    if missing is not None and not isinstance(missing, Mapping):
        raise InputError(
            "missing must give a number for each column, for instance missing={'age': 40}."
        )
    for name, value in (missing or {}).items():
        if name not in names:
            raise InputError(f"missing: {_unknown(name, names, table)}")
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not -MOST < value < MOST:
            raise InputError(f"missing states {value!r} for {name!r}, but it must be a finite number.")
    return {name: float(value) for name, value in (missing or {}).items()}


def _finite(column: Any, stated: float | None, name: str, label: str) -> npt.NDArray[np.float64]:
    """The numbers, the stated value in place of those that are not there."""
    # Adding zero copies, so that the caller's own array cannot change ours, and makes -0.0 to 0.0.
    values: npt.NDArray[np.float64] = column.to_numpy() + 0.0
    known = np.isfinite(values)
    if not known.all():
        if stated is None:
            raise InputError(
                f"{label} has missing, NaN or infinite values; state the number that takes their place "
                f"(missing {name}=0, chosen without looking), or leave the column out."
            )
        values[~known] = stated
    values.flags.writeable = False
    return values


def _unknown(name: object, names: Sequence[str], table: str) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    if near:
        return f"there is no column {name!r} in {table}; did you mean {near[0]!r}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(repr(known[:40]) for known in names[:SHOWN])  # a misread header may hold rows
    return f"there is no column {name!r} in {table}; it has {shown}{more}."
