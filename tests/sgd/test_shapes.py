"""Shapes of batches: all units find a place, the plan is the cheapest there is, and few are wasted."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stopping import engine, rows  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from sourdine import rng  # noqa: E402
from sourdine.errors import InputError  # noqa: E402
from sourdine.sgd import shapes, traced  # noqa: E402
from sourdine.sgd.batches import Units, batches  # noqa: E402
from sourdine.sgd.sampling import PoissonLots  # noqa: E402
from sourdine.sgd.shapes import Costs, Kind, kinds, length, whole  # noqa: E402

CPU = torch.device("cpu")


@given(st.integers(1, 3000), st.integers(1, 600), st.integers(1, 16))
def test_batches_of_a_kind_are_equal_and_hold_all(count: int, most: int, parts: int) -> None:
    kind = Kind(None, most, -(-most // parts))
    rows = kind.cut(count)
    assert len(set(rows)) == 1 and max(rows) <= most and len(rows) == -(-count // most)
    assert sum(rows[:-1]) < count <= sum(rows) < count + len(rows) * kind.step
    many, each = shapes._cut(kind, np.array([0, count]))
    assert kind.cut(0) == [] and many.tolist() == [0, len(rows)] and each[1] == rows[0]


@given(st.integers(1, 5000))
def test_lengths_are_rounded_up_by_little(size: int) -> None:
    found = length(size)
    assert found % 8 == 0 and size <= found <= max(size + 7, size * 1.0625)
    assert length(found) == found and size <= length(size, 2) <= found


def test_lengths_are_few() -> None:
    assert len({length(size) for size in range(1, 4097)}) == 32 + 16 * 4


def cost(found: tuple[Kind, ...], sizes: list[int], rate: float, steps: int, costs: Costs) -> float:
    """By lots that are drawn and cut; see the top of sgd/shapes.py."""
    units, total, seen = Units(Sized(sizes)), 0.0, set[Any]()
    for step in range(30):
        lot = PoissonLots(len(sizes), rate * len(sizes)).draw(step, rng.seeded(step))
        for batch in batches(units, lot, Padded(), CPU, rng.seeded(1), found):
            seen.add(tuple(batch.data.shape))
            total += batch.data.numel() + costs.batch
    return costs.shape * len(seen) + steps * total / 30


@pytest.mark.parametrize("steps", [30, 1000, 100_000])
def test_the_plan_is_the_cheapest(steps: int) -> None:
    """Of all ways to cut five lengths into classes of one size; with room for rare shapes."""
    sizes = [8] * 900 + [16] * 700 + [32] * 600 + [72] * 80 + [200] * 20
    rate, costs = 0.3, Costs(1e6, 1e3)
    own = cost(kinds(sizes, rate, 400, steps, costs), sizes, rate, steps, costs)
    lengths, others = sorted({length(size) for size in sizes}), []
    for count in range(5):
        for inner in itertools.combinations(lengths[:-1], count):
            bounds = [*inner, lengths[-1]]
            means = [
                rate * sum(low < length(size) <= high for size in sizes)
                for low, high in itertools.pairwise([0, *bounds])
            ]
            tops = [math.ceil(mean + 2 * math.sqrt(mean * 0.7)) for mean in means]
            tops = [-(-top // -(-top // 400)) for top in tops]
            made = tuple(Kind(bound, top, top) for bound, top in zip(bounds, tops, strict=True))
            others.append(cost(made, sizes, rate, steps, costs))
    assert own <= min(others) * 1.02 + 2 * costs.shape
    assert max(others) > 1.5 * own


def test_long_runs_have_more_shapes_than_short_ones() -> None:
    drawn = np.random.default_rng(1).integers(5, 500, 20_000).tolist()
    found = [kinds(drawn, 0.1, 512, steps, Costs(4e6, 4e3)) for steps in (1, 100, 1000, 100_000)]
    counts = [len(each) for each in found]
    assert counts[0] == 1 and counts == sorted(counts) and counts[-1] > 6
    assert all(each[-1].size == 512 and each[-1].room is None for each in found), "all find a place"
    dear = kinds(drawn, 0.1, 512, 1000, Costs(1e9, 4e3))
    assert len(dear) < counts[2]
    assert len(kinds(drawn, 0.1, 512, 10**9, Costs(1e6, 1.0, most=9))) <= 9
    assert kinds([], 0.1, 512, 10, Costs(1.0, 1.0)) == ()


def waste(sizes: list[int], lot: float, most: int, steps: int) -> tuple[float, int]:
    """The share of tokens that are padding or fill batches up, and how many shapes there were."""
    units, plan = (
        Units(Sized(sizes)),
        kinds(sizes, lot / len(sizes), most, steps, Costs(1e6, 1e3, most=shapes._GRAPHS)),
    )
    lots, real, made, seen = PoissonLots(len(sizes), lot), 0, 0, set[Any]()
    for step in range(20):
        taken = lots.draw(step, rng.seeded(step))
        real += sum(sizes[unit] for unit in taken)
        for batch in batches(units, taken, Padded(), CPU, rng.seeded(1), plan):
            made += batch.data.numel()
            seen.add(tuple(batch.data.shape))
    return 1 - real / made, len(seen)


class Sized(list[int]):
    @property
    def sizes(self) -> list[int]:
        return list(self)


class Padded:
    """As many ones as each row says."""

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def at_least(self, size: int) -> Padded:
        return Padded(size)

    def __call__(self, rows: list[int]) -> Any:
        sizes = torch.tensor(rows)
        return (torch.arange(max(int(sizes.max()), self.least)) < sizes[:, None]).int()


def test_little_is_padded_in_a_long_run() -> None:
    """Texts of 64 to 512 tokens: below a tenth. In a short run, fewer shapes and more padding."""
    drawn = np.random.default_rng(1).integers(64, 513, 30_000).tolist()
    long, many = waste(drawn, 2048, 512, 2000)
    short, few = waste(drawn, 2048, 512, 100)
    assert long < 0.1 < short < 0.2 and few < 10 < many <= shapes._GRAPHS + 8  # and some that are rare


def test_lots_of_one_length_are_filled_up_by_little() -> None:
    drawn = [128] * 10_240
    assert waste(drawn, 256, 64, 100)[1] == 1  # as filling up takes less than another shape
    for steps, most, least in ((2000, 0.05, 3), (100_000, 0.015, 10)):
        share, seen = waste(drawn, 256, 64, steps)
        assert share < most and least <= seen <= shapes._GRAPHS


def test_every_lot_has_the_same_shapes() -> None:
    """Although the longest text of a lot is hardly ever the same: what is collated is told a length."""
    drawn = np.random.default_rng(1).integers(3, 60, 5000).tolist()
    share, seen = waste(drawn, 1000, 2000, 300)
    assert seen <= 3 and share < 0.4


@given(st.sets(st.integers(0, 59)), st.integers(1, 70), st.integers(1, 3), st.integers(0, 9))
def test_every_example_once(drawn: set[int], most: int, classes: int, room: int) -> None:
    sizes = [1 + 7 * (place % 9) for place in range(60)]
    bounds = (8, 32, 64)[-classes:]
    rooms = [*([room] if room else [None]) * (classes - 1), None]
    found = [Kind(x, most, -(-most // 4), y) for x, y in zip(bounds, rooms, strict=True)]
    lot = np.array(sorted(drawn), dtype=np.int64)
    seen = list[int]()
    for batch in batches(Units(Sized(sizes)), lot, list, CPU, rng.seeded(1), found):
        real = [x for x, w in zip(batch.data, batch.weights, strict=True) if w]
        assert real and batch.units == len(batch.data) in {*range(1, most + 1)}
        assert set(batch.data) == set(real), "a batch is filled up from itself"
        assert room or len({np.searchsorted(bounds, x) for x in real}) == 1
        seen += real
    assert sorted(seen) == sorted(sizes[place] for place in drawn)


def test_what_is_beyond_the_room_of_a_class_goes_to_the_next() -> None:
    """The largest of it, into batches that are not full; the last class takes all that come."""
    sizes, plan = [5, 6, 7, 8, 40, 41], (Kind(8, 1, 1, 3), Kind(48, 4, 4))
    found = list(batches(Units(Sized(sizes)), np.arange(6), Padded(), CPU, rng.seeded(1), plan))
    lengths = [(batch.data.sum(1) * (batch.weights > 0)).tolist() for batch in found]
    assert lengths == [[41, 40, 8, 0], [7], [6], [5]]
    assert [tuple(batch.data.shape) for batch in found] == [(4, 48), (1, 8), (1, 8), (1, 8)]


def test_which_examples_a_user_takes_part_with_is_no_matter_of_shapes() -> None:
    """A lot that is cut again, as memory ran out, is the same lot."""
    sizes = Sized([8, 60] * 30)
    units = Units(sizes, [place // 6 for place in range(60)], 2)
    every: list[list[Any]] = []
    for plan in (whole(3), (Kind(8, 2, 2), Kind(64, 5, 1)), (Kind(64, 4, 4),)):
        taken = list[tuple[int, ...]]()
        for batch in batches(units, np.arange(10), list, CPU, rng.seeded(3), plan):
            pairs = zip(batch.data, batch.weights.tolist(), strict=True)
            taken += [tuple(x for x, w in pair if w) for pair in zip(pairs, pairs, strict=True)]
        every.append(sorted(x for x in taken if x))
    assert all(each == every[0] for each in every)


@pytest.mark.parametrize("wrong", [lambda size: None, lambda size: 1 / 0])
def test_a_collate_that_cannot_pad_is_found_before_the_charge(wrong: Any) -> None:
    def collate(given: list[Any]) -> Any:
        return default_collate(given)

    class Texts(list[Any]):
        sizes = [6] * 64

    collate.at_least = wrong  # type: ignore[attr-defined]
    of = engine(None, data=Texts(rows()), collate=collate, graphs=traced)
    with pytest.raises((InputError, ZeroDivisionError)):
        next(of.lots())
    assert not of.ledger.history()
