"""What real lots cost: Poisson draws, filled-up batches and secure noise, against full batches of one size.

    python benchmarks/engine/poisson.py --device cuda [--texts mixed] [--warm 20] [--rounds 7]
    OMP_NUM_THREADS=1 python benchmarks/engine/poisson.py --size small --graphs eager [--steps 4]

A BERT-base classifier, texts of 128 tokens, bf16 autocast on a GPU, trained in two ways in one process, in turns:

- real: sourdine's Engine as its users call it. Every lot is a Poisson draw of planned size 256, collated, cut
  into equal batches of 52 to 64, filled up and masked; noise from a secure source, in the step of AdamW.
- fixed: the same graphs on 4 full batches of 64 that lie on the device, added up; torch's own noise and its fused AdamW.

On a CPU it is a BERT of 4 layers of 256, lots of 128 texts of 64 tokens in batches of up to 32, single precision, torch's
AdamW in both, and the time of the process; --graphs eager is what users get there.

What counts is the wall time of a round of steps, synchronised, for each real token: the ratio of the two in the same
round (goal: at most 1.05), median, least and most. The first rounds (--warm), and rounds in which a batch has a shape
that is new (which costs seconds once, with compiled graphs a minute), are not counted. Batches that are proved anew are:
the first of each shape, the 1st, 2nd, 4th, ... of all and every 256th. There are some 13 shapes in so long a plan, all of which
have come up after 20 rounds, as a rule.

With --texts mixed (or both) there is a table of texts of 64 to 128 tokens, which are also padded to one of a few lengths (sgd/shapes.py);
beside full batches of 128 tokens, by the real token. --size tiny is for a try.
"""

import argparse
import json
import random
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import models
import numpy as np
import run
import torch
from torch import nn

from sourdine import sgd
from sourdine.sgd.batches import Batch
from sourdine.sgd.graphs import Compiler
from sourdine.text.examples import Collate, Examples

VOCABULARY = 30522
STEPS = 100_000  # of the plan, of which as many are made as it takes


@dataclass(frozen=True)
class Setting:
    layers: int
    hidden: int
    length: int
    lot: int
    batch: int
    records: int


BASE = Setting(12, 768, length=128, lot=256, batch=64, records=10_240)
SMALL = Setting(4, 256, length=64, lot=128, batch=32, records=5_120)
TINY = Setting(2, 64, length=32, lot=32, batch=8, records=640)


SETTINGS = {"base": BASE, "small": SMALL, "tiny": TINY}
GRAPHS: dict[str, Compiler | None] = {"compiled": sgd.compiled, "traced": sgd.traced, "eager": None}


class Fixed(run.OursCompiled):
    """Full batches, all on the device, with torch's noise."""

    def __init__(self, setting: Setting, graphs: Compiler | None, device: str) -> None:
        self.rows, self.compiler, self.eager = (
            setting.batch,
            lambda: graphs or sgd.traced,
            graphs is None,
        )
        made = models.tokens(VOCABULARY, setting.length, 2)(setting.lot)
        batch = {name: rows.to(device) for name, rows in made.items()}
        half = device != "cpu"
        super().__init__(built(setting, device), batch, clip=run.CLIP, noise=run.NOISE, half=half)

    def prepare(self) -> None:
        super().prepare()
        fused = self.labels.is_cuda
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=run.RATE, fused=fused)
        ones = torch.ones(self.rows, device=self.labels.device)
        labels, ids = self.labels[: self.lot_size], self.inputs["input_ids"][: self.lot_size]
        cut = zip(labels.split(self.rows), ids.split(self.rows), strict=True)
        # Copies: a graph is for tensors that begin where their memory does.
        own = [{"labels": labels.clone(), "input_ids": ids.clone()} for labels, ids in cut]
        self.parts = [Batch(data, ones, self.rows, True) for data in own]

    def loss(self, model: nn.Module, data: models.Batch) -> torch.Tensor:
        return loss(self.half, model, data)

    def step(self) -> None:
        self.sums.begin(shown=self.eager)
        self.graphs.begin(self.sums)
        for part in self.parts:
            losses = partial(self.loss, self.model, part.data)
            eagerly = partial(self.of, losses)
            if self.eager:
                eagerly()
                continue
            self.graphs.add(part, self.flat, self.knowledge, eagerly, lambda: None)
        if not (all(self.graphs.made) and self.graphs.sound()):
            raise RuntimeError(f"no graph: {next(iter(self.graphs.reasons.values()), 'not proved')}")
        (flat,) = self.sums.flats
        flat.add_(torch.randn_like(flat), alpha=self.noise * self.clip).div_(self.lot_size)
        self.sums.show()
        self.optimizer.step()

    def of(self, losses: Callable[[], torch.Tensor]) -> object:
        self.sums.show()
        return self.clipped_sum(self.model, losses, self.clip, knowledge=self.knowledge)


class Watched(Collate):
    """Counts the tokens of batches, padding included, and remembers their shapes."""

    def __init__(self, most: int, least: int = 0, seen: Counter[torch.Size] | None = None) -> None:
        super().__init__(0, most, least)
        self.seen = Counter[torch.Size]() if seen is None else seen

    def at_least(self, length: int) -> "Watched":
        return Watched(self.most, length, self.seen)

    def __call__(self, rows: list[dict[str, Any]]) -> models.Batch:
        batch = super().__call__(rows)
        self.seen[batch["input_ids"].shape] += 1
        return batch

    @property
    def tokens(self) -> int:
        return sum(shape.numel() * count for shape, count in self.seen.items())


