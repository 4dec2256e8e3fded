"""`sourdine tune`: what it prints, what it leaves, its exit codes."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sourdine.cli import main
from sourdine.mechanisms.selection import RandomTrials

pytest.importorskip("transformers")

ASKED = ["--text", "note", "--label", "mood", "--labels", "good,bad", "--model", "bytes"]
SMALL = [
    "--trains",
    "head",
    "--steps",
    "2",
    "--lot-size",
    "96",
    "--max-length",
    "16",
    "--trials",
    "2",
]


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "notes.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["note", "mood", "author"])
        for place in range(120):
            mood = "good" if place % 2 else "bad"
            rows.writerow([f"a {mood} day, number {place}", mood, f"person {place % 60}"])
    return str(path)


def test_the_best_is_released_and_verifies(data: str, tmp_path: Path, capfd: Any) -> None:
    out = tmp_path / "out"
    asked = [data, *ASKED, *SMALL, "--epsilon", "3", "--grid", "learning_rate=0.5,2"]
    assert main(["tune", *asked, "--out", str(out), "--json"]) == 0
    printed, err = capfd.readouterr()
    found = json.loads(printed)
    assert err == "" and found["setting"]["learning_rate"] in (0.5, 2.0)
    assert 2.9 < found["epsilon"] <= 3 and 0 <= found["accuracy"]["value"] <= 1
    assert not any("trials" in key or "seconds" in key for key in found)
    assert json.loads((out / "tuning.json").read_text())["setting"] == found["setting"]
    assert main(["verify", str(out)]) == 0
    capfd.readouterr()
    assert main(["tune", *asked, "--out", str(out)]) == 2  # it is finished
    assert "finished" in capfd.readouterr().err


def test_the_plan_costs_nothing(data: str, tmp_path: Path, capsys: Any) -> None:
    asked = ["tune", data, *ASKED, *SMALL, "--epsilon", "2", "--user", "author", "--plan"]
    asked += ["--lot-size", "48"]
    assert main([*asked, "--trials", "10", "--grid", "learning_rate=0.5,2 clip=0.5,1"]) == 0
    printed = capsys.readouterr().out
    assert "one of 4 settings" in printed and "10 on average" in printed and "at most 41" in printed
    assert "one trial alone   epsilon 1." in printed and "Nothing was charged" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["notes.csv"]


def test_a_stopped_tuning_stays_charged(
    data: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    asked = ["tune", data, *ASKED, *SMALL, "--epsilon", "3", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patched:
        patched.setattr(RandomTrials, "number", stop)
        assert main(asked) == 130
    assert main(asked) == 3
    assert "new folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "--epsilon"),
        (["--epsilon", "3"], "--out"),
        (["--epsilon", "3", "--out", "x", "--grid", "steps=1,2"], "the same in all trials"),
        (["--epsilon", "3", "--out", "x", "--trials", "0.5"], "above 1"),
        (["--epsilon", "3", "--out", "x", "--steps", "2.5"], "whole"),
    ],
)
def test_bad_input(given: list[str], words: str, data: str, capsys: Any) -> None:
    assert main(["tune", data, *ASKED, *given]) == 2
    assert words in capsys.readouterr().err


def test_help_has_an_example(capsys: Any) -> None:
    assert main(["tune", "--help"]) == 0
    assert "sourdine tune notes.csv" in capsys.readouterr().out.replace("\n", " ")
