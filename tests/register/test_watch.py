"""What is entered before a charge, what the owner is told, and what a budget of all refuses."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.events import ApproximateEvent, GaussianEvent, LaplaceEvent
from sourdine.home import home
from sourdine.ledger import Ledger
from sourdine.register import Line, Total, identify, open_book, sum_up, watch
from sourdine.register.book import FILE

TABLE = {"name": [f"person {n}" for n in range(100)], "age": list(range(100))}
OTHERS = {"name": [f"other {n}" for n in range(100)], "age": list(range(100))}
ONE = ApproximateEvent(1.0, 0.0, "zero-out")


class Run:
    """A ledger in memory whose charges are about a table, and what its owner heard."""

    def __init__(self, budget: Budget | None = None, table=TABLE, **options) -> None:
        self.heard: list[str] = []
        own = Ledger(None, budget or Budget(2))
        tables = [] if table is None else [table]
        self.ledger = watch(own, tables, tell=self.heard.append, **options)

    def charge(self, event=ONE, label="a run"):
        return self.ledger.charge(event, label)


def lines(table=TABLE) -> list[Line]:
    records = identify(table)
    assert records is not None
    with open_book() as book:
        return book.lines(records)


def totals(table=TABLE) -> list[Total]:
    return sum_up(lines(table))


def test_the_first_charge_says_nothing_and_the_second_names_the_first():
    first, second = Run(), Run(Budget(3))
    first.charge()
    assert first.heard == []
    second.charge(ApproximateEvent(1.5, 0.0, "zero-out"))
    (said,) = second.heard
    assert said.startswith("these records were charged epsilon 1 on 20")
    assert said.endswith("with this run at most 2.5 in all.")


def test_a_lone_release_counts_by_its_own_curve_and_more_by_the_budget():
    run = Run(Budget(8))
    run.charge(GaussianEvent(4.0))
    (line,) = lines()
    assert line.budget.epsilon == run.ledger.spent().epsilon < 2
    run.charge(GaussianEvent(4.0))
    (line,) = lines()
    assert (line.releases, line.budget.epsilon) == (2, 8)


def test_epsilons_and_deltas_add_up():
    Run(Budget(2, 1e-6)).charge()
    Run(Budget(2, 1e-5)).charge()
    (total,) = totals()
    assert total.budget.epsilon == pytest.approx(2.0, rel=1e-3)
    assert total.budget.delta == pytest.approx(1.1e-5)


def test_a_release_that_costs_no_epsilon_at_its_delta_keeps_the_register_readable():
    Run().charge(ApproximateEvent(1e-9, 0.0, "zero-out"))
    (line,) = lines()
    assert 0 < line.budget.epsilon <= 1e-6


def test_other_units_and_adjacencies_are_listed_and_not_added():
    Run().charge()
    Run(Budget(2, unit="user")).charge()
    other = Run(Budget(2, adjacency="replace-one"))
    other.charge(LaplaceEvent(4.0))
    assert len(lines()) == len(totals()) == 3
    assert "other units and adjacencies are not added" in other.heard[0]


def test_other_records_are_nobodys_business():
    Run().charge()
    other = Run(table=OTHERS)
    other.charge()
    assert other.heard == []
    assert len(lines(OTHERS)) == 1


def test_a_table_that_holds_half_of_the_rows_counts_as_the_same_records():
    Run().charge()
    half = {name: [*cells[:50], *OTHERS[name][:50]] for name, cells in TABLE.items()}
    run = Run(table=half)
    run.charge()
    assert "about 50% of the rows" in run.heard[0]
    assert "at most 2 in all" in run.heard[1]
    assert len(lines()) == 2


def test_a_table_that_shares_less_than_half_does_not():
    Run().charge()
    third = {name: [*cells[:30], *OTHERS[name][:70]] for name, cells in TABLE.items()}
    run = Run(table=third)
    run.charge()
    assert run.heard == []


def test_a_run_that_names_no_table_is_listed_as_not_compared():
    Run(table=None).charge()
    assert lines() == []
    with open_book() as book:
        assert len(book.not_compared()) == 1


def test_a_refused_charge_leaves_nothing():
    run = Run(Budget(0.5))
    with pytest.raises(BudgetError, match="over the budget"):
        run.charge()
    assert lines() == []
    assert run.ledger.history() == []


def test_a_charge_that_broke_off_stays_entered():
    """Nobody knows whether the ledger has written: more is counted, never less."""

    class Broken(Ledger):
        def _write(self, connection, entry):
            raise OSError("the disk is gone")

    ledger = watch(Broken(None, Budget(2)), [TABLE], tell=lambda sentence: None)
    with pytest.raises(OSError, match="gone"):
        ledger.charge(ONE, "x")
    assert len(lines()) == 1


def test_the_register_is_written_before_the_ledger():
    seen = []

    class Late(Ledger):
        def _write(self, connection, entry):
            import sqlite3

            with sqlite3.connect(f"file:{home() / FILE}?mode=ro", uri=True) as db:
                seen.append(db.execute("SELECT count(*) FROM charge").fetchone()[0])
            super()._write(connection, entry)

    watch(Late(None, Budget(2)), [TABLE], tell=lambda sentence: None).charge(ONE, "x")
    assert seen == [1]


def test_a_budget_of_all_holds_over_all_ledgers_and_stays():
    Run(budget_of_all=1.7).charge()
    later = Run()  # who asks for none is under it all the same
    with pytest.raises(BudgetError, match=r"come to epsilon=2, over their budget of all of 1\.7"):
        later.charge()
    assert later.ledger.history() == []
    later.charge(ApproximateEvent(0.5, 0.0, "zero-out"))
    with pytest.raises(BudgetError, match=r"set to 1\.7 and cannot grow to 3"):
        Run(budget_of_all=3).charge(ApproximateEvent(0.1, 0.0, "zero-out"))


def test_a_budget_of_all_may_become_smaller():
    Run(budget_of_all=1.7).charge()
    Run(budget_of_all=1.2).charge(ApproximateEvent(0.1, 0.0, "zero-out"))
    with pytest.raises(BudgetError, match=r"over their budget of all of 1\.2"):
        Run().charge(ApproximateEvent(0.15, 0.0, "zero-out"))


def test_a_second_release_brings_the_whole_budget_of_its_ledger():
    run = Run(Budget(2), budget_of_all=1.5)
    run.charge()
    with pytest.raises(BudgetError, match="come to epsilon=2"):
        run.charge(ApproximateEvent(0.1, 0.0, "zero-out"))


def test_a_budget_of_all_is_per_unit_and_adjacency():
    Run(budget_of_all=5).charge()
    with pytest.raises(BudgetError, match="per example under zero-out"):
        Run(Budget(1, unit="user")).charge()


def test_a_budget_of_all_has_to_know_whose_records_these_are():
    with pytest.raises(InputError, match="whose records"):
        Run(table=None, budget_of_all=5).charge()
    with pytest.raises(InputError, match="whose records"):
        Run(table="nowhere.csv", budget_of_all=5).charge()


def test_an_overlapping_table_is_under_the_same_budget_of_all():
    Run(budget_of_all=1.5).charge()
    most = {name: cells[:90] for name, cells in TABLE.items()}
    with pytest.raises(BudgetError, match="budget of all"):
        Run(table=most).charge()


def test_only_the_owner_reads_the_register():
    Run().charge()
    assert stat.S_IMODE((home() / FILE).stat().st_mode) == 0o600


def test_a_damaged_register_stops_the_charge_in_one_sentence():
    Run().charge()
    (home() / FILE).write_bytes(b"not a database, but long enough to be taken for one" * 40)
    run = Run(Budget(9))
    with pytest.raises(InputError, match="damaged"):
        run.charge()
    assert run.ledger.history() == []


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path):
    table = tmp_path / "a.csv"
    table.write_text("a\n" + "".join(f"x{n}\n" for n in range(30)))
    Run(table=table).charge()
    table.write_text("a\n" + "".join(f"y{n}\n" for n in range(30)))
    run = Run(table=table)
    run.charge()
    assert run.heard == []
