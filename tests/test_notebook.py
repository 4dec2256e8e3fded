"""How objects look in Jupyter: well-formed, escaped, quick, and never an error."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sourdine import notebook
from sourdine.accounting import curve
from sourdine.accounting.curves import Interval, PrivacyCurve
from sourdine.budget import Budget
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonEvent,
)
from sourdine.ledger import Ledger

TRAINING = 1000 * PoissonEvent(0.01, GaussianEvent(1.0))


def read(page: str) -> ElementTree.Element:
    """The parsed piece; fails where a tag is open or a character was not escaped."""
    return ElementTree.fromstring(f"<div>{page}</div>")


def words(page: str) -> str:
    return " ".join(" ".join(read(page).itertext()).split())


def fixed_colours(page: str) -> list[str]:
    painted = re.findall(r"(?:fill|stroke)='([^']*)'|(background|color:(?!inherit))", page)
    return [ours or other for ours, other in painted if ours not in ("none", "currentColor")]


def test_a_budget_is_one_line() -> None:
    page = Budget(2.5, 1e-7, unit="user")._repr_html_()
    assert words(page) == "epsilon ≤ 2.5 at delta 1e-07 per user (zero-out)"
    assert "\n" not in page


def test_a_ledger_shows_budget_spent_left_and_the_last_entries() -> None:
    ledger = Ledger(None, Budget(1, 1e-6), population="<b>patients</b>")
    for number in range(10):
        ledger.charge(LaplaceEvent(100.0), f"count {number} <script>", who="somebody", data="abc123")
    page = ledger._repr_html_()
    text, spent = words(page), ledger.spent()
    assert "epsilon ≤ 1 at delta 1e-06 per example" in text
    assert "<b>patients</b>" in text and "<b>" not in page and "<script>" not in page
    shown = float(re.search(r"spent epsilon ([\d.]+)", text)[1])  # type: ignore[index]
    assert spent.epsilon * (1 - 1e-9) <= shown <= spent.epsilon + 1e-4
    left = float(re.search(r"left epsilon ([\d.]+)", text)[1])  # type: ignore[index]
    assert spent.left - 1e-4 <= left <= spent.left * (1 + 1e-9)
    assert "The last 8 of 10" in text
    assert "count 1 " not in text and "count 2 " in text and "count 9 " in text
    assert "somebody" not in text and "abc123" not in text


def test_new_lazy_and_settled_ledgers(tmp_path: Path) -> None:
    lazy = Ledger(tmp_path / "l.sqlite", Budget(1), lazy=True)
    assert "spent epsilon 0 " in words(lazy._repr_html_())
    assert not (tmp_path / "l.sqlite").exists()
    ledger = Ledger(None, Budget(10, 1e-5))
    ledger.settle(ledger.reserve(TRAINING, "training"), NOTHING, "crash")
    assert "settles entry 1 (crash) 0" in words(ledger._repr_html_())


def spoil(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"<&'" * 2000)


@pytest.mark.parametrize("break_it", [Path.unlink, spoil, lambda path: path.write_bytes(b"")])
def test_a_ledger_that_is_gone_or_damaged_says_so(
    tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    path = tmp_path / "<b>&.sqlite"
    ledger = Ledger(path, Budget(1))
    ledger.charge(LaplaceEvent(10.0), "count")
    break_it(path)
    with pytest.raises(Exception):  # noqa: B017 (whatever it is, a cell must not raise it)
        ledger.spent()
    text = words(ledger._repr_html_())
    assert text.startswith("Ledger for epsilon ≤ 1 at delta 1e-06 per example (zero-out) : ")
    assert text.endswith(".")


def test_an_unknown_failure_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Ledger) -> None:
        raise RuntimeError("secret of a driver")

    ledger = Ledger(None, Budget(1))
    monkeypatch.setattr(Ledger, "history", fail)
    assert "cannot be read now" in words(ledger._repr_html_())
    assert "secret" not in ledger._repr_html_()


@pytest.mark.parametrize("event", [GaussianEvent(1.0), TRAINING, 30 * LaplaceEvent(10.0)])
def test_a_curve_states_proven_bounds_and_draws_them(
    event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "_SECONDS", 60.0)  # however busy the machine is
    found = curve(event)
    page = found._repr_html_()
    for delta in (1e-5, 1e-6, 1e-7):
        shown = float(re.search(rf"{delta:.0e} ≤ ([\d.]+)", words(page))[1])  # type: ignore[index]
        bound = found.epsilon(delta).upper
        assert bound * (1 - 1e-9) <= shown <= bound + 1e-4
    assert len(read(page).findall(".//{*}circle")) >= 3
    assert fixed_colours(page) == []


def test_fixed_colours_would_be_found() -> None:
    assert fixed_colours("<g fill='#222'/>") == ["#222"]
    assert fixed_colours("<p style='background:white'>") == ["background"]


def test_a_drawing_falls_from_left_to_right() -> None:
    page = curve(GaussianEvent(1.0))._repr_html_()
    line = read(page).find(".//{*}polyline")
    assert line is not None
    dots = [tuple(map(float, dot.split(","))) for dot in line.get("points", "").split()]
    assert dots == sorted(dots) and len(dots) == 9
    assert [y for _, y in dots] == sorted(y for _, y in dots)
    assert all(0 <= x <= 300 and 0 <= y <= 150 for x, y in dots)


def test_curves_without_a_drawing() -> None:
    assert "1e-06 ≤ ∞" in words(curve(NonPrivateEvent())._repr_html_())
    assert "svg" not in curve(NonPrivateEvent())._repr_html_()
    assert "1e-06 ≤ 0" in words(curve(NOTHING)._repr_html_())
    half = curve(ApproximateEvent(1.0, 3e-6, "zero-out"))._repr_html_()
    assert "1e-05 ≤ 1 " in words(half) and "1e-06 ≤ ∞" in words(half)


class Broken(PrivacyCurve):
    def delta(self, epsilon: float) -> Interval:
        raise RuntimeError("no digits left")


def test_a_curve_never_raises() -> None:
    assert "could not be computed" in words(Broken()._repr_html_())


def test_a_slow_curve_is_shown_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(notebook.time, "monotonic", lambda: clock[0])

    def slow(_: float) -> float:
        clock[0] += 0.3
        return 1.0

    assert "1e-05 ≤ 1 1e-06 ≤ 1 1e-07 –" in words(notebook.curve(slow))
    assert clock[0] == 0.6


def test_a_curve_does_not_keep_anyone_waiting() -> None:
    start = time.perf_counter()
    curve(TRAINING)._repr_html_()
    assert time.perf_counter() - start < 2  # a second, and room for a busy machine


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.1 + 0.2, 2.99991, 1234.5])
def test_numbers_round_to_the_safe_side(value: float) -> None:
    assert value * (1 - 1e-11) <= float(notebook.above(value)) <= value + 1e-4
    assert value - 1e-4 <= float(notebook.below(value)) <= value * (1 + 1e-11)


def test_rounding_of_sums_and_of_what_has_no_bound() -> None:
    assert notebook.above(0.1 + 0.2) == notebook.below(0.1 + 0.2) == "0.3"
    assert notebook.above(float("inf")) == notebook.above(float("nan")) == "∞"
