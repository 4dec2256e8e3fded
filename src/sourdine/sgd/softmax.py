"""The gradient of a cross-entropy, without the sum over its classes.

Autograd makes it in two steps: a row of zeros with -g in the place of the label (`nll_loss_backward`),
and x - softmax * sum(x) of that row (`_log_softmax_backward_data`). A compiler does not know that the
sum is -g, and adds up a whole vocabulary of zeros for each token. Of GPT-2's step that is a fortieth.

Where the classes are those of a vocabulary that was filled up with outputs of zeros (`_missing` in
sgd/rules.py), the gradient is made by one kernel, zeros included: a compiler's own, which fuses it with
what fills it up, reads the numbers of a row anew for each class, and takes three times as long. It is
written in the place of the logits, which nobody reads any more: this is where a step needs most memory.
Where anything else is made of them, be it before, they stay: a compiler (torch 2.13) makes it where it
is read, of logits that are gone by then. A graph returns no losses (sgd/tracing.py).

Guarantee: what takes their place is g * (softmax - 1 at the label), the same but for the last digit at
the label itself; zero where the label is the one that is ignored. The kernel rounds to half precision
once, in the end, where autograd rounds logarithms before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from sourdine.sgd.again import changed_memory, memory
from sourdine.sgd.gpu import kernels

_A = torch.ops.aten
_COPIES = (_A.detach.default, _A.alias.default, _A._to_copy.default)
_VIEWS = (
    _A.detach.default, _A.alias.default, _A.reshape.default, _A._unsafe_view.default, _A.view.default
)  # fmt: skip
_MADE_LATE = (*_VIEWS, _A._to_copy.default, _A._log_softmax.default)  # where it is read, by a compiler


def shorten_(graph: fx.Graph) -> None:
    """Has every gradient of a cross-entropy of single labels, not averaged or weighted, made so."""
    _forget_values_(graph)
    for node in list(graph.nodes):
        if node.target is not _A._log_softmax_backward_data.default:
            continue
        given: Any = node.args
        row, logs, dim, kind = given
        loss = _origin(row)
        if loss.target is not _A.nll_loss_backward.default:
            continue
        given = loss.args
        g, same, labels, weight, reduction, ignored, count = given
        one_row_each = logs.meta["val"].dim() == 2 and dim in (1, -1)
        if _origin(same) is not _origin(logs) or weight is not None or reduction or not one_row_each:
            continue
        rounded = row.meta["val"].dtype
        filled, padded = _filled_up(node), _padded(logs)
        gone = {node, loss}
        gone |= {x for x in count.all_input_nodes if all(gone.issuperset(y.users) for y in x.users)}
        if filled is not None and padded is not None and _takes_place(filled, padded, gone):
            x: Any = _origin(logs).args[0]
            highest, total = _inlined(graph, _origin(logs), _normalizer, (x,))
            given, classes = (g, padded, highest, total, labels), x.meta["val"].shape[1]
            filled.replace_all_uses_with(_inlined(graph, filled, _of_padded, given, classes, ignored))
            _erase(filled)
        else:
            given = (g, logs, labels)
            node.replace_all_uses_with(_inlined(graph, node, gradient, given, ignored, rounded, kind))
            _erase(node)


def _forget_values_(graph: fx.Graph) -> None:
    """Takes out what nobody reads; of losses, autograd takes no more than how many they are."""
    for node in list(graph.nodes):
        if node.target is _A.ones_like.default and node.meta["val"].is_contiguous():
            ones = node.meta["val"]
            kind = {"dtype": ones.dtype, "device": ones.device}
            with graph.inserting_before(node):
                made = graph.call_function(_A.full.default, (list(ones.shape), 1.0), kind)
            made.meta = node.meta
            node.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _erase(node: fx.Node) -> None:
    """Takes out what nobody reads, and what only that has read."""
    left, gone = [node], set[fx.Node]()
    while left:
        node = left.pop()
        if node.op == "call_function" and not node.users and node not in gone:
            left += node.all_input_nodes
            node.graph.erase_node(node)
            gone.add(node)


def _origin(node: fx.Node) -> fx.Node:
    """What a node was before it was copied or rounded."""
    while node.target in _COPIES:
        node = node.all_input_nodes[0]
    return node


def gradient(
    g: Tensor, logs: Tensor, labels: Tensor, ignored: int, rounded: torch.dtype, kind: torch.dtype
) -> Tensor:
    """By the logits (N, C), whose log-softmax is `logs`, where the losses have gradients g (N).

    Those are rounded as autograd rounds them; all else is done in single precision, as it does.
    """
    logs = logs.to(torch.promote_types(logs.dtype, torch.float32))
    classes = torch.arange(logs.shape[1], device=logs.device)
    there = (classes == labels.unsqueeze(1)).to(logs.dtype)
    counted = torch.where(labels == ignored, torch.zeros_like(g), g).to(rounded).to(logs.dtype)
    return ((logs.exp() - there) * counted.unsqueeze(1)).to(kind)


def _filled_up(node: fx.Node) -> fx.Node | None:
    """The node that fills the gradient up with zeros in its last direction, if only that reads it."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        given: Any = node.args
        if node.target is _A.slice_backward.default:
            _, shape, dim, start, _, step = given
            return node if (dim % len(shape), start, step) == (len(shape) - 1, 0, 1) else None
        if node.target not in (*_VIEWS, _A._to_copy.default):
            return None
    return None


