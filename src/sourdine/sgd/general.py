"""Functions of parameters that have no rule of their own: cases 2 to 5 of sgd/tape.py.

A parameter that meets the data is replaced by one copy an example. The gradient of example i's copy is,
by the chain rule, the gradient of the parameter that example i gives; torch's own broadcasting, or its
vmap, sees to it that each example meets its own copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sourdine.errors import InputError
from sourdine.sgd.layout import Layout
from sourdine.sgd.tape import AS_IS, GENERAL, MADE, Choice, Function, Key, Tape, Use, tensors

# Functions in which dimensions meet by broadcasting from the right.
_NAMES = "add sub mul div truediv true_divide multiply subtract divide maximum minimum pow rsub"
BROADCASTING = frozenset(
    f"{left}{name}{right}"
    for name in _NAMES.split(" ")
    for left, right in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
) | {"where", "lerp", "addcmul", "scaled_dot_product_attention"}


def broadcasts(func: Function) -> bool:
    """Whether it is one of these."""
    return getattr(func, "__name__", "") in BROADCASTING


class _Unfit(Exception):
    """A layout that cannot be right for this call."""


@dataclass(frozen=True)
class _Slot:
    """Stands for an input that comes example by example."""

    place: int


@dataclass(frozen=True)
class _Call:
    """A call of a function on parameters, or on what is made of them, and other tensors."""

    tape: Tape
    func: Function
    args: Sequence[Any]
    kwargs: dict[str, Any]

    @property
    def others(self) -> list[Tensor]:
        return [x for x in tensors(self.args, self.kwargs) if not self.tape.tracks(x)]

    @property
    def in_place(self) -> bool:
        """Whether it changes its first argument: then it must be run exactly once."""
        name = getattr(self.func, "__name__", "")
        changes = name.endswith("_") and not name.endswith("__")
        return changes or name.startswith("__i") or name == "__setitem__" or "out" in self.kwargs

    def run(self, change: Any = None) -> Any:
        """Runs the function, on changed arguments if a change is given."""
        if change is None:
            return self.func(*self.args, **self.kwargs)
        given = [change(x) for x in self.args]
        return self.func(*given, **{name: change(x) for name, x in self.kwargs.items()})

    def write(
        self, key: Key, options: tuple[Choice, ...], at: Layout, owner: Tensor, copies: Tensor, dim: int
    ) -> None:
        """Writes down that `copies`, example by example along `dim`, stand for `owner`."""
        examples = self.tape.examples or 1

        def rows(gradient: Tensor, _: Layout) -> Tensor:
            return gradient.movedim(dim, 0).reshape(examples, *owner.shape)

        def uses(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
            return [(owner, rows(gradient, layout))]

        self.tape.record(key, copies, options, at, uses, fixed=True, rows=rows)


def _general(tape: Tape, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    call = _Call(tape, func, args, kwargs)
    others = call.others
    if call.in_place and (not broadcasts(func) or tape.tracks(args[0])):
        if not tape.constant(others):
            for x in tensors(args, kwargs):  # no longer made of parameters alone
                tape.made.pop(id(x), None)
        return call.run()
    fitting = tuple(dict.fromkeys(y for x in others for y in tape.batched(x, 0)))
    constant = tape.constant(others)
    if not fitting:
        return tape.make(call.run()) if constant else call.run()
    key = tape.key(func, list(tensors(args, kwargs)))
    options: tuple[Choice, ...] = (*fitting, *((MADE,) if constant else ()), AS_IS)
    choice = tape.choose(key, options)
    while isinstance(choice, Layout):
        marked = len(tape.records)
        try:
            return (_broadcast if broadcasts(func) else _one_by_one)(call, key, options, choice)
        except InputError:
            raise
        except (_Unfit, RuntimeError, AttributeError, IndexError, TypeError, ValueError):
            del tape.records[marked:]  # the function cannot be run in this way
        choice = tape.tried[key] = options[options.index(choice) + 1]
    return tape.make(call.run()) if choice == MADE else call.run()


GENERAL.append(_general)


def _broadcast(call: _Call, key: Key, options: tuple[Choice, ...], at: Layout) -> Tensor:
    """Parameters are expanded along the dimension of the examples."""
    tape, examples = call.tape, call.tape.examples or 1
    rows = [x for x in call.others if at in tape.batched(x, 0)]
    first = max(rows, key=lambda x: x.dim())
    flat = at.outer > 1 or (at.dim == 0 and first.shape[0] != examples)  # rows and examples in one
    if flat and len(rows) > 1:
        raise _Unfit
    from_right = first.dim() - at.dim + flat

    def change(x: Any) -> Any:
        if flat and x is first:
            return at.split(x, examples).movedim(0, 1) if at.outer > 1 else at.split(x, examples)
        if not isinstance(x, Tensor) or not tape.tracks(x):
            return x
        shape = [1] * (from_right - x.dim()) + list(x.shape)
        place = len(shape) - from_right + (at.outer > 1)
        if shape[place] != 1:
            raise _Unfit
        size = [*shape[:place], examples, *shape[place + 1 :]]
        copies = tape.free(x).reshape(shape).expand(size).requires_grad_()
        call.write(key, options, at, x, copies, place)
        return copies

    result: Tensor = call.run(change)
    return result.flatten(0, 1) if flat else result


def _one_by_one(call: _Call, key: Key, options: tuple[Choice, ...], at: Layout) -> Tensor:
    """Any function: vmap runs it on one example's rows and one example's copy at a time."""
    tape, examples = call.tape, call.tape.examples or 1
    pieces: list[Tensor] = []

    def split(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [split(y) for y in x]
        if not isinstance(x, Tensor):
            return x
        if tape.tracks(x):
            pieces.append(tape.free(x).expand(examples, *x.shape).requires_grad_())
            call.write(key, options, at, x, pieces[-1], 0)
        elif at in tape.batched(x, 0):
            pieces.append(at.split(x, examples))
        else:
            return x
        return _Slot(len(pieces) - 1)

    given = [split(x) for x in call.args]
    named = {name: split(x) for name, x in call.kwargs.items()}

    def one(*own: Tensor) -> Any:
        def fill(x: Any) -> Any:
            if isinstance(x, _Slot):
                return own[x.place]
            return [fill(y) for y in x] if isinstance(x, list) else x

        return call.func(*[fill(x) for x in given], **{name: fill(x) for name, x in named.items()})

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # said once per function
        result = at.join(torch.func.vmap(one, randomness="different")(*pieces))
        if key not in tape.choices:  # new: the function itself must agree, for any parameters
            _check_same(call, one, pieces, at)
    return result


def _check_same(call: _Call, one: Any, pieces: list[Tensor], at: Layout) -> None:
    """Raises unless the function is the same example by example, with random numbers for parameters."""
    tape, examples = call.tape, call.tape.examples or 1
    own = [x for x in tensors(call.args, call.kwargs) if tape.tracks(x)]

    def change(x: Any) -> Any:
        return [change(y) for y in x] if isinstance(x, list | tuple) else other.get(id(x), x)

    # What is drawn here must not move the model's own dropout: a run that goes on checks elsewhere.
    gpus = {x.device for x in own if x.is_cuda}
    with torch.random.fork_rng(list(gpus)), torch.no_grad():
        other = {id(x): torch.randn_like(x) for x in own}
        copies = iter(x.expand(examples, *x.shape) for x in other.values())
        random = [next(copies) if x.is_leaf and x.requires_grad else x for x in pieces]
        mapped = at.join(torch.func.vmap(one, randomness="different")(*random))
        whole = call.run(change)
        if whole.shape != mapped.shape or not torch.allclose(whole, mapped, rtol=1e-4, atol=1e-5):
            raise _Unfit
