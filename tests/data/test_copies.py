"""Private records that stand in public texts: who is asked, what stops, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sourdine.data.copies import check_copies, refuse_same_table
from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.overlap import overlap
from sourdine.errors import InputError


def corpus(prefix: str, *more: str) -> Corpus:
    notes = [f"{prefix} text number {n}" for n in range(24)] + list(more)
    kinds = ["yes" if n % 2 else "no" for n in range(len(notes))]
    return read_corpus({"note": notes, "kind": kinds}, text="note", label="kind")


OWN, OTHERS = corpus("own"), corpus("public")
MIXED, TESTS = corpus("public", "Own text, number 3!"), corpus("test", "own text number 5")


class Owner:
    """Somebody at a terminal who always gives the same answer."""

    def __init__(self, answer: bool) -> None:
        self.answer, self.heard = answer, []

    def __call__(self, facts: str, question: str) -> bool:
        self.heard.append((facts, question))
        return self.answer


def test_a_script_stops_at_copies_and_hears_which_option_answers() -> None:
    with pytest.raises(InputError, match=r"not for release.*1 of 24.*--leave-out-copies") as stopped:
        check_copies(OWN, [MIXED])
    assert "number 3" not in str(stopped.value)
    assert check_copies(OWN, [MIXED], leave_out=True).places == {3}
    assert not check_copies(OWN, [OTHERS])


def test_all_public_tables_count() -> None:
    assert check_copies(OWN, [MIXED, TESTS], leave_out=True).places == {3, 5}
    assert overlap(OWN, MIXED, TESTS).same == (3, 5)


@pytest.mark.parametrize("public", [OTHERS, MIXED])
@pytest.mark.parametrize("option", [False, True])
def test_a_terminal_is_always_asked_the_same(public: Corpus, option: bool) -> None:
    """A question that only some records raise would tell of them."""
    owner = Owner(True)
    check_copies(OWN, [public], leave_out=option, ask=owner)
    [(facts, question)] = owner.heard
    assert "of 24 private records have the same words" in facts
    assert question == "Go on, with such records left out?"
    with pytest.raises(InputError, match="answered no, so nothing was charged"):
        check_copies(OWN, [public], leave_out=option, ask=Owner(False))


def test_a_record_that_is_left_out_is_empty_and_moves_nobody() -> None:
    left = OWN.emptied({3, 5})
    assert len(left) == len(OWN) and left.labels is not None and OWN.labels is not None
    assert [at for at, text in enumerate(left.texts[0]) if not text] == [3, 5]
    assert [at for at, label in enumerate(left.labels) if not label] == [3, 5]
    assert left.texts[0][4] == OWN.texts[0][4] and left.labels[4] == OWN.labels[4]
    assert OWN.emptied({3}, labels=False).labels == OWN.labels
    assert OWN.texts[0][3]  # the corpus itself stays


def test_a_table_is_not_private_and_public_at_once(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("note\nx\n", encoding="utf-8")
    (tmp_path / "again.csv").symlink_to(path)
    for other in (str(path), path, tmp_path / "again.csv"):
        with pytest.raises(InputError, match="--test names the table of private records itself"):
            refuse_same_table(str(path), other, "--test")
    frame = {"note": ["x"]}
    with pytest.raises(InputError, match="itself"):
        refuse_same_table(frame, frame, "--test")
    refuse_same_table(str(path), None, "--test")
    refuse_same_table(str(path), str(tmp_path / "missing.csv"), "--test")
    refuse_same_table(OWN.take(range(10)), OWN.take(range(10, 20)), "--test")
