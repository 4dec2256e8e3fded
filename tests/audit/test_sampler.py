"""The check of a sampler: silent on Poisson lots, loud on what is sold as them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sourdine.audit.sampler import check_sampler
from sourdine.errors import CheckError, InputError

N, RATE = 400, 0.1
SIZE = int(N * RATE)


def poisson(seed: int, rate: float = RATE) -> Callable[[int], Any]:
    drawn = np.random.default_rng(seed)
    return lambda step: np.flatnonzero(drawn.random(N) < rate)


def shuffled() -> Callable[[int], Any]:
    drawn = np.random.default_rng(2)
    lots = [lot for _ in range(50) for lot in drawn.permutation(N).reshape(-1, SIZE)]
    return lambda step: lots[step]


def fixed_size() -> Callable[[int], Any]:
    drawn = np.random.default_rng(3)
    return lambda step: drawn.choice(N, SIZE, replace=False)


def truncated() -> Callable[[int], Any]:
    inner = poisson(4)
    return lambda step: inner(step)[:SIZE]


def twice() -> Callable[[int], Any]:
    inner = poisson(5)
    lots = [lot for step in range(50) for lot in [inner(step)] * 2]
    return lambda step: lots[step]


def test_poisson_lots_are_accused_no_more_than_stated() -> None:
    level, trials = 0.05, 200
    alarms = sum(
        not check_sampler(poisson(seed), N, RATE, steps=60, false_alarm=level).kept
        for seed in range(trials)
    )
    assert alarms <= stats.binom.isf(1e-6, trials, level)  # the false alarm of this test


@pytest.mark.parametrize("sampler", [shuffled, fixed_size, truncated, twice])
def test_what_is_sold_as_poisson_is_found(sampler: Any) -> None:
    found = check_sampler(sampler(), N, RATE, steps=100)
    assert not found.kept
    with pytest.raises(CheckError, match="no Poisson lots"):
        found.raise_if_broken()


def test_another_rate_is_found() -> None:
    assert any("rate" in said for said in check_sampler(poisson(6, 0.13), N, RATE).wrong)
    assert check_sampler(poisson(7), N, RATE).kept


def test_some_records_more_often_are_found() -> None:
    drawn = np.random.default_rng(8)
    rates = np.where(np.arange(N) < N // 2, 0.05, 0.15)
    found = check_sampler(lambda step: np.flatnonzero(drawn.random(N) < rates), N, RATE)
    assert any("often" in said for said in found.wrong)


def test_lots_that_are_none_are_refused() -> None:
    for lot in ([N], [-1], [3, 3]):
        with pytest.raises(InputError):
            check_sampler(lambda step, lot=lot: lot, N, RATE)  # type: ignore[misc]
    assert not check_sampler(lambda step: [], N, RATE).kept
    assert check_sampler(lambda step: range(N), N, 1.0 - 1e-12, steps=4).kept
