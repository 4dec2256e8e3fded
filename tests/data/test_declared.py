"""Declared labels and the records: who is asked what, and what stops a run before the charge."""

from __future__ import annotations

import pytest

from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.declared import check_labels, count
from sourdine.errors import InputError


def corpus(*labels: str) -> Corpus:
    return read_corpus(
        {"note": [f"text {n}" for n in range(len(labels))], "mood": list(labels)},
        text="note",
        label="mood",
    )


MIXED = corpus(*["neg"] * 12, *["pos"] * 10, "", "")


class Owner:
    """Somebody at a terminal who always gives the same answer."""

    def __init__(self, answer: bool) -> None:
        self.answer, self.heard = answer, []

    def __call__(self, facts: str, question: str) -> bool:
        self.heard.append((facts, question))
        return self.answer


def test_the_facts_are_exact_and_name_only_what_was_declared():
    found = count(["neg", "positive"], [MIXED])
    assert (found.absent, found.others, found.missing, found.records) == (("positive",), 10, 2, 24)
    assert found.sentence == (
        "10 of 24 records have a label that was not declared, and no record has 'positive'; 2 have no label."
    )
    assert "'pos'" not in found.sentence


def test_a_script_stops_at_other_labels_and_hears_which_option_answers():
    with pytest.raises(InputError, match=r"not for release.*10 of 24.*--other-labels drop"):
        check_labels(["neg", "positive"], [MIXED])
    check_labels(["neg", "positive"], [MIXED], other_labels="drop")


def test_a_record_without_a_label_stops_nobody():
    check_labels(["neg", "pos"], [MIXED])


def test_a_declared_label_that_nobody_has_stops_nobody():
    check_labels(["neg", "pos", "mixed"], [MIXED])


def test_labels_that_nobody_declared_stop_no_script():
    check_labels(None, [MIXED])


@pytest.mark.parametrize("declared", [None, ["neg", "pos"], ["neg", "positive"]])
@pytest.mark.parametrize("option", [None, "drop"])
def test_a_terminal_is_always_asked(declared, option):
    """Also where all is well: a question that only some records raise would tell of them."""
    if declared is None and option is not None:
        pytest.skip("the option is about declared labels")
    owner = Owner(True)
    check_labels(declared, [MIXED], other_labels=option, ask=owner)
    assert len(owner.heard) == 1
    with pytest.raises(InputError, match="answered no"):
        check_labels(declared, [MIXED], other_labels=option, ask=Owner(False))


def test_a_column_of_ages_is_seen_before_it_is_paid_for():
    owner = Owner(True)
    check_labels(None, [corpus(*[str(20 + n % 12) for n in range(60)])], ask=owner)
    facts, question = owner.heard[0]
    assert "12 different values" in facts
    assert "5 of 60 records (8%)" in facts
    assert question == "Is this the column of classes?"


def test_all_parts_of_the_records_count():
    parts = [corpus(*["neg"] * 10, *["other"] * 10), corpus(*["neg"] * 12, *["pos"] * 10)]
    with pytest.raises(InputError, match="10 of 42"):
        check_labels(["neg", "other"], parts)


def test_the_option_has_one_value_and_needs_labels():
    with pytest.raises(InputError, match="other_labels"):
        check_labels(["neg", "pos"], [MIXED], other_labels="keep")
    with pytest.raises(InputError, match="declare the labels"):
        check_labels(None, [MIXED], other_labels="drop")
