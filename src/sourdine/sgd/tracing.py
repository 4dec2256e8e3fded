"""One graph of everything from a batch to its clipped sums, traced without values.

Guarantee: a graph holds no decision that depended on data, and no tensor but its inputs and single
numbers: what a model or a loss makes of its own would stay as it is, and what a model keeps has no
values. Such models raise an error here, and are left to the eager code (sgd/graphs.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from sourdine.errors import InputError
from sourdine.sgd.batches import Batch
from sourdine.sgd.clipped import add_sums_, scaled
from sourdine.sgd.clipping import Clip
from sourdine.sgd.gradients import gradients, trained
from sourdine.sgd.precision import full_precision
from sourdine.sgd.proofs import Knowledge
from sourdine.sgd.rounding import any_order
from sourdine.sgd.watched import Watched

Loss = Callable[[nn.Module, Any], Tensor]
Answer = tuple[Tensor, Tensor]
"""Norms, and whether the sums may be used. No losses: a graph without them keeps less."""


def trace(
    watched: Watched,
    loss: Loss,
    batch: Batch,
    sums: list[Tensor],
    clip: Clip,
    *,
    per_unit: int,
    knowledge: Knowledge,
) -> fx.GraphModule:
    """The graph for batches like this one; graph(given, data, weights, sums) adds to the sums."""
    model, owned, knowledge.denied = watched.model, watched.owned, []
    kind = batch.weights.device.type
    asked = (torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))  # around the whole step

    def run(given: list[Tensor], data: Any, weights: Tensor, places: list[Tensor]) -> Answer:
        new = [
            x.detach().requires_grad_(old.requires_grad) for x, old in zip(given, owned, strict=True)
        ]
        with _exchanged(model, dict(zip(map(id, owned), new, strict=True))):
            return whole(data, weights, places)

    def whole(data: Any, weights: Tensor, places: list[Tensor]) -> Answer:
        """Everything from a batch to its clipped sums, and whether they may be used."""
        with torch.autocast(kind, *asked):
            found, values = gradients(
                model,
                lambda: loss(model, data),
                examples=len(weights),
                weights=weights,
                per_unit=per_unit,
                knowledge=knowledge,
            )
        with torch.no_grad(), any_order():
            factors, norms = scaled(found, clip, len(values) // per_unit, values.device)
            for x, own in zip(trained(model).values(), places, strict=True):
                x.grad = own
            add_sums_(model, found, factors, None)
            usable = torch.isfinite(norms).all()
            for wrong in knowledge.denied or ():
                usable = usable & ~wrong
        return norms, usable

    said = logging.getLogger("torch._subclasses.fake_tensor")
    silent, said.disabled = said.disabled, True  # what cannot be traced is in `Graphs.reasons`
    try:
        with torch.no_grad(), full_precision(batch.weights.device):
            tracer = make_fx(run, tracing_mode="fake")
            found = tracer(watched.given, batch.data, batch.weights, sums)
    finally:
        knowledge.denied, said.disabled = None, silent
    constants = (getattr(found, x.target) for x in found.graph.nodes if x.op == "get_attr")
    least = 0 if len(batch.weights) == 1 else 1  # what has one number may be of one example
    if any(isinstance(x, Tensor) and x.dim() and x.numel() > least for x in constants):
        raise InputError("the loss makes tensors of what is no input; they would stay as they are")
    kept = (x for module in model.modules() for x in pytree.tree_leaves(vars(module)))
    if any(isinstance(x, FakeTensor) for x in kept):
        raise InputError("the model keeps tensors from one batch to the next")
    return found


@contextmanager
def _exchanged(model: nn.Module, new: Mapping[int, Tensor]) -> Iterator[None]:
    """Other tensors in the place of parameters and buffers, wherever a module holds them.

    torch.func.functional_call leaves modules that have two names with the new ones. What modules keep
    from a forward pass in attributes has no values while a graph is traced, and is taken off again.
    """
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    inside = [
        (x, x.copy()) for _, own in attributes for x in own.values() if isinstance(x, dict | list)
    ]
    kept: list[tuple[Any, Any, Tensor]] = []
    for module in model.modules():
        flat = getattr(module, "_flat_weights", None)  # of recurrent layers
        places: list[Any] = [module._parameters, module._buffers]
        for place in places + ([] if flat is None else [flat]):
            names = range(len(place)) if isinstance(place, list) else list(place)
            kept += [(place, name, place[name]) for name in names if id(place[name]) in new]
    for place, name, old in kept:
        place[name] = new[id(old)]
    try:
        yield
    finally:
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)
        for now, then in inside:
            now.clear()
            now.update(then) if isinstance(now, dict) else now.extend(then)
        for place, name, old in kept:
            place[name] = old


def half(found: fx.GraphModule) -> bool:
    """Whether something in it is in half precision."""
    values = (node.meta.get("val") for node in found.graph.nodes)
    return any(isinstance(x, Tensor) and x.is_floating_point() and x.itemsize < 4 for x in values)


def reason(error: Exception) -> str:
    """One line: what went wrong, or below a compiler what went wrong at its bottom."""
    lines = str(error).splitlines() or [""]
    if isinstance(error, InputError):
        return lines[0]
    causes = [x.strip() for x in lines if re.match(r"\s*[\w.]*(Error|Exception): .", x)]
    return f"{type(error).__name__}: {(causes or lines[:1])[-1][:200]}"
