"""A step that is run again meets its noise with the same sums, or with fresh noise that is paid for.

Whatever happens to the folder, the model or the settings between two starts of a run: the difference of
what two of them release must never be the difference of their sums, which is bare.
"""

from __future__ import annotations

import copy
import os
import pickle
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stopping import engine, loss, network, rows
from test_resume import abandon, run
from torch import nn

from sourdine.budget import Budget
from sourdine.errors import CheckError, InputError, SourdineError
from sourdine.ledger import Ledger
from sourdine.rng import seeded
from sourdine.sgd import Engine
from sourdine.sgd.charge import Charge, poisson
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.sgd.sums import fingerprint


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def charged_again(folder: Path) -> list[int]:
    """How many steps were charged once more, each time."""
    found = [x for x in Ledger(folder / "ledger.sqlite").history() if x.kind == "charge"]
    return [int(x.label.split(", ")[1].split()[0]) for x in found]


OTHER = "this step has other sums than before"


# What was run is known, whatever becomes of the checkpoint


def test_a_run_whose_checkpoint_is_gone_is_not_run_again_for_nothing(tmp_path: Path) -> None:
    of = run(engine(tmp_path / "run"))
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with pytest.raises(InputError, match=r"the checkpoint in .* is gone"):
        engine(tmp_path / "run")
    assert of.ledger.spent().releases == 1
    shutil.rmtree(tmp_path / "run")
    assert run(engine(tmp_path / "run")).done == 20, "a new folder is a new run, charged anew"


def test_steps_are_not_forgotten_by_more_frequent_saves(tmp_path: Path) -> None:
    run(engine(tmp_path / "run", save_every=15), 14)
    run(engine(tmp_path / "run", save_every=2), 3)
    run(engine(tmp_path / "run", save_every=2, batch_size=3))
    assert charged_again(tmp_path / "run") == [15 - 2]


def test_a_run_that_is_stopped_counts_all_that_was_run(tmp_path: Path) -> None:
    run(engine(tmp_path / "run", save_every=15), 14)
    of = run(engine(tmp_path / "run", save_every=2), 3)
    other = engine(tmp_path / "run", save_every=2)
    other.stop("interrupt")
    settled = [x for x in of.ledger.history() if x.kind == "settle"]
    assert [count for _, count in settled[0].event.parts] == [15]


def test_an_older_checkpoint_pays_for_all_that_came_after_it(tmp_path: Path) -> None:
    of = engine(tmp_path / "run", save_every=4)
    for lot in of.lots():
        if of.done == 5:
            shutil.copy(tmp_path / "run" / "checkpoint.pt", tmp_path / "older")
        if of.done == 15:
            break
        of.step(lot)
    abandon(of)
    shutil.copy(tmp_path / "older", tmp_path / "run" / "checkpoint.pt")
    run(engine(tmp_path / "run", save_every=4, batch_size=3))
    assert charged_again(tmp_path / "run") == [15 - 4]


def test_keys_that_cannot_be_written_are_not_taken_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old key is still there then, and so are the steps that met its noise."""
    run(engine(tmp_path / "run"), 6)
    of = engine(tmp_path / "run")
    of._off_pace = True
    with monkeypatch.context() as patch, pytest.raises(SourdineError, match="cannot be written"):
        patch.setattr(
            "sourdine.rng.Streams.save", lambda *given: (_ for _ in ()).throw(OSError(28, "x"))
        )
        next(of.lots())
    assert of._off_pace and of._reached == 7


# Sums that differ never meet the same noise


class Counting(nn.Module):
    """State that no checkpoint knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = network(), 0

    def forward(self, x: Any) -> Any:
        self.calls += self.training
        return self.inner(x) * min(1.0, 0.02 * self.calls)


def test_a_state_that_is_not_saved_is_noticed(tmp_path: Path) -> None:
    run(engine(tmp_path / "run", model=Counting()), 12)
    with pytest.raises(SourdineError, match=OTHER):
        run(engine(tmp_path / "run", model=Counting()))
    assert charged_again(tmp_path / "run") == []
    again = run(engine(tmp_path / "run", model=Counting()))
    assert again.done == 20 and charged_again(tmp_path / "run") == [7]


class Weighted:
    """A criterion whose settings lie deep in it."""

    def __init__(self, weight: float) -> None:
        self.inner = [nn.CrossEntropyLoss(torch.tensor([1.0, weight]), reduction="none")]

    def __call__(self, model: Any, batch: Any) -> Any:
        return self.inner[0](model(batch[0]), batch[1])


