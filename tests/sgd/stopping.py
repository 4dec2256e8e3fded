"""A small training run that is killed again and again; shared by the tests and benchmarks/engine.

    stopping.py PLACE KILLS STEPS

Children train in PLACE/run and are killed with signal 9 after random times; the last one comes to the end.
Once the plan is charged, PLACE/run and the keys are copied: a child that nobody kills trains in the copy.
Prints what happened as one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sourdine.budget import Budget
from sourdine.ledger import Ledger
from sourdine.sgd import AdamW, Engine

TIGHT: dict[str, Any] = {"budget": Budget(3.0, 1e-6), "noise_multiplier": None}  # nothing will be left
PAUSE = 0.01  # a child sleeps so long after each step, to be found at work


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))


def rows(count: int = 64) -> list[tuple[Any, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return [(torch.randn(6), torch.tensor(place % 2)) for place in range(count)]


def loss(model: nn.Module, batch: Any) -> Any:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def engine(folder: Path | None, steps: int = 20, **changes: Any) -> Engine:
    """An engine as a script makes it that is started again and again."""
    model = changes.pop("model", None) or network()
    optimizer = changes.pop("optimizer", AdamW)(model.parameters(), lr=changes.pop("lr", 0.01))
    budget = changes.pop("budget", Budget(20.0, 1e-6))
    data = changes.pop("data", None) or rows()
    settings = {"lot_size": 8, "batch_size": 4, "save_every": 7, "noise_multiplier": 2.0, **changes}
    settings = {"loss": loss, **settings}
    return Engine(model, optimizer, data, budget, folder=folder, steps=steps, **settings)


def weights(model: nn.Module) -> str:
    """All bits of the model."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def ledger(folder: Path) -> list[list[str]]:
    return [[x.kind, x.text, x.reason] for x in Ledger(folder / "ledger.sqlite").history()]


def child(work: Callable[[], None]) -> int:
    """Another process that does this and ends."""
    number = os.fork()
    if number:
        return number
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def train(place: Path, steps: int, pause: float) -> None:
    os.environ["SOURDINE_HOME"] = str(place / "home")
    run = engine(place / "run", steps, **TIGHT)
    for lot in run.lots():
        run.step(lot)
        time.sleep(pause)
    result = {"epsilon": run.epsilon(), "weights": weights(run.model), "entries": ledger(place / "run")}
    result["keys"] = [path.name for path in (place / "home" / "keys").iterdir()]
    (place / "result.json").write_text(json.dumps(result))


def begin(place: Path, steps: int) -> None:
    os.environ["SOURDINE_HOME"] = str(place / "home")
    next(iter(engine(place / "run", steps, **TIGHT).lots()))


def wait(number: int) -> bool:
    """Whether the child came to its end; one that failed ends everything."""
    status = os.waitpid(number, 0)[1]
    if status and not os.WIFSIGNALED(status):
        raise SystemExit("a run failed")
    return status == 0


def main(place: Path, kills: int, steps: int) -> None:
    chance = random.Random()
    engine(None, 4, **TIGHT).charge.epsilon(4)  # what is imported late
    wait(child(lambda: begin(place / "killed", steps)))
    shutil.copytree(place / "killed", place / "whole")
    start = time.perf_counter()
    wait(child(lambda: train(place / "whole", steps, PAUSE)))
    whole = time.perf_counter() - start
    killed = lives = 0
    while not (place / "killed" / "result.json").exists():
        number = child(lambda: train(place / "killed", steps, PAUSE))
        lives += 1
        if killed < kills:
            time.sleep(chance.uniform(0.0, 1.2 * whole / kills))
            os.kill(number, signal.SIGKILL)
        killed += not wait(number)
    results = {
        name: json.loads((place / name / "result.json").read_text()) for name in ("killed", "whole")
    }
    print(json.dumps({"kills": killed, "resumes": lives - 1, "seconds": whole, **results}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
