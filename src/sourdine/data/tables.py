"""A table of private records in memory, checked whole when it is loaded.

Guarantee: what one record holds decides neither whether a table is loaded nor whether a question
about it is answered. A cell that cannot be read is missing (faults.py), its owner is told how many
there are, and no message quotes the content of a cell. A column is refused only where no record at all
has a usable cell in it.

A column is kept as numbers or as text. Whole, decimal and true/false values are numbers, kept as
doubles; everything else is text, with an empty string where a value is missing (`kinds.py` has the
rules). Whoever asks says which of both is meant: in a column of text `number` takes each cell for the
number that it stands for by itself, so that one cell does not change what the others mean.

Spaces and tabs around a text are no part of it, wherever the table comes from. Some programs write
", " between the cells of a .csv: whoever asked for "yes" would not find " yes", and pay for the answer.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sourdine.data import kinds, sources
from sourdine.data.faults import NOTHING, Faults
from sourdine.errors import InputError

MOST = float(np.finfo(np.float64).max)
SPACES = " \t"
"""What is taken off both ends of a text."""
SHOWN = 12
"""How many column names a message lists at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Checked columns of equal length. Made by `read`.

    numbers: finite doubles, read-only, NaN where a record has none. texts: `pyarrow.LargeStringArray`,
    one chunk, no nulls. name: where the table came from, for messages. path: its file, if it was one.
    written: the cells of columns of a text file that are numbers because every cell looks like one.
    stated: the numbers that take the place of missing ones.
    """

    rows: int
    columns: tuple[str, ...]
    numbers: dict[str, npt.NDArray[np.float64]]
    texts: dict[str, Any]
    name: str
    path: Path | None = None
    written: dict[str, Any] = field(default_factory=dict)
    stated: Mapping[str, float] = field(default_factory=dict)
    _parsed: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    _asked: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def number(self, name: str) -> npt.NDArray[np.float64]:
        """The column called `name` as numbers, NaN where a record has none."""
        self._check(name)
        if name in self.numbers:
            return self.numbers[name]
        if name not in self._asked:
            values, faults = self.lenient(name), Faults()
            if np.isnan(values).all():
                raise InputError(
                    f"column {name!r} of {self.name} holds text, and numbers are needed here; name a "
                    "column of numbers, or mend the source and load it again."
                )
            self._asked[name] = _stand_ins(values, self.stated.get(name), name, faults)
            faults.tell(self.name)
        return self._asked[name]

    def lenient(self, name: str) -> npt.NDArray[np.float64]:
        """As `number`, also for a column without any, and silently."""
        self._check(name)
        if name in self.numbers:
            return self.numbers[name]
        if name not in self._parsed:
            self._parsed[name] = kinds.parsed(self.texts[name])
        return self._parsed[name]

    def filled(self, name: str) -> npt.NDArray[np.bool_]:
        """Which records have anything in this column."""
        if name in self.numbers:
            return ~np.isnan(self.numbers[name])
        return np.asarray(pc.not_equal(pc.ascii_trim_whitespace(self.texts[name]), ""))

    def text(self, name: str) -> Any:
        """The column called `name` as text, each cell as it was written."""
        self._check(name)
        if name in self.texts:
            return self.texts[name]
        if name not in self.written:
            raise InputError(
                f"column {name!r} of {self.name} holds numbers, and text is needed here; name a "
                "column of text."
            )
        return _text(self.written[name])

    def may_be_text(self, name: str) -> bool:
        """Whether the source does not say that this column holds numbers."""
        return name in self.texts or name in self.written

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
    ones. Without it a record without a number counts as nothing. It is chosen without looking at the
    data.
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
    as_written: dict[str, Any] = {}
    for name, array in zip(places, arrays, strict=True):
        label = f"column {name!r} of {found.name}"
        if name in names:
            settled = kinds.named(array, label)
        elif name in written:
            settled = kinds.written(array, label)
        else:
            settled = kinds.settle(kinds.guess(array) if found.written else array, label)
        if pa.types.is_float64(settled.type):
            numbers[name] = _stand_ins(settled.to_numpy(), stated.get(name), name, found.faults)
            if found.written:
                as_written[name] = array
            continue
        texts[name] = _text(settled)
        if name not in names:
            fault = f"with neither a number nor text in column {name!r}, {NOTHING} there"
            found.faults.count(fault, max(0, settled.null_count - array.null_count))
    found.faults.tell(found.name)
    return Table(rows, tuple(places), numbers, texts, found.name, path, as_written, stated)


def _text(column: Any) -> Any:
    filled = column.fill_null("") if column.null_count else column
    return pc.utf8_trim(filled.cast(pa.large_string()).combine_chunks(), SPACES)


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


def _stand_ins(
    column: npt.NDArray[np.float64], stated: float | None, name: str, faults: Faults
) -> npt.NDArray[np.float64]:
    """The numbers; the stated value, or NaN, in place of those that are not there."""
    # Adding zero copies, so that the caller's own array cannot change ours, and makes -0.0 to 0.0.
    values: npt.NDArray[np.float64] = column + 0.0
    known = np.isfinite(values)
    values[~known] = np.nan if stated is None else stated
    if stated is None:
        fault = (
            f"without a number in column {name!r}, {NOTHING} there. To put a number in their place, "
            f"chosen without looking, state it: --missing {name}=0 (missing=)"
        )
        faults.count(fault, int((~known).sum()))
    values.flags.writeable = False
    return values


def _unknown(name: object, names: Sequence[str], table: str) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    if near:
        return f"there is no column {name!r} in {table}; did you mean {near[0]!r}?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(repr(known[:40]) for known in names[:SHOWN])  # a misread header may hold rows
    return f"there is no column {name!r} in {table}; it has {shown}{more}."
