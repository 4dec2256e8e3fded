"""Fewer dimensions before the noise: maps that are made from public text, or from nothing.

Noise of deviation sigma in d dimensions has norm sigma sqrt(d), while what matters about a text lies
in few of them. A map is made once, from public features or at random, and is handed on with the
encodings: whoever uses a model needs it too.

Guarantee: a map sees no private record. `pca` and `autoencoder` take the features of public text;
whoever gives them private ones has made a release that nobody charged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sourdine import checks
from sourdine.encoding.vectors import Floats, checked
from sourdine.errors import InputError
from sourdine.rng import Source, secure


@dataclass(frozen=True, eq=False)
class Map:
    """x -> tanh(... tanh((x - mean) W_1 + b_1) ...) W_l + b_l; with one layer it is linear."""

    name: str
    mean: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    @property
    def dimension(self) -> int:
        return int(self.layers[-1][0].shape[1]) if self.layers else len(self.mean)

    def __call__(self, features: Floats) -> Floats:
        rows = checked(features, "features")
        if rows.shape[1] != len(self.mean):
            raise InputError(
                f"features have {rows.shape[1]} numbers, but the map was made for {len(self.mean)}; "
                "use the encoder that it was made with."
            )
        rows = rows - self.mean
        for place, (weight, bias) in enumerate(self.layers):
            rows = (rows if place == 0 else np.tanh(rows)) @ weight + bias
        return rows

    def tensors(self) -> dict[str, Floats]:
        """As arrays by name, for a file; `from_tensors` is the way back."""
        found = {"map.mean": self.mean}
        for place, (weight, bias) in enumerate(self.layers):
            found |= {f"map.{place}.weight": weight, f"map.{place}.bias": bias}
        return found

    @staticmethod
    def from_tensors(name: str, found: dict[str, Floats]) -> Map:
        layers: list[tuple[Floats, Floats]] = []
        while f"map.{len(layers)}.weight" in found:
            place = len(layers)
            layers.append((found[f"map.{place}.weight"], found[f"map.{place}.bias"]))
        return Map(name, found["map.mean"], tuple(layers))


def whole(public: Floats) -> Map:
    """All dimensions, without the public mean."""
    return Map("none", checked(public, "public features").mean(0), ())


def pca(public: Floats, dimension: int) -> Map:
    """The directions in which public features vary most, after their mean."""
    rows, dimension = _checked(public, dimension)
    mean = rows.mean(0)
    _, vectors = np.linalg.eigh((rows - mean).T @ (rows - mean))
    return _linear("pca", mean, vectors[:, : -dimension - 1 : -1])


def random_projection(public: Floats, dimension: int, source: Source | None = None) -> Map:
    """Uniformly random directions, orthogonal to each other, after the public mean."""
    rows, dimension = _checked(public, dimension)
    chance = np.random.default_rng(int.from_bytes((source or secure()).bytes(16)))
    directions, _ = np.linalg.qr(chance.standard_normal((rows.shape[1], dimension)))
    return _linear("random projection", rows.mean(0), directions)


def autoencoder(
    public: Floats, dimension: int, *, steps: int = 600, source: Source | None = None
) -> Map:
    """The first half of a network that gives public features back from so few numbers."""
    rows, dimension = _checked(public, dimension)
    width, mean = 2 * dimension, rows.mean(0)
    x = torch.from_numpy(rows - mean).float()
    x = x / x.norm(dim=1).mean()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes((source or secure()).bytes(7)))
        first, second = nn.Linear(x.shape[1], width), nn.Linear(width, dimension)
        back = nn.Sequential(nn.Linear(dimension, width), nn.Tanh(), nn.Linear(width, x.shape[1]))
        network = nn.Sequential(first, nn.Tanh(), second, back)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        for _ in range(checks.whole("steps", steps)):
            batch = x[torch.randint(len(x), (256,))]
            loss = nn.functional.mse_loss(network(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    scale = float(np.linalg.norm(rows - mean, axis=1).mean())
    layers = [(_array(x.weight).T, _array(x.bias)) for x in (first, second)]
    layers[0] = (layers[0][0] / scale, layers[0][1])
    return Map("auto-encoder", mean, tuple(layers))


def _linear(name: str, mean: Floats, directions: Floats) -> Map:
    return Map(name, mean, ((directions, np.zeros(directions.shape[1])),))


def _array(x: torch.Tensor) -> Floats:
    return x.detach().double().numpy()


def _checked(public: Floats, dimension: int) -> tuple[Floats, int]:
    rows = checked(public, "public features")
    if not np.isfinite(rows).all():
        raise InputError("public features must be finite numbers.")
    dimension = checks.whole("dimension", dimension)
    if dimension > rows.shape[1]:
        raise InputError(f"features have {rows.shape[1]} dimensions; ask for as many at most.")
    if len(rows) <= dimension:
        raise InputError(
            f"{len(rows)} public texts are too few for {dimension} dimensions; give more of them."
        )
    return rows, dimension
