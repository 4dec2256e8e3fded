"""What a model does only later, or only with odd data, is found as well; nothing is kept of it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sourdine.errors import CheckError, InputError
from sourdine.rng import seeded
from sourdine.sgd import Engine, clipped_sum
from sourdine.sgd.batches import Units
from sourdine.sgd.proofs import Knowledge


def rows(count: int = 200) -> list[tuple[Any, Any]]:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, generator=made)
    return [(x[i], (x[i].sum() > 0).float()) for i in range(count)]


def loss(model: Any, batch: Any) -> Any:
    x, y = batch
    found = model(x).flatten()
    return nn.functional.binary_cross_entropy_with_logits(found, y, reduction="none")


def engine(model: Any, **changes: Any) -> Engine:
    trained = [x for x in model.parameters() if x.requires_grad]
    settings = {"loss": loss, "lot_size": 20, "steps": 12, "noise_multiplier": 1.0, **changes}
    return Engine(model, torch.optim.SGD(trained, lr=0.1), rows(), None, source=seeded(3), **settings)


# What a model keeps


class Frozen(nn.Module):
    """A frozen body with something in it that follows the data, and a head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), inner).requires_grad_(False)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def test_a_batch_norm_that_is_frozen_no_more() -> None:
    """After an evaluation everybody says model.train()."""
    model = Frozen(nn.BatchNorm1d(8))
    model.body[1].eval()
    of = engine(model)
    with pytest.raises(InputError, match=r"body.1 is a batch norm"):
        for lot in of.lots():
            of.step(lot)
            if of.done == 5:
                model.eval()
                model.train()
    assert of.done == 5


class Following(nn.Module):
    """From its 30th call on, a frozen weight follows the data."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0
        centre = torch.zeros(8)
        if kind == "parameter":
            self.centre = nn.Parameter(centre, requires_grad=False)
        else:
            self.register_buffer("centre", centre)

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.calls > 30:
            with torch.no_grad():
                mean = 0.9 * self.centre + 0.1 * x.mean(0)
                if self.kind == "another":
                    self.centre = mean
                else:
                    self.centre.copy_(mean)
        return x


@pytest.mark.parametrize("kind", ["parameter", "buffer", "another"])
def test_a_weight_that_begins_to_follow_the_data(kind: str) -> None:
    of = engine(Frozen(Following(kind)))
    with pytest.raises(InputError, match=r"body.1.centre (was changed|is changed|changes)"):
        for lot in of.lots():
            of.step(lot)
    assert of.done < 12


class MadeAnew(nn.Module):
    """A buffer that every forward pass makes anew, of the same values, as some of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pace", torch.ones(8))

    def forward(self, x: Any) -> Any:
        self.register_buffer("pace", torch.where(self.pace > 0, self.pace, 1.0))
        return x * self.pace


def test_a_buffer_of_the_same_values_is_the_same() -> None:
    model = Frozen(MadeAnew())
    with torch.inference_mode():
        model.body[1].pace = torch.ones(8)
    of = engine(model)
    for lot in of.lots():
        of.step(lot)
    assert of.done == 12


class ActNorm(nn.Module):
    """Trained weights that are set from the first batch."""

    def __init__(self, unseen: bool) -> None:
        super().__init__()
        self.loc, self.ready, self.unseen = nn.Parameter(torch.zeros(4)), False, unseen

    def forward(self, x: Any) -> Any:
        if not self.ready:
            with torch.no_grad():
                (self.loc.data if self.unseen else self.loc).copy_(-x.mean(0))
            self.ready = True
        return x + self.loc


@pytest.mark.parametrize("unseen", [False, True])
def test_weights_that_are_set_from_data_are_refused_before_the_charge(unseen: bool) -> None:
    of = engine(nn.Sequential(ActNorm(unseen), nn.Linear(4, 1)))
    with pytest.raises(InputError, match=r"0.loc is changed when the model sees data"):
        next(of.lots())
    assert not of.ledger.history()


def test_nothing_is_kept_of_what_was_refused() -> None:
    """Statistics of the examples that were tried would be released by whoever mends the rest."""
    model = Frozen(nn.BatchNorm1d(8))
    model.body[1].eval()
    of = engine(model)
    model.train()
    before = [x.clone() for x in model.buffers()]
    with pytest.raises((CheckError, InputError, ValueError)):  # torch itself refuses single rows
        next(of.lots())
    assert all(map(torch.equal, before, model.buffers()))


# One record with a gradient beyond all others


