"""`sourdine attack`: can members be told from others, record by record or person by person?"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.cli.options import (
    Config,
    Device,
    Encoding,
    Json,
    Label,
    Text,
    import_text,
    listed,
    print_json,
    whole,
)
from sourdine.errors import InputError
from sourdine.modes import private_folder, write_privately

if TYPE_CHECKING:
    from sourdine.attacks.membership import Membership
    from sourdine.attacks.shadows import Shadows
    from sourdine.attacks.target import Record

app = typer.Typer(help="Attack a model: what does it give away about those it was trained on?")
_POINTS = 400

TargetFolder = Annotated[
    str, typer.Argument(help="A folder of transformers (classifier or causal model), or of a run.")
]
Members = Annotated[str, typer.Option("--members", help="A table of what it was trained on.")]
Others = Annotated[str, typer.Option("--others", help="A table of the same kind that it never saw.")]
Reference = Annotated[
    str | None, typer.Option("--reference", help="A model that never saw the members, to compare.")
]
TargetLabels = Annotated[
    str | None, typer.Option("--labels", help="The target's classes in order, if tables differ.")
]
MaxLength = Annotated[
    float | None,
    typer.Option("--max-length", metavar="NUMBER", help="Tokens of a text; all it can."),
]
Confidence = Annotated[float, typer.Option("--confidence", help="Of every interval.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="A folder for result.json, roc.png and densities.png.")
]


@app.command("membership")
def membership(
    target: TargetFolder,
    members: Members,
    others: Others,
    text: Text = None,
    label: Label = None,
    reference: Reference = None,
    shadows: Annotated[
        float,
        typer.Option(
            "--shadows", metavar="NUMBER", help="Shadow heads on --base, for LiRA and RMIA; 16 do."
        ),
    ] = 0,
    base: Annotated[
        str | None, typer.Option("--base", help="The encoder from which a classifier was made.")
    ] = None,
    labels: TargetLabels = None,
    max_length: MaxLength = None,
    confidence: Confidence = 0.95,
    out: Out = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Tell the records that a model was trained on from others: ROC, AUC, and a blind baseline.

    Nothing is downloaded, and no shadow is as good as one made like the target: from Python, any
    training can be given. That no attack succeeds is no proof that none can.

    Example: `sourdine attack membership model/ --members in.csv --others out.csv --text note --label y`
    """
    from sourdine.attacks.membership import attack_membership  # noqa: PLC0415 (scipy: only now)

    count = checks.whole("shadows", shadows, least=0)
    _check_shadows(count, base)
    _made(out)
    model = _target(target, labels, max_length, device)
    sides = [_records(name, text, label, None, encoding, model) for name in (members, others)]
    found = attack_membership(
        model,
        *sides,
        reference=None if reference is None else _target(reference, labels, max_length, device),
        shadows=_shadows(model, [*sides[0], *sides[1]], count, base, device),
        confidence=confidence,
    )
    _show(found, out, json)


