"""The figures draw, quote what the accounting says, keep their text inside, and repeat byte by byte."""

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy import special, stats

from sourdine.accounting import curve, gaussian_sigma, moments_epsilon
from sourdine.errors import InputError
from sourdine.events import (
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PoissonEvent,
    RandomizedResponseEvent,
)
from sourdine.report import style
from sourdine.report.figures import FIGURES, draw

NAMES = list(FIGURES)
CHEAP = [
    *("densities", "privacy-loss", "attributes", "delta-meaning"),
    *("randomized-response", "local-central", "smokers"),
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Figure], list[Path]]:
    """Every figure once, and its files; the accounting behind some takes seconds."""
    with style.house():
        figures = {name: build() for name, build in FIGURES.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, figure in figures.items():
            patch.setitem(FIGURES, name, lambda figure=figure: figure)
        return figures, draw(NAMES, tmp_path_factory.mktemp("figures") / "a" / "new" / "folder")


@pytest.fixture(scope="module")
def built(drawn) -> dict[str, Figure]:
    return drawn[0]


@pytest.fixture(scope="module")
def written(drawn) -> list[Path]:
    return drawn[1]


def texts(figure: Figure) -> Iterator[Text]:
    """What is written, but for ticks: matplotlib keeps labels of ticks beyond the axes, undrawn."""
    ticks = {
        label
        for plot in figure.axes
        for axis in (plot.xaxis, plot.yaxis)
        for label in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if text not in ticks and text.get_visible() and text.get_text().strip():
            yield text


def quoted(figure: Figure) -> str:
    return "\n".join(text.get_text().replace("\u00a0", " ") for text in texts(figure))


def test_the_figures_are_the_promised_ones():
    assert NAMES == [
        "densities",
        "privacy-loss",
        "accountants",
        "amplification",
        "attributes",
        "shuffling",
        "delta-meaning",
        "randomized-response",
        "local-central",
        "smokers",
    ]


def test_every_figure_is_written(written):
    assert [path.name for path in written] == [f"{n}.{kind}" for n in NAMES for kind in ("png", "svg")]
    for path in written:
        assert path.stat().st_size > 20_000
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


def test_a_second_drawing_has_the_same_bytes(written, tmp_path):
    first = {path.name: path for path in written}
    for path in draw(CHEAP, tmp_path):
        assert path.read_bytes() == first[path.name].read_bytes()


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"font.size": 17.0, "svg.hashsalt": "mine"}):
        draw(["delta-meaning"], tmp_path / "odd")
        assert matplotlib.rcParams["font.size"] == 17.0
        assert matplotlib.rcParams["svg.hashsalt"] == "mine"
    draw(["delta-meaning"], tmp_path / "plain")
    assert (tmp_path / "odd/delta-meaning.svg").read_bytes() == (
        tmp_path / "plain/delta-meaning.svg"
    ).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_cut_off(built, name):
    figure = built[name]
    figure.canvas.draw()
    width, height = figure.bbox.width, figure.bbox.height
    for text in texts(figure):
        box = text.get_window_extent()
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert inside, f"{text.get_text()!r} leaves the figure"


@pytest.mark.parametrize("name", NAMES)
def test_title_and_caption_stand_clear_of_the_plots(built, name):
    figure = built[name]
    figure.canvas.draw()
    title, caption = (text.get_window_extent() for text in figure.texts)
    for plot in figure.axes:
        box = plot.get_tightbbox()
        assert caption.y1 < box.y0 < box.y1 < title.y0


def test_privacy_loss_quotes_the_true_delta_and_the_tail(built):
    said = quoted(built["privacy-loss"])
    delta = curve(GaussianEvent(1.0)).delta(1.0).upper
    tail = float(special.ndtr(-0.5))  # L is normal with mean 1/2 and deviation 1
    assert f"δ = {delta:.3f}" in said and f"{delta:.3f}" == "0.127"
    assert f"P(L > ε) = {tail:.3f}" in said and f"{tail:.3f}" == "0.309"


def test_accountants_quote_the_accounting(built):
    said = quoted(built["accountants"])
    step, steps, delta = PoissonEvent(0.01, GaussianEvent(4.0)), 10_000, 1e-5
    # 1.26 is what Abadi et al. 2016 state for this setting.
    assert f"moments accountant\n{moments_epsilon(steps * step, delta):.3g}" in said
    assert "moments accountant\n1.26" in said
    found = curve(steps * step).epsilon(delta)
    assert f"privacy loss distribution\n{found.upper:.3g}" in said
    assert f"{found.lower:.3g}" == f"{found.upper:.3g}" == "0.947"
    once = curve(step).epsilon_upper(delta / steps)
    assert f"basic composition\n{steps * once:.3g}" in said


def test_attributes_mark_the_first_d_at_which_gaussian_noise_is_smaller(built):
    said = quoted(built["attributes"])
    classic = math.sqrt(2 * math.log(1.25 / 1e-5))
    for name, sigma, known in (("exact", gaussian_sigma(1.0, 1e-5), 7), ("classic", classic, 12)):
        first = next(d for d in itertools.count(1) if sigma * math.sqrt(d) < math.sqrt(2) * d)
        assert first == known
        assert f"{name}: smaller from d = {first}" in said


