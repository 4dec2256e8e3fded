"""From lots to physical batches: nothing is lost, nothing is counted twice, padding weighs nothing."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

torch = pytest.importorskip("torch")

from sourdine import rng  # noqa: E402
from sourdine.errors import InputError  # noqa: E402
from sourdine.sgd.batches import Units, _pinned, batches, move  # noqa: E402
from sourdine.sgd.sampling import PoissonLots, usual_most  # noqa: E402
from sourdine.sgd.shapes import whole  # noqa: E402

CPU = torch.device("cpu")
DATA = list(range(100, 160))


def places(drawn: Any) -> Any:
    return np.array(sorted(drawn), dtype=np.int64)


def cut(units: Units, lot: Any, size: int, seed: int = 1) -> list[Any]:
    kinds = whole(max(1, size // units.most))
    return list(batches(units, lot, torch.tensor, CPU, rng.seeded(seed), kinds))


def test_a_lot_seldom_passes_its_usual_most() -> None:
    drawn = PoissonLots(6920, 2048)
    most = usual_most(2048, 6920)
    assert 2048 + 150 < most < 2048 + 155 and usual_most(50, 50) == 50
    assert stats.binom.sf(most, 6920, drawn.rate) < 1 / 30_000


@given(st.sets(st.integers(0, 59)), st.integers(1, 70))
def test_every_example_once(drawn: set[int], size: int) -> None:
    found = cut(Units(DATA), places(drawn), size)
    assert all(len(batch.data) == len(batch.weights) == batch.units <= size for batch in found)
    real = [int(x) for batch in found for x, w in zip(batch.data, batch.weights, strict=True) if w]
    assert real == [100 + place for place in sorted(drawn)]
    for batch in found:
        assert set(batch.weights.tolist()) <= {0.0, 1.0}
        assert batch.full == bool((batch.weights == 1).all())
        assert set(batch.data.tolist()) <= set(real), "a batch is filled up from itself"


def test_an_empty_lot_has_no_batches() -> None:
    assert cut(Units(DATA), places(()), 8) == []


@given(st.lists(st.integers(0, 9), min_size=60, max_size=60), st.integers(1, 9), st.integers(1, 40))
def test_users(owners: list[int], most: int, size: int) -> None:
    units = Units(DATA, owners, most)
    names = list(dict.fromkeys(owners))
    assert len(units) == len(names)
    found = cut(units, places(range(len(units))), size)
    row = 0
    for batch in found:
        assert len(batch.data) == batch.units * most
        assert batch.units <= max(1, size // most)
        pairs = zip(
            batch.data.view(-1, most).tolist(), batch.weights.view(-1, most).tolist(), strict=True
        )
        for data, weights in pairs:
            own = [x for x, w in zip(data, weights, strict=True) if w]
            if not own:
                continue
            mine = [100 + i for i, owner in enumerate(owners) if owner == names[row]]
            assert len(own) == len(set(own)) == min(most, len(mine))
            assert sum(weights) == pytest.approx(1), "the average over the user's examples"
            assert set(data) <= set(mine), "a user is filled up from nobody else"
            row += 1
    assert row == len(names)


def test_the_cap_is_drawn_anew() -> None:
    units = Units(DATA, [0] * 60, 5)
    taken = [tuple(units.of(0, rng.seeded(seed))) for seed in range(200)]
    assert len(set(taken)) > 190
    assert {place for own in taken for place in own} == set(range(60))
    assert taken[0] == tuple(units.of(0, rng.seeded(0)))
    assert all(list(own) == sorted(own) for own in taken)


def test_units_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="59 users are named for 60 examples"):
        Units(DATA, [0] * 59)
    with pytest.raises(InputError, match="most_per_user is for users"):
        Units(DATA, None, 2)
    for most in (0, -1, 1.5, True):
        with pytest.raises(InputError):
            Units(DATA, [0] * 60, most)  # type: ignore[arg-type]


Pair = namedtuple("Pair", "x y")


def test_data_of_any_shape_is_moved() -> None:
    x = torch.ones(2)
    given = {"a": x, "b": [x, (x, "text")], "c": Pair(x, 3), "d": None}
    found = move(given, torch.device("meta"))
    assert found["a"].is_meta
    assert found["b"][0].is_meta
    assert found["b"][1][0].is_meta
    assert found["b"][1][1] == "text"
    assert isinstance(found["c"], Pair)
    assert found["c"].x.is_meta
    assert found["c"].y == 3
    assert found["d"] is None


def test_a_batch_of_transformers_is_moved() -> None:
    transformers = pytest.importorskip("transformers")
    found = move(transformers.BatchEncoding({"input_ids": torch.ones(2)}), torch.device("meta"))
    assert found["input_ids"].is_meta


@pytest.mark.parametrize("sizes", [[1, 2], [1.5] * 60, [None] * 60, [float("inf")] * 60, 7, [-1] * 60])
def test_sizes_that_make_no_sense(sizes: Any) -> None:
    """Before anything is charged, which is when units are made."""

    class Odd(list[int]):
        pass

    odd = Odd(DATA)
    odd.sizes = sizes  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="must be 60 whole numbers"):
        Units(odd)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_sizes_of_any_kind(kind: Any) -> None:
    class Texts(list[int]):
        sizes = kind([x % 7 for x in DATA])

    units = Units(Texts(DATA))
    assert units.all_sizes == [x % 7 for x in DATA]
    users = Units(Texts(DATA), [place // 2 for place in range(60)], 2)
    assert users.all_sizes == [max(x % 7, y % 7) for x, y in zip(DATA[::2], DATA[1::2], strict=True)]


class Sized(list[str]):
    @property
    def sizes(self) -> list[int]:
        return [len(text) for text in self]


def test_texts_of_like_length_share_a_batch() -> None:
    texts = Sized(["a" * n for n in (9, 1, 8, 2, 7, 3, 6, 4)])
    lot = np.arange(8)
    found = list(batches(Units(texts), lot, list, CPU, rng.seeded(1), whole(2)))
    assert [[len(text) for text in batch.data] for batch in found] == [[9, 8], [7, 6], [4, 3], [2, 1]]


def test_a_user_is_as_large_as_the_longest_text() -> None:
    texts = Sized(["a", "a" * 9, "aaaa", "aaa", "aaaaa", "aa"])
    units = Units(texts, ["x", "x", "y", "y", "z", "z"], most=2)
    found = list(batches(units, np.arange(3), list, CPU, rng.seeded(1), whole(1)))
    assert [sorted(map(len, batch.data)) for batch in found] == [[1, 9], [2, 5], [3, 4]]


@pytest.mark.parametrize(("each", "tokens"), [(1, 8), (2, 8), (1, 5)])
def test_a_graph_never_has_as_many_examples_as_tokens(each: int, tokens: int) -> None:
    """Rows of a graph are told apart by their number; one more of weight 0 makes the number its own."""
    examples = [torch.full((tokens,), at) for at in range(24)]
    users = None if each == 1 else [at // each for at in range(24)]
    units = Units(examples, users, each)
    for apart in (True, False):
        lot, found = np.arange(8 // each), []
        for batch in batches(units, lot, torch.stack, CPU, rng.seeded(1), whole(8 // each), apart):
            assert len(batch.data) == len(batch.weights) == batch.units * each
            assert len(batch.data) == 8 + each * (apart and tokens == 8)
            found += batch.data[batch.weights > 0][:, 0].tolist()
        assert sorted(found) == list(range(8))


@pytest.mark.parametrize("elsewhere", ["cpu", "meta"])
def test_copies_for_a_gpu_are_the_same_numbers(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one here nothing can be pinned: plain memory stands in. Also where tensors are by default
    made elsewhere."""
    plainly, seen = torch.empty, list[Any]()

    def empty(*size: Any, pin_memory: bool, **more: Any) -> Any:
        seen.append(pin_memory)
        return plainly(*size, **more)

    ids = torch.arange(24).view(4, 6)
    kinds = [ids, ids.t(), ids[:, 2:5], ids[1, 1], ids[:0], ids > 3, ids.bfloat16(), ids + 1j]
    with torch.device(elsewhere):
        plainly(0)  # which functions this is for is remembered from the first time
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x.clone())
    with torch.device(elsewhere):
        found = [_pinned(x) for x in kinds]
    for own, x in zip(found, kinds, strict=True):
        assert torch.equal(own, x) and own.dtype == x.dtype
        assert own.numel() == 0 or own.data_ptr() != x.data_ptr(), "a copy"
    assert seen == [True] * 3, "contiguous ids, by one thread"
