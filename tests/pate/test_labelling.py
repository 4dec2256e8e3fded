"""The plan is charged before the first question, ends the labelling, and is never exceeded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.ledger import Ledger
from sourdine.pate.aggregators import NO_ANSWER, ConfidentGNMax, GNMax, InteractiveGNMax
from sourdine.pate.labelling import Labelling
from sourdine.pate.votes import Votes
from sourdine.rng import seeded

BUDGET = Budget(2.0, 1e-5)


def votes(questions: int, top: int = 18) -> Votes:
    return Votes(np.tile([top, 20 - top], (questions, 1)), 20)


def test_the_plan_is_charged_before_anything_is_asked(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", BUDGET)
    labelling = Labelling(ConfidentGNMax(12, 40.0, 20.0), ledger, questions=50, answers=20)
    (entry,) = ledger.history()
    assert entry.kind == "reserve" and entry.event == labelling.aggregator.plan(50, 20)
    assert ledger.spent().epsilon == pytest.approx(
        curve(entry.event, "zero-out").epsilon_upper(1e-5), rel=1e-6
    )


def test_a_plan_over_the_budget_is_refused_and_nothing_recorded() -> None:
    ledger = Ledger(None, BUDGET)
    with pytest.raises(BudgetError, match="was not run"):
        Labelling(GNMax(2.0), ledger, questions=100, answers=100)
    assert not ledger.history()


def test_replace_one_is_refused() -> None:
    budget = Budget(2.0, 1e-5, adjacency="replace-one")
    with pytest.raises(InputError, match="moves two votes"):
        Labelling(GNMax(50.0), budget, questions=5, answers=5)


def test_answers_end_the_labelling() -> None:
    labelling = Labelling(GNMax(20.0), BUDGET, questions=30, answers=10, source=seeded(1))
    found = labelling.ask(votes(30))
    assert found.answered.sum() == 10 and found.asked.sum() == 10
    assert found.answered[:10].all() and (found.labels[10:] == NO_ANSWER).all()
    assert labelling.over
    with pytest.raises(BudgetError, match="used up"):
        labelling.ask(votes(1))


def test_questions_end_the_labelling() -> None:
    never = ConfidentGNMax(1000, 5.0, 20.0)
    labelling = Labelling(never, Budget(8.0, 1e-5), questions=12, answers=10, source=seeded(1))
    first, second = labelling.ask(votes(8)), labelling.ask(votes(8))
    assert first.asked.all() and second.asked.sum() == 4
    assert labelling.asked == 12 and labelling.answered == 0 and labelling.over


def test_no_more_noise_is_drawn_than_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts every row that goes into a noisy comparison, over many batches."""
    counted = {"passes": 0, "choose": 0}
    aggregator = ConfidentGNMax(15, 5.0, 8.0)
    kept = aggregator.passes, aggregator.choose

    def passes(self: ConfidentGNMax, rows: Votes, *args: object) -> object:
        counted["passes"] += len(rows)
        return kept[0](rows, *args)  # type: ignore[arg-type]

    def choose(self: ConfidentGNMax, rows: Votes, *args: object) -> object:
        counted["choose"] += len(rows)
        return kept[1](rows, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfidentGNMax, "passes", passes)
    monkeypatch.setattr(ConfidentGNMax, "choose", choose)
    labelling = Labelling(aggregator, Budget(9, 1e-5), questions=37, answers=11, source=seeded(4))
    while not labelling.over:
        labelling.ask(votes(9))
    assert counted["passes"] <= 37 and counted["choose"] <= 11
    assert counted["choose"] == labelling.answered


