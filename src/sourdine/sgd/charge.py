"""What a training run costs and how it is charged: the plan, its noise, its place in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sourdine import checks
from sourdine.accounting import curve, least_noise
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.events import NOTHING, Event, GaussianEvent, compose, parallel
from sourdine.ledger import Entry, Ledger
from sourdine.ledger.record import CHARGE, RESERVE
from sourdine.ledger.shared import FILE, check_part, published
from sourdine.register import watch
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.sgd.sampling import Lots, PoissonLots


class Charge:
    """A plan of `steps` noisy sums over lots, held against a budget or a ledger.

    Guarantee: `reserve` puts the whole plan on the ledger, or raises BudgetError; nothing may be drawn
    before. noise_multiplier is the least that fits, unless one is given.

    budget: a Budget, for a ledger of the run's own; a Ledger, for all that it has left; or both, a
    Budget and the shared ledger: then the noise is the least whose own curve costs at most that budget,
    and it is granted if the ledger has room.
    also: what else is released beside the steps (the labels, noisy metrics). It is part of the same
    plan, fixed in advance, so that one curve covers all; whoever draws it does so after `reserve`.
    apart: what units meet that the steps never meet; see ParallelEvent.
    """

    engines: float = 1  # that run its steps

    def __init__(
        self,
        budget: Budget | Ledger | None,
        lots: Lots,
        steps: int,
        *,
        unit: str,
        noise_multiplier: float | None,
        delta: float | None,
        label: str,
        folder: Folder | None,
        processes: Processes,
        ledger: Ledger | None = None,
        also: Event = NOTHING,
        apart: Event | None = None,
    ) -> None:
        self.lots, self.steps, self.label, self.unit = lots, steps, label, unit
        self.also, self.apart, self.folder, self.processes = also, apart, folder, processes
        self.reservation: int | None = None
        self.kind, self.reserved, self.settled = "", "", False
        self._engines = 0
        self._entries: list[int] = []  # of this run in the ledger
        self.run_again: Event = NOTHING  # steps that were run twice, charged by themselves
        if noise_multiplier is not None:
            self.noise_multiplier = checks.positive("noise_multiplier", noise_multiplier)
        if budget is None:
            if noise_multiplier is None:
                raise InputError("give a budget, or noise_multiplier= to have epsilon reported.")
            like = Budget(1, unit=unit) if ledger is None else ledger.budget
            delta = like.delta if delta is None else checks.delta(delta)
            epsilon = curve(self.event(), like.adjacency).epsilon_upper(delta)
            budget = Budget(max(epsilon * (1 + 1e-9), 1e-9), delta, unit, like.adjacency)
        elif delta is not None:
            raise InputError("the budget says what delta is; leave delta= out, or give no budget.")
        own = _ledger(budget, folder.path if folder and processes.first and not ledger else None)
        self._own, self.ledger = own, own if ledger is None or not processes.first else ledger
        self.shared = ledger is not None
        """Whether other runs are charged to the same ledger, which this one takes a part of."""
        self.budget = own.budget if ledger is None else check_part(ledger, own.budget)
        if self.budget.unit != unit:
            what = "say whose each example is with users=" if unit == "example" else "leave users= out"
            raise InputError(
                f"the budget is per {self.budget.unit}, but the units of this run are {unit}s; {what}."
            )
        if self.budget.delta > 1 / lots.records:
            raise InputError(
                f"delta is {self.budget.delta:g}, above one in {lots.records}, the number of units: it "
                "would allow to publish one of them. Take a smaller delta."
            )
        if folder is not None and self.find(folder.run) and noise_multiplier is None:
            if "noise_multiplier" not in folder.state:
                raise folder.gone()
            self.noise_multiplier = float(folder.state["noise_multiplier"])
        elif noise_multiplier is None:
            self.noise_multiplier = processes.once(self._least)

    def watch(
        self, tables: Sequence[Any], encoding: str = "utf-8", budget_of_all: float | None = None
    ) -> None:
        """From now on charges are entered in the register, as about the records of these tables."""
        self.ledger = watch(self.ledger, tables, encoding, budget_of_all=budget_of_all)

    def take(self) -> None:
        """An engine runs the steps of this plan; a second one would run them a second time."""
        self._engines += 1
        if self._engines > self.engines:
            raise InputError("this plan has an engine already; a second would run its steps again.")

    def event(self, steps: int | None = None, noise: float | None = None) -> Event:
        """What the plan costs with so many steps, by default all of them."""
        count = self.steps if steps is None else steps
        made = self.branches(count, self.noise_multiplier if noise is None else noise)
        return compose([self.also, made]) if self.also.parts else made

    def branches(self, steps: int, noise: float) -> Event:
        """What the steps cost, or what is met in their place."""
        made = self.training(steps, noise)
        return parallel([made, NOTHING if self.apart is None else self.apart])

    def training(self, steps: int, noise: float) -> Event:
        """What the steps alone cost."""
        return self.lots.event(GaussianEvent(noise), steps) if steps else NOTHING

    def epsilon(self, steps: int) -> float:
        """An upper bound on epsilon after so many steps, and those run twice, at the budget's delta.

        It counts what every unit meets, and not what some meet in place of the steps.
        """
        event = compose([self.also, self.training(steps, self.noise_multiplier), self.run_again])
        if not event.parts:
            return 0.0
        return curve(event, self.budget.adjacency).epsilon_upper(self.budget.delta)

    def _least(self) -> float:
        """The least noise that the budget, or what is left of a ledger, allows now."""
        if not self._own.spent().releases:
            least = least_noise(self.budget, lambda noise: self.event(noise=noise))
        else:  # beside other releases the filter decides
            low, least = 1e-3, 1.0
            while not self._own.fits(self.event(noise=least)):
                low, least = least, 4 * least
                if least > 1e9:
                    self._own.reserve(self.event(noise=least), self.label)  # raises: nothing is left
            while least > low * 1.0005:
                middle = (low * least) ** 0.5
                fits = self._own.fits(self.event(noise=middle))
                low, least = (low, middle) if fits else (middle, least)
        more = 1e-5
        while not self._own.fits(self.event(noise=least)):
            least *= 1 + more  # the search stops close to the budget; the ledger's word counts
            more *= 2
        return least

    def reserve(self, source: str, run: str) -> None:
        """Charges the whole plan; in all processes or in none."""
        event = self.event()
        if self.reservation is not None and self.reserved not in ("", event.to_json()):
            raise InputError("this run was reserved with another plan; go on with its settings.")
        if self.reservation is None:
            self.reservation = self.processes.once(
                lambda: self.ledger.reserve(event, self.label, source=source, data=run).id
            )
            self._entries.append(self.reservation)

    def settle(self, done: int, because: str) -> None:
        """Closes the reservation after so many steps."""
        plan, ran = self.event(), self.event(done)
        planned = dict(plan.parts)
        if any(count > planned.get(part, 0) for part, count in ran.parts):
            ran = plan  # steps that have a price only together
        if self.reservation is not None and not self.settled and self.processes.first:
            self.ledger.settle(self.reservation, ran, because)
        self.reservation = None

    def find(self, run: str) -> bool:
        """Takes up the reservation of a run, as the ledger knows it: a killed run may not."""

        def look() -> tuple[int, str, str, bool, list[Entry]] | None:
            entries = self.ledger.history()
            own = [entry for entry in entries if entry.data == run]
            closed = {entry.refers for entry in entries}
            again = [entry for entry in own if entry.kind == CHARGE]
            for entry in own:
                if entry.kind == RESERVE:
                    return entry.id, entry.text, entry.source, entry.id in closed, again
            return None

        found = self.processes.once(look)
        if found is not None:
            self.reservation, self.reserved, self.kind, self.settled, again = found
            self.run_again = compose([entry.event for entry in again])
            self._entries = [self.reservation, *(entry.id for entry in again)]
        return found is not None

    def published(self, folder: Path) -> Ledger:
        """The ledger of the run folder that is handed on."""
        return published(self.ledger, self._entries, folder)

    def again(self, steps: int, run: str) -> None:
        """Charges steps that may have been run before and will be run with other randomness."""
        if steps > 0:
            event = self.training(steps, self.noise_multiplier)
            label = f"{self.label}, {steps} steps run again"
            try:
                charged = self.processes.once(
                    lambda: self.ledger.charge(event, label, source=self.kind, data=run).id
                )
                self._entries.append(charged)
            except BudgetError as error:
                raise BudgetError(
                    f"{error} Data, settings or code are not what they were (or the keys are gone), so "
                    f"{steps} steps that may have been run would be run with other noise. With the old "
                    "ones they cost nothing: go back to them to go on."
                ) from None
            self.run_again = compose([self.run_again, event])


def poisson(lot_size: float | None, units: int, records: int | None, adjacency: str) -> PoissonLots:
    """Poisson lots; under add-remove out of a declared number of units, never of a counted one."""
    if lot_size is None:
        raise InputError("give lot_size=, the planned number of units in a lot.")
    if records is None and adjacency == "add-remove":
        raise InputError(
            "under add-remove the number of records is private: declare one with records=, which fixes "
            "the rate whatever the true number is."
        )
    return PoissonLots(units if records is None else records, lot_size)


def planned(
    lots: Lots | None,
    lot_size: float | None,
    units: int,
    count: int,
    records: int | None,
    adjacency: str,
) -> Lots:
    """The way to draw lots: the one given, if it fits, or Poisson lots.

    units: of the data; count: with those made for an audit, which no declared number of records holds.
    """
    if lots is None:
        declared = None if records is None else checks.whole("records", records) + count - units
        return poisson(lot_size, count, declared, adjacency)
    if adjacency == "add-remove" and not isinstance(lots, PoissonLots):
        raise InputError("under add-remove the number of records is private: use Poisson lots.")
    # Under add-remove the lots' own number of records is the declared one, whatever there is.
    there = lots.records if adjacency == "add-remove" else count
    if (lot_size or lots.lot_size, records or there) != (lots.lot_size, lots.records):
        raise InputError(
            f"the lots are of size {lots.lot_size:g} out of {lots.records}; lot_size is {lot_size} "
            f"and there are {records or there} units. Leave lot_size and records to the lots."
        )
    return lots


def adjacency(budget: Budget | Ledger | None) -> str:
    """That of the budget or ledger; without one, zero-out."""
    if isinstance(budget, Ledger):
        return budget.budget.adjacency
    if isinstance(budget, Budget):
        return budget.adjacency
    if budget is not None:
        raise InputError(f"{budget!r} is neither a budget nor a ledger; give Budget(3, 1e-6), say.")
    return "zero-out"


def _ledger(budget: Budget | Ledger, folder: Path | None) -> Ledger:
    """The ledger itself, one in the run folder, or one in memory."""
    if isinstance(budget, Ledger):
        return budget
    if folder is None:
        return Ledger(None, budget)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be a run folder: {error.strerror}.") from None
    return Ledger(folder / FILE, budget, nameless=True)  # the folder is made to be handed on
