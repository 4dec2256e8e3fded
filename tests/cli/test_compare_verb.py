"""`sourdine compare`: every spelling of the budgets, exit codes, one object for machines."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sourdine.cli import main
from sourdine.errors import InputError
from sourdine.text import comparison as room

BASE = ["--text", "note", "--label", "kind"]


@pytest.fixture
def data(tmp_path: Path) -> str:
    rows = [f"{'good' if at % 2 else 'bad'} {at},{'yes' if at % 2 else 'no'}" for at in range(80)]
    path = tmp_path / "notes.csv"
    path.write_text("\n".join(["note,kind", *rows]) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "spelled",
    [
        ["--epsilon", "1", "2", "5", "inf"],
        ["--epsilon", "1", "--epsilon", "2", "--epsilon", "5", "inf"],
        ["--epsilon", "1 2 5 inf"],
        ["--epsilon", "1,2,5,inf"],
        ["--epsilon", "1,2", "5", "--seeds", "2", "--epsilon", "inf"],
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_spellings_of_the_budgets(
    spelled: list[str], first: bool, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def heard(table: str, **named: Any) -> None:
        seen.update(named, table=table)
        raise InputError("enough.")

    monkeypatch.setattr(room, "comparison", heard)
    given = [data, *BASE, *spelled] if first else [*BASE, *spelled, data]
    assert main(["compare", *given]) == 2
    assert seen["epsilons"] == [1.0, 2.0, 5.0, math.inf] and seen["table"] == data


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "give --epsilon"),
        (["--epsilon", "0"], "epsilon is 0"),
        (["--epsilon", "1", "-2"], "epsilon is -2"),
        (["--epsilon", "nan"], "epsilon is nan"),
        (["--epsilon", "much"], "'much' is no number"),
        (["--epsilon", "1", "--methods", "outptu"], "did you mean 'output'?"),
        (["--epsilon", "1", "--metric", "f2"], "metric is 'f2'"),
        (["--epsilon", "1", "--seeds", "0"], "seeds is 0"),
        (["--epsilon", "1", "--methods", "input"], "--labels yes,no"),
        (["--epsilon", "1", "--delta", "0.1"], "delta is 0.1"),
    ],
)
def test_bad_input(given: list[str], said: str, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", data, *BASE, *given]) == 2
    out, err = capsys.readouterr()
    assert said in err and not out


def test_a_comparison_from_the_command_line(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = [
        *("compare", data, *BASE, "--epsilon", "2", "20", "inf", "--methods", "output", "--seeds", "1"),
        *("--labels", "yes,no", "--model", "bytes", "--max-length", "8", "--device", "cpu"),
        *("--metric", "macro-f1", "--out", str(out)),
    ]
    assert main(given) == 3  # nobody has agreed to the sum
    assert "at most 20 was agreed to" in capsys.readouterr().err
    assert not (out / "ledger.sqlite").exists()
    given += ["--at-most", "25"]
    assert main([*given, "--json"]) == 0
    printed, err = capsys.readouterr()
    found = json.loads(printed)
    assert found == json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert [result["epsilon"] for result in found["results"]] == [2.0, 20.0, "inf"]
    assert "This comparison as a whole costs epsilon <= " in err and "NOT PRIVATE" in err
    assert "epsilon 20 is outside of 0.1 to 10" in err
    assert main(given) == 0  # all is there: nothing is made or charged again
    printed, _ = capsys.readouterr()
    assert printed.startswith("macro F1") and "no privacy" in printed and "frontier.png" in printed
    assert "Matthews correlation: mean" in printed and "classes: yes, no" in printed
    assert main([*given, "--seeds", "2"]) == 2
    assert "another comparison: seeds differ" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    assert "--epsilon" in capsys.readouterr().out
