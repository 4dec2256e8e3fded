"""Many processes charge three ledgers of the same records under one budget of all; shared by tests and benchmarks.

    racing.py race FOLDER              8 processes at once, until each is refused
    racing.py kill FOLDER KILLS        one process after the other, each killed at a random time; the budget
                                       of all is above what the ledgers can spend, so none is refused

A granted charge is followed by a line in a file, which stands for the draw. Prints one JSON line: releases by
ledger, in the ledgers and in the register; draws; epsilon spent by the ledgers, and the register's total.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from sourdine.budget import Budget
from sourdine.errors import BudgetError
from sourdine.events import ApproximateEvent
from sourdine.ledger import Ledger
from sourdine.register import open_book, recall, sum_up, watch

CEILING, EACH, LEDGERS, PROCESSES = 0.5, 0.24, 3, 8
"""Alone the ledgers could spend 0.72."""
PLENTY = 1.0
EVENT = ApproximateEvent(0.01, 0.0, "zero-out")
SMALL = ApproximateEvent(1e-6, 0.0, "zero-out")


def opened(where: Path, table: Path, ceiling: float) -> Ledger:
    return watch(Ledger(where), [table], budget_of_all=ceiling, tell=lambda sentence: None)


def charge_until_refused(ledger: Ledger, released: Path, event: ApproximateEvent) -> None:
    """Draw only after the charge is on the disk."""
    with released.open("a", encoding="utf-8") as file:
        try:
            while True:
                file.write(f"{ledger.charge(event, 'a race').id}\n")
                file.flush()
                os.fsync(file.fileno())
        except BudgetError:
            return


def begun(ledger: Ledger, released: Path, event: ApproximateEvent) -> int:
    """A child that charges; it has begun when this returns."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        ledger.spent()  # opens a connection of its own
        os.write(said, b".")
        charge_until_refused(ledger, released, event)
        os._exit(0)
    os.read(heard, 1)
    os.close(heard)
    os.close(said)
    return child


def lines(path: Path) -> int:
    return len(path.read_text().split()) if path.exists() else 0


def found(table: Path, paths: list[Path], drawn: list[Path]) -> dict[str, object]:
    records = recall(table)
    assert records is not None
    with open_book() as book:
        charged = book.lines(records)
    spent = [Ledger(path).spent() for path in paths]  # also rolls back what a killed process left
    entered = {line.place: line.releases for line in charged}
    return {
        "charged": [each.releases for each in spent],
        "entered": [entered.get(path.name, 0) for path in paths],
        "drawn": [lines(path) for path in drawn],
        "spent": sum(each.epsilon for each in spent),
        "total": sum(each.budget.epsilon for each in sum_up(charged)),
    }


def race(table: Path, paths: list[Path], folder: Path) -> None:
    drawn = [folder / f"drawn{n}" for n in range(PROCESSES)]
    ledgers = [opened(path, table, CEILING) for path in paths]
    children = [begun(ledgers[n % LEDGERS], drawn[n], EVENT) for n in range(PROCESSES)]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    print(json.dumps(found(table, paths, drawn)), flush=True)


def kill(table: Path, paths: list[Path], folder: Path, kills: int) -> None:
    chance = random.Random(3)
    drawn = [folder / f"drawn{n}" for n in range(LEDGERS)]
    ledgers = [opened(path, table, PLENTY) for path in paths]
    for ledger in ledgers:
        ledger.charge(SMALL, "the first charge takes longer")
    start = time.perf_counter()
    ledgers[0].charge(SMALL, "to see how long a charge takes here")
    reach = 2 * (time.perf_counter() - start)
    for at in range(kills):
        path = drawn[at % LEDGERS]
        enough = lines(path) + chance.randint(1, 4)
        child = begun(ledgers[at % LEDGERS], path, SMALL)
        while lines(path) < enough:  # busy, however slow the machine is
            time.sleep(reach / 20)
        time.sleep(chance.uniform(0.0, reach))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print(json.dumps(found(table, paths, drawn)), flush=True)


def main(how: str, folder: Path, kills: int) -> None:
    table = folder / "people.csv"
    table.write_text("name,age\n" + "".join(f"p{n},{n}\n" for n in range(50)), encoding="utf-8")
    paths = [folder / f"{n}.sqlite" for n in range(LEDGERS)]
    for path in paths:
        Ledger(path, Budget(EACH, 1e-6))
    recall(table)  # read once, not by every process
    if how == "race":
        race(table, paths, folder)
    else:
        kill(table, paths, folder, kills)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int((*sys.argv, "0")[3]))
