"""Holes that a reviewer found in the engine, each closed: exact against brute force, or refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from torch.utils.checkpoint import checkpoint  # noqa: E402

from sourdine import rng  # noqa: E402
from sourdine.errors import CheckError, InputError  # noqa: E402
from sourdine.sgd import Engine, clipped_sum, gradients, layout  # noqa: E402
from sourdine.sgd.checkpointing import run_once  # noqa: E402
from sourdine.sgd.proofs import Knowledge  # noqa: E402

B, D = 4, 5
MIXED = "depends on another example"
MIXED_SINCE = "examples are mixed"
Body = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


class Net(nn.Module):
    """Layers and bare parameters, and a function `body(net, x)` of rows that uses some of them."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 1)
        self.square, self.row = nn.Parameter(torch.randn(D, D)), nn.Parameter(torch.randn(D))
        self.body = body

    def forward(self, x: Any) -> Any:
        """One loss per example."""
        return self.body(self, x).square().flatten(1).sum(1)


class Hidden(torch.autograd.Function):
    """x @ w, in a function of its own: the tape sees no use of w."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, w = ctx.saved_tensors
        return gradients[0] @ w.t(), x.t() @ gradients[0]


hidden: Any = Hidden.apply


def rows(*shape: int) -> Any:
    return torch.randn(B, *shape, D)


def exact(net: Any, losses: Callable[[], Any], knowledge: Knowledge | None = None) -> None:
    """The norms and the clipped sum are those of brute force."""
    weights = list(net.parameters())
    each = []
    for one in losses():
        own = torch.autograd.grad(
            one, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        each.append(torch.cat([g.flatten() for g in own]))
    gradients = torch.stack(each)
    norms = gradients.norm(dim=1)
    clip = float(norms.median())
    net.zero_grad()
    found = clipped_sum(net, losses, clip, knowledge=knowledge)
    torch.testing.assert_close(found.norms, norms, rtol=1e-4, atol=1e-6)
    wanted = (gradients * (clip / norms).clamp(max=1)[:, None].nan_to_num(1)).sum(0)
    torch.testing.assert_close(
        torch.cat([w.grad.flatten() for w in weights]), wanted, rtol=1e-4, atol=1e-5 * clip
    )


def refused(
    net: Any, losses: Callable[[], Any], words: str, knowledge: Knowledge | None = None
) -> None:
    with pytest.raises((InputError, CheckError), match=words):
        clipped_sum(net, losses, 1.0, knowledge=knowledge)


def engine(net: Any, data: Any, loss: Any, **settings: Any) -> Engine:
    given = {"lot_size": len(data) / 2, "steps": 3, "noise_multiplier": 1.0, "source": rng.seeded(1)}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Engine(net, optimizer, data, None, loss=loss, **(given | settings))


def run(made: Engine) -> None:
    for lot in made.lots():
        made.step(lot)


# In-place functions and hooks on what layers give


def doubled_slice(y: Any, x: Any) -> Any:
    y[..., :2].mul_(2)
    return y


def rows_set(y: Any, x: Any) -> Any:
    y[..., 0] = x[..., 1]
    y[0] = 0.0
    return y


def view_changed(y: Any, x: Any) -> Any:
    y.view(B, -1).mul_(2)
    return y


def added(y: Any, x: Any) -> Any:
    y += x
    return y


CHANGES: dict[str, Body] = {
    "relu_": lambda y, x: F.relu_(y),
    "relu module": lambda y, x: nn.ReLU(inplace=True)(y),
    "silu": lambda y, x: F.silu(y, inplace=True),
    "+=": added,
    "slice": doubled_slice,
    "setitem": rows_set,
    "view": view_changed,
    "masked_fill_": lambda y, x: y.masked_fill_(x > 0, 0.0),
}


@pytest.mark.parametrize("shape", [(), (3,)], ids=["2-D", "3-D"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_whose_output_is_changed_in_place_is_exact(change: str, shape: tuple[int, ...]) -> None:
    x = rows(*shape)
    net = Net(lambda net, x: net.head(CHANGES[change](net.second(net.first(x)), x)))
    exact(net, lambda: net(x))
    alone = Net(lambda net, x: net.head(CHANGES[change](net.first(x), x)))  # no layer before it
    exact(alone, lambda: alone(x))


@pytest.mark.parametrize(
    "layer",
    [nn.LayerNorm(D), nn.RMSNorm(D), nn.GroupNorm(1, 3), nn.Conv1d(3, 3, 1), nn.Embedding(9, D)],
)
def test_other_layers_whose_output_is_changed_in_place_are_exact(layer: Any) -> None:
    ids = isinstance(layer, nn.Embedding)
    x = torch.randint(0, 9, (B, 3)) if ids else rows(3)
    net = Net(lambda net, x: net.head(net.layer(x).relu_()))
    net.layer, knowledge = layer, Knowledge()
    for _ in range(3):  # the third takes small uses early
        exact(net, lambda: net(x), knowledge)


@pytest.mark.parametrize("shape", [(), (3,)], ids=["2-D", "3-D"])
@pytest.mark.parametrize("before", [False, True])
def test_a_hook_on_an_output_is_part_of_the_gradient(before: bool, shape: tuple[int, ...]) -> None:
    def body(net: Any, x: Any) -> Any:
        h = net.second(net.first(x) if before else x)
        h.register_hook(lambda g: 30 * g)
        return net.head(h.tanh())

    net, x, knowledge = Net(body), rows(*shape), Knowledge()
    for _ in range(3):
        exact(net, lambda: net(x), knowledge)


def test_a_hook_on_what_is_taken_early_is_part_of_the_gradient() -> None:
    def body(net: Any, x: Any) -> Any:
        h = net.norm(net.first(x))
        h.register_hook(lambda g: -3 * g)
        return net.head(h.tanh())

    net, x, knowledge = Net(body), rows(), Knowledge()
    net.norm = nn.LayerNorm(D)
    for _ in range(3):
        exact(net, lambda: net(x), knowledge)


def test_a_hook_on_a_parameter_is_refused() -> None:
    net, x = nn.Linear(D, D), rows()
    net.weight.register_hook(lambda g: 100 * g)
    refused(net, lambda: net(x).square().sum(1), "weight has a hook")


# In-place functions that take parameters


def token_set(net: Any, h: Any, x: Any) -> Any:
    h[:, 0] = net.row
    return h.cumsum(1).tanh()


def token_set_first(net: Any, h: Any, x: Any) -> Any:
    h[0] = net.row
    return h.cumsum(0).tanh()


WITH_PARAMETERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "addmm_": lambda net, h, x: h.addmm_(x, net.square),
    "addcmul_": lambda net, h, x: h.addcmul_(x, net.row),
    "lerp_": lambda net, h, x: h.lerp_(net.row, 0.3),
    "sub_": lambda net, h, x: h.sub_(net.row, alpha=2),
    "+=": lambda net, h, x: added(h, net.row),
    "addr_": lambda net, h, x: h.addr_(x[:, 0], net.row),
    "clamp_": lambda net, h, x: h.clamp_(min=net.row),
    "hypot_": lambda net, h, x: h.hypot_(net.row),
    "masked_fill_": lambda net, h, x: h.masked_fill_(x > 0, net.row[0]),
    "index_add_": lambda net, h, x: h.index_add_(1, torch.tensor([0]), net.row[:1].expand(B, 1)),
}


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_an_in_place_function_of_a_parameter_is_exact(name: str) -> None:
    net, x = Net(lambda net, x: WITH_PARAMETERS[name](net, net.first(x), x).tanh()), rows()
    exact(net, lambda: net(x))


@pytest.mark.parametrize("steps", [3, B, 2 * B])
def test_a_parameter_written_over_a_position_is_exact(steps: int) -> None:
    net, x = Net(lambda net, x: net.head(token_set(net, net.first(x), x))), rows(steps)
    exact(net, lambda: net(x))
    first = Net(lambda net, x: net.head(token_set_first(net, net.first(x), x)).transpose(0, 1))
    exact(first, lambda: first(x.transpose(0, 1)))


@pytest.mark.parametrize("kind", ["repeat", "expand", "one", "constant", "empty"])
def test_a_tensor_made_of_parameters_and_changed_in_place_is_exact(kind: str) -> None:
    def body(net: Any, x: Any) -> Any:
        if kind == "constant":
            weight = net.square * 3
            weight.mul_(2)
            return F.linear(x, weight)
        if kind == "empty":
            made = torch.empty(B, D)
            made[:] = net.row
            return (made * x).tanh()
        made = net.row.repeat(len(x), 1) if kind == "repeat" else net.row[None].clone()
        made = made.expand(len(x), D).clone() if kind == "expand" else made
        made += net.first(x)
        return net.second(made) * x  # data meet it once more

    net, x = Net(body), rows()
    if kind == "one":
        exact(net, lambda: torch.stack([net(x[i : i + 1])[0] for i in range(B)]))
        exact(net, lambda: net(x[:1]))
    else:
        exact(net, lambda: net(x))


@pytest.mark.parametrize("layer", [nn.Linear(D, D), nn.LayerNorm(D), nn.Conv1d(1, 2, 3)])
def test_an_input_that_is_changed_after_its_use_is_refused(layer: Any) -> None:
    x = torch.randn(B, 1, D)

    def losses() -> Any:
        seen = x.clone()
        y = layer(seen)
        seen.mul_(0)
        return y.square().flatten(1).sum(1)

    refused(layer, losses, "changed in place after its use")


# Derivatives within the loss


def slope_by_grad(net: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]


def slope_by_backward(net: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    net(x).sum().backward(create_graph=True, inputs=[x])
    return x.grad


def slope_by_backward_function(net: Any, x: Any) -> Any:
    x = x.clone().requires_grad_()
    torch.autograd.backward([net(x).sum()], create_graph=True, inputs=[x])
    return x.grad


SLOPES: dict[str, Body] = {
    "autograd.grad": slope_by_grad,
    "Tensor.backward": slope_by_backward,
    "autograd.backward": slope_by_backward_function,
    "func.grad": lambda net, x: torch.func.grad(lambda x: net(x).sum())(x),
    "func.vmap": lambda net, x: torch.func.vmap(torch.func.grad(lambda one: net(one[None])[0, 0]))(x),
    "func.vjp": lambda net, x: torch.func.vjp(net, x)[1](torch.ones(B, 1))[0],
    "func.jacrev": lambda net, x: torch.func.jacrev(lambda x: net(x).sum(0))(x)[0],
    "functional": lambda net, x: torch.autograd.functional.jacobian(
        lambda x: net(x).sum(0), x, create_graph=True
    )[0],
}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_in_the_loss_are_refused(name: str) -> None:
    net, x = nn.Sequential(nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, 1)), rows()

    def losses() -> Any:
        return net(x)[:, 0].square() + SLOPES[name](net, x).square().sum(1)

    refused(net, losses, "takes derivatives itself")
    assert all(w.grad is None for w in net.parameters())


# What runs unseen


@pytest.mark.parametrize("width", [B, D])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_seen(width: int, reentrant: bool) -> None:
    """Also with dropout, which must not be drawn a second time, and with a parameter of its own."""
    net, x = nn.Sequential(*(nn.Linear(width, width) for _ in range(3))), torch.randn(B, width)
    net.row = nn.Parameter(torch.randn(width))

    def part(h: Any) -> Any:
        return nn.functional.dropout(net[1](h).tanh() * net.row, 0.5)

    def losses(saving: bool) -> Any:
        torch.manual_seed(1)
        h = net[0](x)
        h = checkpoint(part, h, use_reentrant=reentrant) if saving else part(h)
        return net[2](h).square().sum(1)

    def sums(saving: bool) -> Any:
        net.zero_grad()
        norms = clipped_sum(net, lambda: losses(saving), 1.0).norms
        return norms, *(w.grad.clone() for w in net.parameters())

    torch.testing.assert_close(sums(saving=True), sums(saving=False), rtol=0, atol=0)
    losses(saving=True).sum().backward()  # what torch does elsewhere is as it was
    assert torch.utils.checkpoint.CheckpointFunction.__module__ == "torch.utils.checkpoint"


def test_checkpointing_in_other_threads_goes_on() -> None:
    """Two threads within at once, the first out first: torch is as before, and was for a third."""
    runs, entered, leave = [0], threading.Event(), threading.Event()

    def part(h: Any) -> Any:
        runs[0] += 1
        return h.sin()

    def train() -> None:
        for reentrant in (False, True):
            x = torch.ones(3, requires_grad=True)
            checkpoint(part, x, use_reentrant=reentrant).sum().backward()

    def other() -> None:
        with run_once():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with run_once():
        thread.start()
        entered.wait()
        third = threading.Thread(target=train)
        third.start()
        third.join()
    assert runs == [4]  # each twice, as torch means it
    train()
    assert runs == [8]
    leave.set()
    thread.join()
    assert torch.utils.checkpoint.CheckpointFunction.__module__ == "torch.utils.checkpoint"


def test_what_surrounds_a_checkpointed_part_stays() -> None:
    net, x = nn.Linear(D, D), torch.randn(B, D)

    def around() -> Any:
        return torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16)

    def losses() -> Any:
        return checkpoint(net, x, use_reentrant=False, context_fn=around).float().square().sum(1)

    torch.testing.assert_close(clipped_sum(net, losses, 1.0).losses, losses().detach(), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(D,), (1,), (1, D), ()])
@pytest.mark.parametrize("by", ["linear", "addmm"])
def test_a_bias_of_any_shape_is_exact(shape: tuple[int, ...], by: str) -> None:
    net, x = nn.Linear(D, D, bias=False), torch.randn(B, D)
    net.shift = nn.Parameter(torch.randn(shape))

    def losses() -> Any:
        if by == "linear":
            return nn.functional.linear(x, net.weight, net.shift).square().sum(1)
        return torch.addmm(net.shift, x, net.weight).square().sum(1)

    clipped_sum(net, losses, 1e9)
    wanted = torch.autograd.grad(losses().sum(), list(net.parameters()))
    for weight, gradient in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_ids_of_any_kind(kind: Any) -> None:
    net, ids = nn.Embedding(9, 2), torch.arange(3 * 4).view(3, 4).to(kind) % 5
    clipped_sum(net, lambda: net(ids).square().sum((1, 2)), 1e9)
    (wanted,) = torch.autograd.grad(net(ids).square().sum(), [net.weight])
    torch.testing.assert_close(net.weight.grad, wanted)


def test_checkpointing_that_runs_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with another torch, whose checkpointing could not be led around."""
    monkeypatch.setattr(gradients, "run_once", contextlib.nullcontext)
    net, x = nn.Sequential(*(nn.Linear(D, D) for _ in range(3))), torch.randn(B, D)

    def losses() -> Any:
        return net[2](checkpoint(net[1], net[0](x), use_reentrant=False)).square().sum(1)

    refused(net, losses, "checkpointing")