def layer() -> nn.Module:
    """torch's own transformer layer, whose output projection sees time before examples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


@pytest.mark.parametrize("target", [1e3, 1e12, 1e18, 1e22, 1e25, 1e30])
def test_a_record_with_a_huge_gradient_moves_nobody_else(target: float) -> None:
    """It is cut or left out, and the others' rows are told apart behind it."""
    body, made = layer(), torch.Generator().manual_seed(2)
    head = nn.Linear(8, 1)
    net = nn.ModuleList([body, head])
    x, y = torch.randn(20, 48, 8, generator=made), torch.randn(20, generator=made) + 20
    y[3] = target

    def losses(at: Any = slice(None)) -> Any:
        return (head(body(x[at]).mean(1)).flatten() - y[at]).square()

    clipped_sum(net, losses, 0.1)
    found = torch.cat([w.grad.flatten() for w in net.parameters()])
    total = torch.zeros_like(found)
    for i in range(20):
        one = torch.autograd.grad(losses([i]).sum(), list(net.parameters()))
        own = torch.cat([g.flatten() for g in one]).double()
        if bool(torch.isfinite(own.float().square().sum())):
            total += (own * (0.1 / own.norm()).clamp(max=1)).float()
    torch.testing.assert_close(found, total, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", [1.0, 1e9, 1e12, 1e20, 1e22, 1e25, 1e30])
def test_behind_a_record_with_a_huge_gradient_nobody_is_mixed(target: float) -> None:
    made = torch.Generator().manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    x, y = torch.randn(32, 4, generator=made), torch.randn(32, generator=made)
    y[0] = target

    def losses() -> Any:
        found = net(x)
        return ((found - found.mean(0)).square().sum(1) - y).square()

    with pytest.raises(InputError, match="depends on another example"):
        clipped_sum(net, losses, 1.0)


# Rows that data move


class Sorted(nn.Module):
    """The longest first, as packed sequences ask for, and back: nobody is mixed."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x: Any, lengths: Any) -> Any:
        order = torch.argsort(lengths, descending=True, stable=True)
        if self.way in ("lists", "numpy", "time first"):
            places = order.tolist()
            back = [places.index(i) for i in range(len(x))]
            if self.way == "time first":
                h = torch.tanh(self.first(x[None][:, places]))
                return self.last(h[:, back])[0]
            h = torch.tanh(self.first(x[places]))
            return self.last(h[np.array(back) if self.way == "numpy" else back])
        h = torch.tanh(self.first(x[order]))
        out = torch.zeros_like(h)
        if self.way == "written":
            out[order] = h
        elif self.way == "added":
            out = out.index_add(0, order, h)
        elif self.way == "copied":
            out = out.index_copy(0, order, h)
        return self.last(out)


@pytest.mark.parametrize("way", ["lists", "numpy", "time first", "written", "added", "copied"])
def test_rows_that_are_moved_and_put_back_are_never_taken_for_others(way: str) -> None:
    """Either the sum is that of brute force, or it is refused: also where they were never moved before."""
    made, net, knowledge = torch.Generator().manual_seed(4), Sorted(way), Knowledge()
    refused = 0
    for step in range(9):
        x, y = 3 * torch.randn(8, 4, generator=made), 10 * torch.randn(8, generator=made)
        lengths = torch.full((8,), 128)
        if step in (2, 4, 6):
            lengths = torch.tensor([10, 128, 128, 20, 128, 128, 128, 128])

        def losses(at: Any = slice(None), x: Any = x, y: Any = y, lengths: Any = lengths) -> Any:
            return (net(x[at], lengths[at]).flatten() - y[at]).square()

        net.zero_grad()
        try:
            clipped_sum(net, losses, 1.0, knowledge=knowledge)
        except (CheckError, InputError):
            refused += 1
            continue
        found = torch.cat([w.grad.flatten() for w in net.parameters()])
        total = torch.zeros_like(found)
        for i in range(8):
            one = torch.autograd.grad(losses(slice(i, i + 1)).sum(), list(net.parameters()))
            own = torch.cat([g.flatten() for g in one])
            total += own * (1 / own.norm()).clamp(max=1)
        torch.testing.assert_close(found, total, rtol=1e-3, atol=1e-4)
    assert refused < 9


@pytest.mark.parametrize(
    "places",
    [[0, 1, 2], [], [True, False, True], [[0, 1], [2, 0]], [torch.tensor([2, 0, 1])], [slice(0, 2), 1]],
)
def test_lists_of_any_kind_do_what_torch_does_with_them(places: Any) -> None:
    net, x = nn.Linear(4, 3), torch.randn(3, 5, 4)

    def losses() -> Any:
        y = net(x)
        return y.square().sum((1, 2)) + 0 * y[places].sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will take some of them otherwise one day
        try:
            wanted = losses().shape
        except (IndexError, TypeError):
            return
        clipped_sum(net, losses, 1.0)
    assert wanted == (3,) and net.weight.grad is not None


# Names


@pytest.mark.parametrize("name", [np.float32("nan"), float("nan"), "decimal", "pandas"])
def test_names_that_are_none(name: Any) -> None:
    from decimal import Decimal

    odd = {"decimal": Decimal("nan"), "pandas": pytest.importorskip("pandas").NA}.get(str(name), name)
    with pytest.raises(InputError, match="cannot name a user"):
        Units([1, 2, 3], ["a", odd, odd], 1)
