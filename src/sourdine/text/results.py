"""What a comparison found: numbers, table and figure, all made of released metrics alone."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sourdine.errors import SourdineError
from sourdine.text import desk

METRICS = {"accuracy": "accuracy", "macro_f1": "macro F1"}
SHOWN = {**METRICS, "matthews": "Matthews correlation"}
"""What the tables show; METRICS are those that a figure can be drawn by."""
ALWAYS = "always the most frequent class"
RESULT = "comparison"
_GRADIENTS = (
    "noisy gradients while it trains",
    "each example clipped, noise on the sum of a Poisson lot (DP-SGD)",
    "data-independent",
    "nothing but the records",
)
CONCEPTS: dict[str, tuple[str, str, str, str]] = {
    **dict.fromkeys(("head", "bitfit", "lora", "prompt", "all"), _GRADIENTS),
    "output": (
        "noisy weights, once",
        "an exact convex head, noise on its weights",
        "data-independent",
        "a convex loss",
    ),
    "input": (
        "noisy records",
        "noise on the features of each record, its label by randomized response",
        "data-independent",
        "classes known in advance",
    ),
    "pate": (
        "noisy votes of teachers, and a student",
        "teachers on disjoint parts, noisy argmax of their votes",
        "data-independent here; data-dependent for the owner only",
        "public texts, classes known in advance",
    ),
}
"""Concept, mechanism, accounting and needs of each method."""


def sum_up(plan: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, lowest and highest of each method at each budget, beside the plan and its cost."""
    found: dict[tuple[str, Any], list[Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["method"], run["epsilon"]), []).append(run["metrics"])
    # Runs of a version that did not know the largest class may have been finished before.
    names = [*SHOWN, *(["largest_class"] if all("largest_class" in x["metrics"] for x in runs) else [])]
    results = [
        {"method": method, "epsilon": epsilon, "private": epsilon != "inf"}
        | {name: _spread([one[name]["value"] for one in each]) for name in names}
        | {"no_better": sum(not one.get("beats_largest_class", True) for one in each)}
        for (method, epsilon), each in found.items()
    ]
    kept = ("format", "version", "settings", "unit", "records", "labels", "epsilon", "private_runs")
    about = {name: plan[name] for name in kept} | {"delta": plan["settings"]["delta"]}
    return {**about, "says": [*sentences(plan), *_useless(results)], "results": results}


def sentences(plan: Mapping[str, Any]) -> list[str]:
    """What the comparison costs, and what is outside of any guarantee."""
    said = []
    if plan["epsilon"] is not None:
        said.append(
            f"This comparison as a whole costs epsilon <= {_up(plan['epsilon'])} at delta = "
            f"{plan['settings']['delta']:g} per {plan['unit']}: its {plan['private_runs']} private "
            "runs added up. Publishing all of it, or choosing by it, costs that much."
        )
        if plan["settings"]["labels"] is None:
            said.append("The labels were found by one noisy count, which is part of that.")
    if "inf" in plan["settings"]["epsilon"]:
        said.append(
            "NOT PRIVATE: the runs at inf have no privacy at all, on records that whoever asked for "
            "them declares may be used so; no bound covers what they show."
        )
    return said


