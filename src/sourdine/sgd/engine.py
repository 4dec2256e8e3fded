"""DP-SGD around a model, a loss and an optimizer of the user's own (Abadi et al. 2016).

    engine = Engine(model, optimizer, dataset, Budget(3, 1e-6), loss=losses, lot_size=256, steps=1000)
    for lot in engine.lots():
        engine.step(lot)

Each step draws a lot, clips every contribution at `clip`, adds up, adds Gaussian noise of deviation
noise_multiplier * clip, divides by the planned lot size, and lets the optimizer make its step.

Guarantee: the weights after all steps, and after each of them, are (epsilon, delta)-DP for the budget's
unit under its adjacency. The whole plan is charged to the ledger before the first lot is drawn. What
the engine computes on the way (losses, norms, the sizes of lots, who was in them) is private: `step`
returns nothing, and nothing of it is kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from sourdine import checks, rng
from sourdine.budget import Budget
from sourdine.errors import CheckError, InputError
from sourdine.ledger import Ledger
from sourdine.ledger.shared import open_shared
from sourdine.sgd.adding import Adding, largest
from sourdine.sgd.agreement import agreement
from sourdine.sgd.ahead import Ahead, Lot
from sourdine.sgd.batches import Collate, Dataset, Units, move, padding
from sourdine.sgd.canaries import Canaries
from sourdine.sgd.charge import Charge, adjacency, planned
from sourdine.sgd.check import Loss, check_optimizer, compare, refuse, unchanged
from sourdine.sgd.clipping import Adaptive, Clip, Flat
from sourdine.sgd.correlated import CorrelatedNoise, FixedLots
from sourdine.sgd.folder import Folder
from sourdine.sgd.gradients import trained
from sourdine.sgd.graphs import Compiler, Graphs, unchanging
from sourdine.sgd.noise import add_noise_, normal, round_
from sourdine.sgd.optim import AdamW
from sourdine.sgd.processes import Processes
from sourdine.sgd.proofs import Knowledge
from sourdine.sgd.resuming import Resuming
from sourdine.sgd.sampling import Lots, PoissonLots

__all__ = ["Engine", "Lot"]
_CHECKED = 6  # examples in a comparison with brute force
_CHECKED_LOTS = 2  # so many lots are compared, beside the data before the first


class Engine(Adding, Resuming):
    """A private training run; see the top of this file.

    budget: a Budget; a Ledger that the run is charged to; or None, with noise_multiplier and delta, to
    have epsilon reported (delta is 1e-6 by default). Without noise_multiplier, the noise is the least
    that the budget allows. A Charge is a plan made before, with its own lots, steps, noise and folder.
    ledger: a ledger that other runs share; then the budget is this run's part of it.
    data_name: the table that the examples come from, a path or a frame: by it the run is compared with
    all others over the same records (register/), under budget_of_all, the largest epsilon of all their
    ledgers together. Without it the run is listed as not compared.
    loss: loss(model, batch) gives one loss per example, each of its own example only.
    lot_size: planned units in a lot; sums are divided by it. lots: another way to draw them
    (sgd/sampling.py, or FixedLots for correlated noise), in the place of Poisson lots.
    clip: the largest norm of a contribution, or an object of sgd/clipping.py.
    users: whose each example is, for a budget with unit "user"; a user takes part with at most
    most_per_user examples. records: the declared number of units, needed under add-remove.
    batch_size: the largest physical batch; it changes memory and speed, never the result. By default 64
    on a CPU, and on a GPU as many as fit: batches of a lot are halved until they do, once. A dataset
    with `sizes`, a number for each example, has like sizes put into one batch; by graphs, a collate
    function with `at_least(size)`, which gives one that pads to that size, has few shapes.
    folder: where checkpoints go, every save_every steps; an unfinished run found there goes on. Make a
    learning-rate schedule after the engine, with last_epoch=engine.done - 1, so that it goes on too.
    canaries: further units, made for an audit (sgd/canaries.py); they count among the records.
    graphs: batches are made by graphs where the model allows it (sgd/graphs.py): `traced` takes seconds
    for each new shape of a batch, `compiled` a minute or so, and makes the faster steps. A run by
    graphs that was killed is charged again for the steps since its last save, but with `unchanging`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Dataset,
        budget: Budget | Ledger | Charge | None,
        *,
        loss: Loss,
        lot_size: float | None = None,
        steps: int | None = None,
        clip: float | Clip = 1.0,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        ledger: Ledger | str | Path | None = None,
        budget_of_all: float | None = None,
        data_name: Any = None,
        lots: Lots | None = None,
        users: Sequence[Hashable] | None = None,
        most_per_user: int = 1,
        records: int | None = None,
        batch_size: int | None = None,
        collate: Collate = default_collate,
        check: bool = True,
        source: rng.Source | None = None,
        folder: str | Path | None = None,
        save_every: int = 50,
        label: str = "training",
        canaries: Canaries | None = None,
        graphs: Compiler | None = None,
    ) -> None:
        refuse(model)
        if not (callable(loss) and callable(collate)):
            raise InputError("loss(model, batch) and collate(examples) must be functions.")
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.steps = checks.whole("steps", budget.steps if isinstance(budget, Charge) else steps or 0)
        self.clip = clip if isinstance(clip, Clip) else Flat(clip)
        self.collate, self.done = collate, 0
        self._parameters = trained(model)
        check_optimizer(optimizer, self._parameters)
        self._device = next(iter(self._parameters.values())).device
        self._units, self.canaries = Units(dataset, users, most_per_user), canaries
        self._count = len(self._units) + (0 if canaries is None else canaries.count)
        self._processes = budget.processes if isinstance(budget, Charge) else Processes()
        self._knowledge, self._to_check = Knowledge(), (1 + _CHECKED_LOTS if check else 0)
        self.graphs = Graphs(model, loss, most_per_user, graphs) if graphs else None
        self._repeats = graphs is unchanging and self._processes.count == 1
        self._begin()

        unit = "example" if users is None else "user"
        if isinstance(budget, Charge):
            others = (lot_size, steps, noise_multiplier, delta, lots, records, folder, ledger)
            if budget.unit != unit or any(other is not None for other in others):
                raise InputError(
                    f"the plan is made: for {budget.unit}s, and with all that is asked for."
                )
            self.charge = budget
            self._processes.check(budget.lots)
        else:
            shared = None if ledger is None else open_shared(ledger)
            lots = planned(
                *(lots, lot_size, len(self._units), self._count, records),
                adjacency(shared if budget is None else budget),
            )
            self._processes.check(lots)
            self.charge = Charge(
                budget,
                lots,
                self.steps,
                unit=unit,
                noise_multiplier=noise_multiplier,
                delta=delta,
                label=label,
                folder=None if folder is None else Folder(folder, self._processes),
                processes=self._processes,
                ledger=shared,
            )
            self.charge.watch([] if data_name is None else [data_name], budget_of_all=budget_of_all)
        lots = self.plan = self.charge.lots
        size = largest(lots, most_per_user, self._device) if batch_size is None else batch_size
        self.batch_size = checks.whole("batch_size", size)
        self._split = (self.noise_multiplier, 0.0)
        if isinstance(self.clip, Adaptive):
            self._split = self.clip.split(self.noise_multiplier, lots.lot_size)
        self._correlated = CorrelatedNoise(lots.plan()) if isinstance(lots, FixedLots) else None
        self._check_plan()
        self._source, self._streams = source, self._processes.streams(source)
        self._save_every = checks.whole("save_every", save_every)
        if canaries is not None:
            canaries.forget()
        self.charge.take()
        if self.charge.folder is not None:
            self._facts = self._agreed(batch_size, users)
            self._go_on(self.charge.folder)
        if canaries is not None and not len(canaries.coins):
            canaries.toss(self._streams.at("coins"))
            canaries.coins = self._processes.once(lambda: canaries.coins)
        self._processes.share_([*self._parameters.values(), *model.buffers()])

    def _begin(self) -> None:
        """Nothing was drawn so far."""
        self._open: Lot | None = None
        self._ahead = Ahead(self._draw, self._batches, self._device)
        self._places, self._shapes = None, {}
        self._beside: list[Tensor] = []  # summed like the gradients, under the same noise
        self._folder = None
        self._reached, self._off_pace, self._over = 0, False, False
        self._mixed, self._process, self._working = False, os.getpid(), threading.Lock()
        self._later: Callable[[], None] | None = None  # what was asked for during a step

    def _agreed(self, batch_size: int | None, users: Sequence[Hashable] | None) -> bytes:
        """A hash of all that decides the steps of this run, see sgd/agreement.py."""
        canaries = self.canaries
        return agreement(
            self.model,
            self.optimizer,
            self._units.dataset,
            settings=(
                *(self.charge.event().to_json(), self.clip, batch_size, self._units.most, users),
                self._units.sizes,
                None if canaries is None else (canaries.count, canaries.scale),
                # A compiler chooses by the clock among ways to add up, and a graph may be behind
                # a model that is changed on the way: no two runs are alike.
                None if self.graphs is None else b"graphs" if self._repeats else os.urandom(32),
            ),
            calls=(self.loss, self.collate),
            rank=self._processes.rank,
            count=self._processes.count,
        )

    def _check_plan(self) -> None:
        if self._correlated is not None and isinstance(self.clip, Adaptive):
            raise InputError("correlated noise needs a clip that stays as it is; use a fixed one.")
        if self.canaries is not None and not isinstance(self.plan, PoissonLots):
            raise InputError("canaries are drawn by Poisson lots; audit a run that has them.")

    @property
    def noise_multiplier(self) -> float:
        """Deviation of the noise over the clip."""
        return self.charge.noise_multiplier

    def epsilon(self) -> float:
        """An upper bound on what the steps made so far give away, at the budget's delta."""
        return self.charge.epsilon(max(self.done, self._reached))

    # The loop

    def lots(self) -> Iterator[Lot]:
        """The lots that are left to do; the whole plan is charged before the first is drawn."""
        if self._over:
            raise InputError("this run is over; make a new engine for another one.")
        self._refuse_others()
        if self._to_check > _CHECKED_LOTS:  # before the charge: a loss that fails costs nothing
            if len(self._units.dataset):
                self._compare([], self._streams.at("first check"))
            self._to_check = _CHECKED_LOTS
        run = "" if self._folder is None else self._folder.run
        self.charge.reserve(self._streams.kind, run)
        if self._correlated is not None and self._correlated.steps != self.done:
            raise InputError("a step was interrupted half way; go on from the folder, or stop the run.")
        first = self.done
        for step in range(first, self.steps):
            if step == first or step % self._save_every == 0 or self._off_pace:
                self._keep()
            streams = self._streams
            self._open = self._ahead.lot(step, streams)
            yield self._open
            if self._streams is not streams:
                return  # stopped from within the loop
            if self.done != step + 1:
                raise InputError("the last lot was not used; call engine.step(lot) once for every lot.")
        self._processes.once(lambda: self.stop("done"))  # recorded before anyone's key is destroyed
        if not self._over:
            self.stop("done")

    def _draw(self, step: int) -> Lot:
        source = self._streams.at("lot", self.plan.stream(step))
        drawn = self._processes.draw(self.plan, self._count, step, source)
        units = len(self._units)
        return Lot(step, drawn[drawn < units], drawn[drawn >= units] - units)

    def step(self, lot: Lot) -> None:
        """One step with this lot: clip, add up, add noise, divide, and let the optimizer move."""
        if not self._working.acquire(blocking=False):
            raise InputError("another thread makes a step of this engine; a run has one thread.")
        try:
            self._refuse_others()
            self._step(lot)
        except CheckError:
            self._mixed = True
            raise
        finally:
            self._working.release()
            later, self._later = self._later, None
            if later is not None:
                later()

    def _step(self, lot: Lot) -> None:
        if self._over:
            raise InputError("this run was stopped; nothing more can be drawn from it.")
        if self._open is None or lot is not self._open:
            raise InputError("this lot was used before, or is of another run; use each lot once.")
        self._open = None
        if self._to_check and len(lot._units):
            self.check(lot)
            self._to_check -= 1
        self._cut_as_before(lot.step)
        try:
            below = self._sums(lot)
            if self.canaries is not None:
                name = next(iter(self._parameters))
                self._beside = [self.canaries.sums(lot._canaries, self.clip, name, self._device)]
            self._finish(lot.step, below)
            self.optimizer.step()
            if isinstance(self.optimizer, AdamW) and self.optimizer.drop():
                raise InputError(
                    "the optimizer was kept from its step, which makes the noise; leave AdamW.step as "
                    "it is, or take an optimizer of torch. The sums of this lot are gone."
                )
        except BaseException:
            if self._places is not None:
                self._places.clear()  # sums without noise: nobody who holds on to .grad sees them
            if isinstance(self.optimizer, AdamW):
                self.optimizer.drop()
            self.optimizer.zero_grad()
            raise
        self.optimizer.zero_grad()

    def _refuse_others(self) -> None:
        """A run goes on in one process, and no more once its examples were found to be mixed."""
        if os.getpid() != self._process:
            raise InputError(
                "this engine was made in another process, which draws the same noise; make one here."
            )
        if self._mixed:
            raise CheckError(
                "examples of this run were found to change each other: nothing more is drawn from it. "
                "Mend the model or the loss and make a new engine; engine.stop('crash') gives back the "
                "steps that were not run."
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError(
            "an engine cannot be copied or pickled: both would draw the same noise. Copy the model; to "
            "go on elsewhere, give the engine a folder."
        )

    def stop(self, because: str = "interrupt") -> None:
        """Ends the run. Reasons are those of Ledger.settle; nothing more can be drawn afterwards.

        "interrupt", "clock" and "crash" give back the steps that were not run; "outputs" (stopped for
        what the model showed) does not. Asked for during a step, by a signal's handler, say, it waits
        for the step's end.
        """
        if self._working.locked():  # its noise would be drawn, and nobody would have charged it
            self._later = partial(self.stop, because)
            return
        if self._folder is not None and not self._off_pace and self._processes.first:
            self._folder.save(*self._state())
        self.charge.settle(max(self.done, self._reached), because)
        self._over, self._open = True, None
        self._streams = rng.streams()  # what was drawn cannot be drawn again
        if self._folder is not None:
            self._folder.destroy_keys()
            self._folder.close()
            self._folder = None

    def pause(self) -> None:
        """Lets go of the folder, from which another engine can go on; nothing is given back."""
        if self._working.locked():
            self._later = self.pause
            return
        self._over, self._open = True, None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def check(self, lot: Lot) -> float:
        """Compares the engine with brute force on some examples of the lot; gives the largest error.

        Runs by itself on some of the data before anything is charged, and on the first two lots that
        are not empty. Raises CheckError where examples change each other.
        """
        source = self._streams.at("check", lot.step)
        units = [int(unit) for unit in lot._units]
        chosen = [units.pop(source.below(len(units))) for _ in range(min(_CHECKED, len(units)))]
        return self._compare([self._units.of(unit, source)[0] for unit in chosen], source)

    def _compare(self, places: list[int], source: rng.Source) -> float:
        """Compares with brute force on these examples, filled up with others: one mixes with none."""
        dataset = self._units.dataset
        while len(places) < min(_CHECKED, len(dataset)):
            places.append(source.below(len(dataset)))
        rows = [dataset[place] for place in places]
        sizes = [kind.size for kind in self._kinds(self.batch_size)]
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            padded = padding(self.collate, sizes[-1] if sizes else None)  # as the longest texts are
            together = move(padded(rows), self._device)
            alone = [move(self.collate([row]), self._device) for row in rows]
            with unchanged(self.model):
                self.loss(self.model, together)  # in training mode: does it change what it keeps?
                return compare(self.model, self.loss, together, alone)

    # One step, in parts

    def _finish(self, step: int, below: Tensor) -> None:
        """Adds up over processes, adds the noise once in total, divides by the planned lot size.

        Where the optimizer can do all three at once, it is given the sums instead (`AdamW.take`).
        """
        sums = [*(() if self._places is None else self._places.flats), *self._beside]
        multiplier, count_noise = self._split
        deviation = multiplier * self.clip.bound
        if hasattr(self.optimizer, "noise_variance") and self._correlated is None:
            self.optimizer.noise_variance = (deviation / self.plan.lot_size) ** 2
        count = below.float().reshape(1)
        source = self._streams.at("noise", step)
        plain = self._correlated is None and not self._beside and not isinstance(self.clip, Adaptive)
        released = [*sums, count] if count_noise else sums
        self._processes.add_up_(released)
        self._note(step, released)
        self.done = step + 1  # whatever interrupts it now, its noise is not drawn twice
        if plain and self._processes.count == 1 and self._taken_by_optimizer(deviation, source):
            return
        if self._processes.first:
            if self._correlated is None:
                add_noise_(sums, deviation, source)
            else:
                fresh = [normal(x.shape, source, x.device).mul_(deviation) for x in sums]
                for total, noise in zip(sums, self._correlated.step(fresh), strict=True):
                    round_(total.add_(noise), deviation)
            if count_noise:
                add_noise_([count], count_noise, self._streams.at("count", step))
        self._processes.share_(released)
        if self.canaries is not None and isinstance(self.plan, PoissonLots):
            self.canaries.see(sums[-1], self.clip.bound, self.plan.rate, multiplier)
        for total in sums:
            total.div_(self.plan.lot_size)
        if self._places is not None:
            self._places.show()
        if isinstance(self.clip, Adaptive):
            self.clip.move(float(count), self.plan.lot_size)

    def _taken_by_optimizer(self, deviation: float, source: rng.Source) -> bool:
        own, sums = self.optimizer, self._places
        if sums is None or not isinstance(own, AdamW):
            return False
        return own.take(sums, deviation, source, self.plan.lot_size)
