"""Adam for noisy gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_pre_hooks

from sourdine import checks
from sourdine.rng import Source
from sourdine.sgd.batches import move
from sourdine.sgd.gpu import kernels
from sourdine.sgd.noise import Recipe, recipe
from sourdine.sgd.sums import Sums


class AdamW(torch.optim.Optimizer):
    """AdamW whose second moment leaves the noise out (Tang, Shpilevskiy and Lécuyer 2024, DP-AdamBC).

    A gradient with noise of variance s^2 has E[g^2] = (true second moment) + s^2. Where noise prevails,
    plain Adam divides every coordinate by s and becomes SGD with momentum. Here

        v^ = max(v / (1 - beta2^t) - s^2, floor^2),    step = lr * m^ / sqrt(v^)

    The variance is set by the engine before each step (`noise_variance`); it is public, so this is
    post-processing and costs nothing. `floor` bounds how far a coordinate can be blown up where the
    true second moment drowns in the noise; by default a tenth of s.

    With corrected=False it is AdamW as everybody knows it: step = lr * m^ / (sqrt(v / (1 - beta2^t)) +
    1e-8).

    On a GPU the engine leaves the noise of its sums to be made in the pass over memory that moves the
    weights (`take`): the noise is that of sgd/noise.py, and no gradient is ever there without it.
    """

    noise_variance = 0.0  # here, as copies of an optimizer hold nothing but settings and state
    _taken: tuple[Sums, Recipe, float] | None = None
    _table: _Table | None = None
    _fitting: Sums | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | None = None,
        weight_decay: float = 0.0,
        corrected: bool = True,
    ) -> None:
        defaults = {
            "lr": checks.not_negative("lr", lr),
            "betas": tuple(checks.probability(f"beta{i + 1}", beta) for i, beta in enumerate(betas)),
            "floor": floor if floor is None else checks.positive("floor", floor),
            "weight_decay": checks.not_negative("weight_decay", weight_decay),
            "corrected": bool(corrected),
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; every gradient is taken to hold noise of `noise_variance`."""
        if self._taken is not None:
            (sums, noise, over), self._taken = self._taken, None
            self._at_once(sums, noise, over)
            return None
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self._state(parameter), parameter.grad
        if gradient is None:
            return
        state["step"] += 1
        first, second, keep, pace, whole, noise, least, more = self._settings(group, state["step"])
        state["mean"].lerp_(gradient, first)
        state["square"].lerp_(gradient.square(), second)
        scale = (state["square"] * whole).sub_(noise).clamp_(min=least).sqrt_().add_(more)
        parameter.mul_(keep).addcdiv_(state["mean"], scale, value=-pace)

    def _state(self, parameter: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        return state

    def _settings(self, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """The numbers that a step needs, see `adam_` in sgd/kernels.py."""
        (first, second), lr, floor = group["betas"], group["lr"], group["floor"]
        corrected = group.get("corrected", True)
        noise = self.noise_variance if corrected else 0.0
        if floor is None:
            floor = max(1e-8, 0.1 * math.sqrt(noise))
        least, more = (floor**2, 0.0) if corrected else (0.0, 1e-8)
        pace, whole = lr / (1 - first**step), 1 / (1 - second**step)
        keep = 1 - lr * group["weight_decay"]
        return 1 - first, 1 - second, keep, pace, whole, noise, least, more

    # Noise and step at once

    def look(self, sums: Sums) -> None:
        """Looks whether `take` could take these sums, while a GPU still adds them up.

        Between the two nobody else may move anything: `take` relies on what was seen here.
        """
        self._fitting = sums if type(self) is AdamW and self._fits(sums) else None

    def take(self, sums: Sums, deviation: float, source: Source, over: float) -> bool:
        """Whether the next step makes the noise of these sums itself, and divides them by `over`.

        True only where a kernel can do it, and nobody wants to see gradients before a step. The sums
        are out of `.grad` then, and zero after the step.
        """
        if self._fitting is not sums:
            self.look(sums)
        fitting, self._fitting = self._fitting is sums, None
        watched = self._optimizer_step_pre_hooks or _global_optimizer_pre_hooks
        if not fitting or deviation == 0 or watched:
            return False
        sums.hide()
        self._taken = (sums, recipe(deviation, source), over)
        return True

    def drop(self) -> bool:
        """Forgets sums that were taken; whether there were any."""
        there, self._taken, self._fitting = self._taken is not None, None, None
        return there

    def _fits(self, sums: Sums) -> bool:
        """Whether all that is moved lies in memory as its sums do, and is known to `adam_`."""
        flat, own = sums.flats[0], [x for group in self.param_groups for x in group["params"]]
        parts = {id(x): part for x, part in zip(sums.parameters, sums.parts, strict=True)}
        if kernels(flat) is None or len(sums.flats) > 1 or parts.keys() != {id(x) for x in own}:
            return False
        steps = [{self._state(x)["step"] for x in group["params"]} for group in self.param_groups]
        if any(len(each) > 1 for each in steps):
            return False
        where = [len(flat), flat.data_ptr(), *(len(group["params"]) for group in self.param_groups)]
        where += [int(parts[id(x)].storage_offset()) for x in own]
        where += [y.data_ptr() for x in own for y in (x, *self._moments(x))]
        if self._table is not None and self._table.where == where:
            return True
        if not all(
            y.stride() == parts[id(x)].stride() and y.dtype == torch.float32 and y.device == flat.device
            for x in own
            for y in (x, *self._moments(x))
        ):
            return False
        rows = [
            (place, [*(y.data_ptr() for y in (x, *self._moments(x)))], parts[id(x)])
            for place, group in enumerate(self.param_groups)
            for x in group["params"]
        ]
        self._table = _Table.made(flat, where, rows)
        return True

    def _moments(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        state = self._state(parameter)
        return state["mean"], state["square"]

    def _at_once(self, sums: Sums, noise: Recipe, over: float) -> None:
        table, flat = self._table, sums.flats[0]
        if table is None:
            raise RuntimeError("sums were taken that do not fit")
        for group in self.param_groups:
            for x in group["params"]:
                self.state[x]["step"] += 1
        steps = [
            self.state[group["params"][0]]["step"] if group["params"] else 1
            for group in self.param_groups
        ]
        given = [
            self._settings(group, step) for group, step in zip(self.param_groups, steps, strict=True)
        ]
        settings = move(torch.tensor(given), flat.device)
        kernels(flat).adam_(flat, *noise, table.owners, table.tensors, settings, over)


@dataclass(frozen=True)
class _Table:
    """Where everything lies, for `adam_` of sgd/kernels.py."""

    where: list[int]  # sizes of groups, and addresses: what it was made for
    owners: Tensor
    tensors: Tensor

    @staticmethod
    def made(flat: Tensor, where: list[int], rows: list[tuple[int, list[int], Tensor]]) -> _Table:
        """rows: of each parameter its group, where it and its moments lie in memory, and its sums."""
        parts = kernels(flat).PARTS
        owners, tensors = list[Tensor](), list[list[int]]()
        for at, (group, places, part) in enumerate(rows):
            start = int(part.storage_offset())
            end = start + part.numel()
            tensors.append([*places, start, end, group])
            firsts = torch.arange(start // 8, -(-end // 8), parts, dtype=torch.int32)
            owners.append(torch.stack([torch.full_like(firsts, at), firsts], 1))
        return _Table(where, torch.cat(owners).to(flat.device), torch.tensor(tensors).to(flat.device))
