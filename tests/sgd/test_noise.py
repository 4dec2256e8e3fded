"""The noise has the law it states, from the bits it should, and nothing else is touched."""

import math
import os

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sourdine.errors import InputError
from sourdine.rng import Source, secure, seeded
from sourdine.sgd import noise
from sourdine.sgd.noise import add_noise_, chacha20, normal

FALSE_ALARM = 1e-6
COUNT = 1_000_000
CPU = torch.device("cpu")


def openssl(key: bytes, start: int, blocks: int) -> bytes:
    cipher = Cipher(ChaCha20(key, start.to_bytes(16, "little")), mode=None)
    return cipher.encryptor().update(bytes(64 * blocks))


def added(count: int, deviation: float, source: Source) -> np.ndarray:
    tensor = torch.zeros(count)
    add_noise_([tensor], deviation, source)
    return tensor.numpy().astype(np.float64)


# The stream


def test_the_block_function_of_rfc_8439() -> None:
    """Section 2.3.2: counter 1, nonce 00:00:00:09:00:00:00:4a:00:00:00:00."""
    start = int.from_bytes(bytes.fromhex("01000000 000000090000004a00000000"), "little")
    expected = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert chacha20(bytes(range(32)), start, 1, CPU).numpy().tobytes() == expected


def test_the_keystream_of_rfc_8439() -> None:
    """Appendix A.1, vectors 1 and 2: key and nonce zero, counters 0 and 1."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert chacha20(bytes(32), 0, 2, CPU).numpy().tobytes() == expected


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**40), st.integers(1, 40))
def test_the_torch_stream_is_that_of_openssl(key: bytes, start: int, blocks: int) -> None:
    start -= max(0, start % 2**32 + blocks - 2**32)  # the wrapper of OpenSSL does not carry
    assert chacha20(key, start, blocks, CPU).numpy().tobytes() == openssl(key, start, blocks)


def test_the_counter_carries_past_32_bits() -> None:
    key = os.urandom(32)
    ours = chacha20(key, 2**32 - 2, 4, CPU).numpy().tobytes()
    assert ours == openssl(key, 2**32 - 2, 2) + openssl(key, 2**32, 2)


def test_every_way_to_make_the_words_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    key, count = os.urandom(32), 5 * noise._AT_ONCE + 24
    assert torch.equal(
        noise._words(key, 7, count, CPU), chacha20(key, 7, -(-count // 16), CPU).view(-1)[:count]
    )
    # As on an accelerator: several tiles at once, the stream by torch.
    count = 2 * noise._AT_ONCE + 101
    whole = torch.cat(list(noise._noise(count, key, CPU)))
    monkeypatch.setattr(
        noise,
        "_words",
        lambda key, start, n, device: chacha20(key, start, -(-n // 16), device).view(-1)[:n],
    )
    assert torch.equal(whole, torch.cat(list(noise._noise(count, key, CPU))))
    words = noise._words(key, 0, 4 * noise._AT_ONCE, CPU).view(-1, 4)
    assert torch.equal(whole[: 2 * noise._AT_ONCE], noise._on_cpu(words).view(-1))
    assert float((noise._elsewhere(words) - noise._on_cpu(words)).abs().max()) < 1e-3
    assert float((noise._elsewhere(words) - noise._on_cpu(words)).abs().mean()) < 1e-6


# The law


def alarms(values: np.ndarray, deviation: float) -> set[str]:
    """What is wrong with values that should be N(0, deviation^2); FALSE_ALARM for all checks together."""
    n, x = len(values), values / deviation
    tests = {
        "shape": stats.kstest(x, "norm").pvalue,
        "mean": 2 * stats.norm.sf(abs(x.mean()) * math.sqrt(n)),
        "variance": 2 * min(stats.chi2.cdf((x**2).sum(), n), stats.chi2.sf((x**2).sum(), n)),
        "fourth moment": 2 * stats.norm.sf(abs((x**4).mean() - 3) * math.sqrt(n / 96)),
    }
    for lag in (1, 2, 4, noise._AT_ONCE // 2, noise._AT_ONCE):
        # Squares too: values that share a radius are not correlated, but their squares are.
        for name, y, spread in (("neighbours", x, 1.0), ("squares", x**2 - 1, 2.0)):
            score = (y[lag:] * y[:-lag]).sum() / spread / math.sqrt(n - lag)
            tests[f"{name} {lag}"] = 2 * stats.norm.sf(abs(score))
    for bound in (3.0, 4.0, 4.5):
        beyond = int((np.abs(x) > bound).sum())
        tests[f"tail {bound}"] = stats.binomtest(beyond, n, 2 * stats.norm.sf(bound)).pvalue
    return {name.split()[0] for name, pvalue in tests.items() if pvalue < FALSE_ALARM / len(tests)}


@pytest.mark.parametrize("deviation", [1.0, 0.037, 1500.0])
def test_the_noise_is_gaussian_of_this_deviation(deviation: float) -> None:
    assert alarms(added(COUNT, deviation, seeded(1)), deviation) == set()


def test_standard_normals() -> None:
    drawn = normal((1000, 1000), seeded(2))
    assert drawn.shape == (1000, 1000) and drawn.dtype == torch.float32
    assert alarms(drawn.flatten().numpy().astype(np.float64), 1.0) == set()


@pytest.mark.parametrize("factor", [0.9, 0.99, 1.01])
def test_less_noise_is_caught(factor: float) -> None:
    assert "variance" in alarms(added(COUNT, factor, seeded(3)), 1.0)


def test_reuse_is_caught() -> None:
    """Twins: noise given twice, a radius used twice, tails cut off, two of another law than the Gaussian."""
    x = added(COUNT, 1.0, seeded(4))
    assert "neighbours" in alarms(np.repeat(x[: COUNT // 2], 2), 1.0)
    angle = 2 * math.pi * np.random.default_rng(5).random(COUNT)
    radius = np.sqrt(x[::2] ** 2 + x[1::2] ** 2)
    assert "squares" in alarms(np.repeat(radius, 2) * np.cos(angle), 1.0)
    assert "tail" in alarms(np.where(np.abs(x) > 3.9, 0.0, x), 1.0)
    assert "fourth" in alarms(
        np.random.default_rng(6).uniform(-1, 1, (2, COUNT)).sum(0) * math.sqrt(1.5), 1.0
    )


def test_the_two_values_of_a_couple_are_independent_and_a_reused_couple_is_caught() -> None:
    words = noise._words(bytes(32), 0, 4 * COUNT, CPU).view(COUNT, 4)
    pairs = noise._on_cpu(words).double().numpy() * math.sqrt(0.5)
    assert alarms(pairs.ravel(), 1.0) == set()
    assert alarms(pairs.T.ravel(), 1.0) == set()
    twin = noise._on_cpu(words[:, [0, 0, 2, 2]].contiguous()).double().numpy() * math.sqrt(0.5)
    assert "variance" in alarms(twin[:, 0], 1.0)


def test_each_gaussian_reaches_its_tails() -> None:
    """The largest radius, and the least: nothing is infinite, and no logarithm of zero is taken."""
    words = torch.tensor([0, 1, -1, -(2**31), 2**31 - 1], dtype=torch.int32).repeat(2, 1)
    cosines = noise._on_cpu(torch.cat([words, torch.zeros_like(words)]).t().contiguous())[:, 0] / 2
    exact = [math.sqrt(62 * math.log(2) + 2 * math.log(2 * math.pi)), math.sqrt(62 * math.log(2))]
    assert exact[0] > 6.8 and exact[1] > 6.5
    torch.testing.assert_close(cosines, torch.tensor([exact[0], exact[1], exact[1], 0.0, 0.0]))


def test_rounding_keeps_the_variance() -> None:
    """Against the same bits in float64: the variance is off by less than a part in a million."""
    words = noise._words(os.urandom(32), 0, 4 * COUNT, CPU).view(COUNT, 4)
    ours, k = noise._on_cpu(words).double(), words.double()
    radius = (-2 * (k[:, :2].abs().clamp(min=1 / (2 * math.pi)) * 2.0**-31).log()).sqrt()
    angle = k[:, 2:] * (math.pi * 2.0**-31)
    exact = torch.stack([(radius * angle.cos()).sum(1), (radius * angle.sin()).sum(1)], 1)
    assert abs(float((ours**2).sum() / (exact**2).sum()) - 1) < 1e-6
    assert float((ours - exact).abs().max()) < 1e-3


# The grid


def finer_than(values: torch.Tensor, step: float) -> float:
    """The share of values that are no whole number of steps."""
    steps = values.double() / step
    return float((steps != steps.round()).double().mean())


@pytest.mark.parametrize("value", [0.0, 1 / 3, -700.123])
def test_an_answer_does_not_show_which_lattice_it_came_from(value: float) -> None:
    tensor = torch.full((100_000,), value)
    add_noise_([tensor], 1.5, seeded(7))
    assert finer_than(tensor, 2.0**-10) == 0
    # The twin: without the grid small answers have finer digits, and these depend on the value.
    plain = torch.full((100_000,), value).add_(normal((100_000,), seeded(7)), alpha=1.5)
    assert finer_than(plain, 2.0**-10) > 0.9


def test_large_values_keep_their_digits() -> None:
    tensor = torch.tensor([1e30, -3e9, 12345.678])
    before = tensor.clone()
    add_noise_([tensor], 1e-6, seeded(8))
    torch.testing.assert_close(tensor, before, rtol=2**-22, atol=0)


# Calls


def test_no_two_calls_share_noise() -> None:
    source = secure()
    first, second, other = (normal((1000,), source), normal((1000,), source), normal((1000,), secure()))
    for a, b in ((first, second), (first, other), (second, other)):
        assert len(np.intersect1d(a.numpy(), b.numpy())) < 5
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.2


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(0, 9))
def test_a_seed_repeats_the_noise_however_it_is_cut(sizes: list[int], seed: int) -> None:
    whole = added(sum(sizes), 2.0, seeded(seed))
    parts = [torch.zeros(size) for size in sizes]
    add_noise_(parts, 2.0, seeded(seed))
    assert np.array_equal(torch.cat([*parts, torch.zeros(0)]).numpy(), whole)


def test_tiles_meet_without_a_gap() -> None:
    count = 2 * noise._AT_ONCE + 3
    parts = [torch.zeros(noise._AT_ONCE - 1), torch.zeros(5), torch.zeros(count - noise._AT_ONCE - 4)]
    add_noise_(parts, 1.0, seeded(1))
    assert np.array_equal(torch.cat(parts).numpy(), added(count, 1.0, seeded(1)))
    assert all(
        len(added(n, 1.0, seeded(n)).nonzero()[0]) > 0.99 * n for n in (1, 2, 3, noise._AT_ONCE + 1)
    )


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[::2, 1::3],
        lambda t: t[:, 5],
        lambda t: t[3, 4],
        lambda t: t.view(10, 4, 5, 6).permute(0, 3, 1, 2),
        lambda t: t[:, :0],
    ],
)
def test_any_strides_and_nothing_beside_them(view) -> None:
    whole = torch.zeros(40, 30)
    chosen = view(torch.arange(whole.numel()).view(40, 30)).flatten()
    add_noise_(iter([view(whole)]), 1.0, seeded(9))
    touched = whole.flatten().nonzero().flatten()
    assert set(touched.tolist()) <= set(chosen.tolist())
    assert len(touched) >= len(chosen) - 10  # noise rounds to zero once in 2,500


def test_parameters_and_scalars() -> None:
    weight, scalar = torch.nn.Parameter(torch.zeros(50)), torch.zeros(())
    add_noise_([weight, scalar], 1.0, seeded(0))
    assert weight.requires_grad and weight.grad_fn is None and float(weight.detach().std()) > 0.5


def test_deviation_zero_changes_and_draws_nothing() -> None:
    tensor, source = torch.full((100,), 1 / 3), seeded(1)
    add_noise_([tensor], 0.0, source)
    add_noise_([], 1.0, source)
    assert torch.equal(tensor, torch.full((100,), 1 / 3))
    assert source.bytes(8) == seeded(1).bytes(8)


@pytest.mark.parametrize("deviation", [-1.0, math.nan, math.inf, 1e-30, 1e30, True, "1"])
def test_bad_deviations(deviation: float) -> None:
    with pytest.raises(InputError, match="deviation is"):
        add_noise_([torch.zeros(3)], deviation, seeded(0))


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(3, dtype=torch.bfloat16), "a tensor is bfloat16"),
        (torch.zeros(3, dtype=torch.float64), "a tensor is float64"),
        (torch.zeros(3).to_sparse(), "sparse"),
        (torch.zeros(1).expand(3), "share memory"),
    ],
)
def test_tensors_that_cannot_take_noise(tensor: torch.Tensor, said: str) -> None:
    first = torch.zeros(3)
    with pytest.raises(InputError, match=said):
        add_noise_([first, tensor], 1.0, seeded(0))
    assert not first.any()