def test_checkpointing_by_others_is_refused() -> None:
    """A twin of torch's function that this library does not know: its layers are no part of the graph."""

    class CheckpointFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            with torch.no_grad():
                return net[1](x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                net[1](x).backward(gradient)
            return x.grad

    net, x = nn.Sequential(*(nn.Linear(D, D) for _ in range(3))), torch.randn(B, D)
    refused(net, lambda: net[2](CheckpointFunction.apply(net[0](x))).square().sum(1), "checkpointing")


def test_a_parameter_that_is_frozen_for_one_of_its_uses_is_exact() -> None:
    def body(net: Any, x: Any) -> Any:
        free = net.head(x)
        net.head.requires_grad_(False)
        frozen = net.head(net.first(x))
        net.head.requires_grad_(True)
        return free.square() + frozen

    net, x = Net(body), rows()
    exact(net, lambda: net(x))


@pytest.mark.parametrize("shape", [(), (3,)], ids=["2-D", "3-D"])
def test_complex_parameters_are_refused(shape: tuple[int, ...]) -> None:
    net, x = nn.ParameterList([torch.randn(D, D, 2)]), rows(*shape)

    def losses() -> Any:
        y = torch.complex(x, x.flip(-1)) @ torch.view_as_complex(net[0])
        return y.abs().square().flatten(1).sum(1)

    refused(net, losses, "complex")
    wave = nn.ParameterList([torch.randn(D)])
    refused(
        wave, lambda: (torch.fft.rfft(x) * torch.fft.rfft(wave[0])).abs().flatten(1).sum(1), "complex"
    )


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_a_bag_whose_padding_is_counted_from_the_end_is_exact(mode: str) -> None:
    net = nn.ParameterList([torch.randn(7, D)])
    ids = torch.tensor([[1, 2, 6], [6, 6, 3], [0, 1, 2], [3, 3, 6]])
    exact(net, lambda: F.embedding_bag(ids, net[0], padding_idx=-1, mode=mode).square().sum(1))


def test_a_tensor_with_a_seen_and_an_unseen_use_is_exact() -> None:
    def body(net: Any, x: Any) -> Any:
        made = net.square.exp()
        return F.linear(x, made) + hidden(x, made)

    net, x = Net(body), rows()
    exact(net, lambda: net(x))


def test_an_example_that_is_not_finite_does_not_wipe_out_the_others() -> None:
    x = rows()
    x[0] = 0  # the norm has no derivative there
    seen = nn.Linear(D, D, bias=False)
    found = clipped_sum(seen, lambda: seen(x).square().sum(1).sqrt(), 1.0)
    assert torch.isfinite(found.norms).tolist() == [False, True, True, True]
    assert seen.weight.grad.norm() > 0
    unseen = nn.ParameterList([torch.randn(D, D)])
    refused(unseen, lambda: hidden(x, unseen[0]).square().sum(1).sqrt(), "not finite")
    assert unseen[0].grad is None


def test_a_batch_without_examples_is_refused() -> None:
    net = nn.Linear(D, D)
    refused(net, lambda: net(torch.zeros(0, D)).sum(1), "no examples")


# Recurrent layers


class Recurrent(nn.Module):
    """Two layers in two directions, whose initial states are of several kinds."""

    def __init__(self, kind: Any, states: str) -> None:
        super().__init__()
        self.cells = kind(D, 6, num_layers=2, bidirectional=True)
        self.first, self.head = nn.Linear(D, 6), nn.Linear(12, 1)
        self.state = nn.Parameter(torch.randn(4, B if states == "parameter" else 1, 6))
        self.states, self.pair = states, kind is nn.LSTM

    def forward(self, x: Any) -> Any:
        start = self.state if self.states == "parameter" else self.state.expand(4, B, 6).contiguous()
        if self.states == "data":
            start = self.first(x[:, 0])[None] * self.state
        out, last = self.cells(x.transpose(0, 1), (start, start.tanh()) if self.pair else start)
        ends = last[0].square() + last[1].sin() if self.pair else last.square()
        return self.head(out).square().sum((0, 2)) + ends.sum((0, 2))


@pytest.mark.parametrize("states", ["data", "made", "parameter"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_initial_states_are_exact(kind: Any, states: str) -> None:
    net, x = Recurrent(kind, states), rows(3)
    exact(net, lambda: net(x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_mixing_after_a_recurrent_layer_is_refused_at_once(kind: Any) -> None:
    net, x, calls = kind(D, 6, batch_first=True), rows(3), [0]

    def losses() -> Any:
        calls[0] += 1
        assert calls[0] < 50, "the forward pass is run again and again"
        y = net(x)[0][:, -1]
        return (y - y.mean(0)).square().sum(1)

    refused(net, losses, MIXED)


# Mixing, and proofs that are not trusted for ever


def sum_over_all(net: Any, x: Any) -> Any:
    return torch.einsum("bd,de,ce->b", x, net[0], x)


def test_an_einsum_that_mixes_is_not_replaced_by_one_that_does_not() -> None:
    # At zero both functions have the same values. What it does instead is brute force's, or refused,
    net, x = nn.ParameterList([torch.zeros(D, D)]), rows()
    with contextlib.suppress(InputError):
        exact(net, lambda: sum_over_all(net, x))
    # and the engine, which looks at examples alone, refuses it in any case.
    with pytest.raises((CheckError, InputError)):
        run(engine(net, list(torch.randn(20, D)), sum_over_all))
    assert not net[0].any()


def centred_unseen(net: Any, x: Any) -> Any:
    y = hidden(x, net[0])
    return (y - y.mean(0)).square().sum(1)


def test_mixing_in_a_function_that_is_not_seen_is_found_by_the_engine() -> None:
    net = nn.ParameterList([torch.randn(D, D)])
    before = net[0].detach().clone()
    with pytest.raises((CheckError, InputError)):
        run(engine(net, list(torch.randn(20, D)), centred_unseen))
    assert torch.equal(net[0], before)


def centred_values(net: Any, x: Any) -> Any:
    y = net(x)
    return (y - y.detach().mean(0)).square().sum(1) + y.sum(1)


def test_a_first_lot_of_one_unit_does_not_hide_mixing() -> None:
    made = engine(nn.Linear(D, D), list(torch.randn(30, D)), centred_values, lot_size=1.5)
    with pytest.raises(CheckError):
        next(made.lots())
    assert made.ledger.history() == []  # found out before anything is charged


class Masked(nn.Module):
    """A head that sees some positions only, as many rows as the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x: Any, mask: Any) -> Any:
        chosen = self.head(self.first(x).tanh()[mask]).square().sum(1)
        return torch.zeros(len(x)).index_add(0, mask.nonzero()[:, 0], chosen)


def test_rows_chosen_by_the_data_are_proved_in_every_batch() -> None:
    net, x, knowledge = Masked(), rows(6), Knowledge()
    even = torch.zeros(B, 6, dtype=torch.bool)
    even[:, :2] = True
    uneven = torch.zeros_like(even)  # as many rows in all: 5, 1, 1, 1
    uneven[0, :5] = uneven[1:, 0] = True
    for _ in range(6):  # not just as long as proofs are made in any case
        exact(net, lambda: net(x, even), knowledge)
    refused(net, lambda: net(x, uneven), MIXED, knowledge)


def test_rows_sorted_by_length_are_proved_within_a_few_batches() -> None:
    net, x, knowledge = Net(lambda net, x: x), rows(), Knowledge()

    def losses(lengths: list[int]) -> Any:
        order = torch.tensor(lengths).argsort(descending=True, stable=True)
        return net.head(net.first(x[order]).tanh()[order.argsort()]).square()[:, 0]

    for _ in range(5):
        exact(net, lambda: losses([9, 9, 9, 9]), knowledge)
    refused(net, lambda: losses([3, 9, 7, 8]), f"{MIXED}|{MIXED_SINCE}", knowledge)


def mixed_up(net: Any, x: Any, on: bool) -> Any:
    h = net.first(x).tanh()
    return net.head(0.5 * h + 0.5 * h.mean(0) if on else h).square()[:, 0]


def hinged(net: Any, x: Any, on: bool) -> Any:
    h = net.first(x)
    apart = (h - torch.cat((h[1:], h[:1]))).square().sum(1)
    return h.square().sum(1) + F.relu((50.0 if on else 0.0) - apart)


@pytest.mark.parametrize("losses", [mixed_up, hinged])
@pytest.mark.parametrize("before", [1, 3, 5])
def test_mixing_that_begins_later_is_refused_within_a_few_batches(losses: Any, before: int) -> None:
    net, x, knowledge = Net(lambda net, x: x), rows(), Knowledge()
    for _ in range(before):
        exact(net, lambda: losses(net, x, False), knowledge)
    with pytest.raises(CheckError, match=MIXED_SINCE):
        for _ in range(before + 1):  # the next power of two, at the latest
            clipped_sum(net, lambda: losses(net, x, True), 1.0, knowledge=knowledge)


def test_mixing_that_begins_later_is_refused_by_the_engine() -> None:
    net, steps = Net(lambda net, x: x), [0]

    def loss(net: Any, x: Any) -> Any:
        return mixed_up(net, x, on=steps[0] >= 1)

    made = engine(net, list(torch.randn(20, D)), loss, lot_size=20, steps=8)
    with pytest.raises((CheckError, InputError)):
        for lot in made.lots():
            made.step(lot)
            steps[0] += 1
    assert steps[0] < 4


def test_examples_that_share_a_weight_in_one_proof_are_told_apart_by_the_next(monkeypatch: Any) -> None:
    net, x, knowledge = nn.Linear(D, D), torch.randn(8, D), Knowledge()
    mix = torch.eye(8)
    mix[0, 2] = mix[2, 0] = 1.0  # examples 0 and 2 meet

    def losses() -> Any:
        return (mix @ net(x).tanh()).square().sum(1)

    shared = torch.tensor([1.0, 2, 1, 4, 8, 16, 32, 64])
    with monkeypatch.context() as patched:
        patched.setattr(layout, "weights", lambda *_, **__: shared)
        clipped_sum(net, losses, 1.0, knowledge=knowledge)
    # Proofs 2, 4, 8, 16 and 32 draw anew; all five fail to tell them apart once in 3e7.
    with pytest.raises((CheckError, InputError)):
        for _ in range(31):
            clipped_sum(net, losses, 1.0, knowledge=knowledge)


@pytest.mark.parametrize("before", [1, 4])
def test_a_call_that_wakes_up_beside_an_unseen_parameter_is_proved(before: int) -> None:
    net, x, knowledge = Net(lambda net, x: x), torch.randn(B, B, D), Knowledge()
    scale = torch.arange(1.0, B + 1)[:, None, None]

    def losses(on: bool) -> Any:  # time first, with as many examples as positions
        aside = net.first(x).tanh()
        loss = hidden(x.sum(0), net.square).square().sum(1)
        return loss + (aside * scale).sum((0, 2)).square() if on else loss

    for _ in range(before):
        exact(net, lambda: losses(False), knowledge)
    exact(net, lambda: losses(True), knowledge)


@pytest.mark.parametrize("before", [1, 4])
def test_a_mixing_call_that_wakes_up_beside_an_unseen_parameter_is_refused(before: int) -> None:
    net, x, knowledge = Net(lambda net, x: x), rows(), Knowledge()

    def losses(on: bool) -> Any:
        aside = net.first(x).tanh()
        loss = hidden(x, net.square).square().sum(1)
        return loss + (aside - aside.mean(0)).square().sum(1) if on else loss

    for _ in range(before):
        exact(net, lambda: losses(False), knowledge)
    refused(net, lambda: losses(True), MIXED, knowledge)


@pytest.mark.parametrize("when", ["between two uses", "after its use"])
def test_a_made_tensor_changed_in_place_after_its_use_is_refused(when: str) -> None:
    scale, x = nn.Parameter(torch.randn(5)), torch.randn(4, 5)
    model = nn.ParameterList([scale])

    def losses() -> torch.Tensor:
        made = scale * 3
        y = x + made
        made.mul_(2)
        return ((y + made) if when == "between two uses" else y).tanh().square().sum(1)

    with pytest.raises(InputError, match="changed in place"):
        clipped_sum(model, losses, 1.0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_derivatives_in_the_loss_are_refused() -> None:
    net, x = nn.Linear(3, 2), torch.randn(4, 3)

    def losses() -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x.clone().requires_grad_(), torch.ones_like(x))
            value, tangent = torch.autograd.forward_ad.unpack_dual(net(dual))
            return value[:, 0].square() + tangent[:, 0].square()

    with pytest.raises(InputError, match="derivatives"):
        clipped_sum(net, losses, 1.0)


def test_a_small_layer_that_wakes_up_between_proofs_is_proved_first() -> None:
    # Time first, and as many positions as examples: the first guess of its rows is wrong.
    size = 4
    model = nn.ModuleDict({"first": nn.Linear(D, D), "norm": nn.LayerNorm(D), "head": nn.Linear(D, 1)})
    x, knowledge = torch.randn(size, size, D), Knowledge()
    with torch.no_grad():
        model["norm"].weight.copy_(torch.randn(D))

    def losses(awake: bool) -> torch.Tensor:
        hidden = model["first"](x)  # (T, B, D)
        seen = model["norm"](hidden)
        y = seen.tanh() if awake else hidden
        return model["head"](y)[..., 0].square().sum(0)

    for _ in range(2):  # proofs: nothing depends on the norm
        clipped_sum(model, lambda: losses(False), 1.0, knowledge=knowledge)
    model.zero_grad()
    found = clipped_sum(model, lambda: losses(True), 1.0, knowledge=knowledge)  # no proof is due
    weights = list(model.parameters())
    wanted = [
        torch.cat([g.flatten() for g in torch.autograd.grad(one, weights, retain_graph=True)]).norm()
        for one in losses(True)
    ]
    torch.testing.assert_close(found.norms, torch.stack(wanted), rtol=1e-5, atol=1e-6)
