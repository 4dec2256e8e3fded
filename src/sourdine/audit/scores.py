"""Learning to tell two samples of any outputs apart: scores, high where the second is likelier.

The best test of one distribution against another rejects where the likelihood ratio is large (Neyman
and Pearson 1933), so a score is an estimate of that ratio, or a number that rises with it. Nothing
here needs to be right: a poor score makes a weak attack, never a false accusation, because regions are
tested on draws that neither the scores nor the choice of a region have seen. All that this asks for is
that the score of an output depends on that output and on the learning draws alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sourdine.errors import InputError

Floats = NDArray[np.float64]
Pair = list[Floats]
"""One array for each neighbour."""
_FEW = 10  # draws of one value from which on it may have a bin of its own


class _Sample(NamedTuple):
    """Outputs as rows of numbers (n, d); where one is no such row it is NaN, and a word instead."""

    rows: Floats
    words: NDArray[np.int64]  # -1 for numbers


def learn(drawn: list[Sequence[Any]], count: int) -> list[Pair]:
    """Scores of all outputs, learned from the first `count` of each neighbour.

    Which of them serves best is for fresh draws to say.
    """
    samples = _read(drawn, count)
    words = [sample.words for sample in samples]
    bins = int(2 * count ** (1 / 3)) + 1
    found: list[Pair] = []
    with np.errstate(invalid="ignore", over="ignore"):  # infinite outputs; NaN has a bin of its own
        for line in _lines(*(sample.rows[:count] for sample in samples)):
            x = [line(sample.rows) for sample in samples]
            # Plain order: what is large, or small, speaks for the second neighbour.
            found += [[np.where(np.isnan(side), -np.inf, s * side) for side in x] for s in (1, -1)]
            # Few bins serve smooth densities, many serve rare atoms and large alphabets.
            found += [_binned(x, words, count, bins, least) for least in (2 * count / bins, _FEW)]
    return found


def _lines(first: Floats, second: Floats) -> list[Callable[[Floats], Floats]]:
    """Vectors as one number: the likelihood ratio of normal fits, with common variances and without.

    With common variances it is the difference of means over the variance, Fisher's direction.
    """
    if first.shape[1] == 1:
        return [lambda x: x[:, 0]]
    first, second = (x[np.isfinite(x).all(axis=1)] for x in (first, second))
    if len(first) < 2 or len(second) < 2:
        return [_total]
    means = first.mean(axis=0), second.mean(axis=0)
    variances = first.var(axis=0), second.var(axis=0)
    step, spread = means[1] - means[0], (variances[0] + variances[1]) / 2
    # A coordinate without noise would weigh infinitely much.
    floor = 1e-12 * (spread.max() + np.abs(step).max() ** 2) + 1e-300
    weights = step / (spread + floor)

    def quadratic(x: Floats) -> Floats:
        far, near = ((x - m) ** 2 / (v + floor) for m, v in zip(means, variances, strict=True))
        return _total(far - near)

    return [lambda x: _total(x * weights), quadratic]


def _total(x: Floats) -> Floats:
    # Row by row: a matrix product need not give equal rows equal sums.
    total: Floats = x.sum(axis=1)
    return total


def _binned(x: Pair, words: list[NDArray[np.int64]], count: int, bins: int, least: float) -> Pair:
    """ln((n1 + 1/2) / (n0 + 1/2)) of an output's bin: a quantile, or a frequent value by itself."""
    seen = np.concatenate([side[:count] for side in x])
    seen = np.sort(seen[~np.isnan(seen)])
    atoms = _frequent(seen, least)
    rest = seen[~np.isin(seen, atoms)]
    cuts = np.unique(rest[np.arange(1, bins) * len(rest) // bins]) if rest.size else rest
    spoken = np.concatenate([side[:count] for side in words])
    known = _frequent(spoken[spoken >= 0], least)
    size = len(cuts) + 1 + len(atoms) + len(known) + 2

    def places(value: Floats, word: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.searchsorted(cuts, value).astype(np.int64)
        start = len(cuts) + 1
        for alphabet, letters in ((atoms, value), (known, word)):
            own = np.isin(letters, alphabet)
            place[own] = start + np.searchsorted(alphabet, letters[own])
            start += len(alphabet)
        place[np.isnan(value) & (word < 0)] = start
        place[(word >= 0) & ~np.isin(word, known)] = start + 1
        return place

    placed = [places(*side) for side in zip(x, words, strict=True)]
    zero, one = (np.bincount(side[:count], minlength=size) for side in placed)
    ratio = np.log((one + 0.5) / (zero + 0.5))
    return [ratio[side] for side in placed]


def _frequent(values: NDArray[Any], least: float) -> NDArray[Any]:
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts >= least]


def _read(drawn: list[Sequence[Any]], count: int) -> list[_Sample]:
    """Numbers and vectors of the usual length as rows; None, text and the like as words.

    The usual length is that of the first `count` outputs.
    """
    arrays = [array for outputs in drawn if (array := _rows(outputs)) is not None]
    if len(arrays) == len(drawn) and len({array.shape[1] for array in arrays}) == 1:
        return [_Sample(array, np.full(len(array), -1)) for array in arrays]
    lists = [[_numbers(output) for output in outputs] for outputs in drawn]
    sizes = Counter(row.size for side in lists for row in side[:count] if row is not None)
    width = sizes.most_common(1)[0][0] if sizes else 1
    codes: dict[Hashable, int] = {}
    samples = []
    for outputs, side in zip(drawn, lists, strict=True):
        rows, words = np.full((len(side), width), np.nan), np.full(len(side), -1)
        for i, row in enumerate(side):
            if row is not None and row.size == width:
                rows[i] = row
            else:
                words[i] = codes.setdefault(_word(outputs[i], row), len(codes))
        samples.append(_Sample(rows, words))
    return samples


def _rows(outputs: Sequence[Any]) -> Floats | None:
    """All outputs as rows of numbers at once, where they are alike."""
    try:
        array = np.asarray(outputs)
    except (ValueError, TypeError):
        return None
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    return array.reshape(len(array), -1).astype(np.float64)


def _numbers(output: Any) -> Floats | None:
    if output is None or isinstance(output, str | bytes):
        return None
    if isinstance(output, Real):
        try:
            return np.array([float(output)])
        except OverflowError:
            return None
    row = _rows([output])
    return None if row is None else row[0]


def _word(output: Any, row: Floats | None) -> Hashable:
    # A length that is not the usual one says enough by itself.
    word: Hashable = output if row is None else np.shape(output)
    try:
        hash(word)
    except TypeError:
        raise InputError(
            f"outputs of type {type(output).__name__} cannot be compared; "
            "give score=, a function from outputs to numbers, or let the mechanism return numbers."
        ) from None
    return word
