"""TextHide, the published scheme, maps, noises and heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from sourdine.budget import Budget
from sourdine.encoding import (
    Gaussian,
    IidLaplace,
    InstanceEncoder,
    Paper,
    Public,
    RadialLaplace,
    TextHide,
    accuracy,
    autoencoder,
    linear,
    mlp,
    noise_aware,
    pca,
    random_projection,
    whole,
)
from sourdine.encoding.encodings import Encodings
from sourdine.encoding.mixing import Mixing
from sourdine.encoding.noises import exponentials
from sourdine.encoding.release import write_plain
from sourdine.encoding.vectors import Shape
from sourdine.errors import InputError
from sourdine.rng import seeded

CLASSES = ("no", "yes")


def blobs(count: int, width: int = 12, seed: int = 0) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, 2, count)
    x = 0.5 * chance.standard_normal((count, width)) / math.sqrt(width)
    x[:, 0] += 0.5 * (2 * labels - 1)
    return x, labels


# TextHide


def test_texthide_mixes_labels_and_masks() -> None:
    x, y = blobs(50)
    found = TextHide(3, 4).encode(x, y, CLASSES, outputs=120, source=seeded(1))
    assert found.vectors.shape == (120, 12) and found.labels.sum(1) == pytest.approx(1)
    assert "no differential privacy" in found.about["privacy"]
    assert found.variance == 0
    only = TextHide(1, 1).encode(x, y, CLASSES, source=seeded(1))
    assert np.abs(only.vectors) == pytest.approx(np.abs(x))
    assert len(np.unique(np.sign(only.vectors / x), axis=0)) == 1  # one mask
    many = TextHide(8, 1).encode(x, y, CLASSES, source=seeded(1))
    assert 2 <= len(np.unique(np.sign(many.vectors / x), axis=0)) <= 8


def test_texthide_with_public_text() -> None:
    x, y = blobs(50)
    public = np.full((30, 12), 7.0)
    found = TextHide(1, 2).encode(x, y, CLASSES, public=public, source=seeded(1))
    share = 1 - found.labels.sum(1)  # public text has no label
    assert (share > 0).all() and (share < 1).all()
    assert np.abs(found.vectors).mean() > 1


def test_claimed_effort() -> None:
    assert TextHide(16, 4).claimed_effort(100) == 10_000
    with pytest.raises(InputError, match="too few"):
        TextHide(16, 4).encode(np.zeros((3, 2)), np.zeros(3, dtype=int), CLASSES)


def test_folders_without_a_certificate_say_so(tmp_path: Any) -> None:
    x, y = blobs(30)
    write_plain(tmp_path / "a", TextHide().encode(x, y, CLASSES))
    write_plain(tmp_path / "b", Paper(1.0).encode(x, y, CLASSES))
    for name in "ab":
        assert (tmp_path / name / "README.md").read_text().startswith("# NOT PRIVATE")
        assert not (tmp_path / name / "certificate.json").exists()
        Encodings.load(tmp_path / name)
    assert "labels are released as they are" in (tmp_path / "b" / "README.md").read_text()


# The published scheme


def test_published_noise() -> None:
    assert Paper(0.1).scale == pytest.approx(18.3, abs=0.05)  # 30.7 is needed even for Delta = C
    assert Paper(2.0, law="laplace", clip=3.0).scale == 3
    assert Paper(1.0).guarantee(Paper(1.0).draw(10, 10, seeded(0)), 5).claimed == 1


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("noise", ["shared", "fresh"])
@pytest.mark.parametrize("coefficients", ["absolute", "signed"])
def test_guarantees_come_with_reasons(law: str, noise: str, coefficients: str) -> None:
    paper = Paper(1.0, law=law, noise=noise, coefficients=coefficients)
    claim = paper.guarantee(paper.draw(100, 500, seeded(0)), 384)
    assert claim.total == claim.labels == math.inf
    assert claim.features > 1
    assert (claim.features == math.inf) == (noise == "shared")
    said = str(claim)
    for word in ("Theorem 3" if law == "laplace" else "Theorem 4", "labels are released as they are"):
        assert word in said
    assert ("signed" in said) == (coefficients == "signed")


def test_shared_noise_hides_nothing_however_it_is_mixed() -> None:
    for mixed in (1, 2):
        paper = Paper(1.0, noise="shared", mixed=mixed)
        claim = paper.guarantee(paper.draw(100, 500, seeded(0)), 8)
        assert claim.features == math.inf and "share one noise" in str(claim)
    same = Mixing(np.tile([[0, 1]], (9, 1)), np.tile([[0.5, 0.5]], (9, 1)), 3)
    one = Mixing(same.places[:1], same.coefficients[:1], 3)
    claims = [Paper(1.0, noise="shared", mixed=2).guarantee(x, 8) for x in (same, one)]
    assert claims[0].features == claims[1].features < 1  # to the letter: one output, nine times


def test_one_output_is_not_called_many() -> None:
    paper = Paper(1.0)
    assert "in many of" not in str(paper.guarantee(paper.draw(10, 1, seeded(0)), 8))


def test_the_published_laplace_is_27_7_at_768() -> None:
    paper = Paper(1.0, law="laplace", mixed=1)
    claim = paper.guarantee(paper.draw(1, 1, seeded(0)), 768)
    assert claim.features == pytest.approx(27.7, abs=0.05)


def test_published_encodings() -> None:
    x, y = blobs(60)
    shared = Paper(0.1, noise="shared").encode(x, y, CLASSES, source=seeded(1))
    fresh = Paper(0.1).encode(x, y, CLASSES, source=seeded(1))
    assert shared.vectors.std(0).max() < 1 < fresh.vectors.std(0).min()
    assert "claimed" in shared.about["privacy"]
    with pytest.raises(InputError, match="law"):
        Paper(1.0, law="cauchy")


# Maps


@pytest.mark.parametrize("make", [pca, random_projection, autoencoder])
def test_maps(make: Any) -> None:
    x, _ = blobs(300)
    found = make(x, 4) if make is pca else make(x, 4, source=seeded(1))
    assert found(x).shape == (300, 4) and found.dimension == 4
    assert np.isfinite(found(x)).all()
    again = type(found).from_tensors(found.name, found.tensors())
    assert np.array_equal(again(x), found(x))
    with pytest.raises(InputError, match="made for 12"):
        found(np.zeros((2, 3)))
    with pytest.raises(InputError, match="too few"):
        make(x[:4], 4)
    with pytest.raises(InputError, match="at most"):
        make(x, 13)
    with pytest.raises(InputError, match="finite"):
        make(np.full((20, 3), np.nan), 2)


def test_pca_keeps_what_varies() -> None:
    x, _ = blobs(300)
    x[:, 5] *= 20
    kept = pca(x, 1)(x)[:, 0]
    assert abs(np.corrcoef(kept, x[:, 5])[0, 1]) > 0.999
    assert whole(x)(x).mean(0) == pytest.approx(0, abs=1e-12)


def test_an_autoencoder_learns() -> None:
    """What it keeps of points on a curve says where on the curve they are."""
    t = np.random.default_rng(0).uniform(-1, 1, 1000)
    x = np.stack([t, t**2, np.sin(2 * t), np.zeros_like(t)], axis=1)
    kept = autoencoder(x, 1, source=seeded(2))(x)[:, 0]
    assert abs(np.corrcoef(kept, t)[0, 1]) > 0.95


# Noise


def test_laws_of_noise() -> None:
    shape = Shape(20, 1.0)
    for noise in (Gaussian(), IidLaplace(), RadialLaplace()):
        drawn = noise.add(np.zeros((4000, 20)), 0.7, seeded(4))
        assert drawn.var() == pytest.approx(noise.variance(0.7, shape), rel=0.03)
        assert abs(drawn.mean()) < 0.05 * drawn.std()
        grid = 2.0 ** (math.floor(math.log2(0.7)) - 10)
        assert np.allclose(drawn / grid, np.round(drawn / grid))
    drawn = RadialLaplace().add(np.zeros((4000, 20)), 0.7, seeded(4))
    radius = np.linalg.norm(drawn, axis=1)
    assert radius.mean() == pytest.approx(0.7 * 20, rel=0.02)
    assert radius.var() == pytest.approx(0.49 * 20, rel=0.1)
    # A direction whose numbers lay on a grid would be zero in some, and show the record's as they are.
    near = np.abs(RadialLaplace().add(np.zeros((20_000, 32)), 1.0, seeded(6)).ravel()) * 1024
    cells = [int((np.round(near) == cell).sum()) for cell in range(6)]
    assert max(cells[1:]) < 2 * min(cells[1:]) and cells[0] < max(cells[1:])
    sizes = exponentials(100_000, seeded(5))
    assert sizes.mean() == pytest.approx(1, abs=0.02) and sizes.min() > 0


# Heads


def noisy(count: int, deviation: float, labels: Any = None) -> tuple[Encodings, Any, Any]:
    x, y = blobs(count)
    y = y if labels is None else labels
    encoder = InstanceEncoder(
        lambda texts: x,
        Budget(8, 1e-6, adjacency="replace-one"),
        classes=CLASSES,
        labels=Public(),
        source=seeded(6),
    )
    found = encoder.encode_features(x, [CLASSES[label] for label in y])
    if not deviation:
        found = Encodings(x, found.labels, CLASSES, 0.0, None, found.about)
    return found, *blobs(1000, seed=9)


@pytest.mark.parametrize("head", [mlp, linear, noise_aware])
def test_heads_learn_from_clean_vectors(head: Any) -> None:
    found, x, y = noisy(800, 0.0)
    assert accuracy(head(found), found, x, y) > 0.95


def test_who_knows_the_noise_learns_more() -> None:
    found, x, y = noisy(3000, 1.0)
    knowing = accuracy(noise_aware(found), found, x, y)
    public = accuracy(noise_aware(found, blobs(500, seed=4)[0]), found, x, y)
    assert min(knowing, public) > 0.93


def test_heads_need_encodings() -> None:
    found, _, _ = noisy(800, 1.0)
    one = Encodings(found.vectors[:1], found.labels[:1], CLASSES, 1.0, None, {})
    for head in (mlp, linear, noise_aware):
        with pytest.raises(InputError, match="too few"):
            head(one)


def test_soft_labels_are_learnt_from() -> None:
    x, y = blobs(800)
    hide = TextHide(1, 3)
    pool = hide.draw_masks(12, seeded(2))
    found = hide.encode(x, y, CLASSES, outputs=2000, pool=pool, source=seeded(3))
    other, labels = blobs(500, seed=8)
    assert accuracy(linear(found), found, pool * other, labels) > 0.95  # a mask at the test too
