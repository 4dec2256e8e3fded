"""Natural mistakes of private training, each made on purpose in the engine, each caught.

Beside each, here or in test_attacks.py, stands the engine without it, which passes the same attack.
False alarm 1e-6 for each test; draws for each neighbour are stated in each. How observations are made,
and why they are independent, is said in test_attacks.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_attacks import (
    FAR,
    FIXED,
    GAUSS,
    OWNERS,
    SIGMA,
    Reused,
    Row,
    Tied,
    Two,
    attack,
    blank,
    correlated,
    one_hot,
    side_by_side,
)
from torch import nn

from sourdine import rng
from sourdine.audit.sampler import check_sampler
from sourdine.events import Event, GaussianEvent, PoissonEvent
from sourdine.sgd import (
    Adaptive,
    Engine,
    FixedLots,
    PerLayer,
    PoissonLots,
    ShuffledLots,
    clipped_sum,
)
from sourdine.sgd.batches import Batch
from sourdine.sgd.engine import Lot
from sourdine.sgd.noise import add_noise_
from sourdine.sgd.shapes import Kind
from sourdine.sgd.uses import Gradients


def caught(kept: Any, broken: Any, claim: Event, draws: int, **more: Any) -> None:
    """The engine passes, the twin does not."""
    assert attack(kept, claim, draws, **more).kept
    assert not attack(broken, claim, draws, **more).kept


# Noise


class InParts(Engine):
    """Noise in each of the k physical batches, with a share of the deviation that makes up the whole."""

    power = 0.5

    def _add(self, batch: Batch, by_graphs: bool, prove: bool) -> Any:
        below = super()._add(batch, by_graphs, prove)
        share = (self.plan.lot_size / self.batch_size) ** -self.power
        sums = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        add_noise_(sums, share * self.noise_multiplier * self.clip.bound, rng.secure())
        return below

    def _finish(self, step: int, below: Any) -> None:
        self._split = (0.0, 0.0)
        super()._finish(step, below)


class InPartsTooSmall(InParts):
    """A k-th of the deviation each: variances add up, deviations do not."""

    power = 1.0


def test_noise_in_parts_has_to_have_variances_that_add_up() -> None:
    """20,000 draws; four physical batches, so that the deviation is half of what it should be."""

    def draw(make: type[Engine]) -> Any:
        return lambda pull, count: side_by_side(make, [pull] + 7 * [0.0], count, batch_size=2)[0]

    caught(draw(InParts), draw(InPartsTooSmall), GAUSS, 20_000, neighbours=(0.0, FAR), score=np.asarray)


class Frozen:
    """Streams that give every step the same noise."""

    def __init__(self, streams: rng.Streams) -> None:
        self.streams, self.kind = streams, streams.kind

    def at(self, name: str, number: int = 0) -> rng.Source:
        return self.streams.at(name, 0 if name == "noise" else number)


class SameNoise(Engine):
    """The generator is seeded anew in every step."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._streams = Frozen(self._streams)  # type: ignore[assignment]


def test_noise_that_comes_back_is_caught() -> None:
    """5,000 draws of two steps, whose difference is free of noise."""

    def draw(make: type[Engine]) -> Any:
        return lambda pull, count: one_hot(make, pull, count, rate=0.3, steps=2, at_once=count)

    def apart(seen: Any) -> Any:
        return np.abs(seen[:, 0] - seen[:, 1])

    caught(draw(Engine), draw(SameNoise), 2 * PoissonEvent(0.3, GAUSS), 5_000, score=apart)


# Clipping


class ClipsTheMean(Engine):
    """The mean of the lot is cut at the clip, in the place of each example."""

    def _add(self, batch: Batch, by_graphs: bool, prove: bool) -> Any:
        self.loss(self.model, batch.data).sum().backward()
        return torch.zeros(())

    def _finish(self, step: int, below: Any) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip.bound * self.plan.lot_size)
        super()._finish(step, below)


