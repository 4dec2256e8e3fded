"""What is refused before training, and what the comparison with brute force finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from zoo import HIDDEN, ZOO, Batch, Case, nn, torch

from sourdine import rng
from sourdine.errors import CheckError, InputError, SourdineError
from sourdine.sgd import Engine, Lot, clipped_sum
from sourdine.sgd.check import compare, quiet, refuse


@pytest.fixture(autouse=True)
def repeatable() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


def alone(batch: Batch) -> list[Batch]:
    count = len(next(iter(batch.values())))
    return [{name: value[i : i + 1] for name, value in batch.items()} for i in range(count)]


def compared(case: Case) -> float:
    model, batch, loss = case.make()
    with case.silence():
        return compare(model, loss, batch, alone(batch))


@pytest.mark.parametrize("case", HIDDEN, ids=lambda case: case.name)
def test_what_no_gradient_shows_is_found(case: Case) -> None:
    model, batch, loss = case.make()
    clipped_sum(model, lambda: loss(model, batch), 1.0)  # the tape sees nothing wrong
    with pytest.raises(CheckError, match="different in a batch than alone"):
        compared(case)


NAMES = {
    *("bert-classes", "gpt2", "t5", "lstm", "gru", "text-cnn", "bert-dropout", "embedding-bag"),
    *("mha", "conv2d", "layer-norm", "gpt2-lora", "llama", "losses-in-double"),
}


@pytest.mark.parametrize(
    "case", [c for c in ZOO if c.name in NAMES or c.random][:20], ids=lambda case: case.name
)
def test_ordinary_models_pass(case: Case) -> None:
    assert compared(case) <= 1e-3


class Padded(nn.Module):
    """Averages over all positions, padding included."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, ids: Any) -> Any:
        return self.head(self.words(ids).mean(1))


def collated(rows: list[Any]) -> Any:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def ends(model: Any, ids: Any) -> Any:
    return model(ids).square().sum(1)


def test_padding_that_changes_the_loss_is_found() -> None:
    rows = [torch.arange(1, 2 + size) for size in (2, 5, 3)]
    each = [collated([row]) for row in rows]
    with pytest.raises(CheckError, match="padding"):
        compare(Padded(), ends, collated(rows), each)
    same = [torch.arange(1, 6) for _ in range(3)]
    compare(Padded(), ends, collated(same), [collated([row]) for row in same])


