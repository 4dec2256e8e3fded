"""`sourdine ledger`: what has been spent, by whom, and what is left."""

from __future__ import annotations

import csv
import io
import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.options import Config, Json, print_json, spending
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.ledger import Entry, Ledger

app = typer.Typer(help="Show a ledger's budget and history, start a ledger, or export it.")
Where = Annotated[str, typer.Argument(help="A SQLite file or a postgresql:// URL.")]
COLUMNS = ("id", "at", "who", "kind", "label", "source", "data", "refers", "reason", "event")


def opened(where: str, budget: Budget, asked: bool) -> Ledger:
    """The ledger, started with this budget where there is none; `asked` if the user named a budget."""
    from sourdine.ledger import Ledger  # noqa: PLC0415

    new = "://" not in where and not Path(where).exists()
    ledger = Ledger(where, budget if new or asked else None)
    if new:
        print(
            f"sourdine: started the ledger {where} with a budget of {_budget(budget)}.", file=sys.stderr
        )
    return ledger


def _budget(budget: Budget) -> str:
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
        print_json({**_summary(ledger), "history": [_line(entry) for entry in entries]})
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "when", "who", "what", "how"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        when = entry.at[:16].replace("T", " ")
        what = f"{entry.label} ({entry.reason})" if entry.reason else entry.label
        table.add_row(str(entry.id), when, entry.who, what, entry.kind)
    if entries:
        Console().print(table)
        print()
    _say(ledger)


@app.command("budget")
def budget(
    where: Where,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Start a ledger.")] = None,
    delta: Annotated[float, typer.Option("--delta", help="Failure probability, below 1/n.")] = 1e-6,
    unit: Annotated[str, typer.Option("--unit", help="example or user.")] = "example",
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="zero-out, add-remove or replace-one.")
    ] = "zero-out",
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

    asked = None if epsilon is None else Budget(epsilon, delta, unit, adjacency)
    ledger = Ledger(where, asked, population=population)
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
    lines = [_line(entry) for entry in ledger.history()]
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
    try:
        with out.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise InputError(f"{out} exists already; name another file.") from None
    except OSError as error:
        raise InputError(f"the export cannot be written to {out}: {error.strerror}.") from None


def _line(entry: Entry) -> dict[str, Any]:
    found = {**asdict(entry), "event": json_module.loads(entry.text)}
    return {name: found[name] for name in COLUMNS}


def _summary(ledger: Ledger) -> dict[str, Any]:
    spent = ledger.spent()
    return {
        **asdict(ledger.budget),
        "population": ledger.population,
        "spent": spent.epsilon,
        "left": spent.left,
        "releases": spent.releases,
        "method": spent.method,
    }


def _say(ledger: Ledger) -> None:
    spent = ledger.spent()
    print(f"budget  {_budget(ledger.budget)}" + (f", {ledger.population}" if ledger.population else ""))
    if not spent.releases:
        print("spent   nothing yet")
        return
    gone, left = spending(spent.epsilon, spent.left)
    many = "1 release" if spent.releases == 1 else f"{spent.releases} releases"
    print(f"spent   epsilon={gone} by {many}: {_how(spent.method)}")
    print(f"left    epsilon={left} for one more pure release")


def _how(method: str) -> str:
    if method == "curve":
        return "alone, counted tightly by its own curve"
    return "added up by a filter, as later ones may depend on answers"