def _padded(logs: fx.Node) -> fx.Node | None:
    """The logits of which `logs` is the log-softmax, before those of zeros were cut off, row by row."""
    node: Any = logs
    while node.target in (*_VIEWS, _A._to_copy.default, _A._log_softmax.default):
        node = node.args[0]
    if node.target is not _A.slice.Tensor or len(node.args) != 4:
        return None
    whole, dim, start, _ = node.args
    last = whole.meta["val"].dim() - 1
    rows = node.meta["val"].shape[-1] == logs.meta["val"].shape[-1]  # and not several losses of each
    return whole if rows and (dim % (last + 1), start) == (last, 0) else None


def _takes_place(filled: fx.Node, padded: fx.Node, gone: set[fx.Node]) -> bool:
    """Whether gradients and logits have one shape and are halves, and only what goes has read these."""
    x, y = filled.meta["val"], padded.meta["val"]
    halves = x.dtype == y.dtype in (torch.bfloat16, torch.float16)
    if not (halves and x.shape == y.shape and x.is_contiguous() and y.is_contiguous()):
        return False
    nodes, own = list(filled.graph.nodes), set(memory(padded))
    given = {x for node in nodes if node.op == "placeholder" for x in memory(node)}
    if own.intersection(given | changed_memory(nodes)):
        return False
    made = {node for node in nodes if own.intersection(memory(node))}
    for node in nodes:
        if node.target in _MADE_LATE and made.intersection(node.all_input_nodes):
            made.add(node)
    return all(user in made or user in gone for node in made for user in node.users)


def _normalizer(x: Tensor) -> tuple[Tensor, Tensor]:
    """The highest of each row, and the logarithm of the sum of exp(x - highest)."""
    x = x.float()
    highest = x.amax(1, keepdim=True)
    return highest, (x - highest).exp().sum(1, keepdim=True).log()


def _of_padded(
    g: Tensor,
    padded: Tensor,
    highest: Tensor,
    total: Tensor,
    labels: Tensor,
    classes: int,
    ignored: int,
) -> Tensor:
    """The gradient by all logits (..., P), of which the first so many are classes, in their place."""
    counted = torch.where(labels == ignored, torch.zeros_like(g), g).float()
    by_class_(padded, highest, total, labels, counted, classes)
    return padded


@torch.library.custom_op("sourdine::by_class_", mutates_args=("logits",))
def by_class_(
    logits: Tensor, highest: Tensor, total: Tensor, labels: Tensor, g: Tensor, classes: int
) -> None:
    """Makes g * (softmax - 1 at the label) of logits (..., P), N rows in all.

    Their log-softmax is logits - highest - total, for the first so many; zero for the others.
    """
    if quick := kernels(logits):
        quick.by_class_(logits, highest, total, labels, g, classes)
        return
    rows = logits.view(len(labels), logits.shape[-1])
    logs = (rows[:, :classes].float() - highest) - total
    rows[:, :classes] = gradient(g, logs, labels, -1, torch.float32, logits.dtype)
    rows[:, classes:] = 0


def _inlined(
    graph: fx.Graph, before: fx.Node, what: Any, given: tuple[fx.Node, ...], *fixed: Any
) -> Any:
    """The operations of a function, in front of a node, and what it returns."""
    values = [x.meta["val"] for x in given]
    traced = make_fx(lambda *own: what(*own, *fixed), tracing_mode="fake")(*values)
    places = [x for x in traced.graph.nodes if x.op == "placeholder"]
    with graph.inserting_before(before):
        return graph.graph_copy(traced.graph, dict(zip(places, given, strict=True)))
