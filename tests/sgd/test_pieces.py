"""Graphs in pieces: the same sums, each kind of piece compiled once, nothing shared that differs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from test_graphs import Made
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from transformers import GPT2Config, GPT2LMHeadModel
from zoo import torch

from sourdine.sgd import clipped_sum, pieces, rules
from sourdine.sgd.again import changed_by, make_again_, make_once_, memory, tidied
from sourdine.sgd.pieces import _cuts, _kind, _sound, by_pieces

WORDS = 50


def gpt2(layers: int, dropout: float = 0.1) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = GPT2Config(
            n_embd=16, n_layer=layers, n_head=2, vocab_size=WORDS, n_positions=8,
            bos_token_id=0, eos_token_id=0,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        )  # fmt: skip
        return GPT2LMHeadModel(config).train()


def data() -> dict[str, Any]:
    return {"ids": torch.arange(24).view(4, 6) * 7 % WORDS}


def loss(model: Any, batch: Any) -> Any:
    ids = batch["ids"]
    logits = model(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


class Counted:
    """A compiler that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.whole: Any = None

    def __call__(self, graph: Any) -> Any:
        self.whole = by_pieces(graph, lambda piece: self.seen.append(piece) or piece)
        return self.whole


def by_counted(model: Any) -> Counted:
    counted = Counted()
    made = Made(model, loss, 0.5, counted)
    torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert made.made == [True]
    return counted


def test_layers_share_their_pieces() -> None:
    counted = by_counted(gpt2(9))
    calls = sum(x.op == "call_module" for x in counted.whole.graph.nodes)
    assert len(counted.seen) <= 12 and calls >= 3 * 9


def test_what_is_cheap_is_made_again() -> None:
    """Of the activation function, layers of the forward pass hand on its input and its result only."""
    counted = by_counted(gpt2(6, dropout=0.0))
    tanh = torch.ops.aten.tanh.default
    makers = [piece for piece in counted.seen if any(x.target is tanh for x in piece.graph.nodes)]
    assert len(makers) > 1  # forward, and again for the backward pass
    for piece in makers:
        (end,) = piece.graph.find_nodes(op="output")
        assert all(x.target is not tanh for x in end.all_input_nodes)


class Clamped(nn.Module):
    """Layers that change a tensor in place after something was made from it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, ids: Any) -> Any:
        hidden = self.words(ids)
        for layer in self.layers:
            own = layer(nn.functional.layer_norm(hidden, (8,)))
            gate = torch.sigmoid(own)
            own.clamp_(max=3.0)
            hidden = hidden + own * gate
        return hidden


def test_nothing_is_made_again_from_what_was_changed_since() -> None:
    """The change does nothing in the first two batches, after which a graph is not looked at for a while."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Clamped(12)

    def own(model: Any, batch: Any) -> Any:
        return model(batch["ids"]).square().mean((1, 2))

    made = Made(model, own, 0.5, Counted())
    for batch in range(3):
        if batch == 2:
            with torch.no_grad():
                for layer in model.layers:
                    layer.bias.add_(torch.arange(8.0))
        torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert made.made == [True] * 3


def test_kinds_tell_values_from_operands() -> None:
    """A twin that takes the number 1 where the other takes operand 1, of one and the same shape."""

    def graph(build: Any) -> Any:
        made = torch.fx.Graph()
        x, y = made.placeholder("x"), made.placeholder("y")
        made.output(made.call_function(torch.ops.aten.add.Tensor, build(x, y)))
        return torch.fx.GraphModule({}, made)

    operand, number = graph(lambda x, y: (x, y)), graph(lambda x, y: (x, 1))
    assert _kind(operand) == _kind(graph(lambda x, y: (x, y))) != _kind(number)
    assert _kind(operand) != _kind(graph(lambda x, y: (y, x)))
    assert _kind(number) != _kind(graph(lambda x, y: (x, 2)))  # layers that differ in a setting


def test_a_stretch_is_cut_at_its_period() -> None:
    layer = list(range(40))
    row = [100, *layer * 5, 101, 102]
    assert _cuts(row) == [1, 41, 81, 121, 161, 201]
    assert _cuts(list(range(500))) == []
    assert _cuts(layer * 2) == []  # too short to be worth it


