"""Before training: what cannot be private is refused, and the clipped sum is held against brute force.

`refuse` looks at the model. `compare` looks at what the engine computes: a few examples together, by
the engine, against each example alone, by plain autograd. Together and alone must agree, which also
finds what no gradient shows: a loss divided by the number of words in the batch, a collation whose
padding changes the result, a layer with a memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from sourdine.errors import CheckError, InputError
from sourdine.sgd.gradients import check_losses, gradients, trained
from sourdine.sgd.sums import fingerprint

Loss = Callable[[nn.Module, Any], Tensor]


def refuse(model: nn.Module) -> None:
    """Raises InputError for a model that no per-example clipping can make private, with what to do."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, not {type(model).__name__}.")
    if hasattr(model, "module") and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        raise InputError("give the engine the plain model (model.module): it adds up by itself.")
    if type(model).__name__ == "OptimizedModule":
        raise InputError("give the engine the model before torch.compile: it has to see every layer.")
    for name, module in model.named_modules():
        if isinstance(module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
            if module.track_running_stats:
                raise InputError(
                    f"{name or 'the model'} keeps running statistics of the data, which would be "
                    "released without noise; make it with track_running_stats=False."
                )
        elif isinstance(module, _BatchNorm) and module.training:
            raise InputError(
                f"{name or 'the model'} is a batch norm: every example changes what the others "
                "contribute. Use nn.GroupNorm or nn.LayerNorm instead, or freeze it with "
                f"model.{name or 'self'}.eval()."
            )
    if not trained(model):
        raise InputError("no parameter of the model is trained: all have requires_grad=False.")
    for name, parameter in trained(model).items():
        if hasattr(parameter, "device_mesh"):
            raise InputError(
                f"{name} is split over several processes (FSDP2), and a norm needs the whole of it; "
                "give every process the whole model, as torchrun with the engine does."
            )
        if parameter.dtype != torch.float32:
            raise InputError(
                f"{name} is {str(parameter.dtype).removeprefix('torch.')}; clipped sums and noise need "
                "float32. Keep the weights in float32 (model.float()) and use autocast in the loss."
            )


def version(x: Tensor) -> int:
    """How often a tensor was changed in place, as far as torch knows."""
    return -1 if x.is_inference() else x._version


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Buffers are as before when the block ends, however it does; raises if something was changed."""
    before = {name: (x, x.clone()) for name, x in model.named_buffers()}
    weights = {name: (id(x), fingerprint([x])) for name, x in model.named_parameters()}
    changed: list[str] = []
    try:
        yield
    finally:
        now = dict(model.named_buffers())
        for name, (own, kept) in before.items():
            if name in now and not torch.equal(now[name], kept):
                changed.append(name)
                parent, _, last = name.rpartition(".")
                model.get_submodule(parent)._buffers[last] = own
                own.data = kept
    if changed:
        raise InputError(
            f"the buffer {changed[0]} changes when the model sees data, and would be released "
            "without noise; switch that layer's running statistics off."
        )
    for name, x in model.named_parameters():
        if weights.get(name) != (id(x), fingerprint([x])):
            raise InputError(
                f"{name} is changed when the model sees data, and is no more what it was before: it "
                "would be released without noise. Set it from public data, and make the model anew."
            )


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Dropout off, everything else as in training: rates of dropout are set to zero for a while."""
    kept: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        names = [name for name in vars(module) if "drop" in name]
        names += ["p"] if isinstance(module, _DropoutNd) else []
        kept += [
            (module, x, getattr(module, x)) for x in names if isinstance(getattr(module, x), float)
        ]
    for module, name, _ in kept:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in kept:
            setattr(module, name, rate)


@contextmanager
def _still(model: nn.Module, loss: Loss, batch: Any) -> Iterator[None]:
    """Training mode without dropout; eval mode, if something random is left even so."""
    modes = {module: module.training for module in model.modules()}
    with quiet(model):
        with torch.no_grad():
            once, twice = loss(model, batch), loss(model, batch)
            check_losses(once)
        if not torch.equal(once.nan_to_num(), twice.nan_to_num()):
            model.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


def compare(model: nn.Module, loss: Loss, together: Any, alone: Sequence[Any]) -> float:
    """The largest relative error of an example's gradient; CheckError where it is no rounding."""
    parameters = trained(model)
    with _still(model, loss, together):
        found, _ = gradients(model, partial(loss, model, together), examples=len(alone))
        half = any(use.left.dtype.itemsize < 4 for grads in found.values() for use in grads.outers)
        formed = {name: grads.each() for name, grads in found.items()}
        measured: list[tuple[float, float]] = []
        for place, one in enumerate(alone):
            value = loss(model, one)
            wanted = torch.autograd.grad(
                value.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
            )
            error = size = 0.0
            for name, gradient in zip(parameters, wanted, strict=True):
                got = formed[name][place] if name in formed else torch.zeros_like(gradient)
                error += float((got - gradient).square().sum())
                size += float(gradient.square().sum())
            if math.isfinite(size):
                measured.append((error, size))
            elif all(bool(torch.isfinite(rows[place]).all()) for rows in formed.values()):
                measured.append((math.inf, 0.0))  # infinite alone, where it would add nothing
    # Where an example has next to no gradient, rounding prevails: it counts as a part of the largest.
    least = 1e-6 * max((size for _, size in measured), default=0.0) + 1e-30
    shares = [error / max(size, least) for error, size in measured]
    worst = max((math.inf if math.isnan(share) else math.sqrt(share) for share in shares), default=0.0)
    if not worst <= (0.05 if half else 1e-3):
        raise CheckError(
            f"an example's gradient is different in a batch than alone, by {worst:.3g} of its norm: "
            "the loss or the collation lets examples change each other. Losses must not be divided by "
            "counts over the batch, and padding must not change them (mask it, or pad to one length)."
        )
    return worst


def check_optimizer(optimizer: torch.optim.Optimizer, parameters: dict[str, Tensor]) -> None:
    """What is trained must be what the optimizer moves, once a step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "LBFGS looks at the loss several times a step, without noise; use another one."
        )
    moved = {id(x) for group in optimizer.param_groups for x in group["params"]}
    for name, parameter in parameters.items():
        if id(parameter) not in moved:
            raise InputError(
                f"{name} requires a gradient, but the optimizer does not have it: it would use up the "
                "clip for nothing. Freeze it (requires_grad_(False)) or give it to the optimizer."
            )
    if strange := len(moved - {id(x) for x in parameters.values()}):
        frozen = [x for group in optimizer.param_groups for x in group["params"] if not x.requires_grad]
        if strange > len(frozen):
            raise InputError(
                f"the optimizer moves {strange - len(frozen)} tensors that the model does not have."
            )
