"""PATE beside the other methods: teachers on the training part, questions from public texts, a student.

The student is a linear head on the same frozen features as theirs, so that all differ in nothing but
how they keep records private. The plan comes from the budget and made-up votes alone (pate/planner.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sourdine.budget import Budget
from sourdine.data.corpus import Corpus
from sourdine.data.overlap import overlap
from sourdine.errors import InputError
from sourdine.events import Event
from sourdine.ledger import Ledger
from sourdine.pate.aggregators import NO_ANSWER
from sourdine.pate.labelling import Labelling
from sourdine.pate.planner import Plan, plan_blindly
from sourdine.pate.student import fit_student
from sourdine.pate.teachers import fit_heads, partitions
from sourdine.pate.votes import Votes
from sourdine.register import PART_OF_A_PLAN
from sourdine.rng import Source
from sourdine.text.contrast import Rows
from sourdine.text.examples import NOTHING
from sourdine.text.output import Weights, unit_rows

_planned = functools.lru_cache(plan_blindly)  # the same for every repetition


@dataclass(frozen=True, eq=False)
class Ensemble:
    """PATE as a place for noise: on the votes. features: of the public texts, where it is to learn."""

    public: Corpus
    teachers: int
    features: Tensor | None = None
    name: ClassVar[str] = "pate"

    def _plan(self, budget: Budget, classes: int) -> Plan:
        return _planned(budget, self.teachers, classes, len(self.public))

    def event(self, budget: Budget, classes: int, width: int, most: int) -> Event:
        """What `fit` costs a unit, however many rows it has: all of them lie with one teacher."""
        return self._plan(budget, classes).event

    def fit(
        self, rows: Rows, classes: int, records: int, most: int, budget: Budget, source: Source
    ) -> Weights:
        plan, votes = self._plan(budget, classes), self._votes(rows, classes)
        # What the comparison has reserved is charged there; this ledger keeps to the plan.
        ledger = Ledger(None, budget).watched_by(PART_OF_A_PLAN)
        labelling = Labelling(
            plan.aggregator,
            ledger,
            questions=plan.questions,
            answers=plan.answers,
            source=source,
        )
        return self._student(labelling.ask(votes[: plan.questions]).labels.tolist(), classes)

    def fit_exactly(self, rows: Rows, classes: int, records: int) -> Weights:
        """A student of the teachers' majority: not private."""
        votes = self._votes(rows, classes)
        return self._student(votes.counts.argmax(axis=1).tolist(), classes)

    def _votes(self, rows: Rows, classes: int) -> Votes:
        if rows.corpus is None:
            raise InputError("teachers need the records themselves, to share them by their hashes.")
        parts = partitions(rows.corpus, self.teachers)
        # Records that stand in the public text too teach nothing, and nobody is told.
        copies = overlap(rows.corpus, self.public).places
        targets = [NOTHING if at in copies else own for at, own in enumerate(rows.classes)]
        heads = fit_heads(unit_rows(rows.features)[0].numpy(), targets, parts, classes)
        return heads.vote(self._questions().numpy())

    def _student(self, labels: list[int], classes: int) -> Weights:
        public = self._questions()
        known = labels + [NO_ANSWER] * (len(public) - len(labels))
        found = fit_student(public.numpy(), known, classes)
        return Weights(torch.from_numpy(found.weight), torch.from_numpy(found.bias))

    def _questions(self) -> Tensor:
        """In an order that is no secret, and has nothing to do with how the file is sorted."""
        if self.features is None or len(self.features) != len(self.public):
            raise InputError("PATE asks about public texts; give the features of all of them.")
        order = torch.randperm(len(self.features), generator=torch.Generator().manual_seed(0))
        return unit_rows(self.features)[0][order]
