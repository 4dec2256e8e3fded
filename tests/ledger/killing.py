"""Kill -9 in the middle of charges, again and again; shared by the tests and benchmarks/ledger.

    killing.py LEDGER RELEASED KILLS

A child charges and then appends a line to RELEASED, which stands for the draw; the parent kills it after up
to five draws and a random time, reads both, and starts the next. Prints one JSON list [recorded, released] a
kill.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from sourdine.budget import Budget
from sourdine.events import ApproximateEvent
from sourdine.ledger import Ledger

WARM = 5
SMALL = ApproximateEvent(1e-6, 0.0, "zero-out")


def release_for_ever(ledger: Ledger, released: Path) -> None:
    """Draw only after the charge is on the disk."""
    with released.open("a", encoding="utf-8") as file:
        while True:
            entry = ledger.charge(SMALL, "x")
            file.write(f"{entry.id}\n")
            file.flush()
            os.fsync(file.fileno())


def lines(released: Path) -> int:
    return len(released.read_bytes().split()) if released.exists() else 0


def main(path: Path, released: Path, kills: int) -> None:
    chance = random.Random(7)
    ledger = Ledger(path, Budget(1.0))
    start = time.perf_counter()
    for _ in range(WARM):
        ledger.charge(SMALL, "to see how long a charge takes here")
    charge = (time.perf_counter() - start) / WARM
    for _ in range(kills):
        enough = lines(released) + chance.randint(0, 5)
        child = os.fork()
        if child == 0:
            release_for_ever(ledger, released)
        while lines(released) < enough:  # busy, however slow the machine is
            time.sleep(charge / 10)
        time.sleep(chance.uniform(0.0, 3 * charge))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        drawn = released.read_text(encoding="utf-8").split() if released.exists() else []
        recorded = ledger.history()  # also rolls back what the killed process left half done
        # A line may have been cut by the kill: then its number is short, and still was charged.
        complete = {int(line) for line in drawn}
        known = {entry.id for entry in recorded}
        print(json.dumps([len(recorded), len(complete), complete <= known]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
