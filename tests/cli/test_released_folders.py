"""What every verb hands on names nobody and can be read by everybody; the rest is for its owner alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import sys
from pathlib import Path

import pytest

from sourdine.cli import main
from sourdine.ledger import Ledger

pytest.importorskip("torch")
pytest.importorskip("transformers")

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
QUICK = ["--device", "cpu", "--max-length", "8", "--steps", "2", "--trains", "head"]
VERBS = {
    "train": [*QUICK, "--held-out", "0", "--lot-size", "20", "--audit", "10"],
    "tune": [*QUICK, "--trials", "2", "--grid", "learning_rate=0.5,2", "--lot-size", "80"],
    "pate": ["--device", "cpu", "--public", "public.csv", "--teachers", "10"],
    "encode": ["--device", "cpu", "--public", "public.csv", "--dimension", "8"],
    "compare": [*QUICK[:-2], "--methods", "output,head", "--seeds", "1", "--keep", "--at-most", "9"],
}
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")


def write(path: Path, rows: int, seed: str) -> Path:
    lines = [f"{'good' if i % 2 else 'bad'} {seed}{i},{'yes' if i % 2 else 'no'}" for i in range(rows)]
    path.write_text("\n".join(["note,kind", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each verb, made under a umask that lets nobody else read, by a user with a name."""
    folder = tmp_path_factory.mktemp("released")
    write(folder / "notes.csv", 200, "n")
    write(folder / "public.csv", 100, "p")
    before = os.umask(0o077)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(getpass, "getuser", lambda: "ada-lovelace")
        for room in ("text.run", "pate.release", "encoding.release"):  # reports take seconds
            patch.setattr(f"sourdine.{room}.page", lambda *_: "<!doctype html><title>report</title>")
        try:
            for verb, options in VERBS.items():
                more = [str(folder / each) if each == "public.csv" else each for each in options]
                asked = [verb, str(folder / "notes.csv"), *USUAL, *more, "--out", str(folder / verb)]
                with (
                    (folder / f"{verb}.stderr").open("w", encoding="utf-8") as said,
                    contextlib.redirect_stderr(said),
                ):
                    assert main(asked) == 0, verb
        finally:
            os.umask(before)
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_no_file_names_the_user(verb: str, root: Path) -> None:
    for path in (path for path in (root / verb).rglob("*") if path.is_file()):
        assert b"ada-lovelace" not in path.read_bytes(), path
    entries = Ledger(root / verb / "ledger.sqlite").history()
    assert entries and not any(entry.who for entry in entries)


@posix
@pytest.mark.parametrize("verb", VERBS)
def test_one_mode_for_all_that_is_handed_on(verb: str, root: Path) -> None:
    files = [path for path in (root / verb).rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
    folders = [root / verb, *(path for path in (root / verb).rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o755}


@posix
@pytest.mark.parametrize("verb", ["train", "pate"])
def test_what_is_not_for_release_is_for_its_owner_alone(verb: str, root: Path) -> None:
    beside = root / f"{verb}.not-for-release"
    assert stat.S_IMODE(beside.stat().st_mode) == 0o700
    files = list(beside.iterdir())
    assert files and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_the_owners_own_ledger_still_says_who(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada-lovelace")
    ledger = tmp_path / "team.sqlite"
    asked = ["query", str(root / "notes.csv"), "count", "--epsilon", "0.1", "--ledger", str(ledger)]
    assert main(asked) == 0
    assert [entry.who for entry in Ledger(ledger).history()] == ["ada-lovelace"]


@pytest.mark.parametrize("verb", ["train", "pate", "compare"])
def test_exact_figures_on_the_terminal_are_marked(verb: str, root: Path) -> None:
    said = (root / f"{verb}.stderr").read_text(encoding="utf-8").splitlines()
    exact = [line for line in said if "the smallest has 100 records" in line or "200 records." in line]
    assert len(exact) == 2
    assert all(line.startswith("sourdine (for you only, not for release): ") for line in exact)
