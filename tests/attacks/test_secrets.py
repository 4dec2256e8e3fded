"""Formats, the secrets drawn for them, and where they are put."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sourdine.attacks.secrets import Canary, Format, draw, plant
from sourdine.attacks.target import Record
from sourdine.errors import InputError
from sourdine.rng import seeded

FALSE_ALARM = 1e-6
RECORDS = [Record((f"text {place}",), user=f"person {place % 3}") for place in range(10)]


def test_a_format_counts_and_lists_its_candidates() -> None:
    form = Format("the pin of Ada is {digits:2} {letters:1}, keep it")
    every = list(form.candidates())
    expected = [
        f"the pin of Ada is {a}{b} {c}, keep it"
        for a, b, c in itertools.product("0123456789", "0123456789", "abcdefghijklmnopqrstuvwxyz")
    ]
    assert every == expected and form.size == 2600
    assert form.prompt == "the pin of Ada is" and form.signs(27) == "01b"
    canary = Canary(form, 27, 1, "canary-0")
    assert (canary.text, canary.secret) == ("the pin of Ada is 01 b, keep it", "01b")
    assert canary.ending == "01 b"


@given(st.integers(0, 10**6 * 26**2 - 1))
def test_no_two_numbers_give_the_same_text(number: int) -> None:
    form = Format("{letters:1}-{digits:6}{letters:1}")
    signs = form.signs(number)
    back = (ord(signs[0]) - 97) * 26 * 10**6 + int(signs[1:7]) * 26 + ord(signs[7]) - 97
    assert back == number and form.fill(number) == f"{signs[0]}-{signs[1:]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing secret", "no hole for a secret; add one"),
        ("the code is {digit:6}", "which is none; write"),
        ("the code is {digits}", "which is none"),
        ("the code is {digits:0}", "1 to 64 signs"),
        ("the code is {digits:65}", "1 to 64 signs"),
        ("the code of {name} is {digits:6}", "has the hole {name:}"),
    ],
)
def test_formats_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Format(text)


def test_numbers_past_the_last_candidate() -> None:
    with pytest.raises(InputError, match="10 candidates"):
        Format("{digits:1}").fill(10)


def test_others_are_different_and_never_the_secret() -> None:
    form = Format("{digits:2}")
    for count in (0, 1, 50, 98, 99, 1000):
        found = form.others(42, count, seeded(count))
        assert len(found) == len(set(found)) == min(count, 99) and "42" not in found
    assert set(form.others(0, 99)) == {f"{n:02}" for n in range(1, 100)}


def test_others_and_secrets_are_uniform() -> None:
    """Chi-square over ten candidates; each of the two fails falsely with probability 1e-6."""
    form, source = Format("{digits:1}"), seeded(9)
    met = [int(text) for _ in range(2000) for text in form.others(9, 3, source)]
    counts = [met.count(n) for n in range(9)]
    assert stats.chisquare(counts).pvalue > FALSE_ALARM  # dependent draws only even them out
    drawn = [draw([form], (1,), source)[0].number for _ in range(3000)]
    assert stats.chisquare([drawn.count(n) for n in range(10)]).pvalue > FALSE_ALARM
    # Twin: a draw that leaves out one digit in ten would be seen.
    assert stats.chisquare([drawn.count(n) for n in range(9)] + [0]).pvalue < FALSE_ALARM


def test_repetitions_are_taken_in_turn_and_secrets_are_fresh() -> None:
    texts = [f"the code of {name} is {{digits:6}}" for name in ("Ada", "Ben", "Cleo", "Dan")]
    canaries = draw(texts, (1, 10, 50))
    assert [canary.repetitions for canary in canaries] == [1, 10, 50, 1]
    assert len({canary.user for canary in canaries}) == 4
    # Four secrets of six digits are the same in two secure draws with probability 1e-24.
    assert [c.number for c in canaries] != [c.number for c in draw(texts)]
    assert draw(texts, source=seeded(1)) == draw(texts, source=seeded(1))


def test_one_format_gives_as_many_secrets_as_it_has() -> None:
    form = Format("{digits:1}")
    assert sorted(canary.number for canary in draw([form] * 10)) == list(range(10))
    with pytest.raises(InputError, match="asked for 11 secrets but has 10"):
        draw([form] * 11)
    with pytest.raises(InputError, match="repetitions is empty"):
        draw([form], ())
    with pytest.raises(InputError, match="repetitions is 0"):
        draw([form], (0,))


def test_planting_keeps_all_records_in_their_order() -> None:
    canaries = draw(["code {digits:4}", "word {letters:4}"], (3, 7), seeded(1))
    found = plant(RECORDS, canaries, seeded(2))
    assert [record for record in found if record in RECORDS] == RECORDS
    for canary in canaries:
        copies = [record for record in found if record.user == canary.user]
        assert len(copies) == canary.repetitions
        assert {copy.texts for copy in copies} == {(canary.text,)}
    assert len(found) == 20 and found != plant(RECORDS, canaries, seeded(3))


def test_every_place_is_as_likely() -> None:
    """Where the one copy among nine records stands, over 3,000 plantings; false alarm 1e-6."""
    canaries, source = draw(["{digits:4}"], (1,)), seeded(4)
    places = [
        [record.user for record in plant(RECORDS[:9], canaries, source)].index("canary-0")
        for _ in range(3000)
    ]
    assert stats.chisquare([places.count(n) for n in range(10)]).pvalue > FALSE_ALARM


def test_canaries_have_a_person_only_where_others_have() -> None:
    canaries = draw(["{digits:4}"], (2,))
    found = plant([Record(("a",)), Record(("b",))], canaries)
    assert {record.user for record in found} == {None}
    with pytest.raises(InputError, match="plant canaries only once"):
        plant(plant(RECORDS, canaries), canaries)
    with pytest.raises(InputError, match="single texts"):
        plant([Record(("a", "b"))], canaries)
