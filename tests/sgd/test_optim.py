"""AdamW without the noise in its second moment."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sourdine.errors import InputError  # noqa: E402
from sourdine.sgd import AdamW  # noqa: E402


def normal(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(optimizer: Any, weights: list[Any], steps: int, scale: float = 1.0) -> None:
    for step in range(steps):
        for place, weight in enumerate(weights):
            weight.grad = scale * normal(100 * step + place, *weight.shape)
        optimizer.step()


@given(
    st.floats(1e-4, 0.1),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.9999),
    st.floats(0, 0.5),
    st.integers(1, 8),
)
def test_without_noise_it_is_adamw(lr: float, one: float, two: float, decay: float, steps: int) -> None:
    # torch adds eps = 1e-8 to the root, here 1e-8 is its floor: the same where roots are far above it.
    pair = [[normal(1, 3, 2), normal(2, 4)] for _ in range(2)]
    ours = AdamW(pair[0], lr=lr, betas=(one, two), weight_decay=decay)
    plain = torch.optim.AdamW(pair[1], lr=lr, betas=(one, two), weight_decay=decay, eps=1e-8)
    for optimizer, weights in ((ours, pair[0]), (plain, pair[1])):
        run(optimizer, weights, steps)
    for a, b in zip(*pair, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_zero_moves_nothing() -> None:
    weight = torch.ones(3)
    weight.grad = torch.zeros(3)
    optimizer = AdamW([weight], lr=1.0)
    optimizer.step()
    assert torch.equal(weight, torch.ones(3))


def corrected(optimizer: Any, weight: Any) -> Any:
    state, (_, two) = optimizer.state[weight], optimizer.param_groups[0]["betas"]
    return state["square"] / (1 - two ** state["step"]) - optimizer.noise_variance


@pytest.mark.parametrize("signal", [0.0, 0.3])
def test_the_second_moment_leaves_the_noise_out(signal: float) -> None:
    # Of 1e5 coordinates, the mean lies within 6 deviations of its expectation: false alarm 2e-9.
    weight, deviation = torch.zeros(100_000), 0.7
    optimizer = AdamW([weight], lr=0.0, betas=(0.9, 0.99))
    optimizer.noise_variance = deviation**2
    for step in range(20):
        weight.grad = signal + deviation * normal(step, 100_000)
        optimizer.step()
    found = corrected(optimizer, weight)
    assert abs(float(found.mean()) - signal**2) < 6 * float(found.std()) / 100_000**0.5
    optimizer.noise_variance = 0.95 * deviation**2
    assert (
        abs(float(corrected(optimizer, weight).mean()) - signal**2)
        > 6 * float(found.std()) / 100_000**0.5
    )


@pytest.mark.parametrize(("floor", "wanted"), [(None, 0.1), (0.25, 0.25)])
def test_the_floor_bounds_a_step(floor: float | None, wanted: float) -> None:
    weight = torch.zeros(1000)
    optimizer = AdamW([weight], lr=1.0, floor=floor)
    optimizer.noise_variance = 1.0
    weight.grad = 0.5 * torch.ones(1000)  # g^2 - s^2 < 0
    optimizer.step()
    torch.testing.assert_close(weight, torch.full((1000,), -0.5 / wanted))


def test_it_goes_on_from_its_state() -> None:
    weights = [normal(1, 3)]
    first = AdamW(weights, lr=0.01)
    first.noise_variance = 0.1
    run(first, weights, 3)
    copied = [weights[0].clone()]
    second = AdamW(copied, lr=0.5)
    kept = io.BytesIO()
    torch.save(first.state_dict(), kept)
    kept.seek(0)
    second.load_state_dict(torch.load(kept, weights_only=True))
    second.noise_variance = 0.1
    for optimizer, own in ((first, weights), (second, copied)):
        run(optimizer, own, 4)
    assert torch.equal(weights[0], copied[0])


def test_groups_have_their_own_settings() -> None:
    fast, slow, still = (torch.ones(2) for _ in range(3))
    optimizer = AdamW([{"params": [fast]}, {"params": [slow], "lr": 0.01}, {"params": [still]}], lr=0.1)
    fast.grad = slow.grad = torch.ones(2)
    optimizer.step()
    torch.testing.assert_close(1 - fast, 10 * (1 - slow))
    assert torch.equal(still, torch.ones(2)), "no gradient, no step"


def test_schedulers_drive_it() -> None:
    weight = torch.ones(2)
    optimizer = AdamW([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4)
    rates = []
    for _ in range(4):
        weight.grad = torch.ones(2)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": -1},
        {"lr": "1"},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -1)},
        {"floor": 0},
        {"weight_decay": -1},
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        AdamW([torch.ones(1)], **settings)
