"""Large models: a step of a Llama-shaped one with a billion weights, and the largest that can be trained on one GPU.

    python benchmarks/engine/large.py --device cuda [--batch 8] [--compiled] [--only lora] [--json out.json]
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python benchmarks/engine/large.py --device cuda --largest

Random weights in float32, random tokens, texts of 1024 tokens, bf16 autocast, fused AdamW, no dropout. The first command
times a step (a) with LoRA of rank 8 on q_proj and v_proj, (b) of all weights: non-private, eager and by torch.compile,
against sourdine with secure noise by graphs as they are traced, and with --compiled by compiled ones. Each engine has
the GPU to itself; time and memory as in growth.py, which also says what a step that is proved anew is.

--largest: layers of width 4096 (with 32 of them the shape of the models of 7 billion) are added until one step no
longer fits into the GPU: batch 1, all weights trained, sourdine's eager engine (clipped_sum, Sums, add_noise_), and then
the non-private step in the same way. The numbers of layers are halved into; none is tried whose weights, sums and
moments (16 bytes a weight) are more than the GPU has. A size fits if nine steps were made, of which four were proved.
--checkpointing switches activation checkpointing on, where the engine does not refuse it. --tiny is for a try on the CPU.
"""

import argparse
import json
import sys
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import growth
import models
import run
import torch
from torch import nn

from sourdine.sgd.gradients import trained
from sourdine.sgd.sums import Sums

LABELS = {
    "plain": "non-private, eager",
    "compiled": "non-private, torch.compile",
    "ours-traced": "sourdine, traced, secure noise",
    "ours-compiled": "sourdine, compiled, secure noise",
}
Row = dict[str, object]


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    intermediate: int
    heads: int = 32
    shared: int = 8  # key-value heads
    vocabulary: int = 32_000
    length: int = 1024

    def built(self, device: str, *, checkpointing: bool = False) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_key_value_heads=self.shared,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.length,
            tie_word_embeddings=False,
            use_cache=False,
        )
        with torch.device(device):
            model = LlamaForCausalLM(config)
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return models.Logits(model)

    def weights(self) -> int:
        return sum(x.numel() for x in self.built("meta").parameters())


BILLION, WIDE = Shape(2048, 16, 8192), Shape(4096, 0, 14_336)
TINY = Shape(64, 2, 128, heads=4, shared=2, vocabulary=500, length=32)


def with_lora(model: nn.Module) -> nn.Module:
    """Rank 8; both factors random, since with zeros in one the gradient of the other is zero at first."""
    from peft import LoraConfig, get_peft_model

    chosen = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return models.Logits(get_peft_model(model.model, chosen))


class Eager(run.OursSecure):
    """Without graphs; noise and division in one stretch of memory, as in sgd/engine.py."""

    finish = run.OursCompiled.finish

    def prepare(self) -> None:
        super().prepare()
        self.optimizer = run.adamw(self.model)
        self.sums = Sums(trained(self.model).values())

    def step(self) -> None:
        self.sums.begin()
        super().step()


class Large(growth.Point):
    """One way to train one shape."""

    def __init__(self, shape: Shape, lora: bool, batch: int, device: str) -> None:
        plain = partial(shape.built, device)
        build = (lambda: with_lora(plain())) if lora else plain
        made = models.positioned(shape.vocabulary, shape.length, None)
        self.task, self.device = models.Task("", build, made, batch), device


