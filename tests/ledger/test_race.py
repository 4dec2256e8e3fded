"""Many processes never overspend by one event, on SQLite and on a real PostgreSQL server."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sourdine.accounting.filter import Filter
from sourdine.budget import Budget
from sourdine.errors import LedgerError
from sourdine.ledger import Ledger
from sourdine.ledger.store import Store

from .racing import BUDGET, EVENT, FIT

PROCESSES = 8
SCRIPT = Path(__file__).with_name("racing.py")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A PostgreSQL server of our own, on a free port, in a folder that is removed afterwards."""
    initdb = shutil.which("initdb") or next(
        (str(found) for found in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None
    )
    if initdb is None:
        pytest.skip("no PostgreSQL binaries (initdb) on this machine")
    pytest.importorskip("psycopg", reason="the PostgreSQL driver is not installed")
    user = {"user": "postgres"} if os.geteuid() == 0 else {}  # initdb refuses to run as root
    binaries = Path(initdb).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="sourdine-postgres-"))
    try:
        if user:
            try:
                shutil.chown(folder, "postgres")
            except LookupError:
                pytest.skip("initdb refuses root, and there is no user postgres to run it as")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cluster = folder / "data"
        run = {"capture_output": True, "cwd": folder, **user}
        subprocess.run(
            [binaries / "initdb", "-D", cluster, "-U", "sourdine", "-A", "trust"], check=True, **run
        )
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c max_connections=40"
        start = [binaries / "pg_ctl", "-D", cluster, "-o", options, "-w", "-l", folder / "log", "start"]
        subprocess.run(start, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)
        yield f"postgresql://sourdine@127.0.0.1:{port}/postgres"
        stop = [binaries / "pg_ctl", "-D", cluster, "-m", "immediate", "-w", "stop"]
        subprocess.run(stop, check=True, **run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def race(where: str, count: int = PROCESSES, rounds: int = 10**9) -> list[int]:
    """How many charges each process was granted."""
    command = [sys.executable, str(SCRIPT), where, str(count), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    found: list[int] = json.loads(done.stdout)
    return found


def test_the_budget_fits_exactly_500() -> None:
    found = Filter(BUDGET)
    assert found.allows(found.total(Counter({EVENT: FIT})))
    assert not found.allows(found.total(Counter({EVENT: FIT + 1})))


def test_eight_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite"
    ledger = Ledger(path, BUDGET)
    granted = race(str(path))
    assert sum(granted) == FIT == len(ledger.history())
    assert sum(count > 0 for count in granted) > 1  # it was a race


def test_eight_processes_share_a_server(postgres: str) -> None:
    ledger = Ledger(postgres, BUDGET)
    granted = race(postgres)
    assert sum(granted) == FIT == len(ledger.history())
    assert sum(count > 0 for count in granted) > 1


def test_a_charge_waits_for_the_servers_disk(postgres: str) -> None:
    """Also where the server was told not to: else a crash could forget what had been drawn."""
    careless = f"{postgres}?options=-csynchronous_commit%3Doff"
    with Store(careless).reading() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "off"
    with Store(careless).writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_a_ledger_on_a_server_is_the_same_for_everyone(postgres: str) -> None:
    Ledger(postgres, BUDGET)
    with pytest.raises(LedgerError, match="unit example, not user"):
        Ledger(postgres, Budget(1.0, 1e-6, unit="user"))
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(postgres.replace("/postgres", "/nowhere"), BUDGET)


def test_everybody_may_start_the_same_ledger_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    assert race(str(path), 6, rounds=1) == [1] * 6
    assert len(Ledger(path).history()) == 6
    assert [found.name for found in tmp_path.iterdir()] == ["new.sqlite"]
