"""What is made again instead of kept, and what is made once instead of twice.

Cheap values that are made twice from the same ones are made once (`tidied`), as when several layers
round one input to half precision. What is widened to single precision only to be rounded back, or to be
added to something that is wide, is not widened: operations widen what they read by themselves.

A compiler keeps every value that a later piece of a graph reads (sgd/pieces.py). Some cost nothing to
make again from others that are kept in any case or are smaller, such as the five inner values of the
activation function of GPT-2: the same operations on the same values, fused into what reads them.

Guarantee: what is made again, or once, is made by the same operations from the same values, none of
which is random or changed in place: not a bit of any result is another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

_A = torch.ops.aten
_VIEWS = frozenset(
    (
        _A.reshape.default, _A.view.default, _A._unsafe_view.default, _A.t.default, _A.expand.default,
        _A.transpose.int, _A.permute.default, _A.unsqueeze.default, _A.squeeze.dim, _A.slice.Tensor,
        _A.select.int, _A.alias.default,
    )
)  # fmt: skip
# Besides all that torch marks as elementwise.
_CHEAP = _VIEWS | {
    _A._to_copy.default, _A.scalar_tensor.default, _A.full.default, _A.arange.default, _A.arange.start
}  # fmt: skip
_PROMOTE = (_A.add.Tensor, _A.sub.Tensor, _A.mul.Tensor)  # the wider of two operands decides
_STATISTICS = (_A.native_batch_norm.default, _A.cudnn_batch_norm.default)
# Sums, into which compilers fuse what they read. Matrix products want it in memory.
_READERS = frozenset(
    (_A.sum.dim_IntList, _A.native_layer_norm.default, _A.native_layer_norm_backward.default)
)


def make_again_(nodes: Sequence[fx.Node], place: dict[fx.Node, int], changed: set[Any]) -> None:
    """Copies what is cheap into the later pieces that read it, where that leaves less to keep.

    place: the piece of each node. changed: memory that something changes in place.
    """
    crossing = {x for x in nodes if any(place.get(user, 0) > place[x] for user in x.users)}
    cheap = {x for x in nodes if _fixed(x, changed)}
    wanted = [x for x in nodes if x in crossing and x in cheap and _read_by_fused(x, place, cheap)]
    kept = crossing.difference(wanted)
    there = {x for node in kept for x in memory(node)}
    chosen = set[fx.Node]()
    for group, roots in _groups(wanted, kept, cheap, place):
        if _bytes(group, there) > _bytes(roots, there):
            chosen |= group
    first = {place[x]: x for x in reversed(nodes)}
    for node in wanted:  # in their order, so that like pieces stay alike
        if node in chosen:
            later = defaultdict[int, list[fx.Node]](list)
            for user in _later(node, place):
                later[place[user]].append(user)
            for piece, users in later.items():
                _copy(node, piece, users, place, first, cheap)
    for node in nodes:
        if node in cheap and node not in chosen and (piece := _in_time(node, place, cheap)):
            _copy(node, piece, _later(node, place), place, first, cheap)


def tidied(graph: fx.GraphModule) -> fx.GraphModule:
    """The same values to the bit, by fewer operations: without what is for autograd only, or is twice.

    Layers that read one input in half precision have it rounded for each of them, and kept.
    """
    nodes = list(graph.graph.nodes)
    changed = changed_memory(nodes)
    for node in nodes:
        if node.target is _A.detach.default and not changed.intersection(memory(node)):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    left = make_once_([x for x in graph.graph.nodes if x.op == "call_function"], changed)
    _leave_narrow_(left, changed)
    graph.recompile()
    return graph


def _leave_narrow_(nodes: Sequence[fx.Node], changed: set[Any]) -> None:
    """Halves that are made wide for nothing stay as they are; every number stays the same.

    A half that is widened and rounded back is itself, and sums and products of a wide and a half tensor
    are made of wide ones in any case.
    """
    for node in nodes:
        for wide in [x for x in node.all_input_nodes if _widens(x) and _fixed(x, changed)]:
            half: Any = wide.args[0]
            if _like(node, half) and _fixed(node, changed):
                node.replace_all_uses_with(half)
            elif node.target in _PROMOTE and _other_is_wide(node, wide):
                node.replace_input_with(wide, half)
    for node in reversed(nodes):
        if node.target is _A._to_copy.default and not node.users:
            node.graph.erase_node(node)


def _like(node: fx.Node, other: fx.Node) -> bool:
    """Whether it is a copy of something that is like this already."""
    if node.target is not _A._to_copy.default:
        return False
    x, y = node.meta["val"], other.meta["val"]
    same = x.shape == y.shape and x.stride() == y.stride() and x.device == y.device
    return bool(same and x.dtype == y.dtype)


def _other_is_wide(node: fx.Node, wide: fx.Node) -> bool:
    """Whether the operand beside this one alone decides that the result is wide."""
    source: Any = wide.args[0]
    kind, device = node.meta["val"].dtype, source.meta["val"].device
    values = [x.meta["val"] for x in node.all_input_nodes if x is not wide]
    return any(x.dtype == kind and x.dim() and x.device == device for x in values)


def make_once_(nodes: Sequence[fx.Node], changed: set[Any]) -> list[fx.Node]:
    """What is cheap and made twice from the same values is made once; the nodes that are left.

    Not what is larger than those values: it would be kept from its first reader to the last.
    """
    seen, left = dict[Any, fx.Node](), list[fx.Node]()
    for node in nodes:
        if _fixed(node, changed) and not _widens(node):
            key = (node.target, repr((node.args, node.kwargs)))
            if seen.setdefault(key, node) is not node:
                node.replace_all_uses_with(seen[key])
                node.graph.erase_node(node)  # or what it was made from would be kept for it
                continue
        left.append(node)
    return left


def _widens(node: fx.Node) -> bool:
    """Whether it is a copy in higher precision."""
    if node.target is not _A._to_copy.default:
        return False
    source: Any = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    floats = before.is_floating_point() and after.is_floating_point()
    return bool(floats and after.itemsize > before.itemsize)


def changed_by(node: fx.Node) -> list[fx.Node]:
    """The operands that an operation changes in place."""
    if node.target in _STATISTICS:  # whose schemas do not say so
        return [x for x in node.args[3:5] if isinstance(x, fx.Node)]
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    found = list[Any]()
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(node.args[at] if at < len(node.args) else node.kwargs.get(argument.name))
    return [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, fx.Node)]


def changed_memory(nodes: Iterable[fx.Node]) -> set[int]:
    """All memory that something changes in place."""
    return {x for node in nodes for operand in changed_by(node) for x in memory(operand)}


def memory(node: fx.Node) -> list[int]:
    """The memory of all that a node returns, by number."""
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return [x.untyped_storage()._cdata for x in values if isinstance(x, Tensor)]


def _cheap(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), Tensor):
        return False
    known = op in _CHEAP or torch.Tag.pointwise in op.tags
    return known and not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _fixed(node: fx.Node, changed: set[Any]) -> bool:
    """Whether it is cheap, and neither it nor what it is made from is ever changed in place."""
    own = (node, *node.all_input_nodes)
    return _cheap(node) and not any(changed.intersection(memory(x)) for x in own)


def _read_by_fused(node: fx.Node, place: dict[fx.Node, int], cheap: set[fx.Node]) -> bool:
    """Whether no later piece reads it with a matrix product, say, and nobody reads it in the end."""
    left = [user for user in node.users if user not in place or place[user] > place[node]]
    while left:
        user = left.pop()
        if user not in place or not (user in cheap or user.target in _READERS):
            return False
        if user.target in _VIEWS:
            left.extend(user.users)
    return True


def _roots(node: fx.Node, place: dict[fx.Node, int], cheap: set[fx.Node]) -> set[fx.Node]:
    """What a value is made from, by cheap operations of its own piece, but for the whole's inputs."""
    found, seen, left = set[fx.Node](), {node}, [node]
    while left:
        for x in left.pop().all_input_nodes:
            if x in cheap and place[x] == place[node] and x not in seen:
                seen.add(x)
                left.append(x)
            elif x not in seen and x in place:
                found.add(x)
    return found


