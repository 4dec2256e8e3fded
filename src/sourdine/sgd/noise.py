"""Gaussian noise for training, from the cryptographic stream of a source.

One value is deviation * (X1 + X2) / sqrt(2), of independent standard normals after Box and Muller
1958: Xi = sqrt(-2 ln Ui) cos(2 pi Vi), with Ui and Vi from 32 bits each of ChaCha20. The sines of the
same two couples make its neighbour, which is independent of it.

Why a grid: noise of floats lies on a lattice, deviation / 2^26 wide near zero, and answers near zero
are finer than that: they show the lattice shifted by the true value, and an attacker can try which bits
could have led there (Mironov 2012; Haney et al. 2022 call these precision attacks). `add_noise_`
therefore rounds its result to a multiple of a power of two, at most deviation / 1024. That is
post-processing, and far below the noise; every multiple within nine deviations is then reached by more
than 2^40 ways to draw the bits, whatever the true value is, so that no answer of one coordinate rules a
value out. Two neighbours share their radii and reach 9.66 deviations together; beyond that a pair of
Gaussians goes once in 10^20.

Why two: one Gaussian of 32-bit words ends at 6.83 deviations, where its steps are coarse; two reach
9.66, beyond which a Gaussian goes once in 10^21 values. Two also leave three uniforms to guess, or two
where both values of the couples are seen, if somebody tried bits against answers without a grid
(Holohan and Braghin 2021, section 5.1, sum 2n Gaussians for this and leave 2n - 1; a cosine and a sine
of one couple would add up to one cosine again, so no value uses a couple twice).

Guarantee: each call has a key of its own, drawn from the source, used for that call and kept nowhere.
No noise is infinite or NaN. The radius comes from a whole number k of 32 bits, U = |k| / 2^31, whose
small end is the tail: fp32 holds |k| below 2^24 exactly, so that rounding k moves no radius above 3.1.
Smaller radii are moved by a part in 2^19 at 0.2; the coarse end is at radius zero, with a first step
of 2^-11.5 in one of the two. The variance is deviation^2 to a part in 10^6 (measured: 10^8).

Not claimed: this is fp32 noise, not an exact discrete sampler, and the clipped sum it is added to was
rounded before. That the proof for exact Gaussians carries over is argued, not proven: the lattice makes
some grid points likelier than others, by a part in 2^14 near zero, 2^12 at two deviations and 2^10 at
four (measured), and the tails are short by 0.01% beyond six deviations, 0.4% beyond seven and 6% beyond
eight. Numbers for release come from `mechanisms`, which is exact.

Repeatable: a seeded source gives the same noise for the same calls, by the number of values on each
device and not by how they are cut into tensors. CPU and GPU draw the same bits; their logarithms,
cosines and sums may differ in the last digits, which can move a result by one step of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sourdine import checks
from sourdine.errors import InputError
from sourdine.rng import Source
from sourdine.sgd.gpu import kernels

_AT_ONCE = 1 << 17
"""Values made at once on a CPU, a megabyte of the stream: small for the cache, large for the calls."""
_DEVICE_VALUES = 1 << 22
"""Values made at once on an accelerator without kernels, where few large functions beat many small."""
_FEW = 8  # kernels
_WORDS_SENT = 1 << 22
"""Up to so many words are made by the CPU for an accelerator: its 500 launches take 7 ms at least."""
_GRID_BITS = 10
_LEAST = 2.0**-62 / (4 * math.pi**2)
"""Stands for the square of k = 0: with |k| = 1 / (2 pi) there, E[-2 ln U] is 2 (Stirling's formula)."""
_CONSTANTS = b"expand 32-byte k"
_ZEROS = memoryview(bytes(8 * _AT_ONCE))
_SCALE = math.sqrt(0.5)
Recipe = tuple[bytes, float, float, float]
"""A key, a scale, what the sum is rounded beside, and the least square of a uniform."""


def add_noise_(tensors: Iterable[torch.Tensor], deviation: float, source: Source) -> None:
    """Add independent N(0, deviation^2) noise to every element, in place, and round to the grid.

    Deviation 0 changes nothing and draws nothing. Tensors may be empty, of any strides and on several
    devices; all are checked before the first is changed. The scratch memory is 5 MB on the CPU, and at
    most 200 MB on an accelerator, whatever the size of the tensors.
    """
    if checks.not_negative("deviation", deviation) == 0:
        return
    deviation = checks.positive("deviation", deviation)
    groups: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        _check(tensor)
        groups.setdefault(tensor.device, []).append(tensor)
    with torch.no_grad():
        for group in groups.values():
            if kernels(group[0]):
                _by_kernel(group, deviation, source)
                continue
            for piece, noise in _matched(group, source):
                round_(piece.add_(noise, alpha=deviation * _SCALE), deviation)


def _by_kernel(tensors: list[torch.Tensor], deviation: float, source: Source) -> None:
    """Noise in one pass over memory, where there are few tensors (sgd/kernels.py)."""
    pieces = [piece for tensor in tensors for piece in _flat(tensor) if len(piece)]
    if not pieces:
        return
    add, (key, scale, shift, least) = kernels(pieces[0]).add_normals_, recipe(deviation, source)
    if len(pieces) <= _FEW and all(piece.is_contiguous() for piece in pieces):
        start = 0
        for piece in pieces:
            add(piece, key, start, scale, shift, least)
            start += len(piece)
        return
    noise = pieces[0].new_zeros(sum(map(len, pieces)))
    add(noise, key, 0, scale, 0.0, least)
    torch._foreach_add_(pieces, noise.split([len(piece) for piece in pieces]))
    torch._foreach_add_(pieces, shift)
    torch._foreach_sub_(pieces, shift)


def recipe(deviation: float, source: Source) -> Recipe:
    """What a kernel needs to make such noise once (sgd/kernels.py), with a key of its own."""
    deviation = checks.positive("deviation", deviation)
    return source.bytes(32), deviation * _SCALE, _shift(deviation), _LEAST


def round_(noisy: torch.Tensor, deviation: float) -> None:
    """Round what has noise of this deviation to the grid; its last digits would show what it hides."""
    noisy.add_(_shift(deviation)).sub_(_shift(deviation))


def _shift(deviation: float) -> float:
    """Beside 1.5 * 2^23 grid steps fp32 holds whole steps only: adding and taking it away rounds."""
    return 1.5 * 2.0 ** (23 - _GRID_BITS + math.floor(math.log2(deviation)))


def normal(shape: Sequence[int], source: Source, device: torch.device | str = "cpu") -> torch.Tensor:
    """Standard normals in fp32, as they come: not rounded to a grid."""
    drawn = torch.zeros(tuple(shape), dtype=torch.float32, device=device)
    if kernels(drawn) and drawn.numel():
        kernels(drawn).add_normals_(drawn.view(-1), source.bytes(32), 0, _SCALE, 0.0, _LEAST)
        return drawn
    for piece, noise in _matched([drawn], source):
        torch.mul(noise, _SCALE, out=piece)
    return drawn


def _check(tensor: torch.Tensor) -> None:
    if tensor.dtype != torch.float32:
        raise InputError(
            f"noise is made in float32, but a tensor is {str(tensor.dtype).removeprefix('torch.')}. "
            "Sum clipped gradients in float32 and convert once the noise is in; nothing was changed."
        )
    if tensor.layout != torch.strided:
        raise InputError(
            "noise has to reach every element, but a tensor is sparse; make it dense first."
        )
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InputError(
            "elements of a tensor share memory (expand): clone it, so that each has its noise."
        )


def _matched(
    tensors: list[torch.Tensor], source: Source
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Flat pieces of tensors of one device, each with as much noise of variance 2."""
    count = sum(tensor.numel() for tensor in tensors)
    if count == 0:
        return
    noise = tensors[0].new_empty(0)
    chunks = _noise(count, source.bytes(32), tensors[0].device)
    for flat in (flat for tensor in tensors for flat in _flat(tensor)):
        start = 0
        while start < len(flat):
            if len(noise) == 0:
                noise = next(chunks)
            size = min(len(flat) - start, len(noise))
            yield flat[start : start + size], noise[:size]
            start, noise = start + size, noise[size:]


def _flat(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """All elements in one-dimensional views, in the order of memory: one view where it is dense."""
    ordered = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if ordered.is_contiguous():
        yield ordered.view(-1)
    elif ordered.dim() == 1:
        yield ordered
    else:
        for row in ordered.unbind(0):
            yield from _flat(row)


def _noise(count: int, key: bytes, device: torch.device) -> Iterator[torch.Tensor]:
    """Sums of two standard normals, `count` in all, cut into chunks: two for every four words."""
    at_once, sums = (_AT_ONCE, _on_cpu) if device.type == "cpu" else (_DEVICE_VALUES, _elsewhere)
    for start in range(0, count, at_once):
        now = min(count - start, at_once)
        words = _words(key, start // 8, 4 * ((now + 1) // 2), device)
        yield sums(words.view(-1, 4)).view(-1)[:now]


def _elsewhere(words: torch.Tensor) -> torch.Tensor:
    """Two sums of two from each row of four words: n x 4 -> n x 2."""
    uniform = words.t().to(torch.float32) * 2.0**-31  # in [-1, 1], of either sign
    # U is the size of the first, so that -2 ln U = -ln(uniform^2).
    radius = uniform[:2].square().clamp_(min=_LEAST).log_().neg_().sqrt_()
    angle = uniform[2:] * math.pi
    return torch.stack([(angle.cos() * radius).sum(0), angle.sin_().mul_(radius).sum(0)], 1)


def _on_cpu(words: torch.Tensor) -> torch.Tensor:
    """The same by NumPy, whose functions take half the time of torch's here (benchmarks/engine)."""
    uniform = np.empty((4, len(words)), dtype=np.float32)
    np.copyto(uniform, words.numpy().T, casting="unsafe")
    uniform *= np.float32(2.0**-31)
    radius, angle = uniform[:2], uniform[2:]
    np.square(radius, out=radius)
    np.maximum(radius, np.float32(_LEAST), out=radius)
    np.log(radius, out=radius)
    np.negative(radius, out=radius)
    np.sqrt(radius, out=radius)
    angle *= np.float32(math.pi)
    sums, waves = np.empty((len(words), 2), dtype=np.float32), np.empty_like(angle)
    for at, function in enumerate((np.cos, np.sin)):
        function(angle, out=waves)
        waves *= radius
        np.add(waves[0], waves[1], out=sums[:, at])
    return torch.from_numpy(sums)


def _words(key: bytes, start: int, count: int, device: torch.device) -> torch.Tensor:
    """So many 32-bit words of the stream of a key, from block `start` on: the same on every device."""
    if device.type != "cpu" and count > _WORDS_SENT:
        return chacha20(key, start, -(-count // 16), device).view(-1)[:count]
    drawn = np.empty(count, dtype="<i4")
    # The place is given as 16 bytes; the wrapper refuses to carry past 2^32 blocks, but no chunk does.
    cipher = Cipher(ChaCha20(key, start.to_bytes(16, "little")), mode=None).encryptor()
    room = drawn.data.cast("B")
    for first in range(0, len(room), len(_ZEROS)):
        part = room[first : first + len(_ZEROS)]
        cipher.update_into(_ZEROS[: len(part)], part)
    return torch.from_numpy(drawn).to(device)


def chacha20(key: bytes, start: int, blocks: int, device: torch.device) -> torch.Tensor:
    """Blocks of 16 words, from place `start` of the stream (RFC 8439, section 2.3).

    `start` is the 128-bit number in the last four words of the state, low end first: a counter of 64
    bits, which counts up here, and a nonce of 64 bits.
    """
    head = np.frombuffer(_CONSTANTS + key, dtype="<i4").copy()
    fixed = torch.from_numpy(head).to(device).view(3, 4, 1)
    counter = torch.arange(blocks, dtype=torch.int64, device=device).add_(start & (2**64 - 1))
    nonce = [(start >> 64) & (2**32 - 1), start >> 96]
    place = torch.stack(
        [counter, counter >> 32, *(torch.full_like(counter, word) for word in nonce)]
    ).to(torch.int32)
    a, b, c = (row.repeat(1, blocks) for row in fixed)
    d = place.clone()
    for _ in range(10):
        b, d = _mix(a, b, c, d)
        # The second half of a double round works on diagonals: turned into columns, and back.
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        b, d = _mix(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    for row, first in zip((a, b, c), fixed, strict=True):
        row.add_(first)
    return torch.cat([a, b, c, d.add_(place)]).t().contiguous()


def _mix(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Four quarter rounds side by side; changes `a` and `c`, returns the new `b` and `d`."""
    d = _rotated(d.bitwise_xor_(a.add_(b)), 16)
    b = _rotated(b.bitwise_xor_(c.add_(d)), 12)
    d = _rotated(d.bitwise_xor_(a.add_(b)), 8)
    b = _rotated(b.bitwise_xor_(c.add_(d)), 7)
    return b, d


def _rotated(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Rotated to the left. Shifts of signed words drag the sign along, hence the mask; sums wrap."""
    return (x >> (32 - bits)).bitwise_and_((1 << bits) - 1).add_(x, alpha=1 << bits)
