"""A private fine-tuning of MiniLM that is killed with signal 9, beside the same run left in peace.

    python benchmarks/text/resume.py DATA --model minilm/ --device cuda [--kills 3] [--steps 120]

DATA holds sst2.train.jsonl (benchmarks/text/prepare.py). Both have the same keys: the run is copied once
it has begun. The budget is spent to the end by the plan, so that a step that had to be charged again
would be refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trains", default="lora")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--train", help="what a child does: train in this folder")
    asked = parser.parse_args()
    if asked.train:
        train(asked)
        return
    chance, results = random.Random(), {}
    with tempfile.TemporaryDirectory() as name:
        killed, whole = Path(name) / "killed", Path(name) / "whole"
        killed.mkdir()
        child(killed, kill_at=2)
        shutil.copytree(killed, whole)
        results["in peace"] = child(whole)
        for _ in range(asked.kills):
            print("killed at step", child(killed, kill_at=chance.randrange(3, asked.steps)))
        results["killed"] = child(killed)
    for how, result in results.items():
        print(f"{how:9}", result)
    same = results["in peace"].split()[:-1] == results["killed"].split()[:-1]
    raise SystemExit(0 if same else "the killed run is not the run left in peace")


def child(place: Path, kill_at: int | None = None) -> str:
    """What the child said last, or the step at which it was killed."""
    command = [sys.executable, __file__, *sys.argv[1:], "--train", str(place)]
    environment = {**os.environ, "SOURDINE_HOME": str(place / "home")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        line = ""
        for line in process.stdout or ():
            words = line.split()
            if words[0] == "step" and kill_at is not None and int(words[1]) >= kill_at:
                process.send_signal(signal.SIGKILL)
                return words[1]
    if process.returncode:
        raise SystemExit("a run failed")
    return line.strip()


def train(asked: argparse.Namespace) -> None:
    import sourdine as sd

    start = time.perf_counter()
    lines = (Path(asked.data) / "sst2.train.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line][: asked.records]
    out = Path(asked.train) / "run"
    run = sd.Trainer(
        {name: [str(row[name]) for row in rows] for name in ("text", "label")},
        sd.Budget(3, 1e-5),
        model=asked.model,
        trains=asked.trains,
        text="text",
        label="label",
        labels=["0", "1"],
        held_out=0.0,
        minutes=math.inf,
        steps=asked.steps,
        device=asked.device,
        output_dir=out,
        resume=True,
        log=lambda said: print("step", said["step"], flush=True) if "step" in said else None,
    ).fit()
    weights = b"".join(x.numpy().tobytes() for x in run.model.network.state_dict().values())
    mark, passed = hashlib.sha256(weights).hexdigest()[:16], sd.verify(out).passed
    print(f"weights {mark} verified {passed} seconds {time.perf_counter() - start:.0f}")


if __name__ == "__main__":
    main()
