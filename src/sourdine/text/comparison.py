"""What a comparison asks for: which methods, at which budgets, how often, on which records."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sourdine import checks
from sourdine.budget import Budget
from sourdine.data.copies import refuse_same_table
from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.fingerprint import fingerprint
from sourdine.errors import InputError
from sourdine.ledger.shared import open_shared
from sourdine.text.contrast import PLACES, Place
from sourdine.text.ensemble import Ensemble
from sourdine.text.models import BYTES
from sourdine.text.prepared import default_model
from sourdine.text.run import named_base
from sourdine.text.strategies import STRATEGIES, Everything, Strategy, strategy
from sourdine.text.tasks import Classify
from sourdine.text.trainer import Trainer

METHODS = (*STRATEGIES, *PLACES, Ensemble.name)


@dataclass(frozen=True)
class OneRun:
    """One method at one budget, for the n-th time; epsilon is inf without privacy."""

    method: str
    epsilon: float
    repetition: int

    @property
    def kind(self) -> str:
        return f"{self.method}-{self.epsilon:g}"

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.repetition}"

    @property
    def private(self) -> bool:
        return math.isfinite(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, on which records; made by `comparison`.

    seeds: how many times each run is made, each time with fresh secure randomness; runs without privacy
    are seeded by their number. steps, max_length: stated for all methods that train in steps. public:
    texts without labels, and teachers: how many, for PATE. ledger: a shared one, which the whole is
    charged to; budget_of_all: see sourdine.register.
    """

    corpus: Corpus
    methods: tuple[str, ...]
    epsilons: tuple[float, ...]
    seeds: int
    delta: float
    model: str
    labels: tuple[str, ...] | None
    rows_per_user: int
    steps: int | None
    max_length: int | None
    device: str | None
    public: Corpus | None = None
    teachers: int = 250
    ledger: str | Path | None = None
    budget_of_all: float | None = None
    encoding: str = "utf-8"

    @property
    def unit(self) -> str:
        return "example" if self.corpus.users is None else "user"

    @property
    def units(self) -> int:
        users = self.corpus.users
        return len(self.corpus) if users is None else len(set(users))

    @property
    def held_out(self) -> float:
        return 0.1 if self.units >= 5_000 else 0.2

    @property
    def parts(self) -> dict[str, int]:
        """About how many units are trained on and held out: exact sizes tell where a unit lies."""
        test = round(self.held_out * self.units)
        return {"train": self.units - test, "test": test}

    @property
    def tested(self) -> str:
        """About how many units are held out, in words."""
        things = "records" if self.unit == "example" else "people"
        return f"about {self.parts['test']:,} of {self.units:,} {things}"

    @property
    def runs(self) -> list[OneRun]:
        return [
            OneRun(method, epsilon, repetition)
            for repetition in range(1, self.seeds + 1)
            for epsilon in self.epsilons
            for method in self.methods
        ]

    @property
    def largest(self) -> float:
        """The largest budget compared; 0 where no run is private."""
        return max((run.epsilon for run in self.runs if run.private), default=0.0)

    def budget(self, epsilon: float) -> Budget:
        return Budget(epsilon, self.delta, self.unit)

    def trainer(
        self, run: OneRun, labels: Sequence[str], folder: Path | None = None, tell: Any = None
    ) -> Trainer:
        """The Trainer of a run; of the two other places for noise only its data and model are used."""
        trainer = Trainer(
            self.corpus,
            self.budget(run.epsilon) if run.private else None,
            model=self.model,
            user=self.corpus.user,
            rows_per_user=self.rows_per_user,
            labels=labels,
            trains=self.strategy(run.method),
            steps=self.steps,
            max_length=self.max_length,
            held_out=self.held_out,
            minutes=math.inf,  # all methods and all processes follow one plan
            device=self.device,
            not_private=not run.private,
            seed=None if run.private else run.repetition,
            output_dir=folder,
            resume=True,
            tell=tell,
        )
        trainer.registered = False
        return trainer

    def strategy(self, method: str) -> Strategy:
        if method == "all" and self.model == BYTES:
            return Everything(words=True)  # nothing in it is pretrained, its word vectors neither
        return strategy(method if method in STRATEGIES else "head")

    def place(self, method: str, public: Tensor | None = None) -> Place | None:
        """Where a method puts its noise, if not on gradients; public: features of the public texts."""
        if method == Ensemble.name:
            if self.public is None:
                raise InputError("PATE asks about public texts; give them.")
            return Ensemble(self.public, self.teachers, public)
        return PLACES.get(method)

    def described(self) -> dict[str, Any]:
        """What makes it this comparison and no other; nothing in it is private."""
        return {
            "data": fingerprint(self.corpus.table()),
            "text": list(self.corpus.text),
            "label": self.corpus.label,
            "user": self.corpus.user,
            "rows_per_user": self.rows_per_user,
            "labels": None if self.labels is None else list(self.labels),
            "model": named_base(self.model),
            "methods": list(self.methods),
            "epsilon": [said(epsilon) for epsilon in self.epsilons],
            "delta": self.delta,
            "seeds": self.seeds,
            "steps": self.steps,
            "max_length": self.max_length,
            "public": None if self.public is None else fingerprint(self.public.table()),
            "teachers": None if self.public is None else self.teachers,
            "ledger": None if self.ledger is None else open_shared(self.ledger).identity,
        }


