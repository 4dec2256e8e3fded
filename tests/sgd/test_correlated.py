"""Correlated noise: its sensitivity by brute force, its stream against a dense solution, its curve attacked."""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sourdine.accounting import curve, renyi
from sourdine.accounting.filter import Filter
from sourdine.audit import Finding, check_mechanism
from sourdine.budget import Budget
from sourdine.errors import InputError, NotAccountable
from sourdine.events import CorrelatedEvent, Event, GaussianEvent, LaplaceEvent, PoissonEvent
from sourdine.rng import seeded
from sourdine.sgd.correlated import Bands, CorrelatedNoise, FixedLots

FALSE_ALARM = 1e-6
DRAWS = 200_000


def matrix(coefficients: tuple[float, ...], steps: int) -> np.ndarray:
    dense = np.zeros((steps, steps))
    for band, coefficient in enumerate(coefficients[:steps]):
        dense += coefficient * np.eye(steps, k=-band)
    return dense


def schedules(steps: int, most: int, separation: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, most + 1):
        for chosen in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
                yield chosen


@given(st.data())
def test_sensitivity_is_the_largest_that_any_schedule_reaches(data: st.DataObject) -> None:
    """Unit contributions in all schedules: equal, with random signs, and random in three dimensions."""
    steps = data.draw(st.integers(1, 10))
    coefficients = data.draw(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=4))
    separation = data.draw(st.integers(len(coefficients), 6))
    most = data.draw(st.integers(1, 4))
    event = CorrelatedEvent(1.0, tuple(coefficients), steps, most, separation)
    dense, rng, largest = matrix(event.coefficients, steps), np.random.default_rng(1), 0.0
    for chosen in schedules(steps, most, separation):
        columns = dense[:, chosen]
        signs = rng.choice([-1.0, 1.0], (len(chosen), 1))
        inside = rng.standard_normal((len(chosen), 3))
        inside /= np.linalg.norm(inside, axis=1, keepdims=True)
        for contributions in (np.ones((len(chosen), 1)), signs, inside):
            moved = float(np.linalg.norm(columns @ contributions))
            assert moved <= event.sensitivity * (1 + 1e-12)
            largest = max(largest, moved)
    assert largest == pytest.approx(event.sensitivity, rel=1e-12)


def test_closer_than_the_bands_squares_no_longer_add_up() -> None:
    """Why a separation below the bands is refused: aligned contributions then move more."""
    dense = matrix(Bands(12, 4, 3, 4).coefficients, 12)
    apart, close = (np.linalg.norm(dense[:, [0, gap]].sum(axis=1)) for gap in (4, 3))
    assert apart == pytest.approx(math.sqrt(2)) and close > 1.05 * apart


@pytest.mark.parametrize("bands", [1, 2, 7])
def test_the_stream_solves_the_dense_system(bands: int) -> None:
    plan, rng = Bands(30, bands, 4, 7), np.random.default_rng(2)
    noise = CorrelatedNoise(plan)
    fresh = rng.standard_normal((30, 5))
    made = [noise.step([torch.tensor(row[:2]), torch.tensor(row[2:])]) for row in fresh]
    flat = np.array([torch.cat(step).tolist() for step in made])
    assert np.allclose(flat, np.linalg.solve(matrix(plan.coefficients, 30), fresh), atol=1e-12)


def test_neither_the_given_nor_the_returned_noise_is_shared() -> None:
    plan = Bands(3, 2, 1, 2)
    careful, careless = CorrelatedNoise(plan), CorrelatedNoise(plan)
    for _ in range(3):
        given_ = torch.ones(4)
        kept, changed = careful.step([given_])[0], careless.step([given_])[0]
        assert torch.equal(kept, changed) and torch.equal(given_, torch.ones(4))
        changed.zero_()


def test_a_saved_state_goes_on_as_if_nothing_had_happened(tmp_path) -> None:
    plan, rng = Bands(20, 5, 2, 10), np.random.default_rng(3)
    fresh = [[torch.tensor(rng.standard_normal(4), dtype=torch.float32)] for _ in range(20)]
    whole = CorrelatedNoise(plan)
    expected = [whole.step(drawn)[0] for drawn in fresh]
    for cut in (0, 2, 11, 20):
        first, second = CorrelatedNoise(plan), CorrelatedNoise(plan)
        for drawn in fresh[:cut]:
            first.step(drawn)
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        rest = [second.step(drawn)[0] for drawn in fresh[cut:]]
        assert all(torch.equal(a, b) for a, b in zip(rest, expected[cut:], strict=True))
    assert "0." not in repr(whole)  # noise is not shown


