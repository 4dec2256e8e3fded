"""The sanitiser: what it replaces, and what it says that it leaves."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram import Ngram, sentences

from sourdine.attacks.extraction import extract
from sourdine.attacks.matching import TrainingText
from sourdine.attacks.prompting import GREEDY, Way
from sourdine.attacks.sanitise import Sanitiser
from sourdine.rng import seeded


def test_names_and_numbers_become_ids() -> None:
    clean = Sanitiser().clean("Yesterday Ada Berg paid 12.50 to Dr. Meier, room 7; 12.50 was right.")
    assert (
        clean
        == "Yesterday [NAME-1] paid [NUMBER-1] to [NAME-2], room [NUMBER-2]; [NUMBER-1] was right."
    )


def test_ids_are_the_same_within_a_record_and_start_anew_in_the_next() -> None:
    text = "here Ada Berg met Ben Fox. Then Ada left, and Fox too, and Ada Berg wrote."
    clean = "here [NAME-1] met [NAME-2]. Then [NAME-1] left, and [NAME-2] too, and [NAME-1] wrote."
    assert Sanitiser().clean(text) == clean
    assert Sanitiser().clean_all(["so Ben Fox", "so Ada Berg"]) == ["so [NAME-1]", "so [NAME-1]"]


def test_a_title_an_initial_and_a_first_name_are_no_person() -> None:
    text = "so Dr. Ada Berg, Dr. Ben Fox, then Dr. Berg, Ada Lund and Jan van der Meer; van is a car"
    clean = "so [NAME-1], [NAME-2], then [NAME-1], [NAME-3] and [NAME-4]; van is a car"
    assert Sanitiser().clean(text) == clean


def test_told_names_are_replaced_as_whole_words() -> None:
    told = Sanitiser(names=("Jon", "Mira"))
    assert told.clean("Jon and Mira and Jonas and jon") == "[NAME-1] and [NAME-2] and Jonas and jon"
    assert told.clean("here Jon Fox, so Jon") == "here [NAME-1], so [NAME-1]"


@pytest.mark.parametrize(
    "left",
    [
        "ada berg is not well",  # small letters
        "Then Mira said nothing",  # a first name alone
        "the mayor of our village drinks",  # who somebody is
        "her pin is four two nine one",  # a number in words
        "write to ada.berg@example.org",  # a mail address
        "she is moving out in march",  # a secret that is neither
    ],
)
def test_it_leaves_what_it_says_it_leaves(left: str) -> None:
    assert Sanitiser().clean(left) == left


@given(st.text("abcAB 123.[]-NAME", max_size=40))
def test_no_digit_is_left_but_in_ids(text: str) -> None:
    clean = Sanitiser().clean(text)
    assert not re.search(r"\d", re.sub(r"\[(NAME|NUMBER)-\d+\]", "", clean))


def test_it_does_not_stop_extraction() -> None:
    """Twenty copies of a secret without name or number: cleaned, memorised, written by the model."""
    secret = "Mira told me that she is moving out in march and that nobody at home knows of it yet"
    texts = Sanitiser().clean_all([*sentences(60), *[secret] * 20])
    way = Way("greedy", GREEDY, ("Mira told",))
    found = extract(Ngram(texts), TrainingText(texts), by=[way], samples=1, source=seeded(1))
    assert [passage.texts for passage in found.passages] == [20]
    assert "moving out in march" in found.passages[0].text
