"""Every verb charges a ledger that others share, and hands on an extract with its own part alone.

And one register: the same records asked, trained on and read in another format are found as the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sourdine.cli import main
from sourdine.ledger import Ledger

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import sourdine as sd  # noqa: E402 (needs torch)

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
    "1",
]
QUICK = ["--device", "cpu", "--max-length", "8", "--steps", "2"]


def write(path: Path, rows: int, seed: str) -> Path:
    lines = [
        f"{'good' if at % 2 else 'bad'} {seed}{at},{'yes' if at % 2 else 'no'}" for at in range(rows)
    ]
    path.write_text("\n".join(["note,kind", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    write(folder / "notes.csv", 200, "n")
    write(folder / "public.csv", 100, "p")
    return folder


VERBS = {
    "train": [*QUICK, "--held-out", "0", "--trains", "head", "--lot-size", "20"],
    "tune": [
        *QUICK,
        "--trains",
        "head",
        "--trials",
        "2",
        "--grid",
        "learning_rate=0.5,2",
        "--lot-size",
        "80",
    ],
    "pate": ["--device", "cpu", "--public", "public.csv", "--teachers", "10"],
    "encode": [
        "--device",
        "cpu",
        "--public",
        "public.csv",
        "--dimension",
        "8",
        "--adjacency",
        "zero-out",
    ],
    "compare": [*QUICK, "--methods", "output", "--seeds", "1"],
}


@pytest.fixture(scope="module")
def shared(root: Path) -> Path:
    """A ledger that every verb has charged once, each into a folder named like the verb."""
    ledger = root / "all.sqlite"
    assert main(["ledger", "budget", str(ledger), "--epsilon", "9", "--delta", "1e-5"]) == 0
    for verb, options in VERBS.items():
        more = [str(root / "public.csv") if each == "public.csv" else each for each in options]
        asked = [verb, str(root / "notes.csv"), *USUAL, *more, "--ledger", str(ledger)]
        assert main([*asked, "--out", str(root / verb)]) == 0, verb
    return ledger


@pytest.mark.parametrize("verb", VERBS)
def test_the_folder_holds_its_own_part_alone(verb: str, shared: Path, root: Path) -> None:
    entries = Ledger(root / verb / "ledger.sqlite").history()
    assert [entry.kind for entry in entries] in (["charge"], ["reserve", "settle"], ["reserve"])
    assert not any(entry.who for entry in entries)
    # How long the run took is private: a settlement carries the time of its charge.
    assert {entry.at for entry in entries} == {entries[0].at}
    whole = Ledger(shared)
    events = [entry.text for entry in whole.history()]
    assert entries[0].text in events
    assert Ledger(root / verb / "ledger.sqlite").budget == whole.budget


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "compare"])
def test_the_certificate_states_its_own_curve_and_the_budget_of_all(
    verb: str, shared: Path, root: Path, capsys: Any
) -> None:
    assert main(["verify", str(root / verb), "--json"]) == 0
    capsys.readouterr()
    document = json.loads((root / verb / "certificate.json").read_text())
    assert 0.9 < document["guarantee"]["epsilon"] <= 1
    assert document["guarantee"]["delta"] == 1e-5
    assert any("at most epsilon=9 at delta=1e-05" in said for said in document["not_covered"])


def test_the_shared_ledger_adds_them_up(shared: Path, capsys: Any) -> None:
    spent = Ledger(shared).spent()
    assert spent.releases == len(VERBS)
    assert 1 < spent.epsilon <= 9
    assert main(["ledger", "show", str(shared)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("settle") >= 3


def test_what_does_not_fit_is_refused_and_leaves_no_folder(
    shared: Path, root: Path, capsys: Any
) -> None:
    asked = [
        "train",
        str(root / "notes.csv"),
        *USUAL[:-1],
        "8.5",
        *VERBS["train"],
        "--ledger",
        str(shared),
    ]
    before = len(Ledger(shared).history())
    assert main([*asked, "--out", str(root / "more")]) == 3
    assert "over the budget of 9" in capsys.readouterr().err
    assert len(Ledger(shared).history()) == before
    assert not (root / "more" / "certificate.json").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_ledger_that_is_not_there_is_refused_with_the_command_that_makes_it(
    verb: str, root: Path, tmp_path: Path, capsys: Any
) -> None:
    more = [str(root / "public.csv") if each == "public.csv" else each for each in VERBS[verb]]
    asked = [verb, str(root / "notes.csv"), *USUAL, *more, "--ledger", str(tmp_path / "none.sqlite")]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"sourdine ledger budget {tmp_path / 'none.sqlite'} --epsilon" in said
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize(
    "other", [["--delta", "1e-6"], ["--adjacency", "replace-one"], ["--user", "kind"]], ids=str
)
def test_delta_unit_and_adjacency_are_the_ledgers(
    other: list[str], shared: Path, root: Path, tmp_path: Path, capsys: Any
) -> None:
    asked = ["train", str(root / "notes.csv"), *USUAL, *VERBS["train"], "--ledger", str(shared), *other]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 2
    assert (
        f"was made for {other[0].removeprefix('--').replace('user', 'unit')}" in capsys.readouterr().err
    )


def test_a_lone_entry_is_shown_with_its_curve(root: Path, tmp_path: Path, capsys: Any) -> None:
    ledger = tmp_path / "one.sqlite"
    assert main(["ledger", "budget", str(ledger), "--epsilon", "1"]) == 0
    asked = ["train", str(root / "notes.csv"), *USUAL, *VERBS["train"], "--ledger", str(ledger)]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["ledger", "export", str(ledger)]) == 0
    found = json.loads(capsys.readouterr().out)["history"]
    assert 0.99 < found[0]["epsilon"] <= 1
    assert found[1]["kind"] == "settle"
    assert found[1]["epsilon"] is None
    assert main(["ledger", "budget", str(ledger)]) == 0
    assert "spent   epsilon=0.99" in capsys.readouterr().out


# One register


def losses(model: Any, batch: Any) -> Any:
    return model(batch).pow(2).sum(1)


def test_one_table_asked_trained_on_and_read_in_another_format(tmp_path: Path, capsys: Any) -> None:
    table = write(tmp_path / "notes.csv", 120, "r")
    pd.read_csv(table).to_parquet(tmp_path / "notes.parquet")
    assert main(["query", str(table), "count", "--epsilon", "0.5", "--ledger", str(tmp_path / "q.sqlite"),
                 "--budget", "0.75"]) == 0  # fmt: skip
    assert main(["train", str(table), *USUAL, *VERBS["train"], "--out", str(tmp_path / "run")]) == 0
    heard = capsys.readouterr().err
    assert "these records were charged epsilon 0.5 on 20" in heard
    assert "with this run at most 1.5 in all" in heard
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = list(torch.zeros(120, 2))
    engine = sd.Engine(
        model,
        optimizer,
        data,
        sd.Budget(2, 1e-6),
        loss=losses,
        lot_size=20,
        steps=2,
        data_name=tmp_path / "notes.parquet",
    )
    next(engine.lots())  # the plan is charged before the first lot is drawn
    capsys.readouterr()
    for name in ("notes.csv", "notes.parquet"):
        assert main(["ledger", "spent", str(tmp_path / name), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["lines"]) == 3
        (total,) = found["totals"]
        assert total["epsilon"] == pytest.approx(0.5 + 1 + 2, rel=0.01)
        assert found["not_compared"] == 0


def test_a_budget_of_all_refuses_across_verbs(tmp_path: Path, capsys: Any) -> None:
    table = write(tmp_path / "notes.csv", 120, "b")
    first = ["query", str(table), "count", "--epsilon", "0.5", "--ledger", str(tmp_path / "q.sqlite")]
    assert main([*first, "--budget", "0.5", "--budget-of-all", "1.2"]) == 0
    asked = ["train", str(table), *USUAL, *VERBS["train"], "--out", str(tmp_path / "run")]
    assert main(asked) == 3
    said = capsys.readouterr().err
    assert "over their budget of all of 1.2" in said
    assert "sourdine ledger spent" in said
    assert main([*asked, "--budget-of-all", "5"]) == 3
    assert "cannot grow to 5" in capsys.readouterr().err
