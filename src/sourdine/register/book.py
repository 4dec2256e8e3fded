"""The register as a file: what was charged to which ledger, about whose records, under which ceiling.

Guarantee: `open_book` is exclusive among all processes of this user. What a block entered is on the
disk when it commits. Totals are upper bounds by basic composition (Dwork and Roth 2014, theorem
3.16): the epsilons add up, and so do the deltas. A ledger with one release counts with that release; a
ledger with more counts with its budget, which is what it promises about everything it ever grants. So
two ledgers over the same records cost at most the sum of their lines. Lines of another unit or
adjacency have no common sum; they are listed beside it.

Tables count as the same records where their fingerprints agree, or where about half of the smaller
one's rows stand in the other (records.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sourdine.budget import Budget
from sourdine.checks import file_locks
from sourdine.errors import InputError, SourdineError
from sourdine.home import home
from sourdine.register.records import Records, identify, origin

FILE, LOCK = "register.sqlite", "register.lock"
SAME = 0.5
"""Share of the rows in common above which two tables count as the same records."""
_WAIT = 60.0
_CERTAIN = 1 - 1e-9  # a delta that promises nothing; a budget has none of 1
_LEAST = 1e-6  # a budget's least epsilon; at its ledger's delta alone a release may cost none
_TABLES = """
CREATE TABLE IF NOT EXISTS records (
  id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, name TEXT NOT NULL, rows INTEGER NOT NULL,
  sketch BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS charge (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, ledger TEXT NOT NULL, place TEXT NOT NULL,
  label TEXT NOT NULL,
  epsilon REAL NOT NULL, alone INTEGER NOT NULL, budget REAL NOT NULL, delta REAL NOT NULL,
  unit TEXT NOT NULL, adjacency TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS about (
  charge INTEGER NOT NULL REFERENCES charge(id), records INTEGER NOT NULL REFERENCES records(id));
CREATE TABLE IF NOT EXISTS ceiling (
  records INTEGER PRIMARY KEY REFERENCES records(id), epsilon REAL NOT NULL, unit TEXT NOT NULL,
  adjacency TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS file (
  stamp TEXT PRIMARY KEY, records INTEGER NOT NULL REFERENCES records(id));
"""


@dataclass(frozen=True)
class Charged:
    """One charge as it is entered. alone: nothing was released from its ledger before it."""

    ledger: str
    place: str
    label: str
    epsilon: float
    alone: bool
    budget: Budget


@dataclass(frozen=True)
class Line:
    """What one ledger has spent about some records: its only release, or its whole budget."""

    ledger: str
    place: str
    label: str
    at: str
    releases: int
    budget: Budget
    """Epsilon that counts, at the ledger's delta, per its unit under its adjacency."""


@dataclass(frozen=True)
class Total:
    """Lines of one unit and adjacency, and their sum by basic composition."""

    lines: tuple[Line, ...]

    @property
    def budget(self) -> Budget:
        first = self.lines[0].budget
        epsilon = math.fsum(line.budget.epsilon for line in self.lines)
        delta = min(math.fsum(line.budget.delta for line in self.lines), _CERTAIN)
        return Budget(epsilon, delta, first.unit, first.adjacency)


def sum_up(lines: Sequence[Line]) -> list[Total]:
    """The sums of all lines that may be added up; one for each unit and adjacency."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.budget.unit, line.budget.adjacency), []).append(line)
    return [Total(tuple(group)) for group in groups.values()]


class Register:
    """The open register; made by `open_book`, and good for as long as its block lasts."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block is entered, and on the disk at its end, or nothing is."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def enter(self, charged: Charged, records: Iterable[Records]) -> int:
        """Adds a charge; about no records where nobody knows whose they are."""
        budget = charged.budget
        row = (
            *(datetime.now(UTC).isoformat(timespec="seconds"), charged.ledger, charged.place),
            *(charged.label, charged.epsilon, charged.alone, budget.epsilon, budget.delta),
            *(budget.unit, budget.adjacency),
        )
        number = self._db.execute(
            "INSERT INTO charge"
            " (at, ledger, place, label, epsilon, alone, budget, delta, unit, adjacency)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        ).lastrowid
        for known in dict.fromkeys(self._number(each) for each in records):
            self._db.execute("INSERT INTO about VALUES (?, ?)", (number, known))
        return int(number or 0)

    def withdraw(self, number: int) -> None:
        """Takes back a charge that its ledger refused: nothing was drawn for it."""
        with self.transaction():
            self._db.execute("DELETE FROM about WHERE charge = ?", (number,))
            self._db.execute("DELETE FROM charge WHERE id = ?", (number,))

    def lines(self, records: Records) -> list[Line]:
        """What was charged about these records, one line for each ledger, oldest first."""
        numbers = [number for number, _, _ in self.alike(records)]
        marks = ", ".join("?" * len(numbers))
        return self._by_ledger(f"id IN (SELECT charge FROM about WHERE records IN ({marks}))", numbers)

    def not_compared(self) -> list[Line]:
        """What was charged about records that nobody named."""
        return self._by_ledger("id NOT IN (SELECT charge FROM about)")

    def _by_ledger(self, which: str, values: Sequence[int] = ()) -> list[Line]:
        """Added up by SQLite: every charge reads this, and a session may have thousands."""
        found = self._db.execute(
            # Beside min(), SQLite takes the other columns from the row that has the minimum.
            f"SELECT *, min(id), count(*) AS releases FROM charge WHERE {which}"
            " GROUP BY ledger ORDER BY min(id)",
            values,
        )
        return [_line(row) for row in found]

    def alike(self, records: Records) -> list[tuple[int, Records, float]]:
        """The tables that count as these records, with the share of rows in common."""
        every = [
            (int(number), _stored(row)) for number, *row in self._db.execute("SELECT * FROM records")
        ]
        shares = ((number, other, records.shared_with(other)) for number, other in every)
        return [found for found in shares if found[2] >= SAME]

    def ceilings(self, records: Records) -> list[tuple[Records, Budget]]:
        """The budgets of all ledgers together that these records are under."""
        found = []
        for number, other, _ in self.alike(records):
            row = self._db.execute("SELECT * FROM ceiling WHERE records = ?", (number,)).fetchone()
            if row is not None:
                found.append((other, Budget(row[1], unit=row[2], adjacency=row[3])))
        return found

    def lower_ceiling(self, records: Records, asked: Budget) -> None:
        """Stores a budget of all at its first use; later it may only become smaller."""
        self._db.execute(
            "INSERT INTO ceiling VALUES (?, ?, ?, ?)"
            " ON CONFLICT (records) DO UPDATE SET epsilon = min(epsilon, excluded.epsilon)",
            (self._number(records), asked.epsilon, asked.unit, asked.adjacency),
        )

    def known(self, stamp: str) -> Records | None:
        """The records of a file that was read before and has not changed since."""
        query = (
            "SELECT fingerprint, name, rows, sketch FROM records JOIN file ON records = id"
            " WHERE stamp = ?"
        )
        row = self._db.execute(query, (stamp,)).fetchone()
        return None if row is None else _stored(row)

    def remember(self, stamp: str, records: Records) -> None:
        """Notes whose records a file holds, so that the next run need not read all of its columns."""
        with self.transaction():
            row = (stamp, self._number(records))
            self._db.execute("INSERT OR REPLACE INTO file VALUES (?, ?)", row)

    def _number(self, records: Records) -> int:
        """The number of a table in this register, which is given at its first charge."""
        self._db.execute(
            "INSERT INTO records (fingerprint, name, rows, sketch) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (fingerprint) DO UPDATE SET name = excluded.name",
            (records.fingerprint, records.name, records.rows, records.sketch.astype("<u8").tobytes()),
        )
        query = "SELECT id FROM records WHERE fingerprint = ?"
        return int(self._db.execute(query, (records.fingerprint,)).fetchone()[0])


def recall(source: Any, encoding: str = "utf-8") -> Records | None:
    """As `identify`; a file that has not changed since an earlier run is not read again."""
    stamp = _stamp(origin(source), encoding)
    if stamp is None:
        return identify(source, encoding)
    with open_book() as book:
        found = book.known(stamp)
    if found is None and (found := identify(source, encoding)) is not None:
        with open_book() as book:
            book.remember(stamp, found)
    return found


def _stamp(source: Any, encoding: str) -> str | None:
    """Place, size and times of a file; None for what is none."""
    if not isinstance(source, str | Path):
        return None
    try:
        path = Path(source).expanduser().resolve()
        facts = path.stat()
    except OSError:
        return None
    times = facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_size
    return " ".join([str(path), encoding, *map(str, times)])


def _stored(row: Sequence[object]) -> Records:
    fingerprint, name, rows, sketch = row
    hashes = np.frombuffer(sketch, "<u8").astype(np.uint64)  # type: ignore[call-overload]
    return Records(str(name), str(fingerprint), hashes, int(str(rows)))


def _line(row: sqlite3.Row) -> Line:
    """Of a ledger's first charge, and the number of its charges."""
    single = row["releases"] == 1 and bool(row["alone"])
    epsilon = max(row["epsilon"], _LEAST) if single else row["budget"]
    counted = Budget(epsilon, row["delta"], row["unit"], row["adjacency"])
    return Line(row["ledger"], row["place"], row["label"], row["at"], row["releases"], counted)


@contextlib.contextmanager
def open_book() -> Iterator[Register]:
    """The register of this user, held by this process alone until the block ends.

    A block must not open it again: it would wait for itself.
    """
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(_opened(home()))
        except OSError as error:
            raise SourdineError(
                f"the register {home() / FILE} cannot be written: {error.strerror}. Every charge is "
                "entered there first, so nothing was charged; make room, or mend its permissions."
            ) from None
        except sqlite3.Error as error:
            raise _damaged(error) from None
        try:
            yield Register(connection)
        except sqlite3.Error as error:  # of the register: a ledger speaks of its own in other words
            raise _damaged(error) from None


def _damaged(error: sqlite3.Error) -> InputError:
    return InputError(
        f"the register {home() / FILE} cannot be used ({error}): it is damaged, or its disk is full. "
        "Mend it, or restore it from a copy. Nothing was drawn."
    )


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder / LOCK):
        os.close(os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o600))
        with contextlib.closing(_connected(folder / FILE)) as connection:
            yield connection


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_WAIT, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.executescript(_TABLES)
    return connection


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock that orders register, ledger and draw; it ends with the process."""
    fcntl = file_locks()
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
