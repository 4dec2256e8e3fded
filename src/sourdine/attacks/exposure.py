"""Exposure: how many bits of a planted secret a language model gives away.

    exposure = log2 |R| - log2 rank,

where R is the set of all texts that the secret might have been, and its rank is its place among them
from the least surprising to the model on (Carlini et al. 2019, definition 4). It goes from 0, nothing
learnt, to log2 |R|: the first guess is right.

Guarantee: a secret drawn uniformly from R that the model never met has exposure e or more with
probability at most 2^-e. Proof: given the model, the secret is uniform on R. Ties are put first, so
that rank(s) = #{r in R: surprise(r) <= surprise(s)}, and at most k texts of R have a rank of k or less;
k = |R| 2^-e. The same holds for a rank among a random sample of R, with the size of the sample and the
secret together in place of |R|. It does not hold for what is extrapolated.

Surprise is the log perplexity of a whole text in bits, -log2 Pr[text]: low for what was memorised, as
in the paper, unlike a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from sourdine import checks
from sourdine.attacks.secrets import Canary
from sourdine.attacks.target import Floats, Predicts
from sourdine.errors import InputError
from sourdine.rng import Source, secure

FEWEST = 50
"""Candidates below which no curve is fitted to their surprise."""
_DOUBT = 0.01
"""P-value of the Kolmogorov-Smirnov test below which a fit is called poor."""
_STEEPEST = 100.0
"""Shape past which a skew normal curve is half of a normal one, cut off at its location."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(100)
_DEEP = 1e-6
"""Below this probability the tail is integrated: there a difference of distribution functions is 0."""


@dataclass(frozen=True)
class Rank:
    """The place of a secret among candidates, itself one of them."""

    rank: int
    candidates: int

    def __post_init__(self) -> None:
        checks.whole("rank", self.rank)
        if self.rank > self.candidates:
            raise InputError(f"rank is {self.rank}, but there are only {self.candidates} candidates.")

    @property
    def bits(self) -> float:
        """The exposure, between 0 and log2 of the number of candidates."""
        return math.log2(self.candidates) - math.log2(self.rank)


@dataclass(frozen=True)
class Extrapolated:
    """What a curve through the surprise of some candidates says of one that lies beyond them.

    bits: -log2 F(surprise), F a skew normal distribution function. doubt: p-value of the
    Kolmogorov-Smirnov test of the fit; as the curve was fitted to the same numbers it is too large, so
    that a small one is the surer sign. poor: what is wrong with the fit, or None.
    """

    bits: float
    shape: float
    location: float
    scale: float
    doubt: float
    poor: str | None


@dataclass(frozen=True)
class Measured:
    """The exposure of one canary. exact: whether it was ranked among all candidates of its format."""

    canary: Canary
    surprise: float
    ranked: Rank
    extrapolated: Extrapolated | None
    exact: bool

    @property
    def bits(self) -> float:
        """The best number there is: exact; else extrapolated by a fair fit; else by rank, which is low.

        Never above log2 of the number of candidates, which is all that there is to give away.
        """
        if self.exact or self.extrapolated is None or self.extrapolated.poor is not None:
            return self.ranked.bits
        return min(self.extrapolated.bits, math.log2(self.canary.format.size))


def rank(surprise: float, others: Floats | Sequence[float]) -> Rank:
    """The place of a secret among others, where a tie counts as a place behind: 1 + #{others <= it}.

    Edge cases: without others the rank is 1 of 1 and the exposure 0. NaN is refused; an infinite
    surprise is a text that the model holds impossible.
    """
    found = _numbers(others)
    if math.isnan(surprise):
        raise InputError("a surprise is NaN; the target's probabilities are damaged.")
    return Rank(1 + int(np.sum(found <= surprise)), 1 + len(found))


