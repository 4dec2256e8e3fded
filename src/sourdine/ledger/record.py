"""The entries of a ledger, what they add up to, and the chain that shows whether one is missing.

Entries are only ever added. A charge counts its event. A reservation counts its whole plan until a
settlement refers to it and says what was run. Each entry carries a hash of itself and of the entry
before, the first one of the budget, so that a lost or altered line is noticed (by accident, that is:
whoever can write the file can also write new hashes; the certificate's signature is against that).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from sourdine.accounting.filter import Cost, Filter, Tab
from sourdine.errors import InputError, LedgerError
from sourdine.events import Event

CHARGE, RESERVE, SETTLE = "charge", "reserve", "settle"
INDEPENDENT = ("crash", "clock", "interrupt")
"""Reasons to stop that do not depend on private outputs: what was not run comes back."""
REASONS = ("done", *INDEPENDENT, "outputs")


@dataclass(frozen=True)
class Entry:
    """One line of the history: what was charged, by whom, when, and why."""

    id: int
    kind: str
    text: str
    label: str
    who: str
    at: str
    source: str = ""
    data: str = ""
    refers: int | None = None
    reason: str = ""

    @property
    def event(self) -> Event:
        return _event(self.text)

    def hash(self, before: str) -> str:
        """The next link of the chain."""
        content = _canonical(vars(self))
        return hashlib.sha256(f"{before}\n{content}".encode()).hexdigest()


_canonical = json.JSONEncoder(sort_keys=True).encode


@functools.lru_cache(maxsize=1 << 14)
def _event(text: str) -> Event:
    return Event.from_json(text)


class Chain:
    """Where the entries read so far have come to; it starts from what was fixed with the ledger."""

    def __init__(self, fixed: str) -> None:
        self.entries = 0
        self.head = hashlib.sha256(fixed.encode()).hexdigest()

    def check(self, entry: Entry, chained: str) -> None:
        """Refuse an entry that does not continue the chain; `chained` is its stored hash."""
        if entry.id != self.entries + 1 or entry.hash(self.head) != chained:
            raise LedgerError(
                f"entry {self.entries + 1} of this ledger is missing or was altered; restore the "
                "ledger from a copy: what it says cannot be trusted."
            )

    def add(self, entry: Entry, chained: str) -> None:
        """Take one more entry."""
        self.check(entry, chained)
        self.advance(entry, chained)

    def advance(self, entry: Entry, chained: str) -> None:
        """Move on to an entry that was checked."""
        self.entries, self.head = entry.id, chained


class Tally(Chain):
    """What the entries so far add up to."""

    def __init__(self, rules: Filter, fixed: str) -> None:
        super().__init__(fixed)
        self._rules = rules
        self._tab = Tab()
        self._open: dict[int, Event] = {}
        self.releases: Counter[Event] = Counter()

    def add(self, entry: Entry, chained: str) -> None:
        # What takes time, and may be interrupted, comes before anything is changed.
        self.check(entry, chained)
        event, settled_plan = entry.event, None
        self._rules.cost(event)
        if entry.kind == SETTLE:
            settled_plan = self.reserved(entry.refers or 0)
        self.advance(entry, chained)
        if settled_plan is not None:
            del self._open[entry.refers or 0]
            self._count(settled_plan, -1)
        elif entry.kind == RESERVE:
            self._open[entry.id] = event
        if event.parts:  # a run that never began releases nothing
            self._count(event, 1)

    def _count(self, event: Event, times: int) -> None:
        self._tab.add(self._rules.cost(event), times)
        self.releases[event] += times
        if not self.releases[event]:
            del self.releases[event]

    @property
    def cost(self) -> Cost:
        return self._tab.cost()

    @property
    def alone(self) -> Event | None:
        """The only release, if there is just one."""
        return next(iter(self.releases)) if self.releases.total() == 1 else None

    def reserved(self, identity: int) -> Event:
        """The plan of an open reservation."""
        if identity not in self._open:
            raise InputError(f"entry {identity} is no open reservation: it was settled, or never made.")
        return self._open[identity]


def settled(plan: Event, ran: Event, reason: str) -> Event:
    """What counts of a plan of which `ran` was run, stopped for this reason.

    The unused rest comes back only where the decision to stop did not look at private outputs; else
    the choice itself tells something, and the guarantee is that of the whole plan.
    """
    if reason not in REASONS:
        raise InputError(f"the reason is {reason!r}, but it must be one of {', '.join(REASONS)}.")
    planned = dict(plan.parts)
    if any(count > planned.get(part, 0) for part, count in ran.parts):
        raise InputError(
            "more was run than was reserved: that is a release without a charge. Reserve the whole "
            "plan before it runs."
        )
    if reason == "done" and ran != plan:
        raise InputError(
            "the plan was not run to its end; say why it stopped: crash, clock or interrupt if that "
            "had nothing to do with private outputs, else outputs."
        )
    return ran if reason in INDEPENDENT else plan
