"""Questions to the teachers under a plan that is charged before the first is asked.

The plan is at most Q questions of which at most A are answered (pate/aggregators.py tells what that
costs, and why in any order). It depends on public numbers alone, and is reserved in the ledger as a
whole, by its own curve: that is tighter than charge after charge, which has to allow for any next one.
When either number is used up, the labelling ends; nothing is drawn beyond.

Guarantee: all answers together are (epsilon, delta)-DP for one unit under add-remove, and so under
zero-out, whatever is asked and however the student is trained: the ledger's promise for Q check +
A answer. Fewer answers than planned give nothing back, as how many there are depends on the votes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.ledger import Ledger
from sourdine.ledger.record import Entry
from sourdine.pate.aggregators import NO_ANSWER, Aggregator, Flags, Floats, InteractiveGNMax
from sourdine.pate.teachers import processes
from sourdine.pate.votes import Counts, Votes
from sourdine.register import watch
from sourdine.rng import Source, secure


@dataclass(frozen=True, eq=False)
class Answers:
    """One entry for each question that was put: a class or NO_ANSWER, and who gave it.

    asked: whether it was put to the teachers at all, before the plan was used up; answered: whether
    they named the class. A class that was asked for but not answered is the student's own, confirmed.
    """

    labels: Counts
    asked: Flags
    answered: Flags

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def known(self) -> NDArray[np.int64]:
        """The places of the questions that have a label."""
        return np.flatnonzero(self.labels != NO_ANSWER)

    def __add__(self, other: Answers) -> Answers:
        names = ("labels", "asked", "answered")
        return Answers(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in names))


def no_answers() -> Answers:
    """Nothing was asked."""
    return Answers(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))


class Labelling:
    """See the top of this file.

    ledger: or a Budget, for one in memory. shared: whether other runs are charged to the same ledger.
    questions, answers: how many are asked and answered at most,
    fixed without the votes. go_on: of a labelling that was stopped, with its open reservation and what
    it had answered and shown until then.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        ledger: Ledger | Budget,
        *,
        questions: int,
        answers: int,
        source: Source | None = None,
        data: str = "",
        shared: bool = False,
        go_on: tuple[Entry, Answers] | None = None,
    ) -> None:
        self.aggregator = aggregator
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(None, ledger)
        self.shared = shared
        if self.ledger.witness is None:
            self.ledger = watch(self.ledger, [])
        self.questions = checks.whole("questions", questions)
        self.answers = checks.whole("answers", answers)
        if self.answers > self.questions:
            raise InputError(f"{answers} answers cannot be given to {questions} questions.")
        if self.ledger.budget.adjacency == "replace-one":
            raise InputError(
                "a record that is replaced may leave one teacher and join another, which moves two "
                "votes; take a budget under zero-out or add-remove."
            )
        if processes()[0] > 0:
            raise InputError(
                "several processes share these teachers; answers are drawn once, by the first of them."
            )
        self.source = source or secure()
        self.event = aggregator.plan(self.questions, self.answers)
        if go_on is None:
            label = f"PATE: {self.questions} questions, {self.answers} answers by {aggregator.name}"
            self.entry = self.ledger.reserve(self.event, label, source=self.source.kind, data=data)
            done = no_answers()
        else:
            self.entry, done = go_on
            if self.entry.event != self.event:
                raise InputError(
                    "the reservation to go on with is for another plan; keep to its settings."
                )
        self.asked, self.answered = int(done.asked.sum()), int(done.answered.sum())
        settled = {entry.refers for entry in self.ledger.history()}
        self._closed = self.entry.id in settled

    @property
    def over(self) -> bool:
        """Whether the plan is used up, or closed."""
        return self._closed or self.asked >= self.questions or self.answered >= self.answers

    def ask(self, votes: Votes, beliefs: Floats | None = None) -> Answers:
        """Answers to these questions, as far as the plan goes.

        beliefs: the student's, for Interactive-GNMax. Raises BudgetError where it was used up before.
        """
        if self.over:
            raise BudgetError(
                f"{self.asked} of {self.questions} questions were asked and {self.answered} of "
                f"{self.answers} answers given: the plan is used up, and nothing more is drawn."
            )
        labels = np.full(len(votes), NO_ANSWER, np.int64)
        asked, answered = np.zeros(len(votes), bool), np.zeros(len(votes), bool)
        reach = min(len(votes), self.questions - self.asked)
        passed = self.aggregator.passes(
            votes[:reach], self.source, None if beliefs is None else beliefs[:reach]
        )
        places = np.flatnonzero(passed)[: self.answers - self.answered]
        if len(places) == self.answers - self.answered:
            reach = int(places[-1]) + 1  # the last answer ends it; later checks are shown to nobody
        asked[:reach], answered[places] = True, True
        labels[places] = self.aggregator.choose(votes[places], self.source)
        if isinstance(self.aggregator, InteractiveGNMax) and beliefs is not None:
            own = self.aggregator.confirmed(beliefs[:reach], passed[:reach])
            labels[:reach] = np.where(answered[:reach], labels[:reach], own)
        self.asked, self.answered = self.asked + reach, self.answered + len(places)
        return Answers(labels, asked, answered)

    def close(self) -> None:
        """Settles the reservation: nothing is given back, and nothing more is asked."""
        if self._closed:
            return
        ran = self.aggregator.plan(self.asked, self.answered)
        self.ledger.settle(self.entry, ran, "done" if ran == self.event else "outputs")
        self._closed = True
