"""The ledger: what has been spent on one population's data, shared by many processes.

It stores events, not epsilons, and adds them up anew inside the transaction that grants a charge.

Guarantee: everything that a ledger ever granted is together (epsilon, delta)-DP for its unit under its
adjacency, where the budget was fixed when the ledger was made.
- One plan alone, fixed before anything was seen, is held against the budget by its own curve, tightly.
- Anything more goes through a Rényi filter (accounting/filter.py), because later events may have been
  chosen after looking at earlier answers; each plan enters as one charge.
Both fit together: nothing was released before the first plan, so it was fixed in advance; if it fits
the budget by its curve alone, nothing is granted after it, and if it fits the filter too, the filter
covers all that follows.

`charge` is to be called before anything is drawn. It returns when the charge is on the disk; whoever is
killed afterwards has spent it. A refused charge records nothing.
"""

from __future__ import annotations

import copy
import getpass
import hashlib
import secrets
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from sourdine import checks, notebook
from sourdine.accounting.filter import Filter
from sourdine.budget import Budget
from sourdine.errors import (
    BudgetError,
    InputError,
    LedgerError,
    WeakPromise,
)
from sourdine.events import Event
from sourdine.ledger import store
from sourdine.ledger.record import CHARGE, RESERVE, SETTLE, Chain, Entry, Tally, settled


@dataclass(frozen=True)
class Spent:
    """What has been spent: epsilon at the budget's delta, how it was added up, and what is left.

    `left` is the largest epsilon of one more pure release that would be granted; `delta` is what
    releases with a delta of their own have used, and `delta_left` what is kept for more of them.
    """

    epsilon: float
    left: float
    delta: float
    delta_left: float
    releases: int
    method: str


class Witness(Protocol):
    """Hears of every charge before it is made, and may refuse it; see sourdine.register."""

    def charging(self, ledger: Ledger, event: Event, label: str) -> AbstractContextManager[None]:
        """Entered before the ledger is asked, left when the charge is on the disk or was refused."""
        ...


