"""Which rows a question is about: plain conditions, so that no row can make a filter fail.

A condition is a column, a comparison and a value: `stars >= 4`, `city == Paris`, `city != 'New York'`.
Several conditions must all hold. The value says how cells are compared, never the cells: a number (or
true and false) with the number that each cell stands for, anything else as text, in the order of its
characters: so ISO dates compare as dates, and codes such as 007 as codes. A cell without a number is
equal to none and in no order; an empty one meets no condition on numbers at all.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from sourdine.data import kinds
from sourdine.data.tables import SPACES, Table
from sourdine.errors import InputError

_COMPARISONS = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TEXTS = {
    "==": pc.equal,
    "=": pc.equal,
    "!=": pc.not_equal,
    ">=": pc.greater_equal,
    "<=": pc.less_equal,
    ">": pc.greater,
    "<": pc.less,
}
_SHAPE = re.compile(r"\s*(.+?)\s*(==|!=|>=|<=|=|>|<)\s*(.*?)\s*", re.DOTALL)


def parse(condition: str) -> tuple[str, str, str]:
    """Column, comparison and value of a condition as it is written."""
    found = _SHAPE.fullmatch(condition) if isinstance(condition, str) else None
    if found is None:
        raise InputError(
            f"the condition {condition!r} is not understood; write a column, a comparison and a value, "
            "for instance 'stars >= 4'."
        )
    column, comparison, value = found.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return column, comparison, value


def rows(table: Table, conditions: Sequence[str]) -> NDArray[np.bool_] | None:
    """The rows for which all conditions hold, or None for no condition at all."""
    if isinstance(conditions, str):
        conditions = [conditions]
    if not isinstance(conditions, list | tuple):
        raise InputError("conditions are a list of texts, for instance ['stars >= 4'].")
    masks = [_holds(table, *parse(condition)) for condition in conditions]
    return np.logical_and.reduce(masks) if masks else None


def _holds(table: Table, column: str, comparison: str, value: str) -> NDArray[np.bool_]:
    value = value.strip(SPACES).encode(errors="replace").decode()  # as the cells were read
    limit = kinds.number_in(value)
    if limit is None:
        if not table.may_be_text(column):
            table.number(column)  # refuses what is no column
            raise InputError(
                f"column {column!r} holds numbers, but {value!r} is none; compare it with a number."
            )
        mask: Any = _TEXTS[comparison](table.text(column), value)
        return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
    numbers = table.lenient(column)
    found = np.asarray(_COMPARISONS[comparison](numbers, limit), dtype=np.bool_)
    return found & table.filled(column)  # NaN is unequal to every number: what is missing is not
