"""Every method at every budget on the same records, and what the comparison costs as a whole.

Guarantee: the results of all private runs together are (X, delta)-DP for one unit under zero-out, where
X is what the comparison says that it costs. All runs are planned before the first: their events, and
that of finding the labels, are fixed then and reserved as one plan in the comparison's ledger. Every
run splits the units into the same two parts, by a hash of each. So a unit meets the training of all
runs or the noisy test of all runs:

    labels  +  parallel(sum of all trainings, sum of all tests)       (accounting/parallel.py).

A run that was killed has shown nothing; it goes on, or is drawn again, and is charged once. Runs
without privacy (epsilon inf) are outside of the guarantee, and everything says so.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sourdine import checks, rng
from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.data.copies import check_copies
from sourdine.data.declared import Ask, check_labels, check_option
from sourdine.digits import above
from sourdine.errors import BudgetError, InputError
from sourdine.events import Event, ParallelEvent, compose
from sourdine.ledger import Entry, Ledger
from sourdine.ledger.record import RESERVE
from sourdine.ledger.shared import FILE, check_part, open_shared, published
from sourdine.modes import for_release
from sourdine.register import watch
from sourdine.text import desk
from sourdine.text.accounts import find_labels
from sourdine.text.base import tell_of_base
from sourdine.text.comparison import Comparison, OneRun
from sourdine.text.desk import Desk
from sourdine.text.releases import Labels
from sourdine.text.results import METRICS, publish, sum_up
from sourdine.text.runs import PLAN, Cost, costs, made

_FORMAT, _VERSION = "sourdine.comparison", 1
_LABEL_SHARE = 1e-2  # of delta, for labels that nobody declared
_LOOK = 0.5  # seconds between two looks for what others have done

Tell = Callable[[int, int, str], object]
"""Hears how many runs are done, of how many, and what is being done."""


def compare(
    asked: Comparison,
    out: str | Path,
    *,
    workers: int = 1,
    keep: bool = False,
    metric: str = "accuracy",
    at_most: float | None = None,
    agree: Callable[[Comparison, float], bool] | None = None,
    other_labels: str | None = None,
    leave_out_copies: bool = False,
    ask: Ask | None = None,
    tell: Tell = lambda done, total, doing: None,
    announce: Callable[[dict[str, Any]], object] = lambda plan: None,
) -> dict[str, Any]:
    """Makes the runs that are missing, shares them with whoever works in the same folder, and sums up.

    keep: the folder of every run stays, its weights and certificate too. at_most: the largest epsilon
    that the whole may cost, by default the largest of the budgets compared. agree: asks whether more
    may be spent, where at_most is None. other_labels, leave_out_copies, ask: see data/declared.py and
    data/copies.py. announce: hears the plan and its cost once it is charged, before the first run.
    Returns what comparison.json holds.
    """
    checks.one_of("metric", metric, tuple(METRICS))
    table = Desk(out)

    owner = _Owner(at_most, agree, other_labels, leave_out_copies, ask)
    owner.check_options(asked)
    with table.claim("plan", wait=True):
        planned = _planned(asked, table, owner)
    announce(planned)
    if workers == 1:
        _work(asked, table.folder, keep, tell)
    else:
        _share(asked, table.folder, keep, checks.whole("workers", workers), tell)
    with table.claim("plan", wait=True):
        _settle(asked, table)
        found = sum_up(planned, [table.result(run.name) or {} for run in asked.runs])
        publish(found, metric, table.folder)
        for_release(table.folder)
        table.clear()
    return found


# What the owner of the records allows


@dataclass(frozen=True)
class _Owner:
    """The answers that options gave in advance, and whom to ask for the others; see `compare`."""

    at_most: float | None
    agree: Callable[[Comparison, float], bool] | None
    other_labels: str | None
    leave_out_copies: bool
    ask: Ask | None

    def check_options(self, asked: Comparison) -> None:
        check_option(asked.labels, self.other_labels)
        if self.leave_out_copies and asked.public is None:
            raise InputError(
                "--leave-out-copies (leave_out_copies=) is about private records that stand in public "
                "texts; give --public for pate, or leave it out."
            )

    def ask_about_records(self, asked: Comparison) -> None:
        check_labels(asked.labels, [asked.corpus], other_labels=self.other_labels, ask=self.ask)
        if asked.public is not None:  # PATE leaves such records out (text/ensemble.py)
            check_copies(asked.corpus, [asked.public], leave_out=self.leave_out_copies, ask=self.ask)

    def ask_about_total(self, asked: Comparison, total: float | None) -> None:
        """Refuses a total that nobody has agreed to."""
        limit = asked.largest if self.at_most is None else self.at_most
        if total is None or total <= limit:
            return
        if self.at_most is not None or self.agree is None:
            raise BudgetError(
                f"this comparison was not begun: its {len(asked.runs)} runs cost epsilon "
                f"{above(total)} in all, and at most {limit:g} was agreed to. Allow it with --at-most "
                "(at_most=), or compare fewer methods, budgets or seeds. Nothing was charged."
            )
        if not self.agree(asked, total):
            raise InputError(
                "you answered no, so nothing was charged. Compare fewer methods, budgets or seeds."
            )


# The plan and its cost


@dataclass(frozen=True, eq=False)
class Price:
    """What a comparison releases and costs; nothing of it is charged yet."""

    each: dict[str, Cost]
    counts: Labels | None
    whole: Event | None
    epsilon: float | None
    """Of the whole, at the delta asked for; None where nothing of it is private."""


def price(asked: Comparison) -> Price:
    """Plans every run and adds them up; nothing is charged."""
    ready = asked.trainer(OneRun("head", 1.0, 1), asked.labels or ("0", "1")).prepare()
    if ready.test is None:
        raise InputError("no records are held out, so there is nothing to compare by.")
    each, counts = costs(asked, ready), None
    if asked.labels is None:
        sigma = max(4.0, 20.0 / asked.epsilons[0])
        counts = Labels(sigma, asked.delta * _LABEL_SHARE, asked.rows_per_user, "zero-out")
    whole = _whole(asked, each, counts)
    epsilon = None if whole is None else curve(whole).epsilon_upper(asked.delta) * (1 + 1e-6)
    return Price(each, counts, whole, epsilon)


def _planned(asked: Comparison, table: Desk, owner: _Owner) -> dict[str, Any]:
    """The plan of the folder, made and charged if there is none yet."""
    about = asked.described()
    known = desk.read(table.folder / PLAN)
    if known is None:
        return _plan(asked, about, table, owner)
    if (known.get("format"), known.get("version")) != (_FORMAT, _VERSION):
        raise InputError(f"{table.folder / PLAN} is of another or a newer kind; update sourdine.")
    other = [name for name, value in about.items() if known["settings"].get(name) != value]
    if other:
        raise InputError(
            f"{table.folder} holds another comparison: {', '.join(other)} differ. Go on with its "
            "settings, or name another folder."
        )
    if not known["labels"]:
        raise InputError(
            f"in the comparison of {table.folder} too few labels came out of the noisy count, and its "
            "whole budget has been spent; declare the labels, in another folder."
        )
    return known


def _plan(asked: Comparison, about: dict[str, Any], table: Desk, owner: _Owner) -> dict[str, Any]:
    folder = table.folder
    if folder.exists() and any(path.name != FILE for path in folder.iterdir()):
        raise InputError(f"{folder} is not empty and holds no comparison; name a new folder.")
    owner.ask_about_records(asked)  # before the model is loaded
    budget = asked.budget(asked.largest) if asked.largest else None
    tell_of_base(asked.model, budget, asked.corpus, asked.corpus, asked.encoding)
    priced = price(asked)
    each, counts = priced.each, priced.counts
    source = rng.secure()
    owner.ask_about_total(asked, priced.epsilon)
    if priced.whole is not None and priced.epsilon is not None:
        _reserve(asked, priced.whole, priced.epsilon, table, source.kind)
    labels, failure = list(asked.labels or ()), None
    if counts is not None:
        try:
            labels = find_labels(counts, asked.corpus.labels or [], source, asked.corpus.users)
        except InputError as error:
            failure = error
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": about,
        "unit": asked.unit,
        "records": asked.parts,
        "labels": labels,
        "runs": [run.name for run in asked.runs],
        "private_runs": sum(run.private for run in asked.runs),
        "epsilon": priced.epsilon,
        "events": {kind: cost.event.to_json() for kind, cost in each.items()},
    }
    desk.write(folder / PLAN, content)  # failure too: who looks again would have to pay again
    if failure is not None:
        raise failure
    return content


def _whole(asked: Comparison, kinds: dict[str, Cost], counts: Labels | None) -> Event | None:
    """All that the comparison releases about a unit, or None where nothing of it is private."""
    each = [kinds[run.kind] for run in asked.runs if run.private]
    parts: list[Event] = [] if counts is None else [counts.event]
    if each:
        trainings, tests = compose(x.training for x in each), compose(x.test for x in each)
        parts.append(ParallelEvent((trainings, tests)))
    return compose(parts) if parts else None


def _reserve(asked: Comparison, whole: Event, epsilon: float, table: Desk, kind: str) -> None:
    """Charges everything before anything is drawn; a killed start has done so already."""
    ledger, run = _ledger(asked, table, asked.budget(epsilon))
    if _reserved(ledger, run) is None:
        ledger = watch(ledger, [asked.corpus], asked.encoding, budget_of_all=asked.budget_of_all)
        ledger.reserve(whole, f"a comparison of {len(asked.runs)} runs", source=kind, data=run)


def _ledger(asked: Comparison, table: Desk, budget: Budget | None) -> tuple[Ledger, str]:
    """The shared ledger, or the comparison's own; and the name of the comparison in it."""
    name = table.beside / "run"
    if not name.exists():
        desk.write(name, secrets.token_hex(16))
    if asked.ledger is not None:
        shared = open_shared(asked.ledger)
        if budget is not None:
            check_part(shared, budget)
        return shared, name.read_text(encoding="utf-8")
    table.folder.mkdir(parents=True, exist_ok=True)
    return Ledger(table.folder / FILE, budget, nameless=True), name.read_text(encoding="utf-8")


