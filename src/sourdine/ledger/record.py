"""The entries of a ledger, what they add up to, and the chain that shows whether one is missing.

Entries are only ever added. A charge counts its event. A reservation counts its whole plan until a
settlement refers to it and says what was run. Each entry carries a hash of itself and of the entry
before, so that a lost or altered line is noticed (by accident, that is: whoever can write the file can
also write new hashes; the certificate's signature is against that).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from sourdine.errors import InputError, LedgerError
from sourdine.events import Event

CHARGE, RESERVE, SETTLE = "charge", "reserve", "settle"
INDEPENDENT = ("crash", "clock", "interrupt")
"""Reasons to stop that do not depend on private outputs: what was not run comes back."""
REASONS = ("done", *INDEPENDENT, "outputs")
START = "0" * 64


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


class Tally:
    """What the entries so far add up to."""

    def __init__(self) -> None:
        self.entries = 0
        self.head = START
        self.counts: Counter[Event] = Counter()
        self.releases = 0
        self._open: dict[int, Event] = {}

    def add(self, entry: Entry, chained: str) -> None:
        """Take one more entry, whose stored hash is `chained`."""
        if entry.id != self.entries + 1 or entry.hash(self.head) != chained:
            raise LedgerError(
                f"entry {self.entries + 1} of this ledger is missing or was altered; restore the "
                "ledger from a copy: what it says cannot be trusted."
            )
        if entry.kind == SETTLE:
            self._take(self._open.pop(entry.refers or 0))
        elif entry.kind == RESERVE:
            self._open[entry.id] = entry.event
        if entry.event.parts:
            self.counts[entry.event] += 1
            self.releases += 1
        self.entries, self.head = entry.id, chained

    def _take(self, event: Event) -> None:
        self.counts[event] -= 1
        self.releases -= 1
        if not self.counts[event]:
            del self.counts[event]

    def reserved(self, identity: int) -> Event:
        """The plan of an open reservation."""
        if identity not in self._open:
            raise InputError(f"entry {identity} is no open reservation: it was settled, or never made.")
        return self._open[identity]

    def counts_with(self, event: Event) -> Counter[Event]:
        """The counts if this event were charged too."""
        return self.counts + Counter({event: 1})


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
