"""The index against brute force: no match is missed, none is made up, every holder is counted."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram import sentences

from sourdine.attacks import matching
from sourdine.attacks.matching import TrainingText, characters, words
from sourdine.errors import InputError

few = st.text("ab ", max_size=14)  # few signs, so that there are many matches


def longest(sample: str, texts: list[str]) -> int:
    """The length of the longest common stretch that has no space at its ends, by trying all."""
    plain = [characters(text) for text in texts]
    cut = characters(sample)
    stretches = {cut[a:b] for a in range(len(cut)) for b in range(a + 1, len(cut) + 1)}
    return max(
        (len(s) for s in stretches if s == s.strip() and any(s in text for text in plain)), default=0
    )


@settings(max_examples=300)
@given(few, st.lists(few, max_size=6), st.integers(1, 7))
def test_the_longest_match_is_that_of_brute_force(sample: str, texts: list[str], least: int) -> None:
    index = TrainingText(texts, least=least)
    found, size = index.longest(sample), longest(sample, texts)
    assert (found is None) == (size < least)
    if found is not None:
        assert len(found) == size and found in characters(sample)
        held = [text for text in texts if found in characters(text)]
        assert index.holders(found).texts == len(held) > 0


@settings(max_examples=200)
@given(few, st.lists(few, max_size=6), st.integers(1, 4))
def test_the_same_by_words(sample: str, texts: list[str], least: int) -> None:
    index = TrainingText(texts, least=least, by=words)
    cut = sample.split()
    runs = [f" {' '.join(cut[a:b])} " for a in range(len(cut)) for b in range(a + least, len(cut) + 1)]
    met = [run for run in runs if any(run in f" {' '.join(text.split())} " for text in texts)]
    found = index.longest(sample)
    assert (found is None) == (not met)
    if found is not None:
        assert len(found.split()) == max(len(run.split()) for run in met)


@pytest.mark.parametrize("further", [0, 1])
def test_blocks_further_apart_would_miss_matches(further: int) -> None:
    """The twin of what stands above: with blocks one unit too far apart some matches are lost."""
    rng, missed = random.Random(0), 0
    for _ in range(100):
        text = "".join(rng.choice("abcdefgh") for _ in range(60))
        start = rng.randrange(40)
        index = TrainingText([text], least=12)
        index._step += further
        index._place_blocks()
        missed += index.longest(f"#{text[start : start + 12]}#") is None
    assert (missed > 0) == (further > 0)


def test_hashes_only_propose(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that is the same for everything all is found as before, only slower."""
    plain = matching._hashed
    monkeypatch.setattr(matching, "_hashed", lambda *given: 0 * plain(*given))
    index = TrainingText(["one two three four", "five two three six"], least=6)
    assert index.longest("a two three b") == "two three"
    assert index.longest("a two trees b") is None
    assert index.holders("two three").texts == 2 and index.holders("two three f").texts == 1


def test_persons_are_counted_once() -> None:
    passage = "my door code is four two nine"
    texts = [f"{tag} {passage} end" for tag in ("a", "b", "c")] + ["nothing of it at all, really"]
    index = TrainingText(texts, ["ada", "ada", "ben", "cleo"], least=20)
    held = index.holders(passage)
    assert (held.texts, held.persons) == (3, 2)
    assert TrainingText(texts, least=20).holders(passage).persons is None
    twice = TrainingText([f"{passage} and {passage}"], least=20).holders(passage)
    assert twice.texts == 1


def test_no_match_crosses_the_end_of_a_text() -> None:
    index = TrainingText(["one two three", "four five six"], least=8)
    assert index.longest("two three four five") == "two three"
    assert index.longest("three four") is None
    assert TrainingText([], least=3).longest("anything") is None


def test_white_space_is_level_and_odd_signs_are_signs() -> None:
    index = TrainingText(["so\n  far,   so  good \ud800 ☃ 🦊"], least=10)
    assert index.longest("far, so\tgood \ud800 ☃ 🦊!") == "far, so good \ud800 ☃ 🦊"


def test_questions_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="2 persons stand beside 1 texts"):
        TrainingText(["a"], ["x", "y"])
    with pytest.raises(InputError, match="least is 0"):
        TrainingText(["a"], least=0)
    with pytest.raises(InputError, match="50 is the least"):
        TrainingText(["a"]).holders("a")


@pytest.mark.parametrize("pairs", [100, 100_000])
def test_what_stands_everywhere_is_searched_in_time(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A footer in 5,000 texts: found, counted in full, and no sample takes long."""
    monkeypatch.setattr(matching, "_PAIRS", pairs)
    footer = "this message is confidential and meant for its recipient only, thank you"
    texts = [f"{text} {footer}" for text in sentences(5000)]
    index = TrainingText(texts)
    start = time.perf_counter()
    assert index.longest(f"x {footer} x") == footer
    assert index.holders(footer).texts == 5000
    assert time.perf_counter() - start < 2
    assert index.longest(texts[77]) is not None
