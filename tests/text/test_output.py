"""Output perturbation: the sensitivity is right and nearly reached, the noise is what the event says."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sourdine.audit import Finding, check_mechanism
from sourdine.errors import InputError
from sourdine.events import Event, GaussianEvent
from sourdine.rng import seeded
from sourdine.text import output
from sourdine.text.output import event, fit_output, minimiser, ridge, sensitivity, unit_rows
from sourdine.text.releases import noisy

FALSE_ALARM = 1e-6


def clusters(n: int, d: int, classes: int, apart: float, seed: int) -> tuple[Tensor, Tensor]:
    """Classes around different points, in features of which many tell nothing."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=g)
    middles = torch.zeros(classes, d)
    middles[range(classes), range(classes)] = apart
    return middles[labels] + torch.randn(n, d, generator=g) / math.sqrt(d), labels


def risk_gradient(w: Tensor, x: Tensor, y: Tensor, strength: float, records: int) -> Tensor:
    """By autograd, from the formula in the docstring."""
    w = w.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ w.T, y, reduction="sum") / records
    (gradient,) = torch.autograd.grad(loss + strength / 2 * w.square().sum(), w)
    return gradient


@pytest.mark.parametrize("strength", [1e-4, 1e-2, 1.0])
def test_the_minimum_is_found_to_the_stated_accuracy(strength: float) -> None:
    features, labels = clusters(3000, 12, 3, 0.5, seed=1)
    x, _ = unit_rows(features)
    found = minimiser(x, labels, 3, strength, 3000)
    assert risk_gradient(found, x, labels, strength, 3000).norm() <= 1e-4 * math.sqrt(2) / 3000


def test_a_head_that_is_not_found_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = clusters(100, 4, 2, 0.5, seed=1)
    monkeypatch.setattr(output, "_NEWTON_STEPS", 1)
    with pytest.raises(InputError, match="nothing was released"):
        fit_output(features, labels, 2, regularisation=1e-3, noise_multiplier=1.0, records=100)


def test_no_unit_moves_the_minimum_further_than_stated() -> None:
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(300):
        n, d, classes, most = (int(rng.integers(*ends)) for ends in ((4, 12), (1, 4), (2, 5), (1, 4)))
        strength = float(10 ** rng.uniform(-3, 0.5))
        x = torch.from_numpy(rng.normal(size=(n, d)))
        x = x / x.norm(dim=1, keepdim=True) * torch.from_numpy(rng.random((n, 1)) ** 0.3)
        y = torch.from_numpy(rng.integers(0, classes, n))
        bound = sensitivity(n, strength, most)
        present = minimiser(x, y, classes, strength, n)
        absent = minimiser(x[most:], y[most:], classes, strength, n)
        x2, y2 = x.clone(), y.clone()
        x2[:most], y2[:most] = -x[:most], (y[:most] + 1) % classes
        replaced = minimiser(x2, y2, classes, strength, n)
        worst = max(worst, float((present - absent).norm()) / bound)
        assert (present - replaced).norm() <= 2 * bound
    assert 0.25 < worst <= 1


def worst_neighbours(n: int = 2000, strength: float = 1e-4, away: float = 20.0) -> Any:
    """A row that all others contradict, where the loss is straight: it moves the minimum fully.

    The others lie so near the plane that divides the classes that their loss hardly bends, but all push
    the same way; the last row is then far on the wrong side. Its neighbour has nothing there.
    """
    a = strength * away
    side = math.sqrt(1 - a * a) * (1 - 2.0 * (torch.arange(n) % 2))
    features = torch.stack([torch.full((n,), a), side], dim=1).to(torch.float64)
    features[-1] = torch.tensor([1.0, 0.0])
    present, absent = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
    present[-1], absent[-1] = 1, -1
    return features, present, absent


