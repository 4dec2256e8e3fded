"""`sourdine ledger`: what has been spent, by whom, and what is left."""

from __future__ import annotations

import csv
import io
import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.options import Config, Encoding, Json, print_json, spending, warn_if_weak
from sourdine.digits import below
from sourdine.errors import InputError, LedgerError

if TYPE_CHECKING:
    from sourdine.ledger import Entry, Ledger
    from sourdine.register import Line, Total

app = typer.Typer(
    help="Start a ledger, show its budget and history, export it; list all that records were charged."
)
Where = Annotated[str, typer.Argument(help="A SQLite file or a postgresql:// URL.")]
COLUMNS = ("id", "at", "who", "kind", "label", "source", "data", "refers", "reason", "epsilon", "event")


def opened(where: str, new: Budget, **stated: float | str | None) -> Ledger:
    """The ledger, or a new one that its first charge will make with the budget `new`.

    What the user has stated (not None) about one that exists must be true of it.
    """
    from sourdine.ledger import Ledger  # noqa: PLC0415

    if "://" not in where and not Path(where).exists():
        warn_if_weak(new.epsilon)
        return Ledger(where, new, lazy=True)
    ledger = Ledger(where)
    _check(ledger, **stated)
    return ledger


def _check(ledger: Ledger, **stated: float | str | None) -> None:
    for name, value in stated.items():
        was = getattr(ledger.budget, name)
        if value is not None and value != was:
            raise LedgerError(
                f"the ledger {ledger.name} was made for {name} {was}, not {value}; its promise is "
                "fixed. Use it as it is, or name another one."
            )


def described(budget: Budget) -> str:
    """A budget in words."""
    return (
        f"epsilon={budget.epsilon:g} at delta={budget.delta:g} per {budget.unit} ({budget.adjacency})"
    )


@app.command("show")
def show(where: Where, json: Json = False, config: Config = None) -> None:
    """The history and what it adds up to.

    Example: `sourdine ledger show reviews.sqlite`
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from sourdine.ledger import Ledger  # noqa: PLC0415

    ledger = Ledger(where)
    entries = ledger.history()
    if json:
        print_json({**_summary(ledger), "history": [_line(ledger, entry) for entry in entries]})
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "when", "who", "what"):
        table.add_column(heading, overflow="fold")
    table.add_column("epsilon", justify="right")
    for entry in entries:
        when = entry.at[:16].replace("T", " ")
        what = f"{entry.label} ({entry.reason})" if entry.reason else entry.label
        table.add_row(str(entry.id), when, entry.who, what, _cost(ledger, entry))
    if entries:
        Console().print(table)
        print()
    _say(ledger)


def _cost(ledger: Ledger, entry: Entry) -> str:
    price = _price(ledger, entry)
    return "" if price is None else spending(price, 0.0, ledger.budget.epsilon)[0]


def _price(ledger: Ledger, entry: Entry) -> float | None:
    """What an entry counts for: by its own curve if it is alone; none for a settlement."""
    from sourdine.ledger.record import SETTLE  # noqa: PLC0415

    if entry.kind == SETTLE:
        return None  # what it settles was charged before
    if not entry.event.parts:
        return 0.0
    spent = ledger.spent()
    alone = spent.releases == 1 and spent.method == "curve"
    return spent.epsilon if alone else ledger.price(entry.event)


@app.command("budget")
def budget(
    where: Where,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Start a ledger with this budget.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Failure probability, below 1/n; 1e-6 if not given.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="example or user; example if not given.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option("--adjacency", help="zero-out, add-remove or replace-one; zero-out if not given."),
    ] = None,
    population: Annotated[
        str | None, typer.Option("--population", help="Whose data this is about, in words.")
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """What the budget is and what is left; with --epsilon, start a new ledger.

    A ledger's budget is fixed when it is started: its guarantee is about everything that was or will be
    granted. More for the same people is a second ledger, and the guarantee the sum of both.

    Example: `sourdine ledger budget reviews.sqlite --epsilon 1 --unit user`
    """
    from sourdine.ledger import Ledger  # noqa: PLC0415

    if epsilon is not None and ("://" in where or not Path(where).exists()):
        small = 1e-6 if delta is None else delta
        asked = Budget(epsilon, small, unit or "example", adjacency or "zero-out")
        warn_if_weak(epsilon)
        ledger = Ledger(where, asked, population=population)
    else:
        ledger = Ledger(where, population=population)
    _check(ledger, epsilon=epsilon, delta=delta, unit=unit, adjacency=adjacency)
    print_json(_summary(ledger)) if json else _say(ledger)


@app.command("export")
def export(
    where: Where,
    form: Annotated[str, typer.Option("--format", help="json or csv.")] = "json",
    out: Annotated[
        Path | None, typer.Option("--out", help="A new file; to the screen if not given.")
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Every entry with its event, for other programs.

    Example: `sourdine ledger export reviews.sqlite --format csv --out history.csv`
    """
    from sourdine.ledger import Ledger  # noqa: PLC0415

    checks.one_of("format", form, ("json", "csv"))
    ledger = Ledger(where)
    lines = [_line(ledger, entry) for entry in ledger.history()]
    if form == "json" or json:
        text = json_module.dumps({**_summary(ledger), "history": lines}, indent=1) + "\n"
    else:
        file = io.StringIO()
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**line, "event": json_module.dumps(line["event"])} for line in lines)
        text = file.getvalue()
    if out is None:
        print(text, end="")
        return
    if out.exists():
        raise InputError(f"{out} exists already; name another file.")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        out.unlink(missing_ok=True)  # no half a history
        raise InputError(f"the export cannot be written to {out}: {error.strerror}.") from None


