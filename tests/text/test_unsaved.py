"""Runs that nobody has named: private while they are needed, gone afterwards."""

from __future__ import annotations

import gc
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tiny import encoder, records

import sourdine as sd
from sourdine.data.resting import erasable, erase, resting
from sourdine.errors import InputError
from sourdine.text.unsaved import Unsaved


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def trainer(tmp_path: Path) -> sd.Trainer:
    model = encoder(tmp_path / "model")
    settings = {"text": "note", "label": "mood", "labels": ["good", "bad"], "steps": 1, "lot_size": 20}
    return sd.Trainer(records(60), sd.Budget(3, 1e-6), model=model, held_out=0, **settings)


def test_a_run_lies_in_a_private_folder_and_goes_when_it_is_dropped(
    own_temporary_folder: Path, tmp_path: Path
) -> None:
    run = trainer(tmp_path).fit()
    (place,) = own_temporary_folder.glob("sourdine-*")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert run.folder.is_relative_to(place) and (run.folder / "certificate.json").exists()
    del run
    gc.collect()
    assert not list(own_temporary_folder.glob("sourdine-*"))


def test_a_saved_run_leaves_nothing_behind(own_temporary_folder: Path, tmp_path: Path) -> None:
    run = trainer(tmp_path).fit()
    out = run.save(tmp_path / "out")
    assert not list(own_temporary_folder.glob("sourdine-*"))
    assert run.folder == out and (out / "certificate.json").exists()
    again = run.save(tmp_path / "copy")  # a copy: the first one stays
    assert (out / "certificate.json").exists() and (again / "certificate.json").exists()


def test_a_run_that_fails_goes_with_its_trainer(
    own_temporary_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise InputError("no")

    made = trainer(tmp_path)
    monkeypatch.setattr(type(made), "_train", fails)
    with pytest.raises(InputError):
        made.fit()
    del made
    gc.collect()
    assert not list(own_temporary_folder.glob("sourdine-*"))


def test_it_goes_with_its_process_and_a_killed_one_leaves_it_to_clean(
    own_temporary_folder: Path,
) -> None:
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from sourdine.text.unsaved import Unsaved\n"
        "kept = Unsaved(); (kept.folder).mkdir(); print(kept.place, flush=True)\n"
        "if sys.argv[2] == 'killed': os.kill(os.getpid(), 9)\n"
    )
    for how, left in (("ended", 0), ("killed", 1)):
        subprocess.run([sys.executable, "-c", code, str(own_temporary_folder), how], check=False)
        assert len(list(own_temporary_folder.glob("sourdine-*"))) == left
    (found,) = [each for each in resting() if each.kind.name == "unsaved runs"]
    erase(erasable([found]))
    assert not list(own_temporary_folder.glob("sourdine-*"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_a_run_in_use_is_not_erased(own_temporary_folder: Path) -> None:
    kept = Unsaved()
    (kept.folder).mkdir()
    (found,) = [each for each in resting() if each.path == kept.place]
    assert found.kind.rule == "kept"
    assert not erasable([found], everything=True)
    assert erase([found]) == 0 and kept.folder.exists()
    kept.remove()
    assert not kept.place.exists()
