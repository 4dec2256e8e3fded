"""Membership attacks on MiniLM classifiers trained without privacy, at epsilon 8 and at epsilon 1.

    python benchmarks/attacks/membership.py DATA --model minilm/ --device cuda --workers 8 --out FOLDER
    python benchmarks/attacks/membership.py DATA --out FOLDER --table

DATA holds sst2.train.jsonl (benchmarks/text/prepare.py). Half of the records train the target; each of
the shadows is trained by the same Trainer on another random half. What every model says of every record
is kept in FOLDER, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

DELTA = 1e-5
SEED = 2026


def pool(data: str, most: int) -> list[dict[str, str]]:
    lines = (Path(data) / "sst2.train.jsonl").read_text(encoding="utf-8").split("\n")
    rows = {
        row["text"]: row for row in map(json.loads, filter(None, lines))
    }  # a copy would be in and out
    return list(rows.values())[:most]


def work(queue: Any, asked: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // asked["workers"]))
    while True:
        try:
            epsilon, number = queue.get_nowait()
        except Exception:
            return
        start = time.time()
        try:
            np.save(place(asked["out"], epsilon, number), one(epsilon, number, asked))
        except Exception as error:
            print("FAILED", epsilon, number, repr(error)[:400], file=sys.stderr, flush=True)
            continue
        print(f"epsilon {epsilon}, model {number}: {time.time() - start:.0f} s", flush=True)


def place(out: str, epsilon: str, number: int) -> Path:
    return Path(out) / f"{epsilon}-{number}.npy"


def one(epsilon: str, number: int, asked: dict[str, Any]) -> Any:
    """What the model of this number says of every record; number 0 is the target."""
    import sourdine as sd
    from sourdine.attacks.shadows import halves

    rows = pool(asked["data"], asked["records"])
    used = halves(len(rows), asked["shadows"] + 2, SEED)[number + 1 if number else 0]
    train = [row for row, inside in zip(rows, used, strict=True) if inside]
    run = sd.Trainer(
        {name: [row[name] for row in train] for name in ("text", "label")},
        None if epsilon == "inf" else sd.Budget(float(epsilon), DELTA),
        not_private=epsilon == "inf",
        model=asked["model"],
        trains=asked["trains"],
        text="text",
        label="label",
        labels=["0", "1"],
        held_out=0.0,
        minutes=math.inf,
        **asked["plain" if epsilon == "inf" else "private"],
        batch_size=asked["batch"],
        device=asked["device"],
    ).fit()
    run.model.network.to(asked["device"])
    return run.model.scores([row["text"] for row in rows]).double().softmax(1).numpy()


def table(asked: argparse.Namespace) -> None:
    from sourdine.attacks import Function, Record, attack_membership
    from sourdine.attacks.shadows import from_vectors, halves
    from sourdine.cli.attack import pictures

    rows = pool(asked.data, asked.records)
    inside = halves(len(rows), asked.shadows + 2, SEED)
    member, shadows = inside[0], inside[2:]  # the other half of the target is no shadow
    order = np.concatenate([np.flatnonzero(member), np.flatnonzero(~member)])
    records = [Record((rows[i]["text"],), rows[i]["label"]) for i in order]
    split, labels = int(member.sum()), np.array([int(rows[i]["label"]) for i in order])
    known = {record.texts[0]: n for n, record in enumerate(records)}
    print("| trained | attack | AUC | TPR at FPR 0.1 | at 0.01 |")
    print("| --- | --- | --- | --- | --- |")
    for epsilon in asked.epsilons.split(","):
        answers = [np.load(place(asked.out, epsilon, n))[order] for n in range(asked.shadows + 1)]
        target = Function(
            lambda some, said=answers[0]: said[[known[x.texts[0]] for x in some]], ("0", "1")
        )
        made = from_vectors(shadows[:, order], np.stack(answers[1:]), labels)
        found = attack_membership(target, records[:split], records[split:], shadows=made)
        for name, curve in found.attacks.items():
            low, high = curve.auc_interval()
            rates = [f"{r.tpr:.3f} ({r.low:.3f} to {r.high:.3f})" for r in map(curve.at, (0.1, 0.01))]
            how = "without privacy" if epsilon == "inf" else f"epsilon {epsilon}"
            print(
                f"| {how} | {name} | {curve.auc:.3f} ({low:.3f} to {high:.3f}) | {' | '.join(rates)} |"
            )
        print(f"<!-- blind: {found.blind} -->")
        folder = Path(asked.out) / epsilon
        folder.mkdir(exist_ok=True)
        pictures(found, folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", required=True)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--trains", default="lora")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epsilons", default="inf,8,1")
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--records", type=int, default=10**9)
    parser.add_argument("--epochs", type=float, default=10.0, help="without privacy")
    parser.add_argument("--lot", type=int, default=128, help="without privacy")
    parser.add_argument("--rate", type=float, default=1e-3, help="without privacy")
    parser.add_argument("--steps", type=int, default=100, help="with privacy")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    if asked.table:
        table(asked)
        return
    asked.plain = {"epochs": asked.epochs, "lot_size": asked.lot, "learning_rate": asked.rate}
    asked.private = {"steps": asked.steps}
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        queue = manager.Queue()
        for number in range(asked.shadows + 1):
            for epsilon in asked.epsilons.split(","):
                if not place(asked.out, epsilon, number).exists():
                    queue.put((epsilon, number))
        workers = [
            context.Process(target=work, args=(queue, vars(asked))) for _ in range(asked.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
