"""Runs that are killed, stopped or doubled: they go on to the same promise, charged once."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import encoder, records

from sourdine.certificate import verify
from sourdine.cli import main
from sourdine.ledger import Ledger

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")

# Children are forks of a server that has torch loaded: each starts in a moment.
SERVER = multiprocessing.get_context("forkserver") if sys.platform != "win32" else None
PRELOADED = [
    "torch",
    "transformers.models.bert.modeling_bert",
    "sourdine.text.trainer",
    "sourdine.report.page",
]
PATIENCE = 60.0


def speak(arguments: list[str], log: str) -> None:
    """The command line in a child, with what it prints in a file."""
    said = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(said, stream)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Runs:
    """Starts runs of one plan in one folder."""

    def __init__(self, data: Path, model: str, out: Path) -> None:
        self.out, self.log = out, out.with_suffix(".log")
        self._plan = ["train", str(data), "--text", "note", "--label", "mood", "--labels", "good,bad"]
        self._plan += ["--epsilon", "3", "--lot-size", "60", "--model", model, "--out", str(out)]

    def start(self, *options: str, steps: int = 30) -> multiprocessing.process.BaseProcess:
        assert SERVER is not None
        SERVER.set_forkserver_preload(PRELOADED)
        arguments = [*self._plan, "--steps", str(steps), *options]
        child = SERVER.Process(target=speak, args=(arguments, str(self.log)))
        child.start()
        return child

    def finish(self, *options: str, steps: int = 30) -> int:
        child = self.start(*options, steps=steps)
        child.join(PATIENCE)
        return -1 if child.exitcode is None else child.exitcode

    def said(self) -> str:
        return self.log.read_text()

    def reached(self, name: str) -> Callable[[], bool]:
        return (self.out / name).exists

    def stepping(self) -> bool:
        """Whether a step was noted beside its key."""
        name = self.out / "run"
        run = name.read_text().split() if name.exists() else []
        notes = Path(os.environ["SOURDINE_HOME"]) / "keys" / f"{(run or ['none'])[0]}.0.steps"
        return notes.exists() and notes.stat().st_size > 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder(tmp_path_factory.mktemp("kills") / "model")


@pytest.fixture
def runs(model: str, tmp_path: Path) -> Runs:
    data = tmp_path / "notes.csv"
    with data.open("w", newline="") as file:
        table = records(400)
        rows = csv.writer(file)
        rows.writerow(table)
        rows.writerows(zip(*table.values(), strict=True))
    return Runs(data, model, tmp_path / "out")


def wait_for(ready: Callable[[], bool], child: multiprocessing.process.BaseProcess) -> None:
    """Looks often: the moment after a file appears is the one to strike."""
    end = time.monotonic() + PATIENCE
    while not ready():
        assert child.is_alive() and time.monotonic() < end, "the run ended before it could be killed"
        time.sleep(0.0005)


def check(out: Path) -> None:
    """Verified, charged once, settled, and without a working file."""
    verdict = verify(out)
    assert verdict.passed, verdict.failed
    entries = Ledger(out / "ledger.sqlite").history()
    assert [entry.kind for entry in entries] == ["reserve", "settle"]
    promise = json.loads((out / "certificate.json").read_text())["guarantee"]
    assert 2.99 < promise["epsilon"] <= 3
    left = {file.name for file in out.iterdir()}
    assert not left & {"checkpoint.pt", "progress.json", "pace", "run", "lock"}


@pytest.mark.parametrize(
    "moment", ["ledger.sqlite", "checkpoint.pt", "encoder.safetensors", "report.html"]
)
def test_a_killed_run_goes_on_to_the_same_promise(runs: Runs, moment: str) -> None:
    child = runs.start()
    wait_for(runs.reached(moment), child)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (runs.out / "certificate.json").exists()
    assert runs.finish("--resume") == 0, runs.said()
    check(runs.out)


def test_a_run_killed_again_and_again_is_charged_once(runs: Runs) -> None:
    for moment in ("progress.json", "checkpoint.pt", "metrics.json"):
        child = runs.start(*(["--resume"] if runs.out.exists() else []))
        wait_for(runs.reached(moment), child)
        child.kill()
        child.join()
    assert runs.finish("--resume") == 0, runs.said()
    check(runs.out)


def test_ctrl_c_says_how_to_go_on(runs: Runs) -> None:
    child = runs.start(steps=400)
    wait_for(runs.stepping, child)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    child.join(PATIENCE)
    assert child.exitcode == 130
    assert "--resume goes on" in runs.said() and "Traceback" not in runs.said()
    assert runs.finish(steps=400) == 2  # never over what is there
    assert "add --resume" in runs.said()
    assert runs.finish("--resume", steps=400) == 0, runs.said()
    check(runs.out)


def test_a_folder_in_use_is_refused_and_its_run_undisturbed(runs: Runs) -> None:
    child = runs.start(steps=400)
    wait_for(runs.stepping, child)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)  # in the middle of its training for as long as this looks
    try:
        assert runs.finish("--resume", steps=400) == 2
        assert "in use" in runs.said()
    finally:
        os.kill(child.pid, signal.SIGCONT)
    child.join(PATIENCE)
    assert child.exitcode == 0, runs.said()
    check(runs.out)


AGREEMENT = """
import sys, torch
from sourdine.sgd.agreement import agreement
from sourdine.text.examples import Collate, tokenized
from sourdine.text.loop import losses
from sourdine.text.models import load_encoder
from sourdine.text.strategies import strategy
from sourdine.text.tasks import Classify

for what in ("lora", "all"):
    encoder, tokenizer, pooling = load_encoder(sys.argv[1])
    model = Classify(("good", "bad")).model(encoder, pooling, 2.0)
    strategy(what).prepare(model)
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=0.1)
    rows = tokenized(tokenizer, [["a great film", "dull"]], [0, 1], 16)
    calls = (losses, Collate(tokenizer.pad_token_id))
    print(what, agreement(model, optimizer, rows, settings=(), calls=calls).hex())
"""


def test_another_process_agrees_whatever_its_hashes_are_seeded_with(tmp_path: Path) -> None:
    """Constants of transformers are filled from sets, whose order changes with every process."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", AGREEMENT, model],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for model in [encoder(tmp_path / "model")]
        for seed in ("1", "2")
    ]
    first, second = (child.communicate(timeout=PATIENCE)[0].splitlines()[-2:] for child in started)
    assert [line.split()[0] for line in first] == ["lora", "all"]
    assert first == second
