"""Files of comma or tab separated values, read by pyarrow as strings and typed afterwards.

pyarrow would choose each column's type from the first block of the file and fail on a later cell
that does not fit; reading strings first makes the type a function of the whole column. Its messages
quote the offending row, so they are looked at here and never passed on.

Fields may be quoted and hold line breaks. Empty lines are skipped. Spaces around the name of a column
are no part of it; those around cells are taken off by tables.py.

A row with another number of fields than the header, or a cell that is no text in the encoding, is a
fault of one record: the row, or the cell, counts as missing (faults.py). Files with such rows are read
a second time, by one thread, with an escape in the place of what cannot be decoded.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sourdine.data.faults import ERRORS, NOTHING, UNREADABLE, Faults
from sourdine.errors import InputError

BLOCKS = (1 << 20, 1 << 25, 2**31 - 1)
"""Bytes parsed at a time. A row must fit into a block, so larger ones are tried where one does not."""
END = "\x03"
"""Each cell of the row that is put behind the last one; where it is swallowed, a quote is open."""

MISREAD = "not in this encoding"
DAMAGED = "not readable to its end"
EMPTY = "Empty CSV file"  # what pyarrow says, also of a header longer than a block
TOO_LONG = "straddling"  # what pyarrow says of a row longer than a block
RAGGED = "columns, got"  # what pyarrow says of a row with another number of fields
INVALID = "UTF8"  # what pyarrow says of bytes that are none
ESCAPE, ITSELF, GONE = "\ufdd0", "\ufdd1", "\ufdd2"
"""ESCAPE GONE stands for bytes that are no text, ESCAPE ITSELF for the escape: no text holds these."""

Step = Callable[[int, bool, "list[Any] | None"], Any]


class File:
    """One file of separated values, with the names of its columns in the first row."""

    def __init__(self, path: Path, delimiter: str, encoding: str) -> None:
        self.path = path
        self.name = path.name
        self.delimiter = delimiter
        self.encoding = known_encoding(encoding)
        self.faults = Faults()
        self._escaped = False
        self._check_wide()
        self.columns = self._columns()

    def load(self, places: list[int]) -> list[Any]:
        """The columns at these places, as strings; what cannot be read of a record is missing."""
        ragged: list[Any] = []
        cells = self._run(lambda *how: self._cells(places, *how), ragged)
        # The first row is the header, the last one is ours.
        if not len(cells) or any(column[-1].as_py() != END for column in cells.columns):
            raise InputError(f"{self.name} opens a quoted field and never closes it; mend its quotes.")
        columns = cells.slice(1, cells.num_rows - 2).columns
        if self._escaped:
            columns = _unescaped(columns, self.faults, self._misfit())
        if not ragged:
            return list(columns)
        self.faults.count(f"with another number of fields than the header, {NOTHING}", len(ragged))
        return [column.take(_with_gaps(len(column), ragged)) for column in columns]

    def _cells(self, places: list[int], *how: Any) -> Any:
        titles = [f"f{at}" for at in range(len(self.columns))]
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(titles, pa.string()),
            include_columns=[titles[at] for at in places],
        )
        tail = "\n" + self.delimiter.join([END] * len(titles)) + "\n"
        with self._stream(tail.encode()) as stream:
            return csv.read_csv(stream, *self._options(*how), convert)

    def _columns(self) -> tuple[str, ...]:
        titles = self._run(lambda *how: self._first_rows({}, *how), []).schema.names
        # As bytes: a column that is not asked for later may hold what it wants.
        rows = self._run(lambda *how: self._first_rows(dict.fromkeys(titles, pa.binary()), *how), [])
        names = tuple(column[0].as_py().decode(errors=ERRORS).strip(" \t") for column in rows.columns)
        bad = ESCAPE + GONE if self._escaped else UNREADABLE
        if any(bad in name for name in names):
            raise InputError(self._misread())
        if self._escaped:
            names = tuple(name.replace(ESCAPE + ITSELF, ESCAPE) for name in names)
        if len(names) == 1 and self.delimiter == "," and ";" in names[0]:
            raise InputError(
                f"{self.name} seems to be separated by semicolons; save it with commas, or with tabs "
                "as a .tsv."
            )
        return names

    def _first_rows(self, types: dict[str, Any], *how: Any) -> Any:
        convert = csv.ConvertOptions(column_types=types)
        with self._stream() as stream, csv.open_csv(stream, *self._options(*how), convert) as reader:
            return reader.read_next_batch()

    def _run(self, step: Step, ragged: list[Any]) -> Any:
        """Do a step of reading; what goes wrong becomes a sentence without the content of a row.

        ragged: gets the rows that are left out, because they have another number of fields.
        """
        problem = self._tried(step, True, None)
        if isinstance(problem, str) and (
            problem == MISREAD or RAGGED in problem or INVALID in problem or self._escaped
        ):
            # One thread knows which row it is in; and it can hand over text only.
            self._escaped = True
            problem = self._tried(step, False, ragged)
        if isinstance(problem, str):
            raise InputError(self._sentence(problem))
        return problem

    def _tried(self, step: Step, threads: bool, ragged: list[Any] | None) -> Any:
        """What the step returns, or the problem of the largest block that was worth trying."""
        for block in self._blocks():
            if ragged is not None:
                ragged.clear()
            found = _problem(step, block, threads, ragged)
            if not isinstance(found, str) or (TOO_LONG not in found and EMPTY not in found):
                break
        return found

    def _blocks(self) -> list[int]:
        """Block sizes worth trying: none is much larger than the whole file can be."""
        # Deflate shrinks at most 1032 times; another encoding may take twice the bytes in UTF-8.
        whole = self.path.stat().st_size * (2064 if self.path.suffix.lower() == ".gz" else 2)
        smaller = [block for block in BLOCKS[:-1] if block < whole]
        return [*smaller, min(BLOCKS[-1], max(whole, BLOCKS[0]))]

    def _options(self, block: int, threads: bool, bad: list[Any] | None) -> tuple[Any, Any]:
        def note(row: Any) -> str:
            if bad is not None:
                bad.append(row.number)
            return "skip"

        return (
            csv.ReadOptions(use_threads=threads, block_size=block, autogenerate_column_names=True),
            csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=True,
                invalid_row_handler=None if bad is None else note,
            ),
        )

    def _stream(self, tail: bytes = b"") -> Any:
        stream = pa.input_stream(str(self.path), compression="detect")
        if self._escaped:
            return pa.PythonFile(_Escaped(stream, self.encoding, tail), mode="r")
        if self.encoding != "utf-8":
            stream = pa.transcoding_input_stream(stream, self.encoding, "utf-8")
        return pa.PythonFile(_Followed(stream, tail), mode="r")

    def _check_wide(self) -> None:
        """A text whose first character takes two bytes, one of them zero, is UTF-16."""
        if self.encoding == "utf-8" and self.path.suffix.lower() != ".gz":
            with self.path.open("rb") as file:
                start = file.read(2)
            if start in {b"\xff\xfe", b"\xfe\xff"} or b"\0" in start:
                raise InputError(self._misread("utf-16"))

    def _misread(self, proposed: str = "latin-1") -> str:
        return f"{self.name} is not written in {self.encoding}; state its encoding, such as {proposed}."

    def _misfit(self) -> str:
        return (
            f"with bytes that are not {self.encoding}, {NOTHING} there. If there are many, state the "
            "encoding of the file, such as --encoding latin-1"
        )

    def _sentence(self, problem: str) -> str:
        if problem == DAMAGED:
            return f"{self.name} is damaged or cut short; copy or write it again."
        if EMPTY in problem:
            return f"{self.name} is empty: it holds no rows; there is nothing to compute on."
        if TOO_LONG in problem:
            return f"{self.name} has a row of more than 2 GB, or a quote that is never closed; mend it."
        return f"{self.name} cannot be read as separated values; check its quotes, or save it again."


def _problem(step: Callable[[int, bool, list[Any] | None], Any], *how: Any) -> Any:
    """What the step returns, or pyarrow's complaint: for our eyes only, it quotes the data."""
    try:
        return step(*how)
    except UnicodeError:
        return MISREAD
    except OSError:
        return DAMAGED
    except (pa.ArrowException, ValueError, AttributeError, TypeError) as error:
        return str(error)


