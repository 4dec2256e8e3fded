"""How surely the attacks of tests/mechanisms/test_promises.py catch a tenth less noise.

For each trial, the attack on the twin is repeated. Printed is by how many standard errors it was beyond
what would still pass: the median and the least of all repetitions.

    python benchmarks/audit/power.py [--repetitions 20] [--match Gaussian]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "mechanisms"))
from test_promises import TRIALS, Trial, drawing, found

from sourdine.mechanisms import Gaussian, Laplace

DRAWS = np.random.default_rng(1)


def repeated(trial: Trial) -> Any:
    """Draws of the twin: of its noise anew, or of the shares of its outputs where these are few."""
    twin, draw = trial.twin, drawing(trial.twin, None)
    if isinstance(twin, Laplace | Gaussian):
        return draw
    seen: dict[str, tuple[list[Any], Any]] = {}

    def many(value: Any, count: int) -> Any:
        key = str(value)
        if key not in seen:
            outputs, counts = np.unique(draw(value, 40_000), return_counts=True)
            seen[key] = outputs.tolist(), counts / counts.sum()
        outputs, shares = seen[key]
        return [outputs[at] for at in DRAWS.choice(len(outputs), count, p=shares)]

    return many


def margin(trial: Trial, many: Any) -> float:
    finding = found(trial, many)
    error = np.sqrt(finding.tpr * (1 - finding.tpr) / (finding.draws - finding.draws // 2))
    return float((finding.tpr_lower - finding.allowed) / error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--match", default="")
    asked = parser.parse_args()
    print("| trial | draws | median | least |\n| --- | --- | --- | --- |")
    for name, trial in TRIALS.items():
        if asked.match in name:
            many = repeated(trial)
            margins = [margin(trial, many) for _ in range(asked.repetitions)]
            print(
                f"| {name} | {trial.draws} | {np.median(margins):.1f} | {min(margins):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