def changed_operand(x: Any) -> Any:
    t = x + 1
    y = t * 2
    t.mul_(10)
    return torch.sin(x) + y, t + 0


def changed_input(x: Any) -> Any:
    y = x * 2
    x.add_(1)
    return torch.sin(x) + y


def part_of_a_mask(x: Any) -> Any:
    mask = torch.ones_like(x)
    mask[1:].bernoulli_(0.5)
    return x * mask


def seen_before(x: Any) -> Any:
    mask = torch.zeros_like(x)
    view = mask[:2]
    mask.bernoulli_(0.9)
    return x[:2] * view


def drawn_input(x: Any) -> Any:
    x.bernoulli_(0.5)
    return x * 2


def other_shape(x: Any) -> Any:
    t = torch.sin(x)
    d = t.detach()
    t.unsqueeze_(0)
    return d.sum(0), t.sum(0)


def nothing(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    "run",
    [changed_operand, changed_input, part_of_a_mask, seen_before, drawn_input, other_shape, nothing],
)
def test_wherever_it_is_cut_a_graph_does_the_same(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for every in (1, 2, 3, 100):
        monkeypatch.setattr(
            pieces, "_cuts", lambda kinds, every=every: list(range(every, len(kinds), every))
        )
        given, own = torch.arange(4.0) + 1, torch.arange(4.0) + 1
        cut = by_pieces(make_fx(run, tracing_mode="fake")(given), lambda piece: piece)
        torch.manual_seed(0)
        wanted = run(own)
        torch.manual_seed(0)
        torch.testing.assert_close(cut(given), wanted)
        torch.testing.assert_close(given, own)


def operations(run: Any, *shape: int) -> tuple[Any, list[Any]]:
    graph = make_fx(run, tracing_mode="fake")(torch.ones(shape or 3))
    return graph, [x for x in graph.graph.nodes if x.op == "call_function"]


def test_no_cut_between_the_making_of_a_tensor_and_its_change() -> None:
    def run(x: Any) -> Any:
        made = torch.zeros_like(x)  # 0
        other = x * 2  # 1
        made.add_(other)  # 2
        return made + 1  # 3

    assert _sound([1, 2, 3], operations(run)[1]) == [3]
    # The twin: an input of the whole may be changed in any piece.
    assert _sound([1, 2], operations(lambda x: x.mul_(2).add_(x * 3))[1]) == [1, 2]


def test_what_is_random_or_changed_is_never_made_again() -> None:
    def run(x: Any) -> Any:
        chance = torch.rand_like(x)
        changed = x * 2
        changed.add_(1)
        cheap = x * 3
        return chance + changed + cheap

    graph, nodes = operations(run)
    place = {node: int(at >= len(nodes) - 2) for at, node in enumerate(nodes)}  # the sums are apart
    make_again_(nodes, place, {x for node in nodes for y in changed_by(node) for x in memory(y)})
    targets = [str(node.target) for node in place]
    assert targets.count("aten.mul.Tensor") == 3  # only x * 3 twice
    assert targets.count("aten.rand_like.default") == 1
    graph.recompile()
    torch.manual_seed(0)
    found = graph(torch.ones(3))
    torch.manual_seed(0)
    torch.testing.assert_close(found, run(torch.ones(3)))


def test_what_is_read_late_is_made_where_its_source_is_read_last() -> None:
    """As the result of an activation function: the backward pass reads what it was made from."""

    def run(x: Any) -> Any:
        before = x @ x
        active = before.tanh()
        out = active @ x
        back = before.sin()
        return out, back, (active * 2) @ x, active.t() @ back

    graph, nodes = operations(run, 3, 3)
    where = {"mm": [0, 0, 2, 2], "tanh": [0], "sin": [1], "mul": [2], "t": [2]}
    kinds = {name: iter(pieces) for name, pieces in where.items()}
    place = {node: next(kinds[str(node.target).split(".")[1]]) for node in nodes}
    assert [place[node] for node in nodes] == sorted(place.values())
    make_again_(nodes, place, set())
    made = [place[node] for node in place if "tanh" in str(node.target)]
    assert sorted(made) == [0, 1]  # for its first reader, and once more for all that come late
    graph.graph.lint()
    graph.recompile()
    x = torch.linspace(-1, 1, 9).view(3, 3)
    for found, wanted in zip(graph(x), run(x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_what_is_made_twice_is_kept_as_it_is_read() -> None:
    """In half precision, as the inputs of layers are; not what it was rounded from."""

    def run(x: Any) -> Any:
        exact = x.softmax(1)
        out = exact.bfloat16() @ x.bfloat16()
        return out, exact.bfloat16().reshape(1, 3, 3) @ out

    graph, nodes = operations(run, 3, 3)
    last = max(at for at, node in enumerate(nodes) if "mm" in str(node.target))
    late = next(at for at, node in enumerate(nodes) if "mm" in str(node.target)) + 1
    assert late < last
    first = set(nodes[:late])
    nodes = make_once_(nodes, set())
    place = {node: int(node not in first) for node in nodes}
    assert sum("_to_copy" in str(node.target) for node in nodes) == 2  # of exact, and of x
    make_again_(nodes, place, set())
    softmax = next(node for node in nodes if "softmax" in str(node.target))
    assert all(place[user] == 0 for user in softmax.users)
    graph.recompile()
    x = torch.linspace(-1, 1, 9).view(3, 3)
    for found, wanted in zip(graph(x), run(x), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("tied", [False, True])
def test_a_vocabulary_may_be_filled_up(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: outputs of zeros, and gradients with them, change nothing."""
    model = gpt2(1, dropout=0.0)
    if not tied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() * 0.5)

    def sums(batch: Any) -> Any:
        model.zero_grad()
        norms = clipped_sum(model, lambda: loss(model, batch), 0.5).norms
        return norms, torch.cat([x.grad.flatten() for x in model.parameters()])

    for width in (1, 20):  # the second: long enough for gradients to be formed
        batch = {"ids": data()["ids"].repeat(1, width)[:, :8]}
        wanted = sums(batch)
        with monkeypatch.context() as changed:
            changed.setattr(rules, "_missing", lambda tape, x, weight: -len(weight) % 64)
            torch.testing.assert_close(sums(batch), wanted)


class InSingle(TorchFunctionMode):
    """Autocast as on a GPU: layer norms, softmax and losses are made in single precision."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (nn.functional.layer_norm, nn.functional.softmax):
            args = (args[0].float(), *args[1:])
        if func is nn.functional.cross_entropy:  # but logarithms in half precision
            with torch.autocast("cpu", enabled=False):
                logs = args[0].log_softmax(1).float()
            return nn.functional.nll_loss(logs, args[1], reduction=kwargs["reduction"])
        return func(*args, **kwargs)


@pytest.mark.parametrize("mode", [nullcontext, InSingle])
def test_tidying_changes_no_bit(mode: Any) -> None:
    """Layers that share an input read one rounded copy of it; dropout and sums stay as they were."""
    casts: list[int] = []

    def half(model: Any, batch: Any) -> Any:
        ids = batch["ids"]
        with torch.autocast("cpu", torch.bfloat16), mode():
            logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
            each = nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        return each.view(len(ids), -1).mean(1)

    def counted(graph: Any) -> Any:
        casts.append(sum("_to_copy" in str(node.target) for node in graph.graph.nodes))
        return graph

    made = [
        Made(gpt2(2), half, 0.5, compiler)
        for compiler in (counted, lambda graph: counted(tidied(graph)))
    ]
    found = [own.sums(data()) for own in made]
    assert all(own.made == [True] for own in made), [own.graphs.reasons for own in made]
    assert torch.equal(*found) and float(found[0].norm()) > 0
    assert casts[1] < casts[0] - 4


def test_a_gradient_in_the_place_of_its_logits_is_made_within_one_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pieces end neither between logits and their gradient, nor does one read them in between."""
    monkeypatch.setattr(rules, "_missing", lambda tape, x, weight: -len(weight) % 64)

    def half(model: Any, batch: Any) -> Any:
        ids = batch["ids"]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids).logits
        labels = nn.functional.pad(ids[:, 1:], (0, 1), value=-100).flatten()
        each = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, reduction="none")
        return each.view(len(ids), -1).mean(1)

    counted, model = Counted(), gpt2(6, dropout=0.0)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() * 0.5)
    made = Made(model, half, 0.5, counted)
    found, wanted = made.sums(data()), made.wanted(data())
    assert made.made == [True]
    assert sum("by_class_" in piece.code for piece in counted.seen) == 1 < len(counted.seen)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2


def test_copies_in_higher_precision_are_made_for_each_reader() -> None:
    """Made once, they would be kept from the norms of a layer to its sums."""

    def run(x: Any) -> Any:
        half = x.bfloat16()
        return half.float().sum(), x.bfloat16().float().norm()

    graph, _ = operations(run, 3, 3)
    tidied(graph)
    kinds = [node.meta["val"].dtype for node in graph.graph.nodes if "_to_copy" in str(node.target)]
    assert sorted(map(str, kinds)) == ["torch.bfloat16", "torch.float32", "torch.float32"]
    x = torch.linspace(-1, 1, 9).view(3, 3)
    for found, wanted in zip(graph(x), run(x), strict=True):
        assert torch.equal(found, wanted)


def test_statistics_that_a_layer_changes_are_read_twice() -> None:
    """The schema of batch norm does not say that it changes them."""

    def run(x: Any) -> Any:
        mean, deviation = x.mean(0), x.var(0)
        before = mean * 2
        nn.functional.batch_norm(x, mean, deviation, training=True)
        return before, mean * 2

    graph, _ = operations(run, 3, 3)
    x = torch.linspace(-1, 1, 9).view(3, 3).square()
    for found, wanted in zip(tidied(graph)(x), run(x), strict=True):
        assert torch.equal(found, wanted)


def casts_of(graph: Any) -> list[str]:
    """Kinds of numbers that something is cast to, in order."""
    found = [node for node in graph.graph.nodes if "_to_copy" in str(node.target)]
    return [str(node.meta["val"].dtype).removeprefix("torch.") for node in found]


def test_halves_are_not_widened_for_nothing() -> None:
    """Rounded back they are what they were, and sums with a wide tensor are wide: to the bit."""

    def run(x: Any) -> Any:
        half = x.bfloat16()
        again = (half.float().bfloat16() * 2).float()
        return again + x, x - half.float(), half.float() * x, half.float().sum(0)

    graph, _ = operations(run, 3, 3)
    assert len(casts_of(graph)) == 7
    assert casts_of(tidied(graph)) == ["bfloat16", "float32"]  # the sum needs it
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    for found, wanted in zip(graph(x), run(x), strict=True):
        assert torch.equal(found, wanted) and found.dtype == wanted.dtype


@pytest.mark.parametrize("case", range(6))
def test_what_decides_a_result_stays_wide(case: int) -> None:
    """Two halves, a half and a single number, what is changed in place, float16 beside bfloat16."""

    def run(x: Any) -> Any:
        half, one = x.bfloat16(), x.sum()
        if case == 0:
            return half.float() + (half * 3).float()
        if case == 1:
            return half.float() * one
        if case == 2:
            wide = half.float()
            return wide.mul_(1.001).bfloat16(), wide + x
        if case == 3:
            return (half * 1e-6).float().half().float() + x  # which are small there
        if case == 4:
            back = half.float().bfloat16()
            return back.mul_(3.0), half * 2
        kept = half.float()
        back = kept.bfloat16()
        half.mul_(3.0)
        return back + half, kept * x

    graph, _ = operations(run, 3, 3)
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    found, wanted = tidied(graph)(x), run(x)
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, wanted)), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype


def test_what_is_changed_later_is_made_twice() -> None:
    def run(x: Any) -> Any:
        first = x * 2
        first.add_(1)
        return first, x * 2

    graph, _ = operations(run, 2)
    for found, wanted in zip(tidied(graph)(torch.ones(2)), run(torch.ones(2)), strict=True):
        assert torch.equal(found, wanted)
