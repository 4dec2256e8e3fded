"""Lots have the law that their event assumes, and drawing one costs what the lot costs."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sourdine.accounting import curve
from sourdine.errors import InputError
from sourdine.events import GaussianEvent, LaplaceEvent, PoissonEvent, ShuffledEvent
from sourdine.rng import secure, seeded
from sourdine.sgd.sampling import Lots, PoissonLots, ShuffledLots, TruncatedPoissonLots

FALSE_ALARM = 1e-6
DRAWS = 20_000


def counts(lots: Lots, seed: int) -> np.ndarray:
    """A row for each lot: which of the records were in it."""
    source = seeded(seed)
    seen = np.zeros((DRAWS, lots.records), dtype=np.int8)
    for step in range(DRAWS):
        seen[step, lots.draw(step, source)] = 1
    return seen


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.95])
def test_each_record_enters_with_the_rate(rate: float) -> None:
    seen = counts(PoissonLots(20, 20 * rate), 1)
    pvalues = [stats.binomtest(int(k), DRAWS, rate).pvalue for k in seen.sum(axis=0)]
    assert min(pvalues) > FALSE_ALARM / 20
    # The twin: a rate one part in ten lower would be noticed.
    assert stats.binomtest(int(seen.sum()), seen.size, 0.9 * rate).pvalue < FALSE_ALARM


def test_records_enter_independently() -> None:
    seen = counts(PoissonLots(12, 3), 2)
    sizes = np.bincount(seen.sum(axis=1), minlength=13)
    expected = stats.binom.pmf(np.arange(13), 12, 0.25) * DRAWS
    kept = expected > 5
    observed = np.append(sizes[kept], sizes[~kept].sum())
    wanted = np.append(expected[kept], expected[~kept].sum())
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > FALSE_ALARM
    # Neighbours in the table are no likelier together, nor are consecutive lots.
    for pair in (seen[:, 3] & seen[:, 4], seen[:-1, 5] & seen[1:, 5]):
        assert stats.binomtest(int(pair.sum()), len(pair), 1 / 16).pvalue > FALSE_ALARM


def test_lots_may_be_empty_or_everything() -> None:
    source = seeded(3)
    sizes = {len(PoissonLots(1_000_000, 0.5).draw(step, source)) for step in range(50)}
    assert 0 in sizes and max(sizes) < 8
    assert PoissonLots(7, 7).draw(0, source).tolist() == list(range(7))


@given(st.integers(1, 400), st.floats(0.01, 1.0), st.integers(0, 99))
def test_a_lot_is_a_rising_list_of_places(records: int, rate: float, seed: int) -> None:
    lot = PoissonLots(records, rate * records).draw(0, seeded(seed))
    assert (np.diff(lot) > 0).all()
    assert lot.size == 0 or (lot[0] >= 0 and lot[-1] < records)


def test_truncated_lots_keep_at_most_so_many_and_favour_nobody() -> None:
    seen = counts(TruncatedPoissonLots(20, 4, 5), 4)
    assert seen.sum(axis=1).max() == 5
    each = seen.sum(axis=0)
    assert stats.chisquare(each).pvalue > FALSE_ALARM
    assert each.mean() < 0.2 * DRAWS


def test_an_epoch_visits_everyone_once() -> None:
    lots, source = ShuffledLots(23, 5), seeded(5)
    assert lots.lots == 4
    for epoch in range(3):
        visited = np.concatenate([lots.draw(4 * epoch + lot, source) for lot in range(4)])
        assert len(set(visited.tolist())) == 20
    first = [tuple(ShuffledLots(23, 5).draw(0, seeded(seed))) for seed in range(9)]
    assert len(set(first)) == 9


def test_each_way_of_drawing_has_its_own_event() -> None:
    noise = GaussianEvent(1.0)
    assert PoissonLots(1000, 10).event(noise, 50) == 50 * PoissonEvent(0.01, noise)
    assert ShuffledLots(1000, 10).event(noise, 250) == ShuffledEvent(1.0, 100, 3)
    poisson, cut, shuffled = (
        curve(lots.event(noise, 100)).epsilon_upper(1e-6)
        for lots in (PoissonLots(1000, 10), TruncatedPoissonLots(1000, 10, 60), ShuffledLots(1000, 10))
    )
    assert poisson <= cut < 1.01 * poisson
    assert shuffled > 4 * poisson
    with pytest.raises(InputError, match="Gaussian noise only"):
        ShuffledLots(1000, 10).event(LaplaceEvent(1.0), 1)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: PoissonLots(0, 1), "records is 0"),
        (lambda: PoissonLots(10, 11), "larger than the 10 records"),
        (lambda: PoissonLots(10, 0), "lot_size is 0"),
        (lambda: TruncatedPoissonLots(1000, 100, 50), "cut most of the time"),
        (lambda: ShuffledLots(10, 2.5), "whole size"),
    ],
)
def test_bad_plans(act, said: str) -> None:
    with pytest.raises(InputError, match=said):
        act()


def test_drawing_a_lot_does_not_go_through_all_records() -> None:
    """A thousand of a million take 0.04 ms; one number a record would take over 5."""
    lots, source = PoissonLots(1_000_000, 1_000), secure()
    times = []
    for step in range(50):
        start = time.perf_counter()
        lots.draw(step, source)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 1e-3
