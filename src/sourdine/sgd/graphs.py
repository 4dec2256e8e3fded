"""The clipped sum of a batch as one graph of tensor operations, made once for batches of one shape.

Forward pass, backward pass, norms, factors and sums (sgd/clipped.py) are traced together, so that no
Python runs between them; torch's compiler then fuses what it can.

Guarantee: a graph holds no decision that depended on data. It is traced with tensors that have shapes
but no values; a model that looks at values is left to the eager code, and the reason kept. Where the
eager code itself looks at values (rows that move, gradients that are not finite), the graph answers
whether it may be used, and if not the batch is made again eagerly. Proofs that rows are told apart
(sgd/gradients.py) go on as often as without graphs. Whenever one is made, the graph is held against the
eager code on the same batch: a model that was changed since, by a setting that is no tensor, gets a new
graph.

Rounding: a compiler may add up in any order, so norms are summed in a way for which none does harm
(`any_order` in sgd/uses.py), and it is told to keep the roundings to half precision.

Which batches are proved depends on how often a run was stopped. So that a step can be repeated bit by
bit, what is added up never comes from a proof: it comes from the graph, or, for shapes that have none,
from the eager code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from sourdine.sgd.batches import Batch
from sourdine.sgd.clipped import Clipped, add_sums_, full_precision, scaled
from sourdine.sgd.clipping import Adaptive, Clip
from sourdine.sgd.gradients import Knowledge, NotProved, gradients, trained
from sourdine.sgd.uses import any_order

Loss = Callable[[nn.Module, Any], Tensor]
Answer = tuple[list[Tensor | None], Tensor, Tensor, Tensor]
"""Sums by parameter, norms, losses, and whether the sums may be used."""
Program = Callable[..., Answer]
_TOLERANCE = {False: 1e-4, True: 0.05}  # of a norm; where something is in half precision


def compiled(program: Program) -> Program:
    """The same by torch's compiler, for these very shapes."""
    # What is rounded to half precision stays so: norms must be those of the values that are added up.
    exact: dict[str, Any] = {"emulate_precision_casts": True}
    quick: Program = torch.compile(program, fullgraph=True, dynamic=False, options=exact)

    def run(*given: Any) -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own
            return quick(*given)

    return run


