"""Where a ledger is kept: a SQLite file, a PostgreSQL database, or memory.

Guarantee: `Store.writing()` is exclusive among all processes, and what it wrote is on the disk when it
returns, or nothing is. SQLite: BEGIN IMMEDIATE, a rollback journal (one file that can be copied as it
is) and synchronous EXTRA. PostgreSQL: an advisory lock held to the end of the transaction, and
synchronous_commit. A new SQLite ledger is made beside its place and linked there when complete, so that
an empty or cut file is never taken for a fresh budget.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from sourdine.errors import LedgerError
from sourdine.ledger.record import Chain, Entry

VERSION = 1
_LOCK = 0x736F7572  # any fixed number: all ledgers' writers on one database wait for each other
_WAIT = 30.0  # seconds to wait for another writer

_FIXED = ("version", "epsilon", "delta", "unit", "adjacency", "population", "made")
_metadata = sa.MetaData()
ledger_table = sa.Table(
    "sourdine_ledger",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in _FIXED[3:]),
    sa.Column("entries", sa.Integer, nullable=False),
    sa.Column("head", sa.Text, nullable=False),
)
entry_table = sa.Table(
    "sourdine_entry",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    *(
        sa.Column(name, sa.Text, nullable=False)
        for name in ("kind", "text", "label", "who", "at", "source", "data", "reason", "chained")
    ),
    sa.Column("refers", sa.Integer),
)


class Store:
    """One ledger's tables, behind short exclusive transactions."""

    def __init__(self, where: str | Path | None, name: str | None = None) -> None:
        self.name = "in memory" if where is None else str(where)
        self.kept = where is not None
        if where is None:
            self._url, self.path = sa.make_url("sqlite://"), None
        elif "://" in str(where):
            self._url, self.path = self._parsed(str(where)), None
            plain = self._url.set(drivername="postgresql")  # as it was typed, but for the password
            self.name = plain.render_as_string(hide_password=True)
        else:
            if "\0" in str(where):
                raise LedgerError("a ledger's path holds no NUL characters.")
            # The same file after a change of folder; two slashes in front would name a host.
            whole = str(Path(where).absolute())
            self.path = Path("/" + whole.lstrip("/") if whole.startswith("//") else whole)
            # mode rw: a ledger that was deleted is an error, never a new file and a fresh budget.
            address = f"file:{quote(str(self.path))}"
            self._url = sa.URL.create("sqlite", database=address, query={"mode": "rw", "uri": "true"})
        self.name = name or self.name
        self._engine, self._process = self._connected(), os.getpid()
        weakref.finalize(self, _disconnect, self._engine, self._process)

    @staticmethod
    def _parsed(text: str) -> sa.URL:
        try:
            url = sa.make_url(text)
        except sa.exc.ArgumentError:
            raise LedgerError("the ledger's address is no valid URL.") from None
        if url.get_backend_name() != "postgresql":
            raise LedgerError(
                f"a ledger is a SQLite file (give its path) or a PostgreSQL database "
                f"(postgresql://...), not {url.get_backend_name()}."
            )
        return url.set(drivername="postgresql+psycopg")

    def _connected(self) -> sa.Engine:
        if self._url.get_backend_name() != "sqlite":
            try:
                return sa.create_engine(self._url, pool_pre_ping=True)
            except ModuleNotFoundError:
                raise LedgerError(
                    "a ledger on PostgreSQL needs the psycopg driver: pip install 'sourdine[postgres]'."
                ) from None
        memory = self._url.database is None
        engine = sa.create_engine(
            self._url,
            poolclass=StaticPool if memory else NullPool,
            connect_args={"timeout": _WAIT, "check_same_thread": False},
        )
        sa.event.listen(engine, "connect", _prepare)
        return engine

    @property
    def engine(self) -> sa.Engine:
        if self._process != os.getpid():  # a connection must not be shared with the parent
            self._engine.dispose(close=False)
            self._engine, self._process = self._connected(), os.getpid()
            weakref.finalize(self, _disconnect, self._engine, self._process)
        return self._engine

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """An exclusive transaction; everything in it happens, or nothing."""
        with self._speaking(), self.engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                # Whatever the server is set to: a charge is on its disk before anything is drawn.
                connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            yield connection
            connection.commit()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view that blocks nobody for long and needs no right to write."""
        with self._speaking(), self.engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")
            else:
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection
            connection.rollback()

    def exists(self) -> bool:
        """Whether there is a ledger; a file that is none is an error, not a fresh start."""
        if self.path is not None and not self.path.exists():
            return False
        with self.reading() as connection:
            found = sa.inspect(connection).has_table(ledger_table.name)
        if not found and self.path is not None:
            raise LedgerError(
                f"{self.name} is no ledger: it is empty, cut short or another kind of file. Restore it "
                "from a copy, or name another file."
            )
        return found

    def create(self, settings: dict[str, Any]) -> None:
        """Make the ledger, unless somebody else just has."""
        if self.path is None:
            with self.writing() as connection:
                _fill(connection, settings)
            return
        try:
            handle, draft = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            os.close(handle)
        except OSError as error:
            raise LedgerError(f"the ledger {self.name} cannot be made: {error.strerror}.") from None
        try:
            with Store(draft, self.name).writing() as connection:
                _fill(connection, settings)
            _place(Path(draft), self.path)
        except OSError as error:
            raise LedgerError(f"the ledger {self.name} cannot be made: {error.strerror}.") from None
        finally:
            Path(draft).unlink(missing_ok=True)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Turn a database's complaint into one sentence; nothing was charged when it is raised."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise LedgerError(_sentence(self.name, str(error.orig).lower())) from None
        except sa.exc.SQLAlchemyError as error:
            raise LedgerError(
                f"the ledger {self.name} cannot be used ({type(error).__name__}); nothing was charged."
            ) from None


def _place(draft: Path, path: Path) -> None:
    """Put a complete ledger in its place, but never over another one."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        pass  # somebody was quicker: theirs counts
    except OSError:  # a file system without links
        if not path.exists():
            draft.rename(path)


