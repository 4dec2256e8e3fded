"""Parallel composition: of events on disjoint parts of the data, each unit pays for its own.

Guarantee. A plan holds releases X on all units and a ParallelEvent of A and B. A unit u lies in one
part, say that of A; which one depends on u alone and is settled before anything is released. Take
neighbours that differ in u. B sees its own part, which is the same for both, and what was released
before it; given that, its output has the same law for both: B only post-processes. What is left is an
adaptive composition of X and A, in whatever order the steps come and however they look at each other,
and the product of the pairs of X and A dominates it (Zhu, Dong, Wang 2022). For a unit in the part of
B it is X and B. So, over all units,

    delta(eps) of X + Parallel(A, B) = max(delta of X + A, delta of X + B)   at every eps,

where "=" holds because the worst unit of either part attains its own side. (McSherry 2009, Theorem 4,
is the case of pure epsilon-DP.) If a coin of the unit's own chooses its part, both laws are mixtures
with the same weights. The hockey-stick divergence is convex and the Rényi divergence quasi-convex in
the pair, so the same bounds hold.

Adjacency. Under add-remove the unit is in its part or nowhere. Under zero-out it becomes nothing, and
*nothing stays in the unit's part*: the other parts do not notice, and the sizes of the parts count as
known, as n does. So does what they tell: whoever knows all other units can work out in which part u
lies, which is a fact about its text. Under replace-one a unit may leave one part and enter another, so
both count: refused.

Several parallel events may split the data each in its own way, equal ones that are repeated as well.
What a unit may meet is then any choice of one branch from each (`alternatives`).

Inside a selection the split is settled before the first trial and is the same in all of them. For a
unit in the part of A, B only post-processes in each trial, so each trial is an A, and the best of K
trials costs Selection(A). Hence X + Selection(Parallel(A, B)) has the alternatives X + Selection(A) and
X + Selection(B). (Where each trial splits anew, that is not proven: charge the selection of one event
that covers both parts.) Inside lots that are drawn there is no proof here.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

from sourdine.errors import NotAccountable
from sourdine.events import Event, ParallelEvent, SelectionEvent, compose, repeat

_MOST = 64
_COMPARED = 512  # branches that are compared with each other, at most


@functools.lru_cache(maxsize=1024)
def alternatives(event: Event, adjacency: str) -> tuple[Event, ...]:
    """All that one unit may meet of an event; the event alone where nothing is in parallel.

    What is part of another alternative is left out: it never costs more.
    """
    for part, _ in event.parts:
        _check_sampled(part)
    apart = [(part, count) for part, count in event.parts if _splits(part)]
    if not apart:
        return (event,)
    check_parallel(adjacency)
    found = [repeat([(part, n) for part, n in event.parts if not _splits(part)])]
    for part, count in apart:
        options = _shared(_largest(_branches(part, adjacency)), count, _MOST // len(found))
        found = _largest(one + other for one in found for other in options)
    return tuple(found)


def _splits(part: Event) -> bool:
    """Whether units meet different branches of it."""
    if isinstance(part, SelectionEvent):
        return any(_splits(inner) for inner, _ in part.event.parts)
    return isinstance(part, ParallelEvent)


def _branches(part: Event, adjacency: str) -> list[Event]:
    """What one unit may meet of a part that splits the data, or of a selection over such trials."""
    if isinstance(part, SelectionEvent):
        trials = alternatives(part.event, adjacency)
        return [SelectionEvent(trial, part.eta, part.gamma) for trial in trials]
    branches = part.events if isinstance(part, ParallelEvent) else ()
    return [option for branch in branches for option in alternatives(branch, adjacency)]


def check_parallel(adjacency: str) -> None:
    """Refuse the adjacency under which a unit is in two parts."""
    if adjacency == "replace-one":
        raise NotAccountable(
            "under replace-one a unit may leave one part of the data and enter another, so that parts "
            "do not compose in parallel; charge the sum of them, or ask for adjacency zero-out or "
            "add-remove."
        )


def _check_sampled(part: Event) -> None:
    inner = getattr(part, "event", None)
    if isinstance(inner, Event) and not isinstance(part, SelectionEvent) and _holds_parallel(inner):
        raise NotAccountable(
            f"a parallel event inside one of kind {part.kind!r} has no proven bound here; split the "
            "data first and draw lots from each part."
        )


def _holds_parallel(event: Event) -> bool:
    below = (getattr(part, "event", None) for part, _ in event.parts)
    return any(isinstance(part, ParallelEvent) for part, _ in event.parts) or any(
        isinstance(inner, Event) and _holds_parallel(inner) for inner in below
    )


def _shared(branches: list[Event], count: int, most: int) -> list[Event]:
    """Every way to take a branch so many times, each time any of them."""
    if len(branches) == 1:
        return [count * branches[0]]
    if math.comb(count + len(branches) - 1, count) > most:
        raise _too_many()
    chosen = itertools.combinations_with_replacement(branches, count)
    return [compose(each) for each in chosen]


def _largest(options: Iterable[Event]) -> list[Event]:
    """The options without those that are part of another one."""
    distinct = list(dict.fromkeys(options))
    if len(distinct) > _COMPARED:
        raise _too_many()
    counts = [dict(option.parts) for option in distinct]
    return [
        option
        for option in distinct
        if not any(more != dict(option.parts) and _within(option, more) for more in counts)
    ]


def _too_many() -> NotAccountable:
    return NotAccountable(
        f"the parallel events of this plan leave more than {_MOST} alternatives for one unit; split "
        "the data fewer times, or use the Rényi accountant (method rdp)."
    )


def _within(option: Event, more: dict[Event, int]) -> bool:
    return all(count <= more.get(part, 0) for part, count in option.parts)
