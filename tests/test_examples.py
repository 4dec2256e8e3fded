"""Every example runs, and shows what it says."""

import runpy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_loop_changed_in_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        right = runpy.run_path(str(EXAMPLES / "private_loop.py"))["main"](steps=30)
    assert right > 0.6  # half is chance
    printed = capsys.readouterr().out
    assert "epsilon 2.99" in printed or "epsilon 3.00" in printed


def test_one_weight_over_many_trainings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "one-weight.png"
    slopes = runpy.run_path(str(EXAMPLES / "one_weight.py"))["main"](60, picture)
    assert picture.stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "epsilon 2.94" in printed and "not private -0.390" in printed
    # With noise the two means lie within the spread of either; without, they are 1.2 apart.
    apart = abs(np.mean(slopes["with"]) - np.mean(slopes["without"]))
    assert apart < 0.25
    assert min(np.std(slope) for slope in slopes.values()) > 0.05


def test_teachers_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    student = runpy.run_path(str(EXAMPLES / "teachers.py"))["main"]()
    printed = capsys.readouterr().out
    assert "first round: 60 answers" in printed and "for any votes" in printed
    right = int(printed.split("right on ")[1].split("%")[0])
    assert right > 50  # a tenth is chance
    assert student.weight.shape == (10, 64)
