"""`sourdine calibrate`: the noise, the steps or the rate that a budget pays for."""

from __future__ import annotations

from typing import Annotated

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.options import Adjacency, Config, Delta, Json, Records, ceiling, floor, print_json
from sourdine.events import GaussianEvent, LaplaceEvent


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The budget, never exceeded.")],
    delta: Delta = 1e-6,
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
    adjacency: Adjacency = "add-remove",
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
    noise = {"gaussian": GaussianEvent, "laplace": LaplaceEvent}
    chosen = noise[checks.one_of("mechanism", mechanism, tuple(noise))]
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
    noise_found, rate_found = ceiling(plan.noise_multiplier), floor(plan.rate)
    print(f"noise multiplier {noise_found}, rate {rate_found}, {plan.steps} steps")
    used = ceiling(plan.epsilon.upper)
    print(f"cost epsilon <= {used} of {epsilon:g} at delta = {plan.delta:g}  ({adjacency})")
