"""What a small language model gives away of planted secrets: without privacy, and with unit user.

    python benchmarks/attacks/canaries.py --out canaries

A GPT-2 of three layers on bytes learns reviews, each of another person, and nine made-up persons' codes
of six digits, told 1, 10 or 50 times each. Exposure is measured among all million codes, by rank among
10,000 and by extrapolation; and the model is prompted twenty times for each code.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from sourdine import rng
from sourdine.attacks.causal import CausalModel
from sourdine.attacks.exposure import measure
from sourdine.attacks.prompting import given_up
from sourdine.attacks.secrets import draw, plant
from sourdine.attacks.target import Record
from sourdine.budget import Budget
from sourdine.data.fetch import fetch
from sourdine.report.exposure import Exposures
from sourdine.report.exposure import draw as draw_figure
from sourdine.sgd import AdamW, Engine

NAMES = ("Ada", "Bela", "Cora", "Dora", "Emil", "Finn", "Gero", "Hans", "Ines")
REVIEWS, LONGEST = 1500, 110
DELTA = 1e-5


def network() -> tuple[Any, Any]:
    from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel

    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=128,
        n_layer=3,
        n_head=4,
        n_positions=128,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config), tokenizer


def examples(tokenizer: Any, records: list[Record]) -> list[torch.Tensor]:
    return [torch.tensor(tokenizer(record.texts[0])["input_ids"][:128]) for record in records]


def collate(rows: list[torch.Tensor]) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    longest = math.ceil(longest / 16) * 16
    return torch.stack(
        [torch.nn.functional.pad(row, (0, longest - len(row)), value=-100) for row in rows]
    )


def losses(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The mean over a text's own tokens."""
    logits = model(input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long()).logits[:, :-1]
    truth = ids[:, 1:]
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), truth.flatten(), reduction="none", ignore_index=-100
    )
    there = (truth >= 0).sum(1).clamp(min=1)
    return each.view_as(truth).sum(1) / there


def train_plainly(model: Any, rows: list[torch.Tensor], epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps, drawn = epochs * len(rows) // 32, torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / steps)
        places = torch.randint(len(rows), (32,), generator=drawn)
        optimizer.zero_grad()
        losses(model, collate([rows[place] for place in places])).mean().backward()
        optimizer.step()


def train_privately(
    model: Any, rows: list[torch.Tensor], users: list[str], epsilon: float, steps: int, lot: int
) -> None:
    engine = Engine(
        model,
        AdamW(model.parameters(), lr=1e-3),
        rows,
        Budget(epsilon, DELTA, "user"),
        loss=losses,
        lot_size=lot,
        steps=steps,
        clip=0.5,
        users=users,
        most_per_user=1,
        batch_size=64,
        collate=collate,
    )
    for chosen in engine.lots():
        engine.step(chosen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="canaries")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lot", type=int, default=300)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked = parser.parse_args()
    with fetch("reviews").open(encoding="utf-8", newline="") as file:
        texts = [row["text"][:LONGEST] for row in csv.DictReader(file)]
    source = rng.seeded(7)
    reviews = [Record((text,), user=f"person {n}") for n, text in enumerate(dict.fromkeys(texts))]
    canaries = draw([f"the code of {name} is {{digits:6}}" for name in NAMES], source=source)
    records = plant(reviews[:REVIEWS], canaries, source)
    found: dict[str, Any] = {}
    for kind in ("no privacy", f"epsilon {asked.epsilon:g} per user"):
        start = time.time()
        model, tokenizer = network()
        rows = examples(tokenizer, records)
        if kind == "no privacy":
            train_plainly(model, rows, asked.epochs)
        else:
            users = [record.user or "" for record in records]
            train_privately(model, rows, users, asked.epsilon, asked.steps, asked.lot)
        model.eval()
        with torch.no_grad():
            loss = float(
                torch.cat([losses(model, collate(rows[i : i + 64])) for i in range(0, 1024, 64)]).mean()
            )
        target = CausalModel(model, tokenizer, 128)
        shown = measure(target, canaries, most=3_000, source=source)
        told = given_up(target, canaries, tries=20, source=source)
        found[kind] = {
            "bits a byte": loss / math.log(2),
            "seconds": round(time.time() - start),
            "canaries": [
                {"repetitions": c.repetitions, "bits": m.bits, "rank": m.ranked.rank, "given up": g}
                for c, m, g in zip(canaries, shown, told, strict=True)
            ],
        }
        print(
            kind,
            f"{found[kind]['bits a byte']:.2f} bits a byte, {found[kind]['seconds']} s",
            flush=True,
        )
        for times in (1, 10, 50):
            own = [x for x in found[kind]["canaries"] if x["repetitions"] == times]
            bits = [round(x["bits"], 1) for x in own]
            print(
                f"  {times:>3} times: exposure {bits} bits, given up {[x['given up'] for x in own]} of 20"
            )
        bits = {
            times: [x["bits"] for x in found[kind]["canaries"] if x["repetitions"] == times]
            for times in (1, 10, 50)
        }
        picture = Path(f"{asked.out}-{kind.split()[0]}.png")
        draw_figure(Exposures(bits, math.log2(10**6), f"a GPT-2 on bytes, {kind}"), picture)
    Path(f"{asked.out}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