def test_more_noise_costs_less_in_every_line_of_shuffling(built):
    for plot in built["shuffling"].axes:
        most, least, lots = (np.asarray(line.get_ydata()) for line in plot.lines)
        for cost in (most, least, lots):
            assert (np.diff(cost) < 0).all()
        assert (least <= most).all()


def pure(event: Event, adjacency: str) -> float:
    """Its epsilon at the smallest delta that still tells something in floats."""
    return curve(event, adjacency).epsilon_upper(1e-15)


def test_randomized_response_quotes_its_epsilon_a_count_of_coins_and_the_persons(built):
    said = quoted(built["randomized-response"])
    half, aim = Fraction(1, 2), Fraction(1, 100)
    for written, persons in (("0", 0), ("0.1", 60_000), ("0.25", 7_500), ("0.4", 1_407), ("0.49", 104)):
        gamma = Fraction(written)
        answer = RandomizedResponseEvent(float(1 - 2 * gamma))  # drawn anew so often
        assert f"γ = {written}\nε = {pure(answer, 'replace-one'):.2g}" in said
        if persons:
            # One person's estimate is (answer - 1/2 + gamma) / (2 gamma); here the truth is no.
            estimates = {(y - half + gamma) / (2 * gamma): half + (gamma, -gamma)[y] for y in (0, 1)}
            assert sum(value * chance for value, chance in estimates.items()) == 0
            variance = sum(value**2 * chance for value, chance in estimates.items())
            assert variance / persons <= aim**2 < variance / (persons - 1)
            assert f"\n{persons:,}\n" in said
    # Heads: the truth; tails: what the second coin says. One person in ten has something to hide.
    yes = [0, 0]
    for truth, first, second in itertools.product([1] + 9 * [0], "HT", (0, 1)):
        yes[truth] += truth if first == "H" else second
    assert f"a suspicion of 10% only to {yes[1] / sum(yes):.0%}" in said


def test_local_answers_need_half_a_million_persons_at_every_epsilon(built):
    figure, persons = built["local-central"], 1000
    assert "takes 500,000 persons to learn what 1,000 tell" in quoted(figure).replace("\n", " ")
    for plot, epsilon in zip(figure.axes, (0.1, 1.0, 5.0), strict=True):
        count = DiscreteLaplaceEvent(epsilon, adjacency="replace-one")
        flip = 1 - math.tanh(epsilon / 2)
        for event in (count, RandomizedResponseEvent(flip)):
            assert pure(event, "replace-one") == pytest.approx(epsilon, rel=1e-6)
        central = stats.dlaplace(epsilon).std()
        local = stats.bernoulli(flip / 2).std() / (1 - flip)
        assert local**2 / (central / persons) ** 2 == pytest.approx(500_000)
        assert f"\n{local / persons**0.5 / (central / persons):.0f}×\n" in quoted(figure)
        for line, deviation, power in ((plot.lines[0], local, 0.5), (plot.lines[1], central, 1.0)):
            n, drawn = (np.asarray(data) for data in line.get_data())
            assert drawn == pytest.approx(deviation / n**power)


def test_no_person_moves_the_count_of_smokers_or_a_bar_further_than_allowed(built):
    top, *plots = built["smokers"].axes
    boxes = [int(text.get_text()) for text in top.texts]
    names = [label.get_text() for label in top.get_xticklabels()]
    assert [name[0] for name in names] == [chr(ord("A") + i) for i in range(26)]
    told = {"Alice": 0, "Bob": 0, "Clair": 1, "Zane": 1}  # the rows that the lecture shows
    assert told.items() <= dict(zip(names, boxes, strict=True)).items()
    heights = [line.get_ydata()[0] for line in top.lines]
    assert heights == [sum(boxes[:i] + boxes[i + 1 :]) for i in range(26)]
    assert set(heights) == {sum(boxes), sum(boxes) - 1}
    for plot, epsilon in zip(plots, (0.5, 1.0, 2.0), strict=True):
        drawn = []
        for bars, count in zip(plot.containers, (sum(boxes), heights[-1]), strict=True):
            answers = [round(bar.get_x() + bar.get_width() / 2) for bar in bars]
            drawn.append(np.array([bar.get_height() for bar in bars]))
            assert drawn[-1] == pytest.approx(stats.dlaplace(epsilon, loc=count).pmf(answers))
            assert f"Zane: {count}" in quoted(built["smokers"])
        ratio = np.maximum(drawn[0] / drawn[1], drawn[1] / drawn[0])
        bound = math.exp(pure(DiscreteLaplaceEvent(epsilon), "zero-out"))
        assert ratio == pytest.approx(bound)
        assert f"each pair of bars {bound:.2f} to 1" in plot.get_title(loc="left")


def test_an_unknown_name_gets_a_suggestion_and_nothing_is_drawn(tmp_path: Path):
    with pytest.raises(InputError, match="no figure 'shufling'; did you mean 'shuffling'"):
        draw(["densities", "shufling"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("value", "written"), [(1e-5, "10⁻⁵"), (1.61e-4, "1.6·10⁻⁴"), (1e12, "10¹²"), (9.99e-6, "10⁻⁵")]
)
def test_powers_of_ten(value, written):
    assert style.scientific(value) == written
