"""What the votes show, for the eyes of the owner: NOT FOR RELEASE, it is exact and about the data.

How sure the teachers are, and what these very votes cost by the data-dependent analysis beside what was
charged (pate/analysis.py tells why the first is no guarantee).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sourdine.accounting import curve, renyi
from sourdine.data.owner import HEADING
from sourdine.digits import above
from sourdine.errors import SourdineError
from sourdine.modes import private_folder, write_privately
from sourdine.pate import analysis
from sourdine.pate.aggregators import ConfidentGNMax, Floats, GNMax, LNMax
from sourdine.pate.labelling import Answers, Labelling
from sourdine.pate.votes import Votes
from sourdine.report.reading import environment

_POINTS = 25  # of epsilon over questions


@dataclass(frozen=True, eq=False)
class Costs:
    """Epsilon after so many questions: as charged, at most on these votes, and as it came out.

    renyi: as charged, but by Rényi orders, as the costs of votes are: what they save lies below it.
    """

    questions: Floats
    charged: Floats
    renyi: Floats
    at_most: Floats | None
    realised: Floats | None


def costs(labelling: Labelling, votes: Votes, answers: Answers) -> Costs:
    """The data-dependent cost beside the data-independent one, at the budget's delta.

    votes, answers: of the questions that were put, in their order. None where no analysis is known.
    """
    aggregator, delta = labelling.aggregator, labelling.ledger.budget.delta
    asked = int(answers.asked.sum())
    moments = np.unique(np.linspace(1, max(1, asked), _POINTS).astype(int))
    counts = votes.counts[:asked]
    charged, orders, most, came = [], [], [], []
    for moment in moments:
        given = answers.answered[:moment]
        event = aggregator.plan(int(moment), max(1, int(given.sum())))
        charged.append(curve(event, "zero-out").epsilon_upper(delta))
        orders.append(renyi(event, "zero-out", analysis.ORDERS).epsilon(delta))
        pair = _analysed(aggregator, counts[:moment], given, labelling.answers, delta)
        if pair is not None:
            most.append(pair[0])
            came.append(pair[1])
    known = len(came) == len(moments)
    return Costs(
        moments.astype(np.float64),
        np.array(charged),
        np.array(orders),
        np.array(most) if known else None,
        np.array(came) if known else None,
    )


def _analysed(
    aggregator: Any, counts: Any, given: Any, most: int, delta: float
) -> tuple[float, float] | None:
    """Over all dialogues with `most` answers, and as it came out, by the improved conversion."""
    match aggregator:
        case LNMax():
            found = analysis.lnmax(counts[given], aggregator.scale, grid=float(aggregator.noise.grid))
            return found.epsilon(delta), found.epsilon(delta)
        case GNMax():
            found = analysis.gnmax(counts[given], aggregator.sigma, grid=float(aggregator.noise.grid))
            return found.epsilon(delta), found.epsilon(delta)
        case ConfidentGNMax() if type(aggregator) is ConfidentGNMax:
            settings = (aggregator.threshold, aggregator.sigma_check, aggregator.sigma)
            grid = float(max(aggregator.noise.grid, aggregator.check_noise.grid))
            realised = analysis.realised(counts, given, *settings, grid=grid).epsilon(delta)
            return analysis.at_most(counts, most, *settings, grid=grid).epsilon(delta), realised
    return None


def write(
    folder: Path, labelling: Labelling, votes: Votes, answers: Answers, notes: Sequence[str] = ()
) -> Path:
    """A page with a figure and notes, in a folder of its own; it comes back with its path."""
    found = costs(labelling, votes, answers)
    picture = base64.b64encode(_figure(labelling, votes, answers, found)).decode()
    template = environment().get_template("votes.html")
    facts = _facts(labelling, votes, answers, found)
    text = template.render(heading=HEADING, facts=facts, picture=picture, notes=notes)
    try:
        path = private_folder(folder) / "votes.html"
        write_privately(path, text)
    except OSError as error:
        raise SourdineError(f"{folder} cannot be written: {error.strerror}; make room.") from None
    return path


def _facts(labelling: Labelling, votes: Votes, answers: Answers, found: Costs) -> list[tuple[str, str]]:
    top = votes.counts.max(axis=1) / votes.teachers
    delta, given = labelling.ledger.budget.delta, int(answers.answered.sum())
    plan = curve(labelling.event, "zero-out").epsilon_upper(delta)
    rows = [
        ("answered of asked", f"{given:,} of {int(answers.asked.sum()):,}"),
        ("teachers that agree, median", f"{np.median(top):.0%} of {votes.teachers}"),
        ("answers with the class of most votes", f"{_kept(votes, answers):.1%}" if given else "none"),
        ("charged for the plan, data-independent", f"epsilon {above(plan)} at delta {delta:g}"),
        ("the same for what was asked and answered", f"epsilon {above(float(found.charged[-1]))}"),
    ]
    if found.at_most is not None and found.realised is not None:
        most, came = float(found.at_most[-1]), float(found.realised[-1])
        rows.append(("data-independent, by Rényi orders", f"epsilon {above(float(found.renyi[-1]))}"))
        name = "on these votes, for every dialogue (at_most)"
        rows.append((name, f"epsilon {above(most)}: private"))
        if labelling.aggregator.check is not None:
            name = "on these votes, as it came out (realised)"
            rows.append((name, f"epsilon {above(came)}: private, no bound"))
    return rows


def _kept(votes: Votes, answers: Answers) -> float:
    given = answers.answered
    return float((votes.counts.argmax(axis=1)[given] == answers.labels[given]).mean())


def _figure(labelling: Labelling, votes: Votes, answers: Answers, found: Costs) -> bytes:
    from sourdine.report import style  # noqa: PLC0415 (matplotlib)

    with style.house():
        figure = style.canvas(
            f"{HEADING}: how sure the teachers are, and what these votes cost",
            f"{votes.teachers} teachers, {labelling.aggregator.name}. What these votes cost is bounded "
            "one-sidedly and is itself private: no guarantee. What is charged holds for any votes.",
            headed=True,
        )
        left = style.axes(figure, (1, 2), 1, title="votes for the class with most")
        wide = max(1, round(votes.teachers / 25))
        least = votes.teachers // votes.classes
        bins = [x - 0.5 for x in range(least, votes.teachers + wide + 1, wide)]
        top = votes.counts.max(axis=1)
        left.hist(top[answers.answered], bins=bins, color=style.BLUE, label="answered")
        if not answers.answered.all():
            rest = top[~answers.answered]
            left.hist(rest, bins, color=style.ORANGE, label="not answered", histtype="step", lw=1.6)
        if isinstance(labelling.aggregator, ConfidentGNMax):
            left.axvline(labelling.aggregator.threshold, color=style.INK, ls=":", label="threshold")
        left.set_xlabel("votes")
        left.set_ylabel("questions")
        left.legend(frameon=False, fontsize=style.SMALL)
        right = style.axes(figure, (1, 2), 2, title="epsilon over questions")
        lines = [
            (found.renyi, style.GREY, "any votes, by Rényi orders"),
            (found.charged, style.BLUE, "any votes, as charged"),
            (found.at_most, style.ORANGE, "these votes, every dialogue"),
        ]
        if labelling.aggregator.check is not None:
            lines.append((found.realised, style.GREEN, "these votes, as it came out"))
        for values, colour, name in lines:
            if values is not None:
                right.plot(found.questions, values, color=colour, lw=style.LINE, label=name)
        right.set_ylim(bottom=0)
        right.set_xlabel("questions asked")
        right.set_ylabel("epsilon")
        right.legend(frameon=False, fontsize=style.SMALL)
        figure.subplots_adjust(wspace=0.28)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png")
        return drawn.getvalue()
