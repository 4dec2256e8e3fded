"""AdamW takes the noise of a lot into its step only where a kernel does the same as noise, then step.

Without a GPU the kernel is a twin of plain torch here; sgd/kernels.py itself is held against both in
test_kernels.py.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook
from zoo import torch

from sourdine.rng import seeded
from sourdine.sgd import AdamW, Adaptive, Canaries, FixedLots, optim
from sourdine.sgd import sums as sums_room
from sourdine.sgd.sums import Sums

from test_engine import N, engine, run, small, weights  # isort: skip


class Twin:
    """As much of sgd/kernels.py as the optimizer asks for; counts its steps."""

    PARTS = 64

    def __init__(self) -> None:
        self.steps = 0

    def adam_(self, flat: Any, *given: Any) -> None:
        self.steps += 1
        flat.zero_()


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Twin:
    found = Twin()
    monkeypatch.setattr(optim, "kernels", lambda x: found)
    return found


def made(**settings: Any) -> Any:
    net = small()
    return engine(net, optimizer=AdamW(net.parameters(), lr=0.1), source=seeded(1), **settings)


def test_plain_noise_is_taken(twin: Twin) -> None:
    assert run(made()).steps == twin.steps > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"canaries": Canaries(20)},
        {"clip": Adaptive(0.5)},
        {"lots": FixedLots(N, N // 4, 8, 2), "lot_size": None, "steps": 8},
    ],
)
def test_other_noise_is_not(settings: dict[str, Any], twin: Twin) -> None:
    """Canaries are summed beside the gradients, a count beside them moves the clip, noise has a past."""
    of = run(made(**settings))
    assert twin.steps == 0 and of.done == of.steps
    if "clip" in settings:
        assert of.clip.bound != 0.5


def test_noise_of_several_processes_is_not(twin: Twin) -> None:
    """Sums of one process alone must not get it."""
    of, added = made(), list[Any]()
    of.step(next(of.lots()))
    of._processes = SimpleNamespace(count=2, first=True, add_up_=added.append, share_=lambda x: None)
    of._places.begin()
    of._finish(1, torch.zeros(()))
    assert twin.steps == 1 and len(added) == 1 and of.optimizer._taken is None
    assert of._places.flats[0].std() > 0


def test_what_was_taken_is_dropped_with_an_interrupt(
    twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = made()

    def interrupt(*given: Any) -> None:
        assert of.optimizer._taken is not None
        raise KeyboardInterrupt

    monkeypatch.setattr(of.optimizer, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(of)
    assert of.optimizer._taken is None and not of._places.flats[0].any() and twin.steps == 0


# What fits


def given(*shapes: tuple[int, ...]) -> tuple[AdamW, Sums, list[Any]]:
    own = [torch.ones(shape) for shape in shapes]
    return AdamW(own, lr=0.1), Sums(own), own


def takes(optimizer: AdamW, sums: Sums) -> bool:
    found = optimizer.take(sums, 1.0, seeded(1), 2.0)
    assert optimizer.drop() == found
    return found


def test_what_fits_is_taken(twin: Twin) -> None:
    optimizer, sums, _ = given((3, 4), (5,))
    assert takes(optimizer, sums) and takes(optimizer, sums)
    assert not optimizer.take(sums, 0.0, seeded(1), 2.0)


def test_an_optimizer_of_ones_own_makes_its_own_steps(twin: Twin) -> None:
    class Own(AdamW):
        pass

    own = [torch.ones(3)]
    assert not takes(Own(own), Sums(own))


def test_who_wants_to_see_gradients_sees_them(twin: Twin) -> None:
    """A hook that masks rows, say, would mask nothing."""
    optimizer, sums, _ = given((3,))
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    assert not takes(optimizer, sums)
    handle.remove()
    assert takes(optimizer, sums)
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    assert not takes(optimizer, sums)
    handle.remove()


def test_what_lies_otherwise_in_memory_is_not_taken(twin: Twin) -> None:
    gap = torch.ones(2, 6)[:, :3]
    assert not takes(AdamW([gap]), Sums([gap]))
    optimizer, sums, own = given((3, 4))
    assert takes(optimizer, sums)
    for name in ("mean", "square"):
        before = optimizer.state[own[0]][name]
        optimizer.state[own[0]][name] = torch.zeros(4, 3).t()
        assert not takes(optimizer, sums)
        optimizer.state[own[0]][name] = torch.zeros(3, 4, dtype=torch.float64)
        assert not takes(optimizer, sums)
        optimizer.state[own[0]][name] = before
    assert takes(optimizer, sums)


def test_weights_of_one_group_take_their_steps_together(twin: Twin) -> None:
    optimizer, sums, own = given((3,), (4,))
    assert takes(optimizer, sums)
    optimizer.state[own[1]]["step"] += 1
    assert not takes(optimizer, sums)


def test_moments_that_were_loaded_are_found(twin: Twin) -> None:
    optimizer, sums, _ = given((3,), (4,))
    assert takes(optimizer, sums)
    before = optimizer._table
    assert takes(optimizer, sums) and optimizer._table is before
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert takes(optimizer, sums) and optimizer._table is not before


def test_nothing_is_kept_for_what_does_not_train() -> None:
    """Moments of a frozen model would be twice its size, in memory and in every checkpoint."""
    net = small()
    net[0].requires_grad_(False)
    of = run(engine(net, optimizer=AdamW(net.parameters(), lr=0.1)))
    moved = {id(x) for x in net.parameters() if x.requires_grad}
    assert {id(x) for x in of.optimizer.state} == moved


def test_frozen_weights_are_not_for_the_kernel(twin: Twin) -> None:
    net = small()
    net[0].requires_grad_(False)
    of = run(engine(net, optimizer=AdamW(net.parameters(), lr=0.1)))
    assert twin.steps == 0 and all(x.requires_grad for x in of.optimizer.state)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_the_optimizer_trains_too(how: Any) -> None:
    """Copies hold settings and state, and nothing else."""
    found = []
    for copied in (False, True):
        net = small()
        own = AdamW(net.parameters(), lr=0.1)
        if copied:
            with torch.no_grad():
                net, own = how((net, own))
        found.append(weights(run(engine(net, optimizer=own, source=seeded(1)))))
    assert torch.equal(*found)


def test_sums_of_the_last_lot_are_let_go(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them would be one more copy of all that is trained."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    real, most = sums_room.Sums.begin, [0]

    def begin(self: Sums, shown: bool = True) -> None:
        alive.add(self)
        gc.collect()
        most[0] = max(most[0], len(alive))
        real(self, shown)

    monkeypatch.setattr(Sums, "begin", begin)
    run(made())
    assert most == [1]


def test_noise_is_drawn_anew_for_every_step(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = list[bytes]()
    monkeypatch.setattr(Twin, "adam_", lambda self, flat, key, *rest: (keys.append(key), flat.zero_()))
    of = run(made())
    assert len(set(keys)) == len(keys) == of.steps


def test_what_was_looked_at_holds_for_these_sums_and_once(twin: Twin) -> None:
    """The answer is given before the step; it must not be taken for other sums or a later step."""
    optimizer, sums, own = given((3,), (2, 2))
    optimizer.look(sums)
    assert takes(optimizer, sums)
    optimizer.look(sums)
    assert not takes(optimizer, Sums([torch.ones(3)])), "sums of other parameters"
    optimizer.look(sums)
    optimizer.drop()
    own[0].data = torch.ones(3, 2)[:, 0]  # now it lies otherwise
    assert not takes(optimizer, sums)