@pytest.fixture
def no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole norm for the features: the bound holds for any share, and is nearly reached here."""
    monkeypatch.setattr(output, "FEATURES", 1.0)
    monkeypatch.setattr(output, "BIAS", 0.0)


def attack(claim: Event, monkeypatch: pytest.MonkeyPatch, less: float = 1.0) -> tuple[Finding, float]:
    """The optimal test on what `fit_output` hands to the noise, drawn many times; and the move found."""
    features, *pair = worst_neighbours()
    handed: list[tuple[Tensor, float]] = []

    def record(values: Tensor, deviation: float, source: Any) -> Tensor:
        handed.append((values, deviation))
        return noisy(values, deviation, source)

    monkeypatch.setattr(output, "noisy", record)
    for labels in pair:
        fit_output(
            features,
            labels,
            2,
            regularisation=1e-4,
            noise_multiplier=0.7,
            records=2000,
            source=seeded(0),
        )
    (present, deviation), (absent, _) = handed
    source, move = seeded(5), absent - present

    def many(exact: Tensor, count: int) -> Any:
        return noisy(exact.expand(count, *exact.shape), less * deviation, source).numpy()

    found = check_mechanism(
        many,
        (present, absent),
        claim,
        many=many,
        draws=600_000,
        false_alarm=FALSE_ALARM,
        score=lambda drawn: (drawn * move.numpy()).sum(axis=(1, 2)),
    )
    return found, float(move.norm()) / sensitivity(2000, 1e-4)


@pytest.mark.usefixtures("no_bias")
def test_noise_on_the_output_keeps_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    found, share = attack(event(0.7), monkeypatch)
    assert found.kept
    assert 0.95 < share <= 1


@pytest.mark.usefixtures("no_bias")
def test_a_tenth_less_noise_on_the_output_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = attack(event(0.7), monkeypatch, less=0.9)
    assert not found.kept


def test_with_a_bias_the_noise_still_fits_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    _, share = attack(event(0.7), monkeypatch)
    assert 0.5 < share < 0.95
    assert attack(GaussianEvent(0.7 / share), monkeypatch)[0].kept
    assert not attack(GaussianEvent(0.7 / share), monkeypatch, less=0.9)[0].kept


def fitted(features: Tensor, labels: Tensor, **more: Any) -> Tensor:
    settings: dict[str, Any] = {"regularisation": 1e-2, "noise_multiplier": 1.0, "records": 50}
    settings |= {"source": seeded(1)} | more
    head = fit_output(features, labels, 3, **settings)
    return torch.cat([head.weight, head.bias[:, None]], dim=1)


def test_what_is_nothing_adds_nothing() -> None:
    features, labels = clusters(40, 5, 3, 0.5, seed=2)
    plain = fitted(features[:30], labels[:30])
    zeroed = labels.clone()
    zeroed[30:] = -1
    assert torch.equal(fitted(features, zeroed), plain)
    broken = features.clone()
    broken[30:35], broken[35:, 0] = math.nan, math.inf
    assert torch.equal(fitted(broken, labels), plain)
    assert not torch.equal(fitted(features, labels), plain)


def test_a_user_counts_with_the_first_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = clusters(40, 5, 3, 0.5, seed=2)
    users = [place % 10 for place in range(40)]  # four rows each
    two = fitted(features, labels, users=users, most_per_user=2)
    changed = labels.clone()
    changed[20:] = 0
    assert torch.equal(fitted(features, changed, users=users, most_per_user=2), two)
    deviations: list[float] = []

    def record(values: Tensor, deviation: float, _: Any) -> Tensor:
        deviations.append(deviation)
        return values

    monkeypatch.setattr(output, "noisy", record)
    fitted(features, labels, users=users, most_per_user=2)
    fitted(features, labels)
    assert deviations[0] == pytest.approx(2 * deviations[1], rel=1e-3)
    assert deviations[1] >= math.sqrt(2) / (50 * 0.01)
    with pytest.raises(InputError, match="users="):
        fitted(features, labels, most_per_user=2)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_no_row_is_longer_than_one(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def look(x: Tensor, *rest: Any) -> Tensor:
        seen.append(x)
        return minimiser(x, *rest)

    monkeypatch.setattr(output, "minimiser", look)
    features, labels = clusters(200, 7, 3, 0.5, seed=4)
    fitted(size * features, labels)
    norms = [math.sqrt(math.fsum(value * value for value in row)) for row in seen[0].tolist()]
    assert 0.999 < min(norms) <= max(norms) < 1


def test_the_rule_for_the_regularisation_is_near_the_best() -> None:
    features, labels = clusters(8000, 64, 4, 0.35, seed=6)
    held, truth = clusters(4000, 64, 4, 0.35, seed=7)

    def accuracy(strength: float) -> float:
        found = []
        for seed in range(3):
            head = fit_output(
                *(features, labels, 4),
                regularisation=strength,
                noise_multiplier=1.5,
                records=8000,
                source=seeded(seed),
            )
            found.append(float((head.scores(held).argmax(1) == truth).double().mean()))
        return sum(found) / 3

    rule = ridge(8000, 1.5, 4)
    best = max(accuracy(rule * factor) for factor in (0.1, 0.3, 3, 10, 100))
    assert accuracy(rule) > max(best - 0.02, 0.6)
    assert accuracy(rule / 10) < accuracy(rule) - 0.05
    assert ridge(80_000, 1.5, 4) < rule < ridge(8000, 3.0, 4) < ridge(8000, 3.0, 4, most_per_user=5)
    assert ridge(100, 1e-6, 2) == 1 / 100


def test_bad_input_is_refused_without_a_word_of_it() -> None:
    features, labels = clusters(10, 3, 2, 0.5, seed=1)
    with pytest.raises(InputError, match="a label is not among 0 to 2") as caught:
        fitted(features, torch.full((10,), 77))
    assert "77" not in str(caught.value)
    with pytest.raises(InputError, match="another number"):
        fitted(features, labels[:5])
    with pytest.raises(InputError, match="a matrix"):
        fitted(features[0], labels)
