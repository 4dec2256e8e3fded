"""How long private encodings take, beside the encoder's own forward pass.

    python benchmarks/encoding/speed.py TEXTS [--count 67000] [--threads 2]

TEXTS: a JSONL file with a field text; it is gone through again until there are enough. The forward pass is that of
the frozen MiniLM over all of them; what is added is tokens to vectors: map, clip, charge, randomized labels and noise,
measured in the same process right after it. Goal: at most a tenth of the forward pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=67_000)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    from sourdine.budget import Budget
    from sourdine.encoding import InstanceEncoder, pca, whole
    from sourdine.text.examples import Collate, features, tokenized
    from sourdine.text.models import Classifier, load_encoder
    from sourdine.text.prepared import default_model

    rows = [json.loads(line)["text"] for line in asked.texts.read_text().splitlines()]
    texts = list(itertools.islice(itertools.cycle(rows), asked.count))
    encoder, tokenizer, pooling = load_encoder(default_model())
    network = Classifier(encoder, 2, pooling)
    start = time.perf_counter()
    own = tokenized(tokenizer, [texts], [0] * len(texts), 128)
    tokens = time.perf_counter() - start
    start = time.perf_counter()
    found = features(network, own, Collate(tokenizer.pad_token_id)).double().numpy()
    forward = time.perf_counter() - start
    print(f"{len(texts)} texts: tokens {tokens:.1f} s, forward {forward:.1f} s", flush=True)
    labels = [str(place % 2) for place in range(len(texts))]
    for name, made in (
        ("32 dimensions", pca(found[:5000], 32)),
        ("all dimensions", whole(found[:5000])),
    ):
        start = time.perf_counter()
        InstanceEncoder(
            lambda x: np.zeros((len(x), 1)),
            Budget(8, 1e-6, adjacency="replace-one"),
            classes=("0", "1"),
            map=made,
        ).encode_features(found, labels)
        took = time.perf_counter() - start
        print(f"{name}: {took:.2f} s, {took / forward:.1%} of the forward pass", flush=True)


if __name__ == "__main__":
    main()
