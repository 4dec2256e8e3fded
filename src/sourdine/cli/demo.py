"""`sourdine demo`: a tour of accounting on the plans of the papers."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table

from sourdine.budget import Budget
from sourdine.cli.options import Json, ceiling, floor, print_json
from sourdine.errors import SourdineError
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


def demo(json: Json = False) -> None:
    """Tour the accounting on the plans of the papers, in a few seconds.

    Example: `sourdine demo`
    """
    from sourdine.accounting import calibrate, curve, moments_epsilon  # noqa: PLC0415

    rows = []
    for name, event, adjacency, delta in _PLANS:
        bound = curve(event, adjacency).epsilon(delta)
        try:
            moments = moments_epsilon(event, delta, adjacency)
        except SourdineError:
            moments = math.nan  # no moments are known for this mechanism
        rows.append((name, adjacency, delta, bound, moments))
    if json:
        print_json(
            {
                name: {
                    "epsilon": bound.upper,
                    "epsilon_lower": bound.lower,
                    "delta": delta,
                    "adjacency": adjacency,
                }
                for name, adjacency, delta, bound, _ in rows
            }
        )
        return
    console = Console()
    table = Table(
        title="What the plans of the papers cost",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("plan")
    table.add_column("adjacency")
    for heading in ("delta", "moments", "not below", "proven"):
        table.add_column(heading, justify="right")
    for name, adjacency, delta, bound, moments in rows:
        old = "-" if math.isnan(moments) else ceiling(moments, 4)
        table.add_row(name, adjacency, f"{delta:g}", old, floor(bound.lower), ceiling(bound.upper))
    console.print(table)
    console.print(
        "moments: epsilon as the papers counted it. proven: the guarantee, from the whole\n"
        "privacy loss distribution. not below: no accountant could claim less.\n"
    )
    plan = calibrate(Budget(3.0, 1e-6), rate=0.01, steps=1_000)
    console.print(
        f"Epsilon 3 at delta 1e-06 pays for 1,000 steps at rate 0.01 with noise multiplier\n"
        f"{ceiling(plan.noise_multiplier)}; {ceiling(plan.epsilon.upper)} of it is used.\n"
    )
    console.print("Next: sourdine account --help, sourdine calibrate --help, sourdine figures")
