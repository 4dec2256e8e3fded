"""The ledger: grants, refusals, reservations, history, and every way in which it cannot be used."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PateEvent,
    PoissonEvent,
)
from sourdine.ledger import Ledger

TENTH = ApproximateEvent(0.1, 0.0, "zero-out")
STEP = PoissonEvent(0.01, GaussianEvent(1.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sqlite"


def test_ten_tenths_fit_a_budget_of_one_and_an_eleventh_does_not(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    for _ in range(10):
        ledger.charge(TENTH, "a tenth")
    with pytest.raises(
        BudgetError, match=r"'one more' was not run: .*epsilon=1\.1 .*budget of 1 per example"
    ):
        ledger.charge(TENTH, "one more")
    assert len(ledger.history()) == 10
    assert ledger.spent().left < 1e-9


def test_a_refused_charge_records_nothing_and_a_smaller_one_still_fits(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.charge(TENTH, "first")
    with pytest.raises(BudgetError, match=r"0\.9 is left"):
        ledger.charge(ApproximateEvent(2.0, 0.0, "zero-out"), "too much")
    assert [entry.label for entry in ledger.history()] == ["first"]
    ledger.charge(ApproximateEvent(0.9, 0.0, "zero-out"), "the rest")
    assert ledger.spent().epsilon == pytest.approx(1.0)


def test_what_is_left_is_granted_and_a_little_more_is_refused(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    for _ in range(150):  # many small ones: here the Rényi rule leaves more than the sum
        ledger.charge(ApproximateEvent(0.01, 0.0, "zero-out"), "small")
    left = ledger.spent().left
    with pytest.raises(BudgetError):
        ledger.charge(ApproximateEvent(left * 1.001, 0.0, "zero-out"), "too much")
    ledger.charge(ApproximateEvent(left * 0.999, 0.0, "zero-out"), "fits")


def test_one_plan_alone_is_counted_by_its_curve(path: Path) -> None:
    plan = 100 * STEP
    tight = curve(plan).epsilon_upper(1e-6)
    ledger = Ledger(path, Budget(math.ceil(tight * 1e6) / 1e6))
    ledger.reserve(plan, "training")
    spent = ledger.spent()
    assert (spent.epsilon, spent.method) == (tight, "curve")
    with pytest.raises(BudgetError):  # the filter counts the plan higher, and it is no longer alone
        ledger.charge(ApproximateEvent(1e-6, 0.0, "zero-out"), "anything")


def test_two_plans_go_through_the_filter_at_a_higher_price(path: Path) -> None:
    plan = 100 * PoissonEvent(0.01, GaussianEvent(2.0))
    ledger = Ledger(path, Budget(1.0))
    ledger.reserve(plan, "one")
    alone = ledger.spent().epsilon
    ledger.reserve(plan, "two")
    assert ledger.spent().method == "filter"
    assert curve(2 * plan).epsilon_upper(1e-6) < ledger.spent().epsilon <= 1.0
    assert alone < ledger.spent().epsilon


@pytest.mark.parametrize("because", ["crash", "clock", "interrupt"])
def test_what_was_not_run_comes_back(path: Path, because: str) -> None:
    ledger = Ledger(path, Budget(1.0))
    run = ledger.reserve(100 * STEP, "training")
    before = ledger.spent().epsilon
    ledger.settle(run, 10 * STEP, because)
    assert ledger.spent().epsilon == curve(10 * STEP).epsilon_upper(1e-6) < before
    assert [entry.kind for entry in ledger.history()] == ["reserve", "settle"]
    assert ledger.history()[1].refers == 1


def test_nothing_comes_back_when_the_outputs_decided(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    run = ledger.reserve(100 * STEP, "training")
    before = ledger.spent().epsilon
    ledger.settle(run, 10 * STEP, "outputs")
    assert ledger.spent().epsilon == before


def test_a_run_that_never_began_gives_everything_back(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.settle(ledger.reserve(100 * STEP, "training"), NOTHING, "interrupt")
    assert ledger.spent().releases == 0
    assert ledger.spent().left == 1.0


def test_an_open_reservation_counts_in_full_for_others(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.reserve(ApproximateEvent(0.9, 0.0, "zero-out"), "long run")
    with pytest.raises(BudgetError):
        Ledger(path).charge(ApproximateEvent(0.2, 0.0, "zero-out"), "meanwhile")


@pytest.mark.parametrize(
    ("ran", "because", "said"),
    [
        (101 * STEP, "crash", "more was run than was reserved"),
        (100 * STEP + TENTH, "crash", "more was run than was reserved"),
        (GaussianEvent(1.0), "crash", "more was run than was reserved"),
        (10 * STEP, "done", "not run to its end"),
        (10 * STEP, "boredom", "must be one of"),
    ],
)
def test_a_wrong_settlement_is_refused(path: Path, ran: Event, because: str, said: str) -> None:
    ledger = Ledger(path, Budget(1.0))
    run = ledger.reserve(100 * STEP, "training")
    with pytest.raises(InputError, match=said):
        ledger.settle(run, ran, because)
    assert len(ledger.history()) == 1


def test_a_reservation_is_settled_once(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    run = ledger.reserve(100 * STEP, "training")
    ledger.settle(run, 100 * STEP, "done")
    with pytest.raises(InputError, match="no open reservation"):
        ledger.settle(run, NOTHING, "crash")
    with pytest.raises(InputError, match="no open reservation"):
        ledger.settle(7, NOTHING, "crash")


@pytest.mark.parametrize("event", [NonPrivateEvent(), 10**9 * GaussianEvent(1e-3)])
def test_infinite_spends_are_refused(path: Path, event: Event) -> None:
    ledger = Ledger(path, Budget(10))
    with pytest.raises(BudgetError):
        ledger.charge(event, "everything")
    assert not ledger.history()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_no_event_can_be_built_with_such_a_spend(value: float) -> None:
    with pytest.raises(InputError):
        ApproximateEvent(value, 0.0, "zero-out")
    with pytest.raises(InputError):
        Event.from_json(TENTH.to_json().replace("0.1", str(value)))


@pytest.mark.parametrize("event", [None, 0.5, "gaussian", NOTHING])
def test_what_is_no_release_is_refused(path: Path, event: Event) -> None:
    with pytest.raises(InputError, match="no release"):
        Ledger(path, Budget(1.0)).charge(event, "?")


def test_events_of_another_adjacency_or_from_private_votes_are_refused(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    with pytest.raises(InputError, match="calibrated under replace-one"):
        ledger.charge(ApproximateEvent(0.1, 0.0, "replace-one"), "?")
    with pytest.raises(InputError, match="computed from private data"):
        ledger.charge(PateEvent((2.0,), (0.1,), "zero-out"), "?")
    assert not ledger.history()


def test_the_history_says_who_when_what(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.charge(TENTH, "mean of stars", who="ada", source="secure", data="abc")
    (entry,) = Ledger(path).history()
    assert (entry.who, entry.label, entry.source, entry.data) == (
        "ada",
        "mean of stars",
        "secure",
        "abc",
    )
    assert entry.at.startswith("20") and entry.at.endswith("+00:00")
    assert entry.event == TENTH


def test_changed_data_open_no_fresh_budget(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.charge(ApproximateEvent(0.9, 0.0, "zero-out"), "old table", data="one")
    with pytest.raises(BudgetError):
        ledger.charge(ApproximateEvent(0.2, 0.0, "zero-out"), "new table", data="two")


def test_memory_is_forgotten_and_a_file_is_not(path: Path) -> None:
    Ledger(None, Budget(1.0)).charge(TENTH, "x")
    assert not Ledger(None, Budget(1.0)).history()
    Ledger(path, Budget(1.0)).charge(TENTH, "x")
    assert len(Ledger(path).history()) == 1


@given(st.lists(st.floats(0.001, 0.5), max_size=12))
def test_the_total_never_passes_the_budget_whatever_is_asked(epsilons: list[float]) -> None:
    ledger = Ledger(None, Budget(1.0))
    granted = []
    for epsilon in epsilons:
        try:
            ledger.charge(ApproximateEvent(epsilon, 0.0, "zero-out"), "x")
            granted.append(ApproximateEvent(epsilon, 0.0, "zero-out"))
        except BudgetError:
            pass
    total = sum(granted[1:], granted[0]) if granted else NOTHING
    assert curve(total).epsilon_upper(1e-6) <= 1.0 + 1e-9
