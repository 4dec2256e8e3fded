"""Training without sampling: records in a fixed order, and noise that later steps take back in part.

Step t uses x_t + (C^-1 z)_t: the sum of its lot, and noise made of independent draws z_1, ..., z_t with
deviation noise_multiplier * clip. C is lower triangular with few bands: C[t, s] = c_(t-s) where
0 <= t - s < bands, else 0. A model is moved by sums of steps, in which such noise cancels in part
(Kairouz et al. 2021; Denisov et al. 2022; Choquette-Choo et al. 2023).

Theorem. Let each record take part in at most k steps, any two at least `separation` >= bands apart, by
a schedule that nothing released decides, with contributions of norm at most clip that may depend on all
that was released before. Then all steps together are mu-GDP under zero-out with mu = S /
noise_multiplier, where S^2 is the largest |C[:, i_1]|^2 + ... + |C[:, i_m]|^2 of any such schedule
i_1 < ... < i_m; under replace-one mu doubles. No smaller mu holds.

Proof. C is known and invertible, so x + C^-1 z says what C x + z says. A record shifts row t of C x by
d_t = sum_j C[t, i_j] g_j, which the earlier outputs determine, as C is lower triangular. Columns that
are `bands` or more apart share no row, so sum_t |d_t|^2 = sum_j |C[:, i_j]|^2 |g_j|^2 <= (S clip)^2
on every path. Let one more row, to be ignored, bring the sum to (S clip)^2 exactly. The privacy loss
is then a sum of terms that, given the past, are normal with variance v_t = |d_t|^2 /
(noise_multiplier clip)^2 and mean v_t / 2 (-v_t / 2 on the neighbour). As sum_t v_t = mu^2 is constant,
taking expectations from the last term to the first gives E exp(i a loss) = exp(i a mu^2 / 2 - a^2 mu^2
/ 2) for every a: the loss is N(mu^2 / 2, mu^2), which is that of N(mu, 1) against N(0, 1). Equal
contributions of norm clip at the worst schedule attain it.

The maximum. |C[:, i]|^2 = c_0^2 + c_1^2 + ..., cut where the steps end, does not rise with i, and the
j-th step of a schedule is (j - 1) separation or later: the earliest schedule is the worst, and only its
last column can be cut (`CorrelatedEvent.sensitivity`).

There is no amplification, so who was in which lot need not stay secret. Against Poisson lots this pays
for few epochs or a large epsilon.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import CorrelatedEvent, Event, GaussianEvent
from sourdine.rng import Source
from sourdine.sgd.sampling import Indices, Lots

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
_MOST_WORK = 1e10  # multiplications in the search for coefficients: some 30 seconds


@dataclass(frozen=True)
class Bands:
    """How the noise of `steps` steps hangs together, for records that come back now and then.

    A record takes part in at most `participations` steps, any two at least `separation` apart. Unless
    they are given, the coefficients c_0 >= c_1 >= ... >= 0 of C are chosen for the smallest mean error
    of the sums of the first t steps, t = 1, ..., steps (McKenna 2024). Their squares sum to 1: a noise
    multiplier costs what it costs with independent noise, which is bands = 1, or a little less.

    Guarantee: that of the theorem above. It holds for any coefficients; choosing them spends nothing.
    """

    steps: int
    bands: int
    participations: int
    separation: int
    coefficients: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "bands", "participations", "separation"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name)))
        if self.bands > self.steps:
            raise InputError(
                f"{self.bands} bands are more than the {self.steps} steps; use at most {self.steps}."
            )
        if self.separation < self.bands:
            raise InputError(
                f"a record may come back after {self.separation} steps, but {self.bands} bands need "
                f"{self.bands} or more: use at most {self.separation} bands."
            )
        chosen = tuple(self.coefficients) or best_coefficients(self.steps, self.bands)
        if len(chosen) != self.bands:
            raise InputError(f"{len(chosen)} coefficients were given for {self.bands} bands.")
        object.__setattr__(self, "coefficients", chosen)
        object.__setattr__(self, "coefficients", self.event(1.0).coefficients)  # checked
        if any(np.diff(self.coefficients) > 0):
            raise InputError(
                "the coefficients rise, and the noise of late steps could grow without end; give "
                "numbers that do not rise, or none to have them chosen."
            )

    @property
    def sensitivity(self) -> float:
        """S: how far one record moves C x, in units of the clip."""
        return self.event(1.0).sensitivity

    @property
    def error(self) -> float:
        """Root mean square error of the sums of the first t steps, in clips, at a cost of mu = 1."""
        return self.sensitivity * math.sqrt(_squares(np.array(self.coefficients), self.steps))

    def event(
        self, noise_multiplier: float, steps: int | None = None, *, own_schedule: bool = False
    ) -> CorrelatedEvent:
        """What all steps cost, or the first `steps` of them with the same coefficients.

        `own_schedule` says that a record's steps do not depend on which other records there are.
        """
        count = self.steps if steps is None else checks.whole("steps", steps)
        if count > self.steps:
            raise InputError(f"{count} steps are more than the {self.steps} that were planned.")
        return CorrelatedEvent(
            noise_multiplier,
            self.coefficients,
            count,
            self.participations,
            self.separation,
            own_schedule,
        )


class CorrelatedNoise:
    """Makes independent noise correlated, step by step: y_t = (z_t - sum_(j >= 1) c_j y_(t-j)) / c_0.

    That solves C y = z row by row and remembers the last bands - 1 results: as many copies of a model.
    Rounding is as if each z_t were moved by some units in the last place of what is added up.

    The state is secret: it holds noise of the past, and whoever knows it subtracts it from what was
    released. Keep it outside the run folder and destroy it at the end. Whoever goes back to a saved
    state releases the steps after it once more with other noise, which the event does not cover: save
    the state of a step before anything of that step is released, or charge for both.
    """

    def __init__(self, bands: Bands) -> None:
        self.bands = bands
        self.steps = 0
        """Steps made so far."""
        self._past: deque[list[Tensor]] = deque(maxlen=bands.bands - 1)

    def step(self, fresh: Sequence[Tensor]) -> list[Tensor]:
        """The noise of the next step from independent noise, of which nothing is changed."""
        if self.steps >= self.bands.steps:
            raise InputError(
                f"all {self.bands.steps} planned steps were made, and the event covers no more; plan "
                "more steps at the start."
            )
        self._check(fresh)
        first, *rest = self.bands.coefficients
        result = [drawn.clone() for drawn in fresh]
        for coefficient, past in zip(rest, reversed(self._past), strict=False):
            for noise, before in zip(result, past, strict=True):
                noise.sub_(before.to(noise.device), alpha=coefficient)
        for noise in result:
            noise.div_(first)
        if rest:  # a copy: whoever changes the noise in place must not change the memory of it
            self._past.append([noise.clone() for noise in result])
        self.steps += 1
        return result

    def state_dict(self) -> dict[str, Any]:
        """All that the next step needs. Secret: see above."""
        return {
            "steps": self.steps,
            "coefficients": list(self.bands.coefficients),
            "past": [[noise.clone() for noise in past] for past in self._past],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the same bands."""
        missing = {"steps", "coefficients", "past"} - state.keys()
        if missing:
            raise InputError(
                f"this is no state of correlated noise: {', '.join(sorted(missing))} lack."
            )
        if tuple(state["coefficients"]) != self.bands.coefficients:
            raise InputError(
                "the saved noise was made with other coefficients; give Bands those of the event that "
                "was charged."
            )
        steps = checks.whole("steps", state["steps"], least=0)
        if steps > self.bands.steps:
            raise InputError(f"the state is of step {steps}, past the {self.bands.steps} planned ones.")
        if len(state["past"]) != min(steps, self.bands.bands - 1):
            raise InputError("noise of some past steps is missing in this state: it is damaged.")
        self.steps = steps
        self._past.clear()
        self._past.extend([noise.clone() for noise in past] for past in state["past"])

    def __repr__(self) -> str:
        return f"<correlated noise of {self.bands.bands} bands after {self.steps} steps>"

    def _check(self, fresh: Sequence[Tensor]) -> None:
        if any(not drawn.is_floating_point() or drawn.dtype.itemsize < 4 for drawn in fresh):
            raise InputError(
                "correlated noise needs 32 bits or more, as rounding errors come back in later steps; "
                "draw it in float32 and round what is released."
            )
        if self._past and [(d.shape, d.dtype) for d in fresh] != [
            (past.shape, past.dtype) for past in self._past[-1]
        ]:
            raise InputError(
                "the noise has other shapes or types than in the step before; draw it for the same "
                "parameters in the same order at every step."
            )


