"""Where a table comes from: files, frames, datasets, plain columns, all seen as Arrow columns.

pandas, polars and datasets are recognised by their class and never imported here: who passes a frame
has them already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sourdine import checks
from sourdine.data import delimited, json_lines
from sourdine.data.faults import NOTHING, Faults
from sourdine.errors import InputError

DELIMITERS = {".csv": ",", ".tsv": "\t", ".csv.gz": ",", ".tsv.gz": "\t"}
JSON = tuple(kind + packed for kind in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz"))
KNOWN = (*DELIMITERS, ".parquet", *JSON)
PANDAS_INDEX = "__index_level_"
UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError, NotImplementedError)


@dataclass(frozen=True)
class Source:
    """A table before it is loaded: its name for messages, its columns, and how to load some.

    `written` says that its cells are strings that may stand for numbers; `path` is its file, if any;
    `faults` counts the records of which something could not be read.
    """

    name: str
    columns: tuple[str, ...]
    load: Callable[[list[int]], list[Any]]
    written: bool = False
    path: Path | None = None
    faults: Faults = field(default_factory=Faults)


def find(source: Any, encoding: str) -> Source:
    """Look at a source without loading its columns."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str | Path):
        return _file(source, encoding)
    if isinstance(source, pa.Table | pa.RecordBatch):
        return _columns("an Arrow table", source.schema.names, source.column)
    if _is(source, "datasets", "Dataset"):
        return _dataset(source)
    if _is(source, "datasets", "DatasetDict", "IterableDatasetDict", "IterableDataset"):
        raise InputError(_unsplit(source))
    if _is(source, "pandas", "DataFrame"):
        # By position: names may be doubled, and are checked later.
        return _columns("a pandas frame", list(source.columns), lambda at: source.iloc[:, at])
    if _is(source, "polars", "DataFrame"):
        return _columns("a polars frame", source.columns, source.to_series)
    if isinstance(source, Mapping):
        values = list(source.values())
        return _columns("a dict of columns", list(source), values.__getitem__)
    hint = " (call collect() on it)" if type(source).__name__ == "LazyFrame" else ""
    raise InputError(
        f"a table cannot be read from a value of type {type(source).__name__}{hint}; give a path that "
        f"ends in {', '.join(KNOWN)}, a pandas or polars DataFrame, a pyarrow Table, a "
        "datasets.Dataset or a dict of lists."
    )


def _is(source: Any, library: str, *names: str) -> bool:
    return any(
        base.__name__ in names and base.__module__.split(".")[0] == library
        for base in type(source).__mro__
    )


def _dataset(source: Any) -> Source:
    """A datasets.Dataset as it is seen by its user: after select, filter, shuffle and the like."""
    name, titles = "a datasets.Dataset", tuple(source.column_names)

    def load(places: list[int]) -> list[Any]:
        wanted = [titles[at] for at in places]
        try:
            table = source.select_columns(wanted).with_format("arrow")[:]
            return [_classes(table[title], source.features.get(title)) for title in wanted]
        except UNREADABLE:
            pass
        raise InputError(f"{name} cannot be read: its files may be gone or damaged; load it again.")

    return Source(name, titles, load)


def _classes(column: Any, feature: Any) -> Any:
    """Classes by their names where the dataset knows them; -1 stands for none, as on the hub."""
    if type(feature).__name__ != "ClassLabel" or not feature.names:
        return column
    known = pc.if_else(pc.less(column, 0), pa.scalar(None, column.type), column)
    return pc.take(pa.chunked_array([pa.array(feature.names)]), known)


def _unsplit(source: Any) -> str:
    kind = type(source).__name__
    if not isinstance(source, Mapping):
        return f"an {kind} has no fixed rows; load it without streaming, as a datasets.Dataset."
    splits = ", ".join(repr(str(split)) for split in source)
    first = repr(str(next(iter(source), "train")))
    return f"a {kind} holds several tables ({splits}); take one of them, such as data[{first}]."


