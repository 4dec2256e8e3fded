"""Whether lots are drawn as the accounting assumes: each record with the same rate, on its own.

Statement. Under Poisson sampling the cells x[t, i] (record i is in the lot of step t) are independent,
each true with probability `rate`. Then, exactly,

    all cells that are true                            Bin(steps * records, rate)
    lots whose size is above its mean                  Bin(steps, P[Bin(records, rate) > mean])
    lots whose size is near its mean                   Bin(steps, P[|Bin(records, rate) - mean| <= c])
    records that are drawn about as often as expected  Bin(records, P[|Bin(steps, rate) - mean| <= c])
    cells true at steps 2k and 2k + 1 alike            Bin(steps // 2 * records, rate^2)

with c the median distance. Shuffling draws every record equally often and never twice in an epoch; lots
of a fixed size never vary; cut ones are never large; a lot that is used again repeats all its records.
Amplification proven for Poisson lots holds for none of them: Chua et al. 2024 show how far a shuffled
run may be from its claim.

Guarantee: a Poisson sampler is accused with probability at most `false_alarm`, by the union bound over
five two-sided tests. A sampler may differ in ways that none of them looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import CheckError, InputError


@dataclass(frozen=True)
class Drawn:
    """What a sampler did. `wrong` says what Poisson sampling would not have done; empty if nothing."""

    wrong: tuple[str, ...]
    steps: int
    false_alarm: float

    @property
    def kept(self) -> bool:
        return not self.wrong

    def raise_if_broken(self) -> None:
        """Raise CheckError where the sampler is not what it is sold as."""
        if self.wrong:
            raise CheckError(
                f"these are no Poisson lots: {'; '.join(self.wrong)} (in {self.steps} lots, false "
                f"alarm {self.false_alarm:g}). Account for what is drawn, or draw each on its own."
            )


def check_sampler(
    draw: Callable[[int], Sequence[int]],
    records: int,
    rate: float,
    *,
    steps: int = 200,
    false_alarm: float = 1e-6,
) -> Drawn:
    """Draw `steps` lots by `draw(step)`, the places of their records, and test how they were drawn."""
    records, steps = checks.whole("records", records), checks.whole("steps", steps, least=2)
    rate, level = checks.probability("rate", rate), checks.probability("false_alarm", false_alarm) / 5
    cells = np.zeros((steps, records), dtype=bool)
    for step in range(steps):
        places = np.asarray(draw(step), dtype=np.int64)
        if len(places) and not 0 <= places.min() <= places.max() < records:
            raise InputError(f"a lot has a place outside of 0 to {records - 1}, the records.")
        if len(np.unique(places)) < len(places):
            raise InputError("a record is twice in one lot: each is in it or not.")
        cells[step, places] = True
    even = steps // 2 * 2
    twice = int((cells[:even:2] & cells[1:even:2]).sum())
    sizes, times = cells.sum(1), cells.sum(0)
    mean = records * rate
    above = float(_binomial(records, rate).sf(math.floor(mean)))
    found = {
        "records come at another rate": (int(cells.sum()), cells.size, rate),
        "lots are too seldom large or small": (int((sizes > mean).sum()), steps, above),
        "lots vary in size more or less than they should": _near(sizes, records, rate),
        "records come equally often, or some much more often": _near(times, steps, rate),
        "records come back in the next lot too seldom or too often": (
            twice,
            cells[:even:2].size,
            rate**2,
        ),
    }
    wrong = [
        what for what, (count, of, chance) in found.items() if _surprise(count, of, chance) < level
    ]
    return Drawn(tuple(wrong), steps, false_alarm)


def _near(counts: NDArray[np.int64], tries: int, rate: float) -> tuple[int, int, float]:
    """How many counts are within the median distance of their mean, of how many, with what chance."""
    law = _binomial(tries, rate)
    distance = np.abs(np.arange(tries + 1) - tries * rate)
    order = np.argsort(distance, kind="stable")
    mass = np.cumsum(law.pmf(order))
    last = min(int(np.searchsorted(mass, 0.5)), tries)
    within = distance <= distance[order[last]]
    return int(within[counts].sum()), len(counts), float(law.pmf(np.flatnonzero(within)).sum())


def _surprise(count: int, of: int, chance: float) -> float:
    """Twice the smaller tail of Bin(of, chance) at this count."""
    law = _binomial(of, min(chance, 1.0))
    return float(min(1.0, 2 * min(law.cdf(count), law.sf(count - 1))))


def _binomial(tries: int, chance: float) -> Any:
    from scipy import stats  # noqa: PLC0415 (half a second, and certificates import this)

    return stats.binom(tries, chance)
