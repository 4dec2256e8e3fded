"""Per-example gradients of any model: the forward pass under the tape, one backward pass, and proofs.

What comes back are uses (sgd/uses.py), by parameter. A backward pass to the outputs of all layers gives
everything at once. Uses that are small (of biases and scales) are taken while it runs, so that the
gradient of that output can be let go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from sourdine.errors import CheckError, InputError
from sourdine.sgd import convolution, general, recurrent, rules
from sourdine.sgd import layout as layouts
from sourdine.sgd.checkpointing import run_once
from sourdine.sgd.tape import AS_IS, CHECKPOINTING, Choice, Key, Record, Tape, Use
from sourdine.sgd.uses import Gradients, Lookup, Outer

_RULES = (rules, convolution, recurrent, general)  # importing them registers the rules
_MIDDLE = 6  # a power of two in the middle of what float16 holds


@dataclass
class Knowledge:
    """What was proved about a model's calls, kept from one batch to the next.

    A proof is of one batch. It is made for every new combination of shapes, for every batch in which
    data decide where rows go, again after 1, 2, 4, ... and then every 64 batches of that shape, and in
    the last lot of a plan (sgd/adding.py): a model that begins to mix examples later is found out,
    though not at once, and not if the run is stopped before or its last lot is empty.
    """

    choices: dict[Key, Choice] = field(default_factory=dict)
    idle: set[Key] = field(default_factory=set)  # calls that no loss depended on
    unseen: set[str] = field(default_factory=set)  # parameters with uses that the tape cannot see
    late: bool = False  # take no gradient early: some layers lead to losses in some batches only
    seen: Counter[tuple[Key, ...]] = field(default_factory=Counter)  # batches of each shape
    asked: bool = False  # batches are to be proved in any case
    open: bool = False  # after the last batch: something in it has to be proved every time
    denied: list[Tensor] | None = None  # while a graph is traced: what must not hold (sgd/graphs.py)

    @contextmanager
    def proving(self, asked: bool) -> Iterator[None]:
        """Here batches are proved in any case, or not more than by themselves."""
        before, self.asked = self.asked, asked
        try:
            yield
        finally:
            self.asked = before

    def due(self, tape: Tape) -> bool:
        """Whether this batch is to be proved although nothing in it is new."""
        shape = tuple(record.key for record in tape.records)
        self.seen[shape] += 1
        return self.asked or often(self.seen[shape])


def often(count: int, every: int = 64) -> bool:
    """After 1, 2, 4, ... and then every so many."""
    return count % every == 0 or (count < every and count & (count - 1) == 0)


class NotProved(Exception):
    """A graph cannot be traced: something in it has to be proved for every batch."""


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, each once."""
    return {name: x for name, x in model.named_parameters() if x.requires_grad}


def gradients(
    model: nn.Module,
    losses: Callable[[], Tensor],
    *,
    examples: int | None = None,
    weights: Tensor | None = None,
    per_unit: int = 1,
    knowledge: Knowledge | None = None,
) -> tuple[dict[str, Gradients], Tensor]:
    """Per-example gradients of every parameter that the losses use, and the losses."""
    knowledge = knowledge or Knowledge()
    parameters = trained(model)
    names = {parameter: name for name, parameter in parameters.items()}
    for parameter, name in names.items():
        if parameter._backward_hooks:
            raise InputError(
                f"{name} has a hook, which per-example gradients do not go through; remove it."
            )
    tried: dict[Key, Choice] = {}
    refuted: set[Key] = set()
    while True:
        tape = Tape(names, examples, knowledge.choices)
        tape.tried, tape.refuted, tape.denied = tried, refuted, knowledge.denied
        if refuted:  # is it data, or the same for all examples? Followed only when that is the question
            tape.constants = {id(x): x for x in _owned(model)}
        try:
            with torch.enable_grad():
                with tape, run_once():
                    values = losses()
                check_losses(values, examples)
                if tape.examples != len(values):
                    examples = len(values)
                    if tape.records or tape.made:
                        tried = {}
                        continue
                    tape.examples = examples
                done = _backward(tape, values, parameters, weights, per_unit, knowledge)
        finally:
            tape.forget()
        if done is not None:
            return done, values.detach()


