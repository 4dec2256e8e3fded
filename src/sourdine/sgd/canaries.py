"""Canaries: units made for an audit, each with a gradient of its own, in or out by a coin.

Canary i is one unit among all: it is drawn into lots at the rate of the others, and where its coin says
"in" it contributes a gradient along a coordinate that belongs to it alone,

    g_i = scale * bound * e_i,

clipped by the run's own clip, added up, and released with the run's own noise. Where its coin says
"out" it contributes nothing: the two worlds of zero-out. No record and no weight of the model has a
part in these coordinates, so they move no weight. From the noisy sums x_t along its coordinate, over
the bound, an attacker makes the log likelihood ratio of "in" against "out",

    s_i = sum over steps t of log(1 - rate + rate * exp((2 x_t - 1) / (2 sigma^2))),

sigma the noise multiplier: the best test there is, if all is as planned. It is a function of the sums
that the run's event covers: coins and scores may be published with the model, and cost nothing more.
Scores are high for "in". This is the Dirac canary of Nasr et al. 2023, many at once as in Steinke,
Nasr and Jagielski 2023, whose Theorem 5.2 makes a bound on epsilon of it (audit/one_run.py).

What they see: lots, clip factors and noise as they are for canaries. A fault that spares them (noise
missing on weights alone, norms of records computed wrongly) is not seen, nor is noise that repeats.

Guarantee: rate and number of units count all canaries, whatever their coins say, so the accounting of
everyone else stands. A scale above 1 makes the clip do its work: without it a canary would shine.
Under clips by layer, and automatic ones of a tiny bound, a canary adds less than the bound and shows
less. An adaptive clip does not count them: it follows the records alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sourdine import checks
from sourdine.errors import InputError
from sourdine.rng import Source
from sourdine.sgd.clipping import Clip
from sourdine.sgd.sampling import Indices

_LARGEST = 1e6  # over the clip; a square of more could leave single precision


@dataclass(eq=False)
class Canaries:
    """So many of them; coins are tossed when a run begins, scores grow while it goes on."""

    count: int
    scale: float = 10.0
    """The norm of a canary's gradient before it is clipped, over the clip."""
    coins: NDArray[np.bool_] = field(init=False)
    scores: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.count = checks.whole("canaries", self.count)
        if not 1 < checks.positive("scale", self.scale) <= _LARGEST:
            raise InputError(
                f"a canary's gradient must be above the clip: take a scale above 1, up to {_LARGEST:g}."
            )
        self.forget()

    def forget(self) -> None:
        """As before any run: each has coins and scores of its own."""
        self.coins, self.scores = np.zeros(0, dtype=bool), np.zeros(self.count)

    def toss(self, source: Source) -> None:
        """One fair coin each."""
        drawn = np.frombuffer(source.bytes(-(-self.count // 8)), dtype=np.uint8)
        self.coins = np.unpackbits(drawn)[: self.count].astype(bool)

    def sums(self, drawn: Indices, clip: Clip, parameter: str, device: torch.device) -> Tensor:
        """What the canaries of a lot add to the sum; `parameter` names a layer, for clips by layer."""
        total = torch.zeros(self.count, device=device)
        there = torch.from_numpy(drawn[self.coins[drawn]]).to(device)
        if len(there):
            norm = torch.full((len(there),), self.scale * clip.bound, device=device)
            found, _ = clip.factors({parameter: norm.square()}, 0.0, torch.zeros_like(norm))
            factors = found if isinstance(found, Tensor) else found[parameter]
            total[there] = factors * norm
        return total

    def see(self, noisy: Tensor, bound: float, rate: float, sigma: float) -> None:
        """Looks at a noisy sum, as an attacker may, who knows the plan."""
        ratio = (2 * noisy.double().cpu().numpy() / bound - 1) / (2 * sigma**2)
        absent = math.log1p(-rate) if rate < 1 else -math.inf
        self.scores = self.scores + np.logaddexp(absent, math.log(rate) + ratio)

    def state(self) -> dict[str, list[float] | list[bool]]:
        """What a run that goes on needs."""
        return {"coins": self.coins.tolist(), "scores": self.scores.tolist()}

    def load(self, state: dict[str, list[float] | list[bool]] | None) -> None:
        """Takes up what a run had."""
        if state is None or len(state["scores"]) != self.count:
            raise InputError("this run began with another number of canaries; go on with as many.")
        self.coins, self.scores = np.array(state["coins"], dtype=bool), np.array(state["scores"])
