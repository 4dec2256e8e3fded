"""`sourdine query`: one budgeted question to a table."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.ledger import described, opened
from sourdine.cli.options import (
    BudgetOfAll,
    Config,
    Encoding,
    Json,
    RowsPerUser,
    User,
    listed,
    numbers,
    print_json,
    read_text,
    spending,
)
from sourdine.cli.owner import tell_privately
from sourdine.errors import InputError

QUESTIONS = {
    **{name: name for name in ("count", "sum", "mean", "variance", "quantile", "histogram")},
    "words": "word_counts",
    "top-words": "top_words",
}
"""What a question is called here, and in Session."""


def query(
    data: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file.")],
    question: Annotated[str, typer.Argument(help=f"One of {', '.join(QUESTIONS)}.")],
    column: Annotated[str | None, typer.Argument(help="The column; count takes none.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="What it may cost.")] = None,
    low: Annotated[float | None, typer.Option("--low", help="Values below count as this.")] = None,
    high: Annotated[float | None, typer.Option("--high", help="Values above count as this.")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="A condition such as 'stars >= 4'; repeatable.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Group count, sum or mean by a column.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="The groups or values to report, with commas between.")
    ] = None,
    edges: Annotated[str | None, typer.Option("--edges", help="Bins of a histogram: 0,10,20.")] = None,
    level: Annotated[
        float | None, typer.Option("--level", help="Which quantile; 0.5, the median, if not given.")
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option("--vocabulary", help="A file of public words, one a line.")
    ] = None,
    top: Annotated[
        float | None, typer.Option("--top", help="How many of the top words; 10 if not given.")
    ] = None,
    word_delta: Annotated[
        float | None,
        typer.Option("--word-delta", help="Without a vocabulary; 1% of the ledger's if not given."),
    ] = None,
    words_per_unit: Annotated[
        float | None, typer.Option("--words-per-unit", help="Words a row or user counts for; 10.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="A file or URL; beside data.csv data.ledger.sqlite."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Epsilon of a new ledger; 1 if not given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Delta of a new ledger; 1e-6 if not given.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            "--adjacency", help="Of a new ledger: zero-out (default), add-remove, replace-one."
        ),
    ] = None,
    budget_of_all: BudgetOfAll = None,
    user: User = None,
    rows_per_user: RowsPerUser = 1,
    missing: Annotated[
        list[str] | None, typer.Option("--missing", help="age=40: what stands for a missing number.")
    ] = None,
    encoding: Encoding = "utf-8",
    confidence: Annotated[float, typer.Option("--confidence", help="Of the interval.")] = 0.95,
    json: Json = False,
    config: Config = None,
) -> None:
    """Ask one private question; it is charged to the ledger before it is answered.

    QUESTION is count, sum, mean, variance, quantile, histogram, words or top-words. COLUMN is what it
    is about; count takes none. Conditions compare with ==, !=, <, <=, >, >=.

    Example: `sourdine query data.csv mean stars --low 1 --high 5 --epsilon .1 --ledger reviews.sqlite`
    """
    checks.one_of("the question", question, tuple(QUESTIONS))
    if epsilon is None:
        raise InputError("give --epsilon, what the answer may cost; 0.1 is usual for one question.")
    checks.protecting(epsilon)
    if (column is None) != (question == "count"):
        raise InputError(f"{question} needs a column." if column is None else "count takes no column.")
    stands = _missing(missing or [])
    asked = _asked(question, column, low, high, where or [], by, keys, edges, level)
    asked |= _worded(question, vocabulary, top, word_delta, words_per_unit)

    from sourdine.data.tables import read  # noqa: PLC0415
    from sourdine.query import Session  # noqa: PLC0415
    from sourdine.query.where import parse  # noqa: PLC0415

    names = [] if user is None else [user]
    used = [name for name in (column, by, user) if name is not None]
    used += [parse(condition)[0] for condition in where or []]
    columns = list(dict.fromkeys(used))  # none at all for a count of all rows
    table = read(data, columns=columns, missing=stands, encoding=encoding, names=names)
    unit = "example" if user is None else "user"
    total = 1.0 if budget is None else budget, 1e-6 if delta is None else delta
    new = Budget(*total, unit, adjacency or "zero-out")
    stated = {"epsilon": budget, "delta": delta, "unit": user and "user", "adjacency": adjacency}
    held = opened(ledger or str(data.with_suffix(".ledger.sqlite")), new, **stated)
    if asked.get("vocabulary", ()) is None and word_delta is None:
        asked["delta"] = held.budget.delta / 100
    rows = checks.whole("rows-per-user", rows_per_user)
    session = Session(
        *(table, held),
        user=user,
        rows_per_user=rows,
        encoding=encoding,
        confidence=confidence,
        budget_of_all=budget_of_all,
    )
    before = [entry.data for entry in held.history() if entry.data]
    if before and before[-1] != session.fingerprint:
        tell_privately(
            "the data have changed since the last question; the budget goes on all the same."
        )
    fresh = not held.exists
    found = getattr(session, QUESTIONS[question])(**asked, epsilon=epsilon)
    if fresh:
        print(f"sourdine: started the ledger {held.name}: {described(held.budget)}.", file=sys.stderr)
    answers = found if isinstance(found, dict) else {"": found}
    spent = held.spent()
    if json:
        shown = {key: asdict(answer) for key, answer in answers.items()}
        result = {"answers": shown} if isinstance(found, dict) else shown[""]
        print_json(
            {
                "question": question,
                **result,
                "epsilon": epsilon,
                "spent": round(spent.epsilon, 12),
                "left": round(spent.left, 12),
            }
        )
        return
    for key, answer in answers.items():
        print(f"{key}: {str(answer).removeprefix(answer.label + ': ')}" if key else answer)
    if not answers:
        print("no word is used by enough people to be told; give a vocabulary, or a larger epsilon")
    gone, left = spending(spent.epsilon, spent.left, held.budget.epsilon)
    print(f"epsilon {epsilon:g}; {gone} of {held.budget.epsilon:g} is spent, {left} is left")


def _asked(
    question: str,
    column: str | None,
    low: float | None,
    high: float | None,
    where: list[str],
    by: str | None,
    keys: str | None,
    edges: str | None,
    level: float | None,
) -> dict[str, Any]:
    """The arguments of a question; what it does not take is refused rather than ignored."""
    asked: dict[str, Any] = {"where": where}
    if column is not None:
        asked["column"] = column
    if question in ("sum", "mean", "variance", "quantile"):
        if low is None or high is None:
            raise InputError(
                f"{question} needs --low and --high, the range of values that is sensible without "
                "looking at the data."
            )
        asked |= {"low": low, "high": high}
    elif low is not None or high is not None:
        raise InputError(f"{question} takes no --low and --high.")
    if by is not None and question not in ("count", "sum", "mean"):
        raise InputError(f"{question} cannot be grouped; --by is for count, sum and mean.")
    if by is not None:
        asked["by"] = by
    if keys is not None:
        if by is None and question != "histogram":
            raise InputError("--keys are the groups of --by, or the values of a histogram.")
        asked["keys"] = listed(keys)
    if edges is not None:
        if question != "histogram":
            raise InputError("--edges are the bins of a histogram.")
        asked["edges"] = numbers("edges", edges)
    if question == "quantile":
        asked["level"] = 0.5 if level is None else level
    elif level is not None:
        raise InputError("--level is for quantiles.")
    return asked


def _worded(
    question: str, vocabulary: Path | None, top: float | None, delta: float | None, most: float | None
) -> dict[str, Any]:
    if top is not None and question != "top-words":
        raise InputError("--top is for top-words.")
    if question not in ("words", "top-words"):
        if (vocabulary, delta, most) != (None, None, None):
            raise InputError(
                "--vocabulary, --word-delta and --words-per-unit are for words and top-words."
            )
        return {}
    known = None if vocabulary is None else read_text(vocabulary).split()
    if known == []:
        raise InputError(f"the vocabulary {vocabulary} is empty; write one word a line.")
    asked: dict[str, Any] = {"vocabulary": known, "delta": delta}
    asked["words_per_unit"] = checks.whole("words-per-unit", 10 if most is None else most)
    if question == "top-words":
        asked["k"] = checks.whole("top", 10 if top is None else top)
    return asked


def _missing(pairs: list[str]) -> dict[str, float]:
    stands = {}
    for pair in pairs:
        name, equals, value = pair.rpartition("=")
        try:
            stands[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise InputError(f"--missing {pair!r} is not understood; write column=number, as age=40.")
    return stands
