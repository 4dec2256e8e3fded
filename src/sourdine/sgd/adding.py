"""From a lot to its clipped sums: what an Engine does before any noise is drawn.

A lot is cut into physical batches, each is made by its graph or eagerly, and all are added up in one
stretch of memory (sgd/sums.py).

Guarantee: each unit of the lot adds a norm of at most the clip (sgd/clipped.py), once, whatever is made
twice: a lot whose batches do not fit into memory, or that graphs cannot judge, begins again from zero.
Nothing is drawn here but what a model drops, from the step's own stream. In the last lot of a plan
every batch is proved (sgd/proofs.py), so that what has come to mix examples does not go unseen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sourdine import rng
from sourdine.errors import InputError
from sourdine.sgd.ahead import Ahead, Lot
from sourdine.sgd.batches import Batch, Collate, Units, batches
from sourdine.sgd.check import Loss, refuse, version
from sourdine.sgd.clipped import Clipped, clipped_sum
from sourdine.sgd.clipping import Adaptive, Clip
from sourdine.sgd.gradients import trained
from sourdine.sgd.graphs import Graphs
from sourdine.sgd.optim import AdamW
from sourdine.sgd.processes import Processes
from sourdine.sgd.proofs import Knowledge
from sourdine.sgd.sampling import Lots, usual_most
from sourdine.sgd.shapes import Costs, Kind, alike, eagerly, kinds, whole
from sourdine.sgd.sums import Sums


class Adding:
    """The part of an Engine that adds up a lot; what it works on is the Engine's."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    clip: Clip
    collate: Collate
    graphs: Graphs | None
    plan: Lots
    steps: int
    batch_size: int
    _parameters: dict[str, Tensor]
    _device: torch.device
    _units: Units
    _knowledge: Knowledge
    _places: Sums | None
    _ahead: Ahead
    _processes: Processes
    _shapes: dict[int, tuple[Kind, ...]]
    _streams: rng.Streams
    _save_every: int
    _off_pace: bool

    def _sums(self, lot: Lot) -> Tensor:
        """The clipped sums of the lot in .grad, and its sum of b - 1/2 (see Adaptive).

        Where the GPU's memory runs out, the same lot is cut into batches of half the size: nothing was
        drawn but the lot, so the guarantee is the same.
        """
        by_graphs, forgotten = self.graphs is not None, False
        while True:
            if self.graphs is None:  # before there is another
                self._places = None
                self.optimizer.zero_grad()
            if self._places is None:
                self._places = Sums(self._parameters.values())
            self._places.begin(shown=not by_graphs)
            if self.graphs is not None:
                self.graphs.begin(self._places)
            below = torch.zeros((), device=self._device)
            kept = self._kept()
            try:
                with self._reseeded(lot.step):
                    for batch in self._batches(lot):
                        below += self._add(batch, by_graphs, prove=lot.step + 1 == self.steps)
                if not self._places.whole():
                    raise InputError(
                        "the loss, the model or a hook has put something else in .grad, which would "
                        "get no noise; leave .grad to the engine."
                    )
                self._check_trained()
                self._check_kept(kept)
                if self.graphs is None:
                    return below
                step = lot.step + 1
                if step < self.steps and step % self._save_every and not self._off_pace:
                    self._ahead.look(step, self._streams, self.batch_size)
                if isinstance(self.optimizer, AdamW):
                    self.optimizer.look(self._places)
                if not by_graphs or self.graphs.sound():
                    return below
                by_graphs = False  # something in this lot is for the eager code to judge
                continue
            except torch.OutOfMemoryError:
                if self.batch_size <= self._units.most and (self.graphs is None or forgotten):
                    raise InputError(
                        "one unit alone does not fit into the GPU's memory; cut texts shorter, or take "
                        "a smaller model. What was reserved stays charged; the run can go on elsewhere."
                    ) from None
            forgotten = self.batch_size <= self._units.most  # then the memory of graphs is all there is
            self.batch_size = max(self._units.most, self.batch_size // 2)
            if self.graphs is not None:
                self.graphs.forget()
            torch.cuda.empty_cache()

    def _batches(self, lot: Lot) -> Iterator[Batch]:
        size = self.batch_size
        if (begun := lot.begun(size)) is not None:
            return begun
        source, shapes = self._streams.at("examples", lot.step), self._kinds(size)
        apart = self.graphs is not None
        return batches(self._units, lot._units, self.collate, self._device, source, shapes, apart)

    def _kinds(self, size: int) -> tuple[Kind, ...]:
        """The shapes of batches, of at most so many examples, for all of this run."""
        if size not in self._shapes:
            units, most = self._units, max(1, size // self._units.most)
            rate = self.plan.lot_size / self.plan.records / self._processes.count
            costs = self._costs().shared(units.most)
            if units.all_sizes is not None:
                found = kinds(units.all_sizes, rate, most, self.steps, costs)
            elif self.graphs is None:
                found = alike(len(units), rate, most, self.steps, costs)
            else:
                found = whole(most)
            self._shapes[size] = found
        return self._shapes[size]

    def _costs(self) -> Costs:
        if self.graphs is not None:
            return self.graphs.costs
        return eagerly(sum(x.numel() for x in self.model.parameters()), self._device.type == "cpu")

    def _add(self, batch: Batch, by_graphs: bool, prove: bool) -> Tensor | float:
        """Adds the clipped sum of a batch to .grad; gives its sum of b - 1/2 (see Adaptive).

        prove: that rows are told apart, in any case.
        """
        most = self._units.most
        cuda = self._device.type == "cuda"
        state = torch.cuda.get_rng_state(self._device) if cuda else torch.get_rng_state()

        def reseed() -> None:  # a forward pass that has to be made twice drops the same
            if cuda:
                torch.cuda.set_rng_state(state, self._device)
            else:
                torch.set_rng_state(state)

        def losses() -> Tensor:
            reseed()
            return self.loss(self.model, batch.data)

        def eagerly() -> Clipped:
            if self._places is not None:
                self._places.show()
            return clipped_sum(
                self.model,
                losses,
                self.clip,
                examples=batch.units * most,
                weights=None if batch.full else batch.weights,
                per_unit=most,
                knowledge=self._knowledge,
            )

        if self.graphs is not None and by_graphs:
            given = [x for x in pytree.tree_leaves(batch.data) if isinstance(x, Tensor)]
            versions = [x._version for x in given]
            norms = self.graphs.add(batch, self.clip, self._knowledge, eagerly, reseed, prove)
            if versions != [x._version for x in given]:
                raise InputError(
                    "the loss or the model changes its batch in place, and by graphs a batch may be "
                    "made more than once; have it work on a copy."
                )
        else:
            with self._knowledge.proving(prove):
                norms = eagerly().norms
        if not isinstance(self.clip, Adaptive):
            return 0.0
        there = batch.weights.view(-1, most).amax(1) > 0
        return torch.where(there, (norms <= self.clip.bound).float() - 0.5, 0.0).sum()

    def _kept(self) -> dict[str, tuple[Tensor, int, Tensor | None]]:
        """What a model keeps from batch to batch: tensors, their versions, the values of buffers."""
        weights = {name: (x, version(x), None) for name, x in self.model.named_parameters()}
        return weights | {name: (x, version(x), x.clone()) for name, x in self.model.named_buffers()}

    def _check_kept(self, before: dict[str, tuple[Tensor, int, Tensor | None]]) -> None:
        """Whether the model is as it was before the lot; what it keeps of it would get no noise."""
        after = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        for name, (x, number, values) in before.items():
            now = after.get(name)
            if now is x and version(x) == number:
                continue
            if now is None or values is None or not torch.equal(now, values):  # made anew, perhaps
                raise InputError(
                    f"{name} was changed while the model saw this lot, and would be released without "
                    "noise: this model is not private any more. Begin again from the weights before, "
                    "and switch that off (running statistics, max_norm, weights set from data)."
                )

    def _check_trained(self) -> None:
        """Whether all that is trained gets noise, and nobody else looks at the sums before."""
        refuse(self.model)  # as it is now: a batch norm was frozen, perhaps, and is not any more
        places = None if self.graphs is None else self._places
        if places is not None and places.kept_by(self.optimizer):
            raise InputError(
                "the optimizer keeps gradients as they are, and graphs add the next lot up in the same "
                "memory; have it keep copies (clone), or leave graphs out."
            )
        own = {id(x) for x in self._parameters.values()}
        moved = (x for group in self.optimizer.param_groups for x in group["params"])
        strange = any(x.grad is not None and id(x) not in own for x in moved)
        if strange or {id(x) for x in trained(self.model).values()} != own:
            raise InputError(
                "what is trained has changed since the engine was made (a layer was frozen, unfrozen "
                "or replaced); make a new engine, which is charged anew."
            )

    @contextmanager
    def _reseeded(self, step: int) -> Iterator[None]:
        """Dropout from the step's own stream: a step that is run again must be the same step.

        So must what some models draw from Python's or numpy's generator, such as masks; as everywhere,
        these are as they were afterwards.
        """
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            seed = self._streams.at("model", step).below(1 << 63)
            torch.default_generator.manual_seed(seed)  # torch's own function would seed every device
            if devices:
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(seed)
            plain, numbers = random.getstate(), np.random.get_state()
            random.setstate(random.Random(seed).getstate())
            np.random.set_state(np.random.RandomState(seed % (1 << 32)).get_state())
            try:
                yield
            finally:
                random.setstate(plain)
                np.random.set_state(numbers)


def largest(lots: Lots, most_per_user: int, device: torch.device) -> int:
    """The batch size to begin with: 64 units on a CPU; on a GPU a whole lot, which may be halved."""
    if device.type == "cpu":
        return 64 * most_per_user
    return most_per_user * usual_most(lots.lot_size, lots.records)