def test_one_band_is_plain_gaussian_noise() -> None:
    plan = Bands(100, 1, 9, 10)
    assert plan.coefficients == (1.0,) and plan.sensitivity == 3.0
    assert plan.error == pytest.approx(3 * math.sqrt(101 / 2))
    for adjacency in ("zero-out", "replace-one"):
        found = curve(plan.event(2.0), adjacency).epsilon(1e-6)
        assert found == curve(9 * GaussianEvent(2.0), adjacency).epsilon(1e-6)


def test_more_bands_make_smaller_errors() -> None:
    errors = [Bands(1000, bands, 10, 100).error for bands in (1, 2, 10, 30, 100)]
    assert all(after < 0.95 * before for before, after in itertools.pairwise(errors))
    assert errors[0] / errors[-1] > 6
    for bands in (3, 20):  # and the search beats the bands of the square root it starts from
        root = tuple(math.comb(2 * j, j) / 4**j for j in range(bands))
        assert Bands(500, bands, 1, 500).error < 0.99 * Bands(500, bands, 1, 500, root).error


def test_the_error_is_that_of_noise_in_sums() -> None:
    plan = Bands(40, 6, 3, 12)
    sums = np.tril(np.ones((40, 40))) @ np.linalg.inv(matrix(plan.coefficients, 40))
    assert plan.error == pytest.approx(plan.sensitivity * np.linalg.norm(sums) / math.sqrt(40))


@pytest.mark.parametrize(("steps", "bands"), [(12, 3), (60, 8)])
def test_no_neighbour_of_the_coefficients_is_better(steps: int, bands: int) -> None:
    best, rng = Bands(steps, bands, 1, steps), np.random.default_rng(4)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(50):
            moved = np.array(best.coefficients) * (1 + size * rng.standard_normal(bands))
            moved = np.minimum.accumulate(moved / np.linalg.norm(moved))
            assert Bands(steps, bands, 1, steps, tuple(moved)).error > best.error * (1 - 1e-6)


def test_the_curve_is_that_of_one_gaussian() -> None:
    event = Bands(100, 8, 3, 25).event(1.5)
    mu = event.sensitivity / 1.5
    assert curve(event).epsilon(1e-6) == curve(GaussianEvent(1 / mu)).epsilon(1e-6)
    twice = curve(event, "replace-one").epsilon(1e-6)
    assert twice == pytest.approx(curve(GaussianEvent(0.5 / mu)).epsilon(1e-6), rel=1e-12)
    assert renyi(event, orders=[3.0]).values[0] == pytest.approx(1.5 * mu**2)
    together = curve(2 * event + GaussianEvent(4.0)).epsilon(1e-6).upper
    alike = GaussianEvent(1 / math.sqrt(2 * mu**2 + 1 / 16))
    assert together == pytest.approx(curve(alike).epsilon(1e-6).upper, rel=1e-9)
    cost, same = (Filter(Budget(1.0)).cost(e).renyi for e in (event, GaussianEvent(1 / mu)))
    assert cost == pytest.approx(same, rel=1e-9)


def test_dp_accounting_agrees() -> None:
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    event = Bands(100, 8, 3, 25).event(1.5)
    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.GaussianDpEvent(event.noise_multiplier / event.sensitivity))
    assert accountant.get_epsilon(1e-6) == pytest.approx(curve(event).epsilon(1e-6).upper, rel=1e-3)


def test_add_remove_needs_schedules_that_others_do_not_move() -> None:
    plan = Bands(20, 4, 2, 10)
    with pytest.raises(NotAccountable, match="moves the places of others"):
        curve(plan.event(1.0), "add-remove")
    own = curve(plan.event(1.0, own_schedule=True), "add-remove").epsilon(1e-6)
    assert own == curve(plan.event(1.0)).epsilon(1e-6)


def test_sampling_does_not_amplify_it() -> None:
    event = Bands(20, 4, 2, 10).event(1.0, own_schedule=True)
    with pytest.raises(NotAccountable, match="no proven bound here under sampling"):
        curve(PoissonEvent(0.1, event))


