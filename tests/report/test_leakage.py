"""Figures of a membership attack: what is drawn, what is said, what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sourdine.errors import InputError
from sourdine.report import style
from sourdine.report.leakage import Curve, Density, Leakage, densities, draw, roc

NAMES = (
    "LiRA online",
    "LiRA offline",
    "RMIA online",
    "RMIA offline",
    "shadow classifier",
    "loss",
    "zlib",
)


def sample(count: int = len(NAMES), others: int = 1000) -> Leakage:
    fpr = np.unique(np.geomspace(1, others, 200).round()) / others
    curves, shapes = {}, {}
    grid = np.linspace(-3, 4, 50)
    for place, name in enumerate(NAMES[:count]):
        tpr = fpr ** (0.3 + 0.1 * place)
        curves[name] = Curve(fpr, tpr, 0.9 * tpr, np.minimum(1, 1.1 * tpr), 0.9 - 0.05 * place)
        shapes[name] = Density(grid, np.exp(-((grid - 1) ** 2)), np.exp(-(grid**2)))
    return Leakage(
        curves,
        shapes,
        best=NAMES[0],
        members=900,
        others=others,
        confidence=0.95,
        trusted=10 / others,
        finding="The model gives its members away",
        caption="Blind baseline: AUC 0.501.",
    )


def test_every_attack_and_chance_are_named_and_none_is_cut() -> None:
    with style.house():
        figure = roc(sample())
        figure.canvas.draw()
        plot = figure.axes[0]
        named = [text for text in plot.texts if text.get_text()]
        said = "\n".join(text.get_text() for text in named)
        assert all(name in said for name in (*NAMES, "chance", "too few others to tell"))
        boxes = [text.get_window_extent() for text in named]
        assert all(not a.overlaps(b) for at, a in enumerate(boxes) for b in boxes[at + 1 :])
        assert max(box.x1 for box in boxes) < figure.bbox.x1
        assert plot.get_xscale() == plot.get_yscale() == "log"


def test_the_chance_line_is_the_diagonal() -> None:
    with style.house():
        line = roc(sample()).axes[0].lines[0]
    assert line.get_xdata() == pytest.approx(line.get_ydata())


def test_the_captions_say_what_was_done() -> None:
    with style.house():
        said = " ".join(text.get_text() for text in roc(sample()).texts).replace("\n", " ")
        beside = " ".join(text.get_text() for text in densities(sample()).texts).replace("\n", " ")
    for part in ("900 members", "1,000 others", "95%", "LiRA online", "0.501", "by itself"):
        assert part in said
    assert "smoothed" in beside and "Band" not in beside


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7])
def test_any_number_of_attacks_is_drawn(count: int, tmp_path: Path) -> None:
    with style.house():
        figure = densities(sample(count))
        assert len(figure.axes) == count
        figure.canvas.draw()
        draw(figure, tmp_path / "d.png")
        draw(roc(sample(count)), tmp_path / "r.svg")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "r.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_enough_others_leave_no_grey_field() -> None:
    with style.house():
        texts = [text.get_text() for text in roc(replace(sample(), trusted=1e-4)).axes[0].texts]
    assert "too few others to tell" not in texts


def test_a_rate_of_zero_can_be_drawn() -> None:
    one = sample(1)
    curve = one.curves[NAMES[0]]
    zero = np.zeros_like(curve.tpr)
    with style.house():
        figure = roc(replace(one, curves={NAMES[0]: replace(curve, tpr=zero, low=zero)}))
        figure.canvas.draw()


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        replace(sample(), best="another")
    flat = {name: replace(one, members=0 * one.grid) for name, one in sample().densities.items()}
    with pytest.raises(InputError, match="one score"):
        densities(replace(sample(), densities=flat))
