"""Private vectors out of their encodings, by a network that sees which encodings share a source.

Carlini et al. 2020 broke InstaHide so, Xie and Hong 2021 TextHide: a mask only changes signs, so |y| is
free of it; and whether |y_a| and |y_b| share a private vector can be learnt from public vectors, which
anybody can mix.

1. Similarity. A small network e maps |y| to a vector of length one; encodings share a source with logit
   s e_a . e_b + t. It learns from mixtures of public vectors, drawn as the owner draws.
2. Clusters and assignment. e is about linear in the coefficients of an encoding, with one direction for
   each source: those directions are where the third moment is largest (`mixtures.skewed`), and the
   largest coordinates of an encoding say which sources are in it, and how much of each. It stands in
   place of the paper's greedy clusters, second network and flow problem.
3. Coefficients and vectors in turn by least squares, as in `mixtures.refined`. The signs that |y| lacks
   come from the masks, which are few and taken off as in `mixtures.unmask`. The paper fits
   | |y| - |sum lambda v| | instead and needs no mask twice; on vectors, whose coordinates do not tell
   each other's sign, that stood still far from the truth when we tried it with alternating projections.

Both sides are standardised by their own means and deviations, so that a noise that all encodings share
does not blind the network. No label is read, and nothing private is needed to train. Against
`mixtures.py` it is slower and finds no more: it is here as the attack of the papers, and as a second
opinion that reaches its coefficients by another way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sourdine.attacks import mixtures
from sourdine.attacks.target import Floats
from sourdine.rng import Source

STEPS = 400
_BATCH = 256
"""Encodings in one step; all their pairs are examples."""
_POOL = 64
"""Public vectors that a batch is mixed of: with four mixed, one pair in four shares one."""
_HIDDEN = 256
_RATE = 3e-4

Embedding = Callable[[Tensor], Tensor]


def reconstruct(
    encodings: Floats,
    *,
    sources: int,
    mixed: int,
    masks: int = 1,
    public: Floats,
    source: Source | None = None,
) -> Floats:
    """As many vectors as there are sources, in the frame of the public ones, in no order.

    The same arguments as `mixtures.reconstruct`. On one core it takes about half a minute for 5,000
    encodings of 384 coordinates, most of it for the network.
    """
    encodings, public = mixtures.checked(encodings, sources, mixed, masks, public)
    rng = mixtures.generator(source)
    points = embedded(encodings, public, mixed, rng)
    rough = mixtures.skewed(points, sources, mixed, rng)
    bare = mixtures.unmask(encodings, masks, public, rng) if masks > 1 else encodings
    mean = bare.mean(axis=0)
    found, coefficients = mixtures.refined(bare - mean, rough, mixed)
    noise = mixtures.spread(bare - mean - coefficients @ found, sources)
    found = mixtures.placed(found + mean, public, either=masks > 1)
    return mixtures.denoised(found, coefficients, noise, public)


def embedded(encodings: Floats, public: Floats, mixed: int, rng: np.random.Generator) -> Floats:
    """Where the network puts each encoding: those that share a source lie close."""
    network = trained(public, mixed, rng, STEPS)
    with torch.no_grad():
        points: Floats = network(_standard(torch.as_tensor(np.abs(encodings)))).double().numpy()
    return points


def trained(public: Floats, mixed: int, rng: np.random.Generator, steps: int) -> Embedding:
    """A network that puts encodings that share a source close together, learnt from public vectors."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    features = torch.as_tensor(public, dtype=torch.float32)
    weights = _start(features.shape[1], generator)
    slope = torch.tensor([5.0, -2.0], requires_grad=True)
    optimizer = torch.optim.Adam([*weights, slope], lr=_RATE)
    apart = ~torch.eye(_BATCH, dtype=torch.bool)
    for _ in range(steps):
        encodings, shared = _mixed(features, mixed, generator)
        points = _embed(_standard(encodings), weights)
        logits = slope[0] * (points @ points.T) + slope[1]
        loss = functional.binary_cross_entropy_with_logits(logits[apart], shared[apart])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda values: _embed(values, [weight.detach() for weight in weights])


def _mixed(features: Tensor, mixed: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """|y| of a batch of public mixtures, and 1 where two share a vector."""
    pool = max(_POOL, mixed)
    drawn = features[torch.randint(len(features), (pool,), generator=generator)]
    share = torch.randn(_BATCH, mixed, generator=generator).abs()
    share = share / share.sum(dim=1, keepdim=True)
    places = torch.rand(_BATCH, pool, generator=generator).argsort(dim=1)[:, :mixed]
    coefficients = torch.zeros(_BATCH, pool).scatter_(1, places, share)
    used = (coefficients > 0).float()
    return (coefficients @ drawn).abs(), (used @ used.T > 0).float()


def _standard(values: Tensor) -> Tensor:
    """Each coordinate with mean 0 and deviation 1 over the rows at hand."""
    values = values - values.mean(dim=0)
    return (values / values.std(dim=0).clamp_min(1e-12)).float()


def _start(width: int, generator: torch.Generator) -> list[Tensor]:
    """Weights that leave a vector as it is: its plain cosine is a fair guess, and learning goes on."""
    inner = torch.randn(width, _HIDDEN, generator=generator) / width**0.5
    weights = [torch.eye(width), inner, torch.zeros(_HIDDEN), torch.zeros(_HIDDEN, width)]
    return [weight.requires_grad_() for weight in weights]


def _embed(values: Tensor, weights: list[Tensor]) -> Tensor:
    straight, inner, bias, outer = weights
    return functional.normalize(values @ straight + torch.relu(values @ inner + bias) @ outer, dim=1)
