"""`sourdine train`: a private text classifier, its certificate and its report."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.cli.options import (
    Adjacency,
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
    Records,
    RowsPerUser,
    SharedLedger,
    Text,
    User,
    import_training,
    listed,
    print_json,
    training_budget,
    whole,
)
from sourdine.cli.owner import chosen_encoder, tell_privately, who_answers
from sourdine.cli.owner import tell as say
from sourdine.cli.results import how_to_check, results
from sourdine.digits import above, below
from sourdine.errors import InputError, SourdineError

if TYPE_CHECKING:
    from sourdine.text.run import Run
    from sourdine.text.trainer import Trainer

Tell = Callable[[str, int, int, float | None], None]


def train(
    data: Data,
    text: Text = None,
    label: Label = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The budget.")] = None,
    delta: Delta = None,
    ledger: SharedLedger = None,
    budget_of_all: BudgetOfAll = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; notes-run for notes.csv.")
    ] = None,
    model: Model = None,
    trains: Annotated[
        str | None, typer.Option("--trains", help="head, bitfit, lora, prompt or all.")
    ] = None,
    lora: Annotated[float | None, typer.Option("--lora", help="Train LoRA of this rank.")] = None,
    user: User = None,
    rows_per_user: RowsPerUser = 1,
    labels: Labels = None,
    other_labels: OtherLabels = None,
    test: Annotated[str | None, typer.Option("--test", help="Other records to test on.")] = None,
    test_is_public: Annotated[
        bool, typer.Option("--test-is-public", help="The test records may be used without noise.")
    ] = False,
    leave_out_copies: LeaveOutCopies = False,
    reference: Annotated[
        Path | None, typer.Option("--reference", help="A --not-private run, shown beside this one.")
    ] = None,
    held_out: Annotated[
        float | None, typer.Option("--held-out", help="Share of the units to test on; 0 for none.")
    ] = None,
    audit: Annotated[
        float | None, typer.Option("--audit", help="Train so many canaries along, to check the claim.")
    ] = None,
    audit_texts: Annotated[
        float | None, typer.Option("--audit-texts", help="Or so many canary texts, which show less.")
    ] = None,
    steps: Annotated[float | None, typer.Option("--steps", help="Steps of training.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Or passes over the data.")] = None,
    lot_size: Annotated[float | None, typer.Option("--lot-size", help="Units in a step.")] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="Largest norm of a gradient.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Of AdamW.")] = None,
    max_length: Annotated[float | None, typer.Option("--max-length", help="Tokens of a text.")] = None,
    batch_size: Annotated[
        float | None, typer.Option("--batch-size", help="Texts in memory at once; no matter else.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            help="Time that training may take; the planner chooses what trains, lots and steps by it "
            "(default: 10 on a CPU, no limit on a GPU).",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            "--public",
            help="Public texts of the same kind: the planner takes texts to be as long as their median "
            "(default: 32 tokens).",
        ),
    ] = None,
    adjacency: Adjacency = None,
    records: Records = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say how it would train, and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="A folder for TensorBoard.")
    ] = None,
    seed: Annotated[float | None, typer.Option("--seed", help="For tests: no certificate.")] = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="No privacy, on data that may be used so.")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Train a text classifier privately; the folder it ends in can be checked by a stranger.

    Everything is charged to the folder's ledger before anything is drawn. Stopped runs go on with the
    same command and --resume.

    Example: `sourdine train notes.csv --text note --label diagnosis --epsilon 3 --out out`
    """
    if not_private and epsilon is not None:
        raise InputError("--not-private has no epsilon; leave one of both out.")
    if not_private and (ledger, budget_of_all) != (None, None):
        raise InputError(
            "--not-private is charged to no ledger; leave --ledger and --budget-of-all out."
        )
    budget = None if not_private else training_budget(epsilon, delta, user, adjacency, ledger)
    import_training()
    model = model or chosen_encoder()
    folder = out or Path(f"{Path(data).name.split('.')[0]}-run")
    first = _together()
    if resume and not any((folder / name).exists() for name in ("run", "certificate.json")):
        raise InputError(f"there is no run in {folder} to go on with; leave --resume out to start one.")
    with progress(first and not json) as tell, _log(tensorboard if first else None) as log:
        from sourdine.text.trainer import Trainer  # noqa: PLC0415 (torch: only now)

        trainer = Trainer(
            data,
            budget,
            model=model,
            text=text,
            label=label,
            user=user,
            rows_per_user=whole("rows-per-user", rows_per_user) or 1,
            labels=listed(labels),
            other_labels=other_labels,
            leave_out_copies=leave_out_copies,
            ask=who_answers(),
            test=test,
            test_is_public=test_is_public,
            records=whole("records", records),
            reference=reference,
            ledger=ledger,
            budget_of_all=budget_of_all,
            minutes=minutes,
            public=public,
            encoding=encoding,
            output_dir=None if plan else folder,
            resume=resume,
            trains=trains,
            lora=whole("lora", lora),
            steps=whole("steps", steps),
            epochs=epochs,
            lot_size=whole("lot-size", lot_size),
            clip=clip,
            learning_rate=learning_rate,
            max_length=whole("max-length", max_length),
            batch_size=whole("batch-size", batch_size),
            held_out=held_out,
            audit=whole("audit", audit),
            audit_texts=whole("audit-texts", audit_texts),
            device=device,
            seed=None if seed is None else checks.whole("seed", seed, least=0),
            not_private=not_private,
            log=log,
            tell=tell,
        )
        ready = trainer.prepare()
        if first and not json:
            for sentence in ready.findings.sentences():
                tell_privately(sentence)
            if ready.test is None:
                say(trainer.untested(ready))
        if plan:
            _say_plan(trainer, json)
            return
        if first and not json:
            _say_time(trainer)
        run = _fitted(trainer, folder)
    if first:
        _say(run, json)


