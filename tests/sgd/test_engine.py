"""The loop: what is charged, when, what each step does, and what it refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from zoo import torch

from sourdine import rng
from sourdine.accounting import curve
from sourdine.accounting.filter import Filter
from sourdine.budget import Budget
from sourdine.errors import BudgetError, CheckError, InputError
from sourdine.events import GaussianEvent, PoissonEvent
from sourdine.ledger import Ledger
from sourdine.sgd import AdamW, Adaptive, Engine, PerLayer, ShuffledLots, TruncatedPoissonLots, traced
from sourdine.sgd import engine as room

nn = torch.nn
N, STEPS, LOT = 60, 5, 12


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


def points(count: int = N) -> list[Any]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return [(row, (row.sum() > 0).long()) for row in x]


DATA = points()
PLENTY = {unit: Budget(1e6, 1e-6, unit) for unit in ("example", "user")}  # for tests of something else


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """What an event costs is worked out once for all tests."""
    costs: dict[Any, Any] = {}
    real = Filter._cost

    def cost(self: Filter, event: Any) -> Any:
        if (self.budget, event) not in costs:
            costs[self.budget, event] = real(self, event)
        return costs[self.budget, event]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filter, "_cost", cost)
        yield


def small() -> Any:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    with torch.no_grad():
        for place, weight in enumerate(net.parameters()):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(place)))
    return net


def losses(net: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(net(batch[0]), batch[1], reduction="none")


def engine(
    net: Any = None, data: Any = DATA, budget: Any = PLENTY, optimizer: Any = None, **settings: Any
) -> Any:
    net = net or small()
    optimizer = optimizer or torch.optim.SGD([w for w in net.parameters() if w.requires_grad], lr=1.0)
    given = {"loss": losses, "lot_size": LOT, "steps": STEPS, "source": rng.seeded(3)}
    if budget is PLENTY:
        budget = PLENTY["user" if settings.get("users") else "example"]
        given["noise_multiplier"] = 1.0
    return Engine(net, optimizer, data, budget, **(given | settings))


def reported(**settings: Any) -> Any:
    """Without a budget."""
    return engine(budget=None, **({"noise_multiplier": 1.0} | settings))


def run(made: Any) -> Any:
    for lot in made.lots():
        made.step(lot)
    return made


def weights(made: Any) -> Any:
    return torch.cat([w.detach().flatten().clone() for w in made.model.parameters()])


@pytest.fixture
def silent(monkeypatch: Any) -> list[tuple[float, list[Any]]]:
    """No noise; keeps its deviation and the sums that it would have gone onto."""
    seen: list[tuple[float, list[Any]]] = []

    def none(tensors: Any, deviation: float, source: Any) -> None:
        seen.append((deviation, [x.clone() for x in tensors]))

    monkeypatch.setattr(room, "add_noise_", none)
    return seen


def flat(tensors: list[Any]) -> Any:
    return torch.cat([x.flatten() for x in tensors])


def brute(net: Any, data: list[Any], clip: float) -> Any:
    """The clipped sum, one example at a time."""
    total: Any = 0
    for x, y in data:
        own = torch.autograd.grad(losses(net, (x[None], y[None]))[0], list(net.parameters()))
        row = torch.cat([g.flatten() for g in own])
        total = total + row * min(1.0, clip / float(row.norm()))
    return total


# Three lines


def test_it_trains() -> None:
    data = points(600)
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    batch = torch.utils.data.default_collate(data)
    before = float(losses(net, batch).detach().mean())
    made = Engine(net, optimizer, data, Budget(8, 1e-5), loss=losses, lot_size=200, steps=30)
    for lot in made.lots():
        made.step(lot)
    assert float(losses(net, batch).detach().mean()) < 0.6 * before
    assert 0.99 * 8 < made.epsilon() <= 8
    assert made.ledger.spent().epsilon == pytest.approx(made.epsilon())
    assert made.done == 30


def test_the_noise_is_what_the_budget_allows() -> None:
    made = engine(budget=Budget(2, 1e-6))
    rate = LOT / N

    def cost(noise: float) -> float:
        return curve(STEPS * PoissonEvent(rate, GaussianEvent(noise))).epsilon_upper(1e-6)

    assert cost(made.noise_multiplier) <= 2 < cost(0.99 * made.noise_multiplier)
    assert made.epsilon() == 0


def test_a_given_noise_has_its_epsilon_reported() -> None:
    made = run(reported(noise_multiplier=1.3, delta=1e-5))
    wanted = curve(STEPS * PoissonEvent(LOT / N, GaussianEvent(1.3))).epsilon_upper(1e-5)
    assert made.epsilon() == pytest.approx(wanted, rel=1e-6)
    assert made.ledger.budget.delta == 1e-5


def test_epsilon_grows_with_the_steps() -> None:
    made = reported(steps=3)
    found = [made.epsilon()]
    for lot in made.lots():
        made.step(lot)
        found.append(made.epsilon())
    assert found[0] == 0
    assert all(a < b for a, b in itertools.pairwise(found))


# The ledger


def test_what_was_spent_before_counts() -> None:
    ledger = Ledger(None, Budget(4, 1e-6))
    ledger.charge(GaussianEvent(3.0), "a mean")
    fresh = engine(budget=Budget(4, 1e-6)).noise_multiplier
    made = engine(budget=ledger)
    assert made.noise_multiplier > fresh
    run(made)
    assert 0.95 * 4 < ledger.spent().epsilon <= 4
    assert len(ledger.history()) == 3


def test_what_is_spent_is_spent() -> None:
    ledger = Ledger(None, Budget(2, 1e-6))
    run(engine(budget=ledger))
    with pytest.raises(BudgetError):
        engine(budget=ledger)
    assert len(ledger.history()) == 2


def test_refused_before_anything_is_drawn(silent: list[Any]) -> None:
    made = engine(budget=Budget(0.5, 1e-6), noise_multiplier=1.0)
    before, state = weights(made), torch.get_rng_state()
    with pytest.raises(BudgetError, match="'training' was not run"):
        next(made.lots())
    assert not silent
    assert made._open is None
    assert made.ledger.history() == []
    assert torch.equal(weights(made), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_whole_plan_is_charged_before_the_first_lot() -> None:
    made = reported(label="a run")
    assert made.ledger.history() == []
    lots = made.lots()
    assert made.ledger.history() == []
    next(lots)
    (entry,) = made.ledger.history()
    assert (entry.kind, entry.label, entry.source) == ("reserve", "a run", "seeded")
    planned = curve(STEPS * PoissonEvent(LOT / N, GaussianEvent(1.0))).epsilon_upper(1e-6)
    assert made.ledger.spent().epsilon == pytest.approx(planned, rel=1e-3)


def test_a_run_that_dies_has_spent_its_plan() -> None:
    ledger = Ledger(None, Budget(5, 1e-6))
    made = engine(budget=ledger, noise_multiplier=1.0)
    for lot in made.lots():
        made.step(lot)
        if made.done == 3:
            break
    del made
    planned = curve(STEPS * PoissonEvent(LOT / N, GaussianEvent(1.0))).epsilon_upper(1e-6)
    assert ledger.spent().epsilon >= 0.999 * planned


@pytest.mark.parametrize("because", ["interrupt", "clock", "crash", "outputs"])
def test_a_run_that_is_stopped(because: str) -> None:
    ledger = Ledger(None, Budget(5, 1e-6))
    made = engine(budget=ledger, noise_multiplier=1.0)
    lots = made.lots()
    for _ in range(3):
        made.step(next(lots))
    planned = ledger.spent().epsilon
    made.stop(because)
    if because == "outputs":
        assert ledger.spent().epsilon == pytest.approx(planned)
    else:
        assert ledger.spent().epsilon < planned
    assert ledger.history()[-1].reason == because
    with pytest.raises(InputError, match="this run is over"):
        next(made.lots())


def test_a_finished_run_is_over() -> None:
    made = run(reported())
    assert [entry.reason for entry in made.ledger.history()] == ["", "done"]
    with pytest.raises(InputError, match="over"):
        next(made.lots())


# Lots


def test_each_lot_is_used_once() -> None:
    made, other = engine(), engine()
    lots = made.lots()
    lot = next(lots)
    foreign = next(other.lots())
    with pytest.raises(InputError, match="of another run"):
        made.step(foreign)
    made.step(lot)
    with pytest.raises(InputError, match="used before"):
        made.step(lot)
    next(lots)
    with pytest.raises(InputError, match="was not used"):
        next(lots)


def test_a_lot_shows_nothing() -> None:
    lot = next(engine().lots())
    assert repr(lot) == str(lot) == "<lot of step 0>"
    assert not hasattr(lot, "__dict__")
    with pytest.raises(TypeError):
        len(lot)


def test_a_step_returns_nothing() -> None:
    made = engine()
    assert made.step(next(made.lots())) is None


@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_one_step_is_the_clipped_sum_over_the_planned_size(silent: list[Any], clip: float) -> None:
    made = engine(clip=clip)
    for lot in made.lots():
        before = small()
        before.load_state_dict(made.model.state_dict())
        chosen = [DATA[int(place)] for place in lot._units]
        assert len(chosen) != LOT or made.done, "the planned size would not show"
        wanted = brute(before, chosen, clip)
        made.step(lot)
        deviation, sums = silent[-1]
        assert deviation == pytest.approx(clip)
        torch.testing.assert_close(flat(sums), wanted, rtol=1e-4, atol=1e-5)
        moved = flat(list(before.parameters())) - flat(list(made.model.parameters()))
        torch.testing.assert_close(moved, wanted / LOT, rtol=1e-3, atol=1e-5)


def test_the_noise_has_its_deviation() -> None:
    # 3,000 values of deviation 0.8 * 0.5: 6 deviations of their mean square, false alarm 2e-9.
    net = nn.Linear(4, 3000, bias=False)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    made = engine(
        net, clip=0.5, noise_multiplier=0.8, loss=lambda net, b: 0 * net(b[0]).sum(1), steps=1
    )
    run(made)
    noise = net.weight.detach() * LOT / 0.4
    count = noise.numel()
    assert abs(float(noise.square().mean()) - 1) < 6 * math.sqrt(2 / count)
    assert abs(float((noise * 0.9).square().mean()) - 1) > 6 * math.sqrt(2 / count)


def test_empty_lots_are_steps_with_noise() -> None:
    made = engine(lot_size=0.01, steps=3)
    sizes, moved = [], []
    for lot in made.lots():
        sizes.append(len(lot._units))
        before = weights(made)
        made.step(lot)
        moved.append(bool((weights(made) != before).all()))
    assert sizes == [0, 0, 0]
    assert moved == [True, True, True]


@pytest.mark.parametrize("size", [1, 3, 8, 64])
def test_the_physical_batch_changes_nothing(size: int) -> None:
    wanted = weights(run(engine(batch_size=5)))
    torch.testing.assert_close(weights(run(engine(batch_size=size))), wanted, rtol=1e-3, atol=2e-3)
    # Sums are rounded to a grid of a thousandth of the noise; another draw is far away.
    assert float((weights(run(engine(source=rng.seeded(4)))) - wanted).abs().max()) > 0.1


@pytest.mark.parametrize("size", [1, 3, 8, 64])
def test_the_physical_batch_changes_no_sum(size: int, silent: list[Any]) -> None:
    run(engine(batch_size=5))
    wanted = [flat(sums) for _, sums in silent]
    silent.clear()
    run(engine(batch_size=size))
    for (_, sums), right in zip(silent, wanted, strict=True):
        torch.testing.assert_close(flat(sums), right, rtol=1e-4, atol=1e-4)


def test_other_ways_to_draw_lots() -> None:
    for lots in (ShuffledLots(N, 12), TruncatedPoissonLots(N, 12, 40)):
        made = run(engine(lots=lots, lot_size=None, noise_multiplier=5.0))
        assert made.done == STEPS
    with pytest.raises(InputError, match="out of 61"):
        engine(lots=ShuffledLots(61, 12))
    with pytest.raises(InputError, match="lot_size is 13"):
        engine(lots=ShuffledLots(N, 12), lot_size=13)


# Adjacency and units


def test_under_add_remove_the_number_of_records_is_declared() -> None:
    budget = Budget(3, 1e-6, adjacency="add-remove")
    with pytest.raises(InputError, match="declare one with records="):
        engine(budget=budget)
    made = engine(budget=budget, records=100)
    assert made.plan.rate == LOT / 100
    noise = made.noise_multiplier
    # Neighbours: one record less changes neither the rate nor the noise nor the divisor.
    other = engine(budget=budget, records=100, data=DATA[1:])
    assert (other.noise_multiplier, other.plan) == (noise, made.plan)
    sizes = [len(lot._units) for _ in range(1) for lot in _drawn(made)]
    assert abs(sum(sizes) / STEPS - N * LOT / 100) < 6  # about 7 of 60 at rate 0.12


def _drawn(made: Any) -> Iterator[Any]:
    for lot in made.lots():
        yield lot
        made.step(lot)


USERS = [min(place // 4, 9) for place in range(N)]  # nine users of 4 examples, one of 24


def test_users_are_clipped_together(silent: list[Any]) -> None:
    made = engine(users=USERS, most_per_user=6, lot_size=5, clip=0.3, steps=1, batch_size=13)
    (lot,) = _drawn(made)
    net, wanted = small(), 0
    assert len(lot._units) > 1
    source = made._units
    for unit in lot._units:
        own = [place for place, user in enumerate(USERS) if user == int(unit)]
        if len(own) > 6:
            continue
        mean = torch.stack([losses(net, (DATA[p][0][None], DATA[p][1][None]))[0] for p in own]).mean()
        row = flat(list(torch.autograd.grad(mean, list(net.parameters()))))
        wanted = wanted + row * min(1.0, 0.3 / float(row.norm()))
    found = flat(silent[0][1])
    capped = any(len(source.examples[int(unit)]) > 6 for unit in lot._units)
    if capped:
        assert float((found - wanted).norm()) <= 0.3 * (1 + 1e-5)
    else:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_budget_and_the_units_agree() -> None:
    with pytest.raises(InputError, match="users="):
        engine(budget=Budget(3, 1e-6, unit="user"))
    with pytest.raises(InputError, match="leave users= out"):
        engine(budget=Budget(3, 1e-6), users=USERS, lot_size=3)
    assert reported(users=USERS, lot_size=3).ledger.budget.unit == "user"


def test_nobody_spoils_the_contribution_of_another(silent: list[Any]) -> None:
    # A user with fewer examples than the cap is filled up; with weight 0, but 0 * inf is not a number.
    data = [(torch.full((4,), float("inf")), torch.tensor(0)), *DATA[1:3]]
    sums = []
    for first in (data[0], (torch.zeros(4), torch.tensor(0))):
        silent.clear()
        run(
            engine(
                data=[first, *data[1:]], users="abc", most_per_user=2, lot_size=3, steps=1, check=False
            )
        )
        sums.append(flat(silent[0][1]))
    spoilt, fine = sums
    silent.clear()
    run(engine(data=data[1:], users="bc", most_per_user=2, lot_size=2, steps=1, check=False))
    torch.testing.assert_close(spoilt, flat(silent[0][1]), rtol=1e-5, atol=1e-6)
    assert 0.1 < float((fine - spoilt).norm()) <= 1 + 1e-5


# Optimizers


@pytest.mark.parametrize(
    "make",
    [
        lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda w: torch.optim.Adam(w, lr=0.1),
        lambda w: torch.optim.AdamW(w, lr=0.1, fused=True),
        lambda w: torch.optim.Adagrad(w, lr=0.1),
        lambda w: torch.optim.RMSprop(w, lr=0.1),
        lambda w: AdamW(w, lr=0.1),
    ],
    ids=["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "ours"],
)
def test_any_optimizer(make: Any, silent: list[Any]) -> None:
    net, twin = small(), small()
    made = engine(net, optimizer=make(list(net.parameters())))
    plain = make(list(twin.parameters()))
    for lot in made.lots():
        made.step(lot)
        if isinstance(plain, AdamW):
            plain.noise_variance = (1.0 / LOT) ** 2
        [flat] = silent[-1][1]
        parts = flat.split([weight.numel() for weight in twin.parameters()])
        for weight, total in zip(twin.parameters(), parts, strict=True):
            weight.grad = total.view(weight.shape) / LOT
        plain.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_optimizer_is_told_the_variance() -> None:
    net = small()
    optimizer = AdamW(net.parameters())
    run(engine(net, optimizer=optimizer, clip=0.5, noise_multiplier=2.0))
    assert optimizer.noise_variance == pytest.approx((2.0 * 0.5 / LOT) ** 2)


def test_schedulers() -> None:
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS)
    made = engine(net, optimizer=optimizer)
    rates = []
    for lot in made.lots():
        rates.append(optimizer.param_groups[0]["lr"])
        made.step(lot)
        schedule.step()
    assert rates == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_optimizers_that_want_a_closure_are_refused() -> None:
    net = small()
    with pytest.raises(InputError):
        engine(net, optimizer=torch.optim.LBFGS(net.parameters()))


def test_the_optimizer_moves_what_is_trained() -> None:
    net = small()
    with pytest.raises(InputError, match=r"2\.weight requires a gradient, but the optimizer"):
        engine(net, optimizer=torch.optim.SGD(net[0].parameters(), lr=1.0))
    with pytest.raises(InputError, match="1 tensors that the model does not have"):
        stranger = nn.Parameter(torch.ones(1))
        engine(net, optimizer=torch.optim.SGD([*net.parameters(), stranger], lr=1.0))
    net[0].requires_grad_(False)
    engine(net, optimizer=torch.optim.SGD(net.parameters(), lr=1.0))  # with frozen ones: as people do


def test_a_step_that_is_interrupted_is_not_made_again(monkeypatch: Any) -> None:
    class Sick(torch.optim.SGD):
        def step(self, *given: Any) -> None:
            super().step(*given)
            if not drawn[1:]:
                raise KeyboardInterrupt

    drawn: list[Any] = []
    real = room.add_noise_

    def keep(tensors: Any, deviation: float, source: Any) -> None:
        noise = [torch.zeros_like(x) for x in tensors]
        real(noise, deviation, source)
        drawn.append(noise[0].clone())
        for x, more in zip(tensors, noise, strict=True):
            x.add_(more)

    monkeypatch.setattr(room, "add_noise_", keep)
    net = small()
    made = engine(net, optimizer=Sick(net.parameters(), lr=1.0))
    with pytest.raises(KeyboardInterrupt):
        run(made)
    run(made)
    assert len(drawn) == STEPS
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


# What is left alone


def test_frozen_parameters_and_names_stay(silent: list[Any]) -> None:
    net = small()
    net[0].requires_grad_(False)
    names, frozen = list(net.state_dict()), net[0].weight.clone()
    run(engine(net))
    assert torch.equal(net[0].weight, frozen)
    assert net[0].weight.grad is None
    assert list(net.state_dict()) == names
    assert all(weight.grad is None for weight in net.parameters())
    trained = sum(weight.numel() for weight in net[2:].parameters())
    assert all([len(total) for total in sums] == [trained] for _, sums in silent)


def test_global_randomness_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    state = torch.get_rng_state()
    made = engine(net)
    lots = made.lots()
    for _ in range(2):
        made.step(next(lots))
        assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)  # nor does it matter
    first = weights(made)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    made = engine(net)
    torch.manual_seed(7)
    lots = made.lots()
    for _ in range(2):
        made.step(next(lots))
    assert torch.equal(weights(made), first)


def test_seeded_runs_repeat_and_secure_ones_do_not() -> None:
    one, two, *others = (
        weights(run(engine(source=source, steps=2)))
        for source in (rng.seeded(3), rng.seeded(3), rng.seeded(4), None, None)
    )
    assert torch.equal(one, two)
    found = [one, *others]
    assert all(float((a - b).norm()) > 0.1 for i, a in enumerate(found) for b in found[:i])
    made = engine(source=None)
    next(made.lots())
    assert made.ledger.history()[-1].source == "secure"


def test_gradients_left_by_the_user_do_not_count(silent: list[Any]) -> None:
    made = engine()
    lots = made.lots()
    for weight in made.model.parameters():
        weight.grad = torch.full_like(weight, 1e6)
    made.step(next(lots))
    assert float(flat(silent[0][1]).norm()) <= LOT * 3


def test_a_parameter_that_no_loss_needs_gets_noise_alone(silent: list[Any]) -> None:
    net = small()
    net.aside = nn.Linear(3, 3)
    run(engine(net, loss=lambda net, b: losses(net[:3], b)))
    assert all(not x.any() for _, sums in silent for x in sums[4:])
    assert all(x.any() for _, sums in silent for x in sums[:4])


# Clips


def test_an_adaptive_clip_pays_for_its_count(silent: list[Any]) -> None:
    clip = Adaptive(0.01, count_noise=3.0)
    made = engine(clip=clip)
    clips = []
    for lot in made.lots():
        clips.append(clip.clip)
        made.step(lot)
    sums, counts = silent[::2], silent[1::2]
    rest = (1 - (2 * 3.0) ** -2) ** -0.5
    assert [deviation for deviation, _ in counts] == [3.0] * STEPS
    assert [deviation for deviation, _ in sums] == pytest.approx([rest * each for each in clips])
    assert clips == sorted(clips)  # far below the norms: it has to grow
    assert clips[0] < clips[-1]
    # All are above the clip: the sum of b - 1/2 is minus half the lot, whatever its planned size.
    assert all(float(x) <= 0 and float(2 * x).is_integer() for _, (x,) in counts)
    wanted = [a * math.exp(-0.2 * (max(0.0, float(x) / LOT + 0.5) - 0.5))
              for a, (_, (x,)) in zip(clips, counts, strict=True)]  # fmt: skip
    assert [*clips[1:], clip.clip] == pytest.approx(wanted)


def test_clips_by_layer(silent: list[Any]) -> None:
    made = engine(clip=PerLayer({"0": 0.3, "2": 0.4}))
    run(made)
    assert [deviation for deviation, _ in silent] == pytest.approx([0.5] * STEPS)
    with pytest.raises(InputError, match=r"no clip is given for 2\.weight"):
        run(engine(clip=PerLayer({"0": 0.3})))


# What is refused


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 0},
        {"steps": 2.5},
        {"lot_size": None},
        {"lot_size": 0},
        {"lot_size": N + 1},
        {"lot_size": float("nan")},
        {"clip": 0},
        {"clip": float("inf")},
        {"clip": "1"},
        {"noise_multiplier": 0},
        {"noise_multiplier": -1},
        {"noise_multiplier": None},
        {"delta": 0},
        {"delta": 1},
        {"batch_size": 0},
        {"save_every": 0},
        {"users": [1, 2]},
        {"most_per_user": 2},
        {"most_per_user": 0},
        {"records": 0},
        {"budget": 3},
        {"budget": "3"},
    ],
    ids=str,
)
def test_bad_inputs(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        engine(**({"budget": None, "noise_multiplier": 1.0} | settings))


def test_models_that_cannot_be_private() -> None:
    with pytest.raises(InputError, match="batch norm"):
        engine(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))


def test_losses_that_are_averaged() -> None:
    made = engine(loss=lambda net, b: losses(net, b).mean())
    with pytest.raises(InputError, match="one loss per example"):
        run(made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_the_loop_is_no_harm(dtype: Any, silent: list[Any]) -> None:
    made = engine(clip=0.01, lot_size=0.999 * N)
    with torch.autocast("cpu", dtype):
        for lot in made.lots():
            count = len(lot._units)
            made.step(lot)
            found = flat(silent[-1][1])
            assert found.dtype == torch.float32
            assert float(found.norm()) <= 0.01 * count


def test_a_run_that_is_stopped_draws_nothing_more() -> None:
    made = engine()
    lots = made.lots()
    made.step(next(lots))
    lot = next(lots)
    made.stop("interrupt")
    with pytest.raises(InputError, match="stopped"):
        made.step(lot)
    assert list(lots) == []
    assert made.done == 1


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_users_may_come_as_a_tensor_or_an_array(kind: str) -> None:
    ids = torch.arange(N) // 4
    users = ids if kind == "tensor" else ids.numpy()
    made = engine(users=users, most_per_user=4, lot_size=5, budget=PLENTY["user"])
    assert made.plan.records == N // 4


@pytest.mark.parametrize("unknown", [None, math.nan, torch.tensor(3)])
def test_a_user_who_is_not_known_is_refused(unknown: Any) -> None:
    with pytest.raises(InputError, match="cannot name a user"):
        engine(users=[unknown, *range(N - 1)], lot_size=5)


def test_delta_above_one_in_so_many_is_refused() -> None:
    with pytest.raises(InputError, match="above one in 60"):
        engine(budget=Budget(3, 0.02))


def test_a_loss_that_fails_costs_nothing() -> None:
    made = engine(loss=lambda net, batch: batch["label"])
    with pytest.raises(TypeError):
        next(made.lots())
    assert made.ledger.history() == []


def test_only_data_that_can_be_drawn_from_is_taken() -> None:
    with pytest.raises(InputError, match="not a DataLoader"):
        engine(data=torch.utils.data.DataLoader(DATA, batch_size=4))
    with pytest.raises(InputError, match="len"):
        engine(data=(row for row in DATA))
    with pytest.raises(InputError, match="a DataFrame has columns"):
        engine(data=pytest.importorskip("pandas").DataFrame({"x": [1.0]}))


def test_what_is_no_model_no_function_and_no_folder_is_said(tmp_path: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(InputError, match=r"must be a torch.nn.Module, not int"):
        Engine(3, optimizer, DATA, None, loss=losses)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be functions"):
        engine(loss=None)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be a run folder"):
        engine(folder=tmp_path / "file")


def test_a_paused_run_goes_on_from_its_folder(tmp_path: Any) -> None:
    made = engine(folder=tmp_path, save_every=1)
    lots = made.lots()
    made.step(next(lots))
    with pytest.raises(InputError, match="in use"):
        engine(folder=tmp_path, save_every=1)
    made.pause()
    again = engine(folder=tmp_path, save_every=1)
    for lot in again.lots():
        again.step(lot)
    assert again.done == STEPS


@pytest.mark.parametrize("graphs", [None, traced])
def test_gradients_that_are_put_elsewhere_would_get_no_noise(graphs: Any) -> None:
    """A loss that clears .grad, as copied training loops do."""

    def clears(model: Any, batch: Any) -> Any:
        model.zero_grad()
        return losses(model, batch)

    with pytest.raises(InputError, match="to the engine"):
        run(engine(small(), loss=clears, graphs=graphs))


@pytest.mark.parametrize("graphs", [None, traced])
def test_a_layer_that_is_unfrozen_later_would_get_no_noise(graphs: Any) -> None:
    net = small()
    net[0].requires_grad_(False)
    made = engine(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), graphs=graphs)
    lots = made.lots()
    made.step(next(lots))
    net[0].requires_grad_(True)
    with pytest.raises(InputError, match="what is trained has changed"):
        made.step(next(lots))


@pytest.mark.parametrize("graphs", [None, traced])
def test_a_layer_that_is_unfrozen_inside_the_loss_would_get_no_noise(graphs: Any) -> None:
    net = small()
    net[0].requires_grad_(False)
    before = net[0].weight.detach().clone()
    late = [False]

    def unfreezes(model: Any, batch: Any) -> Any:
        net[0].requires_grad_(late[0])
        return losses(model, batch)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    made = engine(net, optimizer=optimizer, loss=unfreezes, graphs=graphs)
    lots = made.lots()
    made.step(next(lots))
    late[0] = True
    with pytest.raises(InputError, match="what is trained has changed"):
        for lot in lots:
            made.step(lot)
    assert torch.equal(net[0].weight, before)
    assert all(x.grad is None for x in net.parameters())


@pytest.mark.parametrize("graphs", [None, traced])
def test_gradients_whose_memory_is_exchanged_do_not_escape_the_noise(graphs: Any) -> None:
    """As a hook before the step does that changes p.grad.data."""
    net = small()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    made = engine(net, optimizer=optimizer, noise_multiplier=1000.0, graphs=graphs)
    seen: list[float] = []

    def exchanges(*_: Any) -> None:
        for x in net.parameters():
            x.grad.data = 1.0 * x.grad.data
        seen.append(float(torch.cat([x.grad.flatten() for x in net.parameters()]).std()))

    optimizer.register_step_pre_hook(exchanges)
    run(made)
    assert min(seen) > 0.3 * 1000.0 / LOT


def test_sums_of_a_step_that_failed_are_gone() -> None:
    net = small()
    made = engine(net, graphs=traced, batch_size=1, check=False)
    lots = made.lots()
    made.step(next(lots))
    count = [0]
    honest = made.loss

    def fails(model: Any, batch: Any) -> Any:
        count[0] += 1
        if count[0] > 2:
            raise RuntimeError("the disk is gone")
        return honest(model, batch)

    made.loss = made.graphs.loss = fails
    made.graphs._graphs.clear()
    with pytest.raises(RuntimeError, match="disk"):
        for lot in lots:
            made.step(lot)
    assert made._places is not None
    assert not made._places.flats[0].any()


def test_a_batch_that_is_changed_in_place_is_refused_by_graphs() -> None:
    def centred(model: Any, batch: Any) -> Any:
        batch[0].sub_(batch[0].mean(1, keepdim=True))
        return losses(model, batch)

    with pytest.raises(InputError, match="changes its batch in place"):
        run(engine(small(), loss=centred, graphs=traced))


def test_fused_optimizers_move_weights_of_another_order_of_memory() -> None:
    """Channels last: the sums lie in the order of the weight."""
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=fused)
        data = [torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(i)) for i in range(8)]
        made = Engine(
            net,
            optimizer,
            data,
            None,
            loss=lambda model, x: model(x).square().sum(1),
            lot_size=8,
            steps=1,
            noise_multiplier=0.5,
            source=rng.seeded(1),
        )
        run(made)
        found.append(net[0].weight.detach().clone())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("graphs", [True, "compiled"])
def test_graphs_are_named_by_how_they_are_made(graphs: Any) -> None:
    with pytest.raises(InputError, match="traced, compiled or unchanging"):
        engine(small(), graphs=graphs)


@pytest.mark.parametrize("graphs", [None, traced])
def test_what_has_come_to_mix_examples_is_found_in_the_last_lot(graphs: Any) -> None:
    """Lots of one batch, steps between two proofs: it would end in silence."""
    late = [False]

    def mixes(model: Any, batch: Any) -> Any:
        found = losses(model, batch)
        return found + found.mean() if late[0] else found

    made = engine(small(), loss=mixes, graphs=graphs, steps=21, lot_size=N, batch_size=2 * N)
    with pytest.raises(CheckError, match="were not before"):
        for lot in made.lots():
            late[0] = lot.step > 16
            made.step(lot)
    assert made.done == 20


def test_gradients_too_small_for_float16_mix_nobody() -> None:
    """Powers of two are not exact below 2^-14; a loss that has become small is no mixing."""
    scale = [1.0]

    def narrow(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.float16):
            found = model(batch[0])
        return nn.functional.cross_entropy(found.float(), batch[1], reduction="none") * scale[0]

    made = engine(small(), loss=narrow, steps=9, lot_size=N, batch_size=2 * N)
    for lot in made.lots():
        scale[0] = 1.0 if lot.step < 8 else 1e-6
        made.step(lot)
    assert made.done == 9


@pytest.mark.parametrize("enough", [True, False])
def test_the_memory_of_graphs_is_let_go_before_a_run_is_given_up(
    enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of one unit do not fit beside what graphs hold."""
    made = engine(small(), graphs=traced, batch_size=1)
    real, forget = made._add, made.graphs.forget
    full: list[bool] = []

    def add(*given: Any, **named: Any) -> Any:
        if full:
            raise torch.OutOfMemoryError
        return real(*given, **named)

    def let_go() -> None:
        if enough:
            full.clear()
        forget()

    monkeypatch.setattr(made, "_add", add)
    monkeypatch.setattr(made.graphs, "forget", let_go)
    lots = made.lots()
    made.step(next(lots))
    full.append(True)
    if enough:
        made.step(next(lots))
        assert made.done == 2
    else:
        with pytest.raises(InputError, match="one unit alone does not fit"):
            made.step(next(lots))
