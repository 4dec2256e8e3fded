"""A run that is stopped, killed or out of disk loses nothing, and spends nothing that is not recorded.

20 kills here; benchmarks/engine/kill.py has 100.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from stopping import TIGHT, engine, ledger, loss, network, rows, weights
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from sourdine import rng
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError, SourdineError
from sourdine.ledger import Ledger
from sourdine.sgd import AdamW, Adaptive, Engine, FixedLots, ShuffledLots
from sourdine.sgd.agreement import agreement, digest
from sourdine.sgd.folder import Folder
from sourdine.sgd.graphs import unchanging
from sourdine.sgd.processes import Processes

KILLS = 20
SCRIPT = Path(__file__).with_name("stopping.py")


class Killed(BaseException):
    """Stands for the end of the process at this very place."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(of: Engine, upto: int | None = None) -> Engine:
    """Trains to the end, or leaves the process as a kill before the next lot would."""
    for lot in of.lots():
        if of.done == upto:
            return abandon(of)
        of.step(lot)
    return of


def abandon(of: Engine) -> Engine:
    if of._folder is not None:
        of._folder.close()  # the lock ends with its process
    return of


def copied(tmp_path: Path, home: Path) -> Callable[[], Path]:
    """The folder and the keys as they are now, set out again under another name."""
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.copytree(home, tmp_path / "keys")

    def back() -> Path:
        shutil.rmtree(home)
        shutil.copytree(tmp_path / "keys", home)
        return tmp_path / "copy"

    return back


def key(home: Path) -> Path:
    [found] = [path for path in (home / "keys").iterdir() if path.suffix not in (".noise", ".steps")]
    return found


def kinds(folder: Path) -> list[str]:
    return [entry[0] for entry in ledger(folder)]


def again(folder: Path, of: Engine) -> list[int]:
    """How many steps were charged again, each time."""
    texts = [text for kind, text, _ in ledger(folder) if kind == "charge"]
    counts = {of.charge.event(count).to_json(): count for count in range(1, of.steps + 1)}
    return [counts[text] for text in texts]


# Killed and resumed


def test_killed_runs_end_as_if_never_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(KILLS), "80"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env=environment
    )
    found = json.loads(done.stdout)
    assert found["kills"] > KILLS / 2  # the rest came to the end before
    assert found["killed"] == found["whole"]  # weights, epsilon, entries, and no keys left
    assert [entry[0] for entry in found["killed"]["entries"]] == ["reserve", "settle"]
    reserved, settled = found["killed"]["entries"]
    assert reserved[1] == settled[1]
    assert found["killed"]["keys"] == []


