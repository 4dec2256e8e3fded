"""A process killed at any instant never leaves the record below what was released.

20 kills here; benchmarks/ledger has 200.
"""

import json
import subprocess
import sys
from pathlib import Path

from sourdine.ledger import Ledger

from .killing import WARM

KILLS = 20
SCRIPT = Path(__file__).with_name("killing.py")


def test_a_killed_process_never_under_reports(tmp_path: Path) -> None:
    path, released = tmp_path / "a.sqlite", tmp_path / "released"
    command = [sys.executable, str(SCRIPT), str(path), str(released), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == KILLS
    for recorded, drawn, known in outcomes:
        assert recorded >= drawn
        assert known
    recorded, drawn, _ = outcomes[-1]
    assert drawn > KILLS  # the processes were busy when they were killed
    assert recorded - drawn <= KILLS + WARM  # a kill wastes one charge at most
    assert Ledger(path).spent().releases == recorded
