"""A fault of one record makes that record nothing: with it and without it every run takes the same course.

The same course means the same exit code, the same events in the ledger, and the same settings in what
is released; only the owner, on stderr, hears that there was a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sourdine.budget import Budget
from sourdine.cli import main
from sourdine.ledger import Ledger
from sourdine.query import Session

ROWS = 60
SECRET = "Zanzibar"
FAULTS: dict[str, bytes] = {
    "too many fields": b"Zanzibar,yes,3,p30,more,fields",
    "too few fields": b"Zanzibar",
    "bytes that are no text": b"caf\xe9 Zanzibar,yes,3,p30",
    "no text": b",yes,3,p30",
    "no label": b"good n30,,3,p30",
    "no number": b"good n30,yes,,p30",
    "a word for a number": b"good n30,yes,Zanzibar,p30",
    "an infinite number": b"good n30,yes,inf,p30",
    "a code for a number": b"good n30,yes,007,p30",
    "a very long text": b"Zanzibar " * 30_000 + b",yes,3,p30",
    "no person": b"good n30,yes,3,",
}
BOUNDS = {"low": 1, "high": 5, "epsilon": 0.5}
QUESTIONS: list[Callable[[Session], Any]] = [
    lambda s: s.count(epsilon=0.5),
    lambda s: s.count(epsilon=0.5, where=["stars >= 3", "note != x"]),
    lambda s: s.mean("stars", **BOUNDS),
    lambda s: s.mean("stars", **BOUNDS, by="stars", keys=[1, "2"]),
    lambda s: s.mean("stars", **BOUNDS, where=["kind == yes"]),
    lambda s: s.sum("stars", **BOUNDS),
    lambda s: s.variance("stars", **BOUNDS),
    lambda s: s.quantile("stars", 0.5, **BOUNDS),
    lambda s: s.histogram("stars", epsilon=0.5, edges=[1, 3, 5]),
    lambda s: s.histogram("stars", epsilon=0.5, keys=["1", "2"]),
    lambda s: s.histogram("kind", epsilon=0.5, keys=["yes", "no", "1"]),
    lambda s: s.word_counts(["good", "bad"], epsilon=0.5, column="note"),
    lambda s: s.word_counts(["good", "bad"], epsilon=0.5, column="stars"),
]


def table(path: Path, fault: bytes | None) -> Path:
    rows = [f"{'good' if i % 2 else 'bad'} n{i},{'yes' if i % 2 else 'no'},{i % 5 + 1},p{i}".encode()
            for i in range(ROWS)]  # fmt: skip
    if fault is not None:
        rows[30] = fault
    path.write_bytes(b"\n".join([b"note,kind,stars,who", *rows]) + b"\n")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(data: Path, user: str | None) -> list[Any]:
    """The charges for all questions, and the labels of the answers."""
    unit = "example" if user is None else "user"
    session = Session(data, Budget(100, 1e-6, unit), user=user)
    found = [question(session) for question in QUESTIONS]
    labels = [[each.label for each in (x.values() if isinstance(x, dict) else [x])] for x in found]
    return [[(entry.text, entry.label) for entry in session.ledger.history()], labels]


CASES = [*((fault, None) for fault in FAULTS), ("no person", "who"), ("too few fields", "who")]


@pytest.mark.parametrize(("fault", "user"), CASES)
def test_questions_are_answered_and_charged_alike(
    fault: str, user: str | None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = asked(table(here / "faulty.csv", FAULTS[fault]), user)
    said = capsys.readouterr().err
    assert asked(table(here / "clean.csv", None), user) == faulty
    assert SECRET not in said
    told = [line for line in said.splitlines() if "counted as nothing" in line]
    start = "sourdine (for you only, not for release): faulty.csv: 1 record "
    assert all(line.startswith(start) for line in told)
    quiet = ("no text", "no label", "a very long text") + (("no person",) if user is None else ())
    assert bool(told) is (fault not in quiet)


def test_a_record_without_a_number_adds_nothing_to_any_answer(here: Path) -> None:
    """The exact answers, at hardly any noise: 60 rows of 1 to 5, one of 1 taken away."""
    budget = Budget(1e6, 1e-9, adjacency="add-remove")
    with Session(table(here / "t.csv", FAULTS["no number"]), budget) as s:
        most = {"low": 1, "high": 5, "epsilon": 900}
        assert s.count(epsilon=900).value == 60
        assert s.sum("stars", **most).value == pytest.approx(179, abs=0.1)
        assert s.mean("stars", **most).value == pytest.approx(179 / 59, abs=0.01)
        assert s.count(epsilon=900, where=["stars != 5"]).value == 47
        found = s.histogram("stars", epsilon=900, edges=[1, 2, 6])
        assert [answer.value for answer in found.values()] == [11, 48]
        assert s.quantile("stars", 0.1, **most).value < 1.05
    with Session(table(here / "t.csv", FAULTS["no number"]), Budget(1e6, 1e-9)) as s:
        assert s.mean("stars", **most).value == pytest.approx((179 + 3) / 60, abs=0.01)
        # In parts of the bounds, 4 / 2 is what adds nothing; the record that is gone had 4.
        squares = sum((at % 5 + 1 - 3) ** 2 for at in range(ROWS)) - 4 + 4 / 2
        mean = (179 + 3) / 60 - 3
        assert s.variance("stars", **most).value == pytest.approx(squares / ROWS - mean**2, abs=0.02)


USUAL = [
    "--text",
    "note",
    "--label",
    "kind",
    "--labels",
    "yes,no",
    "--model",
    "bytes",
    "--epsilon",
    "2",
]
VERBS = {
    "train": ["--device", "cpu", "--max-length", "8", "--steps", "2", "--trains", "head",
              "--lot-size", "20", "--held-out", "0", "--other-labels", "drop"],
    "train users": ["--device", "cpu", "--max-length", "8", "--steps", "2", "--trains", "head",
                    "--lot-size", "20", "--held-out", "0", "--user", "who", "--other-labels", "drop"],
    "pate": ["--device", "cpu", "--public", "public.csv", "--teachers", "5", "--other-labels", "drop"],
    "encode": ["--device", "cpu", "--public", "public.csv", "--dimension", "4",
               "--other-labels", "drop"],
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_takes_the_same_course(
    verb: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All faults at once, each of one record."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    for room in ("text.run", "pate.release", "encoding.release"):  # reports take seconds
        monkeypatch.setattr(f"sourdine.{room}.page", lambda *_: "<!doctype html><title>report</title>")
    (here / "public.csv").write_text("note\n" + "".join(f"public {i}\n" for i in range(40)))
    courses: list[Any] = []
    for name, rows in (("clean", []), ("faulty", list(FAULTS.values()))):
        data = table(here / f"{name}.csv", None)
        lines = data.read_bytes().split(b"\n")
        lines[20 : 20 + len(rows)] = rows
        data.write_bytes(b"\n".join(lines))
        words = [verb.split(maxsplit=1)[0], str(data), *USUAL, *VERBS[verb], "--out", name]
        assert main(words) == 0, capsys.readouterr().err
        document = json.loads((here / name / "certificate.json").read_text())
        entries = [(x.kind, x.text, x.reason) for x in Ledger(here / name / "ledger.sqlite").history()]
        training = {name: x for name, x in document["training"].items() if "student" not in name}
        courses.append((entries, training, document["guarantee"], document["accesses"]))
    if verb != "train users":  # a row without a person is of nobody, which is one more of them
        assert courses[0] == courses[1]
    assert "counted as nothing" in capsys.readouterr().err
    for path in (path for path in (here / "faulty").rglob("*") if path.is_file()):
        assert b"counted as nothing" not in path.read_bytes()


def test_a_survey_is_answered_by_everybody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = ["survey", "new", "s.json", "--question", "Smokes?", "--choices", "yes,no", "--epsilon", "1"]
    assert main(new) == 0
    (here / "people.csv").write_text("name,smokes\np1,yes\np2,Zanzibar\n,no\np1,no\np3,no\n")
    run = ["survey", "run", "s.json", "people.csv", "--column", "smokes", "--person", "name"]
    assert main([*run, "--answers", "a.csv"]) == 0
    answers = [line.split(",") for line in (here / "a.csv").read_text().split()][1:]
    assert [name for name, _ in answers] == ["p1", "p2", "p3"]
    assert {answer for _, answer in answers} <= {"yes", "no"}
    said = capsys.readouterr().err
    assert "2 records without a person" in said and "1 record with none of the choices" in said
    assert SECRET not in said


def test_the_first_line_of_a_jsonl_file_may_be_at_fault(here: Path) -> None:
    lines = ['["Zanzibar"]'] + [json.dumps({"note": f"n{i}", "stars": i % 5}) for i in range(30)]
    (here / "t.jsonl").write_text("\n".join(lines))
    words = ["query", "t.jsonl", "mean", "stars", "--low", "0", "--high", "5", "--epsilon", "0.5"]
    assert main([*words, "--ledger", "t.sqlite"]) == 0
