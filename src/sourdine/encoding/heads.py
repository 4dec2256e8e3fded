"""What is trained on encodings: the paper's network, a linear head, and one that knows the noise.

All of it is post-processing: a head sees nothing but encodings. Soft labels are taken as they are, also
those below 0 or above 1, which come from unbiased answers.

`noise_aware`: least squares from moments. Noisy vectors have the covariance of the true ones plus the
noise's, which is known; the covariance with the labels has noise of mean zero. With public features,
their covariance stands for that of the private ones; otherwise the noise's variance is taken away from
what is seen (Fuller 1987). In the eigenvectors of the covariance, with eigenvalue a and a covariance b
with the label that carries noise of variance v, the weight is a b / (a^2 + v / t): the mean of the
posterior for weights of variance t, which is what is seen of b beyond its noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sourdine import checks
from sourdine.encoding.encodings import Encodings
from sourdine.encoding.vectors import Floats, clipped
from sourdine.errors import InputError
from sourdine.rng import Source, secure


class Head(Protocol):
    """Scores of the classes for features as `Encodings.seen` gives them."""

    def scores(self, seen: Floats) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Linear:
    """scores = x W + b."""

    weight: Floats
    bias: Floats

    def scores(self, seen: Floats) -> Floats:
        return np.asarray(seen @ self.weight + self.bias)


@dataclass(frozen=True, eq=False)
class Network:
    """Scores by a torch module."""

    module: nn.Module

    def scores(self, seen: Floats) -> Floats:
        with torch.no_grad():
            found: torch.Tensor = self.module(torch.from_numpy(seen).float())
            return np.asarray(found.double().numpy())


def accuracy(head: Head, encodings: Encodings, features: Floats, labels: NDArray[np.int64]) -> float:
    """On clean features of other records; of each the class with the highest score."""
    found = head.scores(encodings.seen(features)).argmax(1)
    return float((found == np.asarray(labels)).mean())


def noise_aware(
    encodings: Encodings, public: Floats | None = None, clip: float | None = None
) -> Linear:
    """A linear head that knows the noise; see the top. public: features before the map."""
    x, y = _checked(encodings)
    n, d = x.shape
    middle, shares = x.mean(0), y.mean(0)
    x, y = x - middle, y - shares
    variance = encodings.variance
    if public is None:
        values, vectors = np.linalg.eigh(x.T @ x / n)
        values = values - variance - variance * (2 * np.sqrt(d / n) + d / n)
        values = np.maximum(values, np.maximum(values, 0).mean() + 1e-12)
    else:
        seen = encodings.seen(public)
        limit = clip if clip is not None else float(encodings.about.get("clip", np.inf))
        seen = clipped(seen, limit) if np.isfinite(limit) else seen
        values, vectors = np.linalg.eigh(np.cov(seen.T).reshape(d, d))
        values = np.maximum(values, 1e-12)
    both = vectors.T @ (x.T @ y / n)
    shaken = (variance + values.mean()) * y.var(0) / n
    excess = (both**2).sum(0) - d * shaken
    spread = np.maximum(excess, 0.05 * (both**2).sum(0)) / (values**2).sum()
    own = values[:, None]
    weight = vectors @ (own * both / (own**2 + shaken / np.maximum(spread, 1e-300)))
    return Linear(weight, shares - middle @ weight)


def linear(encodings: Encodings, *, decay: float = 1e-3) -> Linear:
    """Logistic regression on soft labels, by Newton-like steps (L-BFGS)."""
    x, y = _checked(encodings)
    layer = nn.Linear(x.shape[1], y.shape[1])
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    scale = float(np.sqrt((x**2).sum(1).mean())) or 1.0
    rows, answers = torch.from_numpy(x / scale).float(), torch.from_numpy(y).float()
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = _soft(layer(rows), answers) + decay * layer.weight.square().sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    weight = layer.weight.detach().double().numpy().T / scale
    return Linear(weight, layer.bias.detach().double().numpy())


def mlp(
    encodings: Encodings, *, epochs: int = 20, rate: float = 1e-3, source: Source | None = None
) -> Network:
    """The paper's network: three hidden layers as wide as the features, ReLU, Adam."""
    x, y = _checked(encodings)
    d = x.shape[1]
    scale = float(np.sqrt((x**2).mean())) or 1.0
    rows, answers = torch.from_numpy(x / scale).float(), torch.from_numpy(y).float()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes((source or secure()).bytes(7)))
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(d, d), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(d, y.shape[1]))
        optimizer = torch.optim.Adam(network.parameters(), lr=checks.positive("rate", rate))
        for _ in range(checks.whole("epochs", epochs)):
            for places in torch.randperm(len(rows)).split(128):
                loss = _soft(network(rows[places]), answers[places])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    layers[0].weight.data.div_(scale)  # type: ignore[operator]
    return Network(network.eval())


def _soft(scores: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with soft labels; without a floor for answers below 0, so it stays unbiased."""
    return -(answers * scores.log_softmax(1)).sum(1).mean()


def _checked(encodings: Encodings) -> tuple[Floats, Floats]:
    if len(encodings) < 2:
        raise InputError(f"{len(encodings)} encodings are too few to train on.")
    return np.asarray(encodings.vectors, dtype=np.float64), np.asarray(
        encodings.labels, dtype=np.float64
    )
