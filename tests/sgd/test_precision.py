"""Norms are taken in full precision whatever torch was told, by its older names or by its newer ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stopping import child  # noqa: E402

import sourdine.checks  # noqa: E402
from sourdine.sgd import agreement  # noqa: E402
from sourdine.sgd.agreement import digest  # noqa: E402
from sourdine.sgd.precision import (  # noqa: E402
    _places,
    fast_products,
    full_precision,
    repeats_itself,
    settings,
    single_precision,
)

CPU = torch.device("cpu")
NEWER = (
    ("backends.cuda.matmul", "tf32"),
    ("backends.mkldnn.matmul", "bf16"),
    ("backends.cudnn.conv", "ieee"),
    ("backends", "tf32"),
)


@pytest.fixture(scope="module")
def ended() -> dict[str, int]:
    """How each of `all_apart` ended, in a process that no other test has used."""
    own = [Path(__file__).parent, Path(sourdine.__file__).parents[1]]
    here = {"PYTHONPATH": os.pathsep.join(map(str, own))}
    told = subprocess.run(
        [sys.executable, "-c", "import test_precision as x; x.all_apart()"],
        env={**os.environ, **here},
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, int] = json.loads(told.stdout)
    return found


def all_apart() -> None:
    """Each in a child of its own: torch does not forget what it was told by its newer names."""
    import test_engine  # noqa: F401 (once for all children)

    sourdine.checks.LARGEST = 1e9  # this process has no fixtures
    children = {name: child(partial(newer, name, value)) for name, value in NEWER}
    children["older"] = child(older)
    print(json.dumps({name: os.waitpid(number, 0)[1] for name, number in children.items()}))


def place_of(name: str) -> Any:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def told() -> tuple[str, ...]:
    found = (place_of(name).fp32_precision for name, _ in NEWER[:-1])
    return tuple("ieee" if x == "none" else x for x in found)  # what nobody has told means the same


def older() -> None:
    """The older name of torch's for one place says nothing of the others, and must not after it."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    before = digest(settings(CPU))
    with single_precision():
        assert {place.fp32_precision for place in _places()} == {"ieee"}
    assert digest(settings(CPU)) == before


def test_settings_by_the_older_name_are_left_as_they_are(ended: dict[str, int]) -> None:
    assert ended["older"] == 0


@pytest.mark.parametrize("asked", ["highest", "high", "medium"])
def test_what_torch_was_told_is_put_back(asked: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(asked)
    try:
        with full_precision(CPU), torch.autocast("cpu", enabled=False):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == asked and torch.backends.cudnn.allow_tf32
        with fast_products():
            assert torch.get_float32_matmul_precision() == "high"
            with single_precision():
                assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == asked
    finally:
        torch.set_float32_matmul_precision(before)


def newer(name: str, value: str) -> None:
    place_of(name).fp32_precision = value
    before = told()
    with single_precision():
        assert set(told()) == {"ieee"}, told()
    with fast_products(), single_precision():
        assert set(told()) == {"ieee"}, told()
    assert told() == before
    from test_engine import engine, run

    run(engine(steps=2))
    assert told() == before


@pytest.mark.parametrize(("name", "value"), NEWER)
def test_an_engine_runs_where_torch_was_told_by_its_newer_names(
    name: str, value: str, ended: dict[str, int]
) -> None:
    assert ended[name] == 0


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cudnn, "benchmark", True),
        (torch.backends.mkldnn, "enabled", False),
        (os.environ, "NVIDIA_TF32_OVERRIDE", "0"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_decides_last_bits_is_seen(
    place: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(settings(CPU))
    if place is os.environ:
        monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr(place, name, value)
    assert digest(settings(CPU)) != before
    monkeypatch.undo()
    assert digest(settings(CPU)) == before


def test_attention_and_autocast_are_seen() -> None:
    before = digest(settings(CPU))
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert digest(settings(CPU)) != before
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    with torch.autocast("cpu", torch.bfloat16):
        assert digest(settings(CPU)) != before
    with single_precision():
        pass
    assert digest(settings(CPU)) == before, "an engine that ran before leaves no trace"


def test_what_decides_last_bits_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are run again for nothing only under the same settings."""
    before = digest(agreement._machine(CPU))
    assert digest(agreement._machine(CPU)) == before
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert digest(agreement._machine(CPU)) != before


def test_kernels_that_are_chosen_by_the_clock_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert repeats_itself(gpu) and repeats_itself(CPU)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert not repeats_itself(gpu) and repeats_itself(CPU)
