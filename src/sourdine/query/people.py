"""Whose rows are whose, and which of them count.

Under unit "user" a person may have many rows. Only the first `most` of each person count, in the order
of the table: a rule that looks at that person's rows alone, so that nobody's absence changes which rows
of anybody else count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sourdine.data.tables import Table
from sourdine.errors import InputError


def owners(table: Table, column: str) -> NDArray[np.int64]:
    """A number for each row that says whose it is."""
    if column in table.numbers:  # as doubles, two persons could become one
        raise InputError(
            f"column {column!r} tells who is who and must be read as text: read(names=[{column!r}])."
        )
    encoded = table.text(column).dictionary_encode()
    if "" in encoded.dictionary.to_pylist():
        raise InputError(
            f"column {column!r} of {table.name} has rows that name nobody; every row must belong to "
            "someone. Name them or take them out, and load the table again."
        )
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def first_rows(owner: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """The first `most` rows of each owner."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.append(starts, len(ordered)))
    rank = np.arange(len(ordered)) - np.repeat(starts, sizes)
    kept = np.empty(len(owner), dtype=np.bool_)
    kept[order] = rank < most
    return kept
