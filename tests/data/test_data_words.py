"""The rule for words, and that one person moves at most `most` counts."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.data import words as module
from sourdine.data.words import persons_by_word, words
from sourdine.errors import InputError

# Letters, signs and marks that make words touch, join and fold.
SIGNS = "aAbB1 _'’-=é\u0301ßİK中\u0338\n\x03ह\u093f"
TEXTS = st.text(SIGNS, max_size=12) | st.text(max_size=12)
PEOPLE = st.lists(st.tuples(st.integers(0, 4), TEXTS), max_size=12)
VOCABULARIES = st.none() | st.just(["a", "b", "ab", "é", "1", "a'b"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Good, GOOD good!", ["good", "good", "good"]),
        ("don't Don’t", ["don't", "don't"]),
        ("'tis the dogs' 'day'", ["tis", "the", "dogs", "day"]),
        ("rock''n'roll", ["rock", "n'roll"]),
        ("snake_case x-ray 3.5", ["snake", "case", "x", "ray", "3", "5"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("caf\u00e9 cafe\u0301", ["caf\u00e9", "caf\u00e9"]),
        ("İstanbul", ["i\u0307stanbul"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("今日 は", ["今日", "は"]),
        ("a\u0338=\u0338b", ["a\u0338", "b"]),
    ],
)
def test_the_rule(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    assert persons_by_word([text], None, None, 99) == dict.fromkeys(sorted(set(expected)), 1)


def slowly(
    texts: list[str], owners: list[int], vocabulary: list[str] | None, most: int
) -> dict[str, int]:
    """The same by the definition."""
    used: dict[int, dict[str, None]] = {}
    for owner, text in zip(owners, texts, strict=True):
        mine = used.setdefault(owner, {})
        for word in words(text):
            if len(mine) < most and (vocabulary is None or word in vocabulary):
                mine[word] = None
    counts = Counter(word for mine in used.values() for word in mine)
    return {word: counts[word] for word in (vocabulary or sorted(counts))}


def counted(people: list[tuple[int, str]], vocabulary: list[str] | None, most: int) -> dict[str, int]:
    owners = np.array([owner for owner, _ in people], dtype=np.int64)
    return persons_by_word([text for _, text in people], owners, vocabulary, most)


@given(PEOPLE, VOCABULARIES, st.integers(1, 4))
def test_it_does_what_its_definition_says(
    people: list[tuple[int, str]], vocabulary: list[str] | None, most: int
) -> None:
    texts = [text for _, text in people]
    owners = [owner for owner, _ in people]
    result = counted(people, vocabulary, most)
    assert result == slowly(texts, owners, vocabulary, most)
    assert list(result) == (vocabulary or sorted(result, key=str.encode))
    alone = persons_by_word(texts, None, vocabulary, most)
    assert alone == slowly(texts, list(range(len(texts))), vocabulary, most)


def moved(one: dict[str, int], other: dict[str, int]) -> list[int]:
    """By how much each count differs, where it does."""
    changes = (abs(one.get(word, 0) - other.get(word, 0)) for word in {*one, *other})
    return [change for change in changes if change]


@given(PEOPLE, VOCABULARIES, st.integers(1, 4), st.integers(0, 4))
def test_removing_a_person(
    people: list[tuple[int, str]], vocabulary: list[str] | None, most: int, gone: int
) -> None:
    rest = [row for row in people if row[0] != gone]
    changes = moved(counted(people, vocabulary, most), counted(rest, vocabulary, most))
    assert len(changes) <= most
    assert set(changes) <= {1}


@given(PEOPLE, st.lists(TEXTS, max_size=5), VOCABULARIES, st.integers(1, 4), st.data())
def test_replacing_a_person(
    people: list[tuple[int, str]],
    texts: list[str],
    vocabulary: list[str] | None,
    most: int,
    data: st.DataObject,
) -> None:
    others = [row for row in people if row[0] != 0]
    # The new texts stand anywhere among those of the others.
    replaced = list(others)
    for text in texts:
        replaced.insert(data.draw(st.integers(0, len(replaced))), (0, text))
    changes = moved(counted(people, vocabulary, most), counted(replaced, vocabulary, most))
    assert len(changes) <= 2 * most
    assert set(changes) <= {1}


def test_the_bound_is_reached() -> None:
    people = [(1, "a b c d"), (2, "a b")]
    assert moved(counted(people, None, 3), counted(people[1:], None, 3)) == [1, 1, 1]
    assert len(moved(counted(people, None, 3), counted([(1, "x y z"), (2, "a b")], None, 3))) == 6


def test_without_the_bound_a_person_moves_more() -> None:
    """The twin: the check above does catch a count that is not bounded."""
    people = [(1, "a b c d"), (2, "a b")]
    assert len(moved(counted(people, None, 4), counted(people[1:], None, 4))) > 3


def test_the_first_words_count() -> None:
    people = [(1, "red green"), (2, "blue"), (1, "green blue red"), (1, "white")]
    assert counted(people, None, 3) == {"blue": 2, "green": 1, "red": 1}
    assert counted(people, ["WHITE", "Blue", "red", "grey"], 2) == {
        "white": 0,
        "blue": 2,
        "red": 1,
        "grey": 0,
    }


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"w{at} don't é{at % 3} 'x" for at in range(50)]
    owners = np.arange(50) % 7
    expected = [persons_by_word(texts, None, None, 3), persons_by_word(texts, owners, None, 9)]
    monkeypatch.setattr(module, "BLOCK", 4)
    assert [persons_by_word(texts, None, None, 3), persons_by_word(texts, owners, None, 9)] == expected


def test_arrow_columns() -> None:
    for column in (
        pa.array(["a b", None]),
        pa.chunked_array([["a"], ["b a"]]),
        pa.array(["x", "a b"], pa.large_string()).slice(1),
    ):
        assert persons_by_word(column, None, ["a"], 1)["a"] == 1 + isinstance(column, pa.ChunkedArray)
    assert persons_by_word([], None, ["a"], 1) == {"a": 0}
    assert persons_by_word([], np.array([], dtype=int), None, 1) == {}


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ([], "list of words"),
        ("good", "list of words"),
        (5, "list of words"),
        (["good", "ice cream"], "'ice cream' in the vocabulary is not one word"),
        (["c++"], "not one word"),
        (["snake_case"], "not one word"),
        ([""], "not one word"),
        (["'tis"], "not one word"),
        ([3], "not one word"),
        (["Good", "good"], "'Good' and 'good' in the vocabulary are the same word"),
        (["don't", "don’t"], "the same word"),
    ],
)
def test_vocabularies_that_cannot_be_used(vocabulary: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        persons_by_word(["a"], None, vocabulary, 1)


def test_other_input_that_cannot_be_used() -> None:
    for most in (0, -1, 1.5, True, "2"):
        with pytest.raises(InputError, match="most is"):
            persons_by_word(["a"], None, None, most)  # type: ignore[arg-type]
    for owners in (np.array([1, 2]), np.array([1.0]), np.array([[1]]), ["x"]):
        with pytest.raises(InputError, match="one whole number for each text"):
            persons_by_word(["a"], owners, None, 1)  # type: ignore[arg-type]
    for texts in ([1], pa.array([[1]]), ["\ud800"], pa.array([b"\xff"]).view(pa.string()), 5):
        with pytest.raises(InputError, match="column of text") as caught:
            persons_by_word(texts, None, None, 1)
        assert caught.value.__context__ is None
