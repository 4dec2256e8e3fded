"""What one training run releases, and what it costs: fixed in advance, charged as one plan.

    labels  +  max(training, noisy test)

Labels are counted over all units. Then each unit is trained on or held out, by a hash of itself, and
pays the larger of both costs. Two cases pay for both: replace-one, where the unit that comes may lie on
the other side than the one that goes, and test records that were given apart from the training records,
as they may be of the same people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sourdine.accounting import least_noise
from sourdine.budget import Budget
from sourdine.certificate import Access
from sourdine.errors import InputError
from sourdine.events import NOTHING, Event, GaussianEvent, compose
from sourdine.ledger import Ledger
from sourdine.rng import Source
from sourdine.sgd.charge import Charge, poisson
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.text.plan import Plan
from sourdine.text.releases import Labels

_TEST_APART, _TEST_BESIDE = 0.9, 0.3
"""Of epsilon, for a noisy test that costs nothing more, or that is paid beside the training."""


@dataclass(frozen=True)
class Accounts:
    """The releases of one run beside its training.

    labels: the noisy count of labels that nobody declared. test_noise: the noise multiplier of the
    confusion matrix; None where there is no private test. apart: whether a unit meets only one of
    training and test.
    """

    budget: Budget
    labels: Labels | None
    test_noise: float | None
    apart: bool

    @property
    def everyone(self) -> Event:
        """What every unit meets, beside the training."""
        counted = NOTHING if self.labels is None else self.labels.event
        if self.test_noise is None or self.apart:
            return counted
        return compose([counted, GaussianEvent(self.test_noise)])

    @property
    def held_out(self) -> Event | None:
        """What a unit meets instead of the training."""
        return None if self.test_noise is None or not self.apart else GaussianEvent(self.test_noise)

    @property
    def seen_by(self) -> str:
        """Whom the guarantee holds against."""
        return (
            "anyone: the attacker sees every file of this folder, knows the method and all other "
            "records, and may have seen every model on the way"
        )

    @property
    def about(self) -> Mapping[str, Any]:
        """What else a certificate says of how the model was trained."""
        return {}

    def made(self, ledger: Ledger) -> str | None:
        """When the certificate says that it was made; None for the time when it is."""
        return None

    def not_covered(self) -> list[str]:
        """What the guarantee says nothing of."""
        found = [
            "facts about a person that stand in other people's texts (Brown et al. 2022)",
            "what the pretrained model learnt from its own training text",
            "the time that training took, and who was seen to run it",
            "the choice of settings, if it was made by trying them on these records",
            "other runs on these records under another ledger, also those that were thrown away",
        ]
        if self.budget.unit == "example":
            found.insert(
                1, "persons with several records: k records are protected k times less (group privacy)"
            )
        if self.labels is not None:
            found.append(
                "classes with few records: they were left out, and their records taught nothing"
            )
        return found

    def charge(
        self,
        plan: Plan,
        units: int,
        records: int | None,
        folder: Folder | None,
        processes: Processes,
        noise: float | None,
        ledger: Ledger | None = None,
    ) -> Charge:
        """The plan, held against the budget; `noise` is that of a run that goes on.

        ledger: a shared one, of which the budget is this run's part.
        """
        return Charge(
            self.budget,
            poisson(plan.lot_size, units, records, self.budget.adjacency),
            plan.steps,
            unit=self.budget.unit,
            noise_multiplier=noise,
            delta=None,
            label="training of a text classifier",
            folder=folder,
            processes=processes,
            ledger=ledger,
            also=self.everyone,
            apart=self.held_out,
        )

    def accesses(self, charge: Charge, trained: str, tested: str) -> list[Access]:
        """Every use of the data with its cost, as a certificate lists them; sums to the plan."""
        found = []
        if self.labels is not None:
            found.append(Access("a noisy count of the labels over all records", self.labels.event, ""))
        if charge.run_again.parts:
            why = "keys or settings had changed when the run went on"
            found.append(Access("steps that were run a second time", charge.run_again, why))
        training = charge.training(charge.steps, charge.noise_multiplier)
        if self.held_out is not None:
            what = (
                f"training on {trained}, or a noisy confusion matrix of {tested} held out: each unit "
            )
            found.append(
                Access(
                    what + "meets one of them, by a hash of itself",
                    charge.branches(charge.steps, charge.noise_multiplier),
                )
            )
            return found
        found.append(Access(f"training on {trained}", training))
        if self.test_noise is not None:
            found.append(
                Access(f"a noisy confusion matrix of {tested}", GaussianEvent(self.test_noise))
            )
        return found


def accounts(budget: Budget, plan: Plan, *, declared: bool, rows_per_user: int, test: str) -> Accounts:
    """The accounts of a plan; test: "none", "held out", "private" (other records) or "public"."""
    labels = None if declared else label_counts(budget, plan, rows_per_user)
    apart = test == "held out" and budget.adjacency != "replace-one"
    test_noise = None
    if test in ("held out", "private"):
        share = (_TEST_APART if apart else _TEST_BESIDE) * budget.epsilon
        part = Budget(share, budget.delta, budget.unit, budget.adjacency)
        counted = NOTHING if labels is None else labels.event
        test_noise = least_noise(part, lambda sigma: compose([counted, GaussianEvent(sigma)]))
    return Accounts(budget, labels, test_noise, apart)


def label_counts(budget: Budget, plan: Plan, rows_per_user: int) -> Labels:
    """The noisy count of labels; a unit that is replaced moves two, so there its noise is doubled."""
    noise = plan.label_noise * (2 if budget.adjacency == "replace-one" else 1)
    return Labels(noise, plan.label_delta, rows_per_user, budget.adjacency)


def find_labels(
    counts: Labels, named: Sequence[str], source: Source, users: Sequence[str] | None
) -> list[str]:
    """The labels that come out of the noisy count; fewer than two are an error, and stay charged."""
    found = counts.release([label or None for label in named], source, users)
    if len(found) < 2:
        raise InputError(
            f"fewer than two labels are used by enough units to be told (about {counts.threshold:.0f} "
            "are needed), so there is nothing to train. The budget of the whole run has been spent: "
            "the plan is one reservation, and a stop that looks at a noisy count gives nothing back. "
            "Begin again with the labels declared, or with more records."
        )
    return found
