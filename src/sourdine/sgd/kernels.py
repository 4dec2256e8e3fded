# mypy: ignore-errors
"""Kernels for a GPU, in Triton. Each does what a function of plain torch does, and is tested so.

- `add_normals_`: the noise of sgd/noise.py, made, added and rounded in one pass over memory; the same
  ChaCha20 words for the same values (RFC 8439, section 2.3).
- `adam_`: the same, and what AdamW of sgd/optim.py does with it. Noise is made by the GPU's units for
  whole numbers, which are idle while the optimizer waits for memory.
- What makes norms and gradients of losses is in sgd/tiles.py.

benchmarks/engine/README.md has what they save. Where Triton is not installed, or for other numbers than
halves, the functions of plain torch do the work.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sourdine.sgd.tiles import (  # noqa: F401 (this is where others look for them)
    GHOSTS,
    additions,
    by_class_,
    contracted,
    fits,
    ghost_additions,
    ghosts,
    there,
)

_BLOCKS = 32  # of ChaCha20, made by one program
PARTS = 64  # the same in `adam_`
_STEP = tl.constexpr(4.656612873077393e-10)  # 2^-31


def add_normals_(
    flat: Tensor, key: bytes, start: int, scale: float, shift: float, least: float
) -> None:
    """flat[i] += scale * (value start + i), rounded as fp32 holds it beside `shift`; for dense ones."""
    first = start // 8
    blocks = -(-(start + len(flat)) // 8) - first
    with there(flat):
        _add_normals[(triton.cdiv(blocks, _BLOCKS),)](
            flat,
            _words(key, flat.device),
            first,
            8 * first - start,
            len(flat),
            scale,
            shift,
            least,
            BLOCKS=_BLOCKS,
            num_warps=1,
        )


def _words(key: bytes, device: torch.device) -> Tensor:
    found = torch.from_numpy(np.frombuffer(key, dtype="<i4").copy())
    return found.to(device, non_blocking=True)


@triton.jit(do_not_specialize=["first", "before", "count"])
def _add_normals(flat, key, first, before, count, scale, shift, least, BLOCKS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCKS
    flat += before + 8 * start
    places = tl.arange(0, BLOCKS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    there = (places >= -before - 8 * start) & (places < count - before - 8 * start)
    old = tl.load(flat + places, mask=there, other=0.0)
    noise = _normals(key, first + start, least, BLOCKS, 1)
    tl.store(flat + places, (old + noise * scale + shift) - shift, mask=there)


def adam_(
    flat: Tensor,
    key: bytes,
    scale: float,
    shift: float,
    least: float,
    owners: Tensor,
    tensors: Tensor,
    settings: Tensor,
    over: float,
) -> None:
    """What `add_normals_` does, a division, and a step of AdamW (sgd/optim.py); `flat` is zero then.

    owners (n, 2), of 32 bits: whose each stretch of 8 * PARTS values or less is, and which block of
    eight values of `flat` is its first. tensors (parameters, 6), of 64 bits: where the parameter, its
    mean and its mean square lie, where its values begin and end in `flat`, and its row of settings.
    settings (n, 8): 1 - beta1, 1 - beta2, 1 - lr decay, lr / (1 - beta1^t), 1 / (1 - beta2^t), and of
    the root's inside what is taken off, its least value, and what is added to the root.
    """
    with there(flat):
        _adam[(len(owners),)](
            flat,
            _words(key, flat.device),
            owners,
            tensors,
            settings,
            scale,
            shift,
            least,
            1 / over,
            BLOCKS=PARTS,
            COLUMNS=tensors.shape[1],
            SETTINGS=settings.shape[1],
            num_warps=2,
        )


@triton.jit
def _adam(
    flat,
    key,
    owners,
    tensors,
    settings,
    scale,
    shift,
    least,
    per,
    BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SETTINGS: tl.constexpr,
):
    own = owners + tl.program_id(0).to(tl.int64) * 2
    row = tensors + tl.load(own).to(tl.int64) * COLUMNS
    block = tl.load(own + 1).to(tl.int64)
    before = 8 * block - tl.load(row + 3)
    count = tl.load(row + 4) - tl.load(row + 3)
    places = tl.arange(0, BLOCKS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    there = (places >= -before) & (places < count - before)
    sums = flat + 8 * block + places
    weights = tl.load(row).to(tl.pointer_type(tl.float32)) + before + places
    means = tl.load(row + 1).to(tl.pointer_type(tl.float32)) + before + places
    squares = tl.load(row + 2).to(tl.pointer_type(tl.float32)) + before + places
    old = tl.load(sums, mask=there, other=0.0)
    weight = tl.load(weights, mask=there, other=0.0)
    mean = tl.load(means, mask=there, other=0.0)
    square = tl.load(squares, mask=there, other=0.0)
    chosen = settings + tl.load(row + 5) * SETTINGS
    first, second = tl.load(chosen), tl.load(chosen + 1)
    keep, pace, whole = tl.load(chosen + 2), tl.load(chosen + 3), tl.load(chosen + 4)
    variance, least_square, more = tl.load(chosen + 5), tl.load(chosen + 6), tl.load(chosen + 7)
    noise = _normals(key, block, least, BLOCKS, 10)
    gradient = ((old + noise * scale + shift) - shift) * per
    mean = mean + (gradient - mean) * first
    square = square + (gradient * gradient - square) * second
    size = tl.sqrt(tl.maximum(square * whole - variance, least_square)) + more
    tl.store(means, mean, mask=there)
    tl.store(squares, square, mask=there)
    tl.store(weights, weight * keep - pace * mean / size, mask=there)
    tl.store(sums, tl.zeros_like(old), mask=there)


@triton.jit
def _normals(key, block, least, BLOCKS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Sums of two standard normals (BLOCKS, 8), from so many blocks of the stream."""
    own = block + tl.arange(0, BLOCKS)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _block(key, own, AT_ONCE)
    a, b = _pair(w0, w1, w2, w3, least)
    c, d = _pair(w4, w5, w6, w7, least)
    e, f = _pair(w8, w9, w10, w11, least)
    g, h = _pair(w12, w13, w14, w15, least)
    # The last bit of a place is that of the outermost join.
    evens, odds = tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h))
    return tl.reshape(tl.join(evens, odds), [BLOCKS, 8])