@dataclass(frozen=True)
class FixedLots(Lots):
    """Records in their own order, cut into ceil(records / lot_size) blocks: one a step, then again.

    Sizes of blocks differ by one at most. A record takes part in every `blocks`-th step, so noise of up
    to `blocks` bands is accounted for. Nothing is drawn, and no lot has to stay secret. A record is the
    unit of privacy: group the rows of a user first. What records say must not decide their order.

    Guarantee: that of `Bands` for `steps` steps in all, under zero-out and replace-one. Not under
    add-remove: one record more or less moves others to other blocks.
    """

    records: int
    lot_size: float
    steps: int
    bands: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lot_size != int(self.lot_size):
            raise InputError(f"fixed lots have a whole size, not {self.lot_size:g}.")
        object.__setattr__(self, "steps", checks.whole("steps", self.steps))
        object.__setattr__(self, "bands", checks.whole("bands", self.bands))
        if self.bands > self.blocks:
            raise InputError(
                f"a record comes back after {self.blocks} steps, but {self.bands} bands need "
                f"{self.bands} or more: use at most {self.blocks} bands, or smaller lots."
            )
        self.plan()  # refuses more bands than steps

    @property
    def blocks(self) -> int:
        """Steps of one round through all records."""
        return math.ceil(self.records / self.lot_size)

    def plan(self) -> Bands:
        """The bands that the noise of these lots has to have."""
        return Bands(self.steps, self.bands, math.ceil(self.steps / self.blocks), self.blocks)

    def draw(self, step: int, source: Source) -> Indices:
        block = step % self.blocks
        return np.arange(block * self.records // self.blocks, (block + 1) * self.records // self.blocks)

    def event(self, release: Event, steps: int) -> Event:
        if not isinstance(release, GaussianEvent) or release.adjacency is not None:
            raise InputError(
                "fixed lots are accounted for with Gaussian noise relative to one contribution only."
            )
        return self.plan().event(release.noise_multiplier, steps)


@functools.lru_cache(maxsize=64)
def best_coefficients(steps: int, bands: int) -> tuple[float, ...]:
    """Coefficients with squares that sum to 1, for a small mean error of the sums of the first t steps.

    The errors are A C^-1 z with A the sums, so the mean of their squares is |A C^-1|_F^2 / steps; it is
    made small times |c|^2, from c_j = binom(2j, j) / 4^j on, the bands of the square root of A (Kalinin
    and Lampert 2024), by L-BFGS with the gradient of McKenna 2024. Where that would take minutes, the
    start is what is used.
    """
    past = np.arange(1, bands)
    start = np.cumprod(np.concatenate([[1.0], (2 * past - 1) / (2 * past)]))
    tries = int(_MOST_WORK / (steps * bands))
    found = start
    if bands > 1 and tries >= 20:  # about ten are needed
        from scipy import optimize  # noqa: PLC0415 (half a second, for few)

        search = optimize.minimize(
            lambda tail: _log_error(np.concatenate([[1.0], tail]), steps),
            start[1:],
            jac=True,
            bounds=[(0.0, 1.0)] * (bands - 1),
            method="L-BFGS-B",
            options={"maxfun": tries},
        )
        # They fall by themselves; where the search is off by a rounding error, they are made to.
        found = np.minimum.accumulate(np.concatenate([[1.0], search.x]))
    return tuple((found / math.sqrt(math.fsum(found**2))).tolist())


def _sums(c: Floats, steps: int) -> Floats:
    """The first column of A C^-1, which is Toeplitz as well: C^-1 applied to ones."""
    from scipy import signal  # noqa: PLC0415

    return np.asarray(signal.lfilter([1.0], c, np.ones(steps)))


def _squares(c: Floats, steps: int) -> float:
    """|A C^-1|_F^2 / steps: entry s of the first column stands steps - s times in the matrix."""
    return float(np.arange(steps, 0, -1.0) @ _sums(c, steps) ** 2) / steps


def _log_error(c: Floats, steps: int) -> tuple[float, Floats]:
    """ln(|A C^-1|_F^2 |c|^2) and its gradient in c_1, c_2, ..., by one solution with C^T."""
    from scipy import signal  # noqa: PLC0415

    sums = _sums(c, steps)
    weighted = np.arange(steps, 0, -1.0) * sums
    error, norm = float(sums @ weighted), float(c @ c)
    back = signal.lfilter([1.0], c, weighted[::-1])[::-1]
    lagged = signal.correlate(back, sums, method="fft")[steps : steps + len(c) - 1]
    return math.log(error * norm), np.asarray(2 * c[1:] / norm - 2 * lagged / error)