class Ledger:
    """A spending record; see the top of this file.

    where: the path of a SQLite file, a postgresql:// URL, or None for memory (gone with the process).
    budget: needed to make a new ledger; for one that exists it must be the same, if given. A new one
    has an epsilon of at most 100; above 10 it warns (WeakPromise).
    population: whose data this is about, in words; one ledger serves one population. The same people
    in a second ledger have a second budget: the guarantee is then the sum of both.
    lazy: a new ledger is made by its first granted charge, not before.
    nameless: it lies in a folder that is handed on, so its entries do not say who made them.
    """

    def __init__(
        self,
        where: str | Path | None,
        budget: Budget | None = None,
        *,
        population: str | None = None,
        lazy: bool = False,
        nameless: bool = False,
    ) -> None:
        if not isinstance(where, str | Path | None) or not isinstance(budget, Budget | None):
            raise InputError("a ledger is opened by its path or URL, and a budget: Budget(1, 1e-6).")
        self._store = store.Store(where)
        self._lock = threading.RLock()
        self.witness: Witness | None = None
        self._nameless = nameless
        self._own_name = secrets.token_hex(16)  # of a ledger in memory
        self._exists = self._store.exists()
        self._broken = False
        if self._exists:
            self._open(budget, population)
            return
        if budget is None:
            raise LedgerError(f"there is no ledger at {self.name}; start one with a budget.")
        if said := checks.warning(checks.protecting(budget.epsilon)):
            warnings.warn(said, WeakPromise, stacklevel=2)
        self.budget, self.population = budget, _text("population", population or "")
        self._filter, self._settings = Filter(budget), _settings(budget, self.population)
        self._fixed = store.fixed(self._settings)
        self._tally = Tally(self._filter, self._fixed)
        if not lazy or where is None:
            self._make()

    def _make(self) -> None:
        self._store.create(self._settings)
        self._look()

    def _look(self) -> None:
        """Take up a ledger that was not there before, if it is the one that was meant."""
        if not self._exists and self._store.exists():
            self._open(self.budget, self.population)  # somebody may have been quicker, with another
            self._exists = True

    def _open(self, budget: Budget | None, population: str | None) -> None:
        with self._store.reading() as connection:
            row = store.read_settings(connection)
        found = Budget(row["epsilon"], row["delta"], row["unit"], row["adjacency"])
        if budget is not None:
            _check_same(self.name, found, budget)
        if population is not None and population != row["population"]:
            about = repr(row["population"]) if row["population"] else "a population without a name"
            raise LedgerError(
                f"the ledger {self.name} is about {about}, not {population!r}; name the ledger of the "
                "people in question."
            )
        self.budget, self.population = found, str(row["population"])
        self._settings = {**store.settings(row), "entries": 0}
        self._filter, self._fixed = Filter(found), store.fixed(row)
        self._tally = Tally(self._filter, self._fixed)

    def watched_by(self, witness: Witness) -> Ledger:
        """The same ledger as one run sees it: the charges made through it are heard by this witness."""
        found = copy.copy(self)  # store, lock and tally stay in common
        found.witness = witness
        return found

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def path(self) -> Path | None:
        """Its file, if it is one."""
        return self._store.path

    @property
    def settings(self) -> dict[str, object]:
        """What was fixed when it was made; whoever makes a ledger of these has the same promise."""
        return dict(self._settings)

    @property
    def identity(self) -> str:
        """A name for this ledger that a copy or a restored backup in another place does not have."""
        where = self._store.name if self.kept else self._own_name
        where = str(self.path.resolve()) if self.path is not None else where
        return hashlib.sha256(f"{where}\n{self._fixed}".encode()).hexdigest()

    @property
    def exists(self) -> bool:
        """Whether it has been made; a lazy one is made by its first charge."""
        return self._exists

    @property
    def kept(self) -> bool:
        """Whether it outlives this process."""
        return self._store.kept

    def charge(
        self, event: Event, label: str, *, who: str | None = None, source: str = "", data: str = ""
    ) -> Entry:
        """Record a release that is about to be drawn, or raise BudgetError and record nothing.

        source: the kind of the random source; data: a keyed fingerprint of the table. Both are for the
        history only: a table that has changed goes on spending the same budget.
        """
        return self._grant(CHARGE, event, label, who, source, data)

    def reserve(
        self, plan: Event, label: str, *, who: str | None = None, source: str = "", data: str = ""
    ) -> Entry:
        """Charge a whole plan before its first step; `settle` says later what was run of it."""
        return self._grant(RESERVE, plan, label, who, source, data)

    def settle(
        self, reservation: Entry | int, ran: Event, because: str, *, who: str | None = None
    ) -> Entry:
        """Close a reservation of which `ran` was run.

        because: "done"; "crash", "clock" or "interrupt" give back what was not run; "outputs" (the run
        was stopped for what it showed) keeps the whole plan charged. A reservation that is never
        settled stays charged in full.
        """
        identity = reservation if isinstance(reservation, int) else reservation.id
        _check_event(ran, empty=True)
        if not self._exists:
            raise InputError(f"entry {identity} is no open reservation: nothing was ever reserved.")
        with self._lock, self._store.writing() as connection:
            tally = self._read(connection)
            counted = settled(tally.reserved(identity), ran, because)
            entry = self._entry(SETTLE, counted, f"settles entry {identity}", self._author(who))
            entry = Entry(**{**vars(entry), "refers": identity, "reason": because})
            self._write(connection, entry)
            return entry

    def spent(self) -> Spent:
        """What all entries add up to now."""
        with self._lock:
            tally = self._tally
            self._look()
            if self._exists:
                with self._store.reading() as connection:
                    tally = self._read(connection)
            epsilon, method = self._filter.epsilon(tally.cost), "filter"
            if tally.alone is not None and (alone := self.alone(tally.alone)) < 0.99 * epsilon:
                epsilon, method = alone, "curve"
            releases, used = tally.releases.total(), tally.cost.delta
            left = self._filter.left(tally.cost) if releases else self.budget.epsilon
            rest = max(0.0, self._filter.delta_approximate - used)
            return Spent(epsilon, left, used, rest, releases, method)

    def fits(self, event: Event) -> bool:
        """Whether the event would be granted now. Nothing is charged: another may be quicker."""
        with self._lock:
            self._look()
            tally = self._tally
            if self._exists:
                with self._store.reading() as connection:
                    tally = self._read(connection)
            try:
                self._check(tally, event, "")
            except BudgetError:
                return False
            return True

    def alone(self, event: Event) -> float:
        """What the event costs by itself, as an epsilon at the budget's delta."""
        return self._filter.alone(event)

    def price(self, event: Event) -> float:
        """What one release counts for beside others, as an epsilon at the budget's delta."""
        return self._filter.epsilon(self._filter.cost(event))

    def history(self) -> list[Entry]:
        """Every entry, oldest first, checked against the chain."""
        with self._lock:  # memory has one connection for all threads
            self._look()
            if not self._exists:
                return []
            with self._store.reading() as connection:
                row = store.read_settings(connection)
                chain, entries = Chain(store.fixed(row)), []
                for entry, chained in store.read_entries(connection, 0):
                    chain.add(entry, chained)
                    entries.append(entry)
                _check_head(chain, row)
        return entries

    def _repr_html_(self) -> str:
        return notebook.ledger(self)

    def _grant(
        self, kind: str, event: Event, label: str, who: str | None, source: str, data: str
    ) -> Entry:
        _check_event(event)
        self._filter.cost(event)  # the slow part, before anybody has to wait for the lock
        texts = {"label": label, "who": self._author(who), "source": source, "data": data}
        for name, text in texts.items():
            _text(name, text)
        watched = nullcontext() if self.witness is None else self.witness.charging(self, event, label)
        with watched, self._lock:
            self._look()
            if not self._exists:
                self._check(self._tally, event, label)
                self._make()
            with self._store.writing() as connection:
                tally = self._read(connection)
                self._check(tally, event, label)
                entry = self._entry(kind, event, **texts)
                self._write(connection, entry)
                return entry

    def _check(self, tally: Tally, event: Event, label: str) -> None:
        cost = self._filter.cost(event)
        total = tally.cost + cost
        if self._filter.allows(total):
            return
        epsilon, left = self._filter.epsilon(total), self._filter.left(tally.cost)
        if not tally.releases:
            epsilon, left = self.alone(event), self.budget.epsilon
            if epsilon <= self.budget.epsilon:
                return
        elif cost.delta and total.delta > self._filter.delta_approximate:
            rest = max(0.0, self._filter.delta_approximate - tally.cost.delta)
            raise BudgetError(
                f"{label!r} was not run: its delta of {cost.delta:.4g} is more than the {rest:.4g} "
                "that this ledger still keeps for releases with a delta of their own. Lower its delta."
            )
        raise BudgetError(
            f"{label!r} was not run: it would bring the total to epsilon={epsilon:.6g} at "
            f"delta={self.budget.delta:g}, over the budget of {self.budget.epsilon:g} per "
            f"{self.budget.unit}, of which {left:.4g} is left. Lower its epsilon or ask for a larger "
            "budget."
        )

    def _read(self, connection: sa.Connection) -> Tally:
        """Add up what was written since the last look; entries are never changed, only added to."""
        row = store.read_settings(connection)
        if self._broken or store.fixed(row) != self._fixed:
            raise LedgerError(
                f"the ledger {self.name} is not the one that was opened, or was found damaged; open it "
                "again when it is mended."
            )
        if row["entries"] < self._tally.entries:
            raise LedgerError(
                f"the ledger {self.name} is shorter than it was: it was replaced by an older copy. "
                "Restore the newer one."
            )
        try:
            for entry, chained in store.read_entries(connection, self._tally.entries):
                self._tally.add(entry, chained)
            _check_head(self._tally, row)
        except BaseException as error:  # an interrupt too: what was half read is read again
            self._broken = isinstance(error, LedgerError)
            self._tally = Tally(self._filter, self._fixed)
            raise
        return self._tally

    def _author(self, who: str | None) -> str:
        """Whom an entry names. The chain covers it, so a name could not be taken out later."""
        return "" if self._nameless else _text("who", who or _user())

    def _entry(
        self, kind: str, event: Event, label: str, who: str, source: str = "", data: str = ""
    ) -> Entry:
        text = event.to_json()
        if Event.from_json(text) != event:
            raise InputError("this event does not come back from its own text; nothing was charged.")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return Entry(self._tally.entries + 1, kind, text, label, who, now, source, data)

    def _write(self, connection: sa.Connection, entry: Entry) -> None:
        store.write_entry(connection, entry, entry.hash(self._tally.head))


