"""What a ledger refuses to be opened or charged as: other promises, damage, races, full disks."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sourdine.accounting.filter import Filter
from sourdine.budget import Budget
from sourdine.errors import BudgetError, EventFileError, InputError, LedgerError
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    ComposedEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PoissonEvent,
)
from sourdine.ledger import Ledger

TENTH = ApproximateEvent(0.1, 0.0, "zero-out")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sqlite"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Budget(1.0, unit="user"), "unit example, not user"),
        (Budget(1.0, adjacency="add-remove"), "adjacency zero-out, not add-remove"),
        (Budget(2.0), "epsilon 1.0, not 2.0"),
        (Budget(1.0, 1e-9), "delta 1e-06, not 1e-09"),
    ],
)
def test_another_promise_is_refused(path: Path, other: Budget, said: str) -> None:
    Ledger(path, Budget(1.0))
    with pytest.raises(LedgerError, match=said):
        Ledger(path, other)


def test_another_population_is_refused(path: Path) -> None:
    Ledger(path, Budget(1.0), population="patients of 2024")
    assert Ledger(path).population == "patients of 2024"
    with pytest.raises(LedgerError, match=r"patients of 2024.*not 'customers'"):
        Ledger(path, population="customers")


def test_no_ledger_and_no_budget(path: Path) -> None:
    with pytest.raises(LedgerError, match="start one with a budget"):
        Ledger(path)
    assert not path.exists()


def test_a_lazy_ledger_is_made_by_its_first_charge(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0), lazy=True)
    assert ledger.spent().left == 1.0 and ledger.history() == []
    with pytest.raises(BudgetError):
        ledger.charge(ApproximateEvent(2.0, 0.0, "zero-out"), "too much")
    with pytest.raises(InputError, match="nothing was ever reserved"):
        ledger.settle(1, NOTHING, "crash")
    assert not path.exists()
    ledger.charge(TENTH, "x")
    assert len(Ledger(path).history()) == 1 == len(ledger.history())


def test_a_lazy_ledger_that_somebody_else_made_otherwise(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0), lazy=True)
    Ledger(path, Budget(2.0))
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"epsilon 2\.0, not 1\.0"):
            ledger.charge(TENTH, "x")


def test_releases_with_a_delta_have_a_share_of_it(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0, 1e-6))
    words = ApproximateEvent(0.1, 1e-7, "zero-out")
    ledger.charge(words, "words")
    spent = ledger.spent()
    assert (spent.delta, spent.delta_left) == pytest.approx((1e-7, 1.5e-7))
    ledger.charge(words, "words")
    with pytest.raises(BudgetError, match="its delta of 1e-07 is more than the 5e-08 that"):
        ledger.charge(words, "words")
    ledger.charge(TENTH, "a pure one still fits")


def test_a_release_whose_delta_takes_it_all_leaves_nothing(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0, 1e-6))
    ledger.charge(ApproximateEvent(0.1, 9e-7, "zero-out"), "alone it fits")
    assert ledger.spent().left == 0.0
    with pytest.raises(BudgetError):
        ledger.charge(TENTH, "anything")


@pytest.mark.parametrize("act", [lambda: Ledger(3), lambda: Ledger(None, 1.0)])
def test_what_is_no_ledger_and_no_budget(act) -> None:
    with pytest.raises(InputError, match="opened by its path"):
        act()


def test_a_tiny_charge_is_never_a_refund(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.charge(ApproximateEvent(0.3, 0.0, "zero-out"), "real")
    before = ledger.spent().left
    for event in (
        10**6 * ApproximateEvent(1.01e-12, 0.0, "zero-out"),
        10**6 * DiscreteLaplaceEvent(1.01e-12, 2, "zero-out"),
        10**6 * PoissonEvent(1e-10, GaussianEvent(1.0)),
    ):
        ledger.charge(event, "tiny")
        assert ledger.spent().left <= before
    with pytest.raises(BudgetError):
        ledger.charge(10**15 * ApproximateEvent(1.01e-12, 0.0, "zero-out"), "more than can be told")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger(tmp_path / "none" / "a.sqlite", Budget(1.0))


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0" + bytes(4000)])
def test_a_file_that_is_no_ledger_is_no_fresh_start(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"no ledger|damaged"):
        Ledger(path, Budget(1.0))
    assert path.read_bytes() == content


def test_a_ledger_that_was_cut_short(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    for _ in range(30):
        ledger.charge(ApproximateEvent(0.01, 0.0, "zero-out"), "x" * 300)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(LedgerError, match=r"damaged|no ledger|missing"):
        Ledger(path).charge(TENTH, "x")


def test_a_newer_ledger(path: Path) -> None:
    Ledger(path, Budget(1.0))
    _sql(path, "update sourdine_ledger set version = 2")
    with pytest.raises(LedgerError, match="version 2, newer than the version 1"):
        Ledger(path)


@pytest.mark.parametrize(
    "damage",
    [
        "delete from sourdine_entry where id = 2",
        "delete from sourdine_entry where id = 3",
        "update sourdine_entry set text = replace(text, '0.1', '0.01') where id = 1",
        "update sourdine_entry set refers = 1, kind = 'settle' where id = 3",
        "update sourdine_ledger set entries = 2",
        "update sourdine_ledger set epsilon = 10",
        "update sourdine_ledger set population = 'others'",
    ],
)
def test_a_missing_or_altered_line_is_noticed(path: Path, damage: str) -> None:
    ledger = Ledger(path, Budget(1.0))
    for _ in range(3):
        ledger.charge(TENTH, "x")
    _sql(path, damage)
    for use in (
        lambda: Ledger(path).history(),
        lambda: Ledger(path).charge(TENTH, "x"),
        Ledger(path).spent,
    ):
        with pytest.raises(LedgerError, match="missing or w"):
            use()


def test_a_deleted_ledger_is_no_fresh_start(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    ledger.charge(TENTH, "x")
    path.unlink()
    for act in (lambda: ledger.charge(TENTH, "y"), ledger.spent, ledger.history):
        with pytest.raises(LedgerError, match="cannot be opened"):
            act()
    assert not path.exists()


def test_a_ledger_stays_the_same_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "é #1?").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "é #1?")
    ledger = Ledger("a b%20.sqlite", Budget(1.0))
    monkeypatch.chdir(tmp_path / "other")
    ledger.charge(TENTH, "x")
    assert len(Ledger(tmp_path / "é #1?" / "a b%20.sqlite").history()) == 1
    assert not list((tmp_path / "other").iterdir())


def test_another_file_in_its_place_stays_refused(path: Path, tmp_path: Path) -> None:
    ledger = Ledger(path, Budget(10.0))
    ledger.charge(TENTH, "x")
    ledger.spent()
    for number, budget in enumerate((Budget(1.0), Budget(10.0))):
        other = tmp_path / f"other{number}.sqlite"
        Ledger(other, budget).charge(TENTH, "y")
        path.write_bytes(other.read_bytes())
        for _ in range(2):
            with pytest.raises(LedgerError, match="not the one that was opened"):
                ledger.charge(TENTH, "z")


def test_an_interrupt_while_reading_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Ledger(path, Budget(1.0))
    ledger = Ledger(path)
    other.charge(ApproximateEvent(0.9, 0.0, "zero-out"), "x")
    with monkeypatch.context() as patch:

        def stop(self: Filter, event: Event) -> None:
            raise KeyboardInterrupt

        patch.setattr(Filter, "cost", stop)
        with pytest.raises(KeyboardInterrupt):
            ledger.spent()
    assert ledger.spent().epsilon == pytest.approx(0.9)
    with pytest.raises(BudgetError):
        ledger.charge(ApproximateEvent(0.2, 0.0, "zero-out"), "y")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_threads_share_a_ledger(path: Path, kept: bool, lazy: bool) -> None:
    ledger = Ledger(path if kept else None, Budget(1.0), lazy=lazy)
    granted: list[int] = []

    def work() -> None:
        for _ in range(8):
            with contextlib.suppress(BudgetError):
                granted.append(ledger.charge(ApproximateEvent(0.02, 0.0, "zero-out"), "x").id)
            ledger.history()
            ledger.spent()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == list(range(1, len(granted) + 1))
    assert len(ledger.history()) == len(granted) == ledger.spent().releases >= 50


@pytest.mark.parametrize(
    "act",
    [
        lambda ledger: ledger.charge(TENTH, 5),
        lambda ledger: ledger.charge(TENTH, "x", who=7),
        lambda ledger: ledger.charge(TENTH, "x", data=1.5),
        lambda ledger: ledger.charge(TENTH, "\ud800"),
        lambda ledger: ledger.charge(TENTH, "nul \0"),
    ],
)
def test_only_plain_text_goes_into_the_history(path: Path, act) -> None:
    ledger = Ledger(path, Budget(1.0))
    with pytest.raises(InputError, match="must be plain text"):
        act(ledger)
    assert Ledger(path).charge(ComposedEvent(((TENTH, 2.0),)), "y").id == 1
    assert len(Ledger(path).history()) == 1


def test_a_ledger_made_meanwhile_is_seen(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0), lazy=True)
    Ledger(path, Budget(1.0)).charge(TENTH, "x")
    assert ledger.spent().releases == 1 and len(ledger.history()) == 1
    third = Ledger(path.with_name("b.sqlite"), Budget(1.0), lazy=True, population="patients")
    Ledger(path.with_name("b.sqlite"), Budget(1.0), population="others")
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"about 'others', not 'patients'"):
            third.charge(TENTH, "x")


def test_an_older_copy_put_back_is_noticed_by_whoever_saw_the_newer(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    old = path.read_bytes()
    ledger.charge(TENTH, "x")
    ledger.spent()
    path.write_bytes(old)
    with pytest.raises(LedgerError, match="older copy"):
        ledger.charge(TENTH, "x")


def test_a_locked_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sourdine.ledger import store

    monkeypatch.setattr(store, "_WAIT", 0.2)
    ledger = Ledger(path, Budget(1.0))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerError, match="locked by another process"):
        ledger.charge(TENTH, "x")
    other.execute("ROLLBACK")
    other.close()
    assert not ledger.history()


def test_a_read_only_ledger_can_be_read_but_not_charged(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "a.sqlite"
    Ledger(path, Budget(1.0)).charge(TENTH, "x")
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    if os.geteuid() != 0:
        assert len(Ledger(path).history()) == 1
        with pytest.raises(LedgerError, match="read-only"):
            Ledger(path).charge(TENTH, "y")
        return
    # For root nothing is read-only, so the driver is told to open it so.
    from sourdine.ledger import store

    ledger = Ledger(path)
    ledger._store._url = ledger._store._url.set(query={"mode": "ro", "uri": "true"})
    ledger._store._engine = ledger._store._connected()
    assert isinstance(ledger._store, store.Store)
    assert len(ledger.history()) == 1
    with pytest.raises(LedgerError, match="read-only"):
        ledger.charge(TENTH, "y")


def test_a_full_disk_records_nothing(path: Path) -> None:
    ledger = Ledger(path, Budget(1.0))
    with pytest.MonkeyPatch.context() as patch:
        from sourdine.ledger import store

        def full(connection: sqlite3.Connection, _: object) -> None:
            prepared(connection, _)
            connection.execute("PRAGMA max_page_count = 1")

        prepared = store._prepare
        patch.setattr(store, "_prepare", full)
        ledger._store._engine = ledger._store._connected()
        with pytest.raises(LedgerError, match="disk is full"):
            for _ in range(50):
                ledger.charge(ApproximateEvent(0.001, 0.0, "zero-out"), "x" * 3000)
    ledger._store._engine = ledger._store._connected()
    assert ledger.spent().releases == len(ledger.history())


@pytest.mark.parametrize(
    ("where", "said"),
    [("mysql://x/y", "not mysql"), ("://", "no valid URL"), ("http://a/b", "not http")],
)
def test_other_databases_are_refused(where: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said):
        Ledger(where, Budget(1.0))


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(LedgerError, match="cannot be reached") as error:
        Ledger("postgresql://ada:secret@127.0.0.1:1/none", Budget(1.0))
    assert "secret" not in str(error.value)


def test_a_forked_child_uses_a_connection_of_its_own(path: Path) -> None:
    code = (
        "import os, sys\nfrom sourdine.budget import Budget\nfrom sourdine.ledger import Ledger\n"
        "from sourdine.events import ApproximateEvent\n"
        "ledger = Ledger(sys.argv[1], Budget(1.0))\ntenth = ApproximateEvent(0.1, 0.0, 'zero-out')\n"
        "ledger.charge(tenth, 'parent')\nchild = os.fork()\n"
        "ledger.charge(tenth, 'child' if child == 0 else 'parent again')\n"
        "if child: os.waitpid(child, 0); print(len(ledger.history()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "3", done.stderr


def test_unknown_events_in_a_newer_history(path: Path) -> None:
    Ledger(path, Budget(1.0))
    from sourdine.ledger import store
    from sourdine.ledger.record import Chain, Entry

    entry = Entry(1, "charge", TENTH.to_json().replace("approximate", "from-the-future"), "x", "y", "z")
    with store.Store(path).writing() as connection:
        start = Chain(store.fixed(store.read_settings(connection))).head
        store.write_entry(connection, entry, entry.hash(start))
    with pytest.raises(EventFileError, match="unknown kind 'from-the-future'"):
        Ledger(path).charge(DiscreteLaplaceEvent(0.1, 1, "zero-out"), "x")


def _sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()