def _useless(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which methods are, at which budgets, no better than always one answer."""
    return [
        f"{result['method']} {_budget(result['epsilon'])} is no better than always answering the most "
        f"frequent class, in {result['no_better']} of {len(result['accuracy']['values'])} runs: the "
        "interval of its accuracy does not lie above the share of that class."
        for result in results
        if result["no_better"]
    ]


def _budget(epsilon: Any) -> str:
    return "without privacy" if epsilon == "inf" else f"at epsilon {epsilon:g}"


def publish(found: Mapping[str, Any], metric: str, folder: Path) -> None:
    """Writes comparison.json, comparison.md and the frontier by this metric."""
    from sourdine.report.frontier import Frontier, Point, draw  # noqa: PLC0415 (matplotlib)

    settings, shares = found["settings"], _shares(found)
    lines: dict[str, list[Point]] = {}
    for result in found["results"]:
        spread, epsilon = result[metric], float(result["epsilon"])
        point = Point(epsilon, spread["mean"], spread["low"], spread["high"])
        lines.setdefault(result["method"], []).append(point)
    figure = Frontier(
        METRICS[metric],
        {name: tuple(points) for name, points in lines.items()},
        model=settings["model"],
        delta=settings["delta"],
        unit=found["unit"],
        trained=found["records"]["train"],
        tested=found["records"]["test"],
        seeds=settings["seeds"],
        epsilon=found["epsilon"],
        always=statistics.fmean(shares) if shares and metric == "accuracy" else None,
    )
    desk.write(folder / f"{RESULT}.json", found)
    desk.write(folder / f"{RESULT}.md", _page(found, metric))
    for suffix in ("png", "svg"):
        path = folder / f"frontier.{suffix}"
        draft = path.with_name(f"frontier.{os.getpid()}.{suffix}")
        try:
            draw(figure, draft)
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SourdineError(f"{path} cannot be written: {error.strerror}; make room.") from None


def rows(found: Mapping[str, Any], metric: str) -> list[list[str]]:
    """The table: a heading, then a line for each method with its mean and spread at each budget.

    Under accuracies stands what always answering the most frequent class reaches, as the same runs
    measured it.
    """
    epsilons = found["settings"]["epsilon"]
    heading = ["no privacy" if e == "inf" else f"epsilon {e:g}" for e in epsilons]
    cells = {
        (result["method"], result["epsilon"]): _cell(result[metric]) for result in found["results"]
    }
    lines = [[method, *(cells[method, e] for e in epsilons)] for method in found["settings"]["methods"]]
    if metric == "accuracy" and all("largest_class" in result for result in found["results"]):
        lines.append([ALWAYS, *(_cell(_spread(_shares(found, epsilon))) for epsilon in epsilons)])
    return [["method", *heading], *lines]


def _shares(found: Mapping[str, Any], epsilon: Any = None) -> list[float]:
    """The share of the most frequent class, as each run at one budget, or at any, measured it."""
    each = [x for x in found["results"] if epsilon in (None, x["epsilon"])]
    return [value for x in each for value in x.get("largest_class", {"values": []})["values"]]


def concepts(found: Mapping[str, Any], metric: str) -> list[list[str]]:
    """What each method is and needs, beside what it reached here."""
    heading = ["method", "concept", "mechanism", "accounting", "needs"]
    table = rows(found, metric)
    reached = [f"{METRICS[metric]}, {name}" for name in table[0][1:]]
    lines = [[line[0], *CONCEPTS[line[0]], *line[1:]] for line in table[1:] if line[0] != ALWAYS]
    return [[*heading, *reached], ["---"] * (len(heading) + len(reached)), *lines]


def _page(found: Mapping[str, Any], metric: str) -> str:
    settings, records = found["settings"], found["records"]
    things = "records" if found["unit"] == "example" else "people"
    page = ["# A comparison of private training", ""]
    page += [f"**{sentence}**\n" for sentence in found["says"]]
    page += [
        f"{settings['model']}; about {records['train']:,} {things} to train on, {records['test']:,} "
        f"held out; classes: {', '.join(found['labels'])}; "
        f"delta {settings['delta']:g} per {found['unit']}; {settings['seeds']} runs each. Mean, lowest "
        "and highest; the noise in the metric is included.",
        "",
    ]
    if settings.get("teachers"):
        page += [f"PATE: {settings['teachers']} teachers.", ""]
    for name in sorted(SHOWN, key=lambda name: name != metric):
        table = rows(found, name)
        page += [f"## {SHOWN[name]}", "", _line(table[0]), _line(["---"] * len(table[0]))]
        page += [*map(_line, table[1:]), ""]
    page += ["## What each method is", "", *map(_line, concepts(found, metric)), ""]
    page.append("![the frontier](frontier.png)\n")
    return "\n".join(page)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(spread: Mapping[str, Any]) -> str:
    if len(spread["values"]) == 1:
        return f"{spread['mean']:.3f}"
    return f"{spread['mean']:.3f} ({spread['low']:.3f} to {spread['high']:.3f})"


def _spread(values: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values),
        "low": min(values),
        "high": max(values),
        "values": values,
    }


def _up(value: float) -> str:
    """Rounded up to two places: a printed bound must still hold."""
    return f"{math.ceil(value * 100) / 100:.2f}"
