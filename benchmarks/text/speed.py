"""Private training of MiniLM beside the same training without privacy: time for the same examples.

    OMP_NUM_THREADS=1 python benchmarks/text/speed.py            # process time on one CPU thread
    python benchmarks/text/speed.py --device cuda                # wall time, synchronised

Both run the Trainer's own loops on lots of the same sizes with the same physical batches; texts have
lengths like short reviews. Secure noise, clipping, proofs and the optimizer are all counted.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch

import sourdine as sd
from sourdine import rng
from sourdine.data.fetch import fetch
from sourdine.sgd import Engine
from sourdine.sgd.batches import Units, batches
from sourdine.sgd.shapes import whole
from sourdine.text.examples import Collate, Examples
from sourdine.text.loop import optimizer
from sourdine.text.machine import repeatable
from sourdine.text.models import load_encoder
from sourdine.text.plan import plan, situation_of
from sourdine.text.strategies import strategy
from sourdine.text.tasks import Classify, losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=None)
    parser.add_argument("--lot", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--tokens", type=float, default=24.0, help="in a text, about; 128 at most")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--what", default="lora,bitfit,all")
    asked = parser.parse_args()
    cuda = asked.device == "cuda"
    lot, steps = asked.lot or (2048 if cuda else 64), asked.steps or (20 if cuda else 6)
    encoder, tokenizer, pooling = load_encoder(asked.model or str(fetch("minilm")))
    rows = texts(4 * lot, len(tokenizer), asked.tokens)
    print(
        f"torch {torch.__version__}, {asked.device}, lots of {lot}, {steps} steps after 3 to warm up, "
        f"{sum(rows.sizes) / len(rows):.0f} tokens a text"
    )
    for what in asked.what.split(","):
        seconds = {}
        for private in (False, True):
            model = Classify(("a", "b")).model(copy.deepcopy(encoder), pooling, 2.0)
            chosen = plan(
                situation_of(
                    len(rows),
                    sd.Budget(3, 1e-6),
                    encoder,
                    pretrained=True,
                    declared=True,
                    device=torch.device(asked.device),
                ),
                strategy(what),
            )
            chosen = chosen.with_(batch_size=asked.batch)
            chosen.strategy.prepare(model)
            model.to(asked.device).eval()
            with repeatable(torch.device(asked.device)):
                seconds[private] = (privately if private else plainly)(
                    model, rows, chosen, lot, steps, Collate(0), cuda
                )
        ratio = seconds[True] / seconds[False]
        print(
            f"{what:7} private {1e3 * seconds[True]:8.2f} ms, plain {1e3 * seconds[False]:8.2f} ms for an "
            f"example: {ratio:.2f} times",
            flush=True,
        )


def texts(count: int, words: int, tokens: float) -> Examples:
    """Token ids; with 24 a text, lengths are as in film reviews of one sentence."""
    chance = np.random.default_rng(1)
    drawn = chance.gamma(4.0, tokens / 4, count)
    lengths = np.clip(drawn, 4, max(64, min(128, 4 * tokens))).astype(int)
    return Examples(
        {
            "input_ids": chance.integers(1000, words, size).tolist(),
            "attention_mask": [1] * size,
            "labels": int(chance.integers(2)),
        }
        for size in lengths
    )


def clock(cuda: bool) -> float:
    if not cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def privately(model, rows, chosen, lot, steps, collate, cuda) -> float:
    engine = Engine(
        model,
        optimizer(model, chosen),
        rows,
        None,
        noise_multiplier=1.0,
        loss=losses,
        lot_size=lot,
        steps=steps + 3,
        clip=chosen.clip,
        batch_size=chosen.batch_size,
        collate=collate,
        check=False,
    )
    seen, start = 0, 0.0
    for own in engine.lots():
        if own.step == 3:
            start = clock(cuda)
        if own.step >= 3:
            seen += len(own._units)
        engine.step(own)
    return (clock(cuda) - start) / seen


def plainly(model, rows, chosen, lot, steps, collate, cuda) -> float:
    of, source = optimizer(model, chosen), rng.secure()
    chance = np.random.default_rng(2)
    device = next(model.parameters()).device
    seen, start = 0, 0.0
    for step in range(steps + 3):
        if step == 3:
            start = clock(cuda)
        units = np.flatnonzero(chance.random(len(rows)) < lot / len(rows))
        of.zero_grad()
        for batch in batches(Units(rows), units, collate, device, source, whole(chosen.batch_size)):
            ((losses(model, batch.data) * batch.weights).sum() / lot).backward()
        of.step()
        seen += len(units) if step >= 3 else 0
    return (clock(cuda) - start) / seen


if __name__ == "__main__":
    main()
