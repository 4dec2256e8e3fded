"""The tape leaves nothing behind, proves what it guesses, and loses no use of a parameter."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

from sourdine.errors import CheckError, InputError  # noqa: E402
from sourdine.sgd import clipped_sum, layout  # noqa: E402
from sourdine.sgd.gradients import gradients  # noqa: E402
from sourdine.sgd.proofs import Knowledge  # noqa: E402

Losses = Callable[[], Any]


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        yield


def wanted(net: Any, values: Any, clip: float) -> Any:
    weights = [w for w in net.parameters() if w.requires_grad]
    rows = []
    for one in values:
        own = torch.autograd.grad(
            one, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([g.flatten() for g in own]))
    each = torch.stack(rows)
    norms = each.norm(dim=1, keepdim=True)
    return (each * (clip / norms).clamp(max=1).nan_to_num(1)).sum(0)


def exact(net: Any, losses: Losses, clip: float = 0.5, knowledge: Knowledge | None = None) -> None:
    """The clipped sum is that of brute force."""
    net.zero_grad()
    clipped_sum(net, losses, clip, knowledge=knowledge)
    found = torch.cat([w.grad.flatten() for w in net.parameters() if w.requires_grad])
    torch.testing.assert_close(found, wanted(net, losses(), clip), rtol=1e-4, atol=1e-5)


@pytest.fixture
def passes(monkeypatch: Any) -> list[int]:
    """Counts backward passes over the losses."""
    real, counted = torch.autograd.grad, [0]

    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        counted[0] += 1
        return real(outputs, *args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    return counted


def net_of(*sizes: int) -> Any:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


# What is proved, and how often


def test_known_shapes_are_not_proved_again(passes: list[int]) -> None:
    net, knowledge = net_of(4, 6, 2), Knowledge()

    def count(x: Any) -> int:
        passes[0], knowledge.schedule._count = 0, 4  # no fifth is due
        clipped_sum(net, lambda: net(x).square().sum((1, 2)), 0.5, knowledge=knowledge)
        return passes[0]

    assert count(torch.randn(5, 3, 4)) == 2
    assert count(torch.randn(5, 3, 4)) == 1
    assert count(torch.randn(5, 7, 4)) == 2  # another length
    assert count(torch.randn(6, 3, 4)) == 2  # other examples
    assert count(torch.randn(5, 3, 4)) == 1


def test_what_shows_no_gradient_is_not_taken_as_proved(passes: list[int]) -> None:
    net, knowledge = net_of(4, 2), Knowledge()

    def count(scale: float, x: Any) -> int:
        passes[0], knowledge.schedule._count = 0, 4
        clipped_sum(net, lambda: scale * net(x).square().sum((1, 2)), 0.5, knowledge=knowledge)
        return passes[0]

    assert count(0.0, torch.randn(3, 5, 4)) == 2
    bad = torch.randn(3, 5, 4)
    bad[0] = float("nan")  # whose gradients are compared with nothing
    assert count(0.0, bad) == 2
    assert count(1.0, torch.randn(3, 5, 4)) == 2
    assert count(1.0, torch.randn(3, 5, 4)) == 1


def test_every_shape_is_proved_again_now_and_then(passes: list[int]) -> None:
    """Two shapes by turns: were it always the next batch, one of them would never be due again."""
    net, knowledge = net_of(4, 2), Knowledge()
    proved = {3: 0, 7: 0}
    for _ in range(64):
        for length in proved:
            passes[0] = 0
            x = torch.randn(5, length, 4)
            clipped_sum(net, lambda x=x: net(x).square().sum((1, 2)), 0.5, knowledge=knowledge)
            proved[length] += passes[0] - 1
    assert sum(proved.values()) >= 7 and min(proved.values()) >= 3  # 1, 2, 4, ..., 64


def test_a_call_that_is_used_in_two_ways_is_never_told_apart_wrongly() -> None:
    """A layer that gets examples first and then time first, as long as they are many: alike by all that
    a call shows. What was proved of the one must not be done with the other."""
    net, knowledge = net_of(4, 2), Knowledge()

    def losses(x: Any) -> Any:
        first = net(x).square().sum((1, 2))
        return first + net(x.transpose(0, 1)).tanh().sum((0, 2))

    for _ in range(4):
        x = torch.randn(5, 5, 4)
        try:
            exact(net, lambda x=x: losses(x), knowledge=knowledge)
        except CheckError:
            return


def test_proofs_are_made_again_now_and_then(passes: list[int]) -> None:
    net, knowledge, found = net_of(4, 2), Knowledge(), []
    for batch in range(1, 200):
        passes[0] = 0
        x = torch.randn(3, 3, 4)
        clipped_sum(net, lambda x=x: net(x).square().sum((1, 2)), 0.5, knowledge=knowledge)
        if passes[0] > 1:
            found.append(batch)
    assert found == [1, 2, 4, 8, 16, 32, 64, 128, 192]


def test_a_model_that_begins_to_mix_is_found() -> None:
    net, knowledge, x = net_of(4, 2), Knowledge(), torch.randn(8, 4)

    def losses(mixed: bool) -> Any:
        y = net(x)
        return (y - y.mean(0) if mixed else y).square().sum(1)

    for _ in range(4):
        clipped_sum(net, lambda: losses(False), 0.5, knowledge=knowledge)
    with pytest.raises(CheckError, match="were not before"):
        for _ in range(4):
            clipped_sum(net, lambda: losses(True), 0.5, knowledge=knowledge)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("position", [0, -1, slice(None)])
@pytest.mark.parametrize("flat", [False, True])
def test_as_many_examples_as_words(size: int, position: Any, flat: bool) -> None:
    net, x = net_of(4, 2), torch.randn(size, size, 4)
    weight = torch.randn(size, 1, 2)

    def losses() -> Any:  # time first: the first guess is wrong
        y = net(x.flatten(0, 1)).view(size, size, 2) if flat else net(x)
        y = y * weight
        return (
            y[position]
            .square()
            .flatten(0, -2 if position != slice(None) else 0)
            .sum(-1 if position != slice(None) else (0, 2))
        )

    exact(net, losses)


@pytest.mark.parametrize("size", range(2, 20))
def test_padding_does_not_hide_a_wrong_guess(size: int) -> None:
    net, x = net_of(4, 2), torch.randn(size, size, 4)
    for real in range(1, size):
        weights = (torch.arange(size) < real).float()
        for position in (0, size // 2, size - 1):
            losses = lambda position=position: net(x)[position].square().sum(1)  # noqa: E731
            net.zero_grad()
            clipped_sum(net, losses, 0.5, weights=weights)
            found = torch.cat([w.grad.flatten() for w in net.parameters()])
            torch.testing.assert_close(found, wanted(net, losses()[:real], 0.5), rtol=1e-4, atol=1e-5)


PAIRS = {
    "neighbours": lambda y: y[1::2][: len(y) // 2],
    "halves": lambda y: y[len(y) // 2 :][: len(y) // 2],
    "ends": lambda y: y.flip(0)[: len(y) // 2],
    "the next one": lambda y: y.roll(-1, 0)[: len(y) // 2],
}


@pytest.mark.parametrize("kind", PAIRS)
def test_examples_in_pairs_are_found(kind: str) -> None:
    for examples in range(2, 65):
        net, x = net_of(3, 2), torch.randn(examples, 3)

        def losses(net: Any = net, x: Any = x, half: int = examples // 2) -> Any:
            y = net(x)
            z = y.clone()
            place = slice(0, 2 * half, 2) if kind == "neighbours" else slice(0, half)
            z[place] = y[place] * PAIRS[kind](y).tanh()
            return z.square().sum(1)

        # Two examples that are no neighbours share a weight once in 32 proofs: all of six, in 1e9.
        with pytest.raises(InputError, match="depends on another example"):
            for _ in range(6):
                clipped_sum(net, losses, 0.5)


@given(st.integers(1, 300), st.integers(2, 16))
def test_weights_tell_neighbours_apart(examples: int, powers: int) -> None:
    v = layout.weights(examples, torch.zeros(1), powers=powers)
    assert v.shape == (examples,)
    assert (v[1:] != v[:-1]).all()
    assert set(v.abs().tolist()) <= {2.0**k for k in range(powers)}
    assert torch.equal(v * 3.3 / v, torch.full_like(v, 3.3)), "scaling is exact"


def test_weights_are_drawn_anew() -> None:
    one, two = (layout.weights(64, torch.zeros(1)) for _ in range(2))
    assert int((one == two).sum()) < 20  # 2 of 64 on average; 20 or more once in 1e14


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 99))
def test_rows_go_to_their_example(examples: int, steps: int, seed: int) -> None:
    own = torch.arange(examples)[:, None].expand(examples, steps)
    shaped = {
        layout.Layout(): own[..., None],
        layout.Layout(1): own.t()[..., None],
        layout.Layout(0, steps): own.t().reshape(-1, 1),
    }
    for at, x in shaped.items():
        assert at in layout.candidates(x.shape, examples)
        assert torch.equal(at.rows(x, examples)[..., 0], own)
        assert torch.equal(at.join(at.split(x, examples)), x)
    assert torch.equal(layout.Layout().rows(own.reshape(-1, 1), examples)[..., 0], own)


# Nothing is left behind


class Boom(Exception):
    pass


@pytest.mark.parametrize("when", ["forward", "backward", "losses"])
def test_an_error_in_the_loss_leaves_nothing_behind(when: str) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise Boom

    net, x, knowledge = net_of(4, 6, 2), torch.randn(5, 4), Knowledge()

    def losses() -> Any:
        y = net(x)
        if when == "forward":
            raise Boom
        return (
            (Fails.apply(y) if when == "backward" else y).square().sum(1 if when == "backward" else 0)
        )

    before = {name: (id(w), w.clone()) for name, w in net.named_parameters()}
    with pytest.raises((Boom, InputError)):
        clipped_sum(net, losses, 0.5, knowledge=knowledge, examples=5)
    assert torch._C._len_torch_function_stack() == 0
    assert torch.is_grad_enabled()
    for name, weight in net.named_parameters():
        assert (id(weight), weight.grad, weight.requires_grad) == (before[name][0], None, True)
        assert torch.equal(weight, before[name][1])
    exact(net, lambda: net(x).square().sum(1), knowledge=knowledge)


def test_nothing_is_patched() -> None:
    net, x = net_of(4, 6, 2), torch.randn(5, 4)
    forwards = [vars(type(m)).get("forward") for m in net.modules()]
    functions = (nn.functional.linear, torch.matmul, torch.Tensor.__add__)
    clipped_sum(net, lambda: net(x).sum(1), 0.5)
    assert [vars(type(m)).get("forward") for m in net.modules()] == forwards
    assert functions == (nn.functional.linear, torch.matmul, torch.Tensor.__add__)
    for module in net.modules():
        assert "forward" not in vars(module)
        assert not any(value for name, value in vars(module).items() if name.endswith("_hooks"))
    # The model trains as ever.
    net.zero_grad()
    net(x).sum().backward()
    assert net[0].weight.grad is not None


def test_what_was_proved_holds_no_tensors() -> None:
    net, x, knowledge = net_of(4, 6, 2), torch.randn(5, 4), Knowledge()
    clipped_sum(net, lambda: net(x).sum(1), 0.5, knowledge=knowledge)
    assert knowledge.choices
    assert not any(isinstance(part, torch.Tensor) for key in knowledge.choices for part in key)


# Sharp corners


def test_a_submodule_registered_twice() -> None:
    f = nn.Linear(4, 4)
    net = nn.ModuleDict({"one": f, "two": f, "head": nn.Linear(4, 2)})
    x = torch.randn(5, 3, 4)
    exact(net, lambda: net["head"](net["two"](net["one"](x).tanh())).square().sum((1, 2)))


def test_a_parameter_used_without_gradient() -> None:
    net, x = net_of(4, 2), torch.randn(5, 4)

    def losses() -> Any:
        with torch.no_grad():
            size = net[0].weight.norm() + net(x).sum(1)
        return net(x).square().sum(1) * size + (x @ net[0].weight.detach().t()).sum(1)

    exact(net, losses)


def test_a_second_model_with_the_same_parameters() -> None:
    net, x = net_of(4, 6, 2), torch.randn(5, 4)
    other = net_of(4, 6, 2)
    other[0].weight, other[2 - 1].weight = net[0].weight, net[1].weight
    other.requires_grad_(True)
    foreign = list(other[0].parameters())[1]
    exact(net, lambda: (other(x) + net(x)).square().sum(1))
    assert foreign.grad is None


def test_a_copy_of_the_model_is_not_trained() -> None:
    import copy

    net, x = net_of(4, 6, 2), torch.randn(5, 4)
    teacher = copy.deepcopy(net)
    exact(net, lambda: (net(x) - teacher(x + 1)).square().sum(1))
    assert all(w.grad is None for w in teacher.parameters())


def test_what_is_known_serves_training_and_evaluation() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    x, knowledge = torch.randn(5, 3, 4), Knowledge()

    def losses() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return net(x).square().sum((1, 2))

    for mode in (True, False, True, False):
        net.train(mode)
        exact(net, losses, knowledge=knowledge)


def test_a_parameter_that_is_used_now_and_then() -> None:
    net, knowledge = net_of(4, 4, 4), Knowledge()
    for turn in range(6):
        x = torch.randn(5, 4)
        used = net if turn % 2 else net[:1]
        exact(net, lambda used=used, x=x: used(x).square().sum(1), knowledge=knowledge)


def test_a_path_that_some_examples_take() -> None:
    net, knowledge = net_of(4, 4, 4), Knowledge()
    for seed in range(6):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        chosen = (x[:, :1] > 0).float()
        exact(net, lambda x=x, chosen=chosen: (net[0](x) * chosen + net[1](x) * (1 - chosen)).square().sum(1),
              knowledge=knowledge)  # fmt: skip


def test_an_output_that_leads_nowhere_at_first() -> None:
    net, knowledge = net_of(4, 4, 4), Knowledge()
    for turn in range(4):
        x = torch.randn(5, 4)

        def losses(x: Any = x, turn: int = turn) -> Any:
            y, aside = net[0](x), net[1](x)
            return (y + (aside if turn % 2 else aside.detach())).square().sum(1)

        exact(net, losses, knowledge=knowledge)


def test_parameters_in_any_order_of_memory() -> None:
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(5, 3, 6, 6)
    exact(net, lambda: net(x).square().flatten(1).sum(1))
    exact(net, lambda: net(x.to(memory_format=torch.channels_last)).square().flatten(1).sum(1))
    turned = nn.Linear(4, 3)
    turned.weight = nn.Parameter(torch.randn(4, 3).t())
    exact(turned, lambda: turned(x.flatten(1)[:, :4]).square().sum(1))
    bare = nn.ParameterList([torch.randn(4, 3).t()])
    exact(bare, lambda: (x.flatten(1)[:, :4, None] * bare[0].t()).square().sum((1, 2)))


def test_a_parameter_without_dimensions() -> None:
    net, x = (
        nn.ParameterDict({"scale": torch.tensor(1.5), "shift": torch.tensor(0.3)}),
        torch.randn(5, 4),
    )
    exact(net, lambda: (x * net["scale"] + net["shift"]).square().sum(1))


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (lambda net, x: net(x).sum(), "one loss per example"),
        (lambda net, x: net(x), "one loss per example"),
        (lambda net, x: [1.0], "one loss per example"),
        (lambda net, x: net(x).sum(1)[:3], "5 examples, but 3 losses"),
        (lambda net, x: net(x).sum(1).detach(), "no loss depends on a trained parameter"),
    ],
)
def test_losses_that_are_none(losses: Any, words: str) -> None:
    net, x = net_of(4, 2), torch.randn(5, 4)
    with pytest.raises(InputError, match=words):
        clipped_sum(net, lambda: losses(net, x), 0.5, examples=5)
    assert all(w.grad is None for w in net.parameters())


@pytest.mark.parametrize("pass_", [1, 2, 3])  # proved, proved again, known
def test_a_pass_leaves_nothing_for_the_garbage_collector(pass_):
    """On a GPU the graph of one batch is gigabytes, and Python's collector does not count them."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))
    x, knowledge = torch.randn(6, 4), Knowledge()

    def losses():
        return model(x).square().sum(1)

    for _ in range(pass_ - 1):
        gradients(model, losses, knowledge=knowledge)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gradients(model, losses, knowledge=knowledge)
        gc.collect()
        assert not [x for x in gc.garbage if isinstance(x, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
