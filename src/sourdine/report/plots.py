"""Small figures as inline SVG: no script, no font of their own, colours from the page's CSS.

Lines and texts carry classes (`axis`, `grid`, `main`, `plain`, `fill`), so that a figure turns with the
theme. Texts are placed for the larger letters that the page uses on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from sourdine.report.words import above

WIDTH = 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 32, 36, 62
_TICKS = 5


@dataclass(frozen=True)
class Frame:
    """Axes from (0, 0) to (x_most, y_most), drawn on a canvas of WIDTH times `height`."""

    x_most: float
    y_most: float
    height: int = 380

    def x(self, value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, value / self.x_most))

    def y(self, value: float) -> float:
        span = self.height - _TOP - _BOTTOM
        return self.height - _BOTTOM - span * min(1.0, max(0.0, value / self.y_most))

    def points(self, pairs: Sequence[tuple[float, float]]) -> str:
        """Where these values lie, as a list of coordinates."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in pairs)

    def axes(
        self, name_x: str, name_y: str, write_x: Callable[[float], str], write_y: Callable[[float], str]
    ) -> list[Markup]:
        """Grid, ticks and names; the name of the upright axis stands above it, where it can be read."""
        drawn = []
        left, right, floor = self.x(0), self.x(self.x_most), self.y(0)
        for value in ticks(self.y_most):
            at = self.y(value)
            drawn.append(_line("grid" if value else "axis", left, at, right, at))
            drawn.append(text(left - 8, at + 5, write_y(value), anchor="end"))
        for value in ticks(self.x_most):
            at = self.x(value)
            drawn.append(_line("axis", at, floor, at, floor + 5))
            drawn.append(text(at, floor + 24, write_x(value), anchor="middle"))
        drawn.append(text((left + right) / 2, self.height - 10, name_x, kind="name", anchor="middle"))
        drawn.append(text(0, 16, name_y, kind="name"))
        return drawn


def ticks(most: float) -> list[float]:
    """Round numbers from 0 up to `most`, three to six of them."""
    if not (math.isfinite(most) and most > 0):
        return [0.0]
    size = 10.0 ** math.floor(math.log10(most / _TICKS))
    step = next(
        size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * _TICKS >= most * 0.999
    )
    return [i * step for i in range(math.floor(most / step * (1 + 1e-9)) + 1)]


def tradeoff(found: Callable[[float], float], marks: Sequence[float]) -> Markup:
    """The share of members found against the share of false alarms, beside guessing."""
    frame = Frame(1.0, 1.0, 420)
    # Closer together at the left, where the curve bends.
    alarms = [(i / 60) ** 2 for i in range(61)]
    curve = [(a, found(a)) for a in alarms]
    percent = "{:.0%}".format
    body = frame.axes("false alarms among outsiders", "members found, at most", percent, percent)
    outside = f"{frame.points([(0, 0), *curve, (1, 1)])} {frame.points([(0, 1)])}"
    body.insert(0, Markup('<polygon class="fill" points="{}"/>').format(outside))
    body.append(Markup('<polyline class="plain" points="{}"/>').format(frame.points([(0, 0), (1, 1)])))
    body.append(Markup('<polyline class="main" points="{}"/>').format(frame.points([(0, 0), *curve])))
    body += [_dot(frame.x(a), frame.y(found(a))) for a in marks]
    if found(0.42) < 0.8:  # else the curve passes where the words would stand
        body.append(text(frame.x(0.03), frame.y(0.92), "ruled out by proof", kind="quiet"))
    body += _legend(frame, [("main", "any attack, at most"), ("plain", "guessing")])
    stated = "; ".join(f"{a:.0%} false alarms, at most {found(a):.1%} of members found" for a in marks)
    return _figure(frame.height, f"Trade-off of any membership attack: {stated}.", body)


