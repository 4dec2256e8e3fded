"""Nanoseconds for one value of noise, on one CPU thread, and how many times torch.randn that is.

    OMP_NUM_THREADS=1 python benchmarks/engine/noise.py [--values 4194304] [--device cuda]

The ways are timed in turns and the best of the rounds is kept, so that a busy machine hurts all alike. On the
CPU the clock is the processor time of this process, on an accelerator it is the wall's.
"""

import argparse
import math
import os
import platform
import time
from collections.abc import Callable

import numpy as np
import torch

from sourdine.rng import secure
from sourdine.sgd import noise


def in_parts(make: Callable[[torch.Tensor], object], values: int, device: torch.device) -> None:
    """So many values from rows of four words, as many at once as add_noise_ makes."""
    source, part = secure(), noise._AT_ONCE if device.type == "cpu" else noise._DEVICE_VALUES
    for _ in range(-(-values // part)):
        make(noise._words(source.bytes(32), 0, 2 * part, device).view(-1, 4))


def inverse_erf(words: torch.Tensor) -> torch.Tensor:
    """Two inverse transforms; for its time only, as fp32 ends its tails at 5.4 deviations."""
    uniform = words.to(torch.float32).mul_(1 - 2.0**-24).mul_(2.0**-31)
    return uniform.erfinv_().view(-1, 2, 2).sum(1).mul_(math.sqrt(2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", type=int, default=1 << 22)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    values, device, source = given.values, torch.device(given.device), secure()
    tensor = torch.zeros(values, device=device)
    ways: dict[str, Callable[[], object]] = {
        "torch.randn, not secure": lambda: torch.randn(values, device=device),
        "ChaCha20 words alone": lambda: in_parts(lambda words: words, values, device),
        "add_noise_": lambda: noise.add_noise_([tensor], 1.0, source),
        "sums with torch's functions": lambda: in_parts(noise._elsewhere, values, device),
        "sums by inverse erf": lambda: in_parts(inverse_erf, values, device),
    }
    best = dict.fromkeys(ways, math.inf)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for _ in range(given.rounds):
        for name, way in ways.items():
            start = clock()
            way()
            if device.type == "cuda":
                torch.cuda.synchronize()
            best[name] = min(best[name], clock() - start)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}, {device}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {values} values"
    )
    plain = best["torch.randn, not secure"]
    for name, took in best.items():
        print(f"{name:30} {took / values * 1e9:7.2f} ns {took / plain:7.2f} x")


if __name__ == "__main__":
    main()
