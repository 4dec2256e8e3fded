"""How much of a budget calibration leaves unused, over rates, steps, budgets and adjacencies.

    OMP_NUM_THREADS=1 python benchmarks/accounting/leftover.py

At most 0.1% may be left, and never less than nothing. Ends with 1 if a plan breaks that.
"""

from __future__ import annotations

import sys
from itertools import product

from sourdine.accounting import calibrate
from sourdine.budget import Budget

RATES = (0.3, 0.05, 0.02, 0.0116667, 0.01, 0.005, 1e-3, 1e-5)
STEPS = (1, 2, 4, 20, 500, 20_000)
BUDGETS = (Budget(0.5, 1e-6), Budget(3.0, 1e-6), Budget(8.0, 1e-5))
LEAST_NOISE = 1e-3  # with so little, anything may be left
MOST = 1e-3


def main() -> int:
    bad = count = 0
    worst = 0.0
    for budget, adjacency, rate, steps in product(BUDGETS, ("zero-out", "add-remove"), RATES, STEPS):
        asked = Budget(budget.epsilon, budget.delta, adjacency=adjacency)
        plan = calibrate(asked, rate=rate, steps=steps)
        left = 1 - plan.epsilon.upper / asked.epsilon
        count += 1
        if plan.noise_multiplier <= LEAST_NOISE and left >= 0:
            continue
        worst = max(worst, left)
        if not 0 <= left <= MOST:
            bad += 1
            print(f"{left:.2%} left: {asked}, rate {rate}, {steps} steps", flush=True)
    print(f"{count} plans, {bad} bad; at most {worst:.3%} left")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