class Graphs:
    """All graphs of one model, loss and clip; `reasons` says why batches of some shape have none."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clip: Clip,
        per_unit: int = 1,
        compiler: Callable[[Program], Program] | None = None,
    ) -> None:
        self.model, self.loss, self.clip, self.per_unit = model, loss, clip, per_unit
        self.compiler = compiler or compiled
        self.reasons: dict[Hashable, str] = {}
        self.made: list[bool] = []
        """Of the batches of this step: whether each was made by its graph."""
        self._programs: dict[Hashable, tuple[Program, Program]] = {}

    def add(
        self,
        batch: Batch,
        knowledge: Knowledge,
        eagerly: Callable[[], Clipped],
        reseed: Callable[[], object],
    ) -> Clipped:
        """Adds the clipped sum of this batch to `.grad`, by its graph or else by `eagerly`.

        reseed: brings torch's generator to where it was before this batch; a batch that is run twice
        drops the same.
        """
        key = self._key(batch)
        parameters = list(trained(self.model).values())
        before = [x.grad for x in parameters]
        if key not in self.reasons and (key not in self._programs or _due(knowledge)):
            _put(parameters, [None] * len(parameters))
            result = eagerly()
            sums = [x.grad for x in parameters]
            _put(parameters, before)
            self._settle(key, batch, knowledge, result, reseed)
            if key not in self._programs:  # the same again would give the same
                _add(parameters, sums)
                self.made.append(False)
                return result
        elif key in self._programs:
            knowledge.batches += 1
        if key in self._programs:
            reseed()
            found, norms, values, usable = self._run(self._programs[key][1], batch)
            if bool(usable):
                _add(parameters, found)
                self.made.append(True)
                return Clipped(values, norms, None)
        self.made.append(False)
        return eagerly()

    def _settle(
        self,
        key: Hashable,
        batch: Batch,
        knowledge: Knowledge,
        proved: Clipped,
        reseed: Callable[[], object],
    ) -> None:
        """Makes the graph for batches of this shape, or makes sure that it is still the right one."""
        if isinstance(self.clip, Adaptive):
            self.reasons[key] = "the clip moves with every step"
            return
        for _ in range(2):
            if key not in self._programs:
                try:
                    traced = self._trace(batch, knowledge)
                except NotProved:
                    return  # perhaps the next batch tells
                except Exception as error:  # whatever a model does that cannot be traced
                    self.reasons[key] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                    return
                self._programs[key] = traced, self.compiler(traced)
            reseed()
            norms, usable = self._run(self._programs[key][0], batch)[1::2]
            if not bool(usable) or _alike(norms, proved.norms):
                return
            del self._programs[key]
        self.reasons[key] = "the graph does not do what the model does"

    def _key(self, batch: Batch) -> Hashable:
        """What has to be equal for two batches to share a graph."""
        leaves, structure = pytree.tree_flatten(batch.data)
        return (
            structure,
            *((x.shape, x.dtype, x.device) if isinstance(x, Tensor) else repr(x) for x in leaves),
            batch.units,
            tuple(module.training for module in self.model.modules()),
            tuple((name, x.dtype, x.requires_grad) for name, x in self.model.named_parameters()),
            torch.is_autocast_enabled(batch.weights.device.type),
        )

    def _run(self, program: Program, batch: Batch) -> Answer:
        with torch.no_grad(), full_precision(batch.weights.device):
            return program([x.detach() for x in _owned(self.model)], batch.data, batch.weights)

    def _trace(self, batch: Batch, knowledge: Knowledge) -> Program:
        owned, knowledge.denied = _owned(self.model), []

        def run(given: list[Tensor], data: Any, weights: Tensor) -> Answer:
            new = [
                x.detach().requires_grad_(old.requires_grad)
                for x, old in zip(given, owned, strict=True)
            ]
            with _exchanged(self.model, dict(zip(map(id, owned), new, strict=True))):
                return self._whole(data, weights, knowledge)

        try:
            with torch.no_grad(), full_precision(batch.weights.device):
                given = [x.detach() for x in owned]
                traced: Program = make_fx(run, tracing_mode="fake")(given, batch.data, batch.weights)
            return traced
        finally:
            knowledge.denied = None

    def _whole(self, data: Any, weights: Tensor, knowledge: Knowledge) -> Answer:
        """Everything from a batch to its clipped sums, and whether they may be used."""
        found, values = gradients(
            self.model,
            lambda: self.loss(self.model, data),
            examples=len(weights),
            weights=weights,
            per_unit=self.per_unit,
            knowledge=knowledge,
        )
        with torch.no_grad(), any_order():
            factors, norms = scaled(found, self.clip, len(values) // self.per_unit, values.device)
            add_sums_(self.model, found, factors, None)
            usable = torch.isfinite(norms).all()
            for wrong in knowledge.denied or ():
                usable = usable & ~wrong
        sums = [x.grad for x in trained(self.model).values()]
        return sums, norms, values, usable


def _owned(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


@contextmanager
def _exchanged(model: nn.Module, new: Mapping[int, Tensor]) -> Iterator[None]:
    """Other tensors in the place of parameters and buffers, wherever a module holds them.

    torch.func.functional_call leaves modules that have two names with the new ones. What modules keep
    from a forward pass in attributes has no values while a graph is traced, and is taken off again.
    """
    attributes = [(module, dict(vars(module))) for module in model.modules()]
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
        for place, name, old in kept:
            place[name] = old


def _due(knowledge: Knowledge) -> bool:
    after = knowledge.batches + 1
    return after % 64 == 0 or after & (after - 1) == 0


def _alike(found: Tensor, wanted: Tensor) -> bool:
    half = found.dtype.itemsize < 4
    return bool(torch.allclose(found, wanted, rtol=_TOLERANCE[half], atol=1e-6 * float(wanted.max())))


def _put(parameters: list[Tensor], gradients: list[Tensor | None]) -> None:
    for x, gradient in zip(parameters, gradients, strict=True):
        x.grad = gradient


def _add(parameters: list[Tensor], sums: list[Tensor | None]) -> None:
    for x, new in zip(parameters, sums, strict=True):
        x.grad = x.grad if new is None else new if x.grad is None else x.grad.add_(new)
