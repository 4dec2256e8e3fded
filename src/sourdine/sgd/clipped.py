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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sourdine.sgd.clipping import Clip, Flat
from sourdine.sgd.gradients import Knowledge, gradients, trained
from sourdine.sgd.uses import Gradients, Recent

__all__ = ["Clipped", "clipped_sum"]

Factors = Tensor | Mapping[str, Tensor]
"""Of all parameters together, or by their names."""


@dataclass(frozen=True)
class Clipped:
    """What happened to each example. Norms and losses are private: nothing here may be released."""

    losses: Tensor
    norms: Tensor
    factors: Factors | None
    """None where a graph kept them to itself."""


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
    for name, grads in found.items():
        squares[name], more = grads.squares(recent)
        rounding = rounding + more
    return how.factors(squares, rounding, torch.zeros(units, device=device))


def add_sums_(
    model: nn.Module, found: dict[str, Gradients], factors: Factors, bad: Tensor | None
) -> None:
    """Adds the scaled sum of all contributions but the bad ones to `.grad`, and lets go of them."""
    # Last layers first, embeddings last: activations are let go before the large sums are made.
    for name, parameter in reversed(trained(model).items()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if name in found:
            scale = factors[name] if isinstance(factors, Mapping) else factors
            if bad is not None:
                found[name].drop(bad)
                scale = scale.masked_fill(bad, 0)
            found[name].add_sum_(parameter.grad, scale)
            del found[name]  # frees its activations


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Norms and sums without TF32 or autocast: the bounds on rounding are those of single precision."""
    asked, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with torch.autocast(device.type, enabled=False):
        if device.type != "cuda":
            yield
            return
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(asked)
            torch.backends.cudnn.allow_tf32 = convolutions
