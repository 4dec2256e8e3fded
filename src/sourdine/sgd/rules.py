"""How the common layers use their parameters; see sgd/tape.py for what a rule does.

Each rule runs the function on detached parameters and writes down, for the gradient G with respect to
its output, what every example's gradient is:

- linear, matmul, addmm     weight: sum_t G_t (x) x_t          bias: sum_t G_t
- embedding, weight[ids]    weight: sum_t e(id_t) (x) G_t, and nothing for padding_idx
- layer_norm and others     scale: sum_t G_t x^_t              shift: sum_t G_t
- expand, repeat            the gradient of the copy that the example got
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sourdine.errors import InputError
from sourdine.sgd.layout import Layout
from sourdine.sgd.tape import AS_IS, MADE, Choice, Function, Tape, Use, rule, tensors
from sourdine.sgd.uses import ALIGNED, Lookup, Outer

_VOCABULARY = 4096  # outputs of a linear map, from which on copies of them are felt
_GET_T: Function = vars(torch._C.TensorBase)["T"].__get__
_GET_MT: Function = vars(torch._C.TensorBase)["mT"].__get__
Kwargs = dict[str, Any]
Call = tuple[Function, Sequence[Any], Kwargs]
Uses = Callable[[Tensor, Layout], Iterable[tuple[Tensor, Use]]]


def write(
    tape: Tape,
    call: Call,
    run: Callable[[], Tensor],
    rows_of: Tensor,
    involved: Sequence[Tensor | None],
    uses: Uses,
    *,
    features: int = 1,
    early: bool = False,
) -> Any:
    """Runs a function whose rows follow those of one input, and writes it down.

    NotImplemented if the input has no rows of examples: then the general treatment takes over.
    """
    func, args, kwargs = call
    fitting = tape.batched(rows_of, features)
    if not fitting:
        return NotImplemented
    key = tape.key(func, [rows_of, *(x for x in involved if x is not None)])
    others = [x for x in tensors(args, kwargs) if not tape.tracks(x)]
    options: tuple[Choice, ...] = (*fitting, *((MADE,) if tape.constant(others) else ()), AS_IS)
    choice = tape.choose(key, options)
    if isinstance(choice, Layout):
        version = rows_of._version

        def unchanged(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
            if rows_of._version != version:
                raise InputError(
                    f"the input of {key[1]} was changed in place after its use; use a copy."
                )
            return uses(gradient, layout)

        return tape.record(key, run(), options, choice, unchanged, features=features, early=early)
    result = func(*args, **kwargs)
    return tape.make(result) if choice == MADE else result


def linear_uses(tape: Tape, x: Tensor, weight: Any, bias: Any, *, turned: bool = False) -> Uses:
    """weight (p, d) and bias (p,) for rows x (.., d) and gradients (.., p); turned: weight (d, p)."""
    owner, flip, outputs = weight, turned, weight.shape[1 if turned else 0]
    if id(weight) in tape.turned:
        owner, flip = tape.turned[id(weight)], not turned

    def uses(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
        examples = tape.examples or 1  # known only when the losses are
        g = layout.rows(gradient, examples)
        if weight is not None and tape.tracks(weight):
            r = layout.rows(x.detach().to(g.dtype), examples)  # as autocast has it already
            yield owner, Outer(r, g) if flip else Outer(g, r)
        if bias is not None and tape.tracks(bias):
            yield bias, g.sum(1)[:, :outputs]  # there may be more, of zeros

    return uses


@rule(functional.linear)
def _linear(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    x, weight, bias = signature(("input", "weight", "bias"), args, kwargs)
    if tape.tracks(x) or weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return NotImplemented
    outputs, more = len(weight), _missing(tape, x, weight)

    def run() -> Tensor:
        w, b = tape.free(weight), tape.free(bias)
        if more:
            w = functional.pad(w, (0, 0, 0, more))
            b = b if b is None else functional.pad(b, (0, more))
        return functional.linear(x, w, b)

    uses, small = linear_uses(tape, x, weight, bias), not tape.tracks(weight)
    result = write(tape, (func, args, kwargs), run, x, (weight, bias), uses, early=small)
    filled = result is not NotImplemented and result.shape[-1] > outputs
    return result[..., :outputs] if filled else result


def _missing(tape: Tape, x: Tensor, weight: Tensor) -> int:
    """Outputs of zeros that let products of halves with a vocabulary run at full speed on a GPU.

    In graphs its gradients are made with them, and need not be copied: they are the largest there are.
    Not elsewhere: what comes out has gaps, which models that look at it as one row cannot take.
    """
    if tape.denied is None or not x.is_cuda or len(weight) < _VOCABULARY:
        return 0
    half = torch.is_autocast_enabled("cuda") or weight.dtype.itemsize < 4
    return -len(weight) % ALIGNED if half else 0


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def _matmul(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    if kwargs or tape.tracks(args[0]) or args[1].dim() != 2 or args[0].dim() < 2:
        return NotImplemented
    x, weight = args

    def run() -> Tensor:
        return torch.matmul(x, tape.free(weight))

    return write(
        tape, (func, args, kwargs), run, x, (weight,), linear_uses(tape, x, weight, None, turned=True)
    )


@rule(torch.addmm)
def _addmm(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """Hugging Face's Conv1D is an addmm on flattened rows."""
    if kwargs or len(args) != 3 or tape.tracks(args[1]) or args[0].shape != args[2].shape[1:]:
        return NotImplemented
    bias, x, weight = args

    def run() -> Tensor:
        return torch.addmm(tape.free(bias), x, tape.free(weight))

    return write(
        tape,
        (func, args, kwargs),
        run,
        x,
        (weight, bias),
        linear_uses(tape, x, weight, bias, turned=True),
    )


