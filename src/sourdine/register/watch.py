"""The witness of a ledger: every charge is entered in the register before the ledger is asked.

Guarantee: the order is register entry, ledger charge, draw, the first two under one lock. Whoever is
killed between them has spent more in the register than in the ledger, never less. A charge that would
bring the total of all ledgers above a stored budget of all is refused; then neither the register nor
the ledger holds it.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

from sourdine import checks
from sourdine.budget import Budget
from sourdine.digits import above
from sourdine.errors import BudgetError, InputError, LedgerError
from sourdine.events import Event
from sourdine.ledger import Ledger
from sourdine.ledger.book import Witness
from sourdine.register.book import Charged, Line, Register, open_book, recall, sum_up
from sourdine.register.records import Records

_SHOWN = 3
_SLACK = 1e-9  # a sum of doubles that just reaches the ceiling is not over it

Tell = Callable[[str], object]


def _to_owner(sentence: str) -> None:
    print(f"sourdine: {sentence}", file=sys.stderr)


def watch(
    ledger: Ledger,
    tables: Sequence[Any],
    encoding: str = "utf-8",
    *,
    budget_of_all: float | None = None,
    tell: Tell = _to_owner,
) -> Ledger:
    """The same ledger as one run sees it: its charges are about the records of these tables.

    tables: all that a run reads of private records, each as `identify` takes it; none where nobody
    knows whose they are: then the charges are listed as not compared. They are identified at the first
    charge. budget_of_all: the largest epsilon of all ledgers together, stored at its first use.
    """
    asked = None if budget_of_all is None else checks.epsilon(budget_of_all)
    return ledger.watched_by(_Watch(tables, encoding, asked, tell))


class _PartOfAPlan:
    """The witness of a ledger whose charges are part of a plan that was entered as a whole."""

    def charging(self, ledger: Ledger, event: Event, label: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


PART_OF_A_PLAN: Witness = _PartOfAPlan()


class _Watch:
    def __init__(self, tables: Sequence[Any], encoding: str, ceiling: float | None, tell: Tell) -> None:
        self._tables, self._encoding, self._ceiling, self._tell = tables, encoding, ceiling, tell

    @cached_property
    def _records(self) -> tuple[Records, ...]:
        """Whose records these are; a table that cannot be read whole is nobody's."""
        found = [recall(table, self._encoding) for table in self._tables]
        known = tuple(each for each in found if each is not None)
        if self._ceiling is not None and (len(known) < len(found) or not found):
            raise InputError(
                "a budget of all ledgers has to know whose records these are: name their table, and "
                "mend what cannot be read in it; or leave the budget of all out. Nothing was charged."
            )
        return known

    @contextlib.contextmanager
    def charging(self, ledger: Ledger, event: Event, label: str) -> Iterator[None]:
        # What takes time comes before anybody has to wait for the lock.
        own, known = ledger.alone(event), self._records
        with open_book() as book:
            charged = Charged(
                *(ledger.identity, _place(ledger), label, own),
                alone=ledger.spent().releases == 0,
                budget=ledger.budget,
            )
            said = _before(book, known, charged)
            with book.transaction():
                self._store_ceiling(book, ledger.budget)
                number = book.enter(charged, known)
                for records in known:
                    _check_ceilings(book, records, charged)
            for sentence in said:
                self._tell(sentence)
            try:
                yield
            except (BudgetError, InputError) as error:
                if not isinstance(error, LedgerError):  # which may come after the ledger has written
                    book.withdraw(number)
                raise

    def _store_ceiling(self, book: Register, budget: Budget) -> None:
        if self._ceiling is None:
            return
        for records in self._records:
            for other, stored in book.ceilings(records):
                if self._ceiling > stored.epsilon:
                    raise BudgetError(
                        f"the budget of all for these records was set to {stored.epsilon:g} and cannot "
                        f"grow to {self._ceiling:g} ({other.name}). Nothing was charged."
                    )
            book.lower_ceiling(records, replace(budget, epsilon=self._ceiling))


def _check_ceilings(book: Register, records: Records, charged: Charged) -> None:
    """Every table whose records these are stays within its own ceiling, this charge included."""
    for other, ceiling in book.ceilings(records):
        budget = charged.budget
        if (budget.unit, budget.adjacency) != (ceiling.unit, ceiling.adjacency):
            raise BudgetError(
                f"{charged.label!r} was not run: the budget of all for these records is per "
                f"{ceiling.unit} under {ceiling.adjacency}, and a charge per {budget.unit} under "
                f"{budget.adjacency} cannot be added to it. Ask for the same unit and adjacency."
            )
        # Lines of another unit were entered before there was a ceiling, and are in no sum.
        total = _total(book.lines(other), budget)
        if total > ceiling.epsilon * (1 + _SLACK):
            raise BudgetError(
                f"{charged.label!r} was not run: with it all ledgers over these records would come to "
                f"epsilon={total:.6g}, over their budget of all of {ceiling.epsilon:g}. `sourdine "
                "ledger spent` lists them. Lower its epsilon."
            )


def _before(book: Register, records: Sequence[Records], charged: Charged) -> list[str]:
    """What the owner hears before a charge: other ledgers over the same records, and the new total."""
    said = []
    for each in records:
        for _, other, share in book.alike(each):
            if other.fingerprint != each.fingerprint:
                said.append(
                    f"(for you only, not for release) about {share:.0%} of the rows of the smaller of "
                    f"{each.name} and {other.name} stand in both; they count as the same records."
                )
        lines = book.lines(each)
        elsewhere = [line for line in lines if line.ledger != charged.ledger]
        if elsewhere:
            said.append(_sentence(elsewhere, charged, first=len(elsewhere) == len(lines)))
    return list(dict.fromkeys(said))


def _total(lines: Sequence[Line], like: Budget) -> float:
    """The sum of all lines of one unit and adjacency."""
    own = (like.unit, like.adjacency)
    return math.fsum(
        line.budget.epsilon for line in lines if (line.budget.unit, line.budget.adjacency) == own
    )


def _sentence(earlier: Sequence[Line], charged: Charged, first: bool) -> str:
    """first: whether this is the first charge to its ledger, which then counts with it alone."""
    shown = [
        f"epsilon {above(line.budget.epsilon, 3)} on {line.at[:10]} in {line.place}"
        for line in earlier[-_SHOWN:]
    ]
    more = f" and {len(earlier) - _SHOWN} ledgers more" if len(earlier) > _SHOWN else ""
    own = charged.epsilon if first and charged.alone else charged.budget.epsilon
    total = _total(earlier, charged.budget) + own
    apart = " (other units and adjacencies are not added)" if len(sum_up(earlier)) > 1 else ""
    return (
        f"these records were charged {', '.join(shown)}{more}; with this run at most "
        f"{above(total, 3)} in all{apart}."
    )


def _place(ledger: Ledger) -> str:
    """How the owner knows the ledger: the folder of a run, a file, a database."""
    if ledger.path is None:
        return ledger.name
    return ledger.path.parent.name if ledger.path.name == "ledger.sqlite" else ledger.path.name
