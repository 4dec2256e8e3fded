"""The law of whole dialogues, exactly: checks and answers in turn, stopped by the last answer.

Every dialogue of a few questions with Confident-GNMax is written down with its probability, for votes and
their neighbours. No set of dialogues may tell them apart better than the plan that is charged allows. A
plan that leaves out checks or answers is caught.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

from sourdine.accounting import PrivacyCurve, curve
from sourdine.mechanisms.additive import Gaussian
from sourdine.pate.aggregators import ConfidentGNMax

ASKED = ConfidentGNMax(5, 1.0, 1.5)
PAIRS = [
    ((5, 5), (6, 4)),
    ((6, 4), (5, 5)),
    ((5, 5), (4, 6)),
    ((4, 6), (3, 7)),
    ((3, 7), (4, 6)),
]


def masses(noise: Gaussian) -> tuple[np.ndarray, np.ndarray, int]:
    """The law of the noise in its own steps, and how many of them are a vote."""
    deviation = float(noise.sigma / noise.grid)
    steps = np.arange(-math.ceil(12 * deviation), math.ceil(12 * deviation) + 1)
    weight = np.exp(-0.5 * (steps / deviation) ** 2)
    return steps, weight / weight.sum(), int(1 / noise.grid)


@functools.cache
def outcomes(counts: tuple[int, int]) -> dict[str, float]:
    """One question: no answer, the first class, the second."""
    steps, weight, vote = masses(ASKED.check_noise)
    passed = weight[steps + max(counts) * vote >= ASKED.threshold * vote].sum()
    steps, weight, vote = masses(ASKED.noise)
    apart = np.arange(2 * steps[0], 2 * steps[-1] + 1) + (counts[0] - counts[1]) * vote
    both = np.convolve(weight, weight)
    first = both[apart > 0].sum() + both[apart == 0].sum() / 2
    return {"-": 1 - passed, "0": passed * first, "1": passed * (1 - first)}


def dialogues(votes: tuple[tuple[int, int], ...], answers: int) -> dict[str, float]:
    """The probability of each; none goes on after so many answers."""
    found = {"": 1.0}
    for counts in votes:
        longer: dict[str, float] = {}
        for said, chance in found.items():
            over = len(said.replace("-", "")) == answers or said.endswith("!")
            for one, own in ({"!": 1.0} if over else outcomes(counts)).items():
                longer[said.rstrip("!") + one] = longer.get(said.rstrip("!") + one, 0) + chance * own
        found = longer
    return found


def excess(questions: int, answers: int, claim: PrivacyCurve) -> float:
    """The largest attained delta over the claimed one, over votes, neighbours and epsilons."""
    allowed = {epsilon: claim.delta(epsilon).upper for epsilon in (0.0, 0.3, 0.6, 1.0, 1.5, 2.0)}
    worst = 0.0
    for pairs in itertools.product(PAIRS, repeat=questions):
        one, other = (dialogues(tuple(pair[side] for pair in pairs), answers) for side in (0, 1))
        for epsilon, most in allowed.items():
            attained = sum(max(0.0, p - math.exp(epsilon) * other[said]) for said, p in one.items())
            worst = max(worst, attained / most)
    return worst


@pytest.mark.parametrize(("questions", "answers"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_no_dialogue_tells_more_than_the_plan_allows(questions: int, answers: int) -> None:
    claim = curve(ASKED.plan(questions, answers), "zero-out")
    assert 0.5 < excess(questions, answers, claim) <= 1 + 1e-9


def test_a_plan_that_leaves_out_checks_or_answers_is_caught() -> None:
    for event in (ASKED.plan(1, 1), 2 * ASKED.check, 2 * ASKED.answer):
        assert excess(3, 2, curve(event, "zero-out")) > 1.02