def test_json() -> None:
    event = Bands(100, 8, 3, 25).event(1.5, own_schedule=True)
    again = Event.from_json(event.to_json())
    assert again == event and hash(again) == hash(event)
    # Nothing in a file states the sensitivity: it follows from the fields.
    assert "sensitivity" not in event.to_json()
    with pytest.raises(InputError, match="at most 5 bands"):
        Event.from_json(event.to_json().replace('"separation": 25', '"separation": 5'))


# The attack: many runs side by side, each a column of the tensors that the noise maker is given.

PLAN = Bands(12, 4, 3, 4)
SIGMA = 1.5
WORST = np.isin(np.arange(12), (0, 4, 8)).astype(float)
TOO_CLOSE = np.isin(np.arange(12), (0, 3, 6)).astype(float)


def runs(share: float, seed: int = 5) -> Callable[[np.ndarray, int], np.ndarray]:
    """x + C^-1 z as training releases it, with a share of the noise."""
    rng = np.random.default_rng(seed)

    def many(x: np.ndarray, count: int) -> np.ndarray:
        noise = CorrelatedNoise(PLAN)
        drawn = share * SIGMA * rng.standard_normal((len(x), count))
        made = [noise.step([torch.from_numpy(z)])[0].numpy() for z in drawn]
        return (x[:, None] + np.stack(made)).T

    return many


def attacked(record: np.ndarray, share: float = 1.0, claim: Event | None = None) -> Finding:
    dense = matrix(PLAN.coefficients, 12)
    return check_mechanism(
        None,
        (np.zeros(12), record),
        claim or PLAN.event(SIGMA),
        draws=DRAWS,
        false_alarm=FALSE_ALARM,
        score=lambda outputs: np.asarray(outputs) @ dense.T @ dense @ record,
        many=runs(share),
    )


def test_the_promise_is_kept() -> None:
    attacked(WORST).raise_if_broken()
    attacked(-WORST * (-1) ** np.cumsum(WORST)).raise_if_broken()


def test_a_tenth_less_noise_is_caught() -> None:
    assert not attacked(WORST, share=0.9).kept


def test_coming_back_one_step_too_early_is_caught() -> None:
    assert not attacked(TOO_CLOSE).kept


def test_the_sensitivity_of_one_column_is_caught() -> None:
    once = CorrelatedEvent(SIGMA, PLAN.coefficients, 12, 1, 4)
    assert not attacked(WORST, claim=once).kept
    assert attacked(np.eye(12)[0], claim=once).kept


@pytest.mark.parametrize(("share", "kept"), [(1.0, True), (0.9, False)])
def test_contributions_that_react_to_what_was_released(share: float, kept: bool) -> None:
    """The record turns its contribution, in the plane, by what it has seen; so does the attack's score."""
    dense, rng = matrix(PLAN.coefficients, 12), np.random.default_rng(6)

    def shift(row: np.ndarray, seen: np.ndarray, angles: np.ndarray, step: int) -> None:
        if WORST[step]:
            angles[:, step] = 3 * seen.sum(axis=(1, 2))
        turned = np.stack([np.cos(angles), np.sin(angles)], axis=2) * WORST[None, :, None]
        row[:] = turned[:, : step + 1].transpose(0, 2, 1) @ dense[step, : step + 1]

    def many(present: int, count: int) -> np.ndarray:
        outputs, angles, row = np.zeros((count, 12, 2)), np.zeros((count, 12)), np.zeros((count, 2))
        for step in range(12):
            shift(row, outputs[:, :step], angles, step)
            outputs[:, step] = present * row + share * SIGMA * rng.standard_normal((count, 2))
        return outputs

    def score(outputs: np.ndarray) -> np.ndarray:
        seen, angles = np.asarray(outputs), np.zeros((len(outputs), 12))
        row, total = np.zeros((len(outputs), 2)), np.zeros(len(outputs))
        for step in range(12):
            shift(row, seen[:, :step], angles, step)
            total += (row * seen[:, step]).sum(axis=1) - (row * row).sum(axis=1) / 2
        return total

    claim = PLAN.event(SIGMA)
    finding = check_mechanism(None, (0, 1), claim, draws=DRAWS, score=score, many=many)
    assert finding.kept is kept


def test_fixed_lots_visit_everyone_once_a_round() -> None:
    lots = FixedLots(23, 5, steps=12, bands=4)
    assert lots.blocks == 5
    drawn = [lots.draw(step, seeded(0)) for step in range(12)]
    assert np.concatenate(drawn[:5]).tolist() == list(range(23))
    assert {len(lot) for lot in drawn} == {4, 5}
    for record in range(23):
        steps = [step for step, lot in enumerate(drawn) if record in lot]
        assert len(steps) <= 3 and all(np.diff(steps) == 5)


