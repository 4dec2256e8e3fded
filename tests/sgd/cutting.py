"""A compiler that cuts graphs into the smallest pieces and compiles none."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from sourdine.sgd import pieces


def cut(graph: Any) -> Any:
    with patch.multiple(pieces, _LEAST=4, _GAIN=4):
        return pieces.by_pieces(graph, lambda piece: piece)