def _disconnect(engine: sa.Engine, process: int) -> None:
    """Close idle connections, but never those of the process that this one was forked from."""
    engine.dispose(close=process == os.getpid())


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # the driver begins no transactions of its own
    connection.execute("PRAGMA synchronous = EXTRA")


def _fill(connection: sa.Connection, settings: dict[str, Any]) -> None:
    _metadata.create_all(connection)
    if connection.execute(sa.select(ledger_table.c.id)).first() is None:
        row = {"id": 1, **settings}
        connection.execute(ledger_table.insert(), {**row, "head": Chain(fixed(row)).head})


def settings(row: Mapping[Any, Any]) -> dict[str, Any]:
    """What never changes about a ledger."""
    return {name: row[name] for name in _FIXED}


def fixed(row: Mapping[Any, Any]) -> str:
    """The same as one text."""
    return json.dumps(settings(row))


def read_settings(connection: sa.Connection) -> sa.RowMapping:
    """The one row that says what the ledger is."""
    row = connection.execute(sa.select(ledger_table)).mappings().first()
    if row is None:
        raise LedgerError("this ledger has lost its first row; restore it from a copy.")
    if row["version"] > VERSION:
        raise LedgerError(
            f"this ledger has version {row['version']}, newer than the version {VERSION} that this "
            "sourdine reads: update sourdine."
        )
    return row


def read_entries(connection: sa.Connection, after: int) -> Iterator[tuple[Entry, str]]:
    """The entries past a given one, each with its stored hash."""
    columns = [entry_table.c[field.name] for field in fields(Entry)]
    query = sa.select(*columns, entry_table.c.chained).where(entry_table.c.id > after)
    for row in connection.execute(query.order_by(entry_table.c.id)).all():
        *values, chained = row
        yield Entry(*values), chained


def write_entry(connection: sa.Connection, entry: Entry, chained: str) -> None:
    """Add one entry and move the head of the chain to it."""
    connection.execute(entry_table.insert(), {**asdict(entry), "chained": chained})
    connection.execute(ledger_table.update().values(entries=entry.id, head=chained))


def _sentence(name: str, complaint: str) -> str:
    reasons = {
        "locked": f"has been locked by another process for {_WAIT:.0f} seconds; try again later",
        "readonly": "is read-only; ask for the right to write",
        "read-only": "is read-only; ask for the right to write, or connect to the primary server",
        "not a database": "is no ledger or is damaged; restore it from a copy",
        "malformed": "is damaged; restore it from a copy",
        "full": "cannot grow, the disk is full; make room and try again",
        "unable to open": "cannot be opened; check the folder and your rights",
        "permission denied": "may not be used by you; ask for the right to read and write its tables",
        "authentication": "refuses the user or the password",
        "does not exist": "does not exist; check the address",
        "connection": "cannot be reached; check the address and that the server runs",
    }
    for sign, reason in reasons.items():
        if sign in complaint:
            return f"the ledger {name} {reason}. Nothing was charged."
    return f"the ledger {name} cannot be used ({complaint.splitlines()[0]}). Nothing was charged."