def _file(given: str | Path, encoding: str) -> Source:
    suffix = next((known for known in KNOWN if str(given).lower().endswith(known)), None)
    try:
        path = Path(given).expanduser()
        if path.is_dir():
            raise InputError(f"{str(given)!r} is a folder; name one file in it.")
        if not path.exists():
            raise InputError(f"there is no file {str(given)!r}; check the path.")
        if not path.is_file():
            raise InputError(f"{str(given)!r} is not a plain file; copy its content into one.")
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(given)!r} cannot be used as a path; check it.") from None
    if suffix is None:
        raise InputError(f"{path.name} has no known ending; files may end in {', '.join(KNOWN)}.")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(
            f"{str(given)!r} cannot be opened: {error.strerror}; check its permissions."
        ) from None
    if suffix == ".parquet":
        return _parquet(path)
    file: delimited.File | json_lines.File
    if suffix in JSON:
        file = json_lines.File(path, encoding)
    else:
        file = delimited.File(path, DELIMITERS[suffix], encoding)
    return Source(path.name, file.columns, file.load, written=True, path=path, faults=file.faults)


def _parquet(path: Path) -> Source:
    from pyarrow import parquet  # noqa: PLC0415 (only here, and it takes a moment)

    damaged = f"{path.name} is not a Parquet file, or it is damaged or cut short; write it again."
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
    except UNREADABLE:
        raise InputError(damaged) from None
    # The unnamed index of a pandas frame is no column of it.
    kept = [at for at, name in enumerate(names) if not name.startswith(PANDAS_INDEX)]

    def load(places: list[int]) -> list[Any]:
        wanted = [names[kept[at]] for at in places]
        try:
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:
                # A name with a dot also picks others, so the ones wanted are taken out again.
                table = file.read(columns=wanted).select(wanted)
            table.validate()
        except UNREADABLE:
            raise InputError(damaged) from None
        return list(table.columns)

    return Source(path.name, tuple(names[at] for at in kept), load, path=path)


def _columns(name: str, names: Sequence[Any], column: Callable[[int], Any]) -> Source:
    """A source whose columns lie in memory already."""
    if not all(isinstance(n, str | int | np.integer) and not isinstance(n, bool) for n in names):
        raise InputError(f"a column name of {name} is no string; rename the columns to plain strings.")
    titles, faults = tuple(str(n) for n in names), Faults()

    def load(places: list[int]) -> list[Any]:
        return [_arrow(column(at), titles[at], name, faults) for at in places]

    return Source(name, titles, load, faults=faults)


def _arrow(values: Any, title: str, name: str, faults: Faults) -> Any:
    """One column as a ChunkedArray; cells of several Python types become numbers or text."""
    label = f"column {title!r} of {name}"
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not hasattr(values, "__len__"):
        raise InputError(f"{label} is no sequence of values; give a list or an array.")
    try:
        array = values.to_arrow() if hasattr(values, "to_arrow") else _by_type(values)
    except UNREADABLE:
        array = None
    if array is None:
        cells = [_cell(value) for value in values] if getattr(values, "ndim", 1) == 1 else []
        bad = [cell is _NEITHER for cell in cells]
        if not all(bad):
            faults.count(
                f"with neither a number nor text in column {title!r}, {NOTHING} there", sum(bad)
            )
            array = _by_cell([None if cell is _NEITHER else cell for cell in cells])
    if array is None:
        raise InputError(
            f"{label} holds values that are neither numbers nor valid text; turn them into one of the "
            "two, or leave the column out."
        )
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _by_type(values: Any) -> Any:
    if isinstance(values, pa.Array):
        return values
    array = pa.array(values, from_pandas=True)
    # Among dates, a datetime would silently lose its hour.
    objects = str(getattr(values, "dtype", "object")) == "object"
    if objects and pa.types.is_date(array.type) and any(hasattr(value, "hour") for value in values):
        return None
    return array


def _by_cell(cells: list[Any]) -> Any:
    """Numbers where every cell is one, else text as Python writes it."""
    known = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, int | float | Decimal) for cell in known) and not any(
        isinstance(cell, int) and abs(cell) >= checks.MOST for cell in known
    ):
        return pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
    return pa.array([None if cell is None else str(cell) for cell in cells], pa.large_string())


_NEITHER = object()


def _cell(value: Any) -> Any:
    """A number or a text, None where it is missing, _NEITHER where it is something else."""
    try:
        return _plain(value)
    except UNREADABLE:  # such as a Decimal that signals when it is looked at
        return _NEITHER


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return None
    if isinstance(value, float | Decimal) and math.isnan(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if isinstance(value, str):
        return value if _encodes(value) else _NEITHER
    return value if isinstance(value, int | float | Decimal) else _NEITHER


def _encodes(text: str) -> bool:
    """Whether it is whole characters: a lone surrogate is half of one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