def _backward(
    tape: Tape,
    values: Tensor,
    parameters: dict[str, Tensor],
    weights: Tensor | None,
    per_unit: int,
    knowledge: Knowledge,
) -> dict[str, Gradients] | None:
    """All gradients of one forward pass, or None if it has to be run again with better choices."""
    if not values.requires_grad:
        raise InputError("no loss depends on a trained parameter; is everything frozen or detached?")
    start = torch.ones_like(values) if weights is None else weights.to(values)
    if not len(values):
        raise InputError("there are no examples in this batch; leave it out.")
    settled = knowledge.choices.keys() | knowledge.idle
    unsettled = any(record.key not in settled for record in tape.records)
    if knowledge.denied is None:
        new = knowledge.due(tape) or unsettled or tape.moved
    elif unsettled or tape.moved or knowledge.unseen:
        raise NotProved("not all that the model does with its parameters could be proved beforehand")
    else:
        new = False
    proved = [x for x in tape.records if x.key in knowledge.choices]  # an idle call may wake up
    early = [] if new or knowledge.late else [x for x in proved if x.early]
    small = {id(record): _Early(record) for record in early}
    asked = [record for record in tape.records if id(record) not in small]
    edges: Any = [*(record.edge for record in asked), *parameters.values()]

    def pull(cotangent: Tensor, keep: bool) -> list[Tensor | None]:
        try:
            got = torch.autograd.grad(values, edges, cotangent, retain_graph=keep, allow_unused=True)
        except CheckpointError:
            raise InputError(CHECKPOINTING) from None
        return list(got)

    keep = new or bool(knowledge.unseen)
    got = pull(start, keep)
    for taken in small.values():
        taken.close()
    late = any(not each.uses for each in small.values())  # a layer that led nowhere this time
    reached = zip(parameters, got[len(asked) :], strict=True)
    unseen = {name for name, gradient in reached if gradient is not None}
    woken = {x.key for x, gradient in zip(asked, got, strict=False) if gradient is not None}
    woken &= knowledge.idle
    again = bool(woken) or (not keep and (late or bool(unseen - knowledge.unseen)))
    knowledge.late |= late
    knowledge.idle -= woken
    knowledge.unseen |= unseen
    if again:
        return None
    if new:
        _check_graph(values)
    if new and not _prove(asked, values, got, pull, start, tape, knowledge):
        return None
    settled = knowledge.choices.keys() | knowledge.idle
    knowledge.open = tape.moved or any(record.key not in settled for record in tape.records)
    _check_apart(tape, unseen)
    found = _collect(tape, asked, got, small, parameters, per_unit)
    for name in unseen:
        one = partial(torch.autograd.grad, values, parameters[name], retain_graph=True)
        each = torch.stack([one(row)[0] for row in start.diag()])
        if not bool(torch.isfinite(each).all()):
            raise InputError(
                f"a gradient is not finite, and uses of {name} are not seen, so the other examples "
                "cannot be kept apart; write that layer in torch's functions, or clean the data."
            )
        _entry(found, name, parameters).add(_by_unit(each, per_unit))
    return found


class _Early:
    """Uses that are small, taken while the backward pass runs, so that the gradient can be let go."""

    def __init__(self, record: Record) -> None:
        self.record, self.uses = record, list[tuple[Tensor, Use]]()
        self._hook = record.edge.node.register_prehook(self._take)

    def close(self) -> None:
        """Lets go of the graph, which would keep itself alive through the hook."""
        self._hook.remove()

    def _take(self, gradients: tuple[Tensor | None, ...]) -> None:
        gradient = gradients[self.record.edge.output_nr]
        if gradient is not None:
            with torch.no_grad():
                self.uses = list(self.record.uses(gradient, self.record.choice))


