# mypy: ignore-errors
"""Kernels for a GPU, in Triton; each does what a function of plain torch does, and is tested against it.

- `add_normals_`: the noise of sgd/noise.py, made, added and rounded in one pass over memory; the same
  ChaCha20 words for the same values (RFC 8439, section 2.3).
- `ghost`: the norms of `_ghost` in sgd/uses.py, <left left', right right'> by tiles, of which only those
  on and above the diagonal are made, and none is stored.

benchmarks/engine/README.md has what they save. Where Triton is not installed, or for other numbers than
halves, the functions of plain torch do the work.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS = 128  # of ChaCha20, made by one program
_STEP = tl.constexpr(4.656612873077393e-10)  # 2^-31


def add_normals_(flat: Tensor, key: bytes, start: int, scale: float, shift: float, least: float) -> None:
    """flat[i] += scale * (value start + i of the noise), rounded as fp32 holds it beside `shift`."""
    words = torch.from_numpy(np.frombuffer(key, dtype="<i4").copy()).to(flat.device, non_blocking=True)
    first = start // 8
    blocks = -(-(start + len(flat)) // 8) - first
    programs = (triton.cdiv(blocks, _BLOCKS),)
    _add_normals[programs](
        flat, words, first, 8 * first - start, len(flat), scale, shift, least, BLOCKS=_BLOCKS, num_warps=4
    )


@triton.jit(do_not_specialize=["first", "before", "count"])
def _add_normals(flat, key, first, before, count, scale, shift, least, BLOCKS: tl.constexpr):
    own = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _block(key, first + own)
    a, b = _pair(w0, w1, w2, w3, least)
    c, d = _pair(w4, w5, w6, w7, least)
    e, f = _pair(w8, w9, w10, w11, least)
    g, h = _pair(w12, w13, w14, w15, least)
    # The last bit of a place is that of the outermost join.
    evens, odds = tl.join(tl.join(a, e), tl.join(c, g)), tl.join(tl.join(b, f), tl.join(d, h))
    noise = tl.reshape(tl.join(evens, odds), [BLOCKS, 8])
    places = before + own[:, None] * 8 + tl.arange(0, 8)[None, :]
    there = (places >= 0) & (places < count)
    old = tl.load(flat + places, mask=there, other=0.0)
    tl.store(flat + places, (old + noise * scale + shift) - shift, mask=there)


@triton.jit
def _pair(k, l, m, n, least):
    """Two sums of two standard normals: sqrt(-ln u^2) times cosine and sine, twice."""
    r, s = _radius(k, least), _radius(l, least)
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
def _block(key, place):
    """The 16 words of the block of the stream at this place; the nonce is zero."""
    low, high = place.to(tl.uint32), (place >> 32).to(tl.uint32)
    none = low ^ low
    a0, a1, a2, a3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
    b0, b1 = none + _word(key, 0), none + _word(key, 1)
    b2, b3 = none + _word(key, 2), none + _word(key, 3)
    c0, c1 = none + _word(key, 4), none + _word(key, 5)
    c2, c3 = none + _word(key, 6), none + _word(key, 7)
    d0, d1, d2, d3 = low, high, none, none
    for _ in tl.static_range(10):
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


@torch.library.custom_op("sourdine::ghost", mutates_args=())
def ghost(left: Tensor, right: Tensor, lost: float) -> tuple[Tensor, Tensor]:
    """For left (B, T, m) and right (B, T, n) in half precision, parts of two sums over t and s.

    (B, pairs of tiles) of <left_t, left_s> <right_t, right_s>, and (B, tiles) of |left_t| |right_t|,
    squares of these lengths being m or n times `lost` at least. A part adds up at most 2 TILE terms one
    after the other, in whatever order.
    """
    tile = 64 if left.shape[1] <= 128 else 128
    return ghost_by(left, right, lost, tile, 64, 4 if tile == 64 else 8, 3)


def ghost_by(
    left: Tensor, right: Tensor, lost: float, tile: int, depth: int, warps: int, stages: int
) -> tuple[Tensor, Tensor]:
    """With tiles of this many positions, made from so many features at a time."""
    left, right = (x if x.stride(2) == 1 else x.contiguous() for x in (left, right))
    examples, steps, m = left.shape
    tiles = triton.cdiv(steps, tile)
    pairs = tiles * (tiles + 1) // 2
    norms = torch.empty(examples, pairs, dtype=torch.float32, device=left.device)
    lengths = torch.empty(examples, tiles, dtype=torch.float32, device=left.device)
    _ghost[(pairs, examples)](
        *(left, *left.stride()[:2], right, *right.stride()[:2], steps, lost),
        *(norms, lengths, pairs, tiles),
        M=m,
        N=right.shape[2],
        TILE=tile,
        DEPTH=depth,
        num_warps=warps,
        num_stages=stages,
    )
    return norms, lengths


@ghost.register_fake
def _(left: Tensor, right: Tensor, lost: float) -> tuple[Tensor, Tensor]:
    tiles = -(-left.shape[1] // (64 if left.shape[1] <= 128 else 128))
    norms = left.new_empty((len(left), tiles * (tiles + 1) // 2), dtype=torch.float32)
    return norms, left.new_empty((len(left), tiles), dtype=torch.float32)


@triton.jit
def _ghost(
    left,
    left_example,
    left_step,
    right,
    right_example,
    right_step,
    steps,
    lost,
    norms,
    lengths,
    pairs,
    tiles,
    M: tl.constexpr,
    N: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    pair, example = tl.program_id(0), tl.program_id(1).to(tl.int64)
    # Row by row of the upper triangle: row i has tiles - i of them.
    i, j = 0, pair
    while j >= tiles - i:
        j -= tiles - i
        i += 1
    j += i
    lefts = _gram(left + example * left_example, left_step, i, j, steps, M, TILE, DEPTH)
    rights = _gram(right + example * right_example, right_step, i, j, steps, N, TILE, DEPTH)
    total = tl.sum(tl.sum(lefts * rights, 1), 0)
    tl.store(norms + example * pairs + pair, tl.where(i == j, total, 2.0 * total))
    if i == j:
        own = tl.arange(0, TILE)
        same = own[:, None] == own[None, :]
        x = tl.sum(tl.where(same, lefts, 0.0), 1)
        y = tl.sum(tl.where(same, rights, 0.0), 1)
        length = tl.sqrt(tl.maximum(x, M * lost)) * tl.sqrt(tl.maximum(y, N * lost))
        length = tl.where(i * TILE + own < steps, length, 0.0)
        tl.store(lengths + example * tiles + i, tl.sum(length, 0))


@triton.jit
def _gram(x, step, i, j, steps, FEATURES: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Inner products of the positions of two tiles, in single precision."""
    rows, columns = i * TILE + tl.arange(0, TILE), j * TILE + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    here = x + rows.to(tl.int64)[:, None] * step + depth[None, :]
    there = x + columns.to(tl.int64)[None, :] * step + depth[:, None]
    total = tl.zeros([TILE, TILE], tl.float32)
    for done in range(0, FEATURES, DEPTH):
        inside = depth < FEATURES - done
        a = tl.load(here + done, mask=(rows < steps)[:, None] & inside[None, :], other=0.0)
        b = tl.load(there + done, mask=(columns < steps)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a, b, total)
    return total
