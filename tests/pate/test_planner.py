"""Plans fit their budget, come from votes that are not private, and grow with the budget."""

from __future__ import annotations

import numpy as np
import pytest

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.pate.aggregators import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from sourdine.pate.planner import fit_noise, plan
from sourdine.pate.votes import Votes, simulated
from sourdine.rng import seeded

MADE_UP = simulated(500, 100, 3, accuracy=0.75, source=seeded(1))


def test_private_votes_are_refused_with_the_way_out() -> None:
    private = Votes(MADE_UP.counts, 100)
    with pytest.raises(InputError, match=r"private.*without a charge.*simulated.*public"):
        plan(Budget(2, 1e-5), private, 500)
    assert plan(Budget(2, 1e-5), Votes(MADE_UP.counts, 100, "public"), 500).questions > 0


@pytest.mark.parametrize("check", [None, True, False])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_plan_just_fits_its_budget(check: bool | None, epsilon: float) -> None:
    found = plan(Budget(epsilon, 1e-5), MADE_UP, 400, check=check)
    event = found.aggregator.plan(found.questions, found.answers)
    cost = curve(event, "zero-out").epsilon_upper(1e-5)
    assert 0.99 * epsilon < cost <= epsilon
    assert found.questions <= 400 and found.answers <= found.questions
    if check is not None:
        assert isinstance(found.aggregator, ConfidentGNMax if check else GNMax)


def test_what_is_expected_comes_true_on_votes_of_the_same_kind() -> None:
    found = plan(Budget(4, 1e-5), MADE_UP, 400, check=True)
    fresh = simulated(4000, 100, 3, accuracy=0.75, source=seeded(2))
    passed = found.aggregator.passes(fresh, seeded(3))
    expected = found.expected_answers / found.questions
    assert passed.mean() == pytest.approx(expected, abs=0.05)
    right = found.aggregator.choose(fresh, seeded(4)) == fresh.counts.argmax(axis=1)
    assert right[passed].mean() == pytest.approx(found.expected_accuracy, abs=0.05)


def test_more_budget_is_worth_more() -> None:
    worth = [plan(Budget(e, 1e-5), MADE_UP, 400).worth for e in (0.5, 1, 2, 4, 8)]
    assert worth == sorted(worth)
    teachers = [simulated(500, k, 3, accuracy=0.75, source=seeded(1)) for k in (20, 100, 400)]
    assert (np.diff([plan(Budget(2, 1e-5), votes, 400).worth for votes in teachers]) > 0).all()


def test_noise_is_fitted_for_every_kind_that_has_one_number_for_it() -> None:
    kept = InteractiveGNMax(12, 30.0, 10.0, sure=0.7)
    fitted = fit_noise(Budget(2, 1e-5), kept, 100, 50)
    assert isinstance(fitted, InteractiveGNMax) and fitted.sure == 0.7 and fitted.threshold == 12
    assert fitted.sigma_check / fitted.sigma == pytest.approx(3.0)
    laplace = fit_noise(Budget(2, 1e-5), LNMax(10.0), 20, 20)
    assert curve(laplace.plan(20, 20), "zero-out").epsilon_upper(1e-5) <= 2
