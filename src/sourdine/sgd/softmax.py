"""The gradient of a cross-entropy, without the sum over its classes.

Autograd makes it in two steps: a row of zeros with -g in the place of the label (`nll_loss_backward`),
and x - softmax * sum(x) of that row (`_log_softmax_backward_data`). A compiler does not know that the
sum is -g, and adds up a whole vocabulary of zeros for each token. Of GPT-2's step that is a fortieth.

Guarantee: what takes their place is g * (softmax - 1 at the label), the same but for the last digit at
the label itself; zero where the label is the one that is ignored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

_A = torch.ops.aten


def shorten_(graph: fx.Graph) -> None:
    """Has every gradient of a cross-entropy of single labels, not averaged or weighted, made so."""
    for node in list(graph.nodes):
        if node.target is not _A._log_softmax_backward_data.default:
            continue
        given: Any = node.args
        row, logs, dim, kind = given
        loss = _origin(row)
        if loss.target is not _A.nll_loss_backward.default:
            continue
        given = loss.args
        g, same, labels, weight, reduction, ignored, _ = given
        one_row_each = logs.meta["val"].dim() == 2 and dim in (1, -1)
        if _origin(same) is not _origin(logs) or weight is not None or reduction or not one_row_each:
            continue
        rounded = row.meta["val"].dtype
        node.replace_all_uses_with(_inlined(graph, node, (g, logs, labels), ignored, rounded, kind))
        graph.erase_node(node)
        while row is not None and not row.users:
            before = None if row is loss else row.all_input_nodes[0]
            graph.erase_node(row)
            row = before


def _origin(node: fx.Node) -> fx.Node:
    """What a node was before it was copied or rounded."""
    while node.target in (_A.detach.default, _A.alias.default, _A._to_copy.default):
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


def _inlined(graph: fx.Graph, before: fx.Node, given: tuple[fx.Node, ...], *fixed: Any) -> fx.Node:
    """The operations of `gradient`, in front of a node."""
    values = [x.meta["val"] for x in given]
    traced = make_fx(lambda *own: gradient(*own, *fixed), tracing_mode="fake")(*values)
    places = [x for x in traced.graph.nodes if x.op == "placeholder"]
    with graph.inserting_before(before):
        found: Any = graph.graph_copy(traced.graph, dict(zip(places, given, strict=True)))
    return found  # type: ignore[no-any-return]
