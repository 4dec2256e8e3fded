"""The runs of a comparison: what each kind costs, and how one is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sourdine import rng
from sourdine.errors import InputError
from sourdine.events import Event, GaussianEvent, ParallelEvent
from sourdine.ledger import Ledger
from sourdine.sgd.charge import Charge, poisson
from sourdine.sgd.processes import Processes
from sourdine.text import contrast, desk
from sourdine.text.accounts import accounts
from sourdine.text.comparison import Comparison, OneRun, said
from sourdine.text.contrast import Place
from sourdine.text.desk import Desk
from sourdine.text.ensemble import Ensemble
from sourdine.text.models import BYTES
from sourdine.text.plan import plan, situation_of
from sourdine.text.prepared import Prepared
from sourdine.text.tasks import Classify

PLAN = "plan.json"
Hear = Callable[[str], object]
"""Hears what a run is doing."""


@dataclass(frozen=True)
class Cost:
    """What one run costs a unit: one of both."""

    training: Event
    test: Event

    @property
    def event(self) -> Event:
        return ParallelEvent((self.training, self.test))


def costs(asked: Comparison, ready: Prepared) -> dict[str, Cost]:
    """What each kind of private run costs: nothing of it depends on a record."""
    device = torch.device(asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    found = {}
    classes = len(asked.labels or (0, 1))
    for run in asked.runs[: len(asked.methods) * len(asked.epsilons)]:
        if not run.private:
            continue
        budget = asked.budget(run.epsilon)
        situation = situation_of(
            asked.units,
            budget,
            ready.encoder,
            pretrained=asked.model != BYTES,
            declared=True,
            device=device,
        )
        chosen = plan(
            situation, asked.strategy(run.method), steps=asked.steps, held_out=asked.held_out
        ).with_(steps=asked.steps, max_length=asked.max_length, held_out=asked.held_out)
        chosen = chosen.fitted(ready.units, None)
        own = accounts(
            budget, chosen, declared=True, rows_per_user=asked.rows_per_user, test="held out"
        )
        if (place := asked.place(run.method)) is not None:
            training = _place_event(place, asked, run, classes, ready)
        else:
            charge = Charge(
                budget,
                poisson(chosen.lot_size, ready.units, None, budget.adjacency),
                chosen.steps,
                unit=asked.unit,
                noise_multiplier=None,
                delta=None,
                label=run.kind,
                folder=None,
                processes=Processes(),
                apart=own.held_out,
            )
            training = charge.training(charge.steps, charge.noise_multiplier)
        found[run.kind] = Cost(training, GaussianEvent(own.test_noise or 0.0))
    return found


def _place_event(place: Place, asked: Comparison, run: OneRun, classes: int, ready: Prepared) -> Event:
    width = int(ready.encoder.config.hidden_size)
    return place.event(asked.budget(run.epsilon), classes, width, asked.rows_per_user)


def made(asked: Comparison, run: OneRun, table: Desk, keep: bool, hear: Hear) -> dict[str, Any]:
    """One run: what may be shown of it, and whether it was private."""
    planned = desk.read(table.folder / PLAN) or {}
    event = Event.from_json(planned["events"][run.kind]) if run.private else None
    if asked.place(run.method) is not None:
        metrics = _elsewhere(asked, run, planned["labels"], event)
    else:
        metrics = _trained(asked, run, planned["labels"], event, table, keep, hear)
    return {
        "method": run.method,
        "epsilon": said(run.epsilon),
        "repetition": run.repetition,
        "privacy": f"epsilon {run.epsilon:g}, as part of the comparison"
        if run.private
        else "NOT PRIVATE",
        "metrics": metrics,
    }


def _trained(
    asked: Comparison,
    run: OneRun,
    labels: list[str],
    event: Event | None,
    table: Desk,
    keep: bool,
    hear: Hear,
) -> dict[str, Any]:
    """A run of the Trainer; one that was stopped goes on."""
    work, kept = table.work(run.name), table.runs / run.name
    for folder in (kept, work):
        if (folder / "certificate.json").exists():
            return _moved(folder, kept if keep else None, desk.read(folder / "metrics.json") or {})
    if not run.private:
        shutil.rmtree(work, ignore_errors=True)

    def tell(stage: str, done: int, total: int, epsilon: float | None) -> None:
        hear(f"{run.name}: {stage} {done} of {total}")

    found = asked.trainer(run, labels, work, tell).fit()
    if event is not None:
        spent = Ledger(work / "ledger.sqlite").history()[0]
        if Event.from_json(spent.text) != event:
            raise InputError(
                f"the run {run.name} would cost something else than was planned, so it is not shown. "
                "Versions of sourdine or of the model changed; start in another folder."
            )
    return _moved(work, kept if keep else None, found.metrics)


def _moved(work: Path, to: Path | None, metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics, when the run folder has gone where it belongs."""
    if to is None:
        shutil.rmtree(work, ignore_errors=True)
    elif to != work:
        to.parent.mkdir(parents=True, exist_ok=True)
        work.replace(to)
    return metrics


def _elsewhere(
    asked: Comparison, run: OneRun, labels: list[str], event: Event | None
) -> dict[str, Any]:
    """A run that puts its noise on the output, the input or the votes of teachers."""
    goal, most = Classify(tuple(labels)), asked.rows_per_user
    trainer = asked.trainer(replace(run, method="head"), labels)
    ready = trainer.prepare()
    if ready.test is None:
        raise InputError("no records are held out, so there is nothing to compare by.")
    device = torch.device(asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    parts, voting = [ready.train, ready.test], run.method == Ensemble.name
    train, test = contrast.read_rows(ready, goal, parts, device, alone=voting)
    public = None
    if voting and asked.public is not None:
        public = contrast.read_rows(ready, goal, [asked.public], device)[0].features
    place, amount = asked.place(run.method, public), asked.tested
    if place is None:
        raise InputError(f"{run.method} is trained, not put elsewhere.")
    source = rng.secure() if run.private else rng.seeded(run.repetition)
    records, classes = ready.units * most, len(labels)
    if event is None:
        weights = place.fit_exactly(train, classes, records)
        return contrast.metrics(weights, test, goal, None, most, source, amount)
    budget = asked.budget(run.epsilon)
    own = accounts(budget, ready.plan, declared=True, rows_per_user=most, test="held out")
    charged = _place_event(place, asked, run, classes, ready)
    cost = Cost(charged, GaussianEvent(own.test_noise or 0.0))
    if cost.event != event:
        raise InputError(
            f"the run {run.name} would cost something else than was planned, so it was not made. "
            "Versions of sourdine or of the model changed; start in another folder."
        )
    weights = place.fit(train, classes, records, most, budget, source)
    return contrast.metrics(weights, test, goal, own.test_noise, most, source, amount)