def test_another_loss_that_looks_the_same_is_noticed(tmp_path: Path) -> None:
    run(engine(tmp_path / "run", loss=Weighted(1.0)), 5)
    with pytest.raises(SourdineError, match=OTHER):
        run(engine(tmp_path / "run", loss=Weighted(9.0)))


def test_weights_that_were_changed_after_the_engine_was_made_are_noticed(tmp_path: Path) -> None:
    run(engine(tmp_path / "run"), 5)
    of = engine(tmp_path / "run")
    of.model.load_state_dict({name: x + 0.5 for name, x in of.model.state_dict().items()})
    with pytest.raises(SourdineError, match=OTHER):
        run(of)


def test_a_step_that_failed_and_was_left_out_is_noticed(tmp_path: Path) -> None:
    of = engine(tmp_path / "run")
    step = of.optimizer.step
    for lot in of.lots():
        if lot.step == 3:
            of.optimizer.step = lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("elsewhere"))
            with pytest.raises(torch.OutOfMemoryError):
                of.step(lot)
            of.optimizer.step = step
            continue
        of.step(lot)
        if of.done == 6:
            break
    abandon(of)
    with pytest.raises(SourdineError, match=OTHER):
        run(engine(tmp_path / "run"))


class Masking(nn.Module):
    """Draws from numpy's generator and from Python's while it trains, as some of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any) -> Any:
        if self.training:
            x = x * torch.from_numpy(np.random.rand(*x.shape) < 0.7) * random.random()
        return self.inner(x)


def test_masks_of_numpy_are_those_of_the_step(tmp_path: Path) -> None:
    """As dropout is: a step that is run again is the same, and no seed of the user's decides it."""
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        found.append(run(engine(tmp_path / "run", model=Masking(), check=False), 5))
    first, second = (torch.cat([x.flatten() for x in of.model.parameters()]) for of in found)
    assert torch.equal(first, second)
    assert np.random.rand() != np.random.rand()


def test_copies_of_a_folder_never_meet_the_same_noise_with_other_sums(tmp_path: Path) -> None:
    run(engine(tmp_path / "run"), 8)
    shutil.copytree(tmp_path / "run", tmp_path / "branch")
    first = engine(tmp_path / "run")
    with pytest.raises(InputError, match=r"a copy of the folder .* is in use"):
        engine(tmp_path / "branch")
    run(first, 13)
    other = engine(tmp_path / "branch")
    for lot in other.lots():
        if lot.step == 9:
            other.optimizer.param_groups[0]["lr"] = 0.5
        other.step(lot)
    assert other.done == 20
    assert sum(charged_again(tmp_path / "branch")) >= 14 - 10, (
        "fresh noise where weights went another way"
    )


