"""Scripts of benchmarks/engine that reach into the engine run: time on a GPU is too dear to find out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "engine"
SHORT = ("--warm", "0", "--rounds", "1", "--steps", "1")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("parity.py", "--graphs", "traced", "--match", "bare-matrix-6x3"), r"1 cases, 0 did not run, 0 bad"),
        (("poisson.py", "--size", "tiny", "--graphs", "traced", "--texts", "same", *SHORT), r"Poisson lots.*\d"),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) else "",
)  # fmt: skip
def test_it_runs(command: tuple[str, ...], said: str) -> None:
    script, *given = command
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout), done.stdout
