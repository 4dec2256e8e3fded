"""Per-example gradients of any model: the forward pass under the tape, and one backward pass.

What comes back are uses (sgd/uses.py), by parameter. A backward pass to the outputs of all layers gives
everything at once. Uses that are small (of biases and scales) are taken while it runs, so that the
gradient of that output can be let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from sourdine.errors import InputError
from sourdine.sgd import convolution, general, recurrent, rules
from sourdine.sgd.checkpointing import run_once
from sourdine.sgd.proofs import Knowledge, NotProved, check_apart, prove
from sourdine.sgd.tape import CHECKPOINTING, Choice, Key, Record, Tape, Use
from sourdine.sgd.uses import Gradients, Lookup, Outer

_RULES = (rules, convolution, recurrent, general)  # importing them registers the rules


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
        if not prove(asked, values, got, pull, start, tape, knowledge):
            return None
        knowledge.proved(tape)
    settled = knowledge.choices.keys() | knowledge.idle
    knowledge.open = tape.moved or any(record.key not in settled for record in tape.records)
    check_apart(tape, unseen)
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
