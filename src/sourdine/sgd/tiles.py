# mypy: ignore-errors
"""Kernels for norms and for the gradient of a loss, in Triton (see sgd/kernels.py).

- `contracted`: from two matrices of inner products to a norm and a length (`_ghost` in sgd/uses.py), in
  one pass over both.
- `ghosts`: the same from the tensors themselves, for several uses at once, of the symmetric half of
  their inner products.
- `by_class_`: the gradient of a cross-entropy (sgd/softmax.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 16, 128


def there(x: Tensor) -> AbstractContextManager[object]:
    """Kernels are started on the GPU that is current, which need not be that of the tensors."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _two(like: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Room for norms and lengths."""
    one, other = (like.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return one, other


def additions(steps: int) -> int:
    """Through how many additions a term of `contracted` goes at most, before its parts are added up.

    Zeros that fill a block up are added too, which rounds nothing.
    """
    return -(-steps // _COLUMNS) + min(steps, _COLUMNS) + min(steps, _ROWS)


@torch.library.custom_op("sourdine::contracted", mutates_args=())
def contracted(
    lefts: Tensor, rights: Tensor, least_left: float, least_right: float
) -> tuple[Tensor, Tensor]:
    """For inner products (B, T, T) of two tensors, parts (B, T / 16) of two sums.

    sum_ts lefts[t, s] rights[t, s], and sum_t of the roots of lefts[t, t] and rights[t, t], which are
    taken to be as large as `least` at least.
    """
    examples, steps, _ = lefts.shape
    blocks = triton.cdiv(steps, _ROWS)
    norms, lengths = _two(lefts, examples, blocks)
    with there(lefts):
        _contracted[(examples * blocks,)](  # one axis: others end at 65535
            *(lefts.contiguous(), rights.contiguous(), least_left, least_right, norms, lengths, blocks),
            STEPS=steps,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
    return norms, lengths


@contracted.register_fake
def _(lefts: Tensor, rights: Tensor, least_left: float, least_right: float) -> tuple[Tensor, Tensor]:
    return _two(lefts, lefts.shape[0], -(-lefts.shape[1] // _ROWS))


@triton.jit
def _contracted(
    lefts,
    rights,
    least_left,
    least_right,
    norms,
    lengths,
    blocks,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    block, example = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    rows = block * ROWS + tl.arange(0, ROWS)
    start = example * STEPS * STEPS
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for done in range(0, STEPS, COLUMNS):
        columns = done + tl.arange(0, COLUMNS)
        places = start + rows[:, None] * STEPS + columns[None, :]
        inside = (rows < STEPS)[:, None] & (columns < STEPS)[None, :]
        x = tl.load(lefts + places, mask=inside, other=0.0)
        total += x * tl.load(rights + places, mask=inside, other=0.0)
    tl.store(norms + example * blocks + block, tl.sum(tl.sum(total, 1), 0))
    places = start + rows * (STEPS + 1)
    x = tl.maximum(tl.load(lefts + places, mask=rows < STEPS, other=0.0), least_left)
    y = tl.maximum(tl.load(rights + places, mask=rows < STEPS, other=0.0), least_right)
    length = tl.where(rows < STEPS, tl.sqrt(x) * tl.sqrt(y), 0.0)
    tl.store(lengths + example * blocks + block, tl.sum(length, 0))


_TILE, _DEEP = 128, 64
GHOSTS = 8  # uses of one call
_FEATURES = 4096  # which one accumulator adds up


def fits(left: Tensor, right: Tensor) -> bool:
    """Whether `ghosts` is for uses like this one: of short texts two products are quicker."""
    whole = all(
        x.is_contiguous()
        and x.storage_offset() % 8 == 0  # 16 bytes
        and x.dtype == torch.bfloat16
        and x.shape[2] % _DEEP == 0
        for x in (left, right)
    )
    few = max(left.shape[2], right.shape[2]) <= _FEATURES
    return whole and few and left.shape[1] % _TILE == 0 and left.shape[1] > 2 * _TILE


def _tiles(steps: int) -> int:
    """Of the lower half of a matrix of inner products."""
    across = steps // _TILE
    return across * (across + 1) // 2


def ghost_additions(steps: int) -> int:
    """Through how many additions a term of `ghosts` goes at most."""
    return 2 * _TILE + _tiles(steps)


@torch.library.custom_op("sourdine::ghosts", mutates_args=())
def ghosts(
    lefts: list[Tensor], rights: list[Tensor], least_left: float, least_right: float
) -> tuple[Tensor, Tensor]:
    """The two sums of `contracted` for several uses of the same shapes, in parts (B, uses, tiles).

    Made from the tensors themselves, (B, T, m) and (B, T, n), by tiles of the lower half of their inner
    products, which are never in memory. Several at once, as one alone leaves a GPU idle at its end.
    """
    examples, steps, m = lefts[0].shape
    norms, lengths = _two(lefts[0], examples, len(lefts), _tiles(steps))
    with there(norms):
        _ghosts[(examples * len(lefts) * _tiles(steps),)](
            *(tuple(lefts), tuple(rights), least_left, least_right, norms, lengths),
            USES=len(lefts),
            STEPS=steps,
            LEFT=m,
            RIGHT=rights[0].shape[2],
            TILES=_tiles(steps),
            TILE=_TILE,
            DEEP=_DEEP,
            num_warps=8,
            num_stages=4,
        )
    return norms, lengths


@ghosts.register_fake
def _(
    lefts: list[Tensor], rights: list[Tensor], least_left: float, least_right: float
) -> tuple[Tensor, Tensor]:
    examples, steps, _ = lefts[0].shape
    return _two(lefts[0], examples, len(lefts), _tiles(steps))


@triton.jit
def _ghosts(
    lefts,
    rights,
    least_left,
    least_right,
    norms,
    lengths,
    USES: tl.constexpr,
    STEPS: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    DEEP: tl.constexpr,
):
    tile, use = tl.program_id(0) % TILES, tl.program_id(0) // TILES % USES
    example = (tl.program_id(0) // (TILES * USES)).to(tl.int64)
    left, right = lefts[0].to(tl.int64), rights[0].to(tl.int64)
    for other in tl.static_range(1, USES):
        left = tl.where(use == other, lefts[other].to(tl.int64), left)
        right = tl.where(use == other, rights[other].to(tl.int64), right)
    row, first = 0, 0  # of tiles: row r has r + 1 of them
    for r in tl.static_range(1, STEPS // TILE):
        row = tl.where(tile >= r * (r + 1) // 2, r, row)
        first = tl.where(tile >= r * (r + 1) // 2, r * (r + 1) // 2, first)
    rows = row * TILE + tl.arange(0, TILE)
    columns = (tile - first) * TILE + tl.arange(0, TILE)
    left = tl.multiple_of(left.to(lefts[0].dtype), 16) + example * STEPS * LEFT
    right = tl.multiple_of(right.to(rights[0].dtype), 16) + example * STEPS * RIGHT
    x = _products(left, rows, columns, LEFT, TILE, DEEP)
    y = _products(right, rows, columns, RIGHT, TILE, DEEP)
    same = rows[:, None] == columns[None, :]
    twice = tl.where(rows[:, None] > columns[None, :], 2.0, tl.where(same, 1.0, 0.0))
    at = (example * USES + use) * TILES + tile
    tl.store(norms + at, tl.sum(tl.sum(x * y * twice, 1), 0))
    roots = tl.sqrt(tl.maximum(x, least_left)) * tl.sqrt(tl.maximum(y, least_right))
    tl.store(lengths + at, tl.sum(tl.sum(tl.where(same, roots, 0.0), 1), 0))


@triton.jit
def _products(x, rows, columns, FEATURES: tl.constexpr, TILE: tl.constexpr, DEEP: tl.constexpr):
    """Inner products of some rows of a matrix with others."""
    deep = tl.arange(0, DEEP)
    one = x + rows[:, None] * FEATURES + deep[None, :]
    other = x + columns[:, None] * FEATURES + deep[None, :]
    total = tl.zeros([TILE, TILE], tl.float32)
    for _ in range(0, FEATURES, DEEP):
        total = tl.dot(tl.load(one), tl.trans(tl.load(other)), total)
        one += DEEP
        other += DEEP
    return total


_CLASSES = 2048  # at once


def by_class_(
    logits: Tensor, highest: Tensor, total: Tensor, labels: Tensor, g: Tensor, classes: int
) -> None:
    """See sgd/softmax.py."""
    rows, width = len(labels), logits.shape[-1]
    if rows * width != logits.numel() or not logits.is_contiguous():
        raise ValueError("there is one row of logits, all in order, for each label")
    dense = [x.contiguous() for x in (highest, total, labels, g)]  # labels may be a part of others
    with there(logits):
        parts = triton.cdiv(width, _CLASSES)
        _by_class[(rows * parts,)](
            *(logits, *dense, classes, width, parts), CLASSES=_CLASSES, num_warps=4
        )


@triton.jit
def _by_class(logits, highest, total, labels, g, classes, width, parts, CLASSES: tl.constexpr):
    row = (tl.program_id(0) // parts).to(tl.int64)
    own = tl.program_id(0) % parts * CLASSES + tl.arange(0, CLASSES)
    x = tl.load(logits + row * width + own, mask=own < classes, other=0.0).to(tl.float32)
    chance = tl.exp((x - tl.load(highest + row)) - tl.load(total + row))
    gradient = tl.where(own == tl.load(labels + row), chance - 1.0, chance) * tl.load(g + row)
    gradient = tl.where(own < classes, gradient, 0.0)
    gradient = gradient.to(logits.dtype.element_ty)
    tl.store(logits + row * width + own, gradient, mask=own < width)
