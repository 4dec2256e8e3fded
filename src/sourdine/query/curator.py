"""The curator: holds the private rows, charges the ledger, and draws.

Guarantee: all answers of all sessions that draw on one ledger are together (epsilon, delta)-DP for
the ledger's unit and adjacency, whatever was asked and in whatever order. Each answer is a mechanism
applied to exact integer sums; its event is charged before anything is drawn, in `_released`, the only
place that draws. What is taken as public: names and kinds of the columns, everything in the question
(bounds, keys, bins, vocabulary), and under zero-out and replace-one the number of rows.

Values are clipped to the declared bounds and counted in 2^-30 of their range, so that one row moves a
sum by exactly what the sensitivity says; floats would not (Casacuberta et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.budget import Budget
from sourdine.data import kinds
from sourdine.data.fingerprint import file_fingerprint, fingerprint
from sourdine.data.tables import SPACES, Table, read
from sourdine.errors import InputError
from sourdine.events import compose
from sourdine.ledger import Ledger
from sourdine.mechanisms import Exponential, Laplace, OpenCounts
from sourdine.mechanisms.sensitivity import Sensitivity, grouped
from sourdine.query import people, where
from sourdine.register import watch
from sourdine.rng import Source, secure

FINE = 1 << 30
"""Steps in which a value between -1 and 1 is counted."""

Mask = NDArray[np.bool_]
Mechanism = Laplace | Exponential | OpenCounts


class Curator:
    """What every question needs: the rows that count, and the one way to release something.

    data: a path to CSV, TSV or Parquet, a pandas, polars or pyarrow table, or what `read` returned.
    budget: a Budget (kept in memory, gone with the session) or a Ledger to draw on.
    user: the column that names the person, for unit "user"; rows_per_user of each person count.
    budget_of_all: the largest epsilon of all ledgers over these records together (register/).
    columns, missing, encoding: see `sourdine.data.tables.read`; everything is checked here, at load.
    """

    def __init__(
        self,
        data: Any,
        budget: Budget | Ledger,
        *,
        user: str | None = None,
        rows_per_user: int = 1,
        columns: Sequence[str] | None = None,
        missing: Mapping[str, float] | None = None,
        encoding: str = "utf-8",
        confidence: float = 0.95,
        source: Source | None = None,
        budget_of_all: float | None = None,
    ) -> None:
        if not isinstance(budget, Budget | Ledger):
            raise InputError("give a budget, such as Budget(1, 1e-6), or a Ledger to draw on.")
        self.ledger = budget if isinstance(budget, Ledger) else Ledger(None, budget)
        self._unit, self.adjacency = self.ledger.budget.unit, self.ledger.budget.adjacency
        self.confidence = checks.probability("confidence", confidence)
        self._rows = checks.whole("rows_per_user", rows_per_user)
        self._source = source or secure()
        if (user is None) == (self.ledger.budget.unit == "user"):
            raise InputError(
                "the budget protects users, so name the user column, which tells whose row it is."
                if user is None
                else "a user column was given, but the budget protects single examples; ask for one "
                "with unit user."
            )
        if user is None and rows_per_user != 1:
            raise InputError("rows per user are for unit user; an example is one row.")
        names = () if user is None else (user,)
        self.table = (
            data
            if isinstance(data, Table)
            else read(data, columns=columns, missing=missing, encoding=encoding, names=names)
        )
        if user is None and self.adjacency != "add-remove":  # else n is private, and no error tells it
            checks.delta(self.ledger.budget.delta, self.table.rows)
        self._owner = people.owners(self.table, user) if user is not None else None
        self._counts = people.first_rows(self._owner, self._rows) if self._owner is not None else None
        self.ledger = watch(self.ledger, [data], encoding, budget_of_all=budget_of_all)
        self.fingerprint = _fingerprint(self.table) if self.ledger.kept else ""
        self._codes: dict[str, tuple[NDArray[np.int64], dict[str, int]]] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True

    def _released(self, label: str, drawn: Sequence[tuple[Mechanism, Any]]) -> list[Any]:
        """Charge for all mechanisms together, then draw from each: here, and nowhere else."""
        if self._closed:
            raise InputError("this session is closed; open another one on the same ledger.")
        budget = self.ledger.budget
        if (budget.unit, budget.adjacency) != (self._unit, self.adjacency):
            raise InputError("the ledger protects another unit than this session; open another one.")
        event = compose(mechanism.event for mechanism, _ in drawn)
        self.ledger.charge(event, label, source=self._source.kind, data=self.fingerprint)
        return [mechanism.release(value, self._source) for mechanism, value in drawn]

    def _mask(self, conditions: Sequence[str]) -> Mask | None:
        """The rows that a question is about; None where it is about all of them."""
        found = where.rows(self.table, conditions)
        if found is None or self._counts is None:
            return self._counts if found is None else found
        return np.logical_and(found, self._counts)

    def _size(self, mask: Mask | None) -> int | None:
        """The number of rows in question where it is public: all of them, n public, one row a unit."""
        public = mask is None and self.adjacency != "add-remove"
        return self.table.rows if public else None

    def _groups(self, mask: Mask | None, by: str | None, keys: Sequence[Any] | None) -> list[Mask]:
        """The rows of each declared key, or of the whole question."""
        everything = np.ones(self.table.rows, dtype=np.bool_) if mask is None else mask
        if by is None:
            if keys is not None:
                raise InputError("keys are the values of a column to group by; name it (by=).")
            return [everything]
        return [np.logical_and(everything, same) for same in self._same(by, keys)]

    def _same(self, by: str, keys: Sequence[Any] | None) -> list[Mask]:
        """For each declared key the rows that hold it. Keys read off the data would be a release."""
        if not isinstance(keys, list | tuple | np.ndarray) or not len(keys):
            raise InputError(
                f"grouping by {by!r} needs the keys to report, declared without looking at the data."
            )
        values = [self._key(by, key) for key in keys]
        # 1, 1.0 and "1" are one key: a row in two groups would move both, and only one is charged.
        if len(set(values)) != len(values) or len({str(key) for key in keys}) != len(values):
            raise InputError(f"two keys of {by!r} are the same value; declare each once.")
        if not all(isinstance(value, float) for value in values):
            codes, words = self._dictionary(by)
            return [
                np.asarray(codes == words.get(str(key).strip(SPACES), -1), dtype=np.bool_)
                for key in keys
            ]
        column = self.table.lenient(by)
        return [np.asarray(column == value, dtype=np.bool_) for value in values]

    def _key(self, column: str, key: Any) -> float | str:
        """A declared key: a number where it stands for one, whatever the cells hold, else a text."""
        text = str(key).strip(SPACES)  # as the cells were read
        number = kinds.number_in(text.encode(errors="replace").decode())
        if number is not None:
            return checks.finite(f"a key of {column!r}", number)
        self.table.lenient(column)  # refuses what is no column
        if not self.table.may_be_text(column):
            raise InputError(
                f"column {column!r} holds numbers, but the key {key!r} is none; declare numbers."
            )
        return text

    def _dictionary(self, column: str) -> tuple[NDArray[np.int64], dict[str, int]]:
        """A column of text as numbers, and the number of each text."""
        if column not in self._codes:
            encoded = self.table.text(column).dictionary_encode()
            words = {word: code for code, word in enumerate(encoded.dictionary.to_pylist())}
            codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
            self._codes[column] = codes, words
        return self._codes[column]

    def _label(
        self, name: str, column: str | None, conditions: Sequence[str] = (), by: str | None = None
    ) -> str:
        """How answers and the history call a question."""
        conditions = [conditions] if isinstance(conditions, str) else list(conditions)
        parts = [name, f"of {column}" if column else "", f"by {by}" if by else ""]
        parts.append("where " + " and ".join(conditions) if conditions else "")
        if self._owner is not None:
            parts.append(
                f"(first {self._rows} rows of each user)"
                if self._rows > 1
                else "(first row of each user)"
            )
        return " ".join(part for part in parts if part)

    def _moves(self, groups: int, spread: float) -> Sensitivity:
        """How a unit moves sums over disjoint groups of rows (mechanisms.sensitivity.grouped)."""
        return grouped(groups, self.adjacency, rows=self._rows, spread=spread)


def exact_sums(values: NDArray[np.int64], groups: Sequence[Mask]) -> list[Fraction]:
    """Sums of values counted in 1 / FINE, without any rounding."""
    return [Fraction(int(values[group].sum()), FINE) for group in groups]


def _fingerprint(table: Table) -> str:
    """Of the whole file where there is one: each question may read other columns of it."""
    return file_fingerprint(table.path) if table.path else fingerprint(table)
