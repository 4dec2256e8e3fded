"""`sourdine tune`: the best of a random number of private trials, paid for as a whole."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from json import loads
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
    read_text,
    training_budget,
    whole,
)
from sourdine.cli.owner import chosen_encoder, who_answers
from sourdine.cli.results import how_to_check, results
from sourdine.digits import above
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.text.run import Run


def tune(
    data: Data,
    text: Text = None,
    label: Label = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The budget, for all.")] = None,
    delta: Delta = None,
    ledger: SharedLedger = None,
    budget_of_all: BudgetOfAll = None,
    out: Annotated[Path | None, typer.Option("--out", help="A new folder.")] = None,
    trials: Annotated[float, typer.Option("--trials", help="How many are run on average.")] = 10,
    eta: Annotated[
        float, typer.Option("--eta", help="Law of their number: 0 logarithmic, 1 geometric.")
    ] = 0.0,
    grid: Annotated[
        str | None,
        typer.Option("--grid", help="Settings to try: 'learning_rate=1e-3,3e-3 trains=head,lora'."),
    ] = None,
    model: Model = None,
    trains: Annotated[
        str | None, typer.Option("--trains", help="head, bitfit, lora, prompt or all, if not tuned.")
    ] = None,
    user: User = None,
    rows_per_user: RowsPerUser = 1,
    labels: Labels = None,
    other_labels: OtherLabels = None,
    held_out: Annotated[
        float | None, typer.Option("--held-out", help="Share of the units to score on; 0.2.")
    ] = None,
    steps: Annotated[float | None, typer.Option("--steps", help="Of every trial.")] = None,
    lot_size: Annotated[float | None, typer.Option("--lot-size", help="Of every trial.")] = None,
    max_length: Annotated[
        float | None, typer.Option("--max-length", help="Tokens of a text, if not tuned.")
    ] = None,
    adjacency: Adjacency = None,
    records: Records = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would do, and stop.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Tune a text classifier privately: try settings, release the best one with its score.

    How many trials are run is random and stays secret, as do all that lose. The whole is charged before
    the first begins, and costs about as much as one or two of them. A tuning that is stopped cannot go
    on. Whoever watches how long it takes learns about the number of trials: hand the folder over later,
    at a time that was fixed before.

    Example: `sourdine tune notes.csv --text note --label diagnosis --epsilon 3 --out out`
    """
    budget = training_budget(epsilon, delta, user, adjacency, ledger)
    if out is None and not plan:
        raise InputError("give --out, a new folder for the best run.")
    import_training()
    model = model or chosen_encoder()
    from sourdine.text.tuning import Tuner  # noqa: PLC0415 (torch: only now)

    tuner = Tuner(
        data,
        budget,
        settings=grid,
        trials=trials,
        eta=eta,
        model=model,
        text=text,
        label=label,
        user=user,
        rows_per_user=checks.whole("rows-per-user", rows_per_user),
        labels=listed(labels),
        other_labels=other_labels,
        ask=who_answers(),
        records=whole("records", records),
        encoding=encoding,
        ledger=ledger,
        budget_of_all=budget_of_all,
        output_dir=out,
        trains=trains,
        steps=whole("steps", steps),
        lot_size=whole("lot-size", lot_size),
        max_length=whole("max-length", max_length),
        held_out=held_out,
        device=device,
    )
    if not plan:
        tuner.ask_owner()  # before the spinner, which takes the terminal over
    with _spinner(shown=not json):
        done = tuner.expected() if plan else tuner.fit()
    if isinstance(done, dict):
        print_json(done) if json else _say_plan(done)
    else:
        _say(done, json)


@contextlib.contextmanager
def _spinner(*, shown: bool) -> Iterator[None]:
    """A sign of life on a terminal, which counts nothing."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status("tuning; how many trials there are is secret"):
        yield


def _say_plan(found: dict[str, Any]) -> None:
    settings = found["settings"]
    print(f"each trial draws one of {len(settings)} settings:")
    for setting in settings:
        print("  " + ", ".join(f"{name} {value}" for name, value in setting.items()))
    print(
        f"trials            {found['expected_trials']:.4g} on average, with 95% probability at most "
        f"{found['trials_95_percent']} (eta {found['eta']:g}, gamma {found['gamma']:.4g})"
    )
    print(f"steps             {found['steps']}, with lots of {found['lot_size']}, in every trial")
    print(f"held out          {found['held_out']:.0%} of the units, to score on")
    print(f"noise multiplier  {found['noise_multiplier']:.4g}")
    print(f"noise of scores   {found['score_noise_multiplier']:.4g}")
    print(f"one trial alone   epsilon {above(found['epsilon_of_one_trial'])} at {found['delta']:g}")
    print(f"the best of all   epsilon {above(found['epsilon'])} at {found['delta']:g}")
    print(f"expected time     about {found['expected_seconds']} s")
    print("Nothing was charged.")


def _say(run: Run, json: bool) -> None:
    promise = {} if run.certificate is None else run.certificate.document["guarantee"]
    tuned = loads(read_text(run.folder / "tuning.json"))
    if json:
        names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency")
        found = {name: promise[name] for name in names if name in promise}
        print_json({"folder": str(run.folder), **found, "setting": tuned["setting"], **run.metrics})
        return
    chosen = ", ".join(f"{name} {value}" for name, value in tuned["setting"].items())
    print(f"the best trial: {chosen}")
    print(
        f"epsilon <= {above(promise['epsilon'])} at delta = {promise['delta']:g} per "
        f"{promise['unit']} ({promise['adjacency']}), for all trials together"
    )
    for line in results(run.metrics):
        print(line)
    print(f"the run lies in {run.folder}")
    for line in how_to_check(run.folder):
        print(line)
    print("how long this took tells of the number of trials: hand it over at a time fixed before")