@app.command("user")
def user(
    target: TargetFolder,
    members: Members,
    others: Others,
    text: Text = None,
    label: Label = None,
    user: Annotated[
        str | None, typer.Option("--user", help="The column that names the person.")
    ] = None,
    reference: Reference = None,
    labels: TargetLabels = None,
    max_length: MaxLength = None,
    confidence: Confidence = 0.95,
    out: Out = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Tell the persons whose records a model was trained on from others.

    Each person is scored by all of that person's records. A --reference makes it far stronger.

    Example: `sourdine attack user model/ --members in.csv --others out.csv --text note --user patient`
    """
    from sourdine.attacks.users import attack_users  # noqa: PLC0415 (scipy: only now)

    if user is None:
        raise InputError("give --user, the column that names the person of each record.")
    _made(out)
    model = _target(target, labels, max_length, device)
    sides = [_records(name, text, label, user, encoding, model) for name in (members, others)]
    known = None if reference is None else _target(reference, labels, max_length, device)
    _show(attack_users(model, *sides, reference=known, confidence=confidence), out, json)


def _made(out: Path | None) -> None:
    """The folder for the result, found out before the work and not after it."""
    if out is None:
        return
    try:
        private_folder(out)  # exact figures about private records
    except OSError as error:
        raise InputError(f"{out} cannot be made a folder: {error.strerror}; name another.") from None


def _target(path: str, labels: str | None, max_length: float | None, device: str | None) -> Any:
    """The model of a folder as a target, its classes renamed where that was asked for."""
    import_text()
    from sourdine.attacks.adapters import Function, from_folder  # noqa: PLC0415

    longest = whole("max-length", max_length)
    if (Path(path).expanduser() / "sourdine.json").exists():
        model: Any = _run(path, longest)
    else:
        model = from_folder(path, device=device, longest=longest)
    names = listed(labels)
    if names is None:
        return model
    had = getattr(model, "labels", ())
    if set(names) == set(had) and tuple(names) != tuple(had):
        raise InputError(
            f"--labels names {', '.join(names)}, but the model in {path} has them in the order "
            f"{', '.join(had)}; leave --labels out."
        )
    if len(names) != len(had) or len(set(names)) != len(names):
        raise InputError(
            f"--labels names {len(names)} classes, but the model in {path} has {len(had)}; name each "
            "of them once, in the order of its columns."
        )
    return Function(model.probabilities, tuple(names))


def _run(path: str, longest: int | None) -> Any:
    """The classifier of a run folder of ours."""
    from sourdine.attacks.adapters import Function  # noqa: PLC0415
    from sourdine.text.model import load  # noqa: PLC0415

    model = load(path)
    if longest is not None:
        model = replace(model, max_length=min(longest, model.max_length))

    def answer(records: Sequence[Record]) -> Any:
        columns = zip(*(record.texts for record in records), strict=True)
        return model.scores(*map(list, columns)).double().softmax(1).numpy()

    return Function(answer, model.task.labels)


def _records(
    source: str, text: list[str] | None, label: str | None, user: str | None, encoding: str, model: Any
) -> list[Record]:
    """The records of a table; labels are asked for where the target has classes."""
    from sourdine.attacks.target import Classifies, Record  # noqa: PLC0415
    from sourdine.data.corpus import read_corpus  # noqa: PLC0415

    labelled = isinstance(model, Classifies)
    if label is not None and not labelled:
        raise InputError("the target is a language model, which knows no labels; leave --label out.")
    corpus = read_corpus(
        source,
        text=text,
        label=label,
        user=user,
        encoding=encoding,
        labelled=labelled,
    )
    nothing = [None] * len(corpus)
    rows = zip(
        zip(*corpus.texts, strict=True), corpus.labels or nothing, corpus.users or nothing, strict=True
    )
    return [Record(*row) for row in rows]


def _check_shadows(count: int, base: str | None) -> None:
    """Before a model is loaded."""
    if bool(count) != (base is not None):
        raise InputError(
            "shadows on the command line are heads on a frozen encoder: give both --shadows 16 and "
            "--base. Others are trained in Python (sourdine.attacks.train_shadows)."
        )


def _shadows(
    model: Any, pool: list[Record], count: int, base: str | None, device: str | None
) -> Shadows | None:
    """Logistic heads on the frozen features of the base, each on half of the pool."""
    from sourdine.attacks.adapters import features  # noqa: PLC0415
    from sourdine.attacks.scores import places  # noqa: PLC0415
    from sourdine.attacks.shadows import from_vectors, halves, train_heads  # noqa: PLC0415
    from sourdine.attacks.target import Classifies  # noqa: PLC0415

    if base is None:
        return None
    if not isinstance(model, Classifies):
        raise InputError(
            "shadows on the command line are for classifiers, but the target is a language model; "
            "train them in Python (sourdine.attacks.train_shadows)."
        )
    inside = halves(len(pool), count, 0)
    at = places(model, pool)
    vectors = train_heads(features(base, pool, device=device), at, inside, classes=len(model.labels))
    return from_vectors(inside, vectors, at)


def _show(found: Membership, out: Path | None, json: bool) -> None:
    if out is not None:
        written = json_module.dumps(found.to_json(), indent=2, ensure_ascii=False)
        write_privately(out / "result.json", written + "\n")
        pictures(found, out)
    if json:
        print_json(found.to_json())
        return
    _table(found)
    for sentence in found.words():
        print(sentence)
    if out is not None:
        print(f"Written: {out / 'result.json'}, roc.png and densities.png beside it.")


def _table(found: Membership) -> None:
    """Attacks by falling AUC, the rates for which there are others enough, and the blind baseline."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from sourdine.attacks.roc import RATES  # noqa: PLC0415

    ranked = sorted(found.attacks.items(), key=lambda pair: -pair[1].auc)
    refused = [rate for rate in map(ranked[0][1].at, RATES) if rate.tpr is None]
    shown = [rate for rate in RATES if rate not in {one.fpr for one in refused}]
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("attack", no_wrap=True)
    for heading in ("AUC", *(f"TPR at FPR {rate:g}" for rate in shown)):
        table.add_column(heading, justify="right")
    for name, roc in ranked:
        rates = [roc.at(rate) for rate in shown]
        cells = [_cell(rate.tpr or 0.0, rate.low, rate.high) for rate in rates]
        table.add_row(name, _cell(roc.auc, *roc.auc_interval()), *cells)
    blind = found.blind
    table.add_row("blind baseline", _cell(blind.auc, blind.low, blind.high), *[""] * len(shown))
    Console(highlight=False).print(table)
    print()
    for rate in refused:
        print(rate)


def _cell(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3f} ({low:.3f}-{high:.3f})"


def pictures(found: Membership, folder: Path) -> None:
    """roc.png and, where scores have any spread, densities.png."""
    import numpy as np  # noqa: PLC0415

    from sourdine.attacks.roc import FEWEST, density  # noqa: PLC0415
    from sourdine.report import leakage, style  # noqa: PLC0415

    curves, shapes = {}, {}
    for name, roc in found.attacks.items():
        others = len(roc.others)
        fpr = np.unique(np.geomspace(1, others, _POINTS).round()) / others
        curves[name] = leakage.Curve(fpr, *roc.band(fpr), auc=roc.auc)
        both = np.concatenate([roc.members, roc.others])
        finite = both[np.isfinite(both)]
        low, high = np.quantile(finite, [0.005, 0.995]) if len(finite) else (0.0, 1.0)
        grid = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), 300)
        shapes[name] = leakage.Density(grid, density(roc.members, grid), density(roc.others, grid))
    first = found.attacks[found.best]
    shown = leakage.Leakage(
        curves,
        shapes,
        best=found.best,
        members=len(first.members),
        others=len(first.others),
        confidence=first.confidence,
        trusted=FEWEST / len(first.others),
        finding=_finding(found),
        things="persons" if found.unit == "user" else "records",
        caption=f"Blind baseline: AUC {found.blind.auc:.3f}.",
    )
    with style.house():
        leakage.draw(leakage.roc(shown), folder / "roc.png")
        if any(one.members.any() and one.others.any() for one in shapes.values()):
            leakage.draw(leakage.densities(shown), folder / "densities.png")


def _finding(found: Membership) -> str:
    auc = f"{found.best} reaches AUC {found.attacks[found.best].auc:.3f}"
    return {
        "differ in kind": "Members and others differ in kind: no finding about the model",
        "told apart": f"The model gives its members away: {auc}",
        "not told apart": f"No attack told members from others: at best, {auc}",
    }[found.verdict]
