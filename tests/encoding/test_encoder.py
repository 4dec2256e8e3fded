"""Plans, charges, modes and labels of the encoder; what it refuses."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from sourdine.accounting import curve, gaussian_sigma
from sourdine.budget import Budget
from sourdine.encoding import (
    Central,
    Encodings,
    Gaussian,
    IidLaplace,
    Inside,
    InstanceEncoder,
    L1Laplace,
    Public,
    RadialLaplace,
    Randomized,
    Secret,
    Stream,
    draw_mixing,
    pca,
    pooled,
)
from sourdine.encoding.labels import unbiased
from sourdine.encoding.mixing import Mixing, PoissonRows
from sourdine.encoding.release import About, seal
from sourdine.encoding.vectors import Shape, clipped, joined
from sourdine.errors import BudgetError, InputError, NotAccountable
from sourdine.events import GaussianEvent
from sourdine.ledger import Ledger
from sourdine.rng import secure, seeded

pytestmark = pytest.mark.usefixtures("any_epsilon")

CLASSES = ("no", "yes")
REPLACE = Budget(8, 1e-5, adjacency="replace-one")


def rows(count: int = 40, width: int = 6) -> Any:
    return np.random.default_rng(1).standard_normal((count, width))


def made(budget: Budget | Ledger = REPLACE, **settings: Any) -> InstanceEncoder:
    settings.setdefault("source", seeded(3))
    return InstanceEncoder(lambda texts: rows(len(texts)), budget, classes=CLASSES, **settings)


def answers(count: int = 40) -> list[str]:
    return [CLASSES[place % 2] for place in range(count)]


# How far records move


@pytest.mark.parametrize(
    ("adjacency", "two", "one"),
    [
        ("replace-one", math.sqrt(4 * 9 + 2 * 4), 2 * (3 * math.sqrt(5) + 2)),
        ("zero-out", math.sqrt(9 + 4), 3 * math.sqrt(5) + 2),
    ],
)
def test_moves(adjacency: str, two: float, one: float) -> None:
    shape = Shape(5, 3.0, classes=2, weight=2.0)
    assert shape.moved(adjacency) == pytest.approx(two)
    assert shape.moved(adjacency, norm=1) == pytest.approx(one)
    assert Shape(5, 3.0, norm=1, classes=2, weight=2.0).moved("zero-out", norm=1) == pytest.approx(5)


def test_no_pair_of_records_is_further_apart() -> None:
    chance = np.random.default_rng(0)
    for norm in (1, 2):
        shape = Shape(5, 0.7, norm=norm, classes=3, weight=0.4)
        z = joined(10 * chance.standard_normal((300, 5)), chance.integers(0, 3, 300), shape)
        apart = z[:150] - z[150:]
        assert np.linalg.norm(apart, axis=1).max() <= shape.moved("replace-one")
        assert np.abs(apart).sum(1).max() <= shape.moved("replace-one", norm=1)
        assert np.linalg.norm(z, axis=1).max() <= shape.moved("zero-out")


def test_clipping_takes_whatever_comes() -> None:
    x = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1], [np.inf, 1], [1e300, 1e300], [0, 0]])
    found = clipped(x, 1.0)
    assert np.linalg.norm(found.astype(np.float32), axis=1).max() <= 1
    assert np.linalg.norm(clipped(np.full((1, 2), 1.7e308), 1e-12)) <= 1e-12
    assert np.allclose(found[1], x[1])
    assert np.allclose(np.linalg.norm(found, axis=1), [1, 0.5, 0, 0, 1, 0], atol=1e-5)


# Plans


def test_local_noise_is_that_of_the_analytic_gaussian() -> None:
    plan = made(labels=Public(), clip=0.5).plan(100, 6)
    assert plan.scale == pytest.approx(2 * 0.5 * gaussian_sigma(8, 1e-5), rel=2e-4)
    assert curve(plan.event, "replace-one").epsilon(1e-5).upper <= 8


@pytest.mark.parametrize("labels", [Public(), Inside(), Randomized()], ids=str)
@pytest.mark.parametrize("noise", [Gaussian(), IidLaplace(), L1Laplace(), RadialLaplace()], ids=str)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_every_plan_fits_its_budget_and_uses_it(labels: Any, noise: Any, adjacency: str) -> None:
    budget = Budget(3, 1e-5, adjacency=adjacency)
    encoder = made(budget, labels=labels, noise=noise)
    found = encoder.encode_features(rows(), answers())
    spent = encoder.ledger.spent().epsilon
    # A pure release beside a randomized answer is added up with delta: a little is left.
    assert 2.5 < spent <= 3
    assert len(found) == 40
    with pytest.raises(BudgetError):
        encoder.encode_features(rows(), answers())


def test_central_noise_pays_for_the_heaviest_column() -> None:
    encoder = made(labels=Public(), mode=Central(3, outputs=50))
    plan = encoder.plan(10, 6)
    assert isinstance(plan.mixing, Mixing)
    matrix = plan.mixing.mix(np.eye(10))
    assert plan.columns.two == pytest.approx(np.linalg.norm(matrix, axis=0).max())
    assert plan.columns.one == pytest.approx(matrix.sum(0).max())
    assert matrix.sum(1) == pytest.approx(1)
    assert (matrix > 0).sum(1).tolist() == [3] * 50
    assert (matrix > 0).sum(0).tolist() == [15] * 10  # everyone as often
    assert plan.scale == pytest.approx(2 * plan.columns.two * gaussian_sigma(8, 1e-5), rel=2e-4)


def test_a_record_twice_in_a_row_counts_with_the_sum() -> None:
    mixing = Mixing(np.array([[1, 1, 1], [0, 1, 0]]), np.array([[0.2, 0.3, 0.5], [0.5, 0.2, 0.3]]), 2)
    matrix = mixing.mix(np.eye(2))
    assert mixing.columns().two == pytest.approx(np.linalg.norm(matrix, axis=0).max())
    assert mixing.columns().one == pytest.approx(matrix.sum(0).max())


def test_secret_rows_are_steps_of_poisson_lots() -> None:
    plan = made(Budget(2, 1e-5), labels=Inside(), mode=Secret(4, outputs=20)).plan(200, 6)
    ((event, count),) = plan.event.parts
    assert count == 20
    assert event.rate == pytest.approx(0.02)
    weight = 1 / (event.rate * 200)
    multiplier = event.event.noise_multiplier
    assert plan.scale == pytest.approx(multiplier * weight * plan.shape.moved("zero-out"))


def test_secret_rows_are_what_their_coins_say() -> None:
    mixed = PoissonRows(50, 4000, 0.1).mix(np.ones((50, 1)), seeded(2))
    assert mixed.mean() == pytest.approx(1, abs=0.02)
    assert mixed.var() == pytest.approx(0.9 / 5, rel=0.1)


def test_a_stream_denies_before_it_would_pass_the_cap() -> None:
    stream = Stream(3, cap=0.5)
    stream.take([0, 1], [0.5, 0.5])
    before = stream.used.copy()
    with pytest.raises(BudgetError, match="used up its share"):
        stream.take([0, 2], [0.6, 0.4])
    assert (stream.used == before).all()  # nothing was used by the denied row
    stream.take([0, 2], [0.5, 0.5])
    assert stream.used.max() <= 0.5
    assert stream.columns.two == pytest.approx(math.sqrt(0.5))
    # Two coefficients of one record that cancel here do not cancel to the last digit in the mixture.
    with pytest.raises(InputError, match="twice"):
        Stream(3, cap=0.5).take([0, 0, 0], [0.1, 0.1 * 2**53, -0.1 * 2**53])


def test_a_stream_grants_the_last_share_once() -> None:
    stream = Stream(1, cap=0.5)

    def ask(_: int) -> bool:
        try:
            stream.take([0], [0.7])
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, range(64))) == 1


def test_a_stream_is_charged_for_its_cap_and_keeps_to_it() -> None:
    encoder = made(labels=Public(), mode=Central())
    stream = encoder.stream(rows(), answers(), cap=0.5)
    (entry,) = encoder.ledger.history()
    scale = 2 * math.sqrt(0.5) * gaussian_sigma(8, 1e-5)
    assert isinstance(entry.event, GaussianEvent)
    assert entry.event.noise_multiplier == pytest.approx(gaussian_sigma(8, 1e-5), rel=2e-4)
    found = np.concatenate([stream.row([a, a + 1], [0.5, 0.5]).vectors for a in range(0, 40, 2)])
    assert found.std() == pytest.approx(scale, rel=0.3)
    stream.row([0, 1], [0.5, 0.5])
    with pytest.raises(BudgetError):
        stream.row([0, 1], [0.5, 0.5])
    assert len(encoder.ledger.history()) == 1
    with pytest.raises(InputError, match="Gaussian"):
        made().stream(rows(), answers(), cap=1.0)


# What comes out


def test_labels_are_unbiased() -> None:
    for labels in (Randomized(0.3), Inside()):
        encoder = made(Budget(4, 1e-6, adjacency="replace-one"), labels=labels)
        found = encoder.encode_features(rows(6000), ["yes"] * 6000).labels
        assert found.mean(0) == pytest.approx([0, 1], abs=0.15)
    assert unbiased(np.array([0, 1]), 0.5, 2) == pytest.approx(np.array([[1.5, -0.5], [-0.5, 1.5]]))


def test_mixed_labels_belong_to_mixed_vectors() -> None:
    """Who is in a row can be read off it where there is hardly any noise, and so can the labels."""
    encoder = made(Budget(1e8, 1e-6, adjacency="replace-one"), labels=Public(), mode=Central(2))
    found = encoder.encode_features(np.eye(40), answers())
    yes = np.array([label == "yes" for label in answers()])
    assert found.vectors[:, yes].sum(1) == pytest.approx(found.labels[:, 1], abs=0.1)
    assert found.labels[:, 1].std() > 0.1
    assert found.about["mixed"] == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": Public()},
        {"labels": Inside(0.5)},
        {"labels": Public(), "mode": Central(3)},
        {"labels": Inside(0.5), "mode": Central(3), "noise": RadialLaplace()},
        {"labels": Public(), "mode": Central(3), "noise": IidLaplace()},
        {"budget": Budget(8, 1e-5), "labels": Inside(0.5), "mode": Secret(3)},
    ],
)
def test_the_noise_that_is_charged_is_the_noise_that_is_drawn(settings: dict[str, Any]) -> None:
    """Of records without features: what comes out is noise, of the scale of the event."""
    encoder = made(**settings)
    found = encoder.encode_features(np.zeros((4000, 6)), ["none"] * 4000)
    (entry,) = encoder.ledger.history()
    plan = encoder.plan(4000, 6)
    assert entry.event == plan.event or isinstance(encoder.mode, Central)  # whose mixing is drawn anew
    wanted = math.sqrt(encoder.noise.variance(plan.scale, plan.shape))
    assert found.vectors.std() == pytest.approx(math.sqrt(found.variance), rel=0.05)
    assert math.sqrt(found.variance) == pytest.approx(wanted, rel=0.15)


def test_each_label_is_answered_once() -> None:
    """Rows of a stream that have the same record show the same answer."""
    encoder = made(labels=Randomized(), mode=Central())
    stream = encoder.stream(rows(), answers(), cap=1.0)
    seen = {tuple(stream.row([3], [0.2]).labels[0]) for _ in range(20)}
    assert len(seen) == 1


def test_secret_rows_charge_a_tuned_encoder_too() -> None:
    settings: dict[str, Any] = {"labels": Inside(), "mode": Secret(4, outputs=20)}
    plain = made(Budget(2, 1e-5), **settings).plan(200, 6)
    tuned = made(Budget(2, 1e-5), **settings, tuned=GaussianEvent(4.0)).plan(200, 6)
    assert tuned.scale > plain.scale
    assert GaussianEvent(4.0) in [event for event, _ in tuned.event.parts]


def test_unknown_labels_are_none_and_cost_the_same() -> None:
    encoder = made(labels=Public())
    found = encoder.encode_features(rows(3), ["yes", "?", ""])
    assert found.labels.tolist() == [[0, 1], [0, 0], [0, 0]]


def test_files_bring_everything_back(tmp_path: Any) -> None:
    mapped = made(map=pca(rows(50), 3)).encode(["a"] * 40, answers())
    mapped.save(tmp_path / "x.safetensors")
    again = Encodings.load(tmp_path / "x.safetensors")
    assert np.allclose(again.vectors, mapped.vectors)
    assert again.about == mapped.about and again.classes == CLASSES
    assert again.variance == pytest.approx(mapped.variance)
    assert np.allclose(again.seen(rows(5)), mapped.seen(rows(5)), atol=1e-5)
    both = pooled([again, mapped])
    assert len(both) == 80 and both.about["owners"] == 2
    with pytest.raises(InputError, match="no encodings"):
        Encodings.load(tmp_path / "y.safetensors")
    (tmp_path / "z.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="holds no encodings"):
        Encodings.load(tmp_path / "z.safetensors")


def test_pools_must_agree() -> None:
    first = made(map=pca(rows(50), 3)).encode(["a"] * 40, answers())
    for other, said in (
        (made().encode(["a"] * 40, answers()), "dimensions"),
        (
            made(Budget(2, 1e-5, adjacency="replace-one"), map=first.map).encode(["a"] * 40, answers()),
            "noise",
        ),
        (made(map=pca(rows(60), 3)).encode(["a"] * 40, answers()), "maps"),
    ):
        with pytest.raises(InputError, match=said):
            pooled([first, other])
    with pytest.raises(InputError, match="no encodings"):
        pooled([])
    public = made(labels=Public(), map=first.map).encode(["a"] * 40, answers())
    alike = Encodings(first.vectors, first.labels, CLASSES, first.variance, first.map, public.about)
    with pytest.raises(InputError, match="labels"):
        pooled([first, alike])


# The law


def test_nothing_is_drawn_without_a_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = made()
    order: list[str] = []
    charge, add = encoder.ledger.charge, Gaussian.add
    monkeypatch.setattr(
        encoder.ledger, "charge", lambda *a, **k: order.append("charge") or charge(*a, **k)
    )
    monkeypatch.setattr(Gaussian, "add", lambda *a: order.append("noise") or add(*a))
    monkeypatch.setattr(
        Randomized, "answers", lambda *a: order.append("answers") or np.zeros(40, dtype=np.int64)
    )
    encoder.encode(["a"] * 40, answers())
    assert order == ["charge", "answers", "noise"]


def test_an_encoder_that_was_tuned_is_charged_along() -> None:
    tuned = GaussianEvent(1.0, "replace-one")
    with_, without = made(tuned=tuned), made()
    assert with_.plan(10, 6).scale > 1.05 * without.plan(10, 6).scale
    assert curve(with_.plan(10, 6).event, "replace-one").epsilon(1e-5).upper <= 8
    with pytest.raises(BudgetError):
        made(Budget(0.5, 1e-5, adjacency="replace-one"), tuned=tuned).plan(10, 6)


def test_plans_do_not_depend_on_records() -> None:
    one, other = made(), made()
    one.encode_features(rows(), answers())
    other.encode_features(100 * rows()[::-1], ["yes"] * 40)
    assert [x.event for x in one.ledger.history()] == [x.event for x in other.ledger.history()]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": Secret()}, "zero-out"),
        ({"budget": Budget(1, 1e-5), "mode": Secret(), "noise": IidLaplace()}, "Gaussian"),
        ({"budget": Budget(1, 1e-5), "mode": Secret()}, "inside"),
        ({"budget": Budget(1, 1e-5, unit="user")}, "one record each"),
        ({"clip": 0}, "clip"),
        ({"mode": Central(50)}, "only 40"),
    ],
)
def test_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(**settings).encode_features(rows(), answers())


def test_refused_too() -> None:
    with pytest.raises(NotAccountable, match="add-remove"):
        made(Budget(1, 1e-5, adjacency="add-remove")).encode_features(rows(), answers())
    with pytest.raises(InputError, match="40 texts, but 39 labels"):
        made().encode(["a"] * 40, answers(39))
    with pytest.raises(InputError, match="two different labels"):
        InstanceEncoder(lambda texts: rows(), REPLACE, classes=("a", "a"))
    with pytest.raises(InputError, match="features must be a table"):
        made().encode_features(np.zeros(3), answers(3))
    with pytest.raises(InputError):
        draw_mixing(3, 5, 4)
    with pytest.raises(InputError, match="delta"):
        made(Budget(1, 0.1, adjacency="replace-one")).encode_features(rows(), answers())
    with pytest.raises(InputError, match="40 records, but 3 labels"):
        made(mode=Central()).stream(rows(), answers(3), cap=1.0)
    with pytest.raises(InputError, match="outputs"):
        Central(outputs=0)


@pytest.mark.parametrize("epsilon", [100, 3000])
def test_huge_budgets_are_no_accident(epsilon: float) -> None:
    found = made(Budget(epsilon, 1e-5, adjacency="replace-one")).encode_features(rows(), answers())
    assert np.isfinite(found.labels).all()


def test_only_what_was_drawn_is_sealed(tmp_path: Any) -> None:
    encoder = made(Ledger(tmp_path / "ledger.sqlite", REPLACE), source=secure())
    found = encoder.encode_features(rows(), answers())
    raw = Encodings(rows(), found.labels, CLASSES, found.variance, None, found.about)
    about = About("0" * 64, 40, ("note",), "kind", "an encoder")
    with pytest.raises(InputError, match="not what the encoder drew"):
        seal(tmp_path, raw, encoder, about)
    assert seal(tmp_path, found, encoder, about).epsilon <= 8
