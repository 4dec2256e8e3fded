"""Plain rules: what each kind looks like, and what only looks like it."""

import itertools
import time

import pytest

from sourdine.attacks.passages import KINDS, kinds, spans


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("write to ada.berg@example.org today", "ada.berg@example.org"),
        ("see https://example.org/a?b=1 and more", "https://example.org/a?b=1"),
        ("see www.example.org then", "www.example.org"),
        ("call +49 30 1234 5678 now", "+49 30 1234 5678"),
        ("call +4930123456789 now", "+4930123456789"),
        ("call 555-123-4567 now", "555-123-4567"),
        ("call (030) 123 4567 now", "(030) 123 4567"),
        ("call 030 123 4567 now", "030 123 4567"),
    ],
)
def test_contacts(text: str, found: str) -> None:
    assert [text[span.start : span.end] for span in spans(text)] == [found]
    assert kinds(text) == ("contact",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("he lives at 12 Baker Street in town", "12 Baker Street"),
        ("to 4b Old Mill Rd. please", "4b Old Mill Rd."),
        ("sie wohnt in der Hauptstraße 5 dort", "Hauptstraße 5"),
        ("send it to P.O. Box 1234 there", "P.O. Box 1234"),
    ],
)
def test_addresses(text: str, found: str) -> None:
    assert [text[span.start : span.end] for span in spans(text)] == [found]
    assert kinds(text) == ("address",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("yesterday Ada Berg went home", "Ada Berg"),
        ("Dear Ada Berg, thank you", "Ada Berg"),
        ("so Dr. Meier said", "Dr. Meier"),
        ("then Vincent van Gogh painted", "Vincent van Gogh"),
        ("and Zoë Müller-Lüdenscheidt came", "Zoë Müller-Lüdenscheidt"),
        ("met John F. Kennedy there", "John F. Kennedy"),
    ],
)
def test_names(text: str, found: str) -> None:
    assert [text[span.start : span.end] for span in spans(text)] == [found]
    assert kinds(text) == ("name",)


@pytest.mark.parametrize("text", ["account 4021 9911 0042", "born 12.5.1979", "the code is 493028"])
def test_numbers(text: str) -> None:
    assert kinds(text) == ("number",)


@pytest.mark.parametrize(
    "text",
    [
        "def area(r): return 3 * r_squared == x;",
        "const a_b = run(c); if (a_b != null) { stop(); }",
        "<div class='x'>{{ user_name }}</div>",
        "SELECT user_id FROM users WHERE f(x) == 1;",
    ],
)
def test_code(text: str) -> None:
    assert "code" in kinds(text)


@pytest.mark.parametrize(
    "text",
    [
        "nothing to see here",
        "The Hague is fine",
        "there were 12 of them; in all (we think) 30",
        "ada and ben went home",
        "über alles war gut",
        "",
    ],
)
def test_the_rest(text: str) -> None:
    assert kinds(text) == ("other",)


def test_a_passage_may_have_several_kinds_in_a_fixed_order() -> None:
    text = "Ada Berg, 12 Baker Street, ada@example.org, account 4021 9911"
    assert kinds(text) == ("contact", "address", "name", "number")
    assert set(kinds(text)) < set(KINDS)


def test_spans_do_not_overlap() -> None:
    text = "Ada Berg of 12 Baker Street, +49 30 1234 5678, wrote 4021 to Ben Fox at b@x.org " * 3
    found = spans(text)
    assert len(found) == 18
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("sign", ["a", "1", "1 ", "Ab ", "x(", "a.", "<a ", "+1", "Ab van "])
def test_long_texts_take_no_long_time(sign: str) -> None:
    start = time.perf_counter()
    kinds(sign * (20_000 // len(sign)) + "@")
    assert time.perf_counter() - start < 2
