"""Processes that race for one ledger: each charges until it is refused.

    racing.py WHERE COUNT ROUNDS

Prints how many charges each was granted. At most ROUNDS are asked for. The imports are made once for
all; each process opens the ledger by itself.
"""

import json
import math
import multiprocessing
import os
import sys
from typing import Any

from sourdine.accounting.filter import Filter
from sourdine.budget import Budget
from sourdine.errors import BudgetError
from sourdine.events import GaussianEvent
from sourdine.ledger import Ledger

FIT = 500
BUDGET = Budget(1.0, 1e-6)
_FILTER = Filter(BUDGET)
# Noise of which the filter grants 500 and no more: 500 a / (2 sigma^2) = B, rounded to the safe side.
EVENT = GaussianEvent(math.sqrt(FIT * _FILTER.order / (2 * _FILTER.limit)) * (1 + 1e-9))


def charge(where: str, rounds: int, start: Any, granted: Any) -> None:
    count = 0
    try:
        start.wait()  # all at once
        ledger = Ledger(where, BUDGET)
        while count < rounds:
            ledger.charge(EVENT, f"process {os.getpid()}")
            count += 1
    except BudgetError:
        pass
    finally:
        granted.put(count)


def main(where: str, count: int, rounds: int) -> None:
    fork = multiprocessing.get_context("fork")
    start, granted = fork.Barrier(count), fork.SimpleQueue()
    racing = [fork.Process(target=charge, args=(where, rounds, start, granted)) for _ in range(count)]
    for process in racing:
        process.start()
    found = [granted.get() for _ in racing]
    for process in racing:
        process.join()
        assert process.exitcode == 0
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