def comparison(
    data: Any,
    *,
    text: str | Sequence[str] | None,
    label: str | None,
    epsilons: Sequence[float],
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    delta: float = 1e-6,
    model: str | None = None,
    user: str | None = None,
    rows_per_user: int = 1,
    labels: Sequence[str] | None = None,
    steps: int | None = None,
    max_length: int | None = None,
    device: str | None = None,
    encoding: str = "utf-8",
    public: Any = None,
    teachers: int = 250,
    ledger: str | Path | None = None,
    budget_of_all: float | None = None,
) -> Comparison:
    """Reads the records and checks what is asked; nothing is charged.

    methods: by default the cheap ones on frozen features; with a GPU, all. Noise on the input and PATE
    have to know the classes in advance, so they need labels; PATE needs public texts too.
    """
    if not epsilons:
        raise InputError("give the budgets to compare, for instance 1, 2, 5 and inf (no privacy).")
    found = sorted({math.inf if e == math.inf else checks.protecting(e) for e in epsilons})
    refuse_same_table(data, public, "--public (public=)")
    chosen = _methods(methods, labels is not None, public is not None, device)
    if public is not None and Ensemble.name not in chosen:
        raise InputError(
            "public texts (--public) are for pate, which is not compared here: declare the classes "
            "with --labels, or name pate among --methods; or leave --public out."
        )
    corpus = (
        data
        if isinstance(data, Corpus)
        else read_corpus(data, text=text, label=label, user=user, encoding=encoding)
    )
    asked = Comparison(
        corpus=corpus,
        methods=chosen,
        epsilons=tuple(found),
        seeds=checks.whole("seeds", seeds),
        delta=delta,
        model=model or default_model(),
        labels=None if labels is None else Classify(tuple(labels)).labels,
        rows_per_user=checks.whole("rows_per_user", rows_per_user),
        steps=steps,
        max_length=max_length,
        device=device,
        public=_public(public, corpus, encoding) if Ensemble.name in chosen else None,
        teachers=checks.whole("teachers", teachers, least=2),
        ledger=ledger,
        budget_of_all=budget_of_all,
        encoding=encoding,
    )
    checks.delta(delta, asked.units)
    return asked


def _public(source: Any, own: Corpus, encoding: str) -> Corpus:
    """Public texts; private records that stand among them teach nothing (text/ensemble.py)."""
    return read_corpus(source, text=list(own.text), label=None, encoding=encoding, labelled=False)


def said(epsilon: float) -> float | str:
    """An epsilon as JSON knows it."""
    return epsilon if math.isfinite(epsilon) else "inf"


def _methods(
    asked: Sequence[str] | None, declared: bool, public: bool, device: str | None
) -> tuple[str, ...]:
    if asked is None:
        fast = device != "cpu" and torch.cuda.is_available()
        asked = METHODS if fast else ("head", "output", "input", Ensemble.name)
        lacks = {"input": not declared, Ensemble.name: not (declared and public)}
        return tuple(name for name in asked if not lacks.get(name))
    for name in asked:
        if name not in METHODS:
            near = difflib.get_close_matches(name, METHODS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InputError(f"there is no method {name!r}{hint} There are: {', '.join(METHODS)}.")
    if not asked:
        raise InputError(f"name at least one method: {', '.join(METHODS)}.")
    if "input" in asked and not declared:
        raise InputError(
            "noise on the input has to know the classes before anything is charged; declare them with "
            "labels (--labels yes,no), or leave input out."
        )
    if Ensemble.name in asked and not (declared and public):
        raise InputError(
            "PATE labels public texts with classes that are known in advance; give public texts "
            "(--public) and the classes (--labels yes,no), or leave pate out."
        )
    return tuple(name for name in METHODS if name in asked)
