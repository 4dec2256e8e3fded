"""Our accountant beside dp-accounting's PLD (grid 1e-4) and Opacus' PRV, on the golden grid.

    make bench      # or: OMP_NUM_THREADS=1 python benchmarks/accounting/run.py [--json FILE] [rows...]

For each row: CPU seconds of each accountant and its excess over our proven lower end. A peer's value
below that end is no upper bound; it counts as too low and is left out of its own median. Opacus runs in
a process of its own with a limit of 20 s a row. Also timed: calibration, and `import sourdine`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import platform
import statistics
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sourdine.accounting import calibrate, curve
from sourdine.budget import Budget
from sourdine.dp_events import to_dp_event
from sourdine.events import ApproximateEvent, Event, GaussianEvent, LaplaceEvent, PoissonEvent

GRID = Path(__file__).parents[2] / "tests" / "golden" / "grid.csv"
LIMIT = 20.0


def event_of(row: dict[str, str]) -> Event:
    noise, rate = float(row["sigma_or_b"]), float(row["q"])
    ones: dict[str, Event] = {
        "subgauss": PoissonEvent(rate, GaussianEvent(noise)),
        "gauss": GaussianEvent(noise),
        "laplace": LaplaceEvent(noise),
        "sublaplace": PoissonEvent(rate, LaplaceEvent(noise)),
        "randresp": ApproximateEvent(noise, 0.0, "replace-one"),
    }
    return ones[row["kind"]] * int(row["T"])


def timed(call: Any) -> tuple[Any, float]:
    started = time.process_time()
    value = call()
    return value, time.process_time() - started


def dp_accounting_pld(row: dict[str, str]) -> float:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.pld.privacy_loss_distribution import from_randomized_response

    relation = dp.NeighboringRelation
    near = relation.REPLACE_ONE if row["adjacency"] == "replace_one" else relation.ADD_OR_REMOVE_ONE
    if row["kind"] == "randresp":
        # Its accountant forgets the count of a self-composed randomized response (0.6.0): compose by hand.
        flip = 2 / (1 + math.exp(float(row["sigma_or_b"])))
        one = from_randomized_response(flip, 2, value_discretization_interval=1e-4)
        return float(one.self_compose(int(row["T"])).get_epsilon_for_delta(float(row["delta"])))
    accountant = PLDAccountant(near, value_discretization_interval=1e-4)
    return float(accountant.compose(to_dp_event(event_of(row))).get_epsilon(float(row["delta"])))


def _opacus(row: dict[str, str], pipe: Any) -> None:
    from opacus.accountants import PRVAccountant

    warnings.simplefilter("ignore")
    accountant = PRVAccountant()
    accountant.history = [(float(row["sigma_or_b"]), float(row["q"]), int(row["T"]))]
    try:
        pipe.send(timed(lambda: accountant.get_epsilon(float(row["delta"]))))
    except Exception as error:
        pipe.send((f"error: {type(error).__name__}", math.nan))


def opacus_prv(row: dict[str, str]) -> tuple[float | str, float]:
    if row["adjacency"] != "add_remove" or row["kind"] not in ("subgauss", "gauss"):
        return "unsupported", math.nan
    ours, theirs = multiprocessing.Pipe(False)
    worker = multiprocessing.Process(target=_opacus, args=(row, theirs))
    worker.start()
    found = ours.recv() if ours.poll(LIMIT) else (f"over {LIMIT:g} s", math.nan)
    worker.kill()
    worker.join()
    return found


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    answered = [row for row in rows if isinstance(row[name], float)]
    valid = [row for row in answered if row[name] >= row["lower"] - 1e-9]
    excess = [max(0.0, row[name] - row["lower"]) / row["lower"] for row in valid]
    seconds = [row[f"{name}_s"] for row in answered]
    return {
        "answered": len(answered),
        "too low": len(answered) - len(valid),
        "excess median": statistics.median(excess),
        "excess worst": max(excess),
        "seconds median": statistics.median(seconds),
        "seconds worst": max(seconds),
        "seconds total": sum(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("rows", nargs="*", help="row numbers; all if none")
    options = parser.parse_args()
    for package in ("numpy", "scipy", "dp-accounting", "opacus", "torch"):
        print(f"{package} {version(package)}", end=", ")
    print(f"Python {platform.python_version()}, {platform.machine()}")
    timed(
        lambda: curve(10 * PoissonEvent(0.1, GaussianEvent(1.0))).epsilon(1e-6)
    )  # imports and warms up
    rows = []
    with GRID.open(encoding="utf-8", newline="") as file:
        grid = [row for row in csv.DictReader(file) if not options.rows or row["id"] in options.rows]
    for row in grid:
        adjacency = row["adjacency"].replace("_", "-")
        bound, ours = timed(
            lambda row=row, near=adjacency: curve(event_of(row), near).epsilon(float(row["delta"]))
        )
        pld, pld_s = timed(lambda row=row: dp_accounting_pld(row))
        prv, prv_s = opacus_prv(row)
        prv = float(prv) if isinstance(prv, float | np.floating) else prv
        found = {"id": row["id"], "lower": bound.lower, "ours": bound.upper, "ours_s": ours, "pld": pld}
        found |= {"pld_s": pld_s, "prv": prv, "prv_s": prv_s, "T": int(row["T"])}
        peers = [
            value for value in (pld, prv) if isinstance(value, float) and value < bound.upper - 1e-9
        ]
        if peers:  # settle with a finer grid who is right
            finer = curve(event_of(row), adjacency, accuracy=1e-8).epsilon(float(row["delta"]))
            found["verdict"] = "peer too low" if max(peers) < finer.lower else "ours looser"
            found["lower"] = max(bound.lower, finer.lower) if max(peers) < finer.lower else bound.lower
        rows.append(found)
        theirs = prv if isinstance(prv, str) else f"{prv:.9g}"
        print(
            f"{row['id']:>3} {row['kind']:<10} q={row['q']:<7} noise={row['sigma_or_b']:<6} "
            f"T={row['T']:<7} delta={row['delta']:<6} {row['adjacency']:<11}",
            f"[{bound.lower:.9g}, {bound.upper:.9g}] {ours:.3f} s | PLD {pld:.9g} {pld_s:.3f} s |",
            f"PRV {theirs} {prv_s:.3f} s {found.get('verdict', '')}",
            flush=True,
        )
    print()
    for name, title in (("ours", "sourdine"), ("pld", "dp-accounting PLD 1e-4"), ("prv", "Opacus PRV")):
        figures = summary(name, rows).items()
        shown = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in figures}
        print(f"{title:<24} {shown}")
    wide = [row["id"] for row in rows if row["ours"] - row["lower"] > 1e-3 * max(1.0, row["ours"])]
    print(f"\nrows wider than 1e-3 max(1, epsilon): {wide or 'none'}")
    print(
        "rows where a peer is below our upper end:",
        [(r["id"], r["verdict"]) for r in rows if "verdict" in r],
    )
    long = [row["ours_s"] for row in rows if row["T"] >= 100_000]
    print(f"plans of 100,000 steps: worst {max(long, default=math.nan):.2f} s of {len(long)}")
    for wanted in ((0.01, 1000), (0.001, 100_000), (0.2, 100)):
        for epsilon in (0.5, 3.0, 8.0):
            plan, took = timed(
                lambda e=epsilon, w=wanted: calibrate(Budget(e, 1e-6), rate=w[0], steps=w[1])
            )
            unused = 1 - plan.epsilon.upper / epsilon
            print(f"calibrate rate, steps = {wanted} to {epsilon:g}: {unused:.3%} unused, {took:.2f} s")
    code = "import time; t = time.perf_counter(); import sourdine; print(time.perf_counter() - t)"
    imports = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    print(f"import sourdine: {statistics.median(imports):.3f} s")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
