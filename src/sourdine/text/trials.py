"""What tuning releases and what it costs: settings, the selection's place in the plan, its accounts.

    labels  +  selection( max(training, noisy score) )

A trial trains on one part of the units and is scored on the other, by a hash of each unit: the same
split in all trials. Every trial draws its setting from one public list and costs the same event,
whatever it drew: settings share rate, steps and noise multiplier, and clipping makes the rest of them
(learning rate, clip, what trains) matter nothing for the cost. Only the best trial is released.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sourdine.accounting import curve, least_noise
from sourdine.budget import Budget
from sourdine.certificate import Access
from sourdine.errors import InputError
from sourdine.events import NOTHING, Event, GaussianEvent, compose
from sourdine.ledger import Ledger
from sourdine.mechanisms.selection import RandomTrials
from sourdine.sgd.charge import Charge, poisson
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.text.accounts import Accounts, label_counts
from sourdine.text.plan import Plan

Setting = Mapping[str, Any]
"""What one trial may draw: changes to the plan, by name."""

TUNABLE: dict[str, type[float] | type[int] | type[str]] = {
    "learning_rate": float,
    "clip": float,
    "head_factor": float,
    "max_length": int,
    "trains": str,
}
_SHARED = ("lot_size", "steps", "epochs", "noise_multiplier", "held_out")
_SCORE_APART, _SCORE_BESIDE = 0.9, 0.3
"""Of epsilon, for scores that cost nothing more, or that are paid beside the training."""


def grid(text: str) -> list[dict[str, Any]]:
    """All settings of a grid: "learning_rate=1e-3,3e-3 trains=head,lora" has four."""
    names, choices = [], []
    for word in text.split():
        name, equals, values = word.partition("=")
        given = [_value(name, value) for value in values.split(",") if value]
        if not equals or not given or name in names:
            raise InputError(
                f"the grid's {word!r} is not understood; write learning_rate=1e-3,3e-3 trains=head, "
                "each name once."
            )
        names.append(name)
        choices.append(given)
    if not names:
        raise InputError("the grid is empty; write learning_rate=1e-3,3e-3, for instance.")
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*choices)]


def checked(settings: Sequence[Setting]) -> tuple[dict[str, Any], ...]:
    """The settings, each of known names only, and no two alike."""
    found: list[dict[str, Any]] = []
    for setting in settings:
        own = {name: _value(name, value) for name, value in setting.items()}
        if own not in found:
            found.append(own)
    if not found:
        raise InputError("there is no setting to try; give at least one.")
    return tuple(found)


def _value(name: str, given: Any) -> Any:
    if name in _SHARED:
        raise InputError(
            f"{name} is the same in all trials, so that all cost the same; set it for the whole "
            "tuning, not in the grid."
        )
    if name not in TUNABLE:
        raise InputError(f"{name!r} cannot be tuned; what can is {', '.join(TUNABLE)}.")
    try:
        return TUNABLE[name](given)
    except (TypeError, ValueError):
        kind = "a whole number" if TUNABLE[name] is int else "a number"
        raise InputError(f"the grid's {name} is {given!r}, but it must be {kind}.") from None


class SelectionCharge(Charge):
    """A plan whose steps are those of each trial; only the best of a random number is released.

    Guarantee: the whole selection is charged before the number of trials is drawn. The engines of the
    trials run on it and charge nothing more. Nothing is ever settled: the time of a second entry would
    tell how long the trials took.
    inside: what every unit meets in each trial beside the steps.
    """

    engines = float("inf")  # one for each trial, and nobody knows how many there will be

    def __init__(self, trials: RandomTrials, inside: Event, *given: Any, **named: Any) -> None:
        self._trials, self._inside = trials, inside
        super().__init__(*given, **named)

    def trial(self, steps: int, noise: float) -> Event:
        """What one trial costs, its score included."""
        return compose([super().branches(steps, noise), self._inside])

    def branches(self, steps: int, noise: float) -> Event:
        """What the best of all trials costs."""
        return self._trials.event(self.trial(steps, noise)) if steps else NOTHING

    def epsilon(self, steps: int) -> float:
        """An upper bound for the whole selection: parts of it have no price of their own."""
        return curve(self.event(), self.budget.adjacency).epsilon_upper(self.budget.delta)

    def reserve(self, source: str, run: str) -> None:
        """Charges the selection for good, once; the engines of all trials ask for it."""
        if self.reservation is None:
            self.reservation = self.ledger.charge(self.event(), self.label, source=source, data=run).id
            self._entries.append(self.reservation)

    def settle(self, done: int, because: str) -> None:
        """Nothing: that a trial is over is told to nobody."""


@dataclass(frozen=True)
class TunedAccounts(Accounts):
    """The accounts of a tuning; test_noise is that of the score of each trial."""

    trials: RandomTrials
    settings: tuple[dict[str, Any], ...]

    @property
    def everyone(self) -> Event:
        return NOTHING if self.labels is None else self.labels.event

    @property
    def inside(self) -> Event:
        """What every unit meets in each trial beside the training."""
        if self.apart or self.test_noise is None:
            return NOTHING
        return GaussianEvent(self.test_noise)

    @property
    def seen_by(self) -> str:
        return (
            "anyone who sees the files of this folder and nothing of the trials that lost: not their "
            "results, their number, or how long they took; the attacker knows the method, the list of "
            "settings and all other records"
        )

    @property
    def about(self) -> Mapping[str, Any]:
        return {
            "tuning": "the best, by noisy accuracy, of a random number of trials with settings drawn "
            "from a fixed list (Papernot and Steinke 2022)",
            "tuning_settings": [said(setting) for setting in self.settings],
            "tuning_eta": self.trials.eta,
            "tuning_gamma": self.trials.gamma,
            "tuning_expected_trials": self.trials.expected,
        }

    def made(self, ledger: Ledger) -> str:
        """When the tuning was charged: together with the time when it ended that would tell of K."""
        return ledger.history()[-1].at

    def not_covered(self) -> list[str]:
        other = ("the time that training took", "the choice of settings")
        kept = [limit for limit in super().not_covered() if not limit.startswith(other)]
        return [
            *kept,
            "how long the tuning took: whoever watched it learns about the number of trials, and is "
            "promised less than this certificate says",
            "the list of settings itself, if it was made by trying them on these records",
        ]

    def charge(
        self,
        plan: Plan,
        units: int,
        records: int | None,
        folder: Folder | None,
        processes: Processes,
        noise: float | None,
        ledger: Ledger | None = None,
    ) -> SelectionCharge:
        """The plan, held against the budget; its ledger is made by the charge itself."""
        where = None if folder is None else folder.path / "ledger.sqlite"
        return SelectionCharge(
            self.trials,
            self.inside,
            Ledger(where, self.budget, lazy=True, nameless=True) if ledger is None else self.budget,
            poisson(plan.lot_size, units, records, self.budget.adjacency),
            plan.steps,
            unit=self.budget.unit,
            noise_multiplier=noise,
            delta=None,
            label="tuning of a text classifier",
            folder=None,  # trials leave no checkpoint
            processes=processes,
            ledger=ledger,
            also=self.everyone,
            apart=self.held_out,
        )

    def accesses(self, charge: Charge, trained: str, tested: str) -> list[Access]:
        found = []
        if self.labels is not None:
            found.append(Access("a noisy count of the labels over all records", self.labels.event, ""))
        split = ", which each unit meets one of, by a hash of itself," if self.apart else ""
        what = (
            f"the best of a random number of trials (on average {self.trials.expected:.4g}) of "
            f"{len(self.settings)} settings: training on {trained} and a noisy score on {tested} held "
            f"out{split} in each"
        )
        found.append(Access(what, charge.branches(charge.steps, charge.noise_multiplier)))
        return found


def tuned_accounts(
    budget: Budget,
    plan: Plan,
    *,
    declared: bool,
    rows_per_user: int,
    trials: RandomTrials,
    settings: tuple[dict[str, Any], ...],
) -> TunedAccounts:
    """The accounts of a tuning, the noise of its scores chosen."""
    labels = None if declared else label_counts(budget, plan, rows_per_user)
    apart = budget.adjacency != "replace-one"
    share = (_SCORE_APART if apart else _SCORE_BESIDE) * budget.epsilon
    part = Budget(share, budget.delta, budget.unit, budget.adjacency)
    counted = NOTHING if labels is None else labels.event
    noise = least_noise(part, lambda sigma: compose([counted, trials.event(GaussianEvent(sigma))]))
    return TunedAccounts(budget, labels, noise, apart, trials, settings)


def said(setting: Setting) -> str:
    """A setting in words."""
    return ", ".join(f"{name} {value}" for name, value in setting.items())
