"""Seeing every use of a parameter while the user's own loss runs.

Under a `Tape` each torch function that takes a trained parameter is run with the parameter *detached*,
and what is needed for its per-example gradients is written down: the input, and the place in autograd's
graph where the gradient with respect to the output will appear. One backward pass to all these places
gives everything; no weight gradient is computed to be thrown away, and the model is not touched.

Guarantee (completeness): because recorded uses are detached, a parameter that autograd can still reach
from the losses has a use that was not seen. Such parameters come back from the backward pass and get
their per-example gradients one example at a time. No use of a parameter is lost silently.

How a call is treated, in this order:
1. A rule for the function (sgd/rules.py, sgd/recurrent.py): linear maps, lookups, convolutions.
The rest is in sgd/general.py.
2. No other argument has rows of examples: the result is a tensor made of parameters alone. It is kept
   as `made`; where it meets the data later it is treated like a parameter, and its per-example
   gradients are led back through autograd.
3. An elementwise function: the parameter is expanded to one copy an example, whose gradient is the
   per-example gradient.
4. Any other function: run example by example (torch.func.vmap) on such copies.
5. Otherwise the call runs as it is, and the guarantee above takes care of it.

Which rows belong to which example is first guessed from sizes, then proved (sgd/layout.py) for every
new combination of shapes; a wrong guess is replaced and the forward pass run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from sourdine.errors import InputError
from sourdine.sgd.layout import Layout, candidates
from sourdine.sgd.uses import Lookup, Outer

Function = Callable[..., Any]
Use = Outer | Lookup | Tensor
MADE = "made"  # a choice beside the layouts: made of parameters alone
AS_IS = "as is"  # and: not understood, left to the guarantee of completeness
Choice = Layout | str
Key = tuple[Any, ...]


@dataclass
class Record:
    """One use of parameters: where its gradient appears, and what follows from it.

    uses(gradient, layout) gives the uses, each with the tensor (parameter or made) that it belongs to.
    """

    key: Key
    edge: GradientEdge
    choices: tuple[Choice, ...]
    choice: Layout
    rows: Callable[[Tensor, Layout], Tensor]
    uses: Callable[[Tensor, Layout], Iterable[tuple[Tensor, Use]]]
    fixed: bool  # another layout needs another forward pass
    early: bool  # its uses are small: better made at once than the gradient kept


class Tape(TorchFunctionMode):
    """See the top of this file. `choices` remembers what was proved, from one pass to the next."""

    def __init__(
        self, names: Mapping[Tensor, str], examples: int | None, choices: dict[Key, Choice]
    ) -> None:
        super().__init__()
        self.names = {id(parameter): name for parameter, name in names.items()}
        self.examples = examples
        self.choices = choices
        self.tried: dict[Key, Choice] = {}
        self.refuted: set[Key] = set()
        self.constants: dict[int, Tensor] | None = None  # not followed
        self.asked: set[Key] = set()
        self.records: list[Record] = []
        self.made: dict[int, Tensor] = {}
        self._versions: dict[int, int] = {}
        self.chosen: dict[int, tuple[Tensor, Tensor, int | None]] = {}  # lookups among the made
        self.turned: dict[int, Tensor] = {}  # transposes of parameters, by what they transpose
        self.moved = False  # whether rows were chosen or reordered by the data
        self.denied: list[Tensor] | None = None  # while a graph is traced: what must not hold in it
        self._calls: Counter[Key] = Counter()

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DERIVATIVES:
            raise InputError(_DERIVED)
        if func in MOVING:
            self.moved |= _moves(self, args, kwargs)
        result = NotImplemented
        if torch.is_grad_enabled() and any(self.tracks(x) for x in tensors(args, kwargs)):
            for rule in (RULES.get(func), *GENERAL):
                if rule is not None and result is NotImplemented:
                    result = rule(self, func, args, kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        if self.constants is not None and all(id(x) in self.constants for x in tensors(args, kwargs)):
            self.constants.update((id(x), x) for x in tensors((result,), {}))
        return result

    def tracks(self, x: Any) -> bool:
        return (id(x) in self.names and x.requires_grad) or id(x) in self.made

    def constant(self, others: Iterable[Tensor]) -> bool:
        """Whether these may be the same for all examples.

        What requires a gradient leads on to other records, whose gradients must not get lost. Where
        constants are followed, the rest comes from the data.
        """
        known = self.constants
        return not any(x.requires_grad or (known is not None and id(x) not in known) for x in others)

    def free(self, x: Any) -> Any:
        """x, detached if it is a parameter or made of parameters."""
        if not self.tracks(x):
            return x
        if id(x) in self.made:
            self._versions.setdefault(id(x), x._version)
        return x.detach()

    def holds(self, something: Tensor) -> bool:
        """Whether something is so in the data; a graph takes it for untrue and says if it was not."""
        if self.denied is None:
            return bool(something)
        self.denied.append(something)
        return False

    def forget(self) -> None:
        """Lets go of the graph: records know the tape, and Python would keep both for a while."""
        self.records = []
        self.made, self.chosen, self.turned, self.constants = {}, {}, {}, None

    def check_unchanged(self, x: Tensor) -> None:
        """Raises if a tensor made of parameters is another one now than at its first use."""
        if x._version != self._versions.get(id(x), x._version):
            raise InputError(
                "a tensor made of parameters was changed in place after its use; change a copy."
            )

    def key(self, func: Function, args: Iterable[Tensor]) -> Key:
        """What has to be equal for two calls to be the same call of the same model."""
        shapes = tuple((tuple(x.shape), self.names.get(id(x))) for x in args)
        call = (getattr(func, "__name__", str(func)), shapes, self.examples)
        self._calls[call] += 1
        return (self._calls[call], *call)

    def choose(self, key: Key, options: tuple[Choice, ...]) -> Choice:
        """What is known of this call, or else the first guess."""
        self.asked.add(key)
        if key in self.choices:
            return self.choices[key]
        if self.tried.setdefault(key, options[0]) not in options:
            self.tried[key] = AS_IS
        return self.tried[key]

    def batched(self, x: Tensor, features: int = 1) -> tuple[Layout, ...]:
        """The layouts that fit. The first tensor to meet a parameter tells the number of examples."""
        if self.examples is None and x.dim() > 0:
            self.examples = x.shape[0]
        return candidates(x.shape, self.examples or 1, features)

    def make(self, result: Any) -> Any:
        """Keeps what is made of parameters alone."""
        for x in tensors((result,), {}):
            if x.requires_grad:
                self.made[id(x)] = x
        return result

    def record(
        self,
        key: Key,
        output: Tensor,
        options: tuple[Choice, ...],
        choice: Layout,
        uses: Callable[[Tensor, Layout], Iterable[tuple[Tensor, Use]]],
        *,
        features: int = 1,
        fixed: bool = False,
        early: bool = False,
        rows: Callable[[Tensor, Layout], Tensor] | None = None,
    ) -> Tensor:
        """Writes down that the gradient of `output` gives these uses; returns what goes on instead."""
        if forward_ad._current_level >= 0:
            raise InputError(_DERIVED)
        if output.is_complex():
            raise InputError("parameters that meet complex numbers are not supported; use real ones.")
        if _checkpointing():
            raise InputError(CHECKPOINTING)
        if not output.requires_grad:
            output = _open(output, torch.empty(0, requires_grad=True))
        examples = self.examples or 1

        def by_layout(gradient: Tensor, layout: Layout) -> Tensor:
            return layout.rows(gradient, examples, features)

        edge = get_gradient_edge(output)
        self.records.append(Record(key, edge, options, choice, rows or by_layout, uses, fixed, early))
        # What goes on has a place of its own in the graph, behind the recorded one: functions that
        # change it in place, and hooks on it, come after. It shares its memory and is no view.
        return output if output.is_leaf else torch.ops.aten._unsafe_view(output, output.shape)


CHECKPOINTING = (
    "activation checkpointing runs layers a second time, unseen; switch it off (in transformers: "
    "model.gradient_checkpointing_disable())."
)
_DERIVED = (
    "the loss takes derivatives itself (autograd.grad, backward, forward mode), in which uses of "
    "parameters cannot be followed; write the derivative out, or leave it away."
)
_DERIVATIVES = {torch.autograd.grad, torch.autograd.backward, Tensor.backward}
# Functions that choose or reorder rows. Where data decide which, the next batch may decide otherwise.
MOVING = {
    *(Tensor.__getitem__, Tensor.__setitem__, Tensor.index_select, torch.index_select),
    *(
        Tensor.gather,
        torch.gather,
        Tensor.take_along_dim,
        torch.take_along_dim,
        torch.take,
        Tensor.take,
    ),
    *(Tensor.masked_select, torch.masked_select, Tensor.sort, torch.sort, Tensor.topk, torch.topk),
    *(Tensor.index_add, Tensor.index_add_, torch.index_add, Tensor.index_copy, Tensor.index_copy_),
    *(Tensor.scatter, Tensor.scatter_, torch.scatter, Tensor.scatter_add, Tensor.scatter_add_),
    *(torch.scatter_add, Tensor.masked_scatter, Tensor.masked_scatter_, Tensor.index_put_),
    *(Tensor.index_put, torch._pack_padded_sequence, torch.roll, Tensor.roll),
}


def _moves(tape: Tape, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call moves rows that lead to the losses as data say: tensors, or lists of places.

    What is written is moved as well as what is read. A lookup row by row is no move: x[arange(B),
    places], or a gather that leaves the examples alone.
    """
    moved, *rest = args
    many = [x for x in tensors((moved, *rest[-1:]), kwargs) if x.requires_grad and not tape.tracks(x)]
    if not isinstance(moved, Tensor) or not many:
        return False
    places = rest[0] if rest else None
    each = places if isinstance(places, tuple) else (places,)
    first = each[0] if each else None
    if any(isinstance(x, list | np.ndarray) for x in each[1:]):
        return True
    if isinstance(first, list) and not list(tensors(first, {})):
        if not all(isinstance(x, int) for x in first):
            return True  # lists in lists, slices
        first = torch.as_tensor(first, device=moved.device)
    elif isinstance(first, np.ndarray):
        first = torch.as_tensor(first, device=moved.device)
    elif not any(not x.requires_grad for x in tensors(rest, kwargs)):
        return False
    if not rest:
        return True
    if isinstance(first, Tensor) and first.dtype == torch.int64 and first.dim() == 1:
        order = torch.arange(len(moved), device=first.device)
        return first.shape != order.shape or tape.holds((first != order).any())
    return not (isinstance(first, slice) and first == slice(None))


def _checkpointing() -> bool:
    """Whether torch.utils.checkpoint is running this part of the model."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


class _Open(torch.autograd.Function):
    """A place in the graph for an output that no trained input leads to."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, opening: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


_open: Callable[..., Tensor] = _Open.apply


def tensors(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors among arguments, also in lists."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from tensors(x, {})


Rule = Callable[[Tape, Function, Sequence[Any], dict[str, Any]], Any]
RULES: dict[Function, Rule] = {}
GENERAL: list[Rule] = []  # what is left to do without a rule of its own (sgd/general.py)


def rule(*functions: Function) -> Callable[[Rule], Rule]:
    """Registers how calls of these functions are written down."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, made))
        return made

    return register
