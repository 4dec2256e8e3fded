"""A corpus is checked whole at load, and no message quotes a record."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sourdine.data.columns import like_persons
from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.fingerprint import fingerprint
from sourdine.data.tables import read
from sourdine.errors import InputError

SECRET = "Zanzibar"
N = 24


def rows(**changes: Any) -> dict[str, list[Any]]:
    plain: dict[str, list[Any]] = {
        "note": [f"{SECRET} says a long sentence, number {at}" for at in range(N)],
        "reply": [f"and {SECRET} answers {at}" for at in range(N)],
        "label": ["calm" if at % 3 else SECRET for at in range(N)],
        "author": [f"{SECRET} {at // 2}" for at in range(N)],
    }
    return plain | changes


def refusal(source: Any, **options: Any) -> str:
    wanted = {"text": "note", "label": "label"} | options
    with pytest.raises(InputError) as caught:
        read_corpus(source, **wanted)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_texts_labels_and_users() -> None:
    plain = rows()
    corpus = read_corpus(plain, text="note", label="label", user="author")
    assert corpus.texts == (plain["note"],)
    assert (corpus.labels, corpus.users) == (plain["label"], plain["author"])
    assert (corpus.text, corpus.label, corpus.user) == (("note",), "label", "author")
    assert len(corpus) == N
    pair = read_corpus(plain, text=["note", "reply"], label="label")
    assert pair.texts == (plain["note"], plain["reply"])
    assert pair.users is None
    alone = read_corpus(plain, text="note", label=None, labelled=False)
    assert alone.labels is None


def test_files(tmp_path: Path) -> None:
    frame = pd.DataFrame(rows())
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "t.json", orient="records")
    frame.to_parquet(tmp_path / "t.parquet")
    expected = read_corpus(frame, text=["note", "reply"], label="label", user="author")
    for path in tmp_path.iterdir():
        corpus = read_corpus(path, text=["note", "reply"], label="label", user="author")
        assert (corpus.texts, corpus.labels, corpus.users) == (
            expected.texts,
            expected.labels,
            expected.users,
        )
        assert (corpus.path, corpus.name) == (path, path.name)
        assert fingerprint(corpus.table()) == fingerprint(expected.table())


LABELS: dict[str, tuple[Any, list[str]]] = {
    "whole": ([0, 1] * 12, ["0", "1"]),
    "stars": ([4.5, 1.0] * 12, ["4.5", "1"]),
    "small floats": (np.array([4.1, 2] * 12, dtype=np.float32), ["4.1", "2"]),
    "truth": ([True, False] * 12, ["true", "false"]),
    "gaps": ([1.0, None] + [0.0, 1.0] * 11, ["1", ""]),
    "codes": (["01", "1"] * 12, ["01", "1"]),
    "categories": (pd.Categorical([3, 1] * 12), ["3", "1"]),
    "infinite": ([float("inf"), 1.0] * 12, ["inf", "1"]),
}


@pytest.mark.parametrize(("given", "first"), LABELS.values(), ids=LABELS)
def test_labels_are_text(given: Any, first: list[str]) -> None:
    corpus = read_corpus(pd.DataFrame(rows(label=given)), text="note", label="label")
    assert corpus.labels is not None
    assert corpus.labels[:2] == first
    assert all(isinstance(label, str) for label in corpus.labels)


def test_labels_of_a_csv_stay_as_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    cells = ["1.0", "1", "NA", ""] * 6
    path.write_text("note,label\n" + "".join(f"n{at},{cell}\n" for at, cell in enumerate(cells)))
    assert read_corpus(path, text="note", label="label").labels == cells


def test_numbers_never_become_one() -> None:
    near = [0.1, np.nextafter(0.1, 1)] * 12
    corpus = read_corpus(rows(label=near), text="note", label="label")
    assert len(set(corpus.labels or [])) == 2


def test_what_is_refused() -> None:
    few = {name: cells[:19] for name, cells in rows().items()}
    assert "holds 19 records" in refusal(few)
    assert "no label at all" in refusal(rows(label=[""] * N))
    assert "column 'note' of a dict of columns is empty in every row" in refusal(rows(note=[" \n"] * N))
    assert "column 'reply'" in refusal(rows(reply=[None] * N), text=["note", "reply"])
    assert "names nobody" in refusal(rows(author=[" ", ""] * 12), user="author")
    assert "no column 'nte' in a dict of columns; did you mean 'note'" in refusal(rows(), text="nte")
    assert "tells who is who" in refusal(rows(author=[0.5] * N), user="author")


MANY = {name: cells * 90 for name, cells in rows().items()}
TOLD = {
    "only one class": rows(label=[SECRET] * N),
    "holds only one class": rows(label=[SECRET, ""] * 12),
    "13 different values in 24 rows": rows(label=[SECRET * min(at, 12) + "." for at in range(N)]),
    "1,001 different values": MANY | {"label": [str(at % 1001) for at in range(N * 90)]},
}


@pytest.mark.parametrize(("said", "given"), TOLD.items(), ids=TOLD)
def test_what_one_record_may_decide_is_told_and_decides_nothing(
    said: str, given: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(read_corpus(given, text="note", label="label")) == len(given["note"])
    heard = capsys.readouterr().err
    assert said in heard and heard.startswith("sourdine (for you only, not for release): ")
    assert SECRET not in heard


def test_a_record_that_names_nobody_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = read_corpus(
        rows(author=["a", " "] + ["b"] * (N - 2)), text="note", label="label", user="author"
    )
    assert (corpus.texts[0][1], (corpus.labels or [])[1]) == ("", "")
    assert all(corpus.texts[0][:1] + corpus.texts[0][2:])
    assert "1 record without a person" in capsys.readouterr().err


def test_the_bounds_are_met_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    twenty = {name: cells[:20] for name, cells in rows().items()}
    assert len(read_corpus(twenty, text="note", label="label")) == 20
    half = rows(label=[str(min(at, 11)) for at in range(N)])
    assert len(set(read_corpus(half, text="note", label="label").labels or [])) == 12
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "named",
    [
        {"text": ["note", "note"]},
        {"label": "note"},
        {"user": "note"},
        {"user": "label"},
        {"text": ["note", "label"]},
    ],
)
def test_a_column_named_twice(named: dict[str, Any]) -> None:
    assert "is named twice" in refusal(rows(), **named)


@pytest.mark.parametrize("text", [[], ["a", "b", "c"], 3, [3]])
def test_text_is_one_column_or_two(text: Any) -> None:
    assert "text must name one column, or two" in refusal(rows(), text=text)


def test_proposals(tmp_path: Path) -> None:
    for wanted in ({"text": None}, {"label": None}, {"text": None, "label": None}):
        said = refusal(rows(), **wanted)
        assert "'note', 'reply', 'label', 'author'" in said
        assert "'note' looks like text and 'label' like a label" in said
        assert "--text note --label label" in said
    # The one that says what it is goes before the one with fewer values.
    kinds = rows(category=["a", "b", "c"] * 8, half=["x", "y"] * 12)
    del kinds["label"]
    assert "'category' like a label" in refusal(kinds, text=None)
    odd = rows(blob=[[SECRET]] * N)
    assert "'note' looks like text" in refusal(odd, text=None)
    path = tmp_path / "t.jsonl"
    pd.DataFrame(odd).to_json(path, orient="records", lines=True)
    assert "'note' looks like text" in refusal(path, text=None)
    lone = {"x": [f"{SECRET} {at}" for at in range(N)]}
    assert refusal(lone, text=None).endswith("--text x --label COLUMN.")
    wide = {f"c{at}": [SECRET] * N for at in range(30)}
    assert "and 18 more" in refusal(wide, text=None)


def test_take() -> None:
    corpus = read_corpus(rows(), text=["note", "reply"], label="label", user="author")
    part = corpus.take(np.array([5, 2]))
    assert part.texts == tuple([column[5], column[2]] for column in corpus.texts)
    assert (part.labels, part.users) == (
        [(corpus.labels or [])[at] for at in (5, 2)],
        [(corpus.users or [])[at] for at in (5, 2)],
    )
    assert (part.name, part.text, part.user) == (corpus.name, corpus.text, corpus.user)
    assert len(corpus.take([])) == 0
    assert isinstance(part, Corpus)
    for index in (-1, N):
        with pytest.raises(InputError, match="outside of 0 to 23"):
            corpus.take([index])


def test_shown_without_content() -> None:
    corpus = read_corpus(rows(), text="note", label="label", user="author")
    shown = "Corpus('a dict of columns', 24 records, text=['note'], label='label', user='author')"
    assert repr(corpus) == str(corpus) == shown
    assert SECRET not in f"{corpus!r}{corpus.table()!r}"


def test_table_is_what_was_read() -> None:
    plain = rows()
    table = read_corpus(plain, text="note", label="label", user="author").table()
    whole = read(plain, columns=["note", "label", "author"])
    key = bytes(32)
    assert fingerprint(table, key=key) == fingerprint(whole, key=key)
    plain["label"][0] = "other"
    moved = read_corpus(plain, text="note", label="label", user="author").table()
    assert fingerprint(moved, key=key) != fingerprint(whole, key=key)


def test_candidates_for_the_person(tmp_path: Path) -> None:
    more = rows(
        id=list(range(N)),
        userId=[at // 3 for at in range(N)],
        sender=["the same"] * N,
        patient=[[1]] * N,
        user_type=["a", "b"] * 12,
        source=["a", "b"] * 12,
    )
    assert read_corpus(more, text="note", label="label").candidates == ("author", "userId")
    assert read_corpus(more, text="note", label="label", user="userId").candidates == ()
    assert read_corpus(more, text="note", label="author").candidates == ("userId",)
    path = tmp_path / "t.jsonl"
    pd.DataFrame(more).to_json(path, orient="records", lines=True)
    assert read_corpus(path, text="note", label="label").candidates == ("author", "userId")


def test_names_like_a_person() -> None:
    names = [
        "ID",
        "USER_ID",
        "patient name",
        "authorID",
        "text",
        "customer_count",
        "covid",
        "",
        "Kunde",
    ]
    assert like_persons(names) == ["authorID", "USER_ID", "patient name", "ID"]
