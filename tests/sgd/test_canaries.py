"""Canaries are units like all others: same lots, same clip, same noise; and they change nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from zoo import torch

from sourdine import rng
from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.events import GaussianEvent, PoissonEvent
from sourdine.ledger import Ledger
from sourdine.sgd import Adaptive, Automatic, Engine, PerLayer, ShuffledLots
from sourdine.sgd import engine as room
from sourdine.sgd.canaries import Canaries
from sourdine.sgd.clipping import Flat

nn = torch.nn
FALSE_ALARM = 1e-6
ROWS = [(row, (row.sum() > 0).long()) for row in torch.randn(40, 4, generator=torch.Generator())]


def losses(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


class Plain(Canaries):
    """Keeps the sums too, over the bound."""

    def forget(self) -> None:
        super().forget()
        self.sums_seen = np.zeros(self.count)

    def see(self, noisy: Any, bound: float, rate: float, sigma: float) -> None:
        self.sums_seen = self.sums_seen + noisy.double().numpy() / bound
        super().see(noisy, bound, rate, sigma)


def made(count: int | None, *, seed: int = 1, **settings: Any) -> Engine:
    model = network()
    asked: dict[str, Any] = {
        "lot_size": 40 + (count or 0),
        "steps": 6,
        "clip": 0.5,
        "noise_multiplier": 1e-3,
        "budget": Ledger(None, Budget(1e9, 1e-9)),
        **settings,
    }
    rate = asked.pop("rate", 0.1)
    return Engine(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        ROWS,
        asked.pop("budget"),
        loss=losses,
        source=rng.seeded(seed),
        canaries=None if count is None else Plain(count),
        check=False,
        **asked,
    )


def run(engine: Engine, upto: int | None = None) -> Engine:
    for lot in engine.lots():
        if engine.done == upto:
            engine.pause()
            return engine
        engine.step(lot)
    return engine


def canaries(engine: Engine) -> Plain:
    assert isinstance(engine.canaries, Plain)
    return engine.canaries


@pytest.mark.parametrize(
    "clip",
    [
        pytest.param(lambda model: 0.5, id="flat"),
        pytest.param(lambda model: Automatic(0.5), id="automatic"),
        pytest.param(lambda model: PerLayer.even(model, 0.5), id="per layer"),
    ],
)
def test_who_is_in_adds_the_clip_and_who_is_out_nothing(clip: Any) -> None:
    found = canaries(run(made(64, clip=clip(network()))))
    each = found.sums_seen[found.coins]
    assert found.sums_seen[~found.coins] == pytest.approx(0, abs=0.02)
    assert each == pytest.approx(each[0], abs=0.04)
    assert 0.5 * 6 < each[0] <= 6 + 0.02  # six steps of at most the bound
    assert 10 < found.coins.sum() < 54  # false alarm 1e-7


def test_what_is_learnt_is_the_same() -> None:
    alone = run(made(None, lot_size=40))
    beside = run(made(60, lot_size=100, rate=0.1 * 100 / 40))
    for x, y in zip(alone.model.parameters(), beside.model.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=0)  # the noise is not the same


def test_they_count_among_the_units() -> None:
    engine = made(60, lot_size=10, noise_multiplier=2.0)
    assert engine.charge.event() == 6 * PoissonEvent(0.1, GaussianEvent(2.0))
    declared = made(
        60, lot_size=15, records=90, budget=Ledger(None, Budget(50, 1e-6, "example", "add-remove"))
    )
    assert declared.charge.lots.records == 150


def test_scores_follow_their_law() -> None:
    """In: binomial(steps, rate) sums of the bound, with the noise of all steps; out: the noise alone."""
    steps, rate, noise = 100, 0.1, 0.7
    found = canaries(run(made(400, lot_size=44, steps=steps, noise_multiplier=noise)))
    deviation = noise * math.sqrt(steps)
    out = found.sums_seen[~found.coins] / deviation
    assert stats.kstest(out, "norm").pvalue > FALSE_ALARM
    spread = math.sqrt(deviation**2 + steps * rate * (1 - rate))
    inside = (found.sums_seen[found.coins] - steps * rate) / spread
    assert abs(inside.mean()) * math.sqrt(len(inside)) < -stats.norm.ppf(FALSE_ALARM / 2)
    assert found.scores[found.coins].mean() > found.scores[~found.coins].mean()


def test_the_score_is_the_likelihood_ratio() -> None:
    rate, sigma, x = 0.3, 1.7, np.array([-0.4, 0.0, 2.5])
    found = Canaries(3)
    for _ in range(2):
        found.see(torch.tensor(2 * x), 2.0, rate, sigma)
    out = stats.norm.pdf(x, 0, sigma)
    inside = rate * stats.norm.pdf(x, 1, sigma) + (1 - rate) * out
    assert found.scores == pytest.approx(2 * np.log(inside / out))
    found.forget()
    found.see(torch.tensor(x), 1.0, 1.0, 1e-3)  # neither overflow nor a logarithm of zero
    assert found.scores == pytest.approx((2 * x - 1) / 2e-6)


def test_every_run_tosses_anew_and_starts_from_zero() -> None:
    """Scores that add up over runs would accuse a sound one."""
    kept = Plain(200)
    coins = []
    for seed in (1, 2):
        engine = made(None, seed=seed)
        again = Engine(
            engine.model,
            engine.optimizer,
            ROWS,
            Ledger(None, Budget(1e9, 1e-9)),
            loss=losses,
            lot_size=240,
            steps=3,
            noise_multiplier=1e-3,
            source=rng.seeded(seed),
            canaries=kept,
            check=False,
        )
        run(again)
        coins.append(kept.coins)
        assert kept.sums_seen[kept.coins] == pytest.approx(3, abs=0.02)
    assert (coins[0] != coins[1]).any()


def test_less_noise_and_no_clip_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = room.add_noise_
    monkeypatch.setattr(room, "add_noise_", lambda sums, deviation, s: real(sums, deviation / 10, s))
    found = canaries(run(made(400, lot_size=44, steps=100, noise_multiplier=0.7)))
    assert np.std(found.sums_seen[~found.coins]) < 0.2 * 0.7 * 10
    monkeypatch.undo()

    def unclipped(self: Flat, squares: Any, rounding: Any, none: Any) -> Any:
        return torch.ones_like(none), none

    monkeypatch.setattr(Flat, "factors", unclipped)
    found = canaries(run(made(64)))
    assert found.sums_seen[found.coins] == pytest.approx(60, abs=0.02)


def test_a_run_that_goes_on_has_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    settings = {"lot_size": 44, "noise_multiplier": 0.7, "save_every": 2, "steps": 7}
    whole = canaries(run(made(400, folder=tmp_path / "whole", budget=Budget(1e6, 1e-9), **settings)))
    run(made(400, folder=tmp_path / "run", budget=Budget(1e6, 1e-9), **settings), upto=3)
    again = canaries(run(made(400, folder=tmp_path / "run", budget=Budget(1e6, 1e-9), **settings)))
    assert (again.coins == whole.coins).all()
    assert again.scores == pytest.approx(whole.scores)
    with pytest.raises(InputError, match="another plan"):
        made(300, folder=tmp_path / "run", budget=Budget(1e6, 1e-9), **settings)


def test_an_adaptive_clip_follows_the_records_alone() -> None:
    def ends(count: int | None) -> float:
        size = 40 + (count or 0)
        clip = Adaptive(0.5, quantile=0.5, count_noise=0.5)
        engine = run(made(count, clip=clip, noise_multiplier=1e-3, lot_size=size, steps=40))
        assert isinstance(engine.clip, Adaptive)
        return engine.clip.clip

    assert ends(20) < 1 and ends(None) < 1  # counted, they would drive it up without end


def test_refusals() -> None:
    for count in (0, -1, 1.5):
        with pytest.raises(InputError, match="canaries"):
            Canaries(count)  # type: ignore[arg-type]
    for scale in (1.0, 1e9):
        with pytest.raises(InputError, match="scale"):
            Canaries(10, scale=scale)
    with pytest.raises(InputError, match="Poisson"):
        made(10, lots=ShuffledLots(50, 10), lot_size=None)