class Real:
    """Poisson lots by sourdine's engine; lots are secret, but here all is random and nothing released."""

    def __init__(self, setting: Setting, least: int, graphs: Compiler | None, device: str) -> None:
        model, examples = built(setting, device), texts(setting, least)
        self.sizes, self.collate = np.array(examples.sizes), Watched(setting.length)
        self.examples = self.tokens = self.eager = 0
        self.engine = sgd.Engine(
            model,
            run.adamw(model) if device != "cpu" else torch.optim.AdamW(model.parameters(), lr=run.RATE),
            examples,
            None,
            loss=partial(loss, device != "cpu"),
            lot_size=setting.lot,
            steps=STEPS,
            clip=run.CLIP,
            noise_multiplier=run.NOISE,
            batch_size=setting.batch,
            collate=self.collate,
            graphs=graphs,
        )
        self.lots = self.engine.lots()

    def step(self) -> None:
        lot = next(self.lots)
        self.examples += len(lot._units)
        self.tokens += int(self.sizes[lot._units].sum())
        self.engine.step(lot)
        self.eager += 0 if self.engine.graphs is None else self.engine.graphs.made.count(False)


def built(setting: Setting, device: str) -> nn.Module:
    torch.manual_seed(0)
    return models.bert(setting.layers, setting.hidden).to(device).train()


def texts(setting: Setting, least: int) -> Examples:
    """Random tokens, as many as `least` to the longest length; a mask where there is something to mask."""
    chance = random.Random(1)
    rows = Examples()
    for _ in range(setting.records):
        ids = chance.choices(range(VOCABULARY), k=chance.randint(least, setting.length))
        mask = {"attention_mask": [1] * len(ids)} if least < setting.length else {}
        rows.append({"input_ids": ids, "labels": chance.randrange(2), **mask})
    return rows


def loss(half: bool, model: nn.Module, batch: models.Batch) -> torch.Tensor:
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
        return models.losses(model(**inputs), batch["labels"])


def seconds(work: Callable[[], object], times: int, device: str) -> float:
    """Time of so many steps: of the wall's clock on a GPU, of the process on a CPU."""
    cuda = device != "cpu"
    synchronise = torch.cuda.synchronize if cuda else lambda: None
    clock = time.perf_counter if cuda else time.process_time
    synchronise()
    start = clock()
    for _ in range(times):
        work()
    synchronise()
    return clock() - start


def compare(real: Real, fixed: Fixed, setting: Setting, asked: argparse.Namespace) -> dict[str, object]:
    """All rounds of the two, in turns."""
    found: list[dict[str, float]] = []
    done = 0
    while len(found) < asked.rounds:
        before = real.examples, real.tokens, real.collate.tokens, len(real.collate.seen)
        took = seconds(real.step, asked.steps, asked.device)
        base = seconds(lambda: run.once(fixed), asked.steps, asked.device)
        after = real.examples, real.tokens, real.collate.tokens, len(real.collate.seen)
        examples, tokens, computed, new = (b - a for a, b in zip(before, after, strict=True))
        done += 1
        print(f"round {done}: {took:.1f} s, fixed {base:.1f} s, {new} new shapes", file=sys.stderr)
        if done > asked.warm and not (new and asked.graphs != "eager"):
            full = asked.steps * setting.lot
            one = {"real ms": 1e3 * took / examples, "fixed ms": 1e3 * base / full}
            one["ratio"] = took / tokens / (base / (full * setting.length))
            one["ratio with padding"] = one["ratio"] * tokens / computed
            found.append(one | {"padding": 1 - tokens / computed})
            print(json.dumps(found[-1]), flush=True)
    graphs = real.engine.graphs
    reasons = [] if graphs is None else list(graphs.reasons.values())
    return {"rounds": found, "batches without a graph": real.eager, "reasons": reasons}


def table(title: str, found: dict[str, object]) -> str:
    def over(name: str, digits: int) -> str:
        own = [one[name] for one in found["rounds"]]
        middle, least, most = (f"{x:.{digits}f}" for x in (statistics.median(own), min(own), max(own)))
        return f"{middle} ({least} to {most})"

    padding = statistics.mean(one["padding"] for one in found["rounds"])
    lines = [
        f"| {title} | ms for each real example | ratio by real tokens | ratio by all tokens | padding |",
        "| --- | --- | --- | --- | --- |",
        f"| full batches, torch's noise | {over('fixed ms', 3)} | 1 | 1 | none |",
        f"| Poisson lots, secure noise | {over('real ms', 3)} | {over('ratio', 3)} | {over('ratio with padding', 3)} | "
        f"{padding:.1%} of all tokens |",
    ]
    if found["batches without a graph"]:
        lines.append(f"\n{found['batches without a graph']} batches without a graph {found['reasons']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--graphs", default="traced", choices=list(GRAPHS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2, help="rounds before those that count")
    parser.add_argument("--steps", type=int, default=16, help="steps in a round")
    parser.add_argument("--texts", default="same", choices=["same", "mixed", "both"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--size", choices=list(SETTINGS), default="base", help="of the model and its lots"
    )
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if asked.device == "cpu":
        run.keep_freed_memory()
    setting, graphs = SETTINGS[asked.size], GRAPHS[asked.graphs]
    results: dict[str, object] = {"versions": run.versions(asked.device), "graphs": asked.graphs}
    print(json.dumps(results), flush=True)
    fixed = Fixed(setting, graphs, asked.device)
    kinds = {"same": setting.length, "mixed": setting.length // 2}
    for least in kinds.values() if asked.texts == "both" else [kinds[asked.texts]]:
        title = f"texts of {least} to {setting.length} tokens".replace(f"{setting.length} to ", "")
        real = Real(setting, least, graphs, asked.device)
        found = results[title] = compare(real, fixed, setting, asked)
        print(f"\n{table(title, found)}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