@triton.jit
def _pair(k, other_k, m, n, least):
    """Two sums of two standard normals: sqrt(-ln u^2) times cosine and sine, twice."""
    r, s = _radius(k, least), _radius(other_k, least)
    cosine, sine = _turn(m)
    other, beside = _turn(n)
    return r * cosine + s * other, r * sine + s * beside


@triton.jit
def _radius(word, least):
    u = word.to(tl.int32, bitcast=True).to(tl.float32) * _STEP
    return tl.sqrt(-tl.log(tl.maximum(u * u, least)))


@triton.jit
def _turn(word):
    """Cosine and sine of pi v, for v = word / 2^31: Taylor's series around the nearest quarter."""
    v = word.to(tl.int32, bitcast=True).to(tl.float32) * _STEP
    quarter = tl.floor(2.0 * v + 0.5)
    x = v - 0.5 * quarter
    y = x * x
    sine = -0.5992645293207921 + y * 0.08214588661112823
    sine = x * (3.141592653589793 + y * (-5.16771278004997 + y * (2.550164039877345 + y * sine)))
    cosine = -1.3352627688545893 + y * 0.2353306303588935
    cosine = 1.0 + y * (-4.934802200544679 + y * (4.058712126416768 + y * cosine))
    odd = (quarter == 1.0) | (quarter == -1.0)
    minus = (quarter == 2.0) | (quarter == -2.0)
    first, second = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    first = tl.where(minus | (quarter == 1.0), -first, first)
    return first, tl.where(minus | (quarter == -1.0), -second, second)


@triton.jit
def _block(key, place, AT_ONCE: tl.constexpr):
    """The 16 words of the block of the stream at this place; the nonce is zero.

    AT_ONCE: double rounds that are written out, of ten. All of them take an eighth less time and four
    times as long to compile: worth it in `adam_`, which goes over all weights of a model.
    """
    low, high = place.to(tl.uint32), (place >> 32).to(tl.uint32)
    none = low ^ low
    a0, a1, a2, a3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
    b0, b1 = none + _word(key, 0), none + _word(key, 1)
    b2, b3 = none + _word(key, 2), none + _word(key, 3)
    c0, c1 = none + _word(key, 4), none + _word(key, 5)
    c2, c3 = none + _word(key, 6), none + _word(key, 7)
    d0, d1, d2, d3 = low, high, none, none
    for _ in tl.range(0, 10, AT_ONCE):
        for _ in tl.static_range(AT_ONCE):
            a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
            a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
            a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
            a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
            a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
            a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
            a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
            a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    a0, a1, a2, a3 = a0 + 0x61707865, a1 + 0x3320646E, a2 + 0x79622D32, a3 + 0x6B206574
    b0, b1, b2, b3 = b0 + _word(key, 0), b1 + _word(key, 1), b2 + _word(key, 2), b3 + _word(key, 3)
    c0, c1, c2, c3 = c0 + _word(key, 4), c1 + _word(key, 5), c2 + _word(key, 6), c3 + _word(key, 7)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0 + low, d1 + high, d2, d3


@triton.jit
def _word(key, place: tl.constexpr):
    return tl.load(key + place).to(tl.uint32, bitcast=True)


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _rotated(x, bits: tl.constexpr):
    return (x << bits) | (x >> (32 - bits))
