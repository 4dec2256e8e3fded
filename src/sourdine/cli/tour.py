"""`sourdine demo --tour`: what plans cost, a survey, questions to a table, and its ledger."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sourdine.budget import Budget
from sourdine.cli import ledger as ledger_verb
from sourdine.cli.options import print_json
from sourdine.digits import above, below
from sourdine.errors import BudgetError, SourdineError
from sourdine.events import (
    ApproximateEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
)

_POISSON_EPOCH = 100 * PoissonEvent(0.01, GaussianEvent(1.0))
_PLANS: list[tuple[str, Event, str, float]] = [
    ("Abadi 2016, MNIST", 10_000 * PoissonEvent(0.01, GaussianEvent(4.0)), "add-remove", 1e-5),
    *(
        (
            f"McMahan 2018, {users:,}",
            5_000 * PoissonEvent(users / 763_430, GaussianEvent(1.0)),
            "add-remove",
            1e-9,
        )
        for users in (5_000, 1_667, 1_250)
    ),
    ("100 Laplace counts", 100 * LaplaceEvent(10.0), "add-remove", 1e-6),
    ("survey, fair coins", RandomizedResponseEvent(0.5), "replace-one", 1e-6),
    ("50 boxes of 0.1", 50 * ApproximateEvent(0.1, 0.0, "replace-one"), "replace-one", 1e-6),
    ("100 Poisson lots", _POISSON_EPOCH, "zero-out", 1e-6),
    ("the same, shuffled", ShuffledEvent(1.0, 100), "zero-out", 1e-6),
]
_PEOPLE, _SMOKERS = 2_000, 600
_REVIEWS = 5_000


def tour(json: bool) -> None:
    """Tour the accounting, a survey, private questions and their ledger, in a few seconds."""
    # The tour says what it does; with --json only the findings are printed.
    console = Console(quiet=json)
    found: dict[str, Any] = {"plans": _plans(console), "survey": _survey(console)}
    found |= _questions(console)
    if json:
        print_json(found)
        return
    print()
    print("Next: sourdine query --help, sourdine survey --help, sourdine account --help")


def _plans(console: Console) -> dict[str, Any]:
    from sourdine.accounting import calibrate, curve, moments_epsilon  # noqa: PLC0415

    console.print("[bold]1. What the plans of the papers cost[/bold]")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("plan", "adjacency"):
        table.add_column(heading)
    for heading in ("delta", "moments", "not below", "proven"):
        table.add_column(heading, justify="right")
    found = {}
    for name, event, adjacency, delta in _PLANS:
        bound = curve(event, adjacency).epsilon(delta)
        found[name] = {
            "epsilon": bound.upper,
            "epsilon_lower": bound.lower,
            "delta": delta,
            "adjacency": adjacency,
        }
        try:
            old = above(moments_epsilon(event, delta, adjacency), 4)
        except SourdineError:
            old = "-"  # no moments are known for this mechanism
        table.add_row(name, adjacency, f"{delta:g}", old, below(bound.lower), above(bound.upper))
    console.print(table)
    console.print(
        "moments: epsilon as the papers counted it. proven: the guarantee, from the whole\n"
        "privacy loss distribution. not below: no accountant could claim less."
    )
    plan = calibrate(Budget(3.0, 1e-6), rate=0.01, steps=1_000)
    console.print(
        f"Epsilon 3 at delta 1e-06 pays for 1,000 steps at rate 0.01 with noise multiplier\n"
        f"{above(plan.noise_multiplier)}; {above(plan.epsilon.upper)} of it is used.\n"
    )
    return found


def _survey(console: Console) -> dict[str, Any]:
    from sourdine.ledger import Ledger  # noqa: PLC0415
    from sourdine.mechanisms import RandomizedResponse  # noqa: PLC0415
    from sourdine.query import Survey  # noqa: PLC0415
    from sourdine.rng import secure  # noqa: PLC0415

    survey, source = Survey("Do you smoke?", RandomizedResponse.of_coins()), secure()
    each = survey.response.epsilon
    people = Ledger(None, Budget(each, unit="user", adjacency="replace-one"))
    people.charge(survey.response.event, survey.question, source=source.kind)
    truths = ["yes"] * _SMOKERS + ["no"] * (_PEOPLE - _SMOKERS)
    answers = [survey.answer(truth, source) for truth in truths]
    share = survey.estimate(answers)["yes"]
    console.print("[bold]2. A survey in which nobody has to tell[/bold]")
    console.print(
        f"{_PEOPLE:,} people answer {survey.question!r} by two fair coins, epsilon {each:.4g} each.\n"
        f"{answers.count('yes')} say yes, so about {share.value:.1%} smoke "
        f"({share.low:.1%} to {share.high:.1%} with 95% confidence);\n"
        f"in truth {_SMOKERS / _PEOPLE:.0%}. Who said yes smokes with probability "
        f"{survey.response.posterior(_SMOKERS / _PEOPLE, 'yes'):.0%}: still deniable.\n",
        highlight=False,
    )
    return {"people": _PEOPLE, "share": share.value, "low": share.low, "high": share.high}


def _questions(console: Console) -> dict[str, Any]:
    from sourdine.ledger import Ledger  # noqa: PLC0415
    from sourdine.query import Session  # noqa: PLC0415

    console.print("[bold]3. Questions to a table, and the one that is refused[/bold]")
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "reviews.sqlite", Budget(1.0, 1e-6), population="reviewers")
        session = Session(_reviews(), ledger)
        answers = [
            session.count(epsilon=0.2, where=["stars >= 4"]),
            session.mean("stars", low=1, high=5, epsilon=0.2),
            session.quantile("minutes", 0.5, low=0, high=120, epsilon=0.4),
        ]
        for answer in answers:
            console.print(str(answer), highlight=False)
        refused = ""
        try:
            session.sum("minutes", low=0, high=120, epsilon=0.4)
        except BudgetError as error:
            refused = str(error)
        console.print(f"refused: {refused}\n", highlight=False)
        console.print("[bold]4. The ledger[/bold]")
        if not console.quiet:
            ledger_verb.show(ledger.name)
        shown = {answer.label: [answer.value, answer.low, answer.high] for answer in answers}
        return {"answers": shown, "refused": refused, "spent": ledger.spent().epsilon}


def _reviews() -> dict[str, list[int]]:
    """A made-up table: 5,000 reviews with stars from 1 to 5 and minutes from 0 to 119."""
    return {
        "stars": [1 + (7 * row + row // 9) % 5 for row in range(_REVIEWS)],
        "minutes": [(row * row // 3 + 11 * row) % 120 for row in range(_REVIEWS)],
    }
