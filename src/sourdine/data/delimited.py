"""Files of comma or tab separated values, read by pyarrow as strings and typed afterwards.

pyarrow would choose each column's type from the first block of the file and fail on a later cell
that does not fit; reading strings first makes the type a function of the whole column. Its messages
quote the offending row, so they are looked at here and never passed on.

Fields may be quoted and hold line breaks. Empty lines are skipped. Spaces around the name of a column
are no part of it; those around cells are taken off by tables.py.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from sourdine.errors import InputError

BLOCKS = (1 << 20, 1 << 25, 2**31 - 1)
"""Bytes parsed at a time. A row must fit into a block, so larger ones are tried where one does not."""
END = "\x03"
"""Each cell of the row that is put behind the last one; where it is swallowed, a quote is open."""

MISREAD = "not in this encoding"
DAMAGED = "not readable to its end"
EMPTY = "Empty CSV file"  # what pyarrow says, also of a header longer than a block
TOO_LONG = "straddling"  # what pyarrow says of a row longer than a block


class File:
    """One file of separated values, with the names of its columns in the first row."""

    def __init__(self, path: Path, delimiter: str, encoding: str) -> None:
        self.path = path
        self.name = path.name
        self.delimiter = delimiter
        self.encoding = known_encoding(encoding)
        self._check_wide()
        self.columns = self._columns()

    def load(self, places: list[int]) -> list[Any]:
        """The columns at these places, as strings."""
        cells = self._run(lambda *how: self._cells(places, *how))
        # The first row is the header, the last one is ours.
        if any(column[-1].as_py() != END for column in cells.columns):
            raise InputError(f"{self.name} opens a quoted field and never closes it; mend its quotes.")
        rows = cells.slice(1, cells.num_rows - 2)
        return list(rows.columns)

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
        titles = self._run(lambda *how: self._first_rows({}, *how)).schema.names
        # As bytes: a column that is not asked for later may hold what it wants.
        rows = self._run(lambda *how: self._first_rows(dict.fromkeys(titles, pa.binary()), *how))
        try:
            names = tuple(column[0].as_py().decode().strip(" \t") for column in rows.columns)
        except UnicodeDecodeError:
            raise InputError(self._misread()) from None
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

    def _run(self, step: Callable[[int, bool, list[Any] | None], Any]) -> Any:
        """Do a step of reading; what goes wrong becomes a sentence without the content of a row."""
        for block in self._blocks():
            problem = _problem(step, block, True, None)
            if not isinstance(problem, str):
                return problem
            if TOO_LONG not in problem and EMPTY not in problem:
                break
        if problem == MISREAD or not self._decodes():
            raise InputError(self._misread())
        # One thread knows which row it is in. Only now, since pyarrow cannot hand over a row that is
        # not UTF-8.
        bad: list[Any] = []
        _problem(step, block, False, bad)
        raise InputError(self._sentence(problem, bad))

    def _decodes(self) -> bool:
        """Whether all of the file is written in its encoding; damage of another kind counts as yes."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            with self._stream() as stream:
                while block := stream.read(1 << 20):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
        except UnicodeError:
            return False
        except (pa.ArrowException, OSError, ValueError):
            return True
        return True

    def _blocks(self) -> list[int]:
        """Block sizes worth trying: none is much larger than the whole file can be."""
        # Deflate shrinks at most 1032 times; another encoding may take twice the bytes in UTF-8.
        whole = self.path.stat().st_size * (2064 if self.path.suffix.lower() == ".gz" else 2)
        smaller = [block for block in BLOCKS[:-1] if block < whole]
        return [*smaller, min(BLOCKS[-1], max(whole, BLOCKS[0]))]

    def _options(self, block: int, threads: bool, bad: list[Any] | None) -> tuple[Any, Any]:
        def note(row: Any) -> str:
            if bad is not None:
                bad.append(row)
            return "error"

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

    def _sentence(self, problem: str, bad: list[Any]) -> str:
        if bad:
            row = bad[0]
            fields = "1 field" if row.actual_columns == 1 else f"{row.actual_columns} fields"
            return (
                f"row {row.number} of {self.name} (the header is row 1) has {fields}, not "
                f"{row.expected_columns}; mend it, or quote the fields that hold a separator."
            )
        if "UTF8" in problem:
            return self._misread()
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
