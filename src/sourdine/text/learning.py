"""The half of a Trainer that learns and tests; what is charged, and when, is the other half's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sourdine import rng
from sourdine.budget import Budget
from sourdine.data.corpus import Corpus
from sourdine.sgd import Engine
from sourdine.sgd.charge import Charge
from sourdine.text import loop
from sourdine.text.accounts import Accounts
from sourdine.text.auditing import Auditing
from sourdine.text.examples import Collate, Examples, Features, cached_features
from sourdine.text.log import releasable
from sourdine.text.models import Classifier
from sourdine.text.prepared import Prepared, units_of
from sourdine.text.releases import Confusion, first_rows
from sourdine.text.tasks import Classify, OnFeatures

_SHOWN = 20  # so many times epsilon is worked out while it grows


class Learning:
    """Models, examples, steps and metrics; what they work on is the Trainer's."""

    budget: Budget | None
    rows_per_user: int
    _given_test: Any
    _stated: dict[str, Any]
    _reference: dict[str, Any] | None
    _source: rng.Source | None
    seed: int | None
    _auditing: Auditing
    _device: torch.device
    _log: Callable[[dict[str, float]], object]
    _tell: Callable[[str, int, int, float | None], object]
    _heard: bool  # whether somebody listens

    def _sizes_known(self, test: Corpus | None) -> bool:
        """Whether the sizes of the parts may be told: those of a split tell where a unit lies."""
        declared = self.budget is not None and self.budget.adjacency == "add-remove"
        return not declared and (test is None or self._given_test is not None)

    def _train(self, ready: Prepared, goal: Classify, charge: Charge) -> Classifier:
        network, model, dataset, collate = self._network(ready, goal)
        shown = -1

        def tell(engine: Engine) -> None:
            nonlocal shown
            epsilon, part = None, _SHOWN * engine.done // engine.steps
            if part != shown and self._heard:
                shown, epsilon = part, engine.epsilon()
                rate = float(engine.optimizer.param_groups[0]["lr"])
                said = {"step": engine.done, "epsilon": epsilon, "learning_rate": rate}
                self._log(releasable(said))
            self._tell("training", engine.done, engine.steps, epsilon)

        loop.train_privately(
            model,
            dataset,
            charge,
            ready.plan,
            collate=collate,
            users=ready.train.users,
            most_per_user=self.rows_per_user,
            source=self._source,
            canaries=self._auditing.canaries,
            tell=tell,
        )
        ready.plan.strategy.finish(network)
        return network

    def _network(self, ready: Prepared, goal: Classify) -> tuple[Classifier, nn.Module, Any, Any]:
        """The whole model, the part that trains, its examples, and how they become batches."""
        # A copy: another run of this trainer must not start from what this one has learnt.
        encoder = ready.encoder if ready.plan.strategy.name == "head" else copy.deepcopy(ready.encoder)
        network = goal.model(encoder, ready.pooling, ready.plan.scale)
        if self.seed is not None:  # what a strategy adds is drawn by torch
            torch.default_generator.manual_seed(self.seed)
        ready.plan.strategy.prepare(network)
        network.to(self._device).eval()  # dropout would only add noise to noise
        model = OnFeatures(network.head) if ready.plan.strategy.name == "head" else network
        return network, model, *self._examples(ready, goal, network, ready.train)

    def _examples(
        self, ready: Prepared, goal: Classify, network: Classifier, corpus: Corpus
    ) -> tuple[Any, Any]:
        """Records as what trains reads them, and how they become batches."""
        labels = corpus.labels or ()
        rows = goal.examples(ready.tokenizer, corpus.texts, labels, ready.plan.max_length)
        collate = Collate(ready.tokenizer.pad_token_id, ready.plan.max_length)
        if ready.plan.strategy.name != "head":
            return rows, collate
        dataset = Features(self._frozen(network, rows, collate), goal.classes(labels))
        return dataset, torch.utils.data.default_collate

    def _frozen(self, network: Classifier, rows: Examples, collate: Collate) -> Tensor:
        """What the frozen encoder makes of the texts, where the head trains."""
        found = cached_features(
            network, rows, collate, tell=lambda done: self._tell("reading", done, len(rows), None)
        )
        return found.to(self._device)

    def _metrics(
        self,
        ready: Prepared,
        goal: Classify,
        network: Classifier,
        own: Accounts | None,
        source: rng.Source,
    ) -> dict[str, Any]:
        """Noisy metrics on private records, exact ones on public records, none without any."""
        if ready.test is None:
            return {"classes": list(goal.labels), "how": self.untested(ready)}
        test = ready.test
        answers = self._answers(ready, goal, network, test)
        true = goal.classes(test.labels or ())
        noise = None if own is None else own.test_noise
        if noise is None:
            counts = Confusion(len(goal.labels), 1.0)
            matrix, deviation, tested = counts.count(true, answers), 0.0, len(true)
            known: int | None = tested
            amount = ""
            how = f"exact, on {tested:,} records that the owner declares public"
        else:
            counts = Confusion(len(goal.labels), noise, self.rows_per_user)
            matrix = counts.release(true, answers, source, test.users)
            deviation = counts.deviation
            tested = sum(first_rows(test.users, len(true), self.rows_per_user))
            # Of several rows a person, how many there are is that person's.
            known = tested if self._sizes_known(test) and self.rows_per_user == 1 else None
            amount = self._amount(ready, test, ready.plan.held_out)
            how = f"Gaussian noise of deviation {deviation:.3g} on the confusion matrix of {amount}"
            how += ", charged" if self._given_test is not None else " held out, charged"
        found = goal.metrics(matrix, deviation, known)
        return {**found, "records": known or amount, "how": how, "reference": self._reference}

    def _amount(self, ready: Prepared, corpus: Corpus, share: float) -> str:
        """How many records or people a part of the data has, as far as that may be told."""
        things = "records" if corpus.users is None else "people"
        if self.budget is not None and self.budget.adjacency == "add-remove":
            return f"the {things}"
        if self._given_test is None and share < 1:  # sizes of a split tell where a unit lies
            units = ready.situation.units
            return f"about {share * units:,.0f} of {units:,} {things}"
        return f"{units_of(corpus):,} {things}"

    def untested(self, ready: Prepared) -> str:
        """Why no records are held out, and what to do about it."""
        asked = self._stated["held_out"] is not None
        why = "No units are held out, as asked." if asked else ready.plan.reasons["held_out"]
        return (
            f"{why} So nothing is known about the accuracy. To measure it, test on other records "
            "(--test FILE, and --test-is-public if they are public), or hold some out (--held-out 0.2)."
        )

    def _log_metrics(self, metrics: dict[str, Any]) -> None:
        """Once they are noted: what somebody may have seen is never drawn again."""
        numbers = {
            name: x["value"] for name, x in metrics.items() if isinstance(x, dict) and "value" in x
        }
        self._log(releasable(numbers))

    def _answers(self, ready: Prepared, goal: Classify, network: Classifier, test: Corpus) -> list[int]:
        """The class that the model finds most likely, for each test record."""
        rows = goal.examples(ready.tokenizer, test.texts, test.labels or (), ready.plan.max_length)
        collate = Collate(ready.tokenizer.pad_token_id, ready.plan.max_length)
        if ready.plan.strategy.name == "head":
            with torch.no_grad():
                return network.head(self._frozen(network, rows, collate)).argmax(1).tolist()  # type: ignore[no-any-return]
        return loop.predicted(network, rows, collate, 64)
