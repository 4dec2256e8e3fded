"""One run's part of a ledger that many runs share: opening it, and the extract that is handed on.

Guarantee: the extract of a run holds the ledger's settings and this run's entries, unchanged but for
their numbers, the name of who made them, and the time of a settlement (how long a run took is private).
It has a chain of its own. Its releases are those of the run, so that a certificate can state the run's
own curve; its budget is that of the shared ledger, a bound for everything that ledger ever grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sourdine.budget import Budget
from sourdine.errors import LedgerError
from sourdine.ledger import store
from sourdine.ledger.book import Ledger
from sourdine.ledger.record import Chain, Entry

FILE = "ledger.sqlite"
"""What the ledger of a run folder is called."""


def open_shared(where: Ledger | str | Path, epsilon: float | None = None) -> Ledger:
    """A ledger that exists; `epsilon` is named in the command that would start a missing one."""
    if isinstance(where, Ledger):
        return where
    try:
        return Ledger(where)
    except LedgerError as error:
        if "://" in str(where) or Path(where).exists():
            raise error
        asked = "EPSILON" if epsilon is None else f"{epsilon:g}"
        raise LedgerError(
            f"there is no ledger at {where}. Start one with the budget of all its runs together: "
            f"sourdine ledger budget {where} --epsilon {asked}. Nothing was charged."
        ) from None


def check_part(ledger: Ledger, part: Budget) -> Budget:
    """The part of a run has the delta, unit and adjacency of the ledger that it is charged to."""
    for name in ("delta", "unit", "adjacency"):
        was, asked = getattr(ledger.budget, name), getattr(part, name)
        if was != asked:
            raise LedgerError(
                f"the ledger {ledger.name} was made for {name} {was}, and this run asks for {asked}; "
                f"its {name} holds for all of its runs. Leave {name} out, or name another ledger."
            )
    return part


def published(ledger: Ledger, numbers: Sequence[int], folder: Path) -> Ledger:
    """The ledger that is handed on with a run folder: the run's own, or an extract of a shared one.

    numbers: of the run's charges; what settles them belongs to it.
    """
    path = folder / FILE
    if ledger.path is not None and ledger.path.resolve() == path.resolve():
        return ledger
    own = set(numbers)
    return extract(ledger, [x for x in ledger.history() if x.id in own or x.refers in own], path)


def extract(ledger: Ledger, entries: Sequence[Entry], path: Path) -> Ledger:
    """A ledger at `path` with these entries of a shared one; what lies there is replaced."""
    numbers = {entry.id: number for number, entry in enumerate(entries, 1)}
    times = {entry.id: entry.at for entry in entries}
    path.unlink(missing_ok=True)
    target = store.Store(path)
    target.create(ledger.settings)
    with target.writing() as connection:
        head = Chain(store.fixed(ledger.settings)).head
        for entry in entries:
            own = replace(
                entry,
                id=numbers[entry.id],
                who="",
                at=entry.at if entry.refers is None else times[entry.refers],
                refers=None if entry.refers is None else numbers[entry.refers],
            )
            head = own.hash(head)
            store.write_entry(connection, own, head)
    return Ledger(path)
