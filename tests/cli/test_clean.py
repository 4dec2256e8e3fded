"""sourdine clean: it shows what rests on this machine, asks, and never touches the config folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from sourdine.cli import clean, main
from sourdine.data.fetch import cache
from sourdine.home import home

CONFIG = {
    "register.sqlite": "charges",
    "fingerprint.key": "salt",
    "signing.key": "key",
    "keys/0123.0": "noise",
    "keys/0123.0.steps": "marks",
    "marks/runs": "runs",
}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with features and a download, a run that was killed, and a full config folder."""
    monkeypatch.setenv("SOURDINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written = {
        cache() / "features" / "a.npy": "vectors",
        cache() / "features" / "b.npy": "vectors",
        cache() / "minilm-0.1.0" / "model": "weights",
        tmp_path / "sourdine-run-abc" / "in-use": "",
        tmp_path / "sourdine-run-abc" / "run" / "checkpoint.pt": "state",
        **{home() / name: text for name, text in CONFIG.items()},
    }
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def left(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def config_is_whole() -> bool:
    return all((home() / name).read_text() == text for name, text in CONFIG.items())


def test_in_a_script_it_shows_and_asks_for_yes(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(places)
    assert main(["clean"]) == 2
    out, err = capsys.readouterr()
    assert "add --yes to erase" in err and err.count("\n") == 1
    for said in ("a.npy", "minilm-0.1.0", "sourdine-run-abc", str(home()), "could be spent twice"):
        assert said in out
    assert left(places) == before


def test_yes_erases_features_and_abandoned_runs_alone(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean", "--yes"]) == 0
    assert "Erased" in capsys.readouterr().out
    assert not list((cache() / "features").iterdir())
    assert not (places / "sourdine-run-abc").exists()
    assert (cache() / "minilm-0.1.0" / "model").exists()
    assert config_is_whole()
    assert main(["clean", "--yes"]) == 0
    assert "nothing to erase" in capsys.readouterr().out


def test_all_erases_downloads_too_and_never_the_config_folder(places: Path) -> None:
    assert main(["clean", "--all", "--yes"]) == 0
    assert left(places) == {f"config/{name}" for name in CONFIG}
    assert config_is_whole()


@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_is_asked(answer: bool, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirmed(question: str) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(clean.owner, "on_terminal", lambda: True)
    monkeypatch.setattr(clean.owner, "confirmed", confirmed)
    assert main(["clean"]) == (0 if answer else 2)
    assert len(asked) == 1 and "3 places" in asked[0]
    assert (cache() / "features" / "a.npy").exists() is not answer


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--yes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = {row["kind"]: row["rule"] for row in found["resting"]}
    assert kinds == {
        "features": "erased",
        "unsaved runs": "erased",
        "downloads": "with --all",
        "config folder": "kept",
    }
    assert len(found["erased"]) == 3 and found["bytes"] > 0
    assert "budget could be spent twice" in found["kept"]


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "everything"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
