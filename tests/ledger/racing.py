"""One of the processes of a race: charge until refused, and print how many were granted.

racing.py WHERE
"""

import math
import os
import sys

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


def main(where: str) -> None:
    ledger = Ledger(where)
    print("ready", flush=True)
    sys.stdin.readline()  # all start together
    granted = 0
    try:
        while True:
            ledger.charge(EVENT, f"process {os.getpid()}")
            granted += 1
    except BudgetError:
        print(granted, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
