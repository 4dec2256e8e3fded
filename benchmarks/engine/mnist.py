"""DP-SGD on MNIST: test accuracy at epsilon 0.5, 2 and 8, beside Abadi et al. (2016).

    python benchmarks/engine/mnist.py [--data ../shared/data/mnist] [--seeds 3] [--device cuda] [--figure mnist.png]

Every lot is a true Poisson draw, sums are divided by the planned lot size, the noise is calibrated to
epsilon at delta = 1e-5 (one record zeroed out), and what is tested is the average of the weights up to
the last step: no epoch is chosen by its test accuracy. Lots and noise come from a secure source; a seed
fixes only the first weights.
"""

import argparse
import gzip
import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import sourdine
import sourdine.sgd

DELTA = 1e-5
PUBLISHED = {0.5: 0.90, 2.0: 0.95, 8.0: 0.97}  # Abadi et al. 2016, figure 3
DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "mnist"


@dataclass(frozen=True)
class Setting:
    """What is chosen for one epsilon; tuned on MNIST itself, which the accounting leaves out."""

    epsilon: float
    lot_size: float
    steps: int
    learning_rate: float  # of gradients that are divided by the clip
    momentum: float = 0.9
    clip: float = 0.1
    average: float = 0.9  # share of the old average at each step


SETTINGS = (
    Setting(0.5, lot_size=4096, steps=80, learning_rate=1.0),
    Setting(2.0, lot_size=2048, steps=150, learning_rate=1.0),
    Setting(8.0, lot_size=2048, steps=400, learning_rate=1.0),
)


@dataclass(frozen=True)
class Digits:
    images: Tensor  # (count, 1, 28, 28), scaled by constants that do not depend on the data
    labels: Tensor

    @classmethod
    def load(cls, folder: Path, part: str, device: str) -> "Digits":
        images = read(folder / f"{part}-images.idx3-ubyte.gz")[:, None].float() / 255
        labels = read(folder / f"{part}-labels.idx1-ubyte.gz").long()
        return cls((3 * (images - 0.1)).to(device), labels.to(device))


def read(path: Path) -> Tensor:
    """A gzipped idx file of bytes."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    sizes = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(sizes).copy())


def network() -> nn.Module:
    """The tanh network of Papernot et al. (2021), 26,010 weights, with group norms that learn nothing."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.GroupNorm(4, 16, affine=False),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.GroupNorm(4, 32, affine=False),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def train(setting: Setting, seed: int, digits: Digits) -> tuple[nn.Module, sourdine.sgd.Engine]:
    """The averaged weights after all steps, and the engine that made them."""
    device = digits.labels.device
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network().to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(setting.average))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setting.learning_rate / setting.clip, momentum=setting.momentum
    )
    engine = sourdine.sgd.Engine(
        model,
        optimizer,
        range(len(digits.labels)),
        sourdine.Budget(setting.epsilon, DELTA),
        loss=lambda model, at: cross_entropy(
            model(digits.images[at]), digits.labels[at], reduction="none"
        ),
        lot_size=setting.lot_size,
        steps=setting.steps,
        clip=setting.clip,
        batch_size=512 if device.type == "cpu" else 8192,
    )
    for lot in engine.lots():
        engine.step(lot)
        average.update_parameters(model)
    return average, engine


def accuracy(model: nn.Module, digits: Digits) -> float:
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in digits.images.split(1000)])
    return float((guesses == digits.labels).float().mean())


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Accuracy against epsilon: every seed as a point, their mean as a line, the published values below."""
    from sourdine.report import style

    with style.house():
        means = [statistics.mean(row["accuracies"]) for row in rows]
        figure = style.canvas(
            "DP-SGD on MNIST: "
            + ", ".join(f"{m:.1%} at ε = {r['epsilon']:g}" for m, r in zip(means, rows, strict=True)),
            f"Test accuracy after the last step, δ = {style.scientific(DELTA)}, one record zeroed out, Poisson lots; "
            f"points: {len(rows[0]['accuracies'])} seeds, line: their mean. Settings tuned on MNIST, tuning not accounted for, "
            "as in Abadi et al. (2016).",
            margin=1.2,
        )
        plot = style.axes(figure, x="ε", y="test accuracy")
        plot.set_xscale("log")
        epsilons = [row["epsilon"] for row in rows]
        plot.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        plot.minorticks_off()
        plot.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        published = [row["published"] for row in rows]
        plot.plot(epsilons, means, color=style.BLUE, linewidth=style.LINE)
        for row in rows:
            points = row["accuracies"]
            plot.plot([row["epsilon"]] * len(points), points, "o", color=style.BLUE, markersize=4)
        plot.plot(epsilons, published, "s--", color=style.GREY, linewidth=1.2, markersize=4)
        style.label(plot, (epsilons[-1], means[-1]), "sourdine", style.BLUE)
        style.label(plot, (epsilons[-1], published[-1]), "Abadi et al.\n(2016)", style.GREY)
        figure.savefig(path, dpi=style.DPI)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="0.5,2,8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, help="another number of steps, for a quick look")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    wanted = {float(text) for text in arguments.epsilons.split(",")}
    training, test = (Digits.load(arguments.data, part, arguments.device) for part in ("train", "t10k"))
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {arguments.device}\n")
    print(
        "| epsilon | noise multiplier | test accuracy, mean (least to most) | Abadi et al. 2016 | seconds a run |"
    )
    print("| --- | --- | --- | --- | --- |", flush=True)
    rows = []
    for tuned in SETTINGS:
        if tuned.epsilon not in wanted:
            continue
        setting = replace(tuned, steps=arguments.steps or tuned.steps)
        start, found = time.perf_counter(), []
        for seed in range(arguments.seeds):
            model, engine = train(setting, seed, training)
            found.append(accuracy(model, test))
        seconds = (time.perf_counter() - start) / arguments.seeds
        published = PUBLISHED[setting.epsilon]
        rows.append(
            {
                **asdict(setting),
                "noise_multiplier": engine.noise_multiplier,
                "epsilon_upper": engine.epsilon(),
                "accuracies": found,
                "published": published,
                "seconds": seconds,
            }
        )
        print(
            f"| {setting.epsilon:g} | {engine.noise_multiplier:.3f} | {statistics.mean(found):.2%} "
            f"({min(found):.2%} to {max(found):.2%}) | {published:.0%} | {seconds:.0f} |",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