def _prove(
    records: list[Record],
    values: Tensor,
    got: list[Tensor | None],
    pull: Callable[[Tensor, bool], list[Tensor | None]],
    start: Tensor,
    tape: Tape,
    knowledge: Knowledge,
) -> bool:
    """Proves the layout of every new record by a second backward pass; see sgd/layout.py.

    False if a guess was wrong in a way that needs another forward pass.
    """
    types = {gradient.dtype for gradient in got if gradient is not None}
    half = any(kind.itemsize < 4 for kind in types)
    narrow = torch.float16 in types
    v = layouts.weights(len(values), values, powers=6 if narrow else 64)
    if narrow:
        once, again = _in_float16(got, pull, start, v)
    else:
        once, again = got, pull(start * v, True)
    for record, plain, weighted in zip(records, once, again, strict=False):
        if plain is None or weighted is None:
            knowledge.idle.add(record.key)
            continue
        known = record.key in knowledge.choices
        fitting = [
            choice
            for choice in ((record.choice,) if record.fixed or known else record.choices)
            if isinstance(choice, layouts.Layout)
            and layouts.belongs(record.rows(plain, choice), record.rows(weighted, choice), v, half=half)
        ]
        if not fitting and known:
            raise CheckError(
                f"examples are mixed, or their rows reordered, in {_where(record.key)}, and were not "
                "before: what was trained since the last proof is not covered by its epsilon. Keep "
                "every example's rows apart at all times."
            )
        if not fitting:
            after = record.choices.index(record.choice) + 1 if record.fixed else 0
            rest = record.choices[after:]
            others = [x for x in rest if record.fixed or not isinstance(x, layouts.Layout)]
            tape.tried[record.key] = others[0]
            tape.refuted.add(record.key)
            return False  # later records may have failed only because of this one
        record.choice = fitting[0]
        tape.tried[record.key] = fitting[0]
        if len(fitting) == 1 and not tape.moved and bool(plain.any()):
            knowledge.choices[record.key] = fitting[0]
    return True


