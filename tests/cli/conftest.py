"""What the tests of several verbs need and none of them looks at: made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Texts go through one frozen encoder once for all tests of a module."""
    torch = pytest.importorskip("torch")
    from sourdine.text import frozen

    known: dict[Any, Any] = {}
    features: Callable[..., Any] = frozen.features

    def once(model: Any, rows: Any, collate: Any, *, batch_size: int, tell: Any) -> Any:
        weights = sum(
            float(weight.detach().double().abs().sum()) for weight in model.encoder.parameters()
        )
        texts = tuple(str(rows[place]) for place in range(len(rows)))
        key = (weights, batch_size, texts)
        if key not in known:
            known[key] = features(model, rows, collate, batch_size=batch_size, tell=tell)
        assert isinstance(known[key], torch.Tensor)
        return known[key].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frozen, "features", once)
        yield
