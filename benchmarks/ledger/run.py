"""How fast a ledger is, and whether it ever under-reports.

    python benchmarks/ledger/run.py [--kills 200]

1. The time of a charge at 10,000 recorded events on SQLite: in a process that has the ledger open, and the
   first one of a fresh process, which reads and checks the whole history.
2. Kill -9 at random instants during charges (tests/ledger/killing.py): is the record ever below what was
   released?
"""

import argparse
import json
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sourdine.budget import Budget
from sourdine.events import DiscreteLaplaceEvent
from sourdine.ledger import Ledger

KILLING = Path(__file__).parents[2] / "tests" / "ledger" / "killing.py"


def charges(folder: Path, recorded: int, distinct: int) -> dict[str, float]:
    """Milliseconds of a charge on a ledger with so many entries, of so many different events."""
    path = folder / f"{distinct}.sqlite"
    ledger = Ledger(path, Budget(9.0))
    events = [DiscreteLaplaceEvent(1e-5 * (1 + at / distinct), 1, "zero-out") for at in range(distinct)]
    for at in range(recorded):
        ledger.charge(events[at % distinct], f"question {at}")
    times = []
    for at in range(200):
        start = time.perf_counter()
        ledger.charge(events[at % distinct], "one more")
        times.append(1e3 * (time.perf_counter() - start))
    start = time.perf_counter()
    Ledger(path).charge(events[0], "from a fresh object")
    fresh = 1e3 * (time.perf_counter() - start)
    return {
        "recorded": recorded,
        "distinct events": distinct,
        "median ms": statistics.median(times),
        "slowest of 200 ms": max(times),
        "first charge of a fresh object ms": fresh,
    }


def kills(folder: Path, count: int) -> dict[str, float]:
    command = [
        sys.executable,
        str(KILLING),
        str(folder / "k.sqlite"),
        str(folder / "released"),
        str(count),
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    outcomes = [json.loads(line) for line in lines]
    recorded, released, _ = outcomes[-1]
    return {
        "kills": len(outcomes),
        "under-reported": sum(now < drawn or not known for now, drawn, known in outcomes),
        "charges recorded": recorded,
        "released": released,
        "charged but not released": recorded - released - 5,  # five are a measurement
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--recorded", type=int, default=10_000)
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for distinct in (1, 100, arguments.recorded):
            print(json.dumps(charges(folder, arguments.recorded, distinct)), flush=True)
        print(json.dumps(kills(folder, arguments.kills)), flush=True)


if __name__ == "__main__":
    main()