def test_the_event_of_fixed_lots() -> None:
    lots = FixedLots(1000, 10, steps=250, bands=16)
    event = lots.event(GaussianEvent(2.0), 250)
    assert event == Bands(250, 16, 3, 100).event(2.0) == lots.plan().event(2.0)
    assert event.sensitivity == pytest.approx(math.sqrt(3))
    # Stopping early costs less, and the noise made so far had the same coefficients.
    early = [lots.event(GaussianEvent(2.0), steps) for steps in (1, 5, 100, 101, 201)]
    costs = [curve(e).epsilon_upper(1e-6) for e in [*early, event]]
    assert all(a < b for a, b in itertools.pairwise(costs))
    assert {e.coefficients for e in early} == {event.coefficients}


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: Bands(10, 4, 2, 3), "back after 3 steps, but 4 bands need 4 or more: use at most 3"),
        (lambda: Bands(10, 11, 1, 20), "11 bands are more than the 10 steps"),
        (lambda: Bands(10, 2, 1, 5, (1.0,)), "1 coefficients were given for 2 bands"),
        (lambda: Bands(10, 2, 1, 5, (0.5, 1.0)), "the coefficients rise"),
        (lambda: Bands(10, 2, 1, 5, (1.0, -0.1)), "a coefficient is -0.1"),
        (lambda: Bands(10, 2, 1, 5, (0.0, 0.0)), "the first coefficient is 0"),
        (lambda: Bands(0, 1, 1, 1), "steps is 0"),
        (lambda: Bands(10, 2, 0, 5), "participations is 0"),
        (lambda: Bands(10, 2, 1, 5).event(1.0, 11), "11 steps are more than the 10"),
        (lambda: Bands(10, 2, 1, 5).event(0.0), "noise_multiplier is 0"),
        (lambda: CorrelatedEvent(1.0, (1.0, 0.5), 10, 2, 1), "at most 1 bands"),
        (lambda: CorrelatedEvent(1.0, (), 10, 2, 1), "at least one"),
        (lambda: CorrelatedEvent(1.0, (1.0, math.inf), 10, 2, 2), "a coefficient is inf"),
        (lambda: CorrelatedEvent(1.0, (1.0,), 10, 2, 2, 1), "own_schedule is 1"),
        (lambda: FixedLots(100, 10, 50, 11), "a record comes back after 10 steps, but 11 bands"),
        (lambda: FixedLots(100, 7.5, 50), "whole size"),
        (lambda: FixedLots(100, 10, 5, 6), "6 bands are more than the 5 steps"),
        (lambda: FixedLots(100, 10, 50).event(LaplaceEvent(1.0), 50), "Gaussian noise"),
        (lambda: FixedLots(100, 10, 50).event(GaussianEvent(1.0), 51), "51 steps are more"),
    ],
)
def test_bad_plans(act: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        act()


def test_bad_noise() -> None:
    noise = CorrelatedNoise(Bands(3, 2, 1, 2))
    with pytest.raises(InputError, match="needs 32 bits"):
        noise.step([torch.zeros(2, dtype=torch.bfloat16)])
    noise.step([torch.zeros(2)])
    for other in ([torch.zeros(3)], [torch.zeros(2), torch.zeros(2)], [torch.zeros(2).double()]):
        with pytest.raises(InputError, match="other shapes or types"):
            noise.step(other)
    noise.step([torch.zeros(2)])
    noise.step([torch.zeros(2)])
    with pytest.raises(InputError, match="all 3 planned steps were made"):
        noise.step([torch.zeros(2)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coefficients": [1.0, 0.5]}, "other coefficients"),
        ({"steps": 4}, "past the 3 planned"),
        ({"past": []}, "noise of some past steps is missing"),
    ],
)
def test_bad_states(change: dict[str, object], said: str) -> None:
    noise = CorrelatedNoise(Bands(3, 2, 1, 2))
    noise.step([torch.zeros(2)])
    state = noise.state_dict()
    with pytest.raises(InputError, match=said):
        noise.load_state_dict(state | change)
    with pytest.raises(InputError, match="past, steps lack"):
        noise.load_state_dict({"coefficients": []})
