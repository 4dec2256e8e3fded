"""Private sentence vectors out of their encodings: how many are found, and whether they name anyone.

    python benchmarks/encoding/reconstruct.py --features sst2.npy --labels none
    python benchmarks/encoding/reconstruct.py --features sst2.npy --labels none --attack similarity

FILE.npy holds the vectors of a frozen encoder, one sentence a row (for the table in the README: MiniLM,
mean over tokens, length 1, sentences of SST-2's training part, no copies). Drawn at random: the private
ones, 900 or more distractors, and public ones from the rest. No attack here reads labels.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from sourdine.attacks import mixtures, similarity
from sourdine.attacks.recovered import recovered
from sourdine.rng import seeded

ATTACKS = {"mixtures": mixtures.reconstruct, "similarity": similarity.reconstruct}
# name, masks, noise that all rows share, fresh noise (deviations in each coordinate)
RELEASES = [
    ("mixed, no mask", 1, 0.0, 0.0),
    ("TextHide, 16 masks", 16, 0.0, 0.0),
    ("TextHide, 64 masks", 64, 0.0, 0.0),
    ("shared noise 18", 1, 18.0, 0.0),
    ("shared noise 18, 16 masks", 16, 18.0, 0.0),
    ("fresh noise 0.02, 16 masks", 16, 0.0, 0.02),
    ("fresh noise 0.05, 16 masks", 16, 0.0, 0.05),
    ("fresh noise 0.1, no mask", 1, 0.0, 0.1),
    ("fresh noise 0.3, no mask", 1, 0.0, 0.3),
    ("fresh noise 1.2, no mask", 1, 0.0, 1.2),
    ("fresh noise 1.2, 16 masks", 16, 0.0, 1.2),
]


def encode(
    private: Any, rng: Any, rows: int, mixed: int, masks: int, shared: float, fresh: float
) -> Any:
    """Rows of mask * (mixture + noise), as TextHide draws them: lambda = |g| / sum |g|."""
    count, width = private.shape
    weights = np.zeros((rows, count))
    for row in weights:
        drawn = np.abs(rng.normal(size=mixed))
        row[rng.choice(count, mixed, replace=False)] = drawn / drawn.sum()
    noise = shared * rng.normal(size=width) + fresh * rng.normal(size=(rows, width))
    pool = rng.choice([-1.0, 1.0], size=(masks, width)) if masks > 1 else np.ones((1, width))
    return pool[rng.integers(masks, size=rows)] * (weights @ private + noise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--features", required=True)
    parser.add_argument("--labels", choices=["none"], default="none")
    parser.add_argument("--attack", choices=list(ATTACKS), default="mixtures")
    parser.add_argument("--sources", type=int, default=100)
    parser.add_argument("--mixed", type=int, default=4)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--public", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="releases whose name holds this")
    asked = parser.parse_args()
    features = np.unique(
        np.load(asked.features).astype(np.float64), axis=0
    )  # a copy would be on two sides
    print(
        f"{asked.attack}: {asked.sources} private vectors, {asked.mixed} mixed, {asked.rows} encodings"
    )
    print("| release | seed | matched | mean cosine | identified | chance | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, masks, shared, fresh in RELEASES:
        for seed in range(asked.seeds if asked.only in name else 0):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(features))
            private, public, others = np.split(
                features[order], [asked.sources, asked.sources + asked.public]
            )
            encodings = encode(private, rng, asked.rows, asked.mixed, masks, shared, fresh)
            start = time.time()
            found = ATTACKS[asked.attack](
                encodings,
                sources=asked.sources,
                mixed=asked.mixed,
                masks=masks,
                public=public,
                source=seeded(seed),
            )
            spent = time.time() - start
            worth = recovered(found, private, public=public, distractors=others)
            print(
                f"| {name} | {seed} | {worth.matched:.0%} | {worth.cosines.mean():.3f} | "
                f"{worth.identified:.0%} | {worth.chance:.3%} | {spent:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
