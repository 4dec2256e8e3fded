"""RMIA: the reference vector, the order of scores, and `a` chosen on shadows."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.attacks import rmia
from sourdine.attacks.shadows import halves
from sourdine.errors import InputError

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "membership.json").read_text(encoding="utf-8")
)["rmia"]


def test_the_reference_vector() -> None:
    out = np.array(GOLDEN["p_out"])[:, None]
    mean = rmia.mean_outside(out, np.zeros_like(out, dtype=bool))
    usual = rmia.offline_usual(mean, GOLDEN["a"])
    assert usual[0] == pytest.approx(GOLDEN["p_x_marginal"], abs=1e-6)
    x = rmia.ratio(np.array([GOLDEN["p_x"]]), usual)
    z = rmia.ratio(np.array(GOLDEN["z"]), rmia.offline_usual(GOLDEN["z_out"], GOLDEN["a"]))
    assert x[0] / z == pytest.approx(GOLDEN["ratios"], abs=1e-6)
    assert rmia.score(x, z, 1.0)[0] == pytest.approx(GOLDEN["score_gamma1"], abs=1e-6)
    assert rmia.score(x, z, 2.0)[0] == pytest.approx(GOLDEN["score_gamma2"], abs=1e-6)


def test_online_takes_the_mean_of_both() -> None:
    p = np.array([[0.9, 0.2], [0.5, 0.4]])
    inside = np.array([[True, False], [False, True]])
    mean = rmia.mean_inside(p, inside), rmia.mean_outside(p, inside)
    assert rmia.online_usual(*mean) == pytest.approx([0.7, 0.3])


@given(
    st.lists(st.floats(0.01, 5), min_size=1, max_size=8),
    st.lists(st.floats(0.01, 5), min_size=1, max_size=8),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_the_search_is_the_definition(x: list[float], z: list[float], gamma: float) -> None:
    every = [np.mean([one / gamma >= other for other in z]) for one in x]
    found = rmia.score(np.array(x), np.array(z), gamma)
    assert found == pytest.approx(every)
    order = np.argsort(x)
    assert (np.diff(found[order]) >= 0).all()


def shadow_answers(lift: float) -> tuple[np.ndarray, np.ndarray]:
    """Shadows that find their own records likelier: p moves a share `lift` of the way to 1."""
    rng = np.random.default_rng(8)
    inside = halves(400, 8, 1)
    base = rng.uniform(0.05, 0.95, 400)
    noise = rng.normal(0, 0.01, inside.shape)
    return np.clip(base + inside * lift * (1 - base) + noise, 0, 1), inside


def test_a_is_chosen_by_what_shadows_show() -> None:
    """Where a record's own model finds it certain, p is (p_out + 1) / 2, that is a = 0; where being in
    changes little, p is p_out, that is a = 1."""
    assert rmia.choose_a(*shadow_answers(0.9)) < rmia.choose_a(*shadow_answers(0.05))
    few, inside = shadow_answers(0.9)
    assert rmia.choose_a(few[:2], inside[:2]) == 0.0


@pytest.mark.parametrize("a", [-0.1, 1.1])
def test_an_a_outside_of_its_range_is_refused(a: float) -> None:
    with pytest.raises(InputError, match="0 to 1"):
        rmia.offline_usual(np.array([0.5]), a)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="no record to compare"):
        rmia.score(np.array([1.0]), np.array([]))
    with pytest.raises(InputError, match="gamma is 0"):
        rmia.score(np.array([1.0]), np.array([1.0]), 0)
    with pytest.raises(InputError, match="in all shadows or in none"):
        rmia.mean_outside(np.ones((2, 1)), np.ones((2, 1), dtype=bool))
