"""Whose rows are whose, and which of them count.

Under unit "user" a person may have many rows. Only the first `most` of each person count, in the order
of the table: a rule that looks at that person's rows alone, so that nobody's absence changes which rows
of anybody else count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sourdine.data.faults import NOTHING, Faults
from sourdine.data.tables import Table
from sourdine.errors import InputError

NOBODY = -1


def owners(table: Table, column: str) -> NDArray[np.int64]:
    """A number for each row that says whose it is, or NOBODY.

    A row that names nobody has no person whose protection it could count for, so it counts as nothing.
    """
    if column in table.numbers:  # as doubles, two persons could become one
        raise InputError(
            f"column {column!r} tells who is who and must be read as text: read(names=[{column!r}])."
        )
    encoded = table.text(column).dictionary_encode()
    blank = [not name.strip() for name in encoded.dictionary.to_pylist()]
    found = np.array(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    found[np.array(blank, dtype=np.bool_)[found]] = NOBODY
    faults = Faults()
    fault = f"without a person in column {column!r}, {NOTHING}"
    faults.count(fault, int((found == NOBODY).sum()))
    faults.tell(table.name)
    return found


def first_rows(owner: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """The first `most` rows of each owner, and none of nobody's."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.append(starts, len(ordered)))
    rank = np.arange(len(ordered)) - np.repeat(starts, sizes)
    kept = np.empty(len(owner), dtype=np.bool_)
    kept[order] = rank < most
    kept &= owner != NOBODY
    return kept
