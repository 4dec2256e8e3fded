"""Adam for noisy gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sourdine import checks


class AdamW(torch.optim.Optimizer):
    """AdamW whose second moment leaves the noise out (Tang, Shpilevskiy and Lécuyer 2024, DP-AdamBC).

    A gradient with noise of variance s^2 has E[g^2] = (true second moment) + s^2. Where noise prevails,
    plain Adam divides every coordinate by s and becomes SGD with momentum. Here

        v^ = max(v / (1 - beta2^t) - s^2, floor^2),    step = lr * m^ / sqrt(v^)

    The variance is set by the engine before each step (`noise_variance`); it is public, so this is
    post-processing and costs nothing. `floor` bounds how far a coordinate can be blown up where the
    true second moment drowns in the noise; by default a tenth of s.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": checks.not_negative("lr", lr),
            "betas": tuple(checks.probability(f"beta{i + 1}", beta) for i, beta in enumerate(betas)),
            "floor": floor if floor is None else checks.positive("floor", floor),
            "weight_decay": checks.not_negative("weight_decay", weight_decay),
        }
        super().__init__(params, defaults)
        self.noise_variance = 0.0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; every gradient is taken to hold noise of `noise_variance`."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if gradient is None:
            return
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        (first, second), lr = group["betas"], group["lr"]
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        noise = self.noise_variance
        floor = group["floor"] if group["floor"] is not None else max(1e-8, 0.1 * math.sqrt(noise))
        scale = state["square"] / (1 - second ** state["step"])
        scale = scale.sub_(noise).clamp_(min=floor**2).sqrt_()
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.addcdiv_(state["mean"], scale, value=-lr / (1 - first ** state["step"]))