VARIANTS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": torch.optim.SGD},
    "adam": {"optimizer": torch.optim.Adam},
    "own adam": {"optimizer": AdamW},
    "adaptive": {"clip": lambda: Adaptive(1.0, count_noise=4.0)},
    "correlated": {"lots": lambda: FixedLots(64, 16, 20, 3), "lot_size": None},
    "shuffled": {"lots": lambda: ShuffledLots(64, 8), "lot_size": None},
    "users": {"users": [place // 3 for place in range(64)], "most_per_user": 2, "records": 22},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_resumed_run_is_the_same_run(name: str, tmp_path: Path, home: Path) -> None:
    def make(folder: Path) -> Engine:
        made = {
            k: v() if callable(v) and k in ("clip", "lots") else v for k, v in VARIANTS[name].items()
        }
        unit = "user" if name == "users" else "example"
        return engine(folder, budget=Budget(20.0, 1e-6, unit), **made)

    run(make(tmp_path / "run"), 0)
    back = copied(tmp_path, home)
    run(make(tmp_path / "run"), 5)
    run(make(tmp_path / "run"), 11)
    killed = run(make(tmp_path / "run"))
    assert list((home / "keys").iterdir()) == []
    whole = run(make(back()))
    assert weights(killed.model) == weights(whole.model)
    assert killed.clip.bound == whole.clip.bound
    assert killed.epsilon() == whole.epsilon()
    assert ledger(tmp_path / "run") == ledger(tmp_path / "copy")


def test_without_its_key_the_run_would_be_another(tmp_path: Path, home: Path) -> None:
    run(engine(tmp_path / "run"), 10)
    back = copied(tmp_path, home)
    key(home).unlink()
    fresh = run(engine(tmp_path / "run"))
    assert weights(fresh.model) != weights(run(engine(back())).model)


def test_dropout_that_is_not_replayed_is_caught(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def as_it_is(self: Engine, step: int) -> Iterator[None]:
        yield

    monkeypatch.setattr(Engine, "_reseeded", as_it_is)
    run(engine(tmp_path / "run"), 10)
    with pytest.raises(SourdineError, match="this step has other sums than before"):
        run(engine(tmp_path / "run"))


def test_a_first_pass_that_is_made_twice_drops_the_same(tmp_path: Path, home: Path) -> None:
    """A fresh engine has to find layouts anew, by more passes than one that knows them."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = network(), nn.Parameter(torch.ones(6))

        def forward(self, x: Any) -> Any:
            steps = x.unsqueeze(0).expand(4, *x.shape)  # time first, as many as a batch has
            return self.inner(steps * self.scale).mean(0)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Turned()
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def make(folder: Path) -> Engine:
        fresh = Turned()
        fresh.load_state_dict(start)
        return engine(folder, model=fresh)

    run(make(tmp_path / "run"), 0)
    back = copied(tmp_path, home)
    run(make(tmp_path / "run"), 10)
    killed = run(make(tmp_path / "run"))
    assert weights(killed.model) == weights(run(make(back())).model)


# With other data, settings or code


def other_rows() -> list[tuple[Any, Any]]:
    found = rows()
    found[-1] = (found[-1][0] + 1e-6, found[-1][1])
    return found


def other_loss(model: nn.Module, batch: Any) -> Any:
    return 2.0 * loss(model, batch)


def frozen() -> nn.Module:
    model = network()
    model[2].p = 0.2
    return model


@pytest.mark.parametrize(
    "change",
    [
        {"data": other_rows()},
        {"lr": 0.02},
        {"batch_size": 8},
        {"clip": 2.0},
        {"loss": other_loss},
        {"model": frozen},
        {"collate": lambda rows: torch.utils.data.default_collate([*rows])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_data_settings_or_code_take_fresh_keys_and_are_charged(
    change: dict[str, Any], tmp_path: Path, home: Path
) -> None:
    folder = tmp_path / "run"
    run(engine(folder), 10)  # the last checkpoint is that of step 7
    before = key(home).read_bytes()
    changed = {name: value() if name == "model" else value for name, value in change.items()}
    resumed = engine(folder, **changed)
    assert resumed.done == 7
    assert key(home).read_bytes() != before
    assert again(folder, resumed) == [7]
    assert resumed.epsilon() == resumed.charge.epsilon(7) > engine(None).charge.epsilon(13)
    run(resumed, 9)
    if "lr" in change:
        assert resumed.optimizer.param_groups[0]["lr"] == 0.02
    changed = {name: value() if name == "model" else value for name, value in change.items()}
    run(engine(folder, **changed))  # as it now is: nothing more to charge
    assert kinds(folder) == ["reserve", "charge", "settle"]


def test_a_missing_key_is_charged_and_a_second_time_again(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "run"
    run(engine(folder), 10)
    for _ in range(2):
        key(home).unlink()
        resumed = run(engine(folder), 12)
    assert again(folder, resumed) == [7, 7]
    assert run(engine(folder)).epsilon() == pytest.approx(resumed.charge.epsilon(20))


def test_nothing_is_run_again_that_the_budget_does_not_allow(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "run"
    run(engine(folder, **TIGHT), 10)
    before = ledger(folder), (folder / "checkpoint.pt").read_bytes(), key(home).read_bytes()
    back = copied(tmp_path, home)
    with pytest.raises(BudgetError, match="7 steps run again"):
        engine(folder, data=other_rows(), **TIGHT)
    assert before == (ledger(folder), (folder / "checkpoint.pt").read_bytes(), key(home).read_bytes())
    killed = run(engine(folder, **TIGHT))  # unlocked, and still the old run with the old data
    assert weights(killed.model) == weights(run(engine(back(), **TIGHT)).model)


def test_steps_that_hang_together_do_not_go_on_with_fresh_keys(tmp_path: Path, home: Path) -> None:
    for name, lots in {"a": ShuffledLots(64, 8), "b": FixedLots(64, 16, 20, 3)}.items():
        run(engine(tmp_path / name, lots=lots, lot_size=None), 10)
        for path in (home / "keys").iterdir():
            path.unlink()
        with pytest.raises(InputError, match="hang together"):
            engine(tmp_path / name, lots=lots, lot_size=None)


@pytest.mark.parametrize("damaged", [False, True])
def test_correlated_noise_without_its_past_is_refused(
    tmp_path: Path, home: Path, damaged: bool
) -> None:
    """With another past, what is drawn again would be added to other sums."""
    lots = FixedLots(64, 16, 20, 3)
    run(engine(tmp_path / "run", lots=lots, lot_size=None), 10)
    past = next((home / "keys").glob("*.noise"))
    content = bytearray(past.read_bytes())
    past.unlink()
    if damaged:
        number = torch.load(io.BytesIO(content), weights_only=True)["past"][-1][0].numpy().tobytes()
        content[content.index(number) + 3] ^= 1
        past.write_bytes(content)
    with pytest.raises(InputError, match="hang together"):
        engine(tmp_path / "run", lots=lots, lot_size=None)


def test_a_seeded_source_does_not_take_over_a_secure_run(tmp_path: Path, home: Path) -> None:
    run(engine(tmp_path / "run"), 10)
    key(home).unlink()
    with pytest.raises(InputError, match="secure source, not a seeded one"):
        engine(tmp_path / "run", source=rng.seeded(1))


def test_another_plan_model_or_optimizer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(engine(folder), 10)
    with pytest.raises(InputError, match="another plan"):
        engine(folder, steps=21)
    with pytest.raises(InputError, match="another plan"):
        engine(folder, noise_multiplier=1.0)
    with pytest.raises(InputError, match="its optimizer is AdamW"):
        engine(folder, optimizer=torch.optim.SGD)
    with pytest.raises(InputError, match="holds another run"):
        engine(folder, model=nn.Sequential(nn.Linear(6, 2)))
    with pytest.raises(InputError, match="does not know the run"):
        engine(folder, budget=Ledger(None, Budget(20.0, 1e-6)))
    run(engine(folder))


# Learning rates


SCHEDULES: list[Callable[..., Any]] = [
    lambda optimizer, last: LambdaLR(optimizer, lambda step: 1 / (1 + step), last),
    lambda optimizer, last: StepLR(optimizer, 3, 0.5, last),
    lambda optimizer, last: CosineAnnealingLR(optimizer, 20, last_epoch=last),
]


def scheduled(of: Engine, make: Callable[..., Any], last: int, upto: int | None = None) -> Engine:
    schedule = make(of.optimizer, last)
    for lot in of.lots():
        if of.done == upto:
            return abandon(of)
        of.step(lot)
        schedule.step()
    return of


@pytest.mark.parametrize("make", SCHEDULES, ids=["lambda", "step", "cosine"])
def test_a_schedule_made_from_the_steps_done_goes_on(
    make: Callable[..., Any], tmp_path: Path, home: Path
) -> None:
    scheduled(engine(tmp_path / "run"), make, -1, 0)
    back = copied(tmp_path, home)
    for upto in (10, None):
        of = engine(tmp_path / "run")
        killed = scheduled(of, make, of.done - 1, upto)
    whole = engine(back())
    assert weights(killed.model) == weights(scheduled(whole, make, -1).model)
    assert kinds(tmp_path / "run") == ["reserve", "settle"]


def test_a_schedule_that_starts_over_is_noticed_and_charged(tmp_path: Path, home: Path) -> None:
    folder, make = tmp_path / "run", SCHEDULES[0]
    scheduled(engine(folder), make, -1, 12)
    before = key(home).read_bytes()
    of = engine(folder)
    scheduled(of, make, -1, 9)  # step 7 moved otherwise: 8 to 13 have to be drawn anew
    assert again(folder, of) == [6]
    assert key(home).read_bytes() != before


def test_a_schedule_that_starts_over_is_refused_without_budget(tmp_path: Path) -> None:
    folder, make = tmp_path / "run", SCHEDULES[0]
    scheduled(engine(folder, **TIGHT), make, -1, 12)
    of = engine(folder, **TIGHT)
    with pytest.raises(BudgetError):
        scheduled(of, make, -1)
    with pytest.raises(BudgetError):  # and once more, and nothing of it was saved
        next(of.lots())
    assert of.done == 8
    abandon(of)
    assert Folder(folder, Processes()).state["step"] == 7


# Ends


def test_an_interrupt_gives_back_what_was_not_run(tmp_path: Path, home: Path) -> None:
    of = engine(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        for lot in of.lots():
            if of.done == 9:
                raise KeyboardInterrupt
            of.step(lot)
    of.stop("interrupt")
    assert ledger(tmp_path / "run")[-1] == ["settle", of.charge.event(9).to_json(), "interrupt"]
    assert Folder(tmp_path / "run", Processes()).state["step"] == 9  # nothing of it is lost
    assert list((home / "keys").iterdir()) == []
    with pytest.raises(InputError, match="ended after 9 of 20"):
        engine(tmp_path / "run")


@pytest.mark.parametrize(
    ("where", "counted"), [("adding.clipped_sum", 9), ("engine.add_noise_", 10), ("optimizer", 10)]
)
def test_an_interrupt_within_a_step(
    where: str, counted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once noise was drawn the step counts, and its noise is not drawn for other weights."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    of = engine(tmp_path / "run", lot_size=48, budget=Budget(100.0, 1e-6))
    with pytest.raises(KeyboardInterrupt):
        for lot in of.lots():
            if of.done == 9 and where == "optimizer":
                monkeypatch.setattr(of.optimizer, "step", interrupt)
            elif of.done == 9:
                monkeypatch.setattr(f"sourdine.sgd.{where}", interrupt)
            of.step(lot)
    monkeypatch.undo()
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    assert next(of.lots()).step == counted
    of.stop("interrupt")
    assert ledger(tmp_path / "run")[-1][1] == of.charge.event(counted).to_json()


def test_steps_lost_by_a_kill_are_not_given_back(tmp_path: Path) -> None:
    run(engine(tmp_path / "run"), 12)
    of = engine(tmp_path / "run")
    assert of.done == 7
    assert of.epsilon() == of.charge.epsilon(14)  # so far it may have come
    of.stop("crash")
    assert ledger(tmp_path / "run")[-1][1] == of.charge.event(14).to_json()


@pytest.mark.parametrize("lots", [ShuffledLots(64, 8), FixedLots(64, 16, 20, 3)])
def test_a_plan_that_cannot_be_parted_is_kept_whole(lots: Any, tmp_path: Path) -> None:
    of = engine(tmp_path / "run", lots=lots, lot_size=None)
    run(of, 9)
    of.stop("interrupt")
    assert ledger(tmp_path / "run")[-1][1] == of.charge.event().to_json()


def test_a_finished_run_is_opened_and_left_as_it_is(tmp_path: Path, home: Path) -> None:
    first = run(engine(tmp_path / "run"))
    entries = ledger(tmp_path / "run")
    second = engine(tmp_path / "run")
    assert weights(second.model) == weights(first.model)
    assert second.epsilon() == first.epsilon()
    assert list(second.lots()) == []
    assert ledger(tmp_path / "run") == entries
    assert list((home / "keys").iterdir()) == []


def killed_in(monkeypatch: pytest.MonkeyPatch, of: Engine, what: Any, name: str, after: bool) -> None:
    """Runs until a call, and ends before or after it."""
    call = getattr(what, name)

    def last(*values: Any, **named: Any) -> None:
        if after:
            call(*values, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(what, name, last)
        with pytest.raises(Killed):
            run(of)
    abandon(of)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["reserve", "settle"])
def test_killed_around_the_ledger(
    name: str, after: bool, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = engine(tmp_path / "run")
    killed_in(monkeypatch, of, of.ledger, name, after)
    assert key(home).exists()
    run(engine(tmp_path / "run"))
    assert kinds(tmp_path / "run") == ["reserve", "settle"]
    assert list((home / "keys").iterdir()) == []


def test_a_folder_that_was_never_charged_starts_over(tmp_path: Path, home: Path) -> None:
    abandon(engine(tmp_path / "run", steps=30))
    run(engine(tmp_path / "run", steps=10, lr=0.5))
    assert kinds(tmp_path / "run") == ["reserve", "settle"]


# Folders


def test_a_folder_in_use_is_locked(tmp_path: Path) -> None:
    of = engine(tmp_path / "run")
    with pytest.raises(InputError, match="in use by another run"):
        engine(tmp_path / "run")
    run(of)
    engine(tmp_path / "run")


def test_a_folder_that_changed_before_the_lock_is_refused(tmp_path: Path) -> None:
    late = Folder(tmp_path / "run", Processes())
    abandon(engine(tmp_path / "run"))
    with pytest.raises(InputError, match="in use by another run"):
        late.take()
    late.close()


@pytest.mark.parametrize("which", range(6))
def test_a_full_disk_leaves_the_last_checkpoint_whole(
    which: int, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flush = tmp_path / "run", os.fsync
    run(engine(folder), 0)
    back = copied(tmp_path, home)
    left = iter(range(which))

    def full(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    of = engine(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SourdineError, match="No space left"):
            run(of)
        reached = of.done
        with pytest.raises(SourdineError, match="No space left"):
            next(of.lots())  # nothing is drawn past a checkpoint that is not there
    assert of.done == reached <= Folder(folder, Processes()).state["step"] + 7
    abandon(of)
    assert not list(folder.glob("*.new"))
    killed = run(engine(folder))
    assert weights(killed.model) == weights(run(engine(back())).model)
    assert kinds(folder) == ["reserve", "settle"]


def test_damage_is_noticed(tmp_path: Path) -> None:
    run(engine(tmp_path / "run"), 10)
    path = tmp_path / "run" / "checkpoint.pt"
    whole = path.read_bytes()
    state = torch.load(path, weights_only=True)
    place = whole.index(state["model"]["0.weight"].numpy().tobytes())
    changed = bytes([whole[place] ^ 1])
    for broken in (whole[: len(whole) // 2], b"", whole[:place] + changed + whole[place + 1 :]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="is damaged"):
            engine(tmp_path / "run")
    path.write_bytes(whole)
    run(engine(tmp_path / "run"))


def test_keys_never_lie_in_the_folder(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "run"
    lots = FixedLots(64, 16, 20, 3)
    of = engine(folder, lots=lots, lot_size=None)
    for lot in of.lots():
        of.step(lot)
        for path in (home / "keys").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
        secret = key(home).read_bytes()[:32]
        assert of._correlated is not None
        noise = of._correlated.state_dict()["past"][-1][0].numpy().tobytes()
        for path in folder.iterdir():
            found = path.read_bytes()
            assert secret not in found
            assert secret.hex().encode() not in found
            assert noise not in found
    assert (home / "keys").stat().st_mode & 0o777 == 0o700
    assert list((home / "keys").iterdir()) == []


def test_keys_inside_the_folder_are_refused(tmp_path: Path, home: Path) -> None:
    for folder in (home, tmp_path):
        with pytest.raises(InputError, match="keys would lie inside"):
            engine(folder)


def test_the_folder_does_not_tell_whether_data_were_guessed(tmp_path: Path) -> None:
    """Two runs on the same data: a bare hash would be the same."""
    for name in ("a", "b"):
        abandon(engine(tmp_path / name))
    first, second = (Folder(tmp_path / name, Processes()).state["agreement"] for name in "ab")
    assert first != second


# The agreement


class Item:
    def __init__(self) -> None:
        self.text, self.tags = "one", {"x", "y", "z"}


def things() -> list[Any]:
    text = "".join(["a", "b"])
    return [
        torch.arange(6.0).view(2, 3).t(),
        torch.zeros(0, dtype=torch.bfloat16),
        torch.tensor(True),
        np.arange(6).reshape(2, 3).T,
        {"a": 1, "b": [1.5, None, True], "c": (text, text)},
        {"some", "more", "words"},
        frozenset({1, "1"}),
        b"\0",
        np.float32(1.5),
        np.array(["a", "bc"], dtype=object),
        Path("some/where"),
        float("nan"),
        Item(),
    ]


def facts(data: list[Any], call: Any = loss, **changes: Any) -> str:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return agreement(model, optimizer, data, settings={}, calls=(call,), **changes).hex()


SCALE = 2.0


def nested(model: nn.Module, batch: Any) -> Any:
    return torch.stack([inner(model, x) for x in map(lambda x: x * SCALE, batch)])  # noqa: C417


def inner(model: nn.Module, x: Any) -> Any:
    return model(x).sum()


def test_attributes_of_functions_are_looked_at() -> None:
    """A collate function's `at_least` decides how a batch is padded."""

    def call(model: nn.Module, batch: Any) -> Any:
        return inner(model, batch)

    before = facts([], call)
    call.at_least = 3  # type: ignore[attr-defined]
    assert facts([], call) != before


class Closed:
    __slots__ = ("secret",)

    def __getattribute__(self, name: str) -> Any:
        if name == "secret":
            raise RuntimeError("not for you")
        return super().__getattribute__(name)


CLOSED = Closed()


def test_what_cannot_be_read_is_never_the_same() -> None:
    def call(model: nn.Module, batch: Any) -> Any:
        return inner(model, batch) if CLOSED else None

    assert facts([], call) != facts([], call)


@pytest.mark.parametrize("graphs", [None, unchanging])
def test_a_run_whose_batches_are_cut_otherwise_is_charged_again(
    graphs: Any, tmp_path: Path, home: Path
) -> None:
    """Somebody kills it, gives the dataset `sizes`, and starts it again: noise must not come twice."""

    class Sized(list[Any]):
        sizes: list[int] | None = None

    def made(sizes: list[int] | None) -> Any:
        data = Sized(rows())
        data.sizes = sizes
        return engine(tmp_path / "run", data=data, graphs=graphs)

    for sizes, kinds in (
        (None, ["reserve"]),
        (None, ["reserve"]),
        ([*range(64)], ["reserve", "charge"]),
    ):
        of = made(sizes)
        lots = of.lots()
        for _ in range(3):
            of.step(next(lots))
        assert [entry.kind for entry in of.ledger.history()] == kinds
        abandon(of)


def test_the_agreement_is_the_same_in_every_process() -> None:
    code = "import test_resume as t; print(t.facts(t.things(), t.nested))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(SCRIPT.parent)}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    import test_resume

    assert done.stdout.strip() == test_resume.facts(test_resume.things(), test_resume.nested)


def test_the_agreement_does_not_depend_on_what_the_compiler_does_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = facts(things())
    monkeypatch.setattr(torch.optim.Adam, "step", lambda *given: None)
    assert facts(things()) == before


def test_the_agreement_does_not_depend_on_who_is_who() -> None:
    text = "".join(["a", "b"])
    assert digest([text, text]) == digest(["ab", "".join(["a", "b"])])
    assert digest(torch.ones(2, 2).t()) == digest(torch.ones(2, 2))


def test_all_that_differs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [
        *(
            1,
            1.0,
            True,
            "1",
            b"1",
            None,
            [1],
            (1,),
            [1, 1],
            [[1], 1],
            [1, [1]],
            {"a": 1},
            {"b": 1},
            {1},
        ),
        *(torch.ones(1), torch.ones(1, 1), torch.ones(1).double(), np.ones(1), np.float32(1.0), [], ""),
        *(["ab", "c"], ["a", "bc"], Path("1")),
    ]
    assert len({digest(x) for x in apart}) == len(apart)
    assert digest(sys._getframe()) != digest(sys._getframe())  # unreadable: never the same
    before = facts([1], nested)
    monkeypatch.setitem(nested.__globals__, "SCALE", 3.0)
    assert facts([1], nested) != before
    monkeypatch.setitem(nested.__globals__, "SCALE", 2.0)
    assert facts([1], nested) == before
    monkeypatch.setitem(nested.__globals__, "inner", lambda model, x: model(x).mean())
    assert facts([1], nested) != before


def test_names_and_closures_count_as_code() -> None:
    def scaled(by: float) -> Callable[..., Any]:
        return lambda model, batch: by * model(batch)

    assert facts([1], scaled(1.0)) == facts([1], scaled(1.0)) != facts([1], scaled(2.0))
    first, second = (lambda m, b: m(b).sum(1)), (lambda m, b: m(b).prod(1))
    assert first.__code__.co_code == second.__code__.co_code  # they differ in a name only
    assert facts([1], first) != facts([1], second)
    assert facts([1], nn.L1Loss()) != facts([1], nn.MSELoss())


def test_threads_and_shares_count() -> None:
    assert facts([1, 2], rank=0, count=2) != facts([1, 2])
    assert facts([1, 2], rank=0, count=2) == facts([1, 3], rank=0, count=2)
    assert facts([1, 2], rank=1, count=2) != facts([1, 3], rank=1, count=2)


def test_after_memory_ran_out_a_killed_run_cuts_its_lots_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ran out in step 3; the steps are run again where there is enough of it, and cost nothing."""
    sizes: dict[int, int] = {}
    short_of_memory = True

    def sums(of: Engine, lot: Any) -> Any:
        if short_of_memory and lot.step == 3:
            of.batch_size = 2  # what the engine does when a batch does not fit
        sizes[lot.step] = of.batch_size
        return whole(of, lot)

    whole = Engine._sums
    monkeypatch.setattr(Engine, "_sums", sums)
    run(engine(tmp_path / "run", **TIGHT), 6)
    began, short_of_memory = dict(sizes), False
    first = run(engine(tmp_path / "run", **TIGHT))
    assert {step: sizes[step] for step in began} == began == {0: 4, 1: 4, 2: 4, 3: 2, 4: 2, 5: 2}
    assert sizes[19] == 2
    assert [kind for kind, *_ in ledger(tmp_path / "run")] == ["reserve", "settle"]
    assert first.epsilon() <= 3


class Drops(nn.Module):
    """A layer that is run example by example comes before dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.two, self.last = nn.Linear(6, 8), nn.Bilinear(8, 8, 4), nn.Linear(4, 2)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        hidden = torch.tanh(self.first(x))
        return self.last(self.dropout(self.two(hidden, hidden)))


def test_a_check_that_is_made_once_does_not_move_dropout(tmp_path: Path, home: Path) -> None:
    def started(folder: Path) -> Engine:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Drops()
        return engine(folder, model=model, batch_size=16, **TIGHT)

    run(started(tmp_path / "run"), 1)
    back = copied(tmp_path, home)
    run(started(tmp_path / "run"), 10)  # and once more from 7 on
    killed = run(started(tmp_path / "run"))
    assert weights(killed.model) == weights(run(started(back())).model)


def test_a_run_that_is_found_off_its_pace_comes_to_its_end(tmp_path: Path, home: Path) -> None:
    """Other learning rates than the first time: charged again, with fresh keys, and all steps are run."""
    run(engine(tmp_path / "run"), 10)
    of = engine(tmp_path / "run")
    for lot in of.lots():
        for group in of.optimizer.param_groups:
            group["lr"] = 0.5
        of.step(lot)
    assert of.done == of.steps


class Scaled:
    """A loss, or a collation, with a setting of its own."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        return self.scale * loss(model, batch)


class Tempered(nn.Module):
    """A model with settings that are no parameters, one of them inside another object."""

    def __init__(self, heat: float, deep: float) -> None:
        super().__init__()
        self.net, self.heat, self.config = network(), heat, SimpleNamespace(deep={"heat": deep})

    def forward(self, x: Any) -> Any:
        return self.net(x) / self.heat / self.config.deep["heat"]


@dataclass(slots=True)
class Slotted:
    scale: float


def closed(settings: Any) -> Any:
    return lambda model, batch: settings.scale * loss(model, batch)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda: {"loss": Scaled(1.0)}, lambda: {"loss": Scaled(0.3)}),
        (lambda: {"loss": Scaled(1.0).__call__}, lambda: {"loss": Scaled(0.3).__call__}),
        (lambda: {"model": Tempered(1.0, 1.0)}, lambda: {"model": Tempered(0.3, 1.0)}),
        (lambda: {"model": Tempered(1.0, 1.0)}, lambda: {"model": Tempered(1.0, 0.3)}),
        (
            lambda: {"loss": closed(Namespace(scale=1.0))},
            lambda: {"loss": closed(Namespace(scale=0.3))},
        ),
        (lambda: {"loss": closed(Slotted(1.0))}, lambda: {"loss": closed(Slotted(0.3))}),
    ],
    ids=["loss", "method", "model", "inside", "closure", "slots"],
)
def test_settings_of_objects_count(before: Any, after: Any, tmp_path: Path, home: Path) -> None:
    run(engine(tmp_path / "run", **before()), 10)
    same = engine(tmp_path / "run", **before())
    assert again(tmp_path / "run", same) == []
    same.pause()
    assert again(tmp_path / "run", engine(tmp_path / "run", **after())) == [7]