def _together() -> bool:
    """Joins the processes of torchrun; whether this is the one that speaks."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if cuda else "gloo")
    return distributed.get_rank() == 0


def _fitted(trainer: Trainer, folder: Path) -> Run:
    try:
        return trainer.fit()
    except KeyboardInterrupt:
        print("sourdine: the same command with --resume goes on.", file=sys.stderr)
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise SourdineError(f"{folder}: no space left; make room, go on with --resume.") from None
        raise InputError(
            f"{folder} cannot be written: {error.strerror}; name another folder."
        ) from None


@contextlib.contextmanager
def progress(shown: bool) -> Iterator[Tell | None]:
    """A bar that shows epsilon while it grows, on a terminal only.

    It starts when there is something to show: a bar takes the terminal over, and before it starts the
    owner may have to be asked (cli/owner.py).
    """
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[spent]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, Any] = {}

    def tell(stage: str, done: int, total: int, epsilon: float | None) -> None:
        bar.start()
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total, spent="")
        bar.update(tasks[stage], completed=done)
        if epsilon is not None:
            bar.update(tasks[stage], spent=f"epsilon {above(epsilon, 3)}")

    try:
        yield tell
    finally:
        bar.stop()


@contextlib.contextmanager
def _log(folder: Path | None) -> Iterator[Callable[[dict[str, float]], object] | None]:
    if folder is None:
        yield None
        return
    from sourdine.text.log import tensorboard  # noqa: PLC0415

    with tensorboard(folder) as log:
        yield log


def _say_time(trainer: Trainer) -> None:
    """How long it will take, by the lengths of the records: for the owner alone."""
    seconds, plan = trainer.expected_seconds(privately=True), trainer.prepare().plan
    about = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"
    tell_privately(f"this run takes about {about} on this machine, training {plan.strategy.name}.")
    if trainer.minutes is not None and seconds > 120 * trainer.minutes:
        tell_privately(
            f"that is more than twice the {trainer.minutes:g} minutes that were planned: your texts "
            "are longer than the planner took them to be, or your options ask for more. Shorten them "
            "with --max-length, say how long such texts are with --public, train less (--trains head, "
            "--steps, --lot-size), or allow it with --minutes. Ctrl-C now costs nothing."
        )


def _say_plan(trainer: Trainer, json: bool) -> None:
    ready = trainer.prepare()
    plan = ready.plan
    noise = trainer.planned_noise()
    settings = {
        "trains": plan.strategy.name,
        "lot_size": plan.lot_size,
        "steps": plan.steps,
        "clip": plan.clip,
        "learning_rate": plan.learning_rate,
        "max_length": plan.max_length,
        "batch_size": plan.batch_size,
        "held_out": plan.held_out,
        "noise_multiplier": noise,
        "expected_seconds": round(trainer.expected_seconds()),
    }
    if json:
        print_json({**settings, "reasons": plan.reasons})
        return
    for name, value in settings.items():
        print(
            f"{name.replace('_', ' '):<17} {value:.6g}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):<17} {value}"
        )
    print("because")
    for reason in plan.reasons.values():
        print(f"  - {reason}")
    print("Nothing was charged. Any of these can be set by its own option.")


def _say(run: Run, json: bool) -> None:
    promise = None if run.certificate is None else run.certificate.document["guarantee"]
    if json:
        names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency")
        found = {} if promise is None else {name: promise[name] for name in names}
        audit = {"audit": run.certificate.document["audit"]} if run.certificate else {}
        print_json(
            {
                "folder": str(run.folder),
                "private": promise is not None,
                **found,
                **audit,
                **run.metrics,
            }
        )
        return
    if promise is None:
        print(f"trained WITHOUT privacy: {run.folder} carries no certificate")
    else:
        print(
            f"trained: epsilon <= {above(promise['epsilon'])} at delta = {promise['delta']:g} per "
            f"{promise['unit']} ({promise['adjacency']})"
        )
    for line in results(run.metrics):
        print(line)
    print(f"the run lies in {run.folder}" + ("" if promise is None else ": report.html is for people"))
    if promise is not None and run.certificate is not None:
        for line in how_to_check(run.folder):
            print(line)
        for line in (
            run.certificate.document["audit"] if (run.folder / "canaries.json").exists() else ()
        ):
            print(f"audit: epsilon >= {below(line['lower_bound'])} by {line['attack']}")
    if run.not_for_release is not None:
        print(f"for your eyes only: {run.not_for_release}")
