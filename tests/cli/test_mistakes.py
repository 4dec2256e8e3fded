"""Costly mistakes are caught before the charge: what is refused, what is asked, and on which terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from sourdine.budget import Budget
from sourdine.cli import main
from sourdine.errors import InputError, WeakPromise
from sourdine.ledger import Ledger

pytest.importorskip("torch")
pytest.importorskip("transformers")

import sourdine as sd
from sourdine.text import trainer as room
from sourdine.text.tuning import Tuner

COLUMNS = ("--text", "note", "--label", "kind")
QUICK = ("--model", "bytes", "--device", "cpu", "--max-length", "8", "--steps", "2")
ASKED = (*COLUMNS, *QUICK, "--trains", "head", "--labels", "yes,no", "--epsilon", "3")


def write(path: Path, rows: int, seed: str, more: tuple[str, ...] = ()) -> Path:
    lines = [
        f"{seed} {at} was {'good' if at % 2 else 'bad'},{'yes' if at % 2 else 'no'}"
        for at in range(rows)
    ]
    path.write_text("\n".join(["note,kind", *lines, *more]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    write(folder / "notes.csv", 100, "note")
    write(folder / "public.csv", 120, "other")
    write(folder / "mixed.csv", 120, "other", ("Note 7 was good!,yes", "note 8 was bad,no"))
    return folder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a verb on a terminal where these answers are typed; its code and what the terminal showed."""

    def run(answers: str, *asked: str) -> tuple[int, str]:
        shown = Terminal()
        monkeypatch.setattr("sys.stdin", Terminal(answers))
        monkeypatch.setattr("sys.stderr", shown)
        return main(list(asked)), shown.getvalue()

    return run


# Labels, on a terminal


@pytest.mark.parametrize("verb", ["train", "tune", "compare", "encode", "pate"])
def test_every_verb_asks_a_terminal_before_the_charge(
    verb: str, root: Path, tmp_path: Path, typed: Any
) -> None:
    """A bar or a spinner takes the terminal over; the question has to come before it."""
    more = {
        "train": (*QUICK, "--trains", "head"),
        "tune": (*QUICK, "--trains", "head", "--lot-size", "40"),
        "compare": (*QUICK, "--methods", "output", "--seeds", "1"),
        "encode": ("--model", "bytes", "--public", str(root / "public.csv")),
        "pate": ("--model", "bytes", "--public", str(root / "public.csv"), "--teachers", "5"),
    }[verb]
    out = tmp_path / "out"
    given = (*COLUMNS, "--labels", "yes,never", "--epsilon", "3", *more, "--out", str(out))
    code, shown = typed("n\n", verb, str(root / "notes.csv"), *given)
    assert code == 2
    assert "50 of 100 records have a label that was not declared, and no record has 'never'" in shown
    assert "not for release" in shown and "answered no, so nothing was charged" in shown
    assert not (out / "ledger.sqlite").exists() and not (out / "certificate.json").exists()


def test_a_wrong_column_is_seen_before_it_is_paid_for(root: Path, tmp_path: Path, typed: Any) -> None:
    asked = (*COLUMNS, *QUICK, "--trains", "head", "--epsilon", "3", "--out", str(tmp_path / "out"))
    code, shown = typed("\n", "train", str(root / "notes.csv"), *asked)
    assert code == 2 and not (tmp_path / "out").exists()
    assert "the labels have 2 different values; the largest class has 50 of 100 records" in shown
    assert "Is this the column of classes? [y/N]" in shown


# Public texts that copy private records


