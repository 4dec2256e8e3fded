"""What the processes of test_processes.py do: one function a test, run by every process.

Reads lines "NAME COUNT PLACE" and has so many children do it, who write what they found to
PLACE/NAME.RANK as JSON; answers each line with how they ended. The imports are made once for all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from stopping import TIGHT, child, engine, network, rows, weights
from torch import nn

from sourdine.budget import Budget
from sourdine.errors import SourdineError
from sourdine.ledger import Ledger
from sourdine.rng import secure, seeded
from sourdine.sgd import Engine, ShuffledLots, traced
from sourdine.sgd import engine as room
from sourdine.sgd.processes import Processes

LOTS = [[0, 3, 4, 9, 10, 31], [], [2, 4, 6], [1], [0, 1, 2, 3, 4, 5, 6, 7], [63]]  # the third is even


def same_lots(self: Processes, lots: Any, units: int, step: int, source: Any) -> Any:
    """Each process its own share of a lot that is the same for all."""
    return np.array([x for x in LOTS[step] if x % self.count == self.rank], dtype=np.int64)


def given_lots(place: Path, **settings: Any) -> Any:
    """Without noise and with lots that are given, so many processes are one."""
    Processes.draw, room.add_noise_ = same_lots, lambda *_: None  # type: ignore[method-assign]
    model = network()
    if dist.is_initialized() and dist.get_rank():
        for parameter in model.parameters():
            parameter.data.normal_()  # a bad start, which must not matter
    model[2].p = 0.0
    run = engine(None, len(LOTS), model=model, optimizer=torch.optim.SGD, lr=1.0, **settings)
    for lot in run.lots():
        run.step(lot)
        assert run.graphs is None or all(run.graphs.made)
    return [x.tolist() for x in run.model.parameters()]


def given_lots_by_graphs(place: Path) -> Any:
    return given_lots(place, graphs=traced)


def only_noise(_: Path, everywhere: bool = False) -> Any:
    """How the weights move where every gradient is zero, in parts of the noise's deviation."""
    if everywhere and dist.get_rank() == 1:  # a mistake that must be noticed
        Processes.add_up_ = noisy_sum  # type: ignore[method-assign]
    model = nn.Linear(100, 100)
    settings: dict[str, Any] = {"optimizer": torch.optim.SGD, "lr": 1.0, "check": False}
    run = engine(None, 10, model=model, loss=nothing, **settings)
    moves = []
    for lot in run.lots():
        before = torch.cat([x.flatten() for x in model.parameters()]).detach()
        run.step(lot)
        moves.append(torch.cat([x.flatten() for x in model.parameters()]).detach() - before)
    return float(torch.cat(moves).square().mean().sqrt()) * 8 / run.noise_multiplier


def noise_everywhere(place: Path) -> Any:
    return only_noise(place, everywhere=True)


def noisy_sum(self: Processes, tensors: Any, add_up_: Any = Processes.add_up_) -> None:
    room.add_noise_(tensors, 2.0, secure())
    add_up_(self, tensors)


def nothing(model: nn.Module, batch: Any) -> Any:
    return 0.0 * model(torch.zeros(len(batch[0]), 100)).sum(1)


def on_the_grid(_: Path) -> Any:
    """What the released sums leave when divided by the grid of the noise: all bits below it."""
    model = network()
    run = engine(None, 4, model=model, optimizer=torch.optim.SGD, lr=1.0, lot_size=32)
    rest, step = [], model[0].weight

    def look(*_: Any) -> None:
        sums = step.grad * run.plan.lot_size
        grid = 2.0 ** (np.floor(np.log2(run.noise_multiplier)) - 10)
        rest.append(float((sums / grid - (sums / grid).round()).abs().max()))

    run.optimizer.register_step_pre_hook(look)
    for lot in run.lots():
        run.step(lot)
    return max(rest)


def empty(_: Path) -> Any:
    """Three units and small lots: most shares are empty."""
    run = engine(None, 40, data=rows(3), lot_size=0.3)
    for lot in run.lots():
        run.step(lot)
    return weights(run.model)