def _reserved(ledger: Ledger, run: str) -> Entry | None:
    found = (entry for entry in ledger.history() if entry.kind == RESERVE and entry.data == run)
    return next(found, None)


def _settle(asked: Comparison, table: Desk) -> None:
    if asked.ledger is None and not (table.folder / FILE).exists():
        return  # nothing of it is private
    ledger, run = _ledger(asked, table, None)
    entry = _reserved(ledger, run)
    if entry is None:
        return  # nothing of it is private, or this folder was finished before
    if entry.id not in {settlement.refers for settlement in ledger.history()}:
        ledger.settle(entry, entry.event, "done")
    published(ledger, [entry.id], table.folder)


# The runs


def _share(asked: Comparison, folder: Path, keep: bool, workers: int, tell: Tell) -> None:
    """So many processes, each of which takes what nobody has claimed."""
    table, total = Desk(folder), len(asked.runs)
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        left = {pool.submit(_work_alone, asked, folder, keep, threads) for _ in range(workers)}
        while left:
            over, left = concurrent.futures.wait(left, _LOOK, concurrent.futures.FIRST_EXCEPTION)
            for future in over:
                future.result()
            tell(_done(asked, table), total, f"{workers} processes")


def _work_alone(asked: Comparison, folder: Path, keep: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    _work(asked, folder, keep, lambda done, total, doing: None)


def _work(asked: Comparison, folder: Path, keep: bool, tell: Tell) -> None:
    """Makes every run that nobody else holds, until all are there."""
    table, total = Desk(folder), len(asked.runs)
    while (done := _done(asked, table)) < total:
        worked = False
        for run in asked.runs:
            if table.result(run.name) is not None:
                continue
            with table.claim(run.name) as mine:
                if mine and table.result(run.name) is None:
                    done = _done(asked, table)
                    hear = functools.partial(tell, done, total)
                    hear(run.name)
                    table.keep(run.name, made(asked, run, table, keep, hear))
                    worked = True
        if not worked:
            tell(done, total, "waiting for other processes")
            time.sleep(_LOOK)
    tell(total, total, "done")


def _done(asked: Comparison, table: Desk) -> int:
    return sum((table.runs / f"{run.name}.json").exists() for run in asked.runs)
