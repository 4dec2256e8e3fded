"""Norms and sums of every combination of uses are those of the gradients formed one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sourdine.sgd import rounding, uses  # noqa: E402
from sourdine.sgd.clipped import scaled  # noqa: E402
from sourdine.sgd.clipping import Flat  # noqa: E402
from sourdine.sgd.gpu import add_halves  # noqa: E402
from sourdine.sgd.uses import Gradients, Lookup, Outer  # noqa: E402

KINDS = ("outer", "lookup", "formed")


def normal(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(seed: int, b: int, t: int, m: int) -> Any:
    return torch.randint(0, m, (b, t), generator=torch.Generator().manual_seed(seed))


def made(kinds: list[str], b: int, t: int, m: int, n: int, seed: int) -> tuple[Gradients, Any]:
    """Uses of a parameter (m, n), and what they add up to in double precision: (b, m, n)."""
    grads, whole = Gradients(torch.Size((m, n))), torch.zeros(b, m, n, dtype=torch.float64)
    for place, kind in enumerate(kinds):
        at = 10 * seed + place
        right = normal(at, b, t, n)
        if kind == "outer":
            left = normal(at + 5, b, t, m)
            grads.add(Outer(left, right))
            whole += left.double().mT @ right.double()
        elif kind == "lookup":
            chosen = ids(at + 5, b, t, m)
            grads.add(Lookup(chosen, right))
            whole += torch.nn.functional.one_hot(chosen, m).double().mT @ right.double()
        else:
            own = normal(at, b, m, n)
            grads.add(own)
            whole += own.double()
    return grads, whole


combinations = st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)
sizes = st.integers(1, 6)


@given(combinations, st.integers(1, 4), sizes, sizes, sizes, st.integers(0, 99))
def test_every_combination(kinds: list[str], b: int, t: int, m: int, n: int, seed: int) -> None:
    grads, whole = made(kinds, b, t, m, n, seed)
    each = grads.each().double()
    torch.testing.assert_close(each, whole, rtol=1e-5, atol=1e-5)
    squares, more = grads.squares()
    wanted = whole.flatten(1).square().sum(1)
    slack = 1e-5 * (1 + float(wanted.max())) * t * len(kinds)
    assert (squares >= wanted * (1 - 1e-6)).all(), "rounded downwards"
    assert (squares <= wanted + slack).all()
    assert more is None
    torch.testing.assert_close(grads.each().double(), whole, rtol=1e-5, atol=1e-5)  # as before squares
    factors = normal(seed, b).abs()
    start = normal(seed + 1, m, n)
    into = start.clone()
    grads.add_sum_(into, factors)
    total = start + torch.einsum("b,bmn->mn", factors.double(), whole)
    torch.testing.assert_close(into.double(), total, rtol=1e-4, atol=1e-4)


@given(combinations, st.integers(2, 4), sizes, sizes, sizes, st.integers(0, 99))
def test_dropped_examples_add_nothing(
    kinds: list[str], b: int, t: int, m: int, n: int, seed: int
) -> None:
    grads, _ = made(kinds, b, t, m, n, seed)
    spoilt, whole = made(kinds, b, t, m, n, seed)
    for use in (*spoilt.outers, *spoilt.lookups):
        use.right[0] = float("nan")
    if spoilt.formed is not None:
        spoilt.formed[0] = float("inf")
    bad = torch.arange(b) == 0
    for one in (grads, spoilt):
        one.squares()
        one.drop(bad)
    assert torch.isfinite(spoilt.each()).all()
    sums = [torch.zeros(m, n), torch.zeros(m, n)]
    for one, into in zip((grads, spoilt), sums, strict=True):
        one.add_sum_(into, torch.ones(b))
    assert torch.equal(*sums)
    torch.testing.assert_close(sums[0].double(), whole[1:].sum(0), rtol=1e-4, atol=1e-4)


@given(st.integers(1, 3), sizes, sizes, sizes, st.integers(1, 3), st.integers(0, 99))
def test_formed_or_not(b: int, t: int, m: int, n: int, outers: int, seed: int) -> None:
    found = []
    for pays in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outer, "forming_pays", pays)
            grads, _ = made(["outer"] * outers, b, t, m, n, seed)
            squares, _ = grads.squares()
            assert bool(grads.outers) != pays
            into = torch.zeros(m, n)
            grads.add_sum_(into, torch.full((b,), 0.3))
            found.append((squares, into))
    (ghost, one), (formed, other) = found
    torch.testing.assert_close(ghost, formed, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_uses_counted_one_by_one_are_noticed() -> None:
    # What peers do: squares of the uses of a tied weight, added up without their products.
    grads, whole = made(["outer", "lookup", "formed"], 3, 4, 5, 2, 1)
    apart = sum(made([kind], 3, 4, 5, 2, 1)[0].squares()[0] for kind in KINDS)
    wanted = whole.flatten(1).square().sum(1)
    torch.testing.assert_close(grads.squares()[0].double(), wanted, rtol=1e-4, atol=0.0)
    assert ((apart - wanted).abs() > 0.05 * wanted).any()


# What one example adds, after all rounding, against the clip


def added(grads: Gradients, clip: float) -> float:
    """The norm of what the only example adds, in parts of the clip."""
    squares, rounding = grads.squares()
    factors, _ = Flat(clip).factors(
        {"w": squares}, 0.0 if rounding is None else rounding, torch.zeros(1)
    )
    into = torch.zeros(grads.shape)
    grads.add_sum_(into, factors)
    return float(into.double().norm()) / clip


def cancelling(kinds: tuple[str, ...], seed: int, m: int = 16, n: int = 16) -> Gradients:
    """Large uses that cancel each other up to one part in 10^4 to 10^5."""
    grads = Gradients(torch.Size((m, n)))
    chosen = torch.arange(m)[None]
    rest = 10.0 ** -(4 + seed % 3 / 2) * normal(seed, m, n)
    large = normal(seed + 1, m, n) * 1e3
    parts = (
        [large, rest * 1e3 - large]
        if len(kinds) == 2
        else [large, -large / 3, rest * 1e3 - large * 2 / 3]
    )
    for kind, part in zip(kinds, parts, strict=True):
        if kind == "outer":
            grads.add(Outer(torch.eye(m)[None], part[None]))
        elif kind == "lookup":
            grads.add(Lookup(chosen, part[None]))
        else:
            grads.add(part[None])
    return grads


CANCEL = [
    ("outer", "outer"),
    ("lookup", "lookup"),
    ("formed", "formed"),
    ("outer", "lookup"),
    ("lookup", "formed"),
    ("outer", "formed"),
    ("outer", "lookup", "formed"),
]


def worst(kinds: tuple[str, ...]) -> float:
    return max(added(cancelling(kinds, seed), 1e-2) for seed in range(60))


@pytest.mark.parametrize("kinds", CANCEL, ids="-".join)
def test_cancelling_uses_stay_below_the_clip(kinds: tuple[str, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(Outer, "forming_pays", False)
    assert worst(kinds) <= 1


@pytest.mark.parametrize(
    "kinds",
    [k for k in CANCEL if len(set(k)) > 1 and "lookup" in k] + [("outer", "outer")],
    ids="-".join,
)
def test_without_the_margin_they_do_not(kinds: tuple[str, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(Outer, "forming_pays", False)
    monkeypatch.setattr(uses, "ROUNDING", 0.0)
    monkeypatch.setattr(uses, "FEATURE", 0.0)
    assert worst(kinds) > 1


def repeated(seed: int) -> Gradients:
    """One word many times over, whose gradients cancel."""
    right = normal(seed, 1, 64, 2) * 1e5
    right += normal(seed + 1, 2) / 64 - right.mean(1)
    grads = Gradients(torch.Size((3, 2)))
    grads.add(Lookup(torch.zeros(1, 64, dtype=torch.long), right))
    return grads


def test_a_word_that_cancels_itself(monkeypatch: Any) -> None:
    assert max(added(repeated(seed), 0.01) for seed in range(50)) <= 1
    # The norm of one sum, and another sum: it was so.
    real, joined = uses.square, uses._joined
    monkeypatch.setattr(uses, "_joined", lambda use: use)
    monkeypatch.setattr(
        uses,
        "square",
        lambda right: real(joined(Lookup(torch.zeros(1, 64, dtype=torch.long), right)).right),
    )
    assert max(added(repeated(seed), 0.01) for seed in range(50)) > 1


def half(dtype: Any, t: int, seed: int, size: float = 1.0, m: int = 30, n: int = 20) -> Gradients:
    grads = Gradients(torch.Size((m, n)))
    grads.add(
        Outer((normal(seed, 1, t, m) * size).to(dtype), (normal(seed + 1, 1, t, n) * size).to(dtype))
    )
    return grads


@pytest.mark.parametrize("clip", [1.0, 0.37, 1e-6])
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaling_in_half_precision(dtype: Any, t: int, clip: float) -> None:
    assert max(added(half(dtype, t, seed, 30.0), clip) for seed in range(40)) <= 1


@pytest.mark.parametrize("t", [1, 3])
def test_half_precision_needs_its_margin(t: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(uses, "SCALED", {torch.bfloat16: 0.0})
    assert max(added(half(torch.bfloat16, t, seed), 0.37) for seed in range(40)) > 1.0001


@pytest.mark.parametrize("t", [1, 2])
def test_squares_that_underflow(t: int, monkeypatch: Any) -> None:
    def tiny() -> Gradients:
        grads = Gradients(torch.Size((3, 2)))
        grads.add(Outer(normal(1, 1, t, 3) * 1e-24, normal(2, 1, t, 2) * 1e18))
        return grads

    monkeypatch.setattr(Outer, "forming_pays", False)
    assert added(tiny(), 1e-8) <= 1
    monkeypatch.setattr(uses, "LOST", 0.0)
    assert added(tiny(), 1e-8) > 10


@pytest.mark.parametrize("count", [7, 255, 256, 257, 100_000, 4_000_000])
@pytest.mark.parametrize("equal", [False, True])
def test_long_rows(count: int, equal: bool) -> None:
    x = torch.full((1, count), 0.1) if equal else normal(1, 1, count)
    wanted = float(x.double().square().sum())
    assert abs(float(uses.square(x)) / wanted - 1) < 2.0**-20


def test_long_rows_added_one_by_one_are_off(monkeypatch: Any) -> None:
    monkeypatch.setattr(rounding, "_STRETCH", 1 << 40)
    with pytest.raises(AssertionError):
        test_long_rows(4_000_000, True)


@pytest.mark.parametrize("features", [64, 4096, 50_257])
@pytest.mark.parametrize("t", [2, 64, 300])
@pytest.mark.parametrize("equal", [False, True])
def test_ghost_norms_are_never_too_small(features: int, t: int, equal: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(Outer, "forming_pays", False)
    if features * t > 2_000_000:
        t = 30
    grads = Gradients(torch.Size((features, 8)))
    one, two = (1, t, features), (1, t, 8)
    left, right = (
        (torch.full(one, 0.1), torch.full(two, 0.3)) if equal else (normal(1, *one), normal(2, *two))
    )
    grads.add(Outer(left, right))
    wanted = float((left.double().mT @ right.double()).square().sum())
    found = float(grads.squares()[0])
    assert found >= wanted * (1 - 2.0**-20)  # the margin of the clip is twice that, in squares
    assert found <= wanted + 1e-5 * float((left.norm(dim=2) * right.norm(dim=2)).sum()) ** 2


@given(st.integers(1, 32), st.integers(0, 99))
def test_ordinary_gradients_lose_next_to_nothing(t: int, seed: int) -> None:
    grads = Gradients(torch.Size((96, 64)))
    grads.add(Outer(normal(seed, 1, t, 96), normal(seed + 1, 1, t, 64)))
    assert 1 - 1e-5 <= added(grads, 0.1) <= 1


def test_any_order_of_memory() -> None:
    whole = normal(1, 2, 4, 3, 5, 5)
    grads = Gradients(whole.shape[1:])
    grads.add(Outer(normal(2, 2, 6, 4), normal(3, 2, 6, 75)))
    grads.add(whole)
    grads.squares()
    plain = torch.zeros(4, 3, 5, 5)
    last = plain.contiguous(memory_format=torch.channels_last)
    for into in (plain, last):
        grads.add_sum_(into, torch.ones(2))
    assert plain.any()
    assert torch.equal(plain, last)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (4, 7)])
def test_operations_are_what_compilers_are_told(shape: tuple[int, int]) -> None:
    """Shapes, order in memory and what is changed, of strided operands too."""
    b, t = shape
    chosen = ids(1, t, b, 3).t()
    torch.library.opcheck(uses.joined, (chosen, normal(2, t, b, 5).transpose(0, 1)))
    left, right = normal(3, 6, 8).bfloat16()[:, :5].t(), normal(4, 6, 4).bfloat16()[:, :3]
    torch.library.opcheck(add_halves, (normal(5, 5, 3), left, right))


def test_halves_are_added_up_in_single_precision() -> None:
    left, right = normal(3, 600, 8).bfloat16()[:, :5].t(), normal(4, 600, 4).bfloat16()[:, :3]
    before = normal(5, 5, 3)
    into = before.clone()
    add_halves(into, left, right)
    wanted = (before.double() + left.double() @ right.double()).float()
    torch.testing.assert_close(into, wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError):  # the twin
        torch.testing.assert_close((before + left @ right).float(), wanted, rtol=1e-5, atol=1e-5)


class Several:
    """Stands for the GPU's kernels: norms of several uses at a time, two in one call at most."""

    GHOSTS = 2

    def __init__(self) -> None:
        self.calls: list[int] = []

    @staticmethod
    def fits(left: Any, right: Any) -> bool:
        return left.dtype == right.dtype == torch.bfloat16

    @staticmethod
    def ghost_additions(steps: int) -> int:
        return steps * steps

    def ghosts(self, lefts: Any, rights: Any, least_left: float, least_right: float) -> Any:
        self.calls.append(len(lefts))
        squares = [[x.float() @ x.float().mT for x in side] for side in (lefts, rights)]
        norms = [(x * y).sum(2) for x, y in zip(*squares, strict=True)]
        ends = zip(squares, (least_left, least_right), strict=True)
        roots = [
            [x.diagonal(dim1=1, dim2=2).clamp_min(least).sqrt() for x in own] for own, least in ends
        ]
        lengths = [x * y for x, y in zip(*roots, strict=True)]
        return torch.stack(norms, 1), torch.stack(lengths, 1)


def test_norms_of_several_parameters_at_once_leave_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of one shape, two of another, and one in single precision, which the kernel does not take."""
    shapes = [(40, 48)] * 3 + [(48, 40)] * 2 + [(40, 48)]
    found, true = {}, torch.zeros(2, dtype=torch.float64)
    for at, (m, n) in enumerate(shapes):
        left, right = normal(at, 2, 8, m) * (at + 1), normal(at + 50, 2, 8, n)
        if at < 5:
            left, right = left.bfloat16(), right.bfloat16()
        found[f"{at}"] = Gradients(torch.Size((m, n)))
        found[f"{at}"].add(Outer(left, right))
        true += (left.double().mT @ right.double()).square().sum((1, 2))
    kernels = Several()
    monkeypatch.setattr(uses, "kernels", lambda x: kernels if x.dtype == torch.bfloat16 else None)
    _, norms = scaled(found, Flat(1.0), 2, torch.device("cpu"))
    assert kernels.calls == [2, 1, 2]
    assert (norms.double() >= true.sqrt()).all()
    assert (norms.double() <= 1.05 * true.sqrt()).all()