@app.command("spent")
def spent(
    data: Annotated[Path, typer.Argument(help="The table: a CSV, TSV, JSONL or Parquet file.")],
    encoding: Encoding = "utf-8",
    json: Json = False,
    config: Config = None,
) -> None:
    """List what all ledgers of yours were charged about these records, and the total.

    The records are recognised whatever the format of the table and whichever columns a run read. The
    total adds up epsilons and deltas; a ledger with more than one release counts with its budget.

    Example: `sourdine ledger spent notes.csv`
    """
    from sourdine.register import open_book, recall, sum_up  # noqa: PLC0415

    found = recall(data, encoding)
    if found is None:
        raise InputError(
            f"{data} cannot be read whole, so nobody can tell whose records it holds; check the path, "
            "--encoding and the columns."
        )
    with open_book() as book:
        lines, unknown = book.lines(found), len(book.not_compared())
        ceilings = [ceiling for _, ceiling in book.ceilings(found)]
        others = [
            (other.name, share)
            for _, other, share in book.alike(found)
            if other.fingerprint != found.fingerprint
        ]
    totals = sum_up(lines)
    if json:
        print_json(
            {
                "records": found.rows,
                "lines": [_plain(line) for line in lines],
                "totals": [vars(total.budget) for total in totals],
                "budget_of_all": min((each.epsilon for each in ceilings), default=None),
                "same_records": [{"table": name, "share": share} for name, share in others],
                "not_compared": unknown,
            }
        )
        return
    _say_spent(lines, totals)
    for ceiling in ceilings:
        print(f"budget of all: epsilon={ceiling.epsilon:g} per {ceiling.unit} ({ceiling.adjacency})")
    for name, share in others:
        print(f"counted as the same records: {name} ({share:.0%} of the rows in common)")
    if unknown:
        print(f"not compared: {unknown} ledgers of runs that did not name their table")


def _plain(line: Line) -> dict[str, Any]:
    shown = {name: value for name, value in vars(line).items() if name not in ("budget", "ledger")}
    return {**shown, **vars(line.budget)}


def _say_spent(lines: Sequence[Line], totals: Sequence[Total]) -> None:
    if not lines:
        print("nothing was charged about these records")
    for line in lines:
        more = "" if line.releases == 1 else f", {line.releases} releases, so its whole budget counts"
        print(f"{line.at[:10]}  {described(line.budget)}  {line.label}, in {line.place}{more}")
    for total in totals:
        print(f"in all: at most {described(total.budget)}")
    if len(totals) > 1:
        print("other units and adjacencies have no common sum")


def _line(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    price = _price(ledger, entry)
    rounded = None if price is None else round(price, 12)
    found = {**asdict(entry), "event": json_module.loads(entry.text), "epsilon": rounded}
    return {name: found[name] for name in COLUMNS}


def _summary(ledger: Ledger) -> dict[str, Any]:
    spent = ledger.spent()
    return {
        **asdict(ledger.budget),
        "population": ledger.population,
        "spent": round(spent.epsilon, 12),
        "left": round(spent.left, 12),
        "delta_spent": spent.delta,
        "delta_left": spent.delta_left,
        "releases": spent.releases,
        "method": spent.method,
    }


def _say(ledger: Ledger) -> None:
    spent = ledger.spent()
    print(
        f"budget  {described(ledger.budget)}" + (f", {ledger.population}" if ledger.population else "")
    )
    gone, left = spending(spent.epsilon, spent.left, ledger.budget.epsilon)
    if not spent.releases:
        print("spent   nothing yet")
    else:
        many = "1 release" if spent.releases == 1 else f"{spent.releases} releases"
        print(f"spent   epsilon={gone} by {many},")
        print(f"        {_how(spent.method)}")
    print(f"left    epsilon={left} for one more question")
    if spent.delta:
        print(f"        delta={below(spent.delta_left, 3)} for questions with a delta of their own")


def _how(method: str) -> str:
    if method == "curve":
        return "alone in this ledger, so counted tightly by its own curve"
    return "added up by a filter, since later ones may depend on earlier answers"
