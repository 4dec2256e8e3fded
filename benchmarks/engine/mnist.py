"""DP-SGD on MNIST: test accuracy at epsilon 0.5, 2 and 8, beside Abadi et al. (2016).

    python benchmarks/engine/mnist.py [--data ../shared/data/mnist] [--seeds 3] [--device cpu] [--figure mnist.png]

Every lot is a true Poisson draw, sums are divided by the planned lot size, the noise is calibrated to
epsilon at delta = 1e-5 (one record zeroed out), and what is tested are the weights after the last step:
no epoch is chosen by its test accuracy. Lots and noise come from a secure source; a seed fixes only the
first weights and the shifts of the images.
"""

import argparse
import gzip
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import sourdine
from sourdine import rng
from sourdine.sgd.sampling import PoissonLots

DELTA = 1e-5
PUBLISHED = {0.5: 0.90, 2.0: 0.95, 8.0: 0.97}  # Abadi et al. 2016, figure 3
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Setting:
    """What is chosen for one epsilon; tuned on MNIST itself, which the accounting leaves out."""

    epsilon: float
    lot_size: float
    steps: int
    learning_rate: float  # of sums of gradients of norm at most 1, over the lot size
    momentum: float = 0.9
    clip: float = 0.1
    average: float = 0.9  # of the weights, over the steps
    copies: int = 1  # shifted copies of an example whose losses are averaged before clipping
    shift: int = 0  # pixels, at most


SETTINGS = (
    Setting(0.5, lot_size=4096, steps=150, learning_rate=0.5),
    Setting(2.0, lot_size=4096, steps=220, learning_rate=0.5),
    Setting(8.0, lot_size=4096, steps=440, learning_rate=0.5),
)


def read(path: Path) -> torch.Tensor:
    """An idx file of bytes, gzipped."""
    raw = gzip.decompress(path.read_bytes())
    sizes = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes).copy())


@dataclass(frozen=True)
class Digits:
    images: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def load(cls, folder: Path, part: str, device: str) -> "Digits":
        images = read(folder / f"{part}-images.idx3-ubyte.gz")[:, None].float() / 255
        labels = read(folder / f"{part}-labels.idx1-ubyte.gz").long()
        return cls(images.to(device), labels.to(device))


def network() -> nn.Module:
    """The tanh network of Papernot et al. (2021), 26,010 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def shifted(images: torch.Tensor, setting: Setting, chance: torch.Generator) -> torch.Tensor:
    """(examples, copies, 1, 28, 28): each copy moved by up to `shift` pixels; zeros come in."""
    count, reach = len(images), setting.shift
    padded = nn.functional.pad(images, (reach,) * 4)
    steps = torch.randint(0, 2 * reach + 1, (2, count, setting.copies, 1), generator=chance)
    rows, columns = (steps + torch.arange(28)).to(images.device)
    at = torch.arange(count, device=images.device).reshape(-1, 1, 1, 1)
    return padded[at, 0, rows[..., None], columns[:, :, None]][:, :, None]


def private_step(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, setting: Setting, noise: float
) -> None:
    """Put the noisy clipped sum over a lot, divided by the planned lot size, into `.grad`.

    `images` is (examples, copies, 1, 28, 28); the lot may be empty, and gets its noise all the same.
    """
    weights = dict(model.named_parameters())

    def loss(
        weights: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        return cross_entropy(functional_call(model, weights, (image,)), label.expand(len(image)))

    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    fixed = {name: weight.detach() for name, weight in weights.items()}
    size = 512 if images.device.type == "cpu" else 4096
    for part, answers in zip(images.split(size), labels.split(size), strict=True):
        if not len(part):
            continue
        each = vmap(grad(loss), (None, 0, 0))(fixed, part, answers)
        squares = sum(g.flatten(1).square().sum(1) for g in each.values())
        factors = (setting.clip / squares.sqrt().clamp_min(1e-12)).clamp_max(1)
        for name, g in each.items():
            totals[name] += torch.tensordot(factors, g, dims=1)
    for name, weight in weights.items():
        noisy = totals[name] + noise * setting.clip * torch.randn_like(weight)
        weight.grad = noisy / setting.lot_size


def accuracy(model: nn.Module, digits: Digits) -> float:
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in digits.images.split(1000)])
    return float((guesses == digits.labels).float().mean())


def train(
    setting: Setting,
    noise: float,
    seed: int,
    digits: Digits,
    watch: Callable[[int, nn.Module], None] = lambda step, model: None,
) -> nn.Module:
    """A network trained with this noise multiplier; its weights are averaged over the last steps."""
    device = digits.images.device
    chance = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network().to(device)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(setting.average)
    )
    # Dividing by the clip makes the learning rate independent of it.
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setting.learning_rate / setting.clip, momentum=setting.momentum
    )
    lots = PoissonLots(len(digits.labels), setting.lot_size)
    source = rng.secure()
    for step in range(setting.steps):
        lot = torch.from_numpy(lots.draw(step, source)).to(device)
        images = shifted(digits.images[lot], setting, chance)
        private_step(model, images, digits.labels[lot], setting, noise)
        optimizer.step()
        average.update_parameters(model)
        watch(step, average)
    return average


def calibrated(setting: Setting, records: int) -> sourdine.Plan:
    budget = sourdine.Budget(setting.epsilon, DELTA)
    return sourdine.calibrate(budget, rate=setting.lot_size / records, steps=setting.steps)