class Remembering(nn.Module):
    """Adds what it saw the last time."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(3, 2)
        self.last: Any = 0.0

    def forward(self, x: Any) -> Any:
        y = self.f(x + self.last)
        self.last = x.detach().mean(0)
        return y


def test_a_memory_is_found() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(CheckError):
        compare(Remembering(), ends, x, list(x.split(1)))


def test_dropout_is_left_out_and_switched_on_again() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    model[2].eval()
    x = torch.randn(4, 3)
    assert compare(model, ends, x, list(x.split(1))) < 1e-5
    assert [m.training for m in model] == [True, True, False]
    lstm = nn.LSTM(3, 4, 2, dropout=0.5)
    with quiet(lstm):
        assert lstm.dropout == 0
    assert lstm.dropout == 0.5
    with pytest.raises(KeyError), quiet(lstm):
        raise KeyError
    assert lstm.dropout == 0.5
    assert lstm.training


def test_half_precision_passes() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 6, 3)

    def loss(model: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().sum((1, 2))

    assert compare(model, loss, x, list(x.split(1))) < 0.05


@pytest.mark.parametrize("size", [1e-9, 1e-2])
def test_an_example_with_next_to_no_gradient_is_no_alarm(size: float) -> None:
    # What differs is far below the rounding of the others, or it is not.
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    x[0, 0] = 0

    def loss(model: Any, x: Any) -> Any:
        y = model(x)
        return y.square().sum(1).where(x[:, 0] != 0, size * len(x) * y.sum(1))

    if size < 1e-6:
        compare(model, loss, x, list(x.split(1)))
    else:
        with pytest.raises(CheckError):
            compare(model, loss, x, list(x.split(1)))


def test_an_example_that_spoils_others_is_found() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    x[0] = float("inf")

    def loss(model: Any, x: Any) -> Any:
        return model(x).square().sum(1) * (1 + 0 * x.detach().sum())

    with pytest.raises(SourdineError):
        compare(model, loss, x, list(x.split(1)))
    fine = lambda model, x: model(x).square().sum(1)  # noqa: E731
    assert compare(model, fine, x, list(x.split(1))) < 1e-5


# What a model may not be


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.BatchNorm1d(4), "f is a batch norm.*GroupNorm"),
        (nn.BatchNorm2d(4), "f is a batch norm"),
        (nn.SyncBatchNorm(4), "f is a batch norm"),
        (nn.LazyBatchNorm1d(), "f is a batch norm"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "f keeps running statistics"),
        (nn.Linear(2, 2).half(), r"f\.weight is float16.*autocast"),
        (nn.Linear(2, 2).bfloat16(), r"f\.weight is bfloat16"),
        (nn.Linear(2, 2).double(), r"f\.weight is float64"),
        (nn.Linear(2, 2).requires_grad_(False), "no parameter of the model is trained"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_refused_by_name(module: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        refuse(nn.ModuleDict({"f": module}))


def test_wrapped_models_are_refused() -> None:
    with pytest.raises(InputError, match=r"model\.module"):
        refuse(nn.DataParallel(nn.Linear(2, 2)))


@pytest.mark.parametrize(
    "module", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True), nn.Linear(2, 2)]
)
def test_not_refused(module: Any) -> None:
    refuse(nn.ModuleDict({"f": module}))


@pytest.mark.parametrize("examples", [1, 4, 6])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_a_batch_norm_at_rest_is_exact(kind: Any, examples: int) -> None:
    flat = kind is nn.BatchNorm1d
    first, x = (nn.Linear(4, 6), torch.randn(examples, 4)) if flat else (
        nn.Conv2d(3, 6, 2),
        torch.randn(examples, 3, 4, 4),
    )  # fmt: skip
    model = nn.Sequential(first, kind(6), nn.Tanh())
    model(torch.randn(50, *x.shape[1:]))
    with torch.no_grad():
        model[1].weight.normal_()
    refuse(model.eval())
    loss = lambda model, x: model(x).flatten(1).square().sum(1)  # noqa: E731
    assert compare(model, loss, x, list(x.split(1))) < 1e-4
    weights = list(model.parameters())
    rows = []
    for value in loss(model, x):
        own = torch.autograd.grad(value, weights, retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in own]))
    each = torch.stack(rows)
    norms = each.norm(dim=1, keepdim=True)
    clip = float(norms.median()) * 0.9
    clipped_sum(model, lambda: loss(model, x), clip)
    found = torch.cat([w.grad.flatten() for w in weights])
    torch.testing.assert_close(found, (each * (clip / norms).clamp(max=1)).sum(0), rtol=1e-4, atol=1e-4)


# By the engine, on its first lot


class Counting(nn.Module):
    """Counts what it sees in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.seen += len(x)
        return self.f(x)


def engine(model: Any, data: Any, loss: Any = ends, **settings: Any) -> Engine:
    optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.1)
    given = {"lot_size": len(data) / 2, "steps": 3, "noise_multiplier": 1.0, "source": rng.seeded(1)}
    return Engine(model, optimizer, data, None, loss=loss, **(given | settings))


def run(made: Engine) -> None:
    for lot in made.lots():
        made.step(lot)


def test_a_buffer_that_changes_is_refused() -> None:
    model = Counting()
    before = model.f.weight.detach().clone()
    with pytest.raises(InputError, match="the buffer seen changes"):
        run(engine(model, list(torch.randn(20, 3))))
    assert torch.equal(model.f.weight, before)


def shared(model: Any, x: Any) -> Any:
    return model(x).square().sum(1) / len(x)


def test_the_engine_looks_before_its_first_step() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with pytest.raises(CheckError):
        run(engine(model, list(torch.randn(20, 3)), shared))
    assert torch.equal(model.weight, before)
    run(engine(model, list(torch.randn(20, 3)), shared, check=False))  # for those who insist
    assert not torch.equal(model.weight, before)


def test_a_first_lot_of_one_example_is_filled_up() -> None:
    data = list(torch.randn(40, 3))
    made = engine(nn.Linear(3, 2), data, shared, lot_size=3, steps=20)
    with pytest.raises(CheckError):
        made.check(Lot(0, np.array([5])))


def test_a_batch_norm_that_wakes_up_is_found_out() -> None:
    # By the next proof, not at once: sgd/clipped.py says when.
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    made = engine(model.eval(), list(torch.randn(20, 3)), lot_size=20, steps=10)
    with pytest.raises(SourdineError):
        for lot in made.lots():
            made.step(lot)
            model.train()
    assert made.done < 8
