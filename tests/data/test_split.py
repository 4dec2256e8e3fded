"""One unit lies in one part, and nobody else's part depends on it."""

import hashlib
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.data.corpus import Corpus
from sourdine.data.split import WHOLE, _ends, partition, split
from sourdine.errors import InputError

SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
RECORDS = st.lists(
    st.tuples(TEXTS, TEXTS, st.sampled_from("ab"), st.sampled_from("uvwxyz")), min_size=1
)
Record = tuple[str, str, str, str]


def corpus(records: list[Record], *, users: bool) -> Corpus:
    first, second, labels, names = (list(column) for column in zip(*records, strict=True))
    owners = names if users else None
    return Corpus((first, second), labels, owners, "made up", None, ("a", "b"), "c", "d")


def parts(records: list[Record], users: bool) -> dict[int, str]:
    found = split(corpus(records, users=users), SHARES)
    assert list(found) == list(SHARES)
    where = {index: name for name, indices in found.items() for index in indices}
    assert sorted(where) == list(range(len(records)))
    assert sum(map(len, found.values())) == len(records)
    assert all(indices == sorted(indices) for indices in found.values())
    return where


def shards(records: list[Record], users: bool) -> dict[int, int]:
    found = partition(corpus(records, users=users), 7)
    where = {index: at for at, indices in enumerate(found) for index in indices}
    assert sorted(where) == list(range(len(records)))
    return where


@given(RECORDS, st.data(), st.booleans(), st.sampled_from([parts, shards]))
def test_a_unit_that_goes_moves_nobody(records: list[Record], data: Any, users: bool, cut: Any) -> None:
    if len(records) == 1:
        return
    gone = data.draw(st.integers(0, len(records) - 1))
    assert not moved(cut, records, users, gone)


def moved(cut: Any, records: list[Record], users: bool, gone: int) -> bool:
    """Whether somebody else lies elsewhere once one unit is gone."""
    before, after = cut(records, users), cut(records[:gone] + records[gone + 1 :], users)
    del before[gone]
    return [before[index] for index in sorted(before)] != [after[index] for index in sorted(after)]


def test_a_split_by_place_is_caught() -> None:
    """The twin: what most libraries do, a random order of the rows cut at 70%."""

    def by_place(records: list[Record], users: bool) -> dict[int, bool]:
        order = Random(0).sample(range(len(records)), len(records))
        return {index: place < 0.7 * len(records) for place, index in enumerate(order)}

    records = [(str(at), "", "a", str(at)) for at in range(30)]
    assert moved(by_place, records, False, 3)
    assert not moved(parts, records, False, 3)


@given(RECORDS, st.data(), st.booleans(), st.sampled_from([parts, shards]))
def test_a_unit_that_changes_moves_nobody(
    records: list[Record], data: Any, users: bool, cut: Any
) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    changed = [*records[:at], data.draw(RECORDS)[0], *records[at + 1 :]]
    before, after = cut(records, users), cut(changed, users)
    assert all(before[index] == after[index] for index in before if index != at)


@given(RECORDS, st.randoms(use_true_random=False), st.booleans())
def test_order_and_label_do_not_matter(records: list[Record], random: Any, users: bool) -> None:
    mixed = list(range(len(records)))
    random.shuffle(mixed)
    other = [(*records[at][:2], random.choice("ab"), records[at][3]) for at in mixed]
    before, after = parts(records, users), parts(other, users)
    assert all(before[at] == after[place] for place, at in enumerate(mixed))


@given(RECORDS)
def test_copies_and_persons_stay_together(records: list[Record]) -> None:
    for users, unit in ((False, slice(0, 2)), (True, slice(3, 4))):
        for cut in (parts, shards):
            where: dict[Any, Any] = {}
            for index, place in cut(records, users).items():
                assert where.setdefault(records[index][unit], place) == place


def many(count: int = 20_000) -> Corpus:
    return Corpus(([f"text {at}" for at in range(count)],), None, None, "made up", None, ("a",))


