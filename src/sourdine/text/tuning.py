"""Tuning that pays for itself: the best of a random number of private trials, with its score.

    run = Tuner("notes.csv", Budget(3, 1e-6), text="note", label="diagnosis").fit()

Guarantee: as for the Trainer, everything in the run folder is together (epsilon, delta)-DP, for someone
who sees the folder and nothing else of the work. Each trial draws a setting, trains, and scores its
model on held-out records, all with noise; the number of trials K is random; the best is released
(mechanisms/selection.py; Papernot and Steinke 2022). K, the other trials and their scores are told to
nobody and written nowhere, and all times in the folder are that of the charge. Whoever watches how
long it takes learns about K.

A trial that fails, or whose weights are no numbers, scores -inf. Whatever can fail without looking at
the records is tried first, on made-up ones, so that it costs nothing.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sourdine import rng
from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.data.corpus import Corpus
from sourdine.errors import BudgetError, InputError, SourdineError
from sourdine.events import compose
from sourdine.ledger import Ledger
from sourdine.ledger.shared import FILE
from sourdine.mechanisms.selection import RandomTrials, choose
from sourdine.sgd.charge import Charge
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.sgd.sampling import PoissonLots
from sourdine.text import loop
from sourdine.text.models import Classifier
from sourdine.text.plan import Plan, plan
from sourdine.text.prepared import Prepared
from sourdine.text.progress import Progress
from sourdine.text.run import Run
from sourdine.text.strategies import strategy
from sourdine.text.tasks import Classify, OnFeatures
from sourdine.text.trainer import Trainer
from sourdine.text.trials import (
    SelectionCharge,
    Setting,
    TunedAccounts,
    checked,
    grid,
    tuned_accounts,
)

TUNING = "tuning.json"
_SCORES = ("accuracy", "largest_class", "matthews")
_HELD_OUT = 0.2
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the planned learning rate, where no settings are given."""
_MADE_UP = 8  # records of a rehearsal
_REFUSED = (
    *("resume", "test", "test_is_public", "leave_out_copies", "not_private", "log"),
    *("audit", "audit_texts"),
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one trial puts out; network is None where it failed."""

    setting: dict[str, Any]
    plan: Plan
    network: Classifier | None
    metrics: dict[str, Any]

    @property
    def score(self) -> float:
        return -math.inf if self.network is None else float(self.metrics["accuracy"]["value"])


class Tuner(Trainer):
    """Private tuning; see the top of this file.

    settings: a grid in words ("learning_rate=1e-3,3e-3 trains=head,lora") or a list of dictionaries;
    by default five learning rates around the planned one. The list is public: make it without looking
    at the records. trials: how many are run on average. eta: the law of their number; 0 is logarithmic,
    1 geometric, smaller ones cost less and vary more. Other arguments are those of the Trainer; lots
    and steps are the same for all settings.
    """

    def __init__(
        self,
        train: Any,
        budget: Budget,
        *,
        settings: str | Sequence[Setting] | None = None,
        trials: float = 10.0,
        eta: float = 0.0,
        held_out: float | None = None,
        **options: Any,
    ) -> None:
        for name in _REFUSED:
            if options.pop(name, None):
                raise InputError(f"tuning does not take {name!r}: see docs/text.md for what it does.")
        share = _HELD_OUT if held_out is None else held_out
        if not share > 0:
            raise InputError("tuning scores every trial on held-out records; held_out must be above 0.")
        super().__init__(train, budget, held_out=share, minutes=math.inf, **options)
        self.trials = RandomTrials(eta, choose(trials, eta))
        listed = grid(settings) if isinstance(settings, str) else settings
        self._given_settings = None if listed is None else checked(listed)
        self._kept: dict[tuple[object, ...], tuple[Any, Any]] = {}
        self._plans: list[Plan] = []

    # Before anything is charged

    def prepare(self) -> Prepared:
        """As the Trainer's; the plan has the steps and lots that all settings share."""
        if self._prepared is None:
            ready = super().prepare()
            self.settings = self._given_settings or checked(
                [{"learning_rate": factor * ready.plan.learning_rate} for factor in _FACTORS]
            )
            own = [self._own_plan(ready, setting) for setting in self.settings]
            steps, lot = max(each.steps for each in own), min(each.lot_size for each in own)
            self._plans = [_shared(each, lot, steps) for each in own]
            self._prepared = replace(ready, plan=_shared(ready.plan, lot, steps))
        return self._prepared

    def _own_plan(self, ready: Prepared, setting: Setting) -> Plan:
        """The plan of one setting, before steps and lots are made the same for all."""
        changes = dict(setting)
        named = changes.pop("trains", None)
        trains = ready.plan.strategy if named is None else strategy(named)
        stated = {**self._stated, **changes}
        found = plan(ready.situation, trains, steps=stated["steps"], held_out=stated["held_out"]).with_(
            **stated
        )
        if found.max_length > ready.situation.longest:
            raise InputError(f"this model reads at most {ready.situation.longest} tokens.")
        return found.fitted(ready.units, self.epochs)

    def expected(self) -> dict[str, Any]:
        """What will be done and what it costs, without doing it; nothing is charged."""
        ready = self.prepare()
        own = self._accounts(ready)
        charge = own.charge(ready.plan, ready.units, self.records, None, Processes(), None)
        trial = compose([own.everyone, charge.trial(charge.steps, charge.noise_multiplier)])
        budget = charge.budget
        once, every = self._seconds(ready)
        return {
            "settings": [dict(setting) for setting in self.settings],
            "eta": self.trials.eta,
            "gamma": self.trials.gamma,
            "expected_trials": self.trials.expected,
            "trials_95_percent": self.trials.most(),
            "lot_size": ready.plan.lot_size,
            "steps": ready.plan.steps,
            "held_out": ready.plan.held_out,
            "noise_multiplier": charge.noise_multiplier,
            "score_noise_multiplier": own.test_noise,
            "epsilon_of_one_trial": curve(trial, budget.adjacency).epsilon_upper(budget.delta),
            "epsilon": charge.epsilon(charge.steps),
            "delta": budget.delta,
            "expected_seconds": round(once + self.trials.expected * every),
        }

    def _seconds(self, ready: Prepared) -> tuple[float, float]:
        """What takes time once, and what a trial takes: by texts of the length that is usual."""
        heads = {each.max_length for each in self._plans if _is_head(each)}
        units = ready.situation.units
        once = len(heads) * units * ready.watch.reading() if heads else 0.0
        others = [each for each in self._plans if not _is_head(each)]
        measured = {each.strategy: ready.watch.training(each.strategy) for each in others}
        trained = sum(each.steps * each.lot_size * measured[each.strategy] for each in others)
        return once, trained / len(self._plans)

    def _accounts(self, ready: Prepared) -> TunedAccounts:
        if self.budget is None:
            raise InputError("tuning needs a budget.")
        return tuned_accounts(
            self.budget,
            ready.plan,
            declared=self.labels is not None,
            rows_per_user=self.rows_per_user,
            trials=self.trials,
            settings=self.settings,
        )

    def rehearse(self) -> None:
        """One step of every setting on made-up records: what fails whatever the data fails here."""
        ready = self.prepare()
        goal = self._kind(tuple(self.labels or ("a", "b")))
        corpus = _made_up(ready.train, goal)
        there = replace(ready, train=corpus, test=corpus, units=_MADE_UP)
        for each in {(x.strategy, x.max_length): x for x in self._plans}.values():
            charge = Charge(
                None,
                PoissonLots(_MADE_UP, _MADE_UP // 2),
                1,
                unit=self.unit,
                noise_multiplier=1.0,
                delta=1e-2,
                label="rehearsal",
                folder=None,
                processes=Processes(),
            )
            network = self._trained(replace(there, plan=each), goal, charge)
            self._answers(replace(there, plan=each), goal, network, corpus)
        self._kept.clear()

    # The run

    def _fit(self) -> Run:
        processes = Processes()
        if processes.count > 1:
            raise InputError("tuning runs in one process: how many trials there are is secret.")
        ready = self.prepare()
        folder = Folder(self._folder(processes), processes)  # refused before the long rehearsal
        self.rehearse()
        with folder.held():
            progress = Progress(folder.path, processes)
            own, source = self._accounts(ready), self._source or rng.secure()
            charge = own.charge(
                ready.plan, ready.units, self.records, folder, processes, None, self.ledger
            )
            self._enter(charge)
            self._charged = True
            charge.reserve(source.kind, folder.run)
            goal = self._kind(tuple(self._labels(ready, own, source)))
            self._read_all(ready, goal)
            best = self.best(ready, goal, charge, own, source)
            self._kept.clear()
            return self._released(best, ready, goal, charge, own, progress)

    def best(
        self,
        ready: Prepared,
        goal: Classify,
        charge: SelectionCharge,
        own: TunedAccounts,
        source: rng.Source,
    ) -> Outcome:
        """The best of a random number of trials, each of which was paid for; says nothing meanwhile."""

        def trial(number: int) -> tuple[Outcome, float]:
            drawn = source.below(len(self.settings))
            setting, chosen = self.settings[drawn], self._plans[drawn]
            try:
                there = replace(ready, plan=chosen)
                network = self._trained(there, goal, charge)
                usable = all(bool(x.isfinite().all()) for x in network.parameters())
                found = self._metrics(there, goal, network, own, source) if usable else {}
                outcome = Outcome(setting, chosen, network if usable else None, found)
            except Exception:  # an error that only some data cause would be a release of its own
                outcome = Outcome(setting, chosen, None, {})
            return outcome, outcome.score

        with warnings.catch_warnings():  # so would a warning
            warnings.simplefilter("ignore")
            return self.trials.release(trial, source)

    def _trained(self, ready: Prepared, goal: Classify, charge: Charge) -> Classifier:
        """One trial's model, from a fresh copy of what trains."""
        network, model, dataset, collate = self._network(ready, goal)
        loop.train_privately(
            model,
            dataset,
            charge,
            ready.plan,
            collate=collate,
            users=ready.train.users,
            most_per_user=self.rows_per_user,
            source=self._source,
            tell=lambda engine: None,
        )
        ready.plan.strategy.finish(network)
        return network

    def _read_all(self, ready: Prepared, goal: Classify) -> None:
        """Reads all records before the first trial: afterwards nothing is told of the work."""
        for each in self._plans:
            there = replace(ready, plan=each)
            network = goal.model(ready.encoder, ready.pooling, each.scale).to(self._device).eval()
            for corpus in (ready.train, ready.test):
                if corpus is not None:
                    self._examples(there, goal, network, corpus)

    def _examples(
        self, ready: Prepared, goal: Classify, network: Classifier, corpus: Corpus
    ) -> tuple[Any, Any]:
        key = (id(corpus), _is_head(ready.plan), ready.plan.max_length, ready.plan.scale)
        if key not in self._kept:
            self._kept[key] = super()._examples(ready, goal, network, corpus)
        return self._kept[key]

    def _answers(self, ready: Prepared, goal: Classify, network: Classifier, test: Corpus) -> list[int]:
        dataset, collate = self._examples(ready, goal, network, test)
        model = OnFeatures(network.head) if _is_head(ready.plan) else network
        return loop.predicted(model, dataset, collate, 64)

    def _released(
        self,
        best: Outcome,
        ready: Prepared,
        goal: Classify,
        charge: SelectionCharge,
        own: TunedAccounts,
        progress: Progress,
    ) -> Run:
        """The run folder of the trial that won."""
        if best.network is None:
            raise SourdineError(
                "no trial ended with a usable model: all of them failed or diverged. Try smaller "
                "learning rates. The charge stays."
            )
        how = f"{best.metrics['how']}; the score is optimistic, because it chose the best of several "
        how += "trials, and the intervals do not correct for that"
        progress.state["metrics"] = {**best.metrics, "how": how}
        there = replace(ready, plan=best.plan)
        try:
            run = self._ended(there, goal, best.network, progress)
            content = {
                "setting": best.setting,
                "score": {
                    name: best.metrics[name]["value"]
                    for name in ("accuracy", "largest_class", "matthews")
                },
                "how": own.about["tuning"],
                "settings": [dict(setting) for setting in self.settings],
                "eta": self.trials.eta,
                "gamma": self.trials.gamma,
                "expected_trials": self.trials.expected,
            }
            text = json.dumps(content, indent=2, allow_nan=False) + "\n"
            (run.folder / TUNING).write_text(text, encoding="utf-8")
            self._seal(run, there, charge, own)
            _backdate(run.folder, own.made(Ledger(run.folder / FILE)))
        except (OSError, SourdineError) as error:
            if isinstance(error, OSError) or type(error) is SourdineError:
                raise SourdineError(
                    f"the run folder {progress.folder} cannot be written, so that the tuning is lost. "
                    "The charge stays: make room, and begin again in another folder."
                ) from None
            raise
        return run

    def _folder(self, processes: Processes) -> Path:
        """A new folder: a tuning that was stopped cannot go on."""
        out = self.output
        if out is None or not out.exists():
            return super()._folder(processes)
        if (out / "ledger.sqlite").exists() and not (out / "certificate.json").exists():
            raise BudgetError(
                f"{out} holds a run that was stopped, and its budget is spent: how far it came may "
                "have been seen, so that a tuning never goes on. Begin again in a new folder; both "
                "charges then add up."
            )
        if {path.name for path in out.iterdir()} <= {"run", "lock"}:  # refused before its charge
            return out
        return super()._folder(processes)


def _is_head(chosen: Plan) -> bool:
    return chosen.strategy.name == "head"


def _shared(own: Plan, lot: int, steps: int) -> Plan:
    """The plan with the lots and steps of all."""
    return replace(own, lot_size=lot, steps=steps)


def _backdate(folder: Path, time: str) -> None:
    """Gives all files the time of the charge: when they were written tells how long the trials took."""
    began = datetime.fromisoformat(time).timestamp()
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (began, began))


def _made_up(like: Corpus, goal: Classify) -> Corpus:
    """Records of the same columns that nobody wrote."""
    column = [f"a made-up text, number {i}" for i in range(_MADE_UP)]
    return replace(
        like,
        texts=tuple(list(column) for _ in like.texts),
        labels=[goal.labels[i % len(goal.labels)] for i in range(_MADE_UP)],
        users=None if like.users is None else [f"user {i}" for i in range(_MADE_UP)],
    )
