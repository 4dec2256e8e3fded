"""Train many times with and without one person, and look at where one weight ends up.

    python examples/one_weight.py [--trainings 4000] [--figure one-weight.png]

The definition of differential privacy, drawn: without noise, one weight tells at once whether the
person was in the data; with it, both histograms overlap so much that no test can tell them apart better
than epsilon allows. The person is an outlier, far from everyone else: the worst case.

The trainings use the lower tier of sourdine, `clipped_sum` and `add_noise_` in a loop of one's own; the
event of a training is composed by hand. (sourdine.Engine does all of this, and charges a ledger.)
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sourdine import curve, rng
from sourdine.events import GaussianEvent
from sourdine.report import style
from sourdine.sgd import clipped_sum
from sourdine.sgd.noise import add_noise_

STEPS, RATE, CLIP, NOISE, DELTA = 8, 0.3, 1.0, 4.0, 1e-5


def people(outlier: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Twenty people on a line of slope 1, and perhaps one far off it; a person zeroed out is (0, 0)."""
    x = torch.linspace(-1, 1, 20)
    off = (2.0, -6.0) if outlier else (0.0, 0.0)
    return torch.cat([x, torch.tensor(off[:1])]), torch.cat([x, torch.tensor(off[1:])])


def train(data: tuple[torch.Tensor, torch.Tensor], noise: float, source: rng.Source) -> float:
    """The slope after a few steps of private gradient descent from 0, on all people at each step."""
    x, y = data
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)

    def losses() -> torch.Tensor:
        return (model(x[:, None])[:, 0] - y).square()

    for _ in range(STEPS):
        model.zero_grad()
        if noise:
            clipped_sum(model, losses, CLIP)
            add_noise_([model.weight.grad], noise * CLIP, source)
        else:
            losses().sum().backward()
        with torch.no_grad():
            model.weight -= RATE * model.weight.grad / len(x)
    return float(model.weight.detach())


def main(trainings: int = 4000, figure: Path | None = None) -> dict[str, np.ndarray]:
    source = rng.secure()
    slopes = {
        name: np.array([train(people(outlier), NOISE, source) for _ in range(trainings)])
        for name, outlier in (("with", True), ("without", False))
    }
    exact = {name: train(people(name == "with"), 0.0, source) for name in slopes}
    epsilon = curve(STEPS * GaussianEvent(NOISE)).epsilon_upper(DELTA)
    for name, found in slopes.items():
        print(
            f"{name:>7} the person: slope {found.mean():+.3f} ± {found.std():.3f}, "
            f"not private {exact[name]:+.3f}"
        )
    print(f"epsilon {epsilon:.2f} at delta {DELTA:g}: {STEPS} steps, noise multiplier {NOISE:g}")
    if figure is not None:
        draw(slopes, exact, epsilon, figure)
    return slopes


def draw(slopes: dict[str, np.ndarray], exact: dict[str, float], epsilon: float, path: Path) -> None:
    with style.house():
        figure = style.canvas(
            f"One weight after training: with one person and without (ε = {epsilon:.2f})",
            f"Slope of a line fitted in {STEPS} steps, {len(slopes['with'])} trainings each; clip "
            f"{CLIP:g}, noise multiplier {NOISE:g}, δ = {style.scientific(DELTA)}. Dashed: the same "
            "training without clipping and noise, which always ends in the same place.",
            margin=1.2,
        )
        plot = style.axes(figure, x="slope", y="density")
        both = np.concatenate(list(slopes.values()))
        edges = np.linspace(*np.quantile(both, (0.0005, 0.9995)), 40)
        for height, (name, colour) in zip(
            (0.95, 0.87), (("with", style.ORANGE), ("without", style.BLUE)), strict=True
        ):
            plot.hist(
                slopes[name], edges, density=True, histtype="step", color=colour, linewidth=style.LINE
            )
            plot.axvline(exact[name], color=colour, linestyle="--", linewidth=1.2)
            text = f"{name} the person (dashed: not private, {exact[name]:+.2f})"
            plot.text(0.1, height, text, color=colour, transform=plot.transAxes)
        figure.savefig(path, dpi=style.DPI)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=4000)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    main(given.trainings, given.figure)
