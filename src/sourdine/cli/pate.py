"""`sourdine pate`: teachers on private records label public texts with noise, and a student learns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.encode import check_public
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
    SharedLedger,
    Text,
    User,
    import_training,
    listed,
    print_json,
    shared_ledger,
    training_budget,
    whole,
)
from sourdine.cli.owner import chosen_encoder, tell_privately, who_answers
from sourdine.cli.results import how_to_check, results
from sourdine.cli.train import progress
from sourdine.digits import above
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.data.corpus import Corpus
    from sourdine.text.teaching import Material


def pate(
    data: Data,
    public: Annotated[
        str | None, typer.Option("--public", help="Public texts without labels: the questions.")
    ] = None,
    text: Text = None,
    label: Label = None,
    labels: Labels = None,
    other_labels: OtherLabels = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The budget.")] = None,
    delta: Delta = None,
    ledger: SharedLedger = None,
    budget_of_all: BudgetOfAll = None,
    teachers: Annotated[float, typer.Option("--teachers", help="How many.")] = 250,
    user: User = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; notes-pate for notes.csv.")
    ] = None,
    aggregator: Annotated[
        str, typer.Option("--aggregator", help="best, gnmax, confident or lnmax.")
    ] = "best",
    questions: Annotated[
        float | None, typer.Option("--questions", help="At most so many; the plan may take fewer.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Votes that confident asks for.")
    ] = None,
    accuracy: Annotated[
        float, typer.Option("--assume", help="Accuracy of a teacher that the plan assumes.")
    ] = 0.75,
    test: Annotated[
        str | None, typer.Option("--test", help="PUBLIC labelled texts, for an exact test.")
    ] = None,
    leave_out_copies: LeaveOutCopies = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    model: Model = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Learn from teachers' votes: private records never meet the model that is handed on.

    Teachers on disjoint parts of the data vote on public texts; noisy answers, charged before the
    first, train a student. Threshold and noise are planned on made-up votes, never on the private ones.

    Example: `sourdine pate notes.csv --public abstracts.csv --text note --label diagnosis --labels
    yes,no --teachers 250 --epsilon 2`
    """
    classes = listed(labels)
    if not classes or len(set(classes)) < 2 or len(set(classes)) < len(classes):
        raise InputError(
            "name two classes or more, each once, with --labels yes,no: they must be known without the "
            "data."
        )
    check_public(model)
    if public is None:
        raise InputError("give public texts of the same kind with --public: teachers label those.")
    budget = training_budget(epsilon, delta, user, None, ledger)
    count = checks.whole("teachers", teachers, least=2)
    folder = out or Path(f"{Path(data).name.split('.')[0]}-pate")
    _check_folder(folder, resume)
    import_training()
    model = model or chosen_encoder()
    from sourdine.data.copies import check_copies  # noqa: PLC0415 (torch and more: only now)
    from sourdine.data.declared import check_labels, check_option  # noqa: PLC0415
    from sourdine.text.desk import Desk  # noqa: PLC0415
    from sourdine.text.tasks import Classify  # noqa: PLC0415
    from sourdine.text.teaching import Material, Teaching, Wish  # noqa: PLC0415

    check_option(classes, other_labels)
    wish = Wish(aggregator, whole("questions", questions), threshold, accuracy)
    own, others, tested = _read(data, public, test, text, label, user, encoding)
    _check_sizes(own, count, budget)
    check_labels(classes, [own], other_labels=other_labels, ask=who_answers())
    known = [others] if tested is None else [others, tested]
    copies = check_copies(own, known, leave_out=leave_out_copies, ask=who_answers())
    material = Material(own, others, copies, Classify(tuple(classes)), tested)
    for sentence in _about(material):
        tell_privately(sentence)
    table = Desk(folder)
    with table.claim("run") as mine, progress(not json) as tell:
        if not mine:
            raise InputError(f"another process works on {folder}; wait for it, or name another folder.")
        _check_folder(folder, resume)
        try:
            shared = None if ledger is None else shared_ledger(ledger, budget.epsilon)
            run = Teaching(
                *(material, budget, count, wish, folder, model, device, tell),
                ledger=shared,
                budget_of_all=budget_of_all,
            )
            run.ask(resume)
            certificate, metrics, page = run.finish()
        except KeyboardInterrupt:
            print("sourdine: the same command with --resume goes on.", file=sys.stderr)
            raise
        finally:
            (table.beside / "run.lock").unlink(missing_ok=True)
    promise = certificate.document["guarantee"]
    names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency")
    found = {
        **{name: promise[name] for name in names},
        "aggregator": run.labelling.aggregator.name,
        "asked": run.labelling.asked,
        "answered": run.labelling.answered,
        "not_for_release": str(page),
        **metrics,
    }
    if json:
        print_json({"folder": str(folder), **found})
    else:
        _say(found, folder)


def _read(
    data: str,
    public: str,
    test: str | None,
    text: list[str] | None,
    label: str | None,
    user: str | None,
    encoding: str,
) -> tuple[Corpus, Corpus, Corpus | None]:
    """The private records, the public texts, and labelled texts that are public too, for a test."""
    from sourdine.data.copies import refuse_same_table  # noqa: PLC0415
    from sourdine.data.corpus import read_corpus  # noqa: PLC0415

    refuse_same_table(data, public, "--public")
    refuse_same_table(data, test, "--test")
    own = read_corpus(data, text=text, label=label, user=user, encoding=encoding)
    names = list(own.text)
    others = read_corpus(public, text=names, label=None, encoding=encoding, labelled=False)
    if test is None:
        return own, others, None
    return own, others, read_corpus(test, text=names, label=own.label, encoding=encoding)


def _check_folder(folder: Path, resume: bool) -> None:
    if resume and (folder / "certificate.json").exists():
        raise InputError(f"the run in {folder} is finished: sourdine verify {folder}.")
    if resume and not (folder / "plan.json").exists():
        raise InputError(f"there is no unfinished run in {folder}; leave --resume out to start one.")
    if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} is there already; name a new folder with --out, or go on with --resume."
        )


def _check_sizes(own: Corpus, teachers: int, budget: Budget) -> None:
    from sourdine.text.prepared import units_of  # noqa: PLC0415

    units = units_of(own)
    checks.delta(budget.delta, units)
    if units < 5 * teachers:
        raise InputError(
            f"{teachers} teachers would share {units} {budget.unit}s, fewer than 5 each; take at most "
            f"--teachers {max(2, units // 5)}, or DP-SGD: sourdine train."
        )


def _about(material: Material) -> list[str]:
    """What the owner should know before anything is charged; for no one else's eyes."""
    from sourdine.data.owner import examine  # noqa: PLC0415

    said = examine(material.private).sentences()
    if empty := sum(not "".join(row).strip() for row in zip(*material.public.texts, strict=True)):
        said.append(f"{empty:,} of the {len(material.public):,} public texts are empty.")
    return said


def _say(found: dict[str, Any], folder: Path) -> None:
    print(
        f"trained by PATE: epsilon <= {above(found['epsilon'])} at delta = {found['delta']:g} per "
        f"{found['unit']} ({found['adjacency']})"
    )
    print(f"{found['answered']:,} of {found['asked']:,} questions answered, {found['aggregator']}")
    for line in results(found):
        print(line)
    print(f"the run lies in {folder}: report.html is for people")
    for line in how_to_check(folder):
        print(line)
    print(f"for your eyes only: {found['not_for_release']}")
