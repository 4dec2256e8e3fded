"""Every aggregator under attack on neighbouring votes, at false alarm 1e-6, with twins that are caught."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sourdine.accounting import curve
from sourdine.audit import check_mechanism
from sourdine.errors import InputError
from sourdine.events import Event
from sourdine.pate.aggregators import (
    NO_ANSWER,
    Aggregator,
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
)
from sourdine.pate.votes import Votes
from sourdine.rng import Source, secure, seeded

FALSE_ALARM, DRAWS, TEACHERS = 1e-6, 20_000, 20
BELIEFS = np.array([0.5, 0.5])


def drawn(aggregator: Aggregator, counts: tuple[int, ...], times: int, source: Source) -> list[int]:
    """The same question many times over; NO_ANSWER where it did not pass."""
    votes = Votes(np.tile(counts, (times, 1)), sum(counts))
    passed = aggregator.passes(votes, source, np.tile(BELIEFS, (times, 1)))
    return np.where(passed, aggregator.choose(votes, source), NO_ANSWER).tolist()


def attack(
    aggregator: Aggregator, neighbours: tuple[tuple[int, ...], tuple[int, ...]], claim: Event
) -> Any:
    source = secure()  # which draws twice as quickly as a seeded one
    return check_mechanism(
        None,
        neighbours,
        claim,
        draws=DRAWS,
        false_alarm=FALSE_ALARM,
        many=lambda counts, times: drawn(aggregator, counts, times, source),
    )


TIE = ((10, 10), (11, 9))  # where one vote moves the answer most
EDGE = ((14, 6), (15, 5))  # and where it moves the check most
CASES: list[tuple[Aggregator, tuple[Any, Any], Aggregator]] = [
    (LNMax(3.0), TIE, LNMax(1.5)),
    (GNMax(2.0), TIE, GNMax(1.2)),
    (ConfidentGNMax(14, 2.0, 4.0), EDGE, ConfidentGNMax(14, 1.0, 4.0)),
    (ConfidentGNMax(2, 8.0, 2.0), TIE, ConfidentGNMax(2, 8.0, 1.2)),
    (InteractiveGNMax(4, 2.0, 4.0), EDGE, InteractiveGNMax(4, 1.0, 4.0)),
]


@pytest.mark.parametrize(("aggregator", "neighbours", "twin"), CASES, ids=lambda x: str(x)[:40])
def test_attack(aggregator: Aggregator, neighbours: tuple[Any, Any], twin: Aggregator) -> None:
    claim = aggregator.plan(1, 1)
    assert attack(aggregator, neighbours, claim).kept
    assert not attack(twin, neighbours, claim).kept


def test_the_check_alone_is_charged_for_and_needs_its_noise() -> None:
    """A threshold without noise tells 14 votes from 13 every time: the check itself must be paid for."""
    honest, silent = ConfidentGNMax(14, 3.0, 50.0), ConfidentGNMax(14, 1e-3, 50.0)
    assert attack(honest, EDGE, honest.plan(1, 1)).kept
    found = attack(silent, ((13, 7), (14, 6)), honest.plan(1, 1))
    assert not found.kept and found.epsilon > 3


def test_the_answer_has_the_law_that_was_published() -> None:
    """argmax of counts with continuous noise: two classes, P(0) = Phi(gap / (sqrt(2) sigma)).

    The check has its own noise: public code was seen to swap the two.
    """
    found = np.array(drawn(GNMax(3.0), (12, 8), 40_000, seeded(1)))
    expected = stats.norm.cdf(4 / (math.sqrt(2) * 3))
    assert (found == 0).mean() == pytest.approx(expected, abs=4 * 0.0025)
    passed = np.array(drawn(ConfidentGNMax(14, 3.0, 1.0), (12, 8), 40_000, seeded(2))) != NO_ANSWER
    assert passed.mean() == pytest.approx(stats.norm.cdf(-2 / 3), abs=4 * 0.0025)
    laplace = np.array(drawn(LNMax(3.0), (12, 8), 40_000, seeded(3)))
    g = 4 / 3
    assert (laplace == 1).mean() == pytest.approx((2 + g) / (4 * math.exp(g)), abs=4 * 0.0025)


def test_ties_favour_no_class() -> None:
    found = np.array(drawn(GNMax(0.05), (10, 10), 4000, seeded(1)))
    assert 0.45 < (found == 0).mean() < 0.55


def test_costs_are_those_of_the_papers() -> None:
    """GNMax is a Gaussian mechanism of mu = sqrt(2) / sigma; LNMax pure 2 / scale; a check 1 / sigma."""
    epsilon = curve(100 * GNMax(40.0).answer, "zero-out").epsilon_upper(1e-5)
    mu = 10 * math.sqrt(2) / 40
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert exact == pytest.approx(1e-5, rel=1e-3)
    assert curve(LNMax(20.0).answer, "zero-out").epsilon_upper(1e-12) == pytest.approx(0.1, rel=1e-6)
    both = ConfidentGNMax(200, 150.0, 40.0).plan(640, 283)
    assert curve(both, "zero-out").epsilon_upper(1e-5) == pytest.approx(2.5287, abs=1e-3)


def test_interactive_compares_with_the_student() -> None:
    aggregator = InteractiveGNMax(5, 0.1, 0.1, sure=0.8)
    votes = Votes(np.array([[18, 2], [18, 2], [10, 10]]), TEACHERS)
    beliefs = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
    passed = aggregator.passes(votes, seeded(1), beliefs)
    assert passed.tolist() == [False, True, False]
    assert aggregator.confirmed(beliefs, passed).tolist() == [0, NO_ANSWER, NO_ANSWER]
    for wrong, why in ((None, "give its beliefs"), (beliefs * 2, "add up to 1"), (beliefs[:2], "each")):
        with pytest.raises(InputError, match=why):
            aggregator.passes(votes, seeded(1), wrong)


def test_one_question_at_a_time() -> None:
    votes = Votes(np.array([[18, 2]]), TEACHERS)
    assert GNMax(0.5).release(votes) == 0
    assert ConfidentGNMax(30, 0.5, 0.5).release(votes) is None
    with pytest.raises(InputError, match="one question"):
        GNMax(0.5).release(Votes(np.tile([18, 2], (2, 1)), TEACHERS))


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), "much"])
def test_noise_must_be_positive(wrong: Any) -> None:
    for make in (LNMax, GNMax, lambda x: ConfidentGNMax(1, x, 1), lambda x: ConfidentGNMax(1, 1, x)):
        with pytest.raises(InputError):
            make(wrong)


def test_settings_are_part_of_what_is_charged() -> None:
    base = ConfidentGNMax(14, 2.0, 4.0)
    assert base.plan(3, 2) != replace(base, sigma=5.0).plan(3, 2)
    assert base.plan(3, 2) == 3 * base.check + 2 * base.answer
