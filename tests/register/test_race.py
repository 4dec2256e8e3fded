"""Many processes on several ledgers of the same records, killed or not, stay under one budget of all.

10 kills here; `python tests/register/racing.py kill FOLDER 50` makes more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .racing import CEILING, EACH

SCRIPT = Path(__file__).with_name("racing.py")
KILLS = 10


def outcomes(*arguments: object) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_eight_processes_on_three_ledgers_stay_under_the_budget_of_all(tmp_path: Path) -> None:
    (found,) = outcomes("race", tmp_path)
    assert found["spent"] <= found["total"] <= CEILING
    assert found["charged"] == found["entered"]
    assert sum(found["drawn"]) == sum(found["charged"])
    # Two ledgers count with their budgets; a second release of the third would bring 0.72.
    assert sorted(min(count, 2) for count in found["charged"]) == [1, 2, 2]
    assert found["total"] == pytest.approx(2 * EACH + 0.01, abs=1e-4)


def test_a_killed_process_leaves_no_draw_outside_the_register(tmp_path: Path) -> None:
    found = outcomes("kill", tmp_path, KILLS)
    assert len(found) == KILLS
    for each in found:
        assert each["spent"] <= each["total"]
        for entered, charged, drawn in zip(
            each["entered"], each["charged"], each["drawn"], strict=True
        ):
            assert entered >= charged >= drawn
    last = found[-1]
    assert sum(last["drawn"]) > KILLS  # the processes were busy when they were killed
    assert sum(last["entered"]) - sum(last["drawn"]) <= KILLS + 4  # a kill wastes one charge at most
