"""How far each contribution is scaled down: small objects that share one question.

Guarantee of each: for every example, the norm of (c_k g_k over all parameters k) is at most `bound`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sourdine import checks
from sourdine.errors import InputError
from sourdine.sgd.rounding import summed

# Roots, quotients and the scaling itself round too, each by 2^-24 at most, and a few times that where a
# compiler for GPUs makes them; this covers them all.
_MARGIN = 1 - 2.0**-20


class Clip(ABC):
    """How contributions are scaled."""

    apart = False
    """Whether squares are asked for by parameter; otherwise some may come as one."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """The largest norm that a contribution can have."""

    @abstractmethod
    def factors(
        self, squares: Mapping[str, Tensor], rounding: Tensor | float, none: Tensor
    ) -> tuple[Tensor | Mapping[str, Tensor], Tensor]:
        """Scale factors, for all parameters or by name, and the norms (B,).

        squares: squared norms by parameter; rounding: the square of what scaling in half precision can
        add to the whole; none: zeros (B,), for models without gradients.
        """


def whole_norms(squares: Mapping[str, Tensor], rounding: Tensor | float, none: Tensor) -> Tensor:
    """Norms over all parameters, rounded upwards."""
    total = summed(torch.stack(list(squares.values()), 1)) if squares else none
    return total.sqrt() + torch.as_tensor(rounding, device=none.device).sqrt()


@dataclass(frozen=True)
class Flat(Clip):
    """c = min(1, clip / |g|) over all parameters together (Abadi et al. 2016)."""

    clip: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", checks.positive("clip", self.clip))

    @property
    def bound(self) -> float:
        return self.clip

    def factors(
        self, squares: Mapping[str, Tensor], rounding: Tensor | float, none: Tensor
    ) -> tuple[Tensor, Tensor]:
        norms = whole_norms(squares, rounding, none)
        return (self.clip * _MARGIN / norms).clamp(max=1), norms


@dataclass(frozen=True)
class Automatic(Flat):
    """c = clip / (|g| + small): every contribution is brought to about the same norm.

    Bu et al. 2023, "Automatic clipping"; `small` keeps tiny gradients from being blown up. Below it,
    gradients still count less than larger ones, which their convergence proof needs.
    """

    clip: float = 1.0
    small: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "small", checks.positive("small", self.small))

    def factors(
        self, squares: Mapping[str, Tensor], rounding: Tensor | float, none: Tensor
    ) -> tuple[Tensor, Tensor]:
        norms = whole_norms(squares, rounding, none)
        return self.clip * _MARGIN / (norms + self.small), norms


@dataclass(frozen=True)
class PerLayer(Clip):
    """Each layer's gradient is clipped at its own threshold; bound = sqrt(sum of their squares).

    clips: thresholds by the layer's name; a parameter belongs to the layer whose name its own name
    starts with. `PerLayer.even(model, clip)` shares one clip out evenly, clip / sqrt(layers) each.
    """

    clips: Mapping[str, float]
    apart = True

    def __post_init__(self) -> None:
        if not self.clips:
            raise InputError("per-layer clipping needs at least one layer: {'layer': clip}.")
        for name, clip in self.clips.items():
            checks.positive(f"the clip of {name}", clip)

    @classmethod
    def even(cls, model: nn.Module, clip: float) -> PerLayer:
        trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
        layers = dict.fromkeys(name.rpartition(".")[0] or name for name in trained)
        return cls(dict.fromkeys(layers, checks.positive("clip", clip) / math.sqrt(len(layers))))

    @property
    def bound(self) -> float:
        return math.hypot(*self.clips.values())

    def factors(
        self, squares: Mapping[str, Tensor], rounding: Tensor | float, none: Tensor
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        layers: dict[str, dict[str, Tensor]] = {}
        for name, value in squares.items():
            layers.setdefault(self._layer(name), {})[name] = value
        scales: dict[str, Tensor] = {}
        for layer, members in layers.items():
            scale, _ = Flat(self.clips[layer]).factors(members, rounding, none)
            scales.update(dict.fromkeys(members, scale))
        return scales, whole_norms(squares, rounding, none)

    def _layer(self, name: str) -> str:
        fitting = [x for x in self.clips if name == x or name.startswith(f"{x}.")]
        if not fitting:
            raise InputError(f"no clip is given for {name}; name a layer that it belongs to.")
        return max(fitting, key=len)


@dataclass
class Adaptive(Clip):
    """A clip that follows a quantile of the norms (Andrew et al. 2021).

    Beside the sum, each step releases how many contributions were below the clip: the sum over the lot
    of b_i - 1/2, where b_i is 1 below the clip and 0 above; one contribution moves it by at most 1/2.
    With noise of deviation `count_noise` on the count, and z' on the sum in units of the clip, both
    together are one Gaussian release with 1 / z^2 = 1 / z'^2 + 1 / (2 count_noise)^2. The engine is
    given z, draws z' (`split`), and so charges nothing beyond its usual event.

    The clip moves by clip *= exp(-rate (share - quantile)), share = (noisy sum) / lot_size + 1/2.
    """

    clip: float
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None  # by default a twentieth of the lot size
    below: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.clip = checks.positive("clip", self.clip)
        self.quantile = checks.probability("quantile", self.quantile)
        self.rate = checks.positive("rate", self.rate)
        if self.count_noise is not None:
            self.count_noise = checks.positive("count_noise", self.count_noise)

    @property
    def bound(self) -> float:
        return self.clip

    def factors(
        self, squares: Mapping[str, Tensor], rounding: Tensor | float, none: Tensor
    ) -> tuple[Tensor, Tensor]:
        return Flat(self.clip).factors(squares, rounding, none)

    def split(self, noise_multiplier: float, lot_size: float) -> tuple[float, float]:
        """The noise multiplier left for the sum, and the deviation of the count's noise."""
        count = lot_size / 20 if self.count_noise is None else self.count_noise
        rest = noise_multiplier**-2 - (2 * count) ** -2
        if rest <= 0:
            raise InputError(
                f"noise of {count:g} on the count alone gives away more than a noise multiplier of "
                f"{noise_multiplier:g} allows; set count_noise above {noise_multiplier / 2:g}."
            )
        return rest**-0.5, count

    def move(self, noisy: float, lot_size: float) -> None:
        """Follows the noisy sum of b_i - 1/2."""
        share = min(1.0, max(0.0, noisy / lot_size + 0.5))
        self.clip *= math.exp(-self.rate * (share - self.quantile))
