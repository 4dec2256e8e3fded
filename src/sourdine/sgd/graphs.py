"""The clipped sum of a batch as one graph of tensor operations, made once for batches of one shape.

Forward pass, backward pass, norms, factors and sums (sgd/clipped.py) are traced together, so that no
Python runs between them. A graph can be given to torch's compiler, which fuses what it can; on a GPU it
is recorded and replayed (sgd/replay.py).

Guarantee: a graph holds no decision that depended on data (sgd/tracing.py); a model that looks at
values is left to the eager code, and the reason kept. Where the eager code itself looks at values (rows
that move, gradients that are not finite), the graph answers whether its sums may be used; if not, the
whole lot is made again eagerly. Proofs that rows are told apart (sgd/proofs.py) go on, but less
often: for the first batch of each shape, then after 1, 2, 4, ... and every 256 batches of whatever
shape, those first of which most were made since their last proof. A graph does what was proved of it
whatever becomes of the model's code, and only weights, buffers or data that make it mix what it did not
before are left to be found, some hundred batches later or in the last lot. With each proof the graph is
held against the eager code on the same batch: a model that was changed since, by a setting that nobody
sees (sgd/watched.py), gets new graphs.

Rounding: a compiler may add up in any order, so norms are summed in a way for which none does harm
(`any_order` in sgd/rounding.py), and it is told to keep the roundings to half precision.

What a batch may hold is tensors and plain values; no other tensor may come into a graph, where it would
stay as it is.

Repeatable, if `unchanging`: a batch is made by its graph, not compiled, from its first time on, so
that a run that is started again makes it alike; `made` says of each whether it was. A compiler chooses
by the clock, and a graph may be some batches behind a model that something else than training changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sourdine.errors import InputError
from sourdine.sgd.again import tidied
from sourdine.sgd.batches import Batch
from sourdine.sgd.clipped import Clipped
from sourdine.sgd.clipping import Automatic, Clip, Flat, PerLayer
from sourdine.sgd.pieces import by_pieces
from sourdine.sgd.precision import full_precision
from sourdine.sgd.proofs import Knowledge, NotProved, Schedule
from sourdine.sgd.replay import Place, Replay
from sourdine.sgd.shapes import Costs, by_graphs
from sourdine.sgd.sums import Sums
from sourdine.sgd.tracing import Answer, Loss, half, reason, trace
from sourdine.sgd.watched import PLAIN, Watched, shape

Program = Callable[[list[Tensor], Any, Tensor, list[Tensor]], Answer]
"""program(owned, data, weights, sums) adds the clipped sum of a batch to `sums`, in place."""
Compiler = Callable[[fx.GraphModule], Program]
_MOST = 40  # shapes
_PROVED = 256  # batches from one proof to the next


def traced(program: fx.GraphModule) -> Program:
    """Graphs as they were traced, tidied: seconds for each new shape of a batch."""
    return tidied(program)


def unchanging(program: fx.GraphModule) -> Program:
    """The same, with the promise that nothing but training changes the model and the loss.

    Then a graph is never behind them, a step that is run again is the same to the bit, and a run that
    was killed goes on without a charge.
    """
    return tidied(program)


def compiled(program: fx.GraphModule) -> Program:
    """Graphs by torch's compiler: faster by the step, a minute for each shape, never twice alike."""
    # What is rounded to half precision stays so: norms must be those of the values that are added up.
    # Dropout is drawn as the eager code draws it, or it could not be held against it.
    exact: dict[str, Any] = {"emulate_precision_casts": True, "fallback_random": True}
    with _silence():
        quick = by_pieces(program, lambda piece: torch.compile(piece, dynamic=False, options=exact))

    def run(owned: list[Tensor], data: Any, weights: Tensor, sums: list[Tensor]) -> Answer:
        with _silence():
            answer: Answer = quick(owned, data, weights, sums)
            return answer

    return run


