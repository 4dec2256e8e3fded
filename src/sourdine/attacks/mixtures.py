"""Private vectors out of their mixtures: what TextHide's encodings give away. No labels, no network.

An owner has n vectors v_i; who attacks sees T encodings of them,

    y_j = mask_j * (sum_i lambda_ji v_i + N),   lambda_j >= 0 with k nonzeros that sum to 1,

each mask one of m sign vectors (Huang et al. 2020), knows n, k and m, and has public vectors of other
texts from the same encoder. N is nothing (TextHide), or one draw for all (the literal Algorithm 1 of DP
instance encoding), or fresh for each encoding, which alone is a Gaussian mechanism.

1. Masks. Vectors of one encoder share a mean, so that encodings of one mask crowd in one direction:
   clustering by direction finds who has the same mask. Cluster c has the covariance D_c S D_c, with D_c
   its mask as a diagonal and S common to all: in the product of two such matrices, entry by entry,
   (D_a S D_a) o (D_b S D_b) = D_ab (S o S) D_ab, D_ab = D_a D_b. S o S has no negative entry, so its
   first eigenvector has no negative entry either (Perron), and the signs of the first eigenvector of
   the product are those of D_ab. The public covariance ties all clusters to the public frame.
2. Vertices. What is left is Y = Lambda V. After whitening in n - 1 dimensions and a coordinate of ones,
   encodings are Q' lambda with Q orthogonal, up to a scale and a shift: coefficients of different
   vectors are uncorrelated there, and skewed, being 0 for most encodings. So Q maximises
   sum max(z Q, 0)^3 over orthogonal matrices (third moments, as Anandkumar et al. 2014 for topic
   models); Q <- polar factor of Z' max(Z Q, 0)^2 climbs.
3. Coefficients and vectors in turn, by least squares, the k largest coefficients of each row kept and
   projected onto the simplex, until they stand still. Without noise that is exact.
4. Place. A noise that all encodings share moves all vectors by the same: the found ones are moved so
   that their mean is the public one, if it lies further from it than means of n vectors do. What is
   left of fresh noise is shrunk as the public covariance says (posterior mean under a normal law).

Edge cases: vectors that were hardly used, or copies of each other, are found badly; there is always an
answer of n rows, however wrong. `recovered.py` says what it is worth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.cluster import hierarchy

from sourdine import checks
from sourdine.attacks.target import Floats
from sourdine.errors import InputError
from sourdine.rng import Source, secure

Whole = np.ndarray[Any, np.dtype[np.int64]]
FEWEST = 100
"""Public vectors below which their mean and covariance say too little."""
_SMALL = 4
"""Centres of k-means for each mask: with one each, two masks often share a centre."""
_STARTS = 4
"""Where the climb to the largest third moments begins; one in three ends on a lower hill."""
_ROUNDS = 100
_STILL = 1e-6
"""Relative change below which an iteration has come to rest."""
_FAR = 3.0
"""How many deviations from the public mean the mean of n vectors may lie without being called moved."""


def reconstruct(
    encodings: Floats,
    *,
    sources: int,
    mixed: int,
    masks: int = 1,
    public: Floats,
    source: Source | None = None,
) -> Floats:
    """As many vectors as there are sources, in the frame of the public ones, in no order.

    encodings: T x d. mixed: k, how many vectors are in each. masks: m, where 1 stands for no mask.
    source: where k-means and the vertices start.
    """
    encodings, public = checked(encodings, sources, mixed, masks, public)
    rng = generator(source)
    if masks > 1:
        encodings = unmask(encodings, masks, public, rng)
    found, coefficients = factor(encodings, sources, mixed, rng)
    noise = spread(encodings - coefficients @ found, sources)
    found = placed(found, public, either=masks > 1)
    return denoised(found, coefficients, noise, public)


def generator(source: Source | None) -> np.random.Generator:
    """A numpy generator that starts where the source stands."""
    return np.random.default_rng(int.from_bytes((source or secure()).bytes(16)))


def checked(
    encodings: Floats, sources: int, mixed: int, masks: int, public: Floats
) -> tuple[Floats, Floats]:
    """Encodings and public vectors as arrays, if an attack can be made on them at all."""
    encodings, public = matrix("encodings", encodings), matrix("public", public)
    rows, width = encodings.shape
    check_sizes(rows, width, len(public), sources=sources, mixed=mixed, masks=masks)
    if public.shape[1] != width:
        raise InputError(
            f"encodings have {width} coordinates, public vectors {public.shape[1]}; take both from the "
            "same encoder."
        )
    return encodings, public


def check_sizes(rows: int, width: int, public: int, *, sources: int, mixed: int, masks: int) -> None:
    """Whether an attack can be made on so many encodings of this width; no vector is looked at."""
    if checks.whole("mixed", mixed) > checks.whole("sources", sources, least=2):
        raise InputError(f"{mixed} vectors cannot be mixed out of {sources}; mixed is at most sources.")
    if public < FEWEST:
        raise InputError(
            f"there are {public} public vectors, too few for a mean and a covariance; encode "
            f"{FEWEST} or more other texts."
        )
    if sources > width + 1:
        raise InputError(
            f"{sources} vectors in {width} dimensions are no simplex, and their mixtures have more "
            f"than one reading; this attack takes at most {width + 1}."
        )
    if rows <= sources or rows < 2 * checks.whole("masks", masks):
        raise InputError(
            f"{rows} encodings are too few for {sources} sources and {masks} masks: it takes more than "
            "one for each source and two for each mask. Collect more encodings."
        )


def matrix(name: str, values: Floats) -> Floats:
    """Finite numbers, one vector a row."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or 0 in found.shape:
        raise InputError(f"{name} has the shape {found.shape}; give one vector a row.")
    if not np.isfinite(found).all():
        raise InputError(f"{name} holds a value that is not finite; leave its row out.")
    return found


