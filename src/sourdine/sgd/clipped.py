"""The clipped sum of per-example gradients, exactly, in one backward pass.

    sum_i  c_i g_i,   c_i = min(1, clip / |g_i|),   g_i = gradient of losses[i] in all that is trained

The gradients come from sgd/gradients.py in the forms of sgd/uses.py; what was kept for the norms makes
the sum too (book-keeping; Bu et al. 2023): no second backward pass, and no per-example gradient where
it need not be formed.

Guarantee: what one example adds has a norm of at most `clip`, in spite of rounding in the norm: norms
are rounded upwards by a bound on their error (sgd/uses.py), and an example whose gradient is not finite
adds nothing. The sum over the examples itself is made in single precision.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sourdine.sgd.clipping import Clip, Flat
from sourdine.sgd.gradients import gradients, trained
from sourdine.sgd.precision import full_precision
from sourdine.sgd.proofs import Knowledge
from sourdine.sgd.rounding import exactly, square, summed, up
from sourdine.sgd.uses import Gradients, Products, Recent, at_once

__all__ = ["Clipped", "clipped_sum"]

Factors = Tensor | Mapping[str, Tensor]
"""Of all parameters together, or by their names."""


@dataclass(frozen=True)
class Clipped:
    """What happened to each example. Norms and losses are private: nothing here may be released."""

    losses: Tensor
    norms: Tensor
    factors: Factors


def clipped_sum(
    model: nn.Module,
    losses: Callable[[], Tensor],
    clip: float | Clip,
    *,
    examples: int | None = None,
    weights: Tensor | None = None,
    per_unit: int = 1,
    knowledge: Knowledge | None = None,
) -> Clipped:
    """Adds the clipped sum of the gradients of `losses()` to `.grad` of every trained parameter.

    losses: a call that runs the model and returns one loss per example, each of its own example only.
    clip: the largest norm of a contribution, or one of the objects of sgd/clipping.py.
    weights: losses are multiplied by these; an example with weight 0 adds exactly nothing (padding).
    per_unit: so many examples in a row form one contribution, whose sum is clipped (all of one user).
    """
    how = clip if isinstance(clip, Clip) else Flat(clip)
    found, values = gradients(
        model, losses, examples=examples, weights=weights, per_unit=per_unit, knowledge=knowledge
    )
    with torch.no_grad(), full_precision(values.device):
        factors, norms = scaled(found, how, len(values) // per_unit, values.device)
        bad = ~torch.isfinite(norms)
        add_sums_(model, found, factors, bad if bool(bad.any()) else None)
    return Clipped(values, norms, factors)


def scaled(
    found: Mapping[str, Gradients], how: Clip, units: int, device: torch.device
) -> tuple[Factors, Tensor]:
    """The scale factors of all contributions, and their norms."""
    squares: dict[str, Tensor] = {}
    rounding: Tensor | float = 0.0
    recent = Recent()
    small = {} if how.apart else _small(found)
    if small:  # hundreds of biases are one row of numbers
        squares["all that is small"] = square(_together(small))
    quickly = {} if how.apart else at_once(found)
    products: list[Products] = []
    for name, grads in found.items():
        if name in small:
            continue
        alone = None if how.apart else quickly.get(name) or grads.products(recent)
        if alone is not None:
            products.append(alone)
            continue
        squares[name], more = grads.squares(recent)
        rounding = rounding if more is None else rounding + more
    if products:
        errors = _weighted(products, [math.sqrt(x.share) for x in products])
        total = summed(torch.cat([x.norms for x in products], 1)).clamp_min(0)
        squares["all products"] = total + up(errors.square())
        if any(x.half for x in products):
            rounding = rounding + up(_weighted(products, [x.half for x in products]).square())
    return how.factors(squares, rounding, torch.zeros(units, device=device))


def _weighted(products: list[Products], weights: list[float]) -> Tensor:
    """Their lengths times these, in any order; of hundreds of weights few are different."""
    alike = defaultdict[float, list[Tensor]](list)
    for own, weight in zip(products, weights, strict=True):
        alike[weight].append(own.length)
    return torch.cat([torch.stack(lengths, 1) * weight for weight, lengths in alike.items()], 1)


def add_sums_(
    model: nn.Module, found: dict[str, Gradients], factors: Factors, bad: Tensor | None
) -> None:
    """Adds the scaled sum of all contributions but the bad ones to `.grad`, and lets go of them."""
    parameters = trained(model)
    for parameter in parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if bad is not None:
        for grads in found.values():
            grads.drop(bad)
        if isinstance(factors, Mapping):
            factors = {name: scale.masked_fill(bad, 0) for name, scale in factors.items()}
        else:
            factors = factors.masked_fill(bad, 0)
    small = _small(found) if isinstance(factors, Tensor) else {}
    if small and isinstance(factors, Tensor):
        whole = exactly(_together(small).t(), factors[:, None])[:, 0]
        whole = whole.split([x.shape.numel() for x in small.values()])
        sums = [part.view(x.shape) for part, x in zip(whole, small.values(), strict=True)]
        torch._foreach_add_([_gradient(parameters[name]) for name in small], sums)
    # Last layers first, embeddings last: activations are let go before the large sums are made.
    for name, parameter in reversed(parameters.items()):
        if name in found and name not in small:
            scale = factors[name] if isinstance(factors, Mapping) else factors
            found[name].add_sum_(_gradient(parameter), scale)
        found.pop(name, None)  # frees its activations


def _small(found: Mapping[str, Gradients]) -> dict[str, Gradients]:
    """What has few numbers an example; more than one of them."""
    small = {name: grads for name, grads in found.items() if grads.small}
    return small if len(small) > 1 else {}


def _together(small: Mapping[str, Gradients]) -> Tensor:
    return torch.cat([grads.formed for grads in small.values() if grads.formed is not None], 1)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("a sum has no place yet")
    return parameter.grad
