"""The frontier: readable, within its bounds, honest about what has no privacy."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from sourdine.errors import InputError
from sourdine.report import style
from sourdine.report.frontier import Frontier, Point, draw, frontier, spread

NAMES = ("head", "bitfit", "lora", "prompt", "all", "output", "input")
BUDGETS = (1.0, 2.0, 5.0, math.inf)


def sample(budgets: tuple[float, ...] = BUDGETS) -> Frontier:
    lines = {
        name: [Point(e, 0.8 + 0.002 * at, 0.79, 0.83) for e in budgets] for at, name in enumerate(NAMES)
    }
    return Frontier(
        "accuracy",
        lines,
        model="a model",
        delta=1e-6,
        unit="user",
        trained=2400,
        tested=600,
        seeds=3,
        epsilon=20.541,
    )


def texts(found: Frontier) -> str:
    with style.house():
        return "\n".join(text.get_text() for text in frontier(found).texts)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_labels_stand_apart_in_order_and_inside(wanted: list[float]) -> None:
    placed = spread(sorted(wanted), 0.055)
    assert all(b - a >= 0.055 - 1e-9 for a, b in itertools.pairwise(placed))
    assert placed[0] >= -1e-9 and placed[-1] <= 1 + 1e-9


def test_what_always_one_answer_reaches_is_a_dashed_line() -> None:
    found = replace(sample(), always=0.612)
    assert "always answering the most frequent class, 0.612" in texts(found)
    with style.house():
        low, _ = frontier(found).axes[0].get_ylim()
    assert low < 0.612 and "always answering" not in texts(sample())


def test_labels_with_room_stay_where_they_belong() -> None:
    assert spread([0.1, 0.5, 0.9], 0.055) == pytest.approx([0.1, 0.5, 0.9])


def test_no_two_labels_overlap_and_none_is_cut() -> None:
    with style.house():
        figure = frontier(sample())
        figure.canvas.draw()
        plot = figure.axes[0]
        labels = [text for text in plot.texts if text.get_text() in NAMES]
        boxes = [Text.get_window_extent(text) for text in labels]  # without its line
        assert len(boxes) == len(NAMES)
        assert all(not a.overlaps(b) for at, a in enumerate(boxes) for b in boxes[at + 1 :])
        assert max(box.x1 for box in boxes) < figure.bbox.x1
        assert len({(text.get_color()) for text in labels}) == len(NAMES)


def test_the_caption_says_what_was_done() -> None:
    said = texts(sample())
    for part in (
        "a model",
        "2,400",
        "600",
        "3 runs",
        "noise in the metric included",
        "20.55",
        "NOT PRIVATE",
    ):
        assert part in said.replace("\n", " "), part


def test_only_private_runs_are_not_called_otherwise() -> None:
    assert "NOT PRIVATE" not in texts(sample((1.0, 2.0)))
    assert "ε ≤" not in texts(replace(sample((math.inf,)), epsilon=None))


@pytest.mark.parametrize("budgets", [(1.0,), (math.inf,), (1.0, math.inf), (0.5, 8.0)])
def test_any_set_of_budgets_is_drawn(budgets: tuple[float, ...]) -> None:
    with style.house():
        plot = frontier(sample(budgets)).axes[0]
        ticks = [tick.get_text() for tick in plot.get_xticklabels()]
    assert ticks == ["no privacy" if math.isinf(b) else f"{b:g}" for b in budgets]


def test_files(tmp_path: Path) -> None:
    draw(sample(), tmp_path / "a.png")
    draw(sample(), tmp_path / "a.svg")
    draw(sample(), tmp_path / "b.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        replace(sample(), lines={})