def extrapolate(surprise: float, others: Floats | Sequence[float]) -> Extrapolated:
    """Exposure by a skew normal curve fitted to sampled candidates (Carlini et al. 2019, section 4.3).

    It carries no guarantee: it says what the exposure would be if the curve went on as fitted. It is
    not bounded by log2 |R|.

    Edge cases: at least FEWEST finite and not all equal candidates are needed.
    """
    found = _numbers(others)
    if not fits(found) or not math.isfinite(surprise):
        raise InputError(
            f"no curve can be fitted to {len(found)} candidates; it takes {FEWEST} or more with a "
            "finite surprise that is not the same for all. Use the rank."
        )
    shape, location, scale = (float(number) for number in stats.skewnorm.fit(found))
    curve = stats.skewnorm(shape, location, scale)
    doubt = float(stats.kstest(found, curve.cdf).pvalue)
    poor = None
    if doubt < _DOUBT:
        poor = (
            "the surprise of the candidates does not follow a skew normal curve (Kolmogorov-Smirnov "
            f"p = {doubt:.2g}): do not trust what is extrapolated; rank more candidates."
        )
    if abs(shape) > _STEEPEST:
        poor = (
            "the curve ends where the candidates end (its shape grows without bound), so that it says "
            "nothing of what lies beyond: do not trust what is extrapolated; rank more candidates."
        )
    bounded = max(-_STEEPEST, min(_STEEPEST, shape))
    bits = -_log_below((surprise - location) / scale, bounded) / math.log(2)
    return Extrapolated(max(0.0, bits), shape, location, scale, doubt, poor)


def fits(others: Floats) -> bool:
    """Whether a curve can be fitted at all."""
    return len(others) >= FEWEST and bool(np.isfinite(others).all()) and float(np.ptp(others)) > 0


def surprises(target: Predicts, texts: Sequence[str], batch: int = 1024) -> Floats:
    """The log perplexity of each text in bits."""
    found: list[float] = []
    for start in range(0, len(texts), batch):
        logs = target.token_logs(texts[start : start + batch])
        found += [-float(one.log.sum()) / math.log(2) for one in logs]
    return np.array(found, dtype=np.float64)


def measure(
    target: Predicts, canaries: Sequence[Canary], *, most: int = 10_000, source: Source | None = None
) -> list[Measured]:
    """The exposure of each canary: its rank among all candidates, or among `most` drawn at random."""
    source = source or secure()
    most = checks.whole("most", most)
    found = []
    for canary in canaries:
        other = canary.format.others(canary.number, most, source)
        numbers = surprises(target, [canary.text, *other])
        mine, others = float(numbers[0]), numbers[1:]
        curve = extrapolate(mine, others) if fits(others) and math.isfinite(mine) else None
        every = len(other) == canary.format.size - 1
        found.append(Measured(canary, mine, rank(mine, others), curve, every))
    return found


def _numbers(others: Floats | Sequence[float]) -> Floats:
    found = np.asarray(others, dtype=np.float64)
    if found.ndim != 1 or np.isnan(found).any():
        raise InputError("the surprise of the candidates must be a list of numbers without NaN.")
    return found


def _log_below(z: float, shape: float) -> float:
    """log F(z) of the standard skew normal, f(t) = 2 phi(t) Phi(shape t), also far down its tail.

    log f is concave, so left of z, where it rises with slope g > 0, f(z - u) <= f(z) e^(-g u): the
    integral over 0 < u < 60 / g misses less than e^-60 of f(z) / g. For shapes up to _STEEPEST, g is
    positive wherever F is below _DEEP. Where g is large, F is f(z) / g but for a share of
    (1 + shape^2) / g^2.
    """
    direct = float(stats.skewnorm.cdf(z, shape))
    if direct > _DEEP:
        return math.log(min(1.0, direct))

    def log_density(t: Floats) -> Floats:
        log: Floats = math.log(2) + stats.norm.logpdf(t) + special.log_ndtr(shape * t)
        return log

    at = float(log_density(np.array([z]))[0])
    y = shape * z
    # phi(y) / Phi(y), which is -y far down, where both logarithms are too large to subtract.
    mills = -y if y < -1e3 else math.exp(stats.norm.logpdf(y) - special.log_ndtr(y))
    slope = -z + shape * mills
    if slope > 1e4:
        return at - math.log(slope)
    half = 30 / slope
    total = float(np.sum(_WEIGHTS * np.exp(log_density(z - half * (1 + _NODES)) - at)))
    return at + math.log(half * total)
