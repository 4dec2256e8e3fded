"""Two processes train as one: the same sums, one noise, one charge, one folder.

What the processes do stands in together.py. A test that takes longer than a minute has hung: every
exchange ends then.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import ledger

from sourdine.ledger import Ledger

FALSE_ALARM = 1e-6
SCRIPT = Path(__file__).with_name("together.py")
Together = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as started:
        yield started


@pytest.fixture
def together(server: subprocess.Popen[str], tmp_path: Path) -> Together:
    def run(name: str, count: int = 2, ends: list[int] | None = None) -> list[Any]:
        """What each process found; None for one that did not come to its end."""
        assert server.stdin is not None
        assert server.stdout is not None
        for path in tmp_path.glob(f"{name}.*"):
            path.unlink()
        server.stdin.write(f"{name} {count} {tmp_path}\n")
        server.stdin.flush()
        ended = json.loads(server.stdout.readline())
        assert ended == ([0] * count if ends is None else ends)
        found = [tmp_path / f"{name}.{rank}" for rank in range(count)]
        return [json.loads(path.read_text()) if path.exists() else None for path in found]

    return run


def test_two_processes_are_one(together: Together) -> None:
    """Lots given, no noise; one lot is empty and one lies in one process only."""
    [alone] = together("given_lots", 1)
    first, second = together("given_lots")
    assert first == second  # though they started with other weights
    by_graphs, others = together("given_lots_by_graphs")
    assert by_graphs == others
    for one, two, three in zip(alone, first, by_graphs, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.tensor(one), torch.tensor(three), rtol=1e-5, atol=1e-6)


def test_noise_is_added_once(together: Together) -> None:
    """101,000 draws: their deviation is off by z / sqrt(2 n), z = 4.9 for the false alarm."""
    off = math.sqrt(2) * 4.9 / math.sqrt(2 * 101_000)
    [alone], (first, second) = together("only_noise", 1), together("only_noise")
    assert alone == pytest.approx(1.0, abs=off)
    assert first == second == pytest.approx(1.0, abs=off)
    assert together("noise_everywhere")[0] > 1 + off  # one in each process is caught


def test_no_bits_below_the_noise_are_released(together: Together) -> None:
    """A process that adds its sum after the rounding shows it there."""
    assert together("on_the_grid") == [0.0, 0.0]


def test_empty_shares_stay_in_step(together: Together) -> None:
    first, second = together("empty")
    assert first == second


def test_lots_are_drawn_apart_though_the_source_is_alike(together: Together) -> None:
    first, second = together("seeded_lots")
    assert first != second


def test_one_reservation_in_total(together: Together, tmp_path: Path) -> None:
    first, second = together("charged")
    assert first == second
    assert [x.kind for x in Ledger(tmp_path / "book.sqlite").history()] == ["reserve", "settle"]


def test_a_refusal_is_raised_in_all(together: Together) -> None:
    assert together("refused") == [["BudgetError", "BudgetError"]] * 2


def test_what_cannot_be_trained_together_is_refused(together: Together) -> None:
    for found in together("other_kinds"):
        wrapped, sharded, lots = found
        assert "give the engine the plain model" in wrapped
        assert "split over several processes (FSDP2), and a norm needs the whole of it" in sharded
        assert "several processes draw Poisson lots only" in lots


def test_a_process_that_fails_does_not_leave_the_other_waiting(together: Together) -> None:
    """The connection is lost, and the next exchange says so."""
    (error, seconds), nothing = together("fails", ends=[0, 7])
    assert nothing is None
    assert error in ("RuntimeError", "DistBackendError", "DistNetworkError")
    assert seconds < 30


@pytest.mark.parametrize("dies", ["0", "1", "0 1"])
def test_a_killed_run_of_two_goes_on(dies: str, together: Together, tmp_path: Path) -> None:
    together("begin")
    assert len([x for x in (tmp_path / "home" / "keys").iterdir() if x.suffix != ".steps"]) == 2
    for name in ("run", "home"):
        shutil.copytree(tmp_path / name, tmp_path / f"copy of {name}")
    (tmp_path / "die").write_text(dies)
    together("resume", ends=[-9 if str(rank) in dies else 1 for rank in range(2)])
    (tmp_path / "die").unlink()
    first, second = together("resume")
    killed = ledger(tmp_path / "run")
    assert list((tmp_path / "home" / "keys").iterdir()) == []
    for name in ("run", "home"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / f"copy of {name}").rename(tmp_path / name)
    assert together("resume") == [first, second] == [first, first]
    assert ledger(tmp_path / "run") == killed
    assert [entry[0] for entry in killed] == ["reserve", "settle"]


def test_locks_and_missing_keys_are_known_to_all(together: Together, tmp_path: Path) -> None:
    first, second = together("in_use")
    assert first == second
    message, there, _ = first
    assert "in use by another run" in message
    assert there
    assert [entry[0] for entry in ledger(tmp_path / "run")] == ["reserve", "charge", "settle"]
