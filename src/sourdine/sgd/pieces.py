"""A graph cut where it repeats itself, so that a compiler sees each kind of piece once.

The layers of a language model are alike, and so is what a graph does for each of them: forward,
backward, norms and sums. A compiler that is given the whole graph works through every layer; of pieces,
many of which do the same to other tensors, it sees a quarter or less, however deep the model.

Guarantee: the pieces one after the other do what the graph does. Two share one compiled program only if
they have the same operations with the same settings on operands of the same shapes, connected in the
same way; torch's compiler itself checks the shapes and the memory of what it is called with. A tensor
that is changed in place is either an input of the whole, or made and changed within one piece.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module

from sourdine.sgd.again import changed_by, changed_memory, make_again_, make_once_, memory
from sourdine.sgd.softmax import shorten_

_LEAST = 24  # operations of a piece
_GAIN = 96  # operations that a stretch saves the compiler
_TRIED = 64  # periods


def by_pieces(graph: fx.GraphModule, compiler: Callable[[fx.GraphModule], Any]) -> Any:
    """The same graph as calls of its pieces, each kind of which was given to `compiler` once."""
    _tidied(graph)
    shorten_(graph.graph)
    nodes = [x for x in graph.graph.nodes if x.op not in ("placeholder", "output")]
    if not nodes:
        return compiler(graph)
    changed = changed_memory(nodes)
    nodes = make_once_(nodes, changed)
    cuts = _sound(_cuts([hash(_same(x)) for x in nodes]), nodes)
    place = dict[fx.Node, int]()
    for at, (start, end) in enumerate(itertools.pairwise([0, *cuts, len(nodes)])):
        place |= dict.fromkeys(nodes[start:end], at)
    make_again_(nodes, place, changed)
    whole: fx.GraphModule = split_module(
        graph, graph, lambda node: place[node], keep_original_order=True
    )
    whole.graph.set_codegen(graph.graph._codegen)  # which takes lists and mappings apart
    whole.recompile()
    made = dict[Hashable, Any]()
    for name, piece in list(whole.named_children()):
        if isinstance(piece, fx.GraphModule):
            key = _kind(piece)
            if key not in made:
                made[key] = compiler(piece)
            whole.set_submodule(name, made[key])
    return whole


def _tidied(graph: fx.GraphModule) -> None:
    """Without what is for autograd only, and so that torch's compiler (2.13) gets it right.

    It orders the numbers of a tensor as it likes, so that what was a view may have to be copied, and
    for a CPU it reads what `bernoulli_` writes before it is there.
    """
    nodes = list(graph.graph.nodes)
    changed = changed_memory(nodes)
    for node in nodes:
        if node.target is torch.ops.aten.bernoulli_.float and _is_dropout(node):
            node.target = torch.ops.sourdine.drawn.default
        elif changed.intersection(memory(node)):
            continue  # also in its shape, perhaps
        elif node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def _is_dropout(node: fx.Node) -> bool:
    """Whether nobody else knows the memory that is drawn."""
    empty: Any = node.args[0]
    fresh = empty.target is torch.ops.aten.empty_like.default and list(empty.users) == [node]
    return fresh and not node.kwargs


@torch.library.custom_op("sourdine::drawn", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def drawn(x: Tensor, p: float = 0.5) -> Tensor:
    """Ones with probability p, and zeros, in the shape of x."""
    return torch.empty_like(x).bernoulli_(p)


@drawn.register_fake
def _(x: Tensor, p: float = 0.5) -> Tensor:
    return torch.empty_like(x)


def _same(node: fx.Node) -> Hashable:
    """What an operation shares with its twin in another layer: all but which operands it takes."""
    seen = fx.node.map_arg((node.args, node.kwargs), lambda x: _shape(x.meta.get("val")))
    return node.op, str(node.target), repr(seen), repr(_shape(node.meta.get("val")))


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), tuple(value.stride()), value.dtype, value.device
    if isinstance(value, list | tuple):
        return tuple(_shape(x) for x in value)
    return type(value)


def _cuts(kinds: Sequence[int]) -> list[int]:
    """Where to cut: at the beginning of every repetition, the longest stretches first come.

    A stretch with a period p goes on as long as each operation is like the one p before.
    """
    row = torch.tensor(kinds)
    windows = [hash(tuple(kinds[at : at + _LEAST])) for at in range(len(kinds) - _LEAST + 1)]
    places = defaultdict[int, list[int]](list)
    for at, window in enumerate(windows):
        places[window].append(at)
    cuts, at = set[int](), 0
    while at < len(windows):
        best, period = 0, 0
        later = [x for x in places[windows[at]] if x >= at + _LEAST][:_TRIED]
        for other in later:
            differs = (row[at : len(row) - (other - at)] != row[other:]).nonzero()
            alike = int(differs[0]) if len(differs) else len(row) - other
            if alike >= max(other - at, _GAIN) and alike + other - at > best + period // 2:
                best, period = alike + other - at, other - at
        if best:
            cuts |= set(range(at, at + best, period)) | {at + best // period * period}
            at += best // period * period
        else:
            at += 1
    return sorted(cuts - {0, len(kinds)})


def _sound(cuts: Sequence[int], nodes: Sequence[fx.Node]) -> list[int]:
    """Without the cuts between the making of a tensor and its last change in place."""
    made, last = dict[Any, int](), dict[int, int]()
    for node in nodes[0].graph.nodes:
        if node.op == "placeholder":
            made |= dict.fromkeys(memory(node), len(nodes))
    for at, node in enumerate(nodes):
        for changed in changed_by(node):
            last |= {made[x]: at for x in memory(changed) if x in made}
        for x in memory(node):
            made.setdefault(x, at)
    return [x for x in cuts if not any(start < x <= end for start, end in last.items())]


def _kind(piece: fx.GraphModule) -> Hashable:
    """Equal for pieces that do the same: operations, settings, shapes, connections, results."""
    order = {node: at for at, node in enumerate(piece.graph.nodes)}
    return tuple(
        (
            node.op,
            "" if node.op == "placeholder" else str(node.target),
            repr(fx.node.map_arg((node.args, node.kwargs), lambda x: ("of", order[x]))),  # no number
            repr(_shape(node.meta.get("val"))),
        )
        for node in piece.graph.nodes
    )
