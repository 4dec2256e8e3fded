"""`sourdine compare`: each method at each budget, what it costs as a whole, and the frontier."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from sourdine import checks
from sourdine.cli import owner
from sourdine.cli.options import (
    BudgetOfAll,
    Config,
    Data,
    Delta,
    Device,
    Encoding,
    Json,
    Label,
    Labels,
    LeaveOutCopies,
    Model,
    OtherLabels,
    RowsPerUser,
    SharedLedger,
    Text,
    User,
    import_training,
    listed,
    print_json,
    shared_ledger,
    whole,
)
from sourdine.digits import above
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.text.comparison import Comparison

_METRICS = {"accuracy": "accuracy", "macro-f1": "macro_f1"}


class SeveralValues(typer.core.TyperCommand):
    """A command whose --epsilon takes all the numbers behind it: --epsilon 1 2 5 inf."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found: list[str] = []
        for argument in args:
            follows = len(found) > 1 and found[-2] == "--epsilon" and _is_number(argument)
            found += ["--epsilon", argument] if follows else [argument]
        return super().parse_args(ctx, found)


def compare(
    data: Data,
    text: Text = None,
    label: Label = None,
    epsilon: Annotated[
        list[str] | None,
        typer.Option("--epsilon", help="Budgets: 1 2 5; inf is no privacy, for data that allow it."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Of head,bitfit,lora,prompt,all,output,input,pate."),
    ] = None,
    seeds: Annotated[float, typer.Option("--seeds", help="How many runs of each.")] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", help="Its folder; notes-comparison for notes.csv.")
    ] = None,
    delta: Delta = None,
    at_most: Annotated[
        float | None,
        typer.Option(
            "--at-most",
            help="Largest epsilon that all runs together may cost (default: the largest --epsilon; "
            "above it you are asked).",
        ),
    ] = None,
    ledger: SharedLedger = None,
    budget_of_all: BudgetOfAll = None,
    model: Model = None,
    user: User = None,
    rows_per_user: RowsPerUser = 1,
    labels: Labels = None,
    other_labels: OtherLabels = None,
    metric: Annotated[str, typer.Option("--metric", help="accuracy or macro-f1.")] = "accuracy",
    steps: Annotated[float | None, typer.Option("--steps", help="Steps of each training.")] = None,
    max_length: Annotated[float | None, typer.Option("--max-length", help="Tokens of a text.")] = None,
    workers: Annotated[float, typer.Option("--workers", help="Processes that share the runs.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder of every run.")] = False,
    public: Annotated[
        str | None, typer.Option("--public", help="Public texts without labels, for pate.")
    ] = None,
    leave_out_copies: LeaveOutCopies = False,
    teachers: Annotated[float, typer.Option("--teachers", help="How many, for pate.")] = 250,
    encoding: Encoding = "utf-8",
    device: Device = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show the runs and what they cost, and stop.")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Train by each method at each budget, several times; table and privacy-utility frontier.

    It costs the sum of its private runs, charged before the first; --plan shows it. Stopped, it goes on
    with the same command; started twice, both share the runs.

    Example: `sourdine compare notes.csv --text note --label diagnosis --epsilon 1 2 5 --labels yes,no`
    """
    budgets = _budgets(epsilon or [])
    measured = _METRICS[checks.one_of("metric", metric, tuple(_METRICS))]
    folder = out or Path(f"{Path(data).name.split('.')[0]}-comparison")
    _say(_warnings(budgets))
    import_training()
    model = model or owner.chosen_encoder()

    from sourdine.data.owner import examine  # noqa: PLC0415
    from sourdine.text import compare as room  # noqa: PLC0415 (torch: only now)
    from sourdine.text.comparison import comparison  # noqa: PLC0415
    from sourdine.text.results import sentences  # noqa: PLC0415

    asked = comparison(
        data,
        text=text,
        label=label,
        epsilons=budgets,
        methods=listed(methods),
        seeds=checks.whole("seeds", seeds),
        delta=_delta(delta, ledger),
        model=model,
        user=user,
        rows_per_user=checks.whole("rows-per-user", rows_per_user),
        labels=listed(labels),
        steps=whole("steps", steps),
        max_length=whole("max-length", max_length),
        device=device,
        encoding=encoding,
        public=public,
        teachers=checks.whole("teachers", teachers, least=2),
        ledger=ledger,
        budget_of_all=budget_of_all,
    )
    for sentence in examine(asked.corpus).sentences():
        owner.tell_privately(sentence)
    if methods is None:
        _say([f"comparing {', '.join(asked.methods)}; name others with --methods."])
    if plan:
        _say_plan(asked, room.price(asked).epsilon, json)
        return
    limit = None if at_most is None else checks.protecting(at_most)
    with _progress(not json) as tell:
        found = room.compare(
            asked,
            folder,
            workers=checks.whole("workers", workers),
            keep=keep,
            metric=measured,
            at_most=limit,
            agree=_agree if owner.on_terminal() else None,
            other_labels=other_labels,
            leave_out_copies=leave_out_copies,
            ask=owner.who_answers(),
            tell=tell,
            announce=lambda plan: _say(sentences(plan)),
        )
    if json:
        print_json(found)
        return
    _print(found, measured, folder)


def _delta(given: float | None, ledger: str | None) -> float:
    """The delta asked for, or the ledger's; a comparison is per the ledger's unit, under zero-out."""
    if ledger is None:
        return 1e-6 if given is None else given
    held = shared_ledger(ledger, 1.0).budget.delta
    if given not in (None, held):
        raise InputError(f"the ledger {ledger} was made for delta {held:g}; leave --delta out.")
    return held


def _agree(asked: Comparison, total: float) -> bool:
    """Whether the owner agrees to a total above every budget that was asked for."""
    return owner.confirmed(
        f"these {len(asked.runs)} runs cost epsilon {above(total)} in all, and the largest --epsilon "
        f"is {asked.largest:g}. Charge it?"
    )


def _say_plan(asked: Comparison, epsilon: float | None, json: bool) -> None:
    runs = [run.name for run in asked.runs]
    if json:
        print_json({"runs": runs, "epsilon": epsilon, "delta": asked.delta, "unit": asked.unit})
        return
    print(f"{len(runs)} runs: {', '.join(asked.methods)}, {asked.seeds} of each at each budget")
    if epsilon is None:
        print("none of them is private, so nothing would be charged")
    else:
        print(
            f"all together cost epsilon <= {above(epsilon)} at delta = {asked.delta:g} per {asked.unit}"
        )
    print("Nothing was charged.")


def _budgets(given: list[str]) -> list[float]:
    """Numbers above zero and inf, however they were separated."""
    found = []
    for word in " ".join(given).replace(",", " ").split():
        try:
            number = float(word)
        except ValueError:
            raise InputError(f"--epsilon {word!r} is no number; give 1 2 5, or inf for none.") from None
        found.append(number if number == math.inf else checks.protecting(number))
    if not found:
        raise InputError("give --epsilon with the budgets to compare: --epsilon 1 2 5 inf.")
    return found


def _is_number(argument: str) -> bool:
    try:
        float(argument)
    except ValueError:
        return False
    return True


def _warnings(budgets: list[float]) -> list[str]:
    return [
        f"epsilon {budget:g} is outside of 0.1 to 10, where it means something in practice."
        for budget in budgets
        if math.isfinite(budget) and not 0.1 <= budget <= 10
    ]


def _say(said: list[str]) -> None:
    for sentence in said:
        print(f"sourdine: {sentence}", file=sys.stderr)


@contextlib.contextmanager
def _progress(wanted: bool) -> Iterator[Callable[[int, int, str], object]]:
    """A line on a terminal, nothing anywhere else; it starts after all questions."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda done, total, doing: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    line = bar.add_task("", total=None)

    def tell(done: int, total: int, doing: str) -> None:
        bar.start()
        bar.update(line, completed=done, total=total, description=doing)

    try:
        yield tell
    finally:
        bar.stop()


def _print(found: dict[str, Any], metric: str, folder: Path) -> None:
    from sourdine.text.results import SHOWN, rows  # noqa: PLC0415

    for name in (metric, "matthews"):
        table = rows(found, name)
        widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
        print(f"{SHOWN[name]}: mean, lowest and highest of {found['settings']['seeds']} runs")
        for line in table:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(cells).rstrip())
    print(f"classes: {', '.join(found['labels'])}")
    for sentence in found["says"]:
        print(sentence)
    print(f"The frontier: {folder / 'frontier.png'}")