def test_clipping_after_averaging_is_caught() -> None:
    """5,000 draws; one of eight examples takes the whole lot's clip for itself."""

    def draw(make: type[Engine]) -> Any:
        return lambda pull, count: side_by_side(make, [pull] + 7 * [0.0], count)[0]

    caught(draw(Engine), draw(ClipsTheMean), GAUSS, 5_000, neighbours=(0.0, FAR), score=np.asarray)


class UseByUse(Gradients):
    """Squared norms added up over the uses of a parameter, without the products between them."""

    counted: Any = 0.0
    small, alone = False, None

    def add(self, use: Any) -> None:
        alone = Gradients(self.shape)
        alone.add(use)
        self.counted = self.counted + alone.squares()[0]
        super().add(use)

    def products(self, recent: Any) -> None:
        return None

    def squares(self, recent: Any = None) -> tuple[Any, Any]:
        return self.counted, None


@pytest.mark.parametrize("net", [Tied, Reused])
def test_uses_counted_one_by_one_are_caught(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 draws; two equal uses of a weight make a contribution of sqrt(2) times the clip."""

    def largest() -> float:
        """What one example adds to the sum, without noise."""
        model = blank(net(3))
        clipped_sum(model, lambda: FAR * model(torch.tensor([1])), 1.0)
        return float(nn.utils.parameters_to_vector(w.grad for w in model.parameters()).norm())

    def draw(pull: float | None, count: int) -> Any:
        return one_hot(Engine, pull, count, net=net, at_once=1000, batch_size=250, check=False)

    assert 0.9999 < largest() <= 1
    assert attack(draw, GAUSS, 10_000).kept
    monkeypatch.setattr("sourdine.sgd.gradients.Gradients", UseByUse)
    assert largest() == pytest.approx(math.sqrt(2), rel=1e-4)
    assert not attack(draw, GAUSS, 10_000).kept


class OneForAll(PerLayer):
    """The noise is that of one layer's clip, though every layer has one."""

    @property
    def bound(self) -> float:
        return max(self.clips.values())


def test_layers_that_each_use_up_the_clip_are_caught() -> None:
    """10,000 draws; a contribution of sqrt(2) times the clip."""

    def draw(clip: PerLayer) -> Any:
        return lambda pull, count: one_hot(Engine, pull, count, net=Two, clip=clip)

    even = PerLayer.even(Two(1), 1.0)
    caught(draw(even), draw(OneForAll({"first": 1.0, "second": 1.0})), GAUSS, 10_000)


def test_examples_sold_as_users_are_caught() -> None:
    """5,000 draws; a user of three examples and more, each of which may add the clip."""

    def users(pull: float | None, count: int) -> Any:
        return one_hot(Engine, pull, count, at_once=4000, users=OWNERS, most_per_user=4)

    class ByExample(Engine):
        def __init__(self, *args: Any, **settings: Any) -> None:
            settings |= {"users": None, "most_per_user": 1}
            super().__init__(*args, **settings)

    def examples(pull: float | None, count: int) -> Any:
        return one_hot(ByExample, pull, count, at_once=4000, users=OWNERS, most_per_user=4)

    caught(users, examples, GAUSS, 5_000)


# The adaptive clip: its way shows the count. Each step is an observation, as the count is one for all.

SHARE = 0.95  # of the information is in the count
COUNT_NOISE = SIGMA / 2 / math.sqrt(SHARE)


def adaptive(make: type[Engine], pull: float | None, count: int) -> Any:
    """The likelihood ratio of (move, clip) in each step. The clip is put back, so that all are alike.

    A unit just below the clip moves the sum by 1 and the count by 1/2. The lot is planned to be 40: the
    share stays inside [0, 1], where nothing of the count is lost.
    """
    clip, planned = Adaptive(1.0, count_noise=COUNT_NOISE), 40
    model = blank(Row(1))
    engine = make(
        model,
        torch.optim.SGD(model.parameters(), lr=planned),
        range(0 if pull is None else 1),
        None,
        loss=lambda model, ids: -pull * model(ids),
        lot_size=planned,
        records=planned,
        steps=count,
        clip=clip,
        noise_multiplier=SIGMA,
        collate=torch.tensor,
    )
    seen = np.empty(count)
    for step, lot in enumerate(engine.lots()):
        nn.init.zeros_(model.table.weight)
        clip.clip = 1.0
        engine.step(lot)
        below = (clip.quantile - math.log(clip.clip) / clip.rate - 0.5) * planned
        seen[step] = model.table.weight.item() / engine._split[0] ** 2 + 0.5 * below / COUNT_NOISE**2
    return seen


class FreeCount(Engine):
    """The sum has the noise of the whole release, and the count comes on top."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._split = (self.noise_multiplier, self._split[1])


class NotCentred(Engine):
    """The count adds up b and not b - 1/2: a contribution moves it by 1."""

    def _add(self, batch: Batch, by_graphs: bool, prove: bool) -> Any:
        return super()._add(batch, by_graphs, prove) + 0.5 * batch.units


JUST_BELOW = (None, 0.9999)


def test_the_adaptive_clip_keeps_its_promise() -> None:
    """1,500 draws of sum and count together."""
    finding = attack(
        lambda pull, count: adaptive(Engine, pull, count), GAUSS, 1_500, JUST_BELOW, score=np.asarray
    )
    assert finding.kept


@pytest.mark.parametrize(("twin", "draws"), [(FreeCount, 4_000), (NotCentred, 800)])
def test_a_count_that_is_not_paid_for_is_caught(twin: type[Engine], draws: int) -> None:
    finding = attack(
        lambda pull, count: adaptive(twin, pull, count), GAUSS, draws, JUST_BELOW, score=np.asarray
    )
    assert not finding.kept


# Lots


class FilledUp(Engine):
    """Every batch has eight rows, however few of them are real."""

    def _kinds(self, size: int) -> tuple[Kind, ...]:
        return (Kind(None, 8, 8),)


class PaddingCounts(FilledUp):
    """The copies that fill up a physical batch contribute."""

    def _batches(self, lot: Lot) -> Iterator[Batch]:
        for batch in super()._batches(lot):
            yield dataclasses.replace(batch, weights=torch.ones_like(batch.weights), full=True)


def test_padding_that_contributes_is_caught() -> None:
    """5,000 draws; one example alone in a batch of eight, filled up with seven more copies of it."""

    def draw(make: type[Engine]) -> Any:
        return lambda pull, count: side_by_side(make, [pull], count, batch_size=64)[0]

    caught(draw(FilledUp), draw(PaddingCounts), GAUSS, 5_000, neighbours=(0.0, FAR), score=np.asarray)


class DropsEmptyLots(Engine):
    """A step without examples is skipped, and with it the noise."""

    def step(self, lot: Lot) -> None:
        if len(lot._units):
            super().step(lot)
        else:
            self._open, self.done = None, lot.step + 1


def test_dropping_empty_lots_is_caught() -> None:
    """600 draws of one step each; half of the lots are empty, or all of them without the record."""

    def draw(make: type[Engine]) -> Any:
        return lambda pull, count: one_hot(make, pull, count, rate=0.5, sigma=1.0, at_once=1)

    def moved(seen: Any) -> Any:
        return np.where(seen[:, 0] == 0, -np.inf, seen[:, 0])

    caught(draw(Engine), draw(DropsEmptyLots), PoissonEvent(0.5, GaussianEvent(1.0)), 600, score=moved)


class DividesByTheLot(Engine):
    """The sum is divided by how many came, in the place of how many were planned."""

    def step(self, lot: Lot) -> None:
        self._came = max(1, len(lot._units))
        super().step(lot)

    def _finish(self, step: int, below: Any) -> None:
        super()._finish(step, below)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(self.plan.lot_size / self._came)


def test_dividing_by_the_realised_lot_is_caught() -> None:
    """2,000 draws of 16 coordinates each; the size shows in the noise, though the record pulls nowhere.

    Coordinates without a pull are independent noise, so those of one step make many observations.
    """

    def draw(make: type[Engine]) -> Any:
        def many(there: bool, count: int) -> Any:
            pulls = [0.0] * (2 if there else 1)
            return side_by_side(make, pulls, 16 * count, lot_size=2, records=2).reshape(count, 16)

        return many

    adding = {"adjacency": "add-remove", "neighbours": (False, True), "score": None}
    caught(draw(Engine), draw(DividesByTheLot), PoissonEvent(1.0, GAUSS), 2_000, **adding)


class Tells(Engine):
    """Keeps who was in each lot, for everyone to see."""

    def step(self, lot: Lot) -> None:
        TOLD.append(lot._units)
        super().step(lot)


TOLD: list[Any] = []


def test_amplification_by_lots_that_are_known_is_caught() -> None:
    """120,000 draws; against whoever knows the lot, only the plain Gaussian claim stands."""

    def many(pull: float, count: int) -> Any:
        TOLD.clear()
        seen = one_hot(Tells, pull, count, rate=0.3, at_once=count)
        inside = np.isin(np.arange(count), TOLD[0])
        return np.where(inside, seen[:, 0] - 0.5, 0.0)  # the likelihood ratio

    asked = {"neighbours": (0.0, FAR), "score": np.asarray}
    assert attack(many, GAUSS, 120_000, **asked).kept
    assert not attack(many, PoissonEvent(0.3, GAUSS), 120_000, **asked).kept


class ComesBackSoon(FixedLots):
    """Every other round runs backwards: the last record of one is the first of the next."""

    def draw(self, step: int, source: Any) -> Any:
        turned, block = divmod(step, self.blocks)
        return super().draw(self.blocks - 1 - block if turned % 2 else block, source)


def test_a_record_that_comes_back_too_soon_for_its_noise_is_caught() -> None:
    """60,000 draws of twelve steps; the correlated noise of neighbouring steps cancels."""
    soon = ComesBackSoon(4, 1, steps=12, bands=4)

    def many(pull: float, count: int) -> Any:
        return correlated(Engine, pull, count, soon, place=3)

    claim = soon.event(GAUSS, 12)
    assert claim == FIXED.event(GAUSS, 12)
    assert not attack(many, claim, 60_000, (0.0, 1.0), score=np.asarray).kept


# Shuffling sold as Poisson (Chua et al. 2024; accounting/shuffle.py)


def shuffled(pull: float, count: int, records: int, sigma: float) -> Any:
    """The likelihood ratio of an epoch, against the record replaced by nothing.

    All others pull down by one. Lots hold exactly one record, so each step is at -1 but for one, which
    is at 1 with the record and at 0 without it. Which step it is decides nothing: the noise of all steps
    is alike, and the ratio does not change when steps are exchanged. So it has the same law given any
    order of the records, and models side by side, which share an order, are independent observations.
    """
    moves = side_by_side(
        Engine,
        [pull] + (records - 1) * [-1.0],
        count,
        lots=ShuffledLots(records, 1),
        steps=records,
        lot_size=1,
        sigma=sigma,
    )
    up = (moves.astype(np.float64) + 1) / sigma**2

    def mean(height: float) -> Any:
        return np.log(np.exp(height * up - height**2 / (2 * sigma**2)).mean(axis=0))

    return mean(2.0) - mean(1.0)


@pytest.mark.parametrize(("steps", "sigma", "draws"), [(1000, 0.6, 5_000), (100, 1.0, 20_000)])
def test_shuffling_sold_as_poisson_is_caught(steps: int, sigma: float, draws: int) -> None:
    """By many tiny runs of one epoch each."""
    noise = GaussianEvent(sigma)
    asked = {"neighbours": (0.0, 1.0), "score": np.asarray}
    drawn = {pull: shuffled(pull, draws, steps, sigma) for pull in (0.0, 1.0)}

    def many(pull: float, count: int) -> Any:
        return drawn[pull][:count]

    assert not attack(many, PoissonLots(steps, 1).event(noise, steps), draws, **asked).kept
    assert attack(many, ShuffledLots(steps, 1).event(noise, steps), draws, **asked).kept


@pytest.mark.parametrize("lots", [PoissonLots(400, 40), ShuffledLots(400, 40)])
def test_and_by_a_look_at_the_lots(lots: Any) -> None:
    streams = rng.streams(rng.seeded(3))
    found = check_sampler(lambda step: lots.draw(step, streams.at("lot", lots.stream(step))), 400, 0.1)
    assert found.kept == isinstance(lots, PoissonLots)
