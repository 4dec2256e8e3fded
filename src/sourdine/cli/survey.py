"""`sourdine survey`: ask by randomized response, collect the answers, estimate the shares."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.ledger import opened
from sourdine.cli.options import Config, Json, listed, print_json
from sourdine.digits import above
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.query import Survey

app = typer.Typer(help="A survey by randomized response: new, answer, run, estimate.")
File = Annotated[Path, typer.Argument(help="The survey, a JSON file.")]


@app.command("new")
def new(
    survey: File,
    question: Annotated[str, typer.Option("--question", help="What is asked.")],
    choices: Annotated[str, typer.Option("--choices", help="With commas between.")] = "no,yes",
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="What an answer costs.")] = None,
    gamma: Annotated[
        float | None, typer.Option("--gamma", help="The truth with probability 1/2 + gamma.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="SURVEY.ledger.sqlite if not given.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="Epsilon of a new ledger; this survey's if not given."),
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Write a survey and charge what every answer to it costs. Two fair coins are gamma 0.25.

    Example: `sourdine survey new smokers.json --question "Do you smoke?" --gamma 0.25`
    """
    from sourdine.mechanisms import RandomizedResponse  # noqa: PLC0415
    from sourdine.query import Survey  # noqa: PLC0415

    if (epsilon is None) == (gamma is None):
        raise InputError("give either --epsilon or --gamma; two fair coins are --gamma 0.25.")
    options = listed(choices) or []
    response = (
        RandomizedResponse.of_epsilon(epsilon, options)
        if epsilon is not None
        else RandomizedResponse.of_gamma(gamma or 0.0, options)
    )
    if response.flip in (0.0, 1.0):
        raise InputError(
            "gamma 1/2 is the plain truth: no privacy. Take one below."
            if response.flip == 0
            else "gamma 0 makes every answer a coin that tells nothing: nothing could be estimated."
        )
    if survey.exists():
        raise InputError(f"{survey} exists already; name another file for a new survey.")
    # A new ledger holds this one survey, rounded up to four decimals.
    total = math.ceil(response.epsilon * 1e4) / 1e4 if budget is None else budget
    made = Budget(total, unit="user", adjacency="replace-one")
    stated = {"epsilon": budget, "unit": "user", "adjacency": "replace-one"}
    held = opened(ledger or str(survey.with_suffix(".ledger.sqlite")), made, **stated)
    held.charge(response.event, f"survey: {question}")
    Survey(question, response).save(survey)
    facts = {"epsilon": response.epsilon, "keep": response.keep, "survey": str(survey)}
    if json:
        print_json(facts)
        return
    print(f"each answer is the truth with probability {response.keep:.4g}, and else another choice")
    print(f"epsilon <= {above(response.epsilon)} for each person who answers once")


@app.command("answer")
def answer(
    survey: File,
    answers: Annotated[Path, typer.Option("--answers", help="The CSV file to add the answer to.")],
    person: Annotated[str, typer.Option("--person", help="Who answers; each person once.")],
    truth: Annotated[
        str | None,
        typer.Option("--truth", help="The true answer; asked for, unseen, if not given (better)."),
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Answer at random, where the person is; only the random answer is written.

    Example: `sourdine survey answer smokers.json --answers answers.csv --person alice`
    """
    asked = _load(survey)
    known = _known([answers])
    if not person.strip():
        raise InputError("--person is empty; say who answers, so that nobody answers twice.")
    if person in known:
        raise InputError(
            f"{person} has answered already; a second random answer would cost a second epsilon."
        )
    if truth is None:
        shown = "/".join(asked.response.choices)
        truth = str(typer.prompt(f"{asked.question} ({shown}, not shown)", hide_input=True))
    _collect(asked, {person: truth}, answers)
    said = "a random answer was written; the true one was not kept"
    print_json({"answers": str(answers)}) if json else print(said)


@app.command("run")
def run(
    survey: File,
    people: Annotated[Path, typer.Argument(help="A table with one row for each person.")],
    column: Annotated[str, typer.Option("--column", help="The column of true answers.")],
    person: Annotated[str, typer.Option("--person", help="The column that names the person.")],
    answers: Annotated[Path, typer.Option("--answers", help="The CSV file to add the answers to.")],
    json: Json = False,
    config: Config = None,
) -> None:
    """Let everybody in a table answer, each at random.

    Example: `sourdine survey run smokers.json people.csv --column smokes --person name --answers a.csv`
    """
    from sourdine.data.tables import read  # noqa: PLC0415
    from sourdine.query.survey import one_truth_each  # noqa: PLC0415
    from sourdine.rng import secure  # noqa: PLC0415

    asked = _load(survey)
    both = [column, person]
    table = read(people, columns=both, names=both)
    truths, everybody = (table.text(name).to_pylist() for name in both)
    if not set(truths) & set(asked.response.choices):
        choices = ", ".join(asked.response.choices)
        raise InputError(f"no answer in column {column!r} of {people} is one of the choices {choices}.")
    names, faults = one_truth_each(asked, everybody, truths, secure())
    known = _known([answers])
    if known.keys() & names.keys():
        raise InputError(
            f"some of these people are in {answers} already; a second random answer would cost a "
            "second epsilon."
        )
    faults.tell(people.name)
    _collect(asked, names, answers)
    print_json({"answers": str(answers), "people": len(names)}) if json else print(
        f"{len(names)} random answers were written to {answers}"
    )


@app.command("estimate")
def estimate(
    survey: File,
    answers: Annotated[list[Path], typer.Argument(help="One or more CSV files of answers.")],
    confidence: Annotated[float, typer.Option("--confidence", help="Of the interval.")] = 0.95,
    json: Json = False,
    config: Config = None,
) -> None:
    """The share of each choice among those who answered.

    Example: `sourdine survey estimate smokers.json answers.csv`
    """
    from sourdine.query.survey import read_answers  # noqa: PLC0415

    asked = _load(survey)
    checks.probability("confidence", confidence)
    given = read_answers(answers)
    shares = asked.estimate(given.values(), confidence)
    if json:
        plain = {c: {"share": s.value, "low": s.low, "high": s.high} for c, s in shares.items()}
        print_json({"shares": plain, "people": len(given), "epsilon": asked.response.epsilon})
        return
    print(f"{asked.question} {len(given)} people, epsilon {above(asked.response.epsilon, 4)} each")
    for choice, share in shares.items():
        interval = f"{share.low:.1%} to {share.high:.1%} with {confidence:.0%} confidence"
        print(f"{choice}: {share.value:.1%} ({interval})")
    if any(not 0 <= share.value <= 1 for share in shares.values()):
        print("a share may come out below 0% or above 100%: so it is right on average")


def _load(path: Path) -> Survey:
    from sourdine.query import Survey  # noqa: PLC0415

    return Survey.load(path)


def _known(paths: list[Path]) -> dict[str, str]:
    from sourdine.query.survey import read_answers  # noqa: PLC0415

    return read_answers([path for path in paths if path.exists() and path.stat().st_size])


def _collect(survey: Survey, truths: dict[str, str], path: Path) -> None:
    from sourdine.query.survey import collect  # noqa: PLC0415
    from sourdine.rng import secure  # noqa: PLC0415

    collect(survey, truths, path, secure())