def test_shares_are_kept() -> None:
    # Six standard deviations: a false alarm has probability 2e-9.
    for name, share in SHARES.items():
        expected, spread = 20_000 * share, (20_000 * share * (1 - share)) ** 0.5
        assert abs(len(split(many(), SHARES)[name]) - expected) < 6 * spread
    sizes = [len(shard) for shard in partition(many(), 10)]
    assert all(abs(size - 2_000) < 6 * (20_000 * 0.1 * 0.9) ** 0.5 for size in sizes)


def test_shards_of_a_part_are_even() -> None:
    """With the salt of the split, the shards of its last tenth would be empty but for one."""
    part = many().take(split(many(), {"rest": 0.9, "held out": 0.1})["held out"])
    sizes = [len(shard) for shard in partition(part, 4)]
    assert min(sizes) > len(part) / 4 - 6 * (len(part) * 3 / 16) ** 0.5
    same = [len(shard) for shard in partition(part, 4, salt="sourdine split 1")]
    assert same[:3] == [0, 0, 0]


def test_the_same_for_ever() -> None:
    """Golden: the formula at the top of split.py written out again, and what it gave in 2026."""
    records = [("one", "1"), ("two", "2"), ("three", "3"), ("", ""), ("ein Wort", "é")]
    firsts, seconds = (list(column) for column in zip(*records, strict=True))
    pair = Corpus((firsts, seconds), None, None, "made up", None, ("a", "b"))
    person = Corpus((firsts,), None, seconds, "made up", None, ("a",), None, "b")
    framed = lambda text: len(text.encode()).to_bytes(8, "big") + text.encode()  # noqa: E731
    for made, kind, units in ((pair, "record", records), (person, "user", [(s,) for s in seconds])):
        shares = {"a": 0.5, "b": 0.25, "c": 0.25}
        where = {index: name for name, found in split(made, shares).items() for index in found}
        for index, unit in enumerate(units):
            content = b"".join(map(framed, ("sourdine split 1", kind, *unit)))
            place = int(hashlib.sha256(content).hexdigest(), 16) / 2**256
            assert where[index] == ("a" if place < 0.5 else "b" if place < 0.75 else "c")
    assert split(many(12), SHARES) == GOLDEN_SPLIT
    assert partition(many(12), 3) == GOLDEN_PARTITION


GOLDEN_SPLIT = {"train": [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11], "dev": [], "test": [8]}
GOLDEN_PARTITION = [[6, 10], [2, 3, 4, 5, 9, 11], [0, 1, 7, 8]]


def test_another_salt_is_another_split() -> None:
    usual, other = split(many(), SHARES), split(many(), SHARES, salt="again")
    both = Counter(set(usual["test"]) & set(other["test"])).total()
    assert abs(both - 20_000 * 0.04) < 6 * (20_000 * 0.04 * 0.96) ** 0.5


def test_texts_are_told_apart_by_their_ends() -> None:
    """Without lengths in the hash, every pair here would lie in one part."""
    pairs = [("x" * at, "x" * (64 - at), "a", "u") for at in range(65)]
    assert len(set(parts(pairs, False).values())) > 1


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({}, "a share for each part"),
        ([0.5, 0.5], "a share for each part"),
        ({"a": 0.5, "b": 0.4}, "add up to 0.9"),
        ({"a": 1.5, "b": -0.5}, "above zero"),
        ({"a": 1, "b": 0}, "above zero"),
        ({"a": "1"}, "must be a number"),
        ({"a": float("nan")}, "finite"),
    ],
)
def test_bad_shares(shares: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split(many(3), shares)


def test_bad_count_and_salt() -> None:
    for count in (0, 1.5, True):
        with pytest.raises(InputError, match="count"):
            partition(many(3), count)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="salt"):
        split(many(3), SHARES, salt=3)  # type: ignore[arg-type]


def test_floats_that_do_not_add_up_to_one_exactly() -> None:
    tenths = {str(at): 0.1 for at in range(10)}
    assert sum(tenths.values()) != 1
    assert list(_ends(tenths).values())[-1] == WHOLE
    assert sum(map(len, split(many(), tenths).values())) == 20_000
    assert split(many(5), {"all": 1}) == {"all": [0, 1, 2, 3, 4]}