@contextmanager
def _silence() -> Iterator[None]:
    """The compiler's own warnings are no business of its users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass
class _Graph:
    """What makes batches of one shape."""

    program: Program
    half: bool


class Graphs:
    """All graphs of one model and loss; `reasons` says why batches of some shape have none.

    `begin` before the first batch of a lot, `add` for each, and then `sound`: False if something in one
    of the batches is not for graphs to judge, and the lot has to be made again without them. Until then
    nothing asks the GPU for an answer, which would keep it waiting.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, per_unit: int = 1, compiler: Compiler = compiled
    ) -> None:
        if not callable(compiler):
            raise InputError(
                f"graphs are traced, compiled or unchanging (sourdine.sgd), not {compiler!r}."
            )
        self.model, self.loss, self.per_unit, self.compiler = model, loss, per_unit, compiler
        self.reasons: dict[Hashable, str] = {}
        self.made: list[bool] = []
        """Of the batches of this lot: whether each was made by its graph."""
        self._graphs: dict[Hashable, _Graph] = {}
        self._changed = False
        self._sums: Sums | None = None
        self._place: Place | None = None
        self._schedule = Schedule(_PROVED)

    @property
    def costs(self) -> Costs:
        """What a new shape costs before it saves anything, and what a batch costs, roughly."""
        parameters = sum(x.numel() for x in self.model.parameters())
        return by_graphs(parameters, seconds=64 if self.compiler is compiled else 4)

    def begin(self, sums: Sums) -> None:
        """For a lot that is added up there; what is there already is no business of graphs."""
        if sums is not self._sums:
            self.forget()
            if len(sums.flats) > 1:
                raise InputError("graphs need all that is trained on one device.")
            self._sums, self._flat = sums, sums.flats[0]
            self._usable = torch.ones((), dtype=torch.bool, device=self._flat.device)
            self._watched = Watched(self.model, by_place=self._flat.is_cuda)
        self._usable.fill_(True)
        self._changed = False
        self.made.clear()

    def forget(self) -> None:
        """Lets go of all graphs and their memory."""
        self._graphs.clear()
        self.reasons.clear()
        self._sums, self._place = None, None

    def sound(self) -> bool:
        """Whether all that graphs have added since `begin` may be used.

        Here the model is looked at, while the GPU still works on the lot: if it was changed since the
        last one, what its graphs have added is another model's.
        """
        return not (self._look_at_model() and any(self.made)) and bool(self._usable)

    def add(
        self,
        batch: Batch,
        clip: Clip,
        knowledge: Knowledge,
        eagerly: Callable[[], Clipped],
        reseed: Callable[[], object],
        prove: bool = False,
    ) -> Tensor:
        """Adds the clipped sum of this batch to `.grad`, by its graph or else by `eagerly`; its norms.

        reseed: brings torch's generator to where it was before this batch; a batch that is run twice
        drops the same. prove: this batch in any case.
        """
        key = _problem(batch, clip) or self._key(batch, clip)
        if key not in self._graphs and len(self._graphs) + len(self.reasons) >= _MOST:
            key = "there are too many shapes"
        if isinstance(key, str):
            self.reasons[key] = key
        graph = self._graphs.get(key)
        if key not in self.reasons and (self._schedule.due(key) or graph is None or prove):
            graph = self._settled(batch, clip, knowledge, eagerly, reseed)
            reseed()
        self.made.append(graph is not None)
        if graph is None:
            with knowledge.proving(prove):
                return eagerly().norms
        norms, usable = self._run(graph.program, batch)
        self._usable.logical_and_(usable)
        return norms

    def _settled(
        self,
        batch: Batch,
        clip: Clip,
        knowledge: Knowledge,
        eagerly: Callable[[], Clipped],
        reseed: Callable[[], object],
    ) -> _Graph | None:
        """The graph for batches of this shape: a new one, or the one there is if it is still right."""
        if self._look_at_model():
            return None  # the next lot has another key
        kept = self._flat.clone() if self.made else None
        try:
            wanted = self._eagerly(eagerly, reseed, knowledge, prove=True)
            # A forward pass, as a rule the first, may leave something in it.
            left = self._look_at_model()
            self._changed = left and any(self.made)
            key = self._key(batch, clip)
            self._schedule.proved(key)
            graph = self._graphs.get(key)
            if graph is not None:
                if self._right(graph, batch, wanted, reseed) is not False:
                    return graph
                self._graphs.clear()  # whatever has changed may have changed for other shapes too
            try:
                made = self._flat.clone()
                graph = self._new(batch, clip, knowledge)
                self._flat.copy_(made)
                # Twice: what draws by itself, from Python's generator say, seldom looks alike so often.
                # A pass that has left something is no measure of those that follow.
                right = None if left else self._right(graph, batch, wanted, reseed)
                if right is not False:
                    wanted = self._eagerly(eagerly, reseed, knowledge, prove=False)
                    right = self._right(graph, batch, wanted, reseed)
                if right is False:
                    raise InputError("the graph does not do what the model does")
                if right:
                    self._graphs[key] = graph
                    return graph
            except NotProved:
                pass
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a model does that cannot be traced or compiled
                self.reasons[key] = reason(error)
            return None  # perhaps the next batch tells
        finally:
            self._flat.zero_() if kept is None else self._flat.copy_(kept)

    def _eagerly(
        self,
        eagerly: Callable[[], Clipped],
        reseed: Callable[[], object],
        knowledge: Knowledge,
        prove: bool,
    ) -> Tensor:
        """The eager code's sums, alone in `.grad`, and its norms."""
        self._flat.zero_()
        reseed()
        with knowledge.proving(prove):
            return eagerly().norms

    def _new(self, batch: Batch, clip: Clip, knowledge: Knowledge) -> _Graph:
        if knowledge.open:  # low-rank additions that are zero as yet, say
            raise NotProved
        found = trace(
            self._watched,
            self.loss,
            batch,
            self._parts(),
            clip,
            per_unit=self.per_unit,
            knowledge=knowledge,
        )
        program = self.compiler(found)
        if self._flat.is_cuda:
            given = (self._watched.given, batch.data, batch.weights, self._parts())
            place, self._place = self._place or Place(self._flat.device), None  # unless it is spoiled
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                program = Replay(program, *given, place=place)
            self._place = place
        return _Graph(program, half(found))

    def _right(
        self, graph: _Graph, batch: Batch, wanted: Tensor, reseed: Callable[[], object]
    ) -> bool | None:
        """Whether a graph gives these norms and the sums in `.grad`; None if the batch cannot tell."""
        size = float(self._flat.square().sum())
        self._flat.neg_()
        reseed()
        norms, usable = self._run(graph.program, batch)
        if not bool(usable):
            return None
        if not bool(torch.isfinite(wanted).all()):
            return False  # a graph that finds nothing wrong is another model's
        tolerance = 0.05 if graph.half else 1e-4
        least = 1e-6 * float(wanted.max())
        alike = torch.allclose(norms, wanted, rtol=tolerance, atol=least)
        return alike and float(self._flat.square().sum()) <= tolerance**2 * size + 1e-30

    def _look_at_model(self) -> bool:
        """Whether the model has changed since `begin`."""
        self._changed |= self._watched.changed()
        return self._changed

    def _key(self, batch: Batch, clip: Clip) -> Hashable:
        """What has to be equal for two batches to share a graph."""
        leaves, structure = pytree.tree_flatten(batch.data)
        device = batch.weights.device.type
        return (
            structure,
            tuple(shape(x) if type(x) is Tensor else (type(x), repr(x)) for x in leaves),
            self._watched.number,
            repr(clip),
            batch.units,
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
        )

    def _run(self, program: Program, batch: Batch) -> Answer:
        # On a GPU, some products ask for full precision (sgd/gpu.py), and the others need not have it.
        cpu = self._flat.device.type == "cpu"
        kind = full_precision(self._flat.device) if cpu else torch.autocast("cuda", enabled=False)
        with torch.no_grad(), kind:
            return program(self._watched.given, batch.data, batch.weights, self._parts())

    def _parts(self) -> list[Tensor]:
        return [] if self._sums is None else self._sums.parts


def _problem(batch: Batch, clip: Clip) -> str:
    """Why batches like this one get no graph, whatever the model."""
    if any(type(x) not in (Tensor, *PLAIN) for x in pytree.tree_leaves(batch.data)):
        return "a batch holds something that is neither a tensor nor a plain number or text"
    return "" if type(clip) in (Flat, Automatic, PerLayer) else "the clip moves with every step"
