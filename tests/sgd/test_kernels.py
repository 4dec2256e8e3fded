"""The kernels do what their twins of plain torch do. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: E402
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20  # noqa: E402

import sourdine  # noqa: E402

KEY = bytes(range(32))


def test_kernels() -> None:
    """In a process of its own: Triton is told at its import whether to interpret."""
    own = [Path(__file__).parent, Path(sourdine.__file__).parents[1]]  # what is tested, not installed
    here = {"PYTHONPATH": os.pathsep.join(map(str, own))}
    how = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    code = "import test_kernels as x; x.stream(); x.noise(); x.grid(); x.strides(); x.norms(); x.ghosts(); x.several(); x.fitting(); x.classes(); x.steps(); x.training()"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **here, **how})


NUMBERS = dict.fromkeys(("scale", "shift", "least", "per", "least_left", "least_right"), "fp32")
WHOLE = dict.fromkeys(("first", "before", "count"), "i64") | dict.fromkeys(
    ("blocks", "classes", "width", "parts"), "i32"
)
PLACES = {"key": "*i32", "owners": "*i32", "tensors": "*i64", "labels": "*i64", "logits": "*bf16"}
COMPILED = {
    "_add_normals": ({"BLOCKS": 32}, 1),
    "_adam": ({"BLOCKS": 64, "COLUMNS": 6, "SETTINGS": 8}, 2),
    "_contracted": ({"STEPS": 128, "ROWS": 16, "COLUMNS": 128}, 4),
    "_ghosts": (
        {"USES": 2, "STEPS": 384, "LEFT": 64, "RIGHT": 128, "TILES": 6, "TILE": 128, "DEEP": 64},
        8,
    ),
    "_by_class": ({"CLASSES": 2048}, 4),
}


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_can_be_compiled_for_a_gpu(name: str) -> None:
    """For Hopper, by Triton and its assembler, which need no GPU; the interpreter takes more than they do."""
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    from sourdine.sgd import kernels, tiles

    kernel = getattr(kernels if hasattr(kernels, name) else tiles, name)
    fixed, warps = COMPILED[name]
    kinds = NUMBERS | WHOLE | PLACES | dict.fromkeys(fixed, "constexpr")
    if name == "_ghosts":
        kinds |= {"lefts": ("*bf16", "*bf16"), "rights": ("*bf16", "*bf16")}
    source = compiler.ASTSource(
        fn=kernel,
        signature={own: kinds.get(own, "*fp32") for own in kernel.arg_names},
        constexprs={(kernel.arg_names.index(own),): value for own, value in fixed.items()},
    )
    made = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert len(made.asm["cubin"]) > 1000


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def stream() -> None:
    """The words of the kernel are those of OpenSSL, and of RFC 8439, appendix A.1, vectors 1 and 2."""
    import triton
    import triton.language as tl

    from sourdine.sgd import kernels

    @triton.jit
    def words(key, first, out, AT_ONCE: tl.constexpr):  # noqa: N803
        at = tl.arange(0, 2)
        found = kernels._block(key, first + at.to(tl.int64), AT_ONCE)
        for word in tl.static_range(16):
            tl.store(out + at * 16 + word, found[word].to(tl.int32, bitcast=True))

    words.fn.__globals__.update(kernels=kernels, tl=tl)
    published = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    for key, first, at_once in ((bytes(32), 0, 1), (KEY, 7, 10), (KEY, 2**32 - 1, 1)):
        out = torch.zeros(32, dtype=torch.int32, device=device())
        given = torch.frombuffer(bytearray(key), dtype=torch.int32).to(device())
        words[(1,)](given, first, out, at_once)
        blocks = [
            Cipher(ChaCha20(key, at.to_bytes(16, "little")), mode=None).encryptor().update(bytes(64))
            for at in (first, first + 1)
        ]
        assert out.cpu().numpy().tobytes() == b"".join(blocks)
        if key == bytes(32):
            assert out.cpu().numpy().tobytes().hex().startswith(published)


def noise() -> None:
    """The same values as on a CPU, from wherever a tensor begins in the stream."""
    from sourdine.sgd import kernels
    from sourdine.sgd import noise as twin

    whole = torch.cat(list(twin._noise(2000, KEY, torch.device("cpu"))))
    for start, count in ((0, 1400), (3, 100), (1030, 700), (8, 1)):
        x = torch.ones(count, device=device())
        kernels.add_normals_(x, KEY, start, 2.0, 0.0, twin._LEAST)
        off = x.cpu() - 1 - 2 * whole[start : start + count]
        assert float(off.abs().max()) < 1e-5


def grid() -> None:
    """Sums are rounded to the grid, as on a CPU."""
    from sourdine.sgd import kernels
    from sourdine.sgd import noise as twin

    value, deviation = torch.full((2000,), 1 / 3), 1.5
    given = (KEY, 0, deviation * twin._SCALE, twin._shift(deviation), twin._LEAST)
    x = value.to(device())
    kernels.add_normals_(x, *given)
    steps = x.cpu().double() * 2**10
    assert torch.equal(steps, steps.round())
    drawn = next(twin._noise(2000, KEY, torch.device("cpu")))
    twin.round_(value.add_(drawn, alpha=deviation * twin._SCALE), deviation)
    assert float((x.cpu() != value).double().mean()) < 1e-3
    assert float((x.cpu() - value).abs().max()) <= 2.0**-10


def strides() -> None:
    """What is not dense, or in many pieces, gets its noise too, and nothing beside it does."""
    from sourdine.rng import seeded
    from sourdine.sgd import kernels
    from sourdine.sgd import noise as twin

    plain = twin.kernels
    for view in (lambda t: t[:, 5], lambda t: t[::2, 1::3], lambda t: t.t(), lambda t: t[:3]):
        found = []
        for module in (kernels, None):
            twin.kernels = lambda x, module=module: module
            whole = torch.zeros(40, 30, device=device())
            twin.add_noise_([view(whole)], 1.0, seeded(9))
            found.append(whole)
        assert float((found[0] != found[1]).double().mean()) < 1e-2
        assert float((found[0] - found[1]).abs().max()) <= 2.0**-10
    twin.kernels = plain


def norms() -> None:
    """The sums of two matrices of inner products, whole and in parts, and what they can be off by."""
    from sourdine.sgd import kernels

    torch.manual_seed(0)
    for steps in (2, 7, 16, 70, 300):
        left, right = torch.randn(2, steps, 9), torch.randn(2, steps, 5)
        lefts, rights = left @ left.mT, right @ right.mT
        wanted = (lefts.double() * rights.double()).sum((1, 2))
        lengths = (left.norm(dim=2) * right.norm(dim=2)).double().sum(1)
        found, sizes = kernels.contracted(lefts.to(device()), rights.to(device()), 1e-30, 1e-30)
        off = (found.double().sum(1).cpu() - wanted).abs()
        assert (off <= kernels.additions(steps) * 2.0**-24 * lengths.square()).all()
        torch.testing.assert_close(sizes.double().sum(1).cpu(), lengths, rtol=1e-5, atol=0.0)
        none = torch.zeros(2, steps, steps, device=device())
        _, least = kernels.contracted(none, none, 4.0, 9.0)
        torch.testing.assert_close(least.sum(1).cpu(), torch.full((2,), 6.0 * steps))


def ghosts() -> None:
    """The same from the tensors themselves, of several uses, each by its own place in memory."""
    from sourdine.sgd import kernels

    torch.manual_seed(0)
    kind = torch.bfloat16 if device() == "cuda" else torch.float16  # which the interpreter can multiply
    for steps in (256, 384):
        lefts, rights = (
            [torch.randn(2, steps, n).to(device(), kind) for _ in range(3)] for n in (64, 128)
        )
        found, sizes = kernels.ghosts(lefts, rights, 1e-30, 1e-30)
        for use, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            x, y = left.double(), right.double()
            wanted = ((x @ x.mT) * (y @ y.mT)).sum((1, 2))
            lengths = (x.norm(dim=2) * y.norm(dim=2)).sum(1)
            off = (found[:, use].double().sum(1) - wanted).abs()
            assert (off <= kernels.ghost_additions(steps) * 2.0**-24 * lengths.square()).all()
            assert (off <= 1e-5 * wanted).all()
            torch.testing.assert_close(sizes[:, use].double().sum(1), lengths, rtol=1e-5, atol=0.0)
    none = [torch.zeros(2, 256, 64, device=device(), dtype=kind)]
    _, least = kernels.ghosts(none, none, 4.0, 9.0)
    torch.testing.assert_close(least.sum((1, 2)).cpu(), torch.full((2,), 6.0 * 256))


def several() -> None:
    """Norms of parameters that are used alike, by one kernel: each its own, rounded upwards."""
    from sourdine.sgd import kernels, uses
    from sourdine.sgd.uses import Gradients, Outer, Recent, at_once

    torch.manual_seed(0)
    plain, scaled = uses.kernels, dict(uses.SCALED)
    kind = torch.bfloat16 if device() == "cuda" else torch.float16
    uses.SCALED[kind] = 2.0**-8
    found = {}
    for at, (m, n) in enumerate([(60, 100), *[(64, 128)] * 9, (64, 64)]):
        # Of full features, of which the last are zeros where there are less.
        left, right = (torch.rand(2, 384, -(-x // 64) * 64).add(at).to(device(), kind) for x in (m, n))
        left[..., m:], right[..., n:] = 0, 0
        grads = Gradients(torch.Size([m, n]))
        grads.outers, grads._merged = [Outer(left, right)], True
        found[str(at)] = grads

    class Kernels:
        GHOSTS, ghosts, ghost_additions = kernels.GHOSTS, kernels.ghosts, kernels.ghost_additions
        fits = staticmethod(lambda left, right: left.shape[2] == 64)

    uses.kernels = lambda x: Kernels
    quick = at_once(found)
    uses.kernels = lambda x: None
    assert quick.keys() == found.keys()
    for name, grads in found.items():
        own, twin = quick[name], grads.products(Recent())
        left, right = grads.outers[0].left.double(), grads.outers[0].right.double()
        true = (left.mT @ right).square().sum((1, 2))
        assert ((own.norms.double().sum(1) - true).abs() < 1e-5 * true).all()
        torch.testing.assert_close(own.length, twin.length, rtol=1e-4, atol=0)
        assert own.half == twin.half == 2.0**-8
        m, n = grads.shape
        additions = 128 + 128 + 6  # within a row, within a tile, of tiles
        assert own.share == uses.ROUNDING + (m + n) * uses.FEATURE + additions * 2.0**-24
    uses.kernels = plain
    uses.SCALED.clear()
    uses.SCALED.update(scaled)


def fitting() -> None:
    """What the kernel for several is for: dense halves, in whole tiles, more than two of them."""
    from sourdine.sgd import kernels

    def fits(left, right=None):
        return kernels.fits(left, left if right is None else right)

    def halves(*shape):
        return torch.zeros(shape, dtype=torch.bfloat16, device=device())

    good = halves(2, 384, 64)
    assert fits(good) and fits(good, halves(2, 384, 128)) and fits(halves(2, 512, 4096))
    assert not fits(halves(2, 256, 64)) and not fits(halves(2, 400, 64))
    for bad in (
        halves(2, 384, 96), halves(2, 384, 4160), good.float(), good.half(),
        halves(384, 2, 64).transpose(0, 1), halves(2, 384, 128)[..., ::2],
        halves(2 * 384 * 64 + 1)[1:].view(2, 384, 64),
    ):  # fmt: skip
        assert not fits(bad) and not fits(good, bad) and not fits(bad, good)


def classes() -> None:
    """The gradient of a cross-entropy in one pass, and zeros where there are no classes."""
    from sourdine.sgd import kernels
    from sourdine.sgd.softmax import _normalizer, by_class_

    torch.manual_seed(0)
    logits = (9 * torch.randn(3, 2112)).half()
    labels = torch.tensor([0, 9, 2100, 9, 7, 9])[::2]
    g = torch.tensor([[1.0, 5.0], [-2.0, 5.0], [0.0, 5.0]])[:, 0]
    highest, total = _normalizer(logits[:, :2101])
    given = (logits, highest, total, labels, g)
    there = [logits.to(device()).clone(), *(x.to(device()) for x in given[1:])]
    kernels.by_class_(*there, 2101)
    by_class_(*given, 2101)
    found = there[0].cpu()
    torch.testing.assert_close(found, logits, rtol=2**-9, atol=1e-7)
    assert not found[:, 2101:].any() and not found[2].any() and found[1, 2100] != 0
    for wrong in (there[0][:2], there[0].t()):
        with pytest.raises(ValueError, match="one row of logits"):
            kernels.by_class_(wrong, *there[1:], 2101)


def steps() -> None:
    """Noise, division and AdamW at once are what they are one after the other."""
    from sourdine.rng import seeded
    from sourdine.sgd import AdamW, kernels, optim
    from sourdine.sgd import noise as twin
    from sourdine.sgd.sums import Sums

    plain = optim.kernels, twin.kernels
    optim.kernels = twin.kernels = lambda x: kernels
    shapes = [(7,), (3, 5), (530,), (1,), (2, 3, 4, 4)]
    for corrected in (True, False):
        found = []
        for at_once in (True, False):
            torch.manual_seed(0)
            own = [torch.randn(shape, device=device()) for shape in shapes]
            own[4] = own[4].contiguous(memory_format=torch.channels_last)
            groups = [{"params": own[:2]}, {"params": own[2:], "lr": 0.03}]
            optimizer = AdamW(groups, lr=0.1, weight_decay=0.02, corrected=corrected)
            optimizer.noise_variance = 1e-2
            sums = Sums(own)
            for step in range(2 if corrected else 1):
                sums.begin()
                sums.flats[0] += torch.linspace(-3, 3, sums.flats[0].numel(), device=device())
                if at_once:
                    assert optimizer.take(sums, 1.5, seeded(step), 9.0)
                    assert all(x.grad is None for x in own)
                else:
                    twin.add_noise_(sums.flats, 1.5, seeded(step))
                    sums.flats[0] /= 9.0
                optimizer.step()
                assert not at_once or not sums.flats[0].any()
            assert not optimizer.drop()
            found.append([x.cpu() for x in own])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    optim.kernels, twin.kernels = plain


def training() -> None:
    """The engine leaves the noise to the optimizer, and weights come out as without; no step, no sums."""
    from test_engine import engine, run, small, weights

    from sourdine import checks
    from sourdine.errors import InputError
    from sourdine.sgd import AdamW, kernels, optim

    checks.LARGEST = 1e9  # this process has no fixtures
    plain, made, kept = optim.kernels, [], AdamW._at_once
    for at_once in (True, False):
        seen = []
        optim.kernels = lambda x, at_once=at_once: kernels if at_once else None
        AdamW._at_once = lambda self, *given, seen=seen: (seen.append(1), kept(self, *given))
        net = small().to(device())
        of = run(engine(net, optimizer=AdamW(net.parameters(), lr=0.1), steps=2))
        assert len(seen) == (of.steps if at_once else 0)
        made.append(weights(of))
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-5)
    optim.kernels, AdamW._at_once = lambda x: kernels, kept
    net = small().to(device())
    of = engine(net, optimizer=AdamW(net.parameters()))
    of.optimizer.step = lambda: None
    with pytest.raises(InputError, match="kept from its step"):
        run(of)
    assert not of._places.flats[0].any() and not of.optimizer.drop()
    optim.kernels = plain