def spending(path: Sequence[tuple[int, float]], budget: float | None, over: str) -> Markup:
    """Epsilon against the steps of training, or whatever it grows over, below the budget."""
    steps, last = path[-1]
    limit = budget if budget is not None and budget >= last else None
    frame = Frame(steps, 1.12 * max(last, limit or 0.0))
    body = frame.axes(over, "epsilon", lambda v: f"{v:,.0f}", lambda v: f"{v:g}")
    rows = [("main", f"spent: {above(last)} at the end")]
    if limit is not None:
        at = frame.y(limit)
        body.append(_line("limit", frame.x(0), at, frame.x(steps), at))
        rows.append(("limit", f"budget: {limit:g}"))
    body.append(Markup('<polyline class="main" points="{}"/>').format(frame.points(path)))
    body.append(_dot(frame.x(steps), frame.y(last)))
    body += _legend(frame, rows)
    first = above(path[0][1])
    stated = f"Epsilon grows from {first} to {above(last)} after {steps:,} {over}."
    return _figure(frame.height, stated, body)


@dataclass(frozen=True)
class Measured:
    """A metric with its interval, beside the same metric without privacy where it was measured."""

    name: str
    value: float
    low: float
    high: float
    reference: float | None = None


def usefulness(metrics: Sequence[Measured]) -> Markup:
    """Each metric as a dot on its interval; the reference without privacy as a diamond."""
    row, top, side = 74, 4, 14
    least = -1.0 if any(m.low < -0.05 for m in metrics) else 0.0
    floor = top + row * len(metrics)

    def x(value: float) -> float:
        return side + (WIDTH - 2 * side) * min(1.0, max(0.0, (value - least) / (1 - least)))

    body = []
    for i, metric in enumerate(metrics):
        y = top + row * i + 48
        interval = f"{metric.value:.3f} ({metric.low:.3f} to {metric.high:.3f})"
        body.append(text(side, y - 26, metric.name, kind="name"))
        body.append(text(WIDTH - side, y - 26, interval, kind="plain-text", anchor="end"))
        body.append(_line("rail", x(least), y, x(1), y))
        body.append(_line("span", x(metric.low), y, x(metric.high), y))
        if metric.reference is not None:
            at = x(metric.reference)
            corners = f"{at:.1f},{y - 9} {at + 9:.1f},{y} {at:.1f},{y + 9} {at - 9:.1f},{y}"
            body.append(Markup('<polygon class="mark" points="{}"/>').format(corners))
        body.append(_dot(x(metric.value), y))
    for i in range(5):
        value = least + (1 - least) * i / 4
        body.append(text(x(value), floor + 16, f"{value:g}", anchor="middle"))
    stated = "; ".join(f"{m.name} {m.value:.3f}, from {m.low:.3f} to {m.high:.3f}" for m in metrics)
    return _figure(floor + 24, f"Usefulness: {stated}.", body)


def people(count: int) -> Markup:
    """A hundred dots, so many of them filled."""
    dots = (
        Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(
            "seen" if i < count else "unseen", 5.5 + 11 * (i % 10), 5.5 + 11 * (i // 10)
        )
        for i in range(100)
    )
    opening = Markup('<svg class="people" viewBox="0 0 110 110" role="img" aria-label="{}">')
    return opening.format(f"{count} of 100") + Markup("").join(dots) + Markup("</svg>")


def text(x: float, y: float, words: str, *, kind: str = "tick", anchor: str = "start") -> Markup:
    """Words at a place, escaped."""
    opening = Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">')
    return opening.format(kind, x, y, anchor) + escape(words) + Markup("</text>")


def _legend(frame: Frame, rows: Sequence[tuple[str, str]]) -> list[Markup]:
    """In the lower right corner, which both rising curves leave free."""
    left, drawn = frame.x(frame.x_most * 0.5), []
    for i, (kind, words) in enumerate(reversed(rows)):
        y = frame.y(0) - 22 - 26 * i
        drawn += [_line(kind, left, y - 5, left + 24, y - 5), text(left + 32, y, words)]
    return drawn


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    line = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>')
    return line.format(kind, x1, y1, x2, y2)


def _dot(x: float, y: float) -> Markup:
    return Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="6"/>').format(x, y)


def _figure(height: int, stated: str, body: Sequence[Markup]) -> Markup:
    opening = Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return opening.format(WIDTH, height, stated) + Markup("\n").join(body) + Markup("</svg>")
