"""Pairs and golden rows that several tests share."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from sourdine.accounting import atoms, pairs
from sourdine.accounting.pairs import Normal, Pair, Reversed, Sampled, Spliced, Swapped
from sourdine.events import ApproximateEvent, Event, GaussianEvent, LaplaceEvent, PoissonEvent

GOLDEN = Path(__file__).parent.parent / "golden"

PAIRS: dict[str, Pair] = {
    "normal": Normal(0.7),
    "normal-wide": Normal(8.0),
    "laplace": pairs.laplace(0.8),
    "laplace-tiny": pairs.laplace(1e-5),
    "bounded-range": pairs.bounded_range(1.5),
    "response": atoms.randomized_response(0.4, 2),
    "response-5": atoms.randomized_response(0.4, 5),
    "approximate": atoms.approximate(0.9, 1e-3),
    "discrete-gaussian": atoms.discrete_gaussian(3.0, 2),
    "discrete-laplace": atoms.discrete_laplace(0.3, 4),
    "sampled": Sampled(Normal(1.0), 0.01),
    "sampled-rarely": Sampled(Normal(2.0), 1e-4),
    "sampled-often": Sampled(Normal(0.25), 0.9),
    "sampled-back": Reversed(Sampled(Normal(1.0), 0.05)),
    "sampled-laplace": Sampled(pairs.laplace(1.0), 0.1),
    "sampled-laplace-back": Reversed(Sampled(pairs.laplace(1.0), 0.1)),
    "sampled-approximate": Sampled(atoms.approximate(1.0, 1e-4), 0.2),
    "swapped": Swapped(1.0, 0.05),
    "swapped-rarely": Swapped(0.5, 1e-3),
    "spliced": Spliced(Normal(1.5), 0.1),
    "spliced-laplace": Spliced(pairs.laplace(1.0), 0.3),
}


def grid() -> list[dict[str, str]]:
    with (GOLDEN / "grid.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def grid_event(row: dict[str, str]) -> Event:
    noise, count = float(row["sigma_or_b"]), int(row["T"])
    one: Event
    match row["kind"]:
        case "subgauss":
            one = PoissonEvent(float(row["q"]), GaussianEvent(noise))
        case "gauss":
            one = GaussianEvent(noise)
        case "laplace":
            one = LaplaceEvent(noise)
        case "sublaplace":
            one = PoissonEvent(float(row["q"]), LaplaceEvent(noise))
        case _:
            one = ApproximateEvent(noise, 0.0, "replace-one")
    return one * count


def facts() -> dict[str, Any]:
    return json.loads((GOLDEN / "facts.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]
