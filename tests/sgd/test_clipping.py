"""What one example adds never exceeds the clip, however it is made; the ways to choose a clip."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

from sourdine.errors import InputError  # noqa: E402
from sourdine.sgd import Adaptive, Automatic, Clip, Flat, PerLayer, clipped_sum, uses  # noqa: E402
from sourdine.sgd import clipping as room  # noqa: E402

Losses = Callable[[], Any]


@pytest.fixture(autouse=True)
def repeatable() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=seeded(seed))


def model(seed: int, *sizes: int, bias: bool = True) -> Any:
    """Linear layers with tanh between them."""
    layers: list[Any] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for place, weight in enumerate(net.parameters()):
            weight.copy_(normal(100 * seed + place, *weight.shape))
    return net


def flat(net: Any) -> Any:
    return torch.cat([w.grad.flatten() for w in net.parameters() if w.requires_grad])


def summed(net: Any, losses: Losses, clip: float | Clip, **settings: Any) -> Any:
    net.zero_grad()
    clipped_sum(net, losses, clip, **settings)
    return flat(net)


def added(net: Any, losses: Losses, clip: float) -> float:
    """The norm of what is added, in parts of the clip."""
    return float(summed(net, losses, clip).double().norm()) / clip


def rows(net: Any, values: Any) -> Any:
    weights = list(net.parameters())
    found = [torch.autograd.grad(one, weights, retain_graph=True) for one in values]
    return torch.stack([torch.cat([g.flatten() for g in own]) for own in found])


# The bound, in spite of rounding


def cancelling(seed: int) -> tuple[Any, Losses]:
    """Inputs that are almost the same at all positions, under gradients of alternating sign."""
    net = model(seed, 24, 24, bias=False)
    x = 1e3 * normal(seed, 1, 1, 24) * (1 + 1e-4 * normal(seed + 1, 1, 8, 24))
    sign = torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    gradient = normal(seed + 2, 24)
    return net, lambda: (net(x) * gradient * sign).sum((1, 2))


@given(st.integers(0, 999), st.sampled_from([1e-3, 0.1, 3.0]))
def test_ghost_norms_that_cancel(seed: int, clip: float) -> None:
    assert added(*cancelling(seed), clip) <= 1


def test_without_the_margin_the_clip_is_exceeded(monkeypatch: Any) -> None:
    monkeypatch.setattr(uses, "ROUNDING", 0.0)
    monkeypatch.setattr(uses, "FEATURE", 0.0)
    assert max(added(*cancelling(seed), 0.1) for seed in range(40)) > 1.001


@pytest.mark.parametrize("length", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", [1e-4, 0.37])
def test_any_precision(dtype: Any, length: int, clip: float) -> None:
    def one(seed: int) -> float:
        net, x = model(seed, 7, 30, 3), 10 * normal(seed, 1, length, 7)

        def losses() -> Any:
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                return net(x).float().square().sum((1, 2))

        return added(net, losses, clip)

    assert max(one(seed) for seed in range(10)) <= 1


@given(st.integers(0, 99), st.integers(1, 12))
def test_ordinary_examples_lose_next_to_nothing(seed: int, length: int) -> None:
    net, x = model(seed, 7, 30, 3), normal(seed, 1, length, 7)
    assert 1 - 1e-5 <= added(net, lambda: net(x).square().sum((1, 2)), 0.01) <= 1


def test_the_scaling_itself_needs_a_margin(monkeypatch: Any) -> None:
    def worst() -> float:
        found = 0.0
        for seed in range(60):
            net, x = model(seed, 5, 1, bias=False), normal(seed, 1, 5)
            found = max(found, added(net, lambda net=net, x=x: net(x).sum(1), 0.1))
        return found

    assert worst() <= 1
    monkeypatch.setattr(room, "_MARGIN", 1.0)
    monkeypatch.setattr(uses, "ROUNDING", 0.0)
    assert worst() > 1


@pytest.mark.parametrize("copies", [2, 3])
def test_a_layer_used_twice_is_clipped_as_one(copies: int) -> None:
    # Peers add the squares of the uses: true norm up to 1.36 times the estimate.
    net, x = model(3, 6, 6, bias=False), normal(1, 1, 6)

    def losses() -> Any:
        y = x
        for _ in range(copies):
            y = net(y) + x
        return y.sum(1)

    assert 1 - 1e-5 <= added(net, losses, 0.1) <= 1


# Examples that are not finite


BAD = [float("inf"), -float("inf"), float("nan"), 1e38]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", ["linear", "conv", "lstm", "norm", "bare"])
def test_a_bad_example_adds_nothing(kind: str, value: float) -> None:
    x = normal(1, 5, 8, 4)
    whole = {
        "linear": lambda: model(1, 4, 6, 2),
        "conv": lambda: nn.Conv1d(4, 3, 3),
        "lstm": lambda: nn.LSTM(4, 3, batch_first=True),
        "norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)),
        "bare": lambda: nn.ParameterList([normal(1, 4)]),
    }
    net = whole[kind]()

    def losses_of(x: Any) -> Losses:
        def losses() -> Any:
            if kind == "bare":
                return (x * net[0]).square().sum((1, 2))
            y = net(x.mT if kind == "conv" else x)
            return (y[0] if kind == "lstm" else y).square().sum((1, 2))

        return losses

    wanted = summed(net, losses_of(x[1:]), 0.5)
    spoilt = x.clone()
    spoilt[0] *= value
    found = summed(net, losses_of(spoilt), 0.5)
    assert torch.isfinite(found).all()
    if math.isfinite(value) and kind in ("linear", "lstm", "norm"):  # these squash what is large
        assert float((found - wanted).norm()) <= 0.5 + 1e-5
        return
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_bad_example_leaves_others_bit_for_bit() -> None:
    net, x = model(1, 4, 6, 2), normal(1, 5, 4)
    x[0] = 0

    def losses(x: Any) -> Losses:
        return lambda: net(x).square().sum(1)

    zero = torch.tensor([0.0, 1, 1, 1, 1])
    wanted = summed(net, losses(x), 0.5, weights=zero)
    x[0] = float("nan")
    assert torch.equal(summed(net, losses(x), 0.5), wanted)
    assert torch.equal(summed(net, losses(x), 0.5, weights=zero), wanted)


def test_overflow_in_half_precision() -> None:
    net, x = model(1, 4, 6, 2), normal(1, 5, 4)
    x[0] *= 1e6  # 65504 is the largest float16

    def losses(x: Any) -> Losses:
        def inner() -> Any:
            with torch.autocast("cpu", torch.float16):
                return net[2](net[0](x)).float().square().sum(1)

        return inner

    found, wanted = (summed(net, losses(x[start:]), 0.5) for start in (0, 1))
    assert wanted.any()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_only_bad_examples_add_zeros() -> None:
    net, x = model(1, 4, 6, 2), torch.full((3, 4), float("nan"))
    assert torch.equal(summed(net, lambda: net(x).sum(1), 0.5), torch.zeros_like(flat(net)))


# Weights, padding, units, physical batches


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99))
def test_examples_of_weight_zero_add_exactly_nothing(real: int, padding: int, seed: int) -> None:
    net, b = model(1, 4, 6, 2), real + padding
    x, other = normal(seed, b, 3, 4), normal(seed, b, 3, 4)
    other[real:] = 100 * normal(seed + 1, padding, 3, 4)
    weights = (torch.arange(b) < real).float()
    sums = [
        summed(net, lambda x=x: net(x).square().sum((1, 2)), 0.5, weights=weights) for x in (x, other)
    ]
    assert torch.equal(*sums)
    alone = summed(net, lambda: net(x[:real]).square().sum((1, 2)), 0.5)
    torch.testing.assert_close(sums[0], alone, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 12), st.integers(1, 12))
def test_the_cut_into_batches_changes_nothing(count: int, size: int) -> None:
    net, x = model(1, 4, 6, 2), normal(count, count, 3, 4)
    wanted = summed(net, lambda: net(x).square().sum((1, 2)), 0.5)
    net.zero_grad()
    for part in x.split(size):
        clipped_sum(net, lambda part=part: net(part).square().sum((1, 2)), 0.5)
    torch.testing.assert_close(flat(net), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "tied", "conv", "bare"])
def test_all_examples_of_a_user_are_clipped_together(kind: str) -> None:
    per, users = 3, 4
    ids = torch.randint(0, 6, (per * users, 5), generator=seeded(1))
    net: Any
    if kind == "linear":
        net = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 3))
        call = lambda: net(ids).square().sum((1, 2))  # noqa: E731
    elif kind == "tied":
        net = nn.Embedding(6, 4)
        call = lambda: (net(ids) @ net.weight.t()).square().sum((1, 2))  # noqa: E731
    elif kind == "conv":
        net = nn.Sequential(nn.Embedding(6, 4), nn.Conv1d(5, 3, 2))
        call = lambda: net(ids).square().sum((1, 2))  # noqa: E731
    else:
        net = nn.Sequential(nn.Embedding(6, 4), nn.LayerNorm(4))
        call = lambda: (net(ids) * normal(2, per * users, 5, 4)).sum((1, 2))  # noqa: E731
    weights = torch.tensor([1, 0, 0, 0.5, 0.5, 0, 1 / 3, 1 / 3, 1 / 3, 0, 0, 0])
    each = rows(net, call()) * weights[:, None]
    joint = each.view(users, per, -1).sum(1)
    norms = joint.norm(dim=1, keepdim=True)
    clip = float(norms[1:3].mean())
    wanted = (joint * (clip / norms).clamp(max=1).nan_to_num(1)).sum(0)
    net.zero_grad()
    result = clipped_sum(net, call, clip, weights=weights, per_unit=per)
    torch.testing.assert_close(flat(net), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.norms, norms[:, 0], rtol=1e-4, atol=1e-5)
    # Without the products between a user's examples the norms would be others.
    apart = each.view(users, per, -1).norm(dim=2).square().sum(1).sqrt()
    assert ((apart - norms[:, 0]).abs() > 0.01 * norms[:, 0])[1:3].any()


def test_sums_go_on_top_of_what_is_there() -> None:
    net, x = model(1, 4, 6, 2), normal(1, 5, 4)
    once = summed(net, lambda: net(x).square().sum(1), 0.5)
    clipped_sum(net, lambda: net(x).square().sum(1), 0.5)
    torch.testing.assert_close(flat(net), 2 * once)


# Ways to clip

NONE = torch.zeros(3)
SQUARES = {
    "a.weight": torch.tensor([4.0, 0.01, 0.0]),
    "a.bias": torch.tensor([5.0, 0.0, 0.0]),
    "b.weight": torch.tensor([16.0, 0.0, 1.0]),
}


def test_flat() -> None:
    factors, norms = Flat(2.5).factors(SQUARES, 0.0, NONE)
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.1, 1.0]))
    torch.testing.assert_close(factors, torch.tensor([0.5, 1.0, 1.0]))


def test_automatic() -> None:
    how = Automatic(2.0, small=0.1)
    factors, norms = how.factors(SQUARES, 0.0, NONE)
    torch.testing.assert_close(factors, 2 / (norms + 0.1))
    assert (factors * norms <= how.bound).all()


def test_per_layer() -> None:
    how = PerLayer({"a": 1.5, "b": 2.0})
    assert how.bound == 2.5
    factors, norms = how.factors(SQUARES, 0.0, NONE)
    torch.testing.assert_close(factors["a.weight"], torch.tensor([0.5, 1.0, 1.0]))
    assert torch.equal(factors["a.bias"], factors["a.weight"])
    torch.testing.assert_close(factors["b.weight"], torch.tensor([0.5, 1.0, 1.0]))
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.1, 1.0]))


@given(st.integers(1, 5), st.integers(0, 99), st.floats(0.01, 100))
def test_per_layer_on_a_model(examples: int, seed: int, clip: float) -> None:
    net, x = model(seed, 4, 6, 2), 10 * normal(seed, examples, 4)
    how = PerLayer.even(net, clip)
    assert how.bound == pytest.approx(clip)
    own = rows(net, net(x).square().sum(1))
    cut = 4 * 6 + 6
    wanted = torch.cat(
        [
            (part * (clip / math.sqrt(2) / part.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
            for part in (own[:, :cut], own[:, cut:])
        ]
    )
    found = summed(net, lambda: net(x).square().sum(1), how)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * clip)
    assert float(found.norm()) <= examples * how.bound


def test_per_layer_names() -> None:
    net, x = model(1, 4, 6, 2), normal(1, 3, 4)
    with pytest.raises(InputError, match=r"no clip is given for 2\.weight"):
        clipped_sum(net, lambda: net(x).sum(1), PerLayer({"0": 1.0}))
    assert all(weight.grad is None for weight in net.parameters())
    with pytest.raises(InputError, match="at least one layer"):
        PerLayer({})
    # The longest name counts, and "1" is no part of "10".
    how = PerLayer({"a": 1.0, "a.b": 2.0, "a.bc": 3.0})
    assert [how._layer(name) for name in ("a.w", "a.b.w", "a.bc.w", "a.bcd.w")] == [
        "a",
        "a.b",
        "a.bc",
        "a",
    ]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize(
    "make",
    [Flat, Automatic, lambda clip: Automatic(1.0, clip), Adaptive, lambda clip: PerLayer({"a": clip})],
)
def test_bad_clips_are_refused(make: Any, bad: Any) -> None:
    with pytest.raises(InputError):
        make(bad)


@pytest.mark.parametrize(
    "settings", [{"quantile": 0}, {"quantile": 1}, {"rate": 0}, {"count_noise": 0}]
)
def test_bad_settings_of_adaptive_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Adaptive(1.0, **settings)


@given(st.floats(0.3, 20), st.floats(20, 10_000))
def test_adaptive_splits_the_noise(multiplier: float, lot_size: float) -> None:
    how = Adaptive(1.0, count_noise=multiplier)
    rest, count = how.split(multiplier, lot_size)
    assert count == multiplier
    assert rest**-2 + (2 * count) ** -2 == pytest.approx(multiplier**-2)
    assert rest > multiplier
    assert Adaptive(1.0).split(0.5, lot_size)[1] == lot_size / 20


def test_adaptive_refuses_a_count_that_tells_all() -> None:
    with pytest.raises(InputError, match=r"count_noise above 0\.5"):
        Adaptive(1.0, count_noise=0.4).split(1.0, 100)


@pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_adaptive_finds_the_quantile(start: float, quantile: float) -> None:
    norms = normal(1, 1000).exp()
    how = Adaptive(start, quantile=quantile)
    for _ in range(500):
        below = float((norms <= how.clip).float().sum() - 500)
        how.move(below, 1000)
    assert how.bound == pytest.approx(float(norms.quantile(quantile)), rel=0.1)


def test_adaptive_moves_by_a_bounded_step() -> None:
    for noisy in (-1e9, 1e9):
        how = Adaptive(1.0, quantile=0.5, rate=0.2)
        how.move(noisy, 100)
        assert how.clip == pytest.approx(math.exp(math.copysign(0.1, -noisy)))