def _in_float16(
    got: list[Tensor | None],
    pull: Callable[[Tensor, bool], list[Tensor | None]],
    start: Tensor,
    v: Tensor,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients for a proof, plain and weighted, of losses times one power of two.

    Below 2^-14 numbers of float16 have few digits, which weights do change, and above 2^16 they are
    infinite: either would hide what the proof looks for. So the largest is brought to the middle, and
    what is finite has to stay so.
    """
    there = [x for x in got if x is not None and x.numel()]
    finite = [torch.where(torch.isfinite(x), x, 0).abs().amax().float() for x in there]
    largest = float(torch.stack(finite).max()) if finite else 0.0
    if not largest:
        return got, got  # nothing is added up
    power = _MIDDLE - math.frexp(largest)[1]
    while power >= -2 * _MIDDLE - 16:
        scaled = start * 2.0 ** min(power, _MIDDLE if start.dtype == torch.float16 else 64)
        once, again = pull(scaled, True), pull(scaled * v, True)
        if all(_as_finite(x, y) for made in (once, again) for x, y in zip(got, made, strict=True)):
            return once, again
        power -= 4
    raise InputError(
        "gradients in float16 are too far apart to prove that examples are not mixed; run the model in "
        "bfloat16, or in single precision."
    )


def _as_finite(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether what was finite is so still."""
    if before is None or after is None:
        return True
    return bool((torch.isfinite(after) | ~torch.isfinite(before)).all())


def _check_graph(values: Tensor) -> None:
    """Refuses reentrant checkpointing, whose layers are no part of the graph."""
    seen, left = set[Any](), [values.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise InputError(CHECKPOINTING)
        seen.add(node)
        left += [parent for parent, _ in node.next_functions]


def _check_apart(tape: Tape, unseen: set[str]) -> None:
    """Refuses a model in which no way to tell the examples' rows apart has stood the proof."""
    for key in tape.refuted & tape.asked:
        names = {name for _, name in key[2] if name}
        if tape.tried.get(key) == AS_IS or names & unseen:
            raise InputError(
                f"the loss of one example depends on another example, seen at {_where(key)}. "
                "Losses must not mix examples: no batch norm, no contrast within the batch, no average "
                "over it; or, if rows are only reordered, keep the examples' order in that layer."
            )


def _where(key: Key) -> str:
    """The parameters of a call, and its function."""
    names = sorted({name for _, name in key[2] if name})
    return f"{', '.join(names) or 'a tensor made of parameters'} ({key[1]})"


def _collect(
    tape: Tape,
    asked: list[Record],
    got: list[Tensor | None],
    small: Mapping[int, _Early],
    parameters: dict[str, Tensor],
    per_unit: int,
) -> dict[str, Gradients]:
    """The uses of every parameter; those of tensors made of parameters are led back to them."""
    found: dict[str, Gradients] = {}
    made: dict[int, Gradients] = {}
    arrived = {id(record): gradient for record, gradient in zip(asked, got, strict=False)}
    got.clear()
    for record in tape.records:
        if id(record) in small:
            uses: Iterable[tuple[Tensor, Use]] = small[id(record)].uses
        else:
            gradient = arrived.pop(id(record))
            uses = () if gradient is None else record.uses(gradient, record.choice)
        for owner, use in uses:
            if id(owner) in tape.names:
                _entry(found, tape.names[id(owner)], parameters).add(_by_unit(use, per_unit))
            else:
                made.setdefault(id(owner), Gradients(owner.shape)).add(_by_unit(use, per_unit))
    for key in [key for key in made if key in tape.chosen]:
        weight, ids, padding = tape.chosen[key]  # rows of one parameter: no need to form all of it
        tape.check_unchanged(tape.made[key])
        right = made.pop(key).each()
        right = right.reshape(len(right), ids.numel(), -1)
        rows = ids.flatten().expand(len(right), -1)
        if padding is not None:
            right = right.masked_fill((rows == padding)[..., None], 0)
        _entry(found, tape.names[id(weight)], parameters).add(Lookup(rows, right))
    if made:
        sources = [tape.made[key] for key in made]
        for source in sources:
            tape.check_unchanged(source)
        each = [grads.each().to(x.dtype) for x, grads in zip(sources, made.values(), strict=True)]
        led = _lead_back(sources, list(parameters.values()), each)
        for name, gradient in zip(parameters, led, strict=True):
            if gradient is not None:
                _entry(found, name, parameters).add(gradient)
    return found


def _lead_back(
    sources: list[Tensor], parameters: list[Tensor], each: list[Tensor]
) -> Sequence[Tensor | None]:
    """Per-example gradients (B, ...) of made tensors, led back to the parameters they are made of."""
    pull = partial(torch.autograd.grad, sources, parameters, retain_graph=True, allow_unused=True)
    try:
        together: Sequence[Tensor | None] = pull(each, is_grads_batched=True)
        return together
    except RuntimeError:  # some kernels cannot be run for all examples at once
        alone = [pull([gradient[i] for gradient in each]) for i in range(len(each[0]))]
        return [None if rows[0] is None else torch.stack(rows) for rows in zip(*alone, strict=True)]


def _entry(found: dict[str, Gradients], name: str, parameters: dict[str, Tensor]) -> Gradients:
    return found.setdefault(name, Gradients(parameters[name].shape))


def _by_unit(use: Use, per_unit: int) -> Use:
    """Examples of one unit become more positions of one contribution."""
    if per_unit == 1:
        return use
    if isinstance(use, Outer):
        return Outer(*(_stacked(x, per_unit) for x in (use.left, use.right)))
    if isinstance(use, Lookup):
        return Lookup(use.ids.reshape(-1, per_unit * use.ids.shape[1]), _stacked(use.right, per_unit))
    return use.view(-1, per_unit, *use.shape[1:]).sum(1)


def _stacked(x: Tensor, per_unit: int) -> Tensor:
    return x.reshape(-1, per_unit * x.shape[1], x.shape[2])


def check_losses(values: object, examples: int | None = None) -> None:
    """Raises unless these are one loss per example."""
    if not isinstance(values, Tensor) or values.dim() != 1:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"the loss must be a vector of one loss per example, not {got}; use reduction='none' and "
            "average over positions only."
        )
    if examples is not None and len(values) != examples:
        raise InputError(f"there are {examples} examples, but {len(values)} losses.")


def _owned(model: nn.Module) -> Iterator[Tensor]:
    """Tensors that the model keeps, registered or not: they are there before any example is."""
    for module in model.modules():
        for value in (*vars(module).values(), *module.buffers(recurse=False)):
            many = value.values() if isinstance(value, Mapping) else (value,)
            yield from (x for x in many if isinstance(x, Tensor))
