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

What a batch may hold is tensors and plain values; no other tensor may come into a graph, where it would
stay as it is.

Which graph made a batch hangs on the batches before it. A step by graphs is therefore never run again
with the same noise (sgd/engine.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from sourdine.errors import InputError
from sourdine.sgd.batches import Batch
from sourdine.sgd.clipped import Clipped, add_sums_, full_precision, scaled
from sourdine.sgd.clipping import Automatic, Clip, Flat, PerLayer
from sourdine.sgd.gradients import Knowledge, NotProved, gradients, often, trained
from sourdine.sgd.uses import any_order

Loss = Callable[[nn.Module, Any], Tensor]
Answer = tuple[list[Tensor | None], Tensor, Tensor, Tensor]
"""Sums by parameter, norms, losses, and whether the sums may be used."""
Program = Callable[..., Answer]
_PLAIN = (type(None), bool, int, float, str)
_MOST = 32  # shapes


@dataclass
class _Graph:
    """As it was traced, and as the compiler made it."""

    traced: Program
    program: Program
    half: bool
    batches: int = 0


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
    """All graphs of one model and loss; `reasons` says why batches of some shape have none."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        per_unit: int = 1,
        compiler: Callable[[Program], Program] | None = None,
    ) -> None:
        self.model, self.loss, self.per_unit = model, loss, per_unit
        self.compiler = compiler or compiled
        self.reasons: dict[Hashable, str] = {}
        self.made: list[bool] = []
        """Of the batches since it was cleared: whether each was made by its graph."""
        self._graphs: dict[Hashable, _Graph] = {}

    def add(
        self,
        batch: Batch,
        clip: Clip,
        knowledge: Knowledge,
        eagerly: Callable[[], Clipped],
        reseed: Callable[[], object],
    ) -> Clipped:
        """Adds the clipped sum of this batch to `.grad`, by its graph or else by `eagerly`.

        reseed: brings torch's generator to where it was before this batch; a batch that is run twice
        drops the same.
        """
        parameters = list(trained(self.model).values())
        before = [x.grad for x in parameters]
        _put(parameters, [None] * len(parameters))
        result, sums = None, list[Tensor | None]()
        key = _problem(batch, clip) or self._key(batch, clip)
        if key not in self._graphs and len(self._graphs) + len(self.reasons) >= _MOST:
            key = "there are too many shapes"
        if isinstance(key, str):
            self.reasons[key] = key
        graph = self._graphs.get(key)
        if key not in self.reasons and (graph is None or often(graph.batches + 1)):
            knowledge.asked = True
            try:
                result = eagerly()
            finally:
                knowledge.asked = False
            sums = [x.grad for x in parameters]
            graph = self._settled(key, batch, clip, knowledge, (sums, result.norms), reseed)
        by_graph = None
        if graph is not None:
            graph.batches += 1
            reseed()
            by_graph = self._run(graph.program, batch)
            if not bool(by_graph[3]):
                by_graph = None
        if by_graph is not None:
            sums, result = by_graph[0], Clipped(by_graph[2], by_graph[1], None)
        elif result is None:
            reseed()
            _put(parameters, [None] * len(parameters))
            result = eagerly()
            sums = [x.grad for x in parameters]
        self.made.append(by_graph is not None)
        _put(parameters, before)
        for x, new in zip(parameters, sums, strict=True):
            x.grad = x.grad if new is None else new if x.grad is None else x.grad.add_(new)
        return result

    def _settled(
        self,
        key: Hashable,
        batch: Batch,
        clip: Clip,
        knowledge: Knowledge,
        wanted: tuple[list[Tensor | None], Tensor],
        reseed: Callable[[], object],
    ) -> _Graph | None:
        """The graph for batches of this shape: a new one, or the one there is if it is still right."""
        graph = self._graphs.pop(key, None)
        if graph is not None:
            reseed()
            if self._right(graph.traced, batch, wanted, graph.half) is not False:
                self._graphs[key] = graph
                return graph
            self._graphs.clear()  # whatever has changed may have changed for other shapes too
        try:
            traced = self._trace(batch, clip, knowledge)
            graph = _Graph(traced, self.compiler(traced), _half(traced))
            reseed()
            right = self._right(graph.traced, batch, wanted, graph.half)
            if right and not _random(traced):  # a compiler may draw otherwise
                right = self._right(graph.program, batch, wanted, graph.half)
            if right is None:
                return None  # perhaps the next batch tells
            if not right:
                raise InputError("the graph does not do what the model does")
        except NotProved:
            return None  # perhaps the next batch tells
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model does that cannot be traced or compiled
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            self.reasons[key] = f"{kind}{(str(error).splitlines() or [''])[0][:200]}"
            return None
        self._graphs[key] = graph
        return graph

    def _right(
        self, program: Program, batch: Batch, wanted: tuple[list[Tensor | None], Tensor], half: bool
    ) -> bool | None:
        """Whether a program gives these sums and norms; None if this batch cannot tell."""
        sums, norms, _, usable = self._run(program, batch)
        if not bool(usable):
            return None
        off = size = 0.0
        for found, other in zip(sums, wanted[0], strict=True):
            if found is not None and other is not None:
                off += float((found - other).square().sum())
                size += float(other.square().sum())
            elif (found is None) != (other is None):
                return False
        tolerance = 0.05 if half else 1e-4
        least = 1e-6 * float(wanted[1].max())
        alike = torch.allclose(norms, wanted[1], rtol=tolerance, atol=least)
        return alike and off <= tolerance**2 * size + 1e-30

    def _key(self, batch: Batch, clip: Clip) -> Hashable:
        """What has to be equal for two batches to share a graph."""
        leaves, structure = pytree.tree_flatten(batch.data)
        device = batch.weights.device.type
        modules = [
            (name, value)
            for module in self.model.modules()
            for name, value in vars(module).items()
            if type(value) in _PLAIN
        ]
        return (
            structure,
            tuple(_shape(x) if type(x) is Tensor else (type(x), repr(x)) for x in leaves),
            tuple(map(_shape, _owned(self.model))),
            repr(clip),
            batch.units,
            repr(modules),
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
        )

    def _run(self, program: Program, batch: Batch) -> Answer:
        with torch.no_grad(), full_precision(batch.weights.device):
            return program([x.detach() for x in _owned(self.model)], batch.data, batch.weights)

    def _trace(self, batch: Batch, clip: Clip, knowledge: Knowledge) -> fx.GraphModule:
        owned, knowledge.denied = _owned(self.model), []

        def run(given: list[Tensor], data: Any, weights: Tensor) -> Answer:
            new = [
                x.detach().requires_grad_(old.requires_grad)
                for x, old in zip(given, owned, strict=True)
            ]
            with _exchanged(self.model, dict(zip(map(id, owned), new, strict=True))):
                return self._whole(data, weights, clip, knowledge)

        try:
            with torch.no_grad(), full_precision(batch.weights.device):
                given = [x.detach() for x in owned]
                traced = make_fx(run, tracing_mode="fake")(given, batch.data, batch.weights)
        finally:
            knowledge.denied = None
        constants = (getattr(traced, x.target) for x in traced.graph.nodes if x.op == "get_attr")
        if any(isinstance(x, Tensor) and x.numel() > 1 for x in constants):
            raise InputError("the loss makes tensors of what is no input; they would stay as they are")
        kept = (x for module in self.model.modules() for x in pytree.tree_leaves(vars(module)))
        if any(isinstance(x, FakeTensor) for x in kept):
            raise InputError("the model keeps tensors from one batch to the next")
        return traced

    def _whole(self, data: Any, weights: Tensor, clip: Clip, knowledge: Knowledge) -> Answer:
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
            factors, norms = scaled(found, clip, len(values) // self.per_unit, values.device)
            add_sums_(self.model, found, factors, None)
            usable = torch.isfinite(norms).all()
            for wrong in knowledge.denied or ():
                usable = usable & ~wrong
        sums = [x.grad for x in trained(self.model).values()]
        return sums, norms, values, usable


def _problem(batch: Batch, clip: Clip) -> str:
    """Why batches like this one get no graph, whatever the model."""
    if any(type(x) not in (Tensor, *_PLAIN) for x in pytree.tree_leaves(batch.data)):
        return "a batch holds something that is neither a tensor nor a plain number or text"
    return "" if type(clip) in (Flat, Automatic, PerLayer) else "the clip moves with every step"


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


def _shape(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.device, x.requires_grad


def _half(traced: fx.GraphModule) -> bool:
    """Whether something in it is in half precision."""
    values = (node.meta.get("val") for node in traced.graph.nodes)
    return any(isinstance(x, Tensor) and x.is_floating_point() and x.itemsize < 4 for x in values)


def _random(traced: fx.GraphModule) -> bool:
    """Whether it draws."""
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in getattr(node.target, "tags", ()) for node in traced.graph.nodes)


def _put(parameters: list[Tensor], gradients: list[Tensor | None]) -> None:
    for x, gradient in zip(parameters, gradients, strict=True):
        x.grad = gradient
