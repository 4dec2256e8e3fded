"""`gnss_rdp`: tests/golden/pate (tensorflow/privacy 03035d5d, research/pate_2018), as published."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from sourdine.accounting.rdp import Renyi
from sourdine.errors import InputError, NotAccountable
from sourdine.pate import analysis, smooth
from sourdine.pate.sanitise import Sanitised, exact_cost, published_cost
from sourdine.rng import seeded

GOLDEN = Path(__file__).parent.parent / "golden" / "pate"
FACTS = json.loads((GOLDEN / "reference.json").read_text(encoding="utf-8"))
ARRAYS = np.load(GOLDEN / "reference.npz")
FALSE_ALARM = 1e-6


def quadrature(order: float, ratio: float, moved: float, sigma: float) -> float:
    """D_a(N(moved, sigma^2) || N(0, (ratio sigma)^2)), by integration."""
    with mpmath.workdps(30):
        a, wide, narrow = mpmath.mpf(order), mpmath.mpf(sigma), mpmath.mpf(ratio) * mpmath.mpf(sigma)

        def density(x, mean, deviation):
            return mpmath.npdf(x, mean, deviation)

        precision = a / wide**2 + (1 - a) / narrow**2
        centre, width = a * moved / wide**2 / precision, 1 / mpmath.sqrt(precision)
        ends = [centre + k * width for k in (-25, -10, -5, -2, 0, 2, 5, 10, 25)]
        total = mpmath.quad(
            lambda x: density(x, moved, wide) ** a * density(x, 0, narrow) ** (1 - a), ends
        )
        return float(mpmath.log(total) / (a - 1))


def divergence(order: float, ratio: float, moved: float, sigma: float) -> float:
    """The same in closed form."""
    v = order * ratio**2 + 1 - order
    return (
        math.log(ratio)
        + math.log(ratio**2 / v) / (2 * (order - 1))
        + order * moved**2 / (2 * sigma**2 * v)
    )


@pytest.mark.parametrize("name", FACTS["sets"])
def test_theorem_23_as_published_is_below_the_truth(name):
    facts = FACTS["sets"][name]
    order, beta, sigma = facts["ss_order"], facts["beta"], facts["gnss"]["sigma_ss"]
    claimed = published_cost(order, beta, sigma)
    assert claimed == pytest.approx(facts["gnss"]["gnss_rdp"], rel=1e-9)
    ratio = math.exp(-beta)
    truth = quadrature(order, ratio, ratio, sigma)
    assert truth > 1.3 * claimed
    assert exact_cost(order, beta, sigma) == pytest.approx(truth, rel=1e-9)


def test_the_numbers_of_the_docstring():
    assert published_cost(14, 0.4 / 14, 6.028) == pytest.approx(0.501, abs=5e-4)
    assert exact_cost(14, 0.4 / 14, 6.028) == pytest.approx(0.845, abs=5e-4)


@pytest.mark.parametrize("product", [0.02, 0.1, 0.2, 0.25])
@pytest.mark.parametrize("order", [1.5, 2.0, 14.0, 100.0])
@pytest.mark.parametrize("sigma", [0.5, 6.0])
def test_theorem_23_holds_up_to_a_quarter(order, product, sigma):
    beta = product / order
    assert exact_cost(order, beta, sigma) <= published_cost(order, beta, sigma)


@pytest.mark.parametrize(
    ("order", "product", "sigma", "z"),
    [(14.0, 0.4, 6.0, 0.0), (14.0, 0.2, 6.0, 3.0), (2.0, 0.1, 0.7, 2.0), (60.0, 0.3, 20.0, 0.05)],
)
def test_no_neighbour_costs_more(order, product, sigma, z):
    beta = product / order
    most, found = exact_cost(order, beta, sigma, z), []
    for log_ratio in np.linspace(-beta, beta, 2001):
        ratio = math.exp(log_ratio)
        furthest = min(1.0, ratio) + z * sigma * abs(1 - ratio)
        found += [divergence(order, ratio, share * furthest, sigma) for share in (0.0, 0.5, 1.0)]
    assert max(found) == pytest.approx(most, rel=1e-9)
    assert max(found) <= most * (1 + 1e-12)
    ratio = math.exp(-beta)
    moved = ratio + z * sigma * (1 - ratio)
    assert quadrature(order, ratio, moved, sigma) == pytest.approx(most, rel=1e-9)


def test_raising_the_mean_by_the_sensitivity_has_its_price():
    prices = [exact_cost(14.0, 0.2 / 14, 6.0, z) for z in (0.0, 1.0, 2.0, 3.0)]
    assert prices == sorted(prices)
    assert prices[-1] > 1.5 * prices[0]


def test_the_exact_cost_at_beta_zero_is_that_of_gaussian_noise():
    assert exact_cost(14.0, 1e-12, 6.0, 3.0) == pytest.approx(14 / 72, rel=1e-8)


def draws(release: Sanitised, value: float, size: float, count: int) -> np.ndarray:
    source = seeded(23)
    return np.array([release.release(value, size, source) for _ in range(count)])


RELEASE = Sanitised(order=14.0, beta=0.2 / 14, sigma=6.0, ceiling=20.0, z=1.0)


def law_is_kept(found: np.ndarray, value: float, size: float) -> bool:
    z = (found - value) / (size * RELEASE.sigma) - RELEASE.z
    return bool(stats.kstest(z, "norm").pvalue > FALSE_ALARM)


def test_releases_have_the_stated_law():
    found = draws(RELEASE, 8.0, 0.1, 20_000)
    assert law_is_kept(found, 8.0, 0.1)
    assert not law_is_kept(found, 8.0, 0.11)
    assert not law_is_kept(found, 8.03, 0.1)


def test_as_many_releases_lie_below_the_truth_as_stated():
    found = draws(RELEASE, 8.0, 0.1, 20_000)
    below = int((found < 8.0).sum())
    assert RELEASE.failure == pytest.approx(special.ndtr(-1.0), rel=1e-12)
    assert stats.binomtest(below, len(found), RELEASE.failure).pvalue > FALSE_ALARM
    assert stats.binomtest(below, len(found), RELEASE.failure * 0.8).pvalue < FALSE_ALARM


@pytest.mark.parametrize("size", [0.0, 1e-12, 0.01, 20.0])
def test_what_comes_out_lies_on_one_grid_whatever_the_sensitivity(size):
    found = draws(RELEASE, 8.0, size, 50)
    steps = found / float(RELEASE.grid)
    assert ((steps == np.floor(steps)) | (found == RELEASE.ceiling)).all()
    assert ((found >= 0) & (found <= RELEASE.ceiling)).all()
    if size == 0:
        assert (np.abs(found - 8.0) < 1e-5).all()


def test_rounding_never_goes_below():
    release = Sanitised(order=14.0, beta=0.01, sigma=6.0, ceiling=20.0, z=6.0)
    value = 8 + float(release.grid) / 3
    assert (draws(release, value, 0.0, 50) >= value).all()


def test_the_epsilon_of_the_votes():
    assert RELEASE.cost == pytest.approx(exact_cost(14.0, 0.2 / 14, 6.0, 1.0), abs=2e-6)
    assert RELEASE.cost > exact_cost(14.0, 0.2 / 14, 6.0, 1.0)
    classic = 1.2 + RELEASE.cost + math.log(1e5) / 13
    assert RELEASE.epsilon_classic(1.2, 1e-5) == pytest.approx(classic, rel=1e-12)
    whole = Renyi((14.0,), (1.2 + RELEASE.cost,))
    assert RELEASE.epsilon(1.2, 1e-5) == pytest.approx(whole.epsilon(1e-5), rel=1e-12)
    assert RELEASE.epsilon(1.2, 1e-5) < classic


def test_the_event_is_paid_at_the_best_finite_order():
    costs = RELEASE.costs()
    assert min(costs.orders) >= 1.5
    assert max(costs.orders) < 1 / -math.expm1(-2 * RELEASE.beta)
    assert dict(zip(costs.orders, costs.values, strict=True))[14.0] == RELEASE.cost
    event = RELEASE.event(1e-6)
    assert event.epsilon == costs.epsilon(1e-6)
    assert (event.delta, event.adjacency) == (1e-6, "add-remove")
    with pytest.raises(NotAccountable, match="two votes"):
        RELEASE.event(1e-6, "replace-one")


def test_from_votes_to_a_release():
    """Published votes; all settings are of round numbers, without a look at them."""
    counts = ARRAYS["mnist640_votes"]
    order, settings, answers = 14.0, (200.0, 150.0, 40.0), 300
    value = analysis.at_most(counts, answers, *settings, (order,)).values[0]
    beta = 0.2 / order
    size = smooth.smooth_sensitivity(smooth.changes_at_most(counts, answers, *settings, order), beta)
    ceiling = len(counts) * order / (2 * settings[1] ** 2) + answers * order / settings[2] ** 2
    release = Sanitised(order=order, beta=beta, sigma=4.0, ceiling=ceiling)
    assert value < ceiling
    assert 0 < size < ceiling / 10
    upper = release.release(value, size, seeded(1))
    assert value < upper <= ceiling


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"order": 1.4}, "1.5 or more"),
        ({"beta": 0.5 / 13}, "no finite cost"),
        ({"beta": 0.0}, "beta"),
        ({"sigma": -1.0}, "sigma"),
        ({"z": -1.0}, "z is"),
        ({"ceiling": math.inf}, "ceiling"),
    ],
)
def test_settings_are_checked(wrong, why):
    settings = {"order": 14.0, "beta": 0.01, "sigma": 6.0, "ceiling": 3.0} | wrong
    with pytest.raises(InputError, match=why):
        Sanitised(**settings)


@pytest.mark.parametrize(("value", "size"), [(-0.1, 0.1), (21.0, 0.1), (1.0, 21.0), (math.nan, 0.1)])
def test_values_beyond_the_ceiling_are_refused(value, size):
    with pytest.raises(InputError, match="ceiling"):
        RELEASE.release(value, size, seeded(1))


def test_theorem_23_is_kept_to_its_range():
    with pytest.raises(InputError, match="Theorem 23"):
        published_cost(14.0, 0.04, 6.0)
