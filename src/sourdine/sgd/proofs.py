"""Proofs that rows are told apart: what was proved of a model, when it is proved again, and how.

A proof is a second backward pass with other weights on the losses (sgd/layout.py): rows scale with the
weight of their own example, or the examples are mixed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sourdine.errors import CheckError, InputError
from sourdine.sgd import layout as layouts
from sourdine.sgd.tape import AS_IS, CHECKPOINTING, Choice, Key, Record, Tape

Pull = Callable[[Tensor, bool], list[Tensor | None]]
"""pull(cotangent, keep): the gradients of all records, by one backward pass."""
_MANY = 64  # powers of two that weights have
_HUGE = 2.0**56  # what such weights may well make infinite
_EVERY = 64  # batches from one proof to the next
_FEW = 6  # powers of two that weights may have in float16
_HIGH = 9  # the power of two that its largest number is brought to: with weights on it, 2^14


class Schedule:
    """When something in which nothing is new is proved again: once in so many batches of any shape.

    After 1, 2, 4, ... and then after every `every` batches a proof is due. It goes to a shape of which
    most batches, or nearly, were made since its last proof, unless none comes in half as many: shapes
    come in an order of their own, and were it always the next batch, one might never be proved again.
    """

    def __init__(self, every: int) -> None:
        self.every, self.waiting = every, Counter[Hashable]()
        self._count = self._late = 0

    def due(self, shape: Hashable) -> bool:
        """Whether this batch, the next of its shape, is to be proved."""
        self._count += 1
        self.waiting[shape] += 1
        if self._late or often(self._count, self.every):
            self._late += 1
        if not self._late:
            return False
        waited = self.waiting[shape] >= 0.9 * max(self.waiting.values())
        if waited or self._late > self.every // 2:
            self._late = 0
        return not self._late

    def proved(self, shape: Hashable) -> None:
        """It waits anew."""
        self.waiting[shape] = 0


@dataclass
class Knowledge:
    """What was proved about a model's calls, kept from one batch to the next.

    A proof is of one batch. It is made for every new combination of shapes, for every batch in which
    data decide where rows go, again after 1, 2, 4, ... and then every 64 batches of any shape, and in
    the last lot of a plan (sgd/adding.py): a model that begins to mix examples later is found out,
    though not at once, and not if the run is stopped before or its last lot is empty.
    """

    choices: dict[Key, Choice] = field(default_factory=dict)
    idle: set[Key] = field(default_factory=set)  # calls that no loss depended on
    unseen: set[str] = field(default_factory=set)  # parameters with uses that the tape cannot see
    late: bool = False  # take no gradient early: some layers lead to losses in some batches only
    schedule: Schedule = field(default_factory=lambda: Schedule(_EVERY))
    asked: bool = False  # batches are to be proved in any case
    open: bool = False  # after the last batch: something in it has to be proved every time
    denied: list[Tensor] | None = None  # while a graph is traced: what must not hold (sgd/graphs.py)

    @contextmanager
    def proving(self, asked: bool) -> Iterator[None]:
        """Here batches are proved in any case, or not more than by themselves."""
        before, self.asked = self.asked, asked
        try:
            yield
        finally:
            self.asked = before

    def due(self, tape: Tape) -> bool:
        """Whether this batch is to be proved although nothing in it is new."""
        return self.schedule.due(_shape(tape)) or self.asked

    def proved(self, tape: Tape) -> None:
        """This batch was proved."""
        self.schedule.proved(_shape(tape))


def _shape(tape: Tape) -> Hashable:
    return tuple(record.key for record in tape.records)


def often(count: int, every: int) -> bool:
    """After 1, 2, 4, ... and then every so many."""
    return count % every == 0 or (count < every and count & (count - 1) == 0)


class NotProved(Exception):
    """A graph cannot be traced: something in it has to be proved for every batch."""


def prove(
    records: list[Record],
    values: Tensor,
    got: list[Tensor | None],
    pull: Pull,
    start: Tensor,
    tape: Tape,
    knowledge: Knowledge,
) -> bool:
    """Proves the layout of every new record by a second backward pass; see sgd/layout.py.

    False if a guess was wrong in a way that needs another forward pass. What float16 has no digits for
    proves nothing: where it is new, it is left out of `got`, and so of all sums.
    """
    kinds = check_graph(values)
    narrow = torch.float16 in kinds
    v = layouts.weights(len(values), values, powers=_FEW if narrow else _MANY)
    once, again = got, None if narrow else pull(start * v, True)
    if again is None or not _as_finite(got, again):
        if not narrow and _largest(got) < _HUGE:  # they go through float16 unseen
            narrow, v = True, layouts.weights(len(values), values, powers=_FEW)
        once, again = _scaled(got, pull, start, v, narrow)
    half = narrow or any(x.dtype.itemsize < 4 for x in got if x is not None)
    asked = list[tuple[int, layouts.Layout]]()
    answers = list[Tensor]()
    for at, (record, plain, weighted) in enumerate(zip(records, once, again, strict=False)):
        if plain is None or weighted is None:
            continue
        fixed = record.fixed or record.key in knowledge.choices
        for choice in (record.choice,) if fixed else record.choices:
            if isinstance(choice, layouts.Layout):
                rows = record.rows(plain, choice), record.rows(weighted, choice)
                asked.append((at, choice))
                answers.append(layouts.belongs(*rows, v, half=half))
    fits = defaultdict[int, list[layouts.Layout]](list)
    for (at, choice), yes in zip(asked, _told(answers), strict=True):
        fits[at] += [choice] if yes else []
    for at, (record, plain, weighted) in enumerate(zip(records, once, again, strict=False)):
        if plain is None or weighted is None:
            knowledge.idle.add(record.key)
            continue
        known = record.key in knowledge.choices  # since a record before this one, perhaps
        fitting = [x for x in fits[at] if not known or x == record.choice]
        if not fitting and narrow and _has_no_digits(plain):
            got[at] = got[at] if known else torch.zeros_like(plain)
            continue
        if not fitting and known:
            raise CheckError(
                f"examples are mixed, or their rows reordered, in {_where(record.key)}, and were not "
                "before: what was trained since the last proof is not covered by its epsilon. Keep "
                "every example's rows apart at all times."
            )
        if not fitting:
            after = record.choices.index(record.choice) + 1 if record.fixed else 0
            rest = record.choices[after:]
            others = [x for x in rest if record.fixed or not isinstance(x, layouts.Layout)]
            tape.tried[record.key] = others[0]
            tape.refuted.add(record.key)
            return False  # later records may have failed only because of this one
        record.choice = fitting[0]
        tape.tried[record.key] = fitting[0]
        shown = bool((torch.isfinite(plain) & (plain != 0)).any())
        if len(fitting) == 1 and not tape.moved and shown:
            knowledge.choices[record.key] = fitting[0]
    return True


def _scaled(
    got: list[Tensor | None], pull: Pull, start: Tensor, v: Tensor, narrow: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients for a proof, plain and weighted, of losses times one power of two.

    Below 2^-14 numbers of float16 have few digits, which weights do change, and above 2^16 they are
    infinite, which would hide what the proof looks for; so are those of single precision above 2^128.
    So the largest is brought below that, and what is finite has to stay so, however large: an example
    with such a gradient adds nothing, but rows that are taken for those of others would.
    """
    largest = narrow and _largest([x for x in got if x is not None and x.dtype == torch.float16])
    largest = largest or _largest(got)
    if not largest:
        return got, got  # nothing is added up
    highest = (_HIGH if narrow else _MANY - 4) - math.frexp(largest)[1]
    lowest, most = (-14, _FEW) if start.dtype == torch.float16 else (-96, 64)
    for power in range(min(highest, most), max(min(highest, most) - 32, lowest) - 1, -4):
        scaled = start * 2.0**power
        once, again = pull(scaled, True), pull(scaled * v, True)
        if _as_finite(got, once) and _as_finite(got, again):
            return once, again
    raise InputError(
        "gradients are too far apart to prove that examples are not mixed; run a model in float16 in "
        "bfloat16, or in single precision, and one in single precision on losses of a common size."
    )


