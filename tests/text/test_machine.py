"""A run on a GPU is repeatable, and leaves torch as it was."""

from __future__ import annotations

import pytest
import torch

from sourdine.errors import InputError
from sourdine.text.machine import device_of, repeatable


def state() -> tuple[object, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


def test_a_gpu_is_told_to_repeat_itself_and_torch_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = state()
    with pytest.raises(KeyError), repeatable(torch.device("cuda")):
        assert state() == (True, False, "high", False)
        raise KeyError
    assert state() == before
    with repeatable(torch.device("cpu")):
        assert state() == before


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="no device 'nonsense'"):
        device_of("nonsense")
    assert device_of("cpu").type == "cpu"
