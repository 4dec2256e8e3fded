"""Instance encoding on real text: accuracy and reconstruction over epsilon, in two figures.

    python benchmarks/encoding/run.py all DATA OUT [--model FOLDER]        # both figures, in OUT
    python benchmarks/encoding/run.py attack OUT --schemes laplace --epsilons 10,15,20 --seeds 5
    python benchmarks/encoding/run.py best OUT --tasks sst2 --seeds 5

The parts of `all` are features (DATA OUT), utility, attack and figure (OUT). DATA holds TASK.train.jsonl and
TASK.test.jsonl (text, label) of cola and sst2, as benchmarks/text/prepare.py writes them, and public texts, public.jsonl. `features` reads all of them once with a frozen MiniLM; the rest
works on those arrays. Lines that are there already are not made again.

Utility: a model is trained on encodings of all training records and tested on clean features. Attack: 100
training records, 5,000 encodings of them (for the repair in local mode, one each: there are no more), the
attack of attacks/mixtures.py with public features, 1,000 other records as distractors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (0.1, 1, 2, 4, 8, 10, 15, 20)
DELTA, CLASSES = 1e-5, ("0", "1")
EPOCHS = 2  # more of them learn the noise: away from it, at clean features, the network is then a coin
SCHEMES = {
    "none": "no protection",
    "texthide": "TextHide (16, 4)",
    "laplace": "as published, Laplace",
    "gaussian": "as published, Gaussian",
    "shared": "as published, one noise for all",
    "repair": "the repair: local, randomized labels",
}
FREE = ("none", "texthide")  # no epsilon
TITLES = {
    "accuracy": (
        "Accuracy of models trained on encodings, by the epsilon that is claimed: only the repair keeps it",
        "MiniLM, frozen; three seeds, least to most shaded. The repair: noise-aware head; all others: the "
        "paper's network.",
    ),
    "matched": (
        "TextHide and one noise for all give everyone away; published Laplace noise gives many away at "
        "epsilon 15 and 20",
        "100 records, 5,000 encodings (the repair: 100). Recovered: cosine 0.9 or more after the public mean. "
        "Identified: among 1,000 others, by the better of two attacks. Dotted: the most that any attack on the "
        "repair can identify. Lines at 0 lie on each other. Published Laplace from 10 on: five draws, least to "
        "most shaded; all else: one.",
    ),
}


class Task:
    """Features and labels of one task, and of public text."""

    def __init__(self, folder: Path, name: str) -> None:
        def load(part: str) -> Any:
            return np.load(folder / f"{part}.npy").astype(np.float64)

        self.name = name
        self.train, self.test = load(f"{name}.train"), load(f"{name}.test")
        self.labels, self.wanted = (
            np.load(folder / f"{name}.{part}.labels.npy").astype(np.int64) for part in ("train", "test")
        )
        self.public = load("public")


def encoded(
    task: Task, scheme: str, epsilon: float, seed: int, places: Any, outputs: int | None
) -> Any:
    """Encodings of these training records."""
    from sourdine.encoding import Paper, TextHide
    from sourdine.encoding.encodings import Encodings
    from sourdine.encoding.vectors import indicators
    from sourdine.rng import seeded

    x, y, source = task.train[places], task.labels[places], seeded(seed)
    if scheme == "none":
        return Encodings(x, indicators(y, 2), CLASSES, 0.0, None, {"mode": "none"}), None
    if scheme == "texthide":
        hide = TextHide()
        pool = hide.draw_masks(x.shape[1], source)
        return hide.encode(x, y, CLASSES, outputs=outputs, pool=pool, source=source), pool
    if scheme == "repair":
        return repair(task, epsilon, seed, places), None
    law = "laplace" if scheme == "laplace" else "gaussian"
    noise = "shared" if scheme == "shared" else "fresh"
    return Paper(epsilon, DELTA, law, noise).encode(x, y, CLASSES, outputs=outputs, source=source), None


def repair(
    task: Task,
    epsilon: float,
    seed: int,
    places: Any,
    dimension: int = 32,
    labels: Any = None,
    short: float = 0.02,
    make: Any = None,
    noise: Any = None,
) -> Any:
    from sourdine.budget import Budget
    from sourdine.encoding import InstanceEncoder, Randomized, pca
    from sourdine.rng import seeded

    chosen = (make or pca)(task.public, dimension)
    norm = 2 if noise is None else noise.clips
    sizes = np.linalg.norm(chosen(task.public), ord=norm, axis=1)
    encoder = InstanceEncoder(
        lambda texts: np.zeros((len(texts), 1)),
        Budget(epsilon, DELTA, adjacency="replace-one"),
        classes=CLASSES,
        map=chosen,
        clip=float(np.quantile(sizes, short)),
        labels=labels or Randomized(),
        noise=noise,
        source=seeded(seed),  # for a figure that can be repeated; the texts are public
    )
    return encoder.encode_features(task.train[places], [CLASSES[y] for y in task.labels[places]])


def utility(task: Task, scheme: str, epsilon: float, seed: int) -> dict[str, float]:
    from sourdine.encoding import accuracy, mlp, noise_aware
    from sourdine.rng import seeded

    found, pool = encoded(task, scheme, epsilon, seed, np.arange(len(task.train)), None)
    test = task.test
    if pool is not None:  # as the authors do: a mask at the test too
        test = test * pool[np.random.default_rng(seed).integers(0, len(pool), len(test))]
    head = (
        noise_aware(found, task.public)
        if scheme == "repair"
        else mlp(found, epochs=EPOCHS, source=seeded(seed))
    )
    return {"accuracy": accuracy(head, found, test, task.wanted)}


def attack(task: Task, scheme: str, epsilon: float, seed: int) -> dict[str, float]:
    from sourdine.attacks import presence
    from sourdine.attacks.mixtures import reconstruct
    from sourdine.attacks.recovered import recovered
    from sourdine.rng import seeded

    order = np.random.default_rng(100 + seed).permutation(len(task.train))
    places, others = order[:100], order[100:1100]
    found, _ = encoded(task, scheme, epsilon, seed, places, 5000)
    start = time.perf_counter()
    if scheme in ("none", "repair"):
        guess = found.vectors  # one encoding for each record
    else:
        masks = 16 if scheme == "texthide" else 1
        guess = reconstruct(
            found.vectors, sources=100, mixed=4, masks=masks, public=task.public, source=seeded(seed)
        )
    seconds = time.perf_counter() - start
    seen = found.seen
    result = recovered(
        guess,
        seen(task.train[places]),
        public=seen(task.public),
        distractors=seen(task.train[others]),
        paired=scheme in ("none", "repair"),
    )
    named = result.identified
    if scheme in ("laplace", "gaussian", "shared"):
        named = max(named, presence.identified(found.vectors, task.train[places], task.train[others]))
    mu = 2 * found.about["clip"] / found.about["scale"] if scheme == "repair" else None
    return {
        "matched": result.matched,
        "identified": named,
        "chance": result.chance,
        "bound": None if mu is None else result.bound(mu),
        "seconds": seconds,
    }


def measure(
    task: Task, what: Any, schemes: list[str], epsilons: list[float], seeds: int, lines: Path
) -> None:
    kept = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    done = {(row["task"], row["scheme"], row["epsilon"], row["seed"]) for row in kept}
    for scheme in schemes:
        for epsilon in [0.0] if scheme in FREE else epsilons:
            for seed in range(seeds):
                if (task.name, scheme, epsilon, seed) in done:
                    continue
                row = {"task": task.name, "scheme": scheme, "epsilon": epsilon, "seed": seed}
                row |= what(task, scheme, epsilon, seed)
                print(json.dumps(row), flush=True)
                with lines.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def best(task: Task, seeds: int) -> None:
    """The repair at epsilon 8: which dimension, clip and share of the budget for labels."""
    from sourdine.encoding import Inside, Public, Randomized, accuracy, noise_aware
    from sourdine.encoding.maps import autoencoder, random_projection, whole
    from sourdine.encoding.noises import NOISES

    every = np.arange(len(task.train))

    def mean(**settings: Any) -> str:
        own = []
        for seed in range(seeds):
            found = repair(task, 8.0, 50 + seed, every, **settings)
            own.append(accuracy(noise_aware(found, task.public), found, task.test, task.wanted))
        return f"{statistics.mean(own):.3f} ({min(own):.3f} to {max(own):.3f})"

    print("labels public, all vectors as long as the clip:")
    for dimension in (8, 16, 32, 64, 128, 384):
        print(f"  {dimension} dimensions: {mean(dimension=dimension, labels=Public())}", flush=True)
    print("labels public, 32 dimensions, clip at a quantile of public norms:")
    for short in (0.02, 0.1, 0.5, 0.9):
        print(f"  {short}: {mean(labels=Public(), short=short)}", flush=True)
    print("labels public, by the map:")
    for name, make in (("random projection", random_projection), ("auto-encoder", autoencoder)):
        print(f"  {name}, 32 dimensions: {mean(labels=Public(), make=make)}", flush=True)
    print(f"  none: {mean(labels=Public(), make=lambda public, _: whole(public))}", flush=True)
    print("labels public, by the noise, 8 dimensions:")
    for name, noise in NOISES.items():
        print(f"  {name}: {mean(labels=Public(), dimension=8, noise=noise())}", flush=True)
    print("labels private, 32 dimensions:")
    for share in (0.1, 0.2, 0.3, 0.4, 0.5):
        print(f"  randomized, share {share}: {mean(labels=Randomized(share))}", flush=True)
    for weight in (0.5, 1.0, 2.0):
        print(f"  inside, weight {weight}: {mean(labels=Inside(weight))}", flush=True)


def features(data: Path, out: Path, model: str | None) -> None:
    from sourdine.text.examples import Collate, tokenized
    from sourdine.text.examples import features as read
    from sourdine.text.models import Classifier, load_encoder
    from sourdine.text.prepared import default_model

    encoder, tokenizer, pooling = load_encoder(model or default_model())
    network = Classifier(encoder, 2, pooling)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("public", "cola.train", "cola.test", "sst2.train", "sst2.test"):
        rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]
        own = tokenized(tokenizer, [[row["text"] for row in rows]], [0] * len(rows), 128)
        np.save(out / f"{name}.npy", read(network, own, Collate(tokenizer.pad_token_id)).numpy())
        if name != "public":
            np.save(out / f"{name}.labels.npy", np.array([int(row["label"]) for row in rows]))
        print(name, len(rows), flush=True)


def figure(lines: Path, out: Path, whats: tuple[str, ...]) -> None:
    """A column for each task; lines for what has an epsilon, level ones for what has none."""
    from sourdine.report import style

    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    tasks = sorted({row["task"] for row in rows})
    looks = {
        "none": (style.GREY, "--"),
        "texthide": (style.PURPLE, "-"),
        "shared": (style.AMBER, "--"),
        "laplace": (style.ORANGE, "-"),
        "gaussian": (style.BLUE, "-"),
        "repair": (style.GREEN, "-"),
    }
    looks = {scheme: look for scheme, look in looks.items() if any(x["scheme"] == scheme for x in rows)}
    title, note = TITLES[whats[0]]
    names = {"accuracy": "accuracy", "matched": "vectors recovered", "identified": "records identified"}
    with style.house():
        canvas = style.canvas(title, note, taller=0.7 + 2.6 * (len(whats) - 1), headed=True)
        canvas.subplots_adjust(bottom=0.25 if len(whats) == 1 else 0.195, wspace=0.28, hspace=0.28)
        for place, (what, task) in enumerate((x, y) for x in whats for y in tasks):
            heading = {"cola": "CoLA", "sst2": "SST-2"}[task]
            grid = (len(whats), len(tasks))
            x = "epsilon, as claimed" if what == whats[-1] else ""
            plot = style.axes(canvas, grid, place + 1, title=heading, x=x, y=names[what])
            plot.set_xscale("symlog", linthresh=1)
            for scheme, (color, line) in looks.items():
                own = [row for row in rows if row["task"] == task and row["scheme"] == scheme]
                xs = list(EPSILONS) if scheme not in FREE else [EPSILONS[0], EPSILONS[-1]]
                at = [[row[what] for row in own if scheme in FREE or row["epsilon"] == x] for x in xs]
                plot.plot(xs, [statistics.mean(y) for y in at], line, color=color)
                plot.fill_between(
                    xs, [min(y) for y in at], [max(y) for y in at], color=color, alpha=0.15
                )
                if what == "identified" and scheme == "repair":
                    bound = [next(row["bound"] for row in own if row["epsilon"] == x) for x in xs]
                    plot.plot(xs, bound, ":", color=color)
                    style.label(plot, (xs[4], bound[4]), "bound", color, by=(-4, 9), align="right")
            plot.set_xticks(EPSILONS, [f"{x:g}" for x in EPSILONS])
            plot.minorticks_off()
            if what != "accuracy":
                plot.set_ylim(-0.04, 1.06)
        handles = [
            plot.plot([], [], line, color=color, label=SCHEMES[scheme])[0]
            for scheme, (color, line) in looks.items()
        ]
        canvas.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, 0.065 if len(whats) == 1 else 0.072),
            ncol=3,
            frameon=False,
            fontsize=style.SMALL,
        )
        canvas.savefig(out, dpi=style.DPI)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["all", "features", "utility", "attack", "best", "figure"])
    parser.add_argument("folders", nargs="+", type=Path, help="DATA and OUT, or OUT where DATA is read")
    parser.add_argument("--tasks", default="cola,sst2")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--seeds", type=int, help="3, and 1 for attacks")
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument("--model")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    folder, whats = asked.folders[-1], [asked.what]
    if asked.what == "all":
        whats = ["features", "utility", "attack", "figure"]
    schemes, epsilons = asked.schemes.split(","), [float(x) for x in asked.epsilons.split(",")]
    for what in whats:
        if what == "features":
            features(asked.folders[0], folder, asked.model)
        elif what == "figure":
            figure(folder / "utility.jsonl", folder / "accuracy.png", ("accuracy",))
            figure(folder / "attack.jsonl", folder / "attack.png", ("matched", "identified"))
        else:
            for name in asked.tasks.split(","):
                task = Task(folder, name)
                if what == "best":
                    best(task, asked.seeds or 3)
                elif what == "utility":
                    kept, lines = [x for x in schemes if x != "shared"], folder / "utility.jsonl"
                    measure(task, utility, kept, epsilons, asked.seeds or 3, lines)
                else:
                    lines = folder / "attack.jsonl"
                    measure(task, attack, schemes, epsilons, asked.seeds or 1, lines)


if __name__ == "__main__":
    main()
