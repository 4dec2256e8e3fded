"""The histogram of exposures: every secret is drawn, on the same axes, with the line of the unknown."""

import math
from pathlib import Path

import pytest
from matplotlib.text import Text

from sourdine.errors import InputError
from sourdine.report import style
from sourdine.report.exposure import Exposures, draw, exposures

MOST = math.log2(10**6)
SAMPLE = Exposures(
    {50: [MOST, MOST, 18.2], 0: [0.1, 1.9, 0.4], 10: [9.0, 12.0, 14.5], 1: [0.0, 3.0, 5.5]},
    MOST,
    "A model",
)


def test_every_secret_stands_in_a_bar_of_its_row() -> None:
    with style.house():
        plots = exposures(SAMPLE).axes
    assert len(plots) == 4
    for plot, times in zip(plots, (0, 1, 10, 50), strict=True):
        bars = [bar for bar in plot.patches if hasattr(bar, "get_height")]
        assert sum(bar.get_height() for bar in bars) == len(SAMPLE.bits[times])
    assert len({plot.get_ylim() for plot in plots}) == len({plot.get_xlim() for plot in plots}) == 1


def test_rows_are_named_and_nothing_is_cut() -> None:
    with style.house():
        figure = exposures(SAMPLE)
        figure.canvas.draw()
        labels = [text for plot in figure.axes for text in plot.texts]
        names = [label.get_text() for label in labels]
        assert names == ["never put in", "put in once", "repeated 10 times", "repeated 50 times"]
        assert all(Text.get_window_extent(label).x1 < figure.bbox.x1 for label in labels)
        said = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "Repeated 50 times, a secret gives away 19.9 of its 19.9 bits" in said
    assert "A model; 3 planted secrets in each row" in said


def test_files(tmp_path: Path) -> None:
    for name in ("a.png", "a.svg", "b.svg"):
        draw(SAMPLE, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("most", [0.5, 1.0, 10.0, 33.2])
def test_any_number_of_bits(most: float) -> None:
    with style.house():
        (plot,) = exposures(Exposures({1: [0.0, most]}, most, "A model")).axes
    assert plot.get_xlim()[1] == math.ceil(most)


@pytest.mark.parametrize(
    ("bits", "most", "message"),
    [
        ({}, 10.0, "nothing to draw"),
        ({1: []}, 10.0, "nothing to draw"),
        ({1: [10.5]}, 10.0, "outside of 0 to 10"),
        ({1: [-0.1]}, 10.0, "outside of 0 to 10"),
        ({1: [math.nan]}, 10.0, "outside of 0 to 10"),
        ({1: [0.0]}, 0.0, "most is 0.0"),
    ],
)
def test_what_cannot_be_drawn(bits: dict[int, list[float]], most: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Exposures(bits, most, "A model")