def _settings(budget: Budget, population: str) -> dict[str, object]:
    return {
        "version": store.VERSION,
        **{name: getattr(budget, name) for name in ("epsilon", "delta", "unit", "adjacency")},
        "population": population,
        "made": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "entries": 0,
    }


def _text(name: str, value: object) -> str:
    """A text that comes back from a database as it was."""
    if isinstance(value, str) and "\0" not in value:
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            pass
    raise InputError(f"{name} must be plain text, not {value!r}; nothing was charged.")


def _check_event(event: object, *, empty: bool = False) -> None:
    if not isinstance(event, Event) or not (empty or event.parts):
        raise InputError(f"{event!r} is no release that could be charged; give an event.")


def _check_head(chain: Chain, row: sa.RowMapping) -> None:
    if (chain.entries, chain.head) != (row["entries"], row["head"]):
        raise LedgerError(
            "the last entries of this ledger are missing or were altered; restore it from a copy: what "
            "it says cannot be trusted."
        )


def _check_same(name: str, found: Budget, asked: Budget) -> None:
    for field in ("unit", "adjacency", "epsilon", "delta"):
        was, now = getattr(found, field), getattr(asked, field)
        if was != now:
            raise LedgerError(
                f"the ledger {name} was made for {field} {was}, not {now}; a ledger's promise is fixed "
                "when it is made. Use it as it is, or name another one."
            )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this user id, as in some containers
        return "unknown"
