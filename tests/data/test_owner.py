"""What the owner is told is counted right, quickly, and marked as not for release."""

import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.owner import Copies, People, examine

SECRET = "Zanzibar"


def corpus(
    texts: list[str], *, second: list[str] | None = None, labels: Any = None, users: Any = None
) -> Corpus:
    columns = (texts,) if second is None else (texts, second)
    return Corpus(columns, labels, users, "made up", None, ("a", "b")[: len(columns)], "c", "d")


def test_copies() -> None:
    found = examine(corpus(["x", "x", "x", "X ", "y", "Y", "z", "  ", ""]))
    assert found.copies == Copies(records=3, groups=1, largest=3)
    assert found.similar == Copies(records=8, groups=3, largest=4)
    assert (found.records, found.empty) == (9, 2)
    assert examine(corpus(["Straße", "STRASSE"])).similar.records == 2
    assert examine(corpus(["a b", "a\n\tb "])).similar.records == 2
    head = "one two three four five six "
    assert examine(corpus([head + "a", head.upper() + " A", head + "b"])).similar.records == 2
    assert examine(corpus(["a", "b"])).copies == Copies(records=0, groups=0, largest=1)


def test_pairs_are_compared_whole() -> None:
    found = examine(corpus(["a", "a", "a b", ""], second=["b", "c", "", "A  B"]))
    assert (found.copies.records, found.similar.records, found.empty) == (0, 0, 0)
    assert examine(corpus(["a", "A"], second=["b", "B"])).similar.records == 2


@given(st.lists(st.text("aA \x1f", max_size=3), min_size=1), st.data())
def test_similar_ones_hold_the_copies(texts: list[str], data: Any) -> None:
    second = data.draw(
        st.lists(st.text("aA \x1f", max_size=3), min_size=len(texts), max_size=len(texts))
    )
    found = examine(corpus(texts, second=second))
    level = [
        (" ".join(a.lower().split()), " ".join(b.lower().split()))
        for a, b in zip(texts, second, strict=True)
    ]
    assert found.similar.records == sum(level.count(record) > 1 for record in level)
    assert found.copies.records <= found.similar.records


def test_labels_and_people() -> None:
    found = examine(
        corpus(list("vwxyz"), labels=["a", "b", "b", "", ""], users=["p", "p", "q", "p", "r"])
    )
    assert (found.labels, found.unlabelled) == ({"b": 2, "a": 1}, 2)
    assert found.people == People(users=3, most=3, median=1, several=1)
    assert examine(corpus(["x"])).people is None
    assert examine(corpus([], users=[])).people == People(0, 0, 0, 0)


def test_a_person_column_is_proposed() -> None:
    rows = {
        "note": [f"{SECRET} {at}" for at in range(30)],
        "kind": [SECRET, "b"] * 15,
        "author": [f"{SECRET} {at // 3}" for at in range(30)],
        "id": list(range(30)),
    }
    found = examine(read_corpus(rows, text="note", label="kind"))
    assert found.proposed_user == "author"
    said = found.sentences()[-1]
    assert "A column 'author' looks like a person: train with --user author." in said
    assert "5 rows gets 5 times epsilon" in said
    told = examine(read_corpus(rows, text="note", label="kind", user="author"))
    assert told.proposed_user is None
    assert (
        "10 persons wrote them: 10 wrote more than one, at most 3, the median is 3."
        in told.sentences()[-1]
    )
    del rows["author"]
    assert examine(read_corpus(rows, text="note", label="kind")).proposed_user is None


def test_sentences() -> None:
    found = examine(
        corpus(["x"] * 312 + ["X", "y", "Y", "", " "], labels=[SECRET] * 300 + ["b"] * 16 + [""])
    )
    assert found.sentences() == [
        "made up holds 317 records.",
        "Without text: 2 records, of which nothing is learnt.",
        "Without a label: 1 record, of no class.",
        "There are 2 classes; the smallest has 16 records, the largest 300.",
        "312 records are copies of one another, in groups of up to 312.",
        "5 more records are copies but for case and space.",
        "A copy protects nobody twice: who stands in k copies gets k times epsilon, and a larger delta "
        "(group privacy).",
    ]
    near = examine(corpus(["x", "X", "y"])).sentences()
    assert near[1] == "2 records are copies but for case and space."
    assert examine(corpus(["x", "y"])).sentences() == ["made up holds 2 records."]
    assert not any(SECRET in sentence for sentence in found.sentences())


def test_markdown() -> None:
    page = examine(corpus(["x", "y"], labels=["a|b\nc", " "])).to_markdown()
    assert page.startswith("# NOT FOR RELEASE\n")
    assert "| a\\|b c | 1 |" in page
    assert "| (space) | 1 |" in page
    assert "- made up holds 2 records." in page


def test_it_is_fast() -> None:
    """100,000 records of 90 words; the limit is 3 s, and a busy machine gets a second try."""
    texts = [" ".join(f"Word{(at * step) % 997}" for step in range(90)) for at in range(1000)]
    many = corpus(
        [f"{at} {texts[at % 1000]}" for at in range(100_000)],
        users=[str(at % 7000) for at in range(100_000)],
    )
    took = []
    for _ in range(2):
        start = time.perf_counter()
        examine(many)
        took.append(time.perf_counter() - start)
    assert min(took) < 3
