"""What is padding and filling in the batches of Poisson lots, and how many shapes they have.

    python benchmarks/engine/padding.py [LENGTHS.txt ...]

Counted, not timed: lots are drawn and cut as an Engine does it, by traced graphs on a GPU, and without graphs on a CPU, where
a batch has 64 texts at the most. Without files, of lengths that are drawn here: texts of 8 to 72 tokens as short sentences have
them, of 64 to 512 alike, and all of 128. A file has one length a line.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from sourdine import rng
from sourdine.sgd.batches import Units, batches
from sourdine.sgd.sampling import PoissonLots, usual_most
from sourdine.sgd.shapes import Kind, by_graphs, eagerly, kinds
from sourdine.text.examples import _PAD_TO

LOTS = 50


class Texts(list[int]):
    @property
    def sizes(self) -> list[int]:
        return list(self)


class Shapes:
    """Collates to a tensor without numbers, padded as text/examples.py pads."""

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def at_least(self, size: int) -> "Shapes":
        return Shapes(size)

    def __call__(self, rows: list[int]) -> torch.Tensor:
        longest = max(self.least, -(-max(rows) // _PAD_TO) * _PAD_TO)
        return torch.empty(len(rows), longest, device="meta")


def count(lengths: list[int], lot: int, plan: tuple[Kind, ...]) -> tuple[float, float, int]:
    """The share of tokens that are no text, batches a lot, and shapes."""
    units, lots, source = Units(Texts(lengths)), PoissonLots(len(lengths), lot), rng.seeded(1)
    real, made, seen = 0, 0, list[torch.Size]()
    for step in range(LOTS):
        taken = lots.draw(step, rng.seeded(step))
        real += sum(lengths[unit] for unit in taken)
        for batch in batches(units, taken, Shapes(), torch.device("meta"), source, plan):
            made += batch.data.numel()
            seen.append(batch.data.shape)
    return 1 - real / made, len(seen) / LOTS, len(set(seen))


def main() -> None:
    drawn = np.random.default_rng(1)
    short = np.clip(drawn.gamma(3.6, 6.5, 6920).round(), 8, 72).astype(int).tolist()
    sets = {
        "8 to 72 tokens, lots of 2,076": (short, 2076, 1115, 22.7e6),
        "64 to 512 tokens, lots of 2,048": (drawn.integers(64, 513, 30_000).tolist(), 2048, 512, 110e6),
        "128 tokens, lots of 256": ([128] * 10_240, 256, 64, 110e6),
    }
    for name in sys.argv[1:]:
        found = [int(line) for line in Path(name).read_text().split()]
        lot = round(0.3 * len(found))
        sets[f"{Path(name).stem}, lots of {lot:,}"] = (
            found,
            lot,
            -(-usual_most(lot, len(found)) // 2),
            22.7e6,
        )
    print("| texts | steps | made | classes | padding and filling | batches a lot | shapes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (lengths, lot, largest, parameters) in sets.items():
        ways = {
            "by graphs": (by_graphs(int(parameters), seconds=4), largest),
            "on a CPU": (eagerly(int(parameters), cpu=True), 64),
        }
        for way, (costs, most) in ways.items():
            for steps in (200, 2000, 20_000):
                plan = kinds(lengths, lot / len(lengths), most, steps, costs)
                share, many, shapes = count(lengths, lot, plan)
                print(
                    f"| {name} | {steps:,} | {way} | {len(plan)} | {share:.1%} | {many:.1f} | {shapes} |"
                )


if __name__ == "__main__":
    main()