def _groups(
    wanted: Iterable[fx.Node], kept: set[fx.Node], cheap: set[fx.Node], place: dict[fx.Node, int]
) -> list[tuple[set[fx.Node], set[fx.Node]]]:
    """Values that would need the same new roots to be kept, and those roots."""
    groups: list[tuple[set[fx.Node], set[fx.Node]]] = []
    for node in wanted:
        group, roots = {node}, _roots(node, place, cheap) - kept
        apart = []
        for other in groups:
            if other[1] & roots:
                group |= other[0]
                roots |= other[1]
            else:
                apart.append(other)
        groups = [*apart, (group, roots)]
    return groups


def _bytes(values: Iterable[fx.Node], there: set[int]) -> int:
    """Of memory that is not there in any case."""
    sizes = dict[int, int]()
    for node in values:
        for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor):
                sizes[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
    return sum(size for at, size in sizes.items() if at not in there)


def _later(node: fx.Node, place: dict[fx.Node, int]) -> list[fx.Node]:
    """Who reads it in later pieces."""
    return [user for user in node.users if place.get(user, 0) > place[node]]


def _in_time(node: fx.Node, place: dict[fx.Node, int], cheap: set[fx.Node]) -> int:
    """A later piece that is the last to read what a value is made from, before any reads the value.

    Made again there, nobody need keep it until then; what is read is read together. Or 0.
    """
    later, roots = _later(node, place), _roots(node, place, cheap)
    if not later or not roots or any(user not in place for user in node.users):
        return 0
    last = min(max(place.get(user, 0) for user in x.users) for x in roots)
    return last if place[node] < last < min(place[user] for user in later) else 0


def _copy(
    node: fx.Node,
    piece: int,
    users: list[fx.Node],
    place: dict[fx.Node, int],
    first: dict[int, fx.Node],
    cheap: set[fx.Node],
) -> None:
    """Makes a value again at the beginning of a piece, for these users."""
    made = dict[fx.Node, fx.Node]()

    def copied(x: fx.Node) -> fx.Node:
        if x is not node and not (x in cheap and place[x] == place[node]):
            return x
        if x not in made:
            for y in x.all_input_nodes:
                copied(y)
            with node.graph.inserting_before(first[piece]):
                made[x] = node.graph.node_copy(x, copied)
            place[made[x]] = piece
        return made[x]

    new = copied(node)
    for user in users:
        user.replace_input_with(node, new)
