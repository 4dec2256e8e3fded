"""How budgets, ledgers and curves look in Jupyter: small pieces of HTML that never raise an error.

Whatever comes from outside is escaped. Colours and backgrounds are the page's own, so that all of it
can be read in light and dark. Printed bounds round to the safe side.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from sourdine import digits
from sourdine.errors import SourdineError

_LAST = 8
"""How many entries of a ledger are shown."""
_STATED = (1e-5, 1e-6, 1e-7)
_DRAWN = (1e-3, 1e-9, 1e-4, 1e-8, 1e-2, 1e-10)
_SECONDS = 0.5
"""After so long no further point of a curve is begun: showing a cell must not make anyone wait."""
_WIDTH, _HEIGHT = 300, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 290, 10, 120  # the axes, in the units of the picture


class _Promise(Protocol):
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def adjacency(self) -> str: ...


class _Book(Protocol):
    budget: Any
    population: str

    def spent(self) -> Any: ...
    def history(self) -> Sequence[Any]: ...
    def price(self, event: Any) -> float: ...


def budget(promise: _Promise) -> str:
    """One line."""
    return f"<span>{html.escape(_described(promise))}</span>"


def ledger(book: _Book) -> str:
    """What the budget is, what is spent and left, and the last entries; or why that cannot be told."""
    try:
        return _ledger(book)
    except Exception as error:  # a damaged file, a server that is gone: a cell shows it, and goes on
        why = (
            str(error) if isinstance(error, SourdineError) else "it cannot be read now; open it again."
        )
        return f"<p>Ledger for {budget(book.budget)}: {html.escape(why)}</p>"


def _ledger(book: _Book) -> str:
    spent, entries = book.spent(), book.history()
    facts = [
        ("budget", _described(book.budget)),
        ("spent", f"epsilon {above(spent.epsilon)} (releases: {spent.releases})"),
        ("left", f"epsilon {below(spent.left)}"),
    ]
    if book.population:
        facts.insert(0, ("population", book.population))
    lines = []
    for entry in entries[-_LAST:]:
        what = f"{entry.label} ({entry.reason})" if entry.reason else entry.label
        cost = above(book.price(entry.event)) if entry.event.parts else "0"
        lines.append((str(entry.id), entry.at[:16].replace("T", " "), what, cost))
    found = table(facts, headed=True)
    if lines:
        shown = "" if len(lines) == len(entries) else f"<p>The last {len(lines)} of {len(entries)}:</p>"
        found += shown + table(lines, ("entry", "when", "what", "epsilon"))
    return found


def curve(epsilon_upper: Callable[[float], float]) -> str:
    """The proven epsilon at the usual deltas, and drawn over delta as far as that is quick."""
    known = _points(epsilon_upper)
    if not known:
        return "<p>Privacy curve: epsilon could not be computed here; ask it for epsilon(1e-6).</p>"
    rows = [
        (f"{delta:.0e}", f"≤ {above(known[delta])}" if delta in known else "–") for delta in _STATED
    ]
    return _drawing(known) + table(rows, ("delta", "epsilon"))


def _points(epsilon_upper: Callable[[float], float]) -> dict[float, float]:
    """Epsilon by delta: what is stated first, then what is drawn, until the time is over."""
    end = time.monotonic() + _SECONDS
    known: dict[float, float] = {}
    for delta in (*_STATED, *_DRAWN):
        if known and time.monotonic() > end:
            break
        try:
            known[delta] = float(epsilon_upper(delta))
        except Exception:  # no proof at this delta, or a subclass of somebody else
            continue
    return known


def _drawing(known: dict[float, float]) -> str:
    """The points, joined; nothing where fewer than two are finite."""
    finite = sorted((delta, value) for delta, value in known.items() if math.isfinite(value))
    if len(finite) < 2:
        return ""
    most = max(value for _, value in finite) or 1.0
    low, high = math.log10(finite[0][0]), math.log10(finite[-1][0])
    dots = [
        (
            _LEFT + (math.log10(delta) - low) / (high - low) * (_RIGHT - _LEFT),
            _BOTTOM - value / most * (_BOTTOM - _TOP),
        )
        for delta, value in finite
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    circles = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5'/>" for x, y in dots)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' "
        f"height='{_HEIGHT}' role='img' aria-label='epsilon over delta' "
        "style='font:11px sans-serif;display:block'>"
        f"<g stroke='currentColor' fill='none'><path stroke-opacity='.4' "
        f"d='M{_LEFT},{_TOP}V{_BOTTOM}H{_RIGHT}'/><polyline stroke-width='1.5' points='{path}'/></g>"
        f"<g fill='currentColor'>{circles}"
        f"{_word(_LEFT - 6, _TOP + 4, above(most), 'end')}{_word(_LEFT - 6, _BOTTOM, '0', 'end')}"
        f"{_word(_LEFT - 6, (_TOP + _BOTTOM) // 2 + 4, 'epsilon', 'end')}"
        f"{_word(_LEFT, _BOTTOM + 16, f'{finite[0][0]:.0e}', 'start')}"
        f"{_word((_LEFT + _RIGHT) // 2, _BOTTOM + 16, 'delta', 'middle')}"
        f"{_word(_RIGHT, _BOTTOM + 16, f'{finite[-1][0]:.0e}', 'end')}</g></svg>"
    )


def _word(x: int, y: int, text: str, anchor: str) -> str:
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}'>{html.escape(text)}</text>"


def table(rows: Iterable[Sequence[str]], heading: Sequence[str] = (), *, headed: bool = False) -> str:
    """A plain table; `headed`: the first cell of each row names it."""

    def line(cells: Sequence[str], heads: int) -> str:
        tags = ["th"] * heads + ["td"] * (len(cells) - heads)
        return "".join(
            f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>"
            for tag, cell in zip(tags, cells, strict=True)
        )

    top = f"<tr>{line(heading, len(heading))}</tr>" if heading else ""
    body = "".join(f"<tr>{line(row, int(headed))}</tr>" for row in rows)
    # Pages without a doctype give tables a colour of their own.
    return f"<table style='color:inherit'>{top}{body}</table>"


def above(value: float) -> str:
    """Rounded up; 0.1 + 0.2 is 0.3 here."""
    return digits.above(value * (1 - 1e-12), 5) if math.isfinite(value) else "∞"


def below(value: float) -> str:
    """Rounded down."""
    return digits.below(value * (1 + 1e-12), 5) if math.isfinite(value) else "∞"


def _described(promise: _Promise) -> str:
    return (
        f"epsilon ≤ {promise.epsilon:.10g} at delta {promise.delta:g} per {promise.unit} "
        f"({promise.adjacency})"
    )