def test_a_public_test_with_private_records_stops_a_script(
    root: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[Any] = []
    real = room.Trainer._train
    monkeypatch.setattr(
        room.Trainer,
        "_train",
        lambda self, ready, *rest: taught.append(ready.train) or real(self, ready, *rest),
    )
    out = tmp_path / "out"
    asked = ["train", str(root / "notes.csv"), *ASKED, "--test", str(root / "mixed.csv")]
    asked += ["--test-is-public", "--out", str(out)]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "2 of 100 private records have the same words" in said and "--leave-out-copies" in said
    assert not out.exists() and not taught
    assert main([*asked, "--leave-out-copies"]) == 0
    assert [at for at, label in enumerate(taught[0].labels) if not label] == [7, 8]
    assert len(taught[0]) == 100
    capsys.readouterr()
    assert main(["verify", str(out)]) == 0


def test_the_folder_tells_neither_the_flag_nor_the_count(
    root: Path, tmp_path: Path, capsys: Any
) -> None:
    """One run had copies and the flags, the other neither; their certificates say the same of it."""
    found = []
    for name, flags in (
        ("mixed", ("--leave-out-copies", "--other-labels", "drop")),
        ("public", ()),
    ):
        asked = [*ASKED, "--test", str(root / f"{name}.csv"), "--test-is-public", *flags]
        assert main(["train", str(root / "notes.csv"), *asked, "--out", str(tmp_path / name)]) == 0
        document = json.loads((tmp_path / name / "certificate.json").read_text())
        found.append([line for line in document["accesses"] if "test on" not in line["what"]])
        for path in (tmp_path / name).glob("*"):
            content = path.read_bytes()
            assert b"leave_out" not in content and b"leave-out" not in content
            assert b"other_labels" not in content and b"other-labels" not in content
    assert found[0] == found[1]
    assert any("checks at load" in line["what"] for line in found[0])


def test_a_table_is_not_its_own_test(root: Path, tmp_path: Path, capsys: Any) -> None:
    data = str(root / "notes.csv")
    pate = ("pate", data, *COLUMNS, "--labels", "yes,no", "--epsilon", "2", "--teachers", "5")
    for asked in (
        ("train", data, *ASKED, "--test", data, "--test-is-public"),
        ("train", data, *ASKED, "--test", data),
        ("encode", data, *COLUMNS, "--labels", "yes,no", "--epsilon", "8", "--public", data),
        (*pate, "--public", data),
        (*pate, "--public", str(root / "public.csv"), "--test", data),
        ("compare", data, *ASKED[:-2], "--epsilon", "1", "--public", data),
    ):
        given = [each for each in asked if each not in ("--trains", "head") or asked[0] == "train"]
        assert main([*given, "--out", str(tmp_path / "out")]) == 2
        assert "names the table of private records itself" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_private_test_records_that_are_trained_on_are_told(
    root: Path, tmp_path: Path, capsys: Any
) -> None:
    asked = ["train", str(root / "notes.csv"), *ASKED, "--test", str(root / "mixed.csv"), "--plan"]
    assert main(asked) == 0
    assert "2 records are among the test records too" in capsys.readouterr().err


# Options that would change or vanish without a word


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--lot-size", "100000"), "--lot-size (lot_size=) is 100,000, and there are 100 examples"),
        (("--leave-out-copies",), "give --test with --test-is-public"),
        (("--other-labels", "keep"), "other_labels is 'keep'"),
    ],
)
def test_refused_before_the_charge(
    root: Path, tmp_path: Path, capsys: Any, given: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    assert main(["train", str(root / "notes.csv"), *ASKED, *given, "--out", str(out)]) == 2
    assert said in capsys.readouterr().err and not out.exists()


def test_a_reference_needs_records_to_measure_on(root: Path, tmp_path: Path, capsys: Any) -> None:
    plain = ["train", str(root / "notes.csv"), *ASKED[:-2], "--not-private"]
    assert main([*plain, "--out", str(tmp_path / "untested")]) == 0
    assert main([*plain, "--held-out", "0.2", "--out", str(tmp_path / "tested")]) == 0
    asked = ["train", str(root / "notes.csv"), *ASKED, "--out", str(tmp_path / "out"), "--reference"]
    capsys.readouterr()
    assert main([*asked, str(tmp_path / "tested")]) == 2
    assert "no records are held out here" in capsys.readouterr().err
    assert main([*asked, str(tmp_path / "untested"), "--held-out", "0.2"]) == 2
    assert "was tested on no records" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_public_texts_that_no_method_reads_are_refused(root: Path, tmp_path: Path, capsys: Any) -> None:
    given = (*COLUMNS, "--epsilon", "1", "--methods", "head", "--public", str(root / "public.csv"))
    assert main(["compare", str(root / "notes.csv"), *given, "--out", str(tmp_path / "out")]) == 2
    assert "are for pate, which is not compared here" in capsys.readouterr().err


# Epsilons that promise nothing


def test_no_verb_takes_an_epsilon_above_100(root: Path, tmp_path: Path, capsys: Any) -> None:
    data, public, out = str(root / "notes.csv"), str(root / "public.csv"), tmp_path / "out"
    ledger = str(tmp_path / "l.sqlite")
    labelled = (*COLUMNS, "--labels", "yes,no", "--epsilon", "1e9", "--out", str(out))
    for asked in (
        ("train", data, *labelled),
        ("tune", data, *labelled),
        ("compare", data, *labelled),
        ("compare", data, *labelled, "--epsilon", "1", "--at-most", "101"),
        ("pate", data, *labelled, "--public", public),
        ("encode", data, *labelled, "--public", public),
        ("query", data, "count", "--epsilon", "101", "--ledger", ledger),
        ("query", data, "count", "--epsilon", "1", "--budget", "101", "--ledger", ledger),
        ("ledger", "budget", ledger, "--epsilon", "101"),
        (
            "survey",
            "new",
            str(tmp_path / "s.json"),
            "--question",
            "Q?",
            "--epsilon",
            "1",
            "--budget",
            "101",
        ),
    ):
        assert main(list(asked)) == 2, asked
        said = capsys.readouterr().err
        assert "protects nobody" in said and "--not-private" in said, asked
    assert not list(tmp_path.iterdir())


def test_every_verb_warns_above_10(root: Path, tmp_path: Path, capsys: Any) -> None:
    data, question = str(root / "notes.csv"), ("--question", "Q?", "--epsilon", "20")
    ledger = ("--ledger", f"{tmp_path}/q.sqlite")
    for asked in (
        ("train", data, *ASKED[:-1], "20", "--plan"),
        ("query", data, "count", "--epsilon", "1", "--budget", "20", *ledger),
        ("ledger", "budget", f"{tmp_path}/l.sqlite", "--epsilon", "20"),
        ("survey", "new", f"{tmp_path}/s.json", *question),
    ):
        assert main(list(asked)) == 0, asked
        assert capsys.readouterr().err.count("epsilon 20 protects little; 0.1 to 10 is usual") == 1


def test_no_class_takes_an_epsilon_above_100(root: Path) -> None:
    import torch

    data, much = str(root / "notes.csv"), Budget(101)
    model = torch.nn.Linear(2, 2)
    rows = [torch.zeros(2)] * 30
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = lambda model, batch: model(batch).sum(1)  # noqa: E731
    for make in (
        lambda: sd.Trainer(data, much, text="note", label="kind"),
        lambda: Tuner(data, much, text="note", label="kind"),
        lambda: sd.Session(data, much),
        lambda: sd.Engine(model, optimizer, rows, much, loss=loss, lot_size=5, steps=2),
        lambda: sd.InstanceEncoder(lambda texts: None, much, classes=("a", "b")),
        lambda: Ledger(None, much),
    ):
        with pytest.raises(InputError, match=r"above 100 .*not_private=True"):
            make()
    with pytest.warns(WeakPromise, match="epsilon 50 protects little"):
        Ledger(None, Budget(50))


# A comparison costs the sum of its runs


def test_a_comparison_is_planned_and_charges_nothing(root: Path, tmp_path: Path, capsys: Any) -> None:
    given = (*COLUMNS, *QUICK, "--labels", "yes,no", "--epsilon", "1", "2", "5", "--methods", "output")
    asked = ["compare", str(root / "notes.csv"), *given, "--out", str(tmp_path / "out"), "--plan"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "9 runs: output, 3 of each at each budget" in said and "Nothing was charged" in said
    total = float(said.split("epsilon <= ")[1].split()[0])
    assert total > 5
    assert not (tmp_path / "out").exists()


def test_a_total_above_every_budget_is_asked_on_a_terminal(
    root: Path, tmp_path: Path, typed: Any
) -> None:
    given = (*COLUMNS, *QUICK, "--labels", "yes,no", "--epsilon", "1", "2", "--methods", "output")
    asked = ["compare", str(root / "notes.csv"), *given, "--seeds", "1", "--out", str(tmp_path / "out")]
    code, shown = typed("y\nn\n", *asked)
    assert code == 2 and "these 2 runs cost epsilon" in shown and "Charge it? [y/N]" in shown
    assert not (tmp_path / "out" / "ledger.sqlite").exists()


# Tables with spaces behind their commas


def test_spaces_around_cells_hide_nobody(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age, smokes\n" + "30, yes\n" * 40 + "30, no\n" * 10, encoding="utf-8")
    asked = ["query", str(path), "count", "--epsilon", "8", "--budget", "8", "--json"]
    assert main([*asked, "--where", "smokes = yes"]) == 0
    answer = json.loads(capsys.readouterr().out)["value"]
    assert 35 < answer < 45


# Attacks refuse what they can before they read


def test_an_attack_on_encodings_is_refused_before_texts_are_read(
    root: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, public = str(root / "notes.csv"), str(root / "public.csv")
    hide = (*COLUMNS, "--labels", "yes,no", "--mode", "texthide", "--model", "bytes")
    assert main(["encode", data, *hide, "--out", str(tmp_path / "hidden")]) == 0

    def read(*given: object) -> None:
        raise AssertionError("texts were read")

    monkeypatch.setattr("sourdine.text.frozen.Frozen.__call__", read)
    asked = ["attack", "encoding", str(tmp_path / "hidden"), "--text", "note", "--model", "bytes"]
    asked += ["--candidates", public, "--public", public, "--truth", data]
    for more, said in (
        ((), "100 encodings are too few for 100 sources and 16 masks"),
        (("--mixed", "1", "--masks", "1"), "there are 120 distractors"),
        (("--sources", "1000"), "1000 vectors in 128 dimensions are no simplex"),
        (("--out", str(tmp_path / "no" / "r.json")), "there is no folder"),
    ):
        capsys.readouterr()
        assert main([*asked, *more]) == 2
        assert said in capsys.readouterr().err


def test_encode_refuses_settings_before_texts_are_read(
    root: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: object) -> None:
        raise AssertionError("the encoder was loaded")

    monkeypatch.setattr("sourdine.text.frozen.Frozen.__init__", load)
    given = (*COLUMNS, "--labels", "yes,no", "--epsilon", "8", "--public", str(root / "public.csv"))
    for more in (
        ("--map", "cube"),
        ("--noise", "pink"),
        ("--label-privacy", "none"),
        ("--delta", "0.5"),
        ("--outputs", "7"),
        ("--ledger", str(tmp_path / "none.sqlite")),
    ):
        assert main(["encode", str(root / "notes.csv"), *given, *more]) == 2, more