def unmask(encodings: Floats, masks: int, public: Floats, rng: np.random.Generator) -> Floats:
    """Encodings without their masks, in the public frame up to one sign for all (see `placed`)."""
    place = _clusters(encodings, masks, rng)
    groups = [encodings[place == one] for one in range(place.max() + 1)]
    centres = np.array([group.mean(axis=0) for group in groups])
    means = np.array([_unit(np.outer(centre, centre)) for centre in centres])
    shapes = np.array([_unit(np.cov(group.T, bias=True)) for group in groups])
    frame = _unit(np.cov(public.T))
    signs = np.array([_common(shape * frame) for shape in shapes])
    for _ in range(_ROUNDS):  # the clusters know each other's covariance better than the public does
        before = signs
        mean, shape = _together(means, signs), _together(shapes, signs)
        signs = np.array([_common(a * mean + b * shape) for a, b in zip(means, shapes, strict=True)])
        if (np.abs((signs * before).sum(axis=1)) == signs.shape[1]).all():
            break
    signs = signs * _common(_together(shapes, signs) * frame)
    # A covariance is blind to the sign of a whole mask; all centres must point the same way.
    way = np.linalg.svd(signs * centres, full_matrices=False)[2][0]
    signs = signs * np.where(signs * centres @ way < 0, -1.0, 1.0)[:, None]
    bare: Floats = encodings * signs[place]
    return bare


