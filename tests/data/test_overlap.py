"""Private records that stand in public text: found where they do, and only there."""

from __future__ import annotations

import random

from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.overlap import overlap

WORDS = [f"word{i}" for i in range(400)]


def corpus(texts: list[str]) -> Corpus:
    return read_corpus({"text": texts}, text="text", label=None, labelled=False)


def written(count: int, seed: int, length: int = 30) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=length)) for _ in range(count)]


def test_texts_of_their_own_are_let_be() -> None:
    assert not overlap(corpus(written(60, 1)), corpus(written(60, 2)))


def test_same_words_are_found_whatever_case_and_signs() -> None:
    own, public = written(40, 1), written(40, 2)
    public[7] = own[3].upper().replace(" ", " , ", 3)
    found = overlap(corpus(own), corpus(public))
    assert found.same == (3,) and not found.near and found
    assert found.sentence().startswith("1 of 40 private records have the same words")


def test_a_few_changed_words_are_near() -> None:
    own, public = written(40, 1), written(40, 2)
    changed = own[5].split()
    changed[10], changed[20] = "other", "changed"
    public[0] = " ".join(changed)
    public[1] = f"{own[9]} with some more said at the end of it and after"
    found = overlap(corpus(own), corpus(public))
    assert found.near == (5, 9) and not found.same
    mostly = own[12].split()[:9] + written(1, 9)[0].split()[:21]
    public[2] = " ".join(mostly)
    assert overlap(corpus(own), corpus(public)).near == (5, 9)


def test_what_stands_in_many_public_texts_says_nothing() -> None:
    head = "dear sir or madam i am writing to you about my account with you"
    own = [f"{head} {text}" for text in written(40, 1, length=16)]
    public = [f"{head} {text}" for text in written(80, 2, length=16)]
    assert not overlap(corpus(own), corpus(public))


def test_short_records_are_compared_whole() -> None:
    own = [*written(30, 1), "fine film", "a fine film indeed"]
    found = overlap(corpus(own), corpus([*written(30, 2), "Fine film!", "a fine film"]))
    assert found.same == (30,) and not found.near


def test_empty_records_are_nobodys() -> None:
    assert not overlap(corpus(["", *written(25, 1)]), corpus(["", *written(25, 2)]))


def test_whether_a_record_is_a_copy_depends_on_it_and_on_public_text_alone() -> None:
    """So that leaving copies out keeps neighbours neighbours."""
    own, public = written(40, 1), written(40, 2)
    changed = own[1].split()
    changed[12] = "other"
    public[4], public[5] = own[0], " ".join(changed)
    found = overlap(corpus(own), corpus(public))
    assert (found.same, found.near, found.places) == ((0,), (1,), {0, 1})
    for gone in (0, 20):
        fewer = [text for at, text in enumerate(own) if at != gone]
        again = overlap(corpus(fewer), corpus(public))
        assert {fewer[at] for at in again.places} == {own[at] for at in found.places} - {own[gone]}
