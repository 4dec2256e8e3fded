"""What torch is told: full precision for norms and sums, and all else that decides last bits.

torch has older and newer names for one and the same thing, and refuses to read the older ones where the
newer ones were used. Both kinds of users are served: the older are taken where they can be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import backends

_SWITCHES = {
    "cudnn": ("enabled", "benchmark", "deterministic"),
    "mkldnn": ("enabled",),
    "cuda.matmul": (
        "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ),
    "cuda": (  # attention
        "flash_sdp_enabled",
        "mem_efficient_sdp_enabled",
        "math_sdp_enabled",
        "cudnn_sdp_enabled",
        "fp16_bf16_reduction_math_sdp_allowed",
        "preferred_blas_library",
    ),
}
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Norms and sums without TF32 or autocast: the bounds on rounding are those of single precision."""
    with torch.autocast(device.type, enabled=False), single_precision():
        yield


@contextmanager
def single_precision() -> Iterator[None]:
    """No less for products and convolutions of single precision; on a CPU too, some would take less."""
    places = _places()  # the older names leave some of these out, and tell others more than they knew
    before = [place.fp32_precision for place in places]
    try:
        older = (torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32)
    except RuntimeError:
        older = None
    try:
        if older is not None:
            torch.set_float32_matmul_precision("highest")
            backends.cudnn.allow_tf32 = False
        _tell(places, ["ieee"] * len(places))
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older[0])
            backends.cudnn.allow_tf32 = older[1]
        _tell(places, before)


@contextmanager
def fast_products() -> Iterator[None]:
    """Products of single precision may be made in TF32, outside of what is above."""
    try:
        asked = torch.get_float32_matmul_precision()
    except RuntimeError:  # then whoever told torch by its newer names has chosen
        yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(asked)


def _tell(places: list[Any], precisions: list[str]) -> None:
    for place, asked in zip(places, precisions, strict=True):
        if place.fp32_precision != asked:
            place.fp32_precision = asked


def _places() -> list[Any]:
    named: Any = backends  # torch has no types for these
    cudnn, mkldnn = named.cudnn, named.mkldnn
    return [named.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


def settings(device: torch.device) -> list[Any]:
    """All that torch was told, by this process, that decides the last bits of a sum."""
    told = list[Any]()
    for name, switches in _SWITCHES.items():
        place: Any = backends
        for part in name.split("."):
            place = getattr(place, part)
        found = (getattr(place, switch, None) for switch in switches)
        told += [str(x() if callable(x) else x) for x in found]
    precisions = [place.fp32_precision.replace("none", "ieee") for place in _places()]
    autocast = (torch.is_autocast_enabled(device.type), str(torch.get_autocast_dtype(device.type)))
    return [told, precisions, autocast, [os.environ.get(name) for name in _VARIABLES]]


def repeats_itself(device: torch.device) -> bool:
    """Whether kernels add up in the same order each time; some of a GPU's are chosen by the clock."""
    told = torch.are_deterministic_algorithms_enabled() and not backends.cudnn.benchmark
    return device.type == "cpu" or told