def _largest(got: Sequence[Tensor | None]) -> float:
    """The size of the largest finite number, or zero."""
    there = [x for x in got if x is not None and x.numel()]
    finite = [torch.where(torch.isfinite(x), x, 0).abs().amax().float() for x in there]
    return max((x.item() for x in finite), default=0.0)


def _as_finite(before: list[Tensor | None], after: list[Tensor | None]) -> bool:
    """Whether what was finite is finite still."""
    both = [(x, y) for x, y in zip(before, after, strict=True) if x is not None and y is not None]
    return all(_told([(torch.isfinite(y) | ~torch.isfinite(x)).all() for x, y in both]))


def _told(answers: list[Tensor]) -> list[bool]:
    """Whether each is true; a GPU is asked, and waited for, once."""
    return torch.stack([x.to(answers[0].device) for x in answers]).tolist() if answers else []


def _has_no_digits(plain: Tensor) -> bool:
    """Whether numbers are so small that those of float16, which are 2^-24 apart, say little of them."""
    there = plain[torch.isfinite(plain) & (plain != 0)].float()
    return not len(there) or float(there.square().mean().sqrt()) < 2.0**-12


def check_graph(values: Tensor) -> set[torch.dtype]:
    """The kinds of numbers that gradients go through.

    Refuses reentrant checkpointing, whose layers are no part of the graph.
    """
    seen, left, kinds = set[Any](), [values.grad_fn], {values.dtype}
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            raise InputError(CHECKPOINTING)
        seen.add(node)
        kinds |= {x.dtype for x in getattr(node, "_input_metadata", ())}
        left += [parent for parent, _ in node.next_functions]
    return kinds


def check_apart(tape: Tape, unseen: set[str]) -> None:
    """Refuses a model in which no way to tell the examples' rows apart has stood the proof."""
    for key in tape.refuted & tape.asked:
        names = {name for _, name in key[2] if name}
        if tape.tried.get(key) == AS_IS or names & unseen:
            raise InputError(
                f"the loss of one example depends on another example, seen at {_where(key)}. "
                "Losses must not mix examples: no batch norm, no contrast within the batch, no average "
                "over it; or, if rows are only reordered, keep the examples' order in that layer."
            )


def _where(key: Key) -> str:
    """The parameters of a call, and its function."""
    names = sorted({name for _, name in key[2] if name})
    return f"{', '.join(names) or 'a tensor made of parameters'} ({key[1]})"