@rule(Tensor.t, torch.t, _GET_T, _GET_MT, Tensor.transpose, torch.transpose)
def _turn(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """A transposed parameter is a parameter whose uses are turned."""
    result = func(*args, **kwargs)
    x = args[0]
    if x.dim() == 2 and id(x) in tape.names and result.shape == x.shape[::-1] and not kwargs:
        swapped = len(args) == 1 or {y % 2 for y in args[1:]} == {0, 1}
        if swapped:
            tape.turned[id(result)] = x
    return tape.make(result)


@rule(functional.embedding)
def _embedding(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    ids, weight, padding, max_norm, _, by_frequency, _ = signature(names, args, kwargs)
    if max_norm is not None or by_frequency:
        what = "scale_grad_by_freq" if by_frequency else "max_norm"
        raise InputError(
            f"{tape.names.get(id(weight), 'an embedding')} uses {what}, which lets one example change "
            f"what another contributes; build the embedding without {what}."
        )
    if padding is not None and padding < 0:
        padding += len(weight)

    def run() -> Tensor:
        return functional.embedding(ids, tape.free(weight))

    uses = lookup_uses(tape, ids, weight, padding)
    result = write(tape, (func, args, kwargs), run, ids, (weight,), uses, features=0)
    if result is NotImplemented and tape.constant((ids,)):
        result = tape.make(func(*args, **kwargs))
    if id(result) in tape.made and id(weight) in tape.names:  # the same rows for all examples
        tape.chosen[id(result)] = (weight, ids, padding)
    return result


def lookup_uses(tape: Tape, ids: Tensor, weight: Tensor, padding: int | None = None) -> Uses:
    """Rows of weight for ids of any shape; the row `padding` gets nothing."""
    width = math.prod(weight.shape[1:])

    def uses(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
        examples = tape.examples or 1
        chosen = layout.rows(ids, examples, 0)[..., 0]
        right = layout.rows(gradient.reshape(*ids.shape, width), examples)
        if padding is not None:
            right = right.masked_fill((chosen == padding)[..., None], 0)
        yield weight, Lookup(chosen, right)

    return uses


@rule(Tensor.__getitem__)
def _item(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    weight, ids = args
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or not tape.tracks(weight):
        return NotImplemented
    ids = ids % len(weight)  # negative places count from the end

    def run() -> Tensor:
        chosen: Tensor = tape.free(weight)[ids]
        return chosen

    return write(
        tape, (func, args, kwargs), run, ids, (weight,), lookup_uses(tape, ids, weight), features=0
    )


@rule(functional.embedding_bag)
def _bag(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """A bag over the last dimension is a lookup and a reduction."""
    names = (
        "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
        "per_sample_weights", "include_last_offset", "padding_idx",
    )  # fmt: skip
    given: Kwargs = dict(zip(names, args, strict=False)) | kwargs
    ids, weight, mode = given["input"], given["weight"], given.get("mode", "mean")
    if ids.dim() != 2 or given.get("offsets") is not None or mode == "max":
        return NotImplemented
    padding = given.get("padding_idx")
    padding = padding if padding is None else padding % len(weight)
    limits: Kwargs = {name: given.get(name) for name in ("max_norm", "scale_grad_by_freq")}
    rows = _embedding(tape, functional.embedding, (ids, weight, padding), limits)
    if rows is NotImplemented:
        return rows
    scale = given.get("per_sample_weights")
    kept = torch.ones_like(ids) if padding is None else (ids != padding).long()
    rows = rows * (kept if scale is None else kept * scale)[..., None].to(rows.dtype)
    total = rows.sum(1)
    return total / kept.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total


@rule(functional.layer_norm)
def _layer_norm(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, weight, bias, eps = signature(names, args, kwargs)
    eps = 1e-5 if eps is None else eps

    def run() -> Tensor:
        return functional.layer_norm(x, shape, tape.free(weight), tape.free(bias), eps)

    def uses(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
        examples = tape.examples or 1
        g = layout.rows(gradient, examples, len(shape))
        if weight is not None and tape.tracks(weight):
            normed = layout.rows(
                functional.layer_norm(x.detach(), shape, eps=eps), examples, len(shape)
            )
            yield weight, normed.mul_(g).sum(1)
        if bias is not None and tape.tracks(bias):
            yield bias, g.sum(1)

    call = (func, args, kwargs)
    return write(tape, call, run, x, (weight, bias), uses, features=len(shape), early=True)


@rule(functional.rms_norm, functional.group_norm, functional.instance_norm)
def _scaled(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """A normalisation without parameters, then a scale and a shift as elementwise functions."""
    if func is functional.rms_norm:
        x, shape, weight, eps = signature(("input", "normalized_shape", "weight", "eps"), args, kwargs)
        y, bias = functional.rms_norm(x, shape, eps=eps), None
    elif func is functional.group_norm:
        x, groups, weight, bias, eps = signature(
            ("input", "num_groups", "weight", "bias", "eps"), args, kwargs
        )
        y = functional.group_norm(x, groups, eps=1e-5 if eps is None else eps)
    else:
        names = ("input", "running_mean", "", "weight", "bias", "", "", "eps")
        x, mean, _, weight, bias, _, _, eps = signature(names, args, kwargs)
        if mean is not None:
            raise InputError("instance norm with running statistics mixes examples; switch them off.")
        y = functional.instance_norm(x, eps=1e-5 if eps is None else eps)
    with tape:
        if weight is not None:
            y = y * (weight if func is functional.rms_norm else weight.view(-1, *[1] * (x.dim() - 2)))
        if bias is not None:
            y = y + bias.view(-1, *[1] * (x.dim() - 2))
    return y


@rule(functional.batch_norm)
def _batch_norm(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("training"):
        named = next((tape.names[id(x)] for x in tensors(args, kwargs) if id(x) in tape.names), "")
        raise InputError(
            f"{named.rpartition('.')[0] or 'a batch norm'} normalises over the batch, so every example "
            "changes what the others contribute; use group norm or layer norm instead."
        )
    return NotImplemented


@rule(Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.repeat)
def _expand(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """A copy for each example, such as a soft prompt."""
    x = args[0]
    if kwargs or not tape.tracks(x) or tape.examples is None:
        return NotImplemented
    result = func(tape.free(x), *args[1:])
    missing = result.dim() - x.dim()
    one = missing > 0 or x.shape[0] == 1
    same = result.shape[1:] == ((1,) * (missing - 1) + tuple(x.shape) if missing else x.shape[1:])
    if not (one and same and result.shape[0] == tape.examples):
        return NotImplemented

    def uses(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
        yield x, gradient.reshape(-1, *x.shape)

    def run() -> Tensor:
        copy: Tensor = result.clone()
        return copy

    return write(tape, (func, args, kwargs), run, result, (x,), uses, features=result.dim() - 1)


# torch's attention in Python asks whether somebody listens to it; this copy of it never asks, so that
# the functions that it calls are the ones listened to.
_attention = types.FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**functional.__dict__, "has_torch_function": lambda _: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)


@rule(functional.multi_head_attention_forward)
def _multihead(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    with tape:
        return _attention(*args, **kwargs)


def signature(names: Sequence[str], args: Sequence[Any], kwargs: Kwargs) -> tuple[Any, ...]:
    """Arguments by the names of the parameters; what was not given is None."""
    return tuple(args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names))