def test_what_is_left_is_not_given_back() -> None:
    """How many answers there were depends on the votes, so the whole plan stays charged."""
    ledger = Ledger(None, BUDGET)
    labelling = Labelling(ConfidentGNMax(1000, 40.0, 20.0), ledger, questions=20, answers=5)
    labelling.ask(votes(20))
    before = ledger.spent().epsilon
    labelling.close()
    assert ledger.history()[-1].reason == "outputs"
    assert ledger.spent().epsilon == before
    with pytest.raises(BudgetError, match="used up"):
        labelling.ask(votes(1))


def test_a_stopped_labelling_goes_on_where_it_was(tmp_path: Path) -> None:
    path, aggregator = tmp_path / "ledger.sqlite", GNMax(20.0)
    first = Labelling(aggregator, Ledger(path, BUDGET), questions=30, answers=30)
    shown = first.ask(votes(12))
    ledger = Ledger(path)
    (entry,) = ledger.history()
    again = Labelling(aggregator, ledger, questions=30, answers=30, go_on=(entry, shown))
    assert again.asked == 12
    rest = again.ask(votes(40))
    assert rest.asked.sum() == 18 and len(ledger.history()) == 1
    assert len(shown + rest) == 52
    with pytest.raises(InputError, match="another plan"):
        Labelling(GNMax(21.0), ledger, questions=30, answers=30, go_on=(entry, shown))


def test_a_student_that_is_sure_and_not_corrected_keeps_its_label_for_free() -> None:
    aggregator = InteractiveGNMax(6, 2.0, 3.0, sure=0.8)
    labelling = Labelling(aggregator, Budget(9, 1e-5), questions=3, answers=2, source=seeded(2))
    found = labelling.ask(votes(3, top=19), np.array([[0.95, 0.05], [0.05, 0.95], [0.6, 0.4]]))
    assert found.answered[1] and not found.answered[0]
    assert found.labels[:2].tolist() == [0, 0]
    assert found.known.tolist()[:2] == [0, 1]


def test_more_answers_than_questions() -> None:
    with pytest.raises(InputError, match="cannot be given"):
        Labelling(GNMax(50.0), BUDGET, questions=5, answers=6)


def test_going_on_counts_what_was_answered() -> None:
    aggregator, ledger = ConfidentGNMax(-100, 20.0, 20.0), Ledger(None, Budget(9, 1e-5))
    first = Labelling(aggregator, ledger, questions=40, answers=10)
    shown = first.ask(votes(6))
    assert shown.answered.all()
    again = Labelling(aggregator, ledger, questions=40, answers=10, go_on=(first.entry, shown))
    assert again.ask(votes(20)).answered.sum() == 4


def test_a_plan_that_was_closed_is_not_asked_again() -> None:
    ledger = Ledger(None, BUDGET)
    first = Labelling(GNMax(20.0), ledger, questions=30, answers=30)
    shown = first.ask(votes(12))
    first.close()
    again = Labelling(GNMax(20.0), ledger, questions=30, answers=30, go_on=(first.entry, shown))
    with pytest.raises(BudgetError, match="used up"):
        again.ask(votes(1))
    again.close()
    assert len(ledger.history()) == 2


def test_randomness_is_secure_unless_it_is_asked_for() -> None:
    labelling = Labelling(GNMax(20.0), BUDGET, questions=5, answers=5)
    assert labelling.source.kind == "secure"
    assert labelling.ledger.history()[0].source == "secure"


def test_a_student_that_is_corrected_does_not_keep_its_label() -> None:
    """Where the teachers were to answer, but the plan had no answer left, there is no label at all."""
    aggregator = InteractiveGNMax(5, 0.1, 3.0, sure=0.8)
    passed = np.array([True, False])
    beliefs = np.array([[0.95, 0.05], [0.95, 0.05]])
    assert aggregator.confirmed(beliefs, passed).tolist() == [NO_ANSWER, 0]


def test_only_the_first_process_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sourdine.pate.labelling.processes", lambda: (1, 2))
    with pytest.raises(InputError, match="drawn once, by the first"):
        Labelling(GNMax(20.0), BUDGET, questions=5, answers=5)
