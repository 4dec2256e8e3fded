"""Input perturbation: what each record's release costs, and training that knows the noise."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from sourdine.accounting import curve
from sourdine.audit import Finding, check_mechanism
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError, NotAccountable
from sourdine.events import ApproximateEvent, Event, GaussianEvent, RandomizedResponseEvent
from sourdine.rng import seeded
from sourdine.text.inputs import event, perturb, split, train_on_noisy

FALSE_ALARM = 1e-6
NOTHING = ([0.6, -0.8], -1)
RECORD = ([3.0, 4.0], 0)
OTHER = ([-3.0, -4.0], 1)


def attack(
    pair: tuple[Any, Any],
    claim: Event,
    adjacency: str,
    *,
    noise_multiplier: float,
    flip: float,
    classes: int = 2,
    draws: int = 100_000,
) -> Finding:
    """The optimal test: the exact log likelihood ratio of features and label."""
    source = seeded(11)

    def many(record: tuple[list[float], int], count: int) -> Any:
        features, label = record
        released, answers = perturb(
            *(torch.tensor([features]).expand(count, -1), [label] * count, classes),
            noise_multiplier=noise_multiplier,
            flip=flip,
            source=source,
        )
        return np.column_stack([released.numpy(), answers.numpy()])

    def law(record: tuple[list[float], int], drawn: Any) -> Any:
        features, label = record
        middle = np.array(features) / np.linalg.norm(features) * (label >= 0)
        truth = np.where(drawn[:, 2] == label, 1 - flip + flip / classes, flip / classes)
        chance = truth if label >= 0 else np.full(len(drawn), 1 / classes)
        return np.log(chance) - ((drawn[:, :2] - middle) ** 2).sum(axis=1) / noise_multiplier**2 / 2

    return check_mechanism(
        many,
        pair,
        claim,
        many=many,
        adjacency=adjacency,
        draws=draws,
        false_alarm=FALSE_ALARM,
        score=lambda drawn: law(pair[1], np.asarray(drawn)) - law(pair[0], np.asarray(drawn)),
    )


@pytest.mark.parametrize("pair", [(RECORD, NOTHING), (NOTHING, RECORD)])
@pytest.mark.parametrize("classes", [2, 8])
def test_a_record_cannot_be_told_from_nothing(pair: tuple[Any, Any], classes: int) -> None:
    claim = event(1.0, 0.4, classes)
    assert attack(
        pair, claim, "zero-out", noise_multiplier=1.0, flip=0.4, classes=classes, draws=20_000
    ).kept


def test_a_record_cannot_be_told_from_another() -> None:
    claim = event(1.0, 0.4, 2, "replace-one")
    assert attack((RECORD, OTHER), claim, "replace-one", noise_multiplier=1.0, flip=0.4).kept


def test_a_tenth_less_noise_and_fewer_flips_are_caught() -> None:
    claim = event(1.0, 0.4, 2, "replace-one")
    found = attack((RECORD, OTHER), claim, "replace-one", noise_multiplier=0.9, flip=0.36)
    assert not found.kept


def test_features_alone_keep_their_promise_and_a_tenth_less_noise_is_caught() -> None:
    claim = event(0.7, 1.0, 2)
    assert claim == GaussianEvent(0.7)
    assert attack((RECORD, NOTHING), claim, "zero-out", noise_multiplier=0.7, flip=1.0).kept
    assert not attack((RECORD, NOTHING), claim, "zero-out", noise_multiplier=0.63, flip=1.0).kept


@pytest.mark.parametrize(
    ("classes", "flip", "pair"), [(2, 0.3, (RECORD, NOTHING)), (8, 0.8, (NOTHING, RECORD))]
)
def test_labels_alone_keep_their_promise_and_a_tenth_fewer_flips_are_caught(
    classes: int, flip: float, pair: tuple[Any, Any]
) -> None:
    """For few classes a label that is not the true one tells most, for many the true one does."""
    claim = ApproximateEvent(
        math.log(max(classes - (classes - 1) * flip, 1 / flip)) + 1e-9, 0.0, "zero-out"
    )
    settings = {"noise_multiplier": 1e5, "classes": classes, "draws": 60_000}
    assert attack(pair, claim, "zero-out", flip=flip, **settings).kept  # type: ignore[arg-type]
    assert not attack(pair, claim, "zero-out", flip=0.9 * flip, **settings).kept  # type: ignore[arg-type]
    parts = dict(event(1.0, flip, classes).parts)
    stated = next(part for part in parts if isinstance(part, ApproximateEvent))
    assert stated.epsilon == pytest.approx(claim.epsilon, abs=1e-8)


def test_the_event_fits_the_adjacency() -> None:
    replaced = event(2.0, 0.5, 3, "replace-one")
    assert replaced == GaussianEvent(2.0) + RandomizedResponseEvent(0.5, 3)
    assert curve(replaced, "replace-one").epsilon_upper(1e-6) < math.inf
    assert curve(event(2.0, 0.5, 3), "zero-out").epsilon_upper(1e-6) < math.inf
    assert event(2.0, 0.5, 3, rows=4) == 4 * event(2.0, 0.5, 3)
    with pytest.raises(NotAccountable, match="add-remove"):
        event(2.0, 0.5, 3, "add-remove")
    with pytest.raises(NotAccountable):
        curve(event(2.0, 0.5, 3), "replace-one").epsilon_upper(1e-6)


@pytest.mark.parametrize(
    ("budget", "classes", "rows"),
    [
        (Budget(3, 1e-6), 2, 1),
        (Budget(2, 1e-5, adjacency="replace-one"), 5, 1),
        (Budget(3, 1e-6, "user"), 2, 4),
    ],
)
def test_the_split_uses_the_budget_and_no_more(budget: Budget, classes: int, rows: int) -> None:
    found = split(budget, classes, 384, rows)
    assert found.event == event(found.noise_multiplier, found.flip, classes, budget.adjacency, rows)
    spent = curve(found.event, budget.adjacency).epsilon_upper(budget.delta)
    assert 0.99 * budget.epsilon < spent <= budget.epsilon
    assert 0 < found.flip < 1


def test_no_split_under_add_remove() -> None:
    with pytest.raises((NotAccountable, BudgetError), match="add-remove"):
        split(Budget(3, 1e-6, adjacency="add-remove"), 2, 384)


def test_what_is_nothing_is_released_as_nothing() -> None:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "flip": 0.2}
    features, labels = torch.ones(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])

    def released(x: torch.Tensor, y: torch.Tensor, **more: Any) -> torch.Tensor:
        noisy, answers = perturb(x, y, 2, source=seeded(4), **settings, **more)
        return torch.cat([noisy, answers[:, None]], dim=1)

    zeroed, broken = labels.clone(), features.clone()
    zeroed[2:], broken[2:, 1] = -1, math.nan
    absent = released(features, zeroed)
    assert torch.equal(released(broken, labels), absent)
    assert torch.equal(released(-features, zeroed)[2:], absent[2:])
    assert torch.equal(released(features, labels, users=[0, 1, 0, 0, 1, 1], most_per_user=1), absent)
    assert absent.isfinite().all()
    assert not torch.equal(released(features, labels), absent)


def made(n: int, seed: int, d: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=g) < 0.3).long()
    middles = torch.zeros(2, d)
    middles[0, 0], middles[1, 1] = 1.0, 1.0
    x = middles[labels] + 0.5 * torch.randn(n, d, generator=g)
    return x / x.norm(dim=1, keepdim=True), labels


def test_training_takes_the_known_noise_away() -> None:
    """With many records the weights are those of clean data; noise that is not taken away halves them."""
    features, labels = made(300_000, seed=1)
    clean = train_on_noisy(features, labels, 2, noise_multiplier=1e-6, flip=1e-9)
    x, y = perturb(features, labels, 2, noise_multiplier=0.4, flip=0.3, source=seeded(1))
    known = train_on_noisy(x, y, 2, noise_multiplier=0.4, flip=0.3)
    ignored = train_on_noisy(x, y, 2, noise_multiplier=1e-6, flip=1e-9)
    size = clean.weight.norm()
    assert (known.weight - clean.weight).norm() < 0.1 * size
    assert (known.bias - clean.bias).norm() < 0.1 * clean.bias.norm()
    assert (ignored.weight - clean.weight).norm() > 0.4 * size


def test_noise_on_inputs_costs_most_in_many_dimensions() -> None:
    def accuracy(d: int, epsilon: float) -> float:
        features, labels = made(4000, 2, d)
        held, truth = made(4000, 3, d)
        found = split(Budget(epsilon, 1e-5), 2, d)
        noise: dict[str, float] = {"noise_multiplier": found.noise_multiplier, "flip": found.flip}
        head = train_on_noisy(*perturb(features, labels, 2, source=seeded(2), **noise), 2, **noise)
        return float((head.scores(held).argmax(1) == truth).double().mean())

    assert accuracy(4, 8.0) > 0.9
    assert accuracy(256, 1.0) < 0.75  # 0.7 is the larger class


def test_bad_noise_is_refused() -> None:
    features, labels = made(10, 1)
    for flip in (0.0, 1.5, math.nan):
        with pytest.raises(InputError, match="flip"):
            perturb(features, labels, 2, noise_multiplier=1.0, flip=flip)
    with pytest.raises(InputError, match="tells nothing"):
        train_on_noisy(features, labels, 2, noise_multiplier=1.0, flip=1.0)
    with pytest.raises(InputError, match="too few"):
        train_on_noisy(features[:1], labels[:1], 2, noise_multiplier=1.0, flip=0.5)
