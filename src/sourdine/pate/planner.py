"""Threshold, noise and number of questions for a budget, chosen without a look at the private votes.

The planner is given votes that are public or made up (`votes.simulated`), and searches for what should
teach the student most. An answer that is right with probability p among m classes is worth

    ((p - 1/m) / (1 - 1/m))^2

exact ones (for two classes this is what label noise costs in Fisher information), so a plan is worth
its expected number of answers times that. Of plans worth nearly as much as the best, the one with the
fewest questions is taken: its answers are surer. The search uses the continuous Gaussian, whose squared
mu add up: mu^2 = Q / sigma_check^2 + 2 A / sigma^2. The noise of the plan that is chosen is then fitted
to the exact curve of its events, so what the search gets wrong costs accuracy, never privacy.

Guarantee: the plan is a function of the budget, of public numbers and of the votes given here. Private
votes are refused: what is tuned on them is a release that nobody has charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from sourdine import checks
from sourdine.accounting import gaussian_sigma, least_noise
from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.events import Event
from sourdine.pate.aggregators import Aggregator, ConfidentGNMax, Floats, GNMax
from sourdine.pate.votes import PRIVATE, Votes, simulated
from sourdine.rng import seeded

ASSUMED = 0.75
"""The accuracy of a teacher, where nobody says another."""
_SHARES = (0.1, 0.2, 0.3, 0.45)  # of the budget, for checks
_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)  # of the teachers
_SIZES = 12  # numbers of questions that are tried
_MORE = 1.1  # answers kept ready, over those expected: how many pass is not known before
_NEARLY = 0.9  # of the best worth: fewer questions with surer answers ask less of the student
_MADE_UP = 2000  # votes to plan with
_DRAWS = 4000  # of noise, for one estimate


Drafted = GNMax | ConfidentGNMax


@dataclass(frozen=True)
class Plan:
    """What is asked, and what is to be expected of it if the votes are like those planned with."""

    aggregator: Aggregator
    questions: int
    answers: int
    expected_answers: float
    expected_accuracy: float
    """How often an answer is the class that most teachers named."""
    worth: float
    """In exact labels; see the top of this file."""

    @property
    def event(self) -> Event:
        return self.aggregator.plan(self.questions, self.answers)


def plan(budget: Budget, votes: Votes, questions: int, *, check: bool | None = None) -> Plan:
    """The best of a list of plans with at most so many questions.

    votes: public or simulated. check: with a threshold (Confident-GNMax), without (GNMax), or the
    better one.
    """
    refuse_private(votes)
    most = checks.whole("questions", questions)
    mu = 1 / gaussian_sigma(budget.epsilon, budget.delta)
    sizes = sorted({max(1, int(s)) for s in np.geomspace(min(20, most), most, _SIZES)})
    drafts = [d for size in sizes for d in _drafts(votes, size, mu, check)]
    found = [_worth(votes, aggregator, size) for aggregator, size in drafts]
    enough = _NEARLY * max(worth for worth, _, _ in found)
    at = next(place for place, (worth, _, _) in enumerate(found) if worth >= enough)
    (worth, answered, accuracy), (aggregator, asked) = found[at], drafts[at]
    answers = min(asked, max(1, int(np.ceil(_MORE * answered))))
    fitted = fit_noise(budget, aggregator, asked, answers)
    return Plan(fitted, asked, answers, answered, accuracy, worth)


def plan_blindly(
    budget: Budget,
    teachers: int,
    classes: int,
    questions: int,
    *,
    accuracy: float = ASSUMED,
    check: bool | None = None,
) -> Plan:
    """The plan for made-up votes of teachers of this accuracy: always the same for the same numbers."""
    votes = simulated(_MADE_UP, teachers, classes, accuracy=accuracy, source=seeded(0))
    return plan(budget, votes, questions, check=check)


def fit_noise(budget: Budget, aggregator: Aggregator, questions: int, answers: int) -> Aggregator:
    """The same aggregator with all its noise scaled so that the plan just fits the budget."""

    def scaled(by: float) -> Aggregator:
        noises = [name for name in ("sigma_check", "sigma", "scale") if hasattr(aggregator, name)]
        return replace(aggregator, **{name: by * getattr(aggregator, name) for name in noises})

    factor = least_noise(budget, lambda by: scaled(by).plan(questions, answers))
    return scaled(factor * (1 + 1e-6))


def refuse_private(votes: Votes) -> None:
    """Nothing is planned on private votes."""
    if votes.origin == PRIVATE:
        raise InputError(
            "these votes are private, and a threshold or noise tuned on them gives some of them away "
            "without a charge. Plan with pate.simulated(...), or with votes of teachers of public "
            'records (origin="public").'
        )


def _drafts(votes: Votes, size: int, mu: float, check: bool | None) -> list[tuple[Drafted, int]]:
    found: list[tuple[Drafted, int]] = []
    if check is not True:
        found.append((GNMax(np.sqrt(2 * size) / mu), size))
    top = votes.counts.max(axis=1)
    for share in () if check is False else _SHARES:
        sigma_check = float(np.sqrt(size / share) / mu)
        for part in _THRESHOLDS:
            threshold = round(part * votes.teachers)
            passing = float(stats.norm.cdf((top - threshold) / sigma_check).mean())
            answers = max(1.0, _MORE * passing * size)
            sigma = float(np.sqrt(2 * answers / (1 - share)) / mu)
            found.append((ConfidentGNMax(threshold, sigma_check, sigma), size))
    return found


def _worth(votes: Votes, aggregator: Drafted, questions: int) -> tuple[float, float, float]:
    """What a plan is worth, how many answers it should give, and how many of them are right.

    Right is the class that most teachers name: what the noise takes away is all that a plan can change.
    """
    counts, chance = votes.counts.astype(np.float64), np.ones(len(votes))
    if isinstance(aggregator, ConfidentGNMax):
        gap = counts.max(axis=1) - aggregator.threshold
        chance = stats.norm.cdf(gap / aggregator.sigma_check)
    kept = _kept(counts, aggregator.sigma)
    right = float((chance * kept).sum() / max(chance.sum(), 1e-12))
    answers, base = questions * float(chance.mean()), 1 / votes.classes
    return answers * max(0.0, (right - base) / (1 - base)) ** 2, answers, right


def _kept(counts: Floats, sigma: float) -> Floats:
    """For each question, how often noise leaves the class with the most votes in front: a few draws."""
    generator = np.random.default_rng(int.from_bytes(seeded(0).bytes(8)))  # the same for every plan
    times = max(1, _DRAWS // len(counts))
    best = counts.argmax(axis=1)
    hits = np.zeros(len(counts))
    for _ in range(times):
        hits += (counts + sigma * generator.standard_normal(counts.shape)).argmax(axis=1) == best
    return hits / times