def factor(
    mixtures: Floats, sources: int, mixed: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Vectors and coefficients whose product the mixtures are, the vectors in no order."""
    mean = mixtures.mean(axis=0)
    start = skewed(mixtures, sources, mixed, rng)
    found, coefficients = refined(mixtures - mean, start, mixed)
    return found + mean, coefficients


def skewed(points: Floats, sources: int, mixed: int, rng: np.random.Generator) -> Floats:
    """Rough coefficients of points that are about linear in them, by their third moments."""
    left, size, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    kept = min(sources - 1, int((size > 1e-10 * size[0]).sum()))
    z = _with(left[:, :kept] * np.sqrt(len(left)), 1.0)
    tried = (_climbed(z, z[rng.choice(len(z), sources, replace=False)]) for _ in range(_STARTS))
    best = max(tried, key=lambda unmixed: float((np.maximum(unmixed, 0.0) ** 3).sum()))
    # The shift is small against the scale: the largest of a row over their sum are near enough.
    large = np.sort(best, axis=1)[:, [-mixed]]
    positive = np.where(best >= large, np.maximum(best, 1e-9), 0.0)
    rough: Floats = positive / positive.sum(axis=1, keepdims=True)
    return rough


def refined(mixtures: Floats, coefficients: Floats, mixed: int) -> tuple[Floats, Floats]:
    """Vectors by least squares from coefficients and coefficients from vectors, until they stand."""
    found = _explaining(mixtures, coefficients)
    for _ in range(_ROUNDS):
        before = found
        # A heavy column of ones: coefficients that do not sum to one are no reading of a mixture.
        heavy = 10 * np.abs(found).max()
        loose = _with(mixtures, heavy) @ np.linalg.pinv(_with(found, heavy), rcond=1e-6)
        coefficients = sparse(loose, mixed)
        found = _explaining(mixtures, coefficients)
        if np.linalg.norm(found - before) <= _STILL * np.linalg.norm(found):
            break
    return found, coefficients


def _explaining(mixtures: Floats, coefficients: Floats) -> Floats:
    """Vectors by least squares; one that no mixture uses becomes the worst explained mixture."""
    found = np.asarray(np.linalg.lstsq(coefficients, mixtures, rcond=None)[0], dtype=np.float64)
    unused = np.flatnonzero(coefficients.max(axis=0) <= 0)
    if len(unused):
        rest = ((mixtures - coefficients @ found) ** 2).sum(axis=1)
        found[unused] = mixtures[np.argsort(-rest)[: len(unused)]]
    return found


def sparse(coefficients: Floats, mixed: int) -> Floats:
    """The largest of each row, projected onto the simplex; the others 0."""
    kept = np.argpartition(-coefficients, mixed - 1, axis=1)[:, :mixed]
    values = np.take_along_axis(coefficients, kept, axis=1)
    # Euclidean projection: subtract what makes the positive rest sum to one (Duchi et al. 2008).
    falling = -np.sort(-values, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, mixed + 1)
    last = (falling > excess).sum(axis=1) - 1
    result = np.zeros_like(coefficients)
    np.put_along_axis(
        result, kept, np.maximum(values - excess[np.arange(len(values)), last][:, None], 0.0), axis=1
    )
    return result


def placed(found: Floats, public: Floats, *, either: bool) -> Floats:
    """Vectors with their mean where it must be; of both signs the likelier, where either may be.

    A mean further from the public one than _FAR deviations of a mean of n vectors was moved by noise
    that all encodings share. Then only the third moment E |x|^2 x of what is left tells the sign.
    """
    mean, middle = public.mean(axis=0), found.mean(axis=0)
    reach = _FAR * np.sqrt(np.var(public, axis=0).sum() / len(found))
    for sign in (1.0, -1.0) if either else (1.0,):
        if np.linalg.norm(sign * middle - mean) <= reach:
            return sign * found
    centred = found - middle
    if either and _third(centred) @ _third(public - mean) < 0:
        centred = -centred
    moved: Floats = centred + mean
    return moved


def denoised(found: Floats, coefficients: Floats, noise: float, public: Floats) -> Floats:
    """The posterior mean of each vector, normal with the public mean and covariance; `noise`: variance.

    A vector that least squares made of coefficients A has the error noise * (A'A)^-1 in its place.
    """
    mean = public.mean(axis=0)
    error = noise * np.diag(np.linalg.pinv(coefficients.T @ coefficients))
    size, axes = np.linalg.eigh(np.cov(public.T))
    size = np.maximum(size, 1e-12 * size[-1])
    shrunk: Floats = mean + ((found - mean) @ axes * (size / (size + error[:, None]))) @ axes.T
    return shrunk


def spread(rest: Floats, sources: int) -> float:
    """Variance of the noise in each coordinate, from what no mixture explains."""
    return float((rest**2).sum() / ((len(rest) - sources) * rest.shape[1]))


def _clusters(encodings: Floats, masks: int, rng: np.random.Generator) -> Whole:
    """Which encodings share a mask: small clusters by k-means, then those whose centres point alike."""
    from sklearn.cluster import KMeans  # noqa: PLC0415

    norms = np.linalg.norm(encodings, axis=1, keepdims=True)
    points = encodings / np.maximum(norms, 1e-300)
    small = min(_SMALL * masks, len(np.unique(points, axis=0)))
    model = KMeans(small, n_init=1, random_state=int(rng.integers(2**31))).fit(points)
    place: Whole = model.labels_
    if small > masks:
        tree = hierarchy.linkage(model.cluster_centers_, method="average", metric="cosine")
        place = hierarchy.fcluster(tree, masks, "maxclust")[place]
    numbered: Whole = np.unique(place, return_inverse=True)[1]
    return numbered


def _common(product: Floats) -> Floats:
    """The signs that make a product of two covariances, entry by entry, as positive as can be."""
    return np.where(np.linalg.eigh(product)[1][:, -1] < 0, -1.0, 1.0)


def _together(matrices: Floats, signs: Floats) -> Floats:
    """The mean of matrices D M D, each with its own signs."""
    total: Floats = np.einsum("ca,cab,cb->ab", signs, matrices, signs) / len(matrices)
    return total


def _climbed(z: Floats, start: Floats) -> Floats:
    turn, best = _polar(start.T), 0.0
    for _ in range(_ROUNDS):
        positive = np.maximum(z @ turn, 0.0)
        gain = float((positive**3).sum())
        if gain <= (1 + _STILL) * best:
            break
        best, turn = gain, _polar(z.T @ positive**2)
    unmixed: Floats = z @ turn
    return unmixed


def _polar(values: Floats) -> Floats:
    """The nearest matrix with orthonormal rows or columns."""
    left, _, right = np.linalg.svd(values, full_matrices=False)
    nearest: Floats = left @ right
    return nearest


def _with(values: Floats, constant: float) -> Floats:
    return np.hstack([values, np.full((len(values), 1), constant)])


def _unit(values: Floats) -> Floats:
    unit: Floats = values / max(float(np.linalg.norm(values)), 1e-300)
    return unit


def _third(centred: Floats) -> Floats:
    third: Floats = (centred * (centred**2).sum(axis=1, keepdims=True)).mean(axis=0)
    return third
