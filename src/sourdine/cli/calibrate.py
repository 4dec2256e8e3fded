"""`sourdine calibrate`: the noise, the steps or the rate that a budget pays for."""

from __future__ import annotations

from typing import Annotated

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.options import Config, Json, Records, print_json
from sourdine.digits import above, below
from sourdine.events import GaussianEvent, LaplaceEvent


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The budget, never exceeded.")],
    delta: Annotated[float, typer.Option("--delta", help="Failure probability, below 1/n.")] = 1e-6,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Sampling probability; omit to find it.")
    ] = None,
    steps: Annotated[float | None, typer.Option("--steps", help="Releases; omit to find them.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Noise over the clip; omit to find it.")
    ] = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="gaussian or laplace noise.")
    ] = "gaussian",
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="add-remove, zero-out or replace-one.")
    ] = "add-remove",
    records: Records = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Find what is missing: give two of noise multiplier, rate and steps, and the budget.

    Example: `sourdine calibrate --epsilon 3 --delta 1e-6 --rate 0.01 --steps 1000`
    """
    from sourdine.accounting import calibrate as find  # noqa: PLC0415

    delta = checks.delta(delta, None if records is None else checks.whole("records", records))
    budget = Budget(epsilon, delta, adjacency=adjacency)
    kinds = {"gaussian": GaussianEvent, "laplace": LaplaceEvent}
    chosen = kinds[checks.one_of("mechanism", mechanism, tuple(kinds))]
    plan = find(
        budget,
        noise_multiplier=noise_multiplier,
        rate=rate,
        steps=None if steps is None else checks.whole("steps", steps),
        mechanism=chosen,
    )
    if json:
        print_json(
            {
                "noise_multiplier": plan.noise_multiplier,
                "epsilon": plan.epsilon.upper,
                "epsilon_lower": plan.epsilon.lower,
                "delta": plan.delta,
                "rate": plan.rate,
                "steps": plan.steps,
                "mechanism": mechanism,
                "adjacency": plan.adjacency,
            }
        )
        return
    noise = above(plan.noise_multiplier) if noise_multiplier is None else f"{noise_multiplier}"
    share = below(plan.rate) if rate is None else f"{rate}"
    print(f"noise multiplier {noise}, rate {share}, {plan.steps} steps")
    used = above(plan.epsilon.upper)
    print(f"cost epsilon <= {used} of {epsilon} at delta = {plan.delta}  ({adjacency})")
    if noise_multiplier is None and plan.noise_multiplier <= 1e-3:
        print("hardly any noise is needed: delta alone allows for the few records that are ever drawn")