def known_encoding(name: str) -> str:
    """Python's name for an encoding of text."""
    try:
        "".encode(name)
        canonical = str(codecs.lookup(name).name)
    except (LookupError, TypeError, ValueError):
        raise InputError(
            f"encoding is {name!r}, which is not known; utf-8, utf-16, latin-1 and cp1252 are usual."
        ) from None
    return "utf-8" if canonical == "utf-8-sig" else canonical


class _Followed(io.RawIOBase):
    """A stream with some bytes of ours behind its own."""

    def __init__(self, stream: Any, tail: bytes) -> None:
        self.stream = stream
        self.tail = tail

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.stream.read(size)
        if not data and size >= 0:
            data, self.tail = self.tail[:size], self.tail[size:]
        return data

    def close(self) -> None:
        self.stream.close()
        super().close()


class _Escaped(io.RawIOBase):
    """A stream in UTF-8 whatever the bytes are: an escape stands for those that are no text."""

    def __init__(self, stream: Any, encoding: str, tail: bytes) -> None:
        self.stream = stream
        self.tail = tail
        self._decoder = codecs.getincrementaldecoder(encoding)(ERRORS)
        self._ready, self._over = b"", False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._over and len(self._ready) < max(size, 1):
            block = self.stream.read(BLOCKS[0])
            text = self._decoder.decode(block, final=not block)
            text = text.replace(ESCAPE, ESCAPE + ITSELF).replace(UNREADABLE, ESCAPE + GONE)
            self._ready += text.encode()
            if not block:
                self._ready += self.tail
                self._over = True
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def close(self) -> None:
        self.stream.close()
        super().close()


def _unescaped(columns: Sequence[Any], faults: Faults, fault: str) -> list[Any]:
    """Cells as they were written, and missing where an escape stands for bytes."""
    found, bad = [], np.zeros(len(columns[0]) if columns else 0, dtype=np.bool_)
    for column in columns:
        gone = pc.fill_null(pc.match_substring(column, ESCAPE + GONE), False)
        bad |= np.asarray(gone)
        known = pc.if_else(gone, pa.scalar(None, column.type), column)
        found.append(pc.replace_substring(known, ESCAPE + ITSELF, ESCAPE))
    faults.count(fault, int(bad.sum()))
    return found


def _with_gaps(rows: int, gaps: Sequence[int]) -> Any:
    """Where each row of the file stands among those that were read; nowhere for those left out.

    gaps: the rows that were left out, as pyarrow counts them: the header is row 1.
    """
    read = np.ones(rows + len(gaps), dtype=np.bool_)
    read[np.array(gaps) - 2] = False
    return pa.array(np.cumsum(read) - 1, mask=~read)