def test_notes_are_gone_with_the_key(tmp_path: Path, home: Path) -> None:
    of = engine(tmp_path / "run")
    lots = of.lots()
    of.step(next(lots))
    assert len(list((home / "keys").glob("*.steps"))) == 1
    assert not list((tmp_path / "run").glob("*pace*")), "how a lot was cut tells how large it is"
    for lot in lots:
        of.step(lot)
    assert not list((home / "keys").iterdir())


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 10_000, 123_457])
def test_a_fingerprint_tells_any_two_sums_apart(size: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        sums = torch.randn(size)
        seen = {fingerprint([sums])}
        for place in torch.randint(size, (20,)).unique() if size else []:
            other = sums.clone()
            other[place] = torch.nextafter(other[place], torch.tensor(9.0))
            seen.add(fingerprint([other]))
            assert fingerprint([other]) != fingerprint([sums])
    assert fingerprint([sums.clone()]) == fingerprint([sums])


# One engine, one process, one thread


def test_an_engine_cannot_be_copied() -> None:
    of = engine(None)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InputError, match="cannot be copied"):
            way(of)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_child_does_not_draw_the_noise_of_its_parent() -> None:
    of = engine(None)
    lots = of.lots()
    of.step(next(lots))
    child = os.fork()
    if not child:
        try:
            of.step(next(lots))
        except InputError as error:
            os._exit(7 if "in another process" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    of.step(next(lots))


def test_two_threads_make_no_two_steps_at_once() -> None:
    waiting, going = threading.Event(), threading.Event()

    def slow(model: Any, batch: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            waiting.set()
            going.wait(20)
        return loss(model, batch)

    of = engine(None, loss=slow, check=False)
    lot = next(of.lots())
    other = threading.Thread(target=lambda: of.step(lot))
    other.start()
    assert waiting.wait(20)
    with pytest.raises(InputError, match="another thread"):
        of.step(lot)
    going.set()
    other.join()
    assert of.done == 1


def test_a_plan_is_run_once() -> None:
    charge = Charge(
        Budget(3, 1e-6),
        poisson(8, 64, None, "zero-out"),
        5,
        unit="example",
        noise_multiplier=2.0,
        delta=None,
        label="training",
        folder=None,
        processes=Processes(),
    )
    model = network()

    def made() -> Engine:
        of = torch.optim.SGD(model.parameters(), lr=0.1)
        return Engine(model, of, rows(), charge, loss=loss, source=seeded(1))

    run(made())
    with pytest.raises(InputError, match="has an engine already"):
        made()


@pytest.mark.parametrize("what", ["stop", "pause"])
def test_what_is_asked_for_during_a_step_waits_for_its_end(
    what: str, tmp_path: Path, home: Path
) -> None:
    """By a signal's handler, say: the step draws its noise, so it is counted and noted."""
    calls = [0]

    def asking(model: Any, batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == 12:
            of.stop("clock") if what == "stop" else of.pause()
        return loss(model, batch)

    of = engine(tmp_path / "run", loss=asking, check=False)
    made = 0
    for lot in of.lots():
        before = next(of.model.parameters()).detach().clone()
        of.step(lot)
        made += not torch.equal(before, next(of.model.parameters()))
        if calls[0] >= 12:
            break
    with pytest.raises(InputError):
        next(of.lots())
    settled = [x for x in of.ledger.history() if x.kind == "settle"]
    if what == "stop":
        assert [count for _, count in settled[0].event.parts] == [made]
    else:
        [notes] = (home / "keys").glob("*.steps")
        assert not settled and notes.stat().st_size == 48 * made


def test_a_disk_that_is_full_at_the_first_save_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plan was reserved before there was an engine, as the Trainer does."""

    def charged() -> tuple[Charge, Folder]:
        folder = Folder(tmp_path / "run", Processes())
        folder.take()
        plan: dict[str, Any] = {"unit": "example", "noise_multiplier": 2.0, "delta": None, "label": "x"}
        lots = poisson(8, 64, None, "zero-out")
        charge = Charge(Budget(9, 1e-6), lots, 5, folder=folder, processes=Processes(), **plan)
        charge.reserve("secure", folder.run)
        return charge, folder

    def made(charge: Charge) -> Engine:
        model = network()
        return Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), rows(), charge, loss=loss)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(
            "sourdine.sgd.folder._packed", lambda state: (_ for _ in ()).throw(OSError("full"))
        )
        made(charged()[0])
    assert run(made(charged()[0])).done == 5


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files have no names here")
def test_a_file_system_without_locks_has_no_copy_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().suffix == ".steps":
            raise OSError(38, "Function not implemented")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert run(engine(tmp_path / "run")).done == 20


def test_a_folder_that_could_not_be_taken_is_not_taken(tmp_path: Path, home: Path) -> None:
    of = engine(tmp_path / "run")
    late = Folder(tmp_path / "run", Processes())
    for _ in range(2):
        with pytest.raises(InputError, match="in use"), late.held():
            pass
    run(of)
    with Folder(tmp_path / "run", Processes()).held():
        pass
    assert not list((home / "keys").iterdir())


# A refusal is not forgotten


def test_what_is_refused_is_refused_again() -> None:
    def mixing(model: Any, batch: Any) -> Any:
        return loss(model, batch) - loss(model, batch).mean()

    of = engine(None, loss=mixing)
    for _ in range(4):
        with pytest.raises((CheckError, InputError)):
            run(of)
    assert not of.ledger.history()


def test_a_run_that_was_found_to_mix_is_over() -> None:
    calls = [0]

    def later(model: Any, batch: Any) -> Any:
        calls[0] += 1
        found = loss(model, batch)
        return found - found.mean() if calls[0] > 40 else found

    of = engine(None, loss=later)
    with pytest.raises(CheckError):
        run(of)
    done = of.done
    for _ in range(3):
        with pytest.raises(CheckError, match="nothing more is drawn"):
            run(of)
    assert of.done == done < 20
    of.stop("crash")