def charged(place: Path) -> Any:
    book = Ledger(place / "book.sqlite", Budget(3.0, 1e-6))
    run = engine(None, 4, budget=book, noise_multiplier=None)
    for lot in run.lots():
        run.step(lot)
    return [run.noise_multiplier, weights(run.model)]


def refused(place: Path) -> Any:
    """At once where the noise is searched for; before the first lot where it is given."""
    book, found = Ledger(place / "book.sqlite", Budget(1.0, 1e-6)), []
    next(engine(None, 4, budget=book, noise_multiplier=None).lots())  # takes all
    for noise in (None, 2.0):
        try:
            next(engine(None, 4, budget=book, noise_multiplier=noise).lots())
        except SourdineError as error:
            found.append(type(error).__name__)
    return found


def other_kinds(_: Path) -> Any:
    """Models and lots that cannot be trained in this way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found = []
    sharded = fully_shard(network(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    wrapped = nn.parallel.DistributedDataParallel(network())
    for change in ({"model": wrapped}, {"model": sharded}, {"lots": ShuffledLots(64, 8)}):
        try:
            engine(None, **change)
        except SourdineError as error:
            found.append(str(error))
    return found


def fails(_: Path) -> Any:
    """Process 1 fails in its third step; how long does process 0 wait?"""
    run = engine(None, 10)
    start = time.monotonic()
    try:
        for lot in run.lots():
            if run.done == 2 and dist.get_rank() == 1:
                os._exit(7)
            run.step(lot)
    except Exception as error:
        return [type(error).__name__, time.monotonic() - start]
    return None


def begin(place: Path) -> Any:
    os.environ["SOURDINE_HOME"] = str(place / "home")
    run = engine(place / "run", 20, **TIGHT)
    next(iter(run.lots()))
    return None


def resume(place: Path) -> Any:
    """Goes on with the run in PLACE/run; the processes named in PLACE/die end in step 10, the hard way."""
    os.environ["SOURDINE_HOME"] = str(place / "home")
    dies = (place / "die").read_text().split() if (place / "die").exists() else []
    run = engine(place / "run", 20, **TIGHT)
    for lot in run.lots():
        if run.done == 10 and str(dist.get_rank()) in dies:
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(lot)
    return [weights(run.model), run.epsilon()]


def in_use(place: Path) -> Any:
    """A lock is found by process 0, and told to all; so is a key that only one of them lacks."""
    os.environ["SOURDINE_HOME"] = str(place / "home")
    found: list[Any] = []
    run: Engine | None = engine(place / "run", 20)
    try:
        engine(place / "run", 20)
    except SourdineError as error:
        found.append(str(error))
    next(run.lots())
    run._folder.close()
    if dist.get_rank() == 1:
        run._folder.key.unlink()
    dist.barrier()
    run = engine(place / "run", 20)
    found.append(run._folder.key.exists())
    for lot in run.lots():
        run.step(lot)
    return [*found, weights(run.model)]


def seeded_lots(_: Path) -> Any:
    """Sources that are alike in all processes must not give lots that are alike."""
    run = engine(None, 5, source=seeded(1), lot_size=32)
    own = []
    for lot in run.lots():
        own.append((lot._units // 2).tolist())
        run.step(lot)
    return own


def member(rank: int, count: int, place: Path, name: str) -> None:
    warnings.simplefilter("ignore")
    if count > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(str(place / f"{name}.meeting"), count)  # no port that could be taken
        most = timedelta(seconds=60)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=most)
    found = globals()[name](place)
    (place / f"{name}.{rank}").write_text(json.dumps(found))
    if count > 1 and name != "fails":
        dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    engine(None, 4, **TIGHT).charge.epsilon(4)  # what is imported late
    for line in sys.stdin:
        name, count, place = line.split(maxsplit=2)
        numbers = [
            child(partial(member, rank, int(count), Path(place.strip()), name))
            for rank in range(int(count))
        ]
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(x, 0)[1]) for x in numbers]), flush=True)


if __name__ == "__main__":
    main()
