"""One run of PATE on texts: from private records and public texts to a sealed folder.

Order: the plan is written down, and sees no vote; teachers are fitted and vote; the plan is charged;
answers are drawn and are on the disk before they are shown; the student learns; the folder is sealed;
the owner gets a page beside it. Whatever stops it before the seal, the run goes on where it was, and is
charged once. One process works on a folder (text/desk.py), or two would draw on one charge.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sourdine import checks
from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.certificate import Access, Certificate
from sourdine.data.corpus import Corpus
from sourdine.data.fingerprint import fingerprint
from sourdine.data.overlap import Overlap
from sourdine.data.owner import BESIDE
from sourdine.errors import InputError
from sourdine.events import NOTHING
from sourdine.ledger import Ledger
from sourdine.ledger.shared import FILE
from sourdine.pate import aggregators, owner, teachers
from sourdine.pate.aggregators import NO_ANSWER, Aggregator, ConfidentGNMax, LNMax
from sourdine.pate.labelling import Labelling
from sourdine.pate.planner import fit_noise, plan_blindly
from sourdine.pate.release import ANSWERS, About, read_answers, seal, write_answers
from sourdine.pate.student import Student, fit_student
from sourdine.pate.votes import Votes
from sourdine.register import watch
from sourdine.text import desk, examples
from sourdine.text.frozen import Frozen, Tell
from sourdine.text.model import TextModel
from sourdine.text.prepared import units_of
from sourdine.text.releases import Confusion
from sourdine.text.run import named_base
from sourdine.text.tasks import Classify

PLAN = "plan.json"
KINDS = {"best": None, "gnmax": False, "confident": True, "lnmax": False}
"""Aggregators to ask for, and whether they check for consensus."""
CHUNK = 200  # questions between two writes to the disk
UNTESTED = (
    "There was no test, so nothing is known about the accuracy. PATE trains its teachers on all "
    "records and holds none out. To measure it, give public labelled texts with --test FILE."
)


@dataclass(frozen=True)
class Wish:
    """How the teachers are to be asked. accuracy: of a teacher, as the plan assumes it.

    questions: at most, or as many as there are public texts.
    """

    aggregator: str = "best"
    questions: int | None = None
    threshold: float | None = None
    accuracy: float = 0.75

    def __post_init__(self) -> None:
        checks.one_of("aggregator", self.aggregator, tuple(KINDS))
        checks.probability("the accuracy to assume", self.accuracy)
        if self.threshold is not None and self.aggregator != "confident":
            raise InputError("--threshold is for --aggregator confident.")


@dataclass(frozen=True, eq=False)
class Material:
    """What there is to work with. copies: private records in public texts; they teach nothing."""

    private: Corpus
    public: Corpus
    copies: Overlap
    goal: Classify
    test: Corpus | None = None


class Teaching:
    """See the top of this file; `ask`, then `finish`."""

    def __init__(
        self,
        material: Material,
        budget: Budget,
        count: int,
        wish: Wish,
        folder: Path,
        model: str | None = None,
        device: str | None = None,
        tell: Tell | None = None,
        ledger: Ledger | None = None,
        budget_of_all: float | None = None,
    ) -> None:
        self.ledger, self._ceiling = ledger, budget_of_all
        self.material, self.budget, self.count, self.wish = material, budget, count, wish
        self.folder, self.model = folder, model
        self._classes = len(material.goal.labels)
        self._tell = tell or (lambda stage, done, total, epsilon: None)
        self._read = Frozen(model, device, tell)
        self._data = fingerprint(material.private.table())

    def ask(self, resume: bool) -> None:
        """The plan, the votes, the charge, and the answers."""
        plan = self._planned(resume)
        self.features = self._read(self.material.public.texts)
        # An order that is no secret, and has nothing to do with how the file of texts is sorted.
        self.order = np.random.default_rng(0).permutation(len(self.features))
        self.votes = self._votes()[self.order[: plan["questions"]]]
        own = self.folder / FILE
        ledger = self.ledger or Ledger(own, self.budget, lazy=True, nameless=True)
        ledger = watch(ledger, [self.material.private], budget_of_all=self._ceiling)
        self.answers = read_answers(self.folder / ANSWERS)
        run = plan.get("run", self._data)  # plans of older versions have no name of their own
        entries = [entry for entry in ledger.history() if entry.data == run]
        self.labelling = Labelling(
            _aggregator(plan),
            ledger,
            questions=plan["questions"],
            answers=plan["answers"],
            data=run,
            shared=self.ledger is not None,
            go_on=(entries[0], self.answers) if entries else None,
        )
        self._ask()

    def _planned(self, resume: bool) -> dict[str, Any]:
        """The plan of the folder, made and written down if there is none yet."""
        asked = {
            **asdict(self.wish),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "unit": self.budget.unit,
            "teachers": self.count,
            "labels": list(self.material.goal.labels),
            "model": self.model,
            "data": self._data,
            "public": fingerprint(self.material.public.table()),
            "ledger": None if self.ledger is None else self.ledger.identity,
        }
        if resume:
            known = desk.read(self.folder / PLAN) or {"asked": {}}
            if other := [name for name, value in asked.items() if known["asked"].get(name) != value]:
                raise InputError(
                    f"{self.folder} holds another run: {', '.join(other)} differ; go on with its "
                    "settings."
                )
            return known
        chosen, questions, answers = drawn_up(
            self.wish, self.budget, self.count, self._classes, len(self.material.public)
        )
        plan = {
            "run": secrets.token_hex(16),
            "asked": asked,
            "kind": chosen.name,
            "noise": asdict(chosen),
            "questions": questions,
            "answers": answers,
        }
        desk.write(self.folder / PLAN, plan)
        return plan

    def _votes(self) -> Votes:
        private = self.material.private
        left_out = self.material.copies.places
        targets = [
            examples.NOTHING if at in left_out else own
            for at, own in enumerate(self.material.goal.classes(private.labels or []))
        ]
        parts = teachers.partitions(private, self.count)
        features = self._read(private.texts, alone=True)
        return teachers.fit_heads(features, targets, parts, self._classes).vote(self.features)

    def _ask(self) -> None:
        """Asks until the plan is used up."""
        labelling = self.labelling
        while not labelling.over and len(self.answers) < len(self.votes):
            start = len(self.answers)
            found = labelling.ask(self.votes[start : start + CHUNK])
            write_answers(self.folder / ANSWERS, found, start)
            self.answers = self.answers + found
            spent = labelling.aggregator.plan(labelling.asked, max(1, labelling.answered))
            epsilon = curve(spent, "zero-out", accuracy=1e-2).epsilon_upper(self.budget.delta)
            self._tell("asking", labelling.asked, labelling.questions, epsilon)

    def finish(self) -> tuple[Certificate, dict[str, Any], Path]:
        """The student, its test, the seal, and the owner's page: its certificate, metrics and path."""
        known = np.full(len(self.features), NO_ANSWER)
        known[self.order[: len(self.answers)]] = self.answers.labels
        student = fit_student(self.features, known, self._classes)
        metrics = self._tested(student, self.material.test)
        private = self.material.private
        about = About(
            fingerprint=self._data,
            records=len(private),
            users=None if private.users is None else units_of(private),
            text=private.text,
            label=private.label,
            base=named_base(self._read.base),
            teachers=self.count,
            parameters=student.weight.size + student.bias.size,
            public=len(self.features),
            student=student.how,
            accesses=self._accesses(),
        )
        certificate = seal(
            self.folder,
            lambda to: self._save(student, to),
            metrics,
            self.labelling,
            about,
            working=(PLAN,),
        )
        page = owner.write(
            self.folder.with_name(self.folder.name + BESIDE),
            self.labelling,
            self.votes[: len(self.answers)],
            self.answers,
            [self.material.copies.sentence()],
        )
        return certificate, metrics, page

    def _accesses(self) -> Sequence[Access]:
        """What the comparison with the public texts gives away: what is asked then is on every page."""
        what = "a comparison of every record with the public texts"
        why = (
            "records that stand in them teach nothing, and nobody is told; what becomes of a record "
            "depends on itself and on public text"
        )
        return [Access(what, NOTHING, why)]

    def _tested(self, student: Student, test: Corpus | None) -> dict[str, Any]:
        """Exact metrics on labelled texts that the owner declares public."""
        goal = self.material.goal
        if test is None:
            return {"classes": list(goal.labels), "how": UNTESTED}
        named = student.predict(self._read(test.texts)).tolist()
        matrix = Confusion(self._classes, 1.0).count(goal.classes(test.labels or []), named)
        found = goal.metrics(matrix, 0.0, len(test))
        how = f"exact, on {len(test):,} records that the owner declares public"
        return {**found, "records": len(test), "how": how, "reference": None}

    def _save(self, student: Student, folder: Path) -> None:
        """The student as a model that sourdine.load knows."""
        goal, read = self.material.goal, self._read
        network = goal.model(read.encoder, read.pooling, 1.0)
        with torch.no_grad():
            network.head.weight.copy_(torch.from_numpy(student.weight))
            network.head.bias.copy_(torch.from_numpy(student.bias))
        texts = len(self.material.private.texts)
        TextModel(network.cpu(), read.tokenizer, goal, read.longest, texts).save(folder)


def drawn_up(
    wish: Wish, budget: Budget, count: int, classes: int, most: int
) -> tuple[Aggregator, int, int]:
    """Aggregator, questions and answers: from the budget and made-up votes alone."""
    asked = min(wish.questions or most, most)
    if wish.aggregator == "lnmax":
        return fit_noise(budget, LNMax(count / 4), asked, asked), asked, asked
    check = KINDS[wish.aggregator]
    found = plan_blindly(budget, count, classes, asked, accuracy=wish.accuracy, check=check)
    chosen = found.aggregator
    if wish.threshold is not None and isinstance(chosen, ConfidentGNMax):
        chosen = replace(chosen, threshold=wish.threshold)
    return chosen, found.questions, found.answers


def _aggregator(plan: dict[str, Any]) -> Aggregator:
    kinds: tuple[Any, ...] = (aggregators.GNMax, aggregators.ConfidentGNMax, aggregators.LNMax)
    found: Aggregator = next(kind(**plan["noise"]) for kind in kinds if kind.name == plan["kind"])
    return found