def timed(shape: Shape, lora: bool, asked: argparse.Namespace) -> dict[str, Row]:
    """A row for each engine, one after the other."""
    engines = [name for name in LABELS if asked.compiled or name != "ours-compiled"]
    rows: dict[str, Row] = {}
    for name in engines:
        point = Large(shape, lora, asked.batch, asked.device)
        rows[name] = growth.attempted(partial(point.measured, name))
        if "failed" not in rows[name]:
            rows[name]["tokens a second"] = 1e3 * asked.batch * shape.length / rows[name]["ms"]
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def table(title: str, rows: dict[str, Row]) -> str:
    def over(row: Row, name: str, what: str) -> str:
        base = rows[name].get(what)
        return f"{row[what] / base:.2f}" if base else "–"

    lines = [
        f"| {title} | ms a step (least to most) | tokens a second | GiB (of a proof) | time / eager | time / compile | memory / eager |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {LABELS[name]} | {row['failed']} | – | – | – | – | – |")
            continue
        ratios = [over(row, "plain", "ms"), over(row, "compiled", "ms"), over(row, "plain", "bytes")]
        lines.append(
            f"| {LABELS[name]} | {row['ms']:.1f} ({row['least']:.1f} to {row['most']:.1f}) | {row['tokens a second']:.0f} | "
            f"{row['bytes'] / 2**30:.2f} ({row['bytes most'] / 2**30:.2f}) | {' | '.join(ratios)} |"
        )
    return "\n".join(lines)


def tried(shape: Shape, kind: type[run.Engine], asked: argparse.Namespace) -> Row:
    """Nine steps of a model, the last of them timed."""
    cuda = asked.device != "cpu"
    model = shape.built(asked.device, checkpointing=asked.checkpointing).train()
    batch = models.positioned(shape.vocabulary, shape.length, None)(1)
    batch = {name: rows.to(asked.device) for name, rows in batch.items()}
    engine = kind(model, batch, clip=run.CLIP, noise=run.NOISE, half=cuda)
    run.started(engine)
    synchronise = torch.cuda.synchronize if cuda else lambda: None
    synchronise()
    start = time.perf_counter()
    run.once(engine)
    synchronise()
    took = 1e3 * (time.perf_counter() - start)
    return {"ms": took, "bytes": torch.cuda.max_memory_allocated() if cuda else None}


def largest(shape: Shape, kind: type[run.Engine], asked: argparse.Namespace) -> list[Row]:
    """All tries; those that fit have no "failed"."""
    cuda = asked.device != "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory if cuda else 2**23
    torch.set_autocast_cache_enabled(False)  # no second copy of weights, beside what is computed with
    none, one = (replace(shape, layers=layers).weights() for layers in (0, 1))
    fits, fails = 0, int(memory / 16 - none) // (one - none) + 1
    tries: list[Row] = []
    while fails - fits > 1:
        now = replace(shape, layers=(fits + fails) // 2)
        if cuda:
            torch.cuda.reset_peak_memory_stats()  # what is allocated, at the highest point of all steps
        row = growth.attempted(partial(tried, now, kind, asked))
        tries.append({"layers": now.layers, "weights": now.weights(), **row})
        print(json.dumps(tries[-1]), flush=True)
        if "out of memory" not in row.get("failed", "out of memory"):
            break  # for a reason that fewer layers have too
        fits, fails = (fits, now.layers) if "failed" in row else (now.layers, fails)
    return tries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--compiled", action="store_true", help="also sourdine by compiled graphs")
    parser.add_argument("--only", choices=["lora", "all"])
    parser.add_argument("--largest", action="store_true", help="search for the largest model instead")
    parser.add_argument("--checkpointing", action="store_true", help="of activations, in that search")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try it")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results: dict[str, object] = {"versions": run.versions(asked.device)}
    print(json.dumps(results["versions"]), flush=True)
    if asked.largest:
        for label, kind in (("sourdine, eager", Eager), ("non-private, eager", run.NonPrivate)):
            print(f"\n{label}", flush=True)
            found = results[label] = largest(TINY if asked.tiny else WIDE, kind, asked)
            fitting = max((row["weights"] for row in found if "failed" not in row), default=0)
            print(f"the largest has {fitting / 1e9:.3g} billion weights", flush=True)
    else:
        shape = TINY if asked.tiny else BILLION
        for lora in (True, False):
            if asked.only in (None, "lora" if lora else "all"):
                what = "LoRA of rank 8" if lora else "all weights"
                title = (
                    f"{what}, {shape.weights() / 1e9:.3g} billion, batch {asked.batch} x {shape.length}"
                )
                results[what] = rows = timed(shape, lora, asked)
                print(f"\n{table(title, rows)}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
