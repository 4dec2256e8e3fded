"""Canaries: units made for an audit, each with a gradient of its own, in or out by a coin.

Canary i is one unit among all: it is drawn into lots at the rate of the others, and where its coin says
"in" it contributes a gradient along a coordinate that belongs to it alone,

    g_i = scale * bound * e_i,

clipped by the run's own clip, added up, and released with the run's own noise. Where its coin says
"out" it contributes nothing: the two worlds of zero-out. No record and no weight of the model has a
part in these coordinates, so nothing that is learnt changes; what an attacker sees of canary i is

    s_i = sum over steps of (noisy sum)_i / bound,

a function of the sums that the run's event covers: coins and scores may be published with the model,
and cost nothing more. Scores are high for "in". This is the Dirac canary of Nasr et al. 2023, many at
once as in Steinke, Nasr and Jagielski 2023, whose Theorem 5.2 makes a bound on epsilon of it
(audit/one_run.py). Nobody sees one unit of a noisy sum better than along a direction of its own.

Guarantee: rate and number of units count all canaries, whatever their coins say, so the accounting of
everyone else stands. A scale above 1 makes the clip do its work: without it a canary would shine.
"""

from __future__ import annotations

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
        if checks.positive("scale", self.scale) <= 1:
            raise InputError("a canary's gradient must be above the clip: take a scale above 1.")
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

    def below(self, drawn: Indices) -> float:
        """Their sum of b - 1/2 (see Adaptive): all that take part are above the clip."""
        return -0.5 * float(self.coins[drawn].sum())

    def see(self, noisy: Tensor, bound: float) -> None:
        """Looks at a noisy sum, as an attacker may."""
        self.scores = self.scores + noisy.double().cpu().numpy() / bound

    def state(self) -> dict[str, list[float] | list[bool]]:
        """What a run that goes on needs."""
        return {"coins": self.coins.tolist(), "scores": self.scores.tolist()}

    def load(self, state: dict[str, list[float] | list[bool]] | None) -> None:
        """Takes up what a run had."""
        if state is None or len(state["scores"]) != self.count:
            raise InputError("this run began with another number of canaries; go on with as many.")
        self.coins, self.scores = np.array(state["coins"], dtype=bool), np.array(state["scores"])
