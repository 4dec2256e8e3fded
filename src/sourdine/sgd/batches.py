"""From the units of a lot to physical batches that fit into memory.

A lot of any size is cut into equal physical batches of a few sizes only, so that a model meets few
shapes; lengths and sizes are planned for the whole run (sgd/shapes.py). Where a batch is not full it is
filled up with copies of an example of its own that carry weight 0: their gradient is multiplied by zero
before anything is added up, so they contribute exactly nothing, and the numbers of real examples are
never counted for anything.

A dataset with `sizes`, a number for each example, has units of like size put into one batch: texts of
like length need little padding. This changes the order of a sum, never what is in it.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sourdine import checks
from sourdine.errors import InputError
from sourdine.rng import Source
from sourdine.sgd.sampling import Indices
from sourdine.sgd.shapes import Kind

Collate = Callable[[list[Any]], Any]


class Dataset(Protocol):
    """Examples by their places."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


@dataclass(frozen=True)
class Batch:
    """A physical batch: what the loss gets, and the weight of each example in its unit."""

    data: Any
    weights: Tensor
    units: int
    full: bool  # every weight is one


class Units:
    """Whose contribution is clipped: examples by default, or users with at most `most` examples each.

    A user who has more takes part with `most` of them, drawn anew for every lot; the contribution of a
    user is the average over the examples taken.
    """

    def __init__(
        self, dataset: Dataset, users: Sequence[Hashable] | None = None, most: int = 1
    ) -> None:
        if hasattr(dataset, "batch_sampler"):
            raise InputError(
                "give the dataset itself, not a DataLoader: the engine draws its own lots."
            )
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InputError("a dataset must have len() and examples by their places, as a list has.")
        if hasattr(dataset, "iloc"):
            raise InputError(
                "a DataFrame has columns by their names; give its rows, such as "
                "frame.to_dict('records'), with a collate function that makes tensors of them."
            )
        self.dataset = dataset
        self.sizes = _sizes(dataset)
        self.most = checks.whole("most_per_user", most)
        self.examples: list[Indices] | None = None
        if users is None:
            if most != 1:
                raise InputError("most_per_user is for users; say whose each example is with users=.")
            return
        named: Any = users
        users = named.tolist() if isinstance(named, Tensor | np.ndarray) else named
        for user in users:
            if isinstance(user, Tensor) or user is None or not _known(user):
                raise InputError(
                    f"{user!r} cannot name a user: give a number or a text for every example, and "
                    "leave out examples whose user is not known."
                )
        if len(users) != len(dataset):
            raise InputError(
                f"{len(users)} users are named for {len(dataset)} examples; name one each."
            )
        places: dict[Hashable, list[int]] = {}
        for place, user in enumerate(users):
            places.setdefault(user, []).append(place)
        self.examples = [np.array(own, dtype=np.int64) for own in places.values()]

    def __len__(self) -> int:
        return len(self.dataset) if self.examples is None else len(self.examples)

    @functools.cached_property
    def all_sizes(self) -> list[int] | None:
        """How large the largest example of every unit is, where the dataset knows."""
        if self.sizes is None or self.examples is None:
            return self.sizes
        return [max(self.sizes[place] for place in own) for own in self.examples]

    def of(self, unit: int, source: Source) -> list[int]:
        """The examples with which a unit takes part."""
        if self.examples is None:
            return [unit]
        own = self.examples[unit]
        if len(own) > self.most:
            keys = np.frombuffer(source.bytes(8 * len(own)), dtype=np.uint64)
            own = own[np.sort(np.argsort(keys, kind="stable")[: self.most])]
        return [int(place) for place in own]


def _known(user: Any) -> bool:
    """Whether a name is equal to itself, as numbers that are none, of whatever library, are not."""
    try:
        return bool(user == user)  # noqa: PLR0124
    except TypeError:  # a value of pandas that is missing
        return False


def _sizes(dataset: Dataset) -> list[int] | None:
    """How large each example is, where the dataset says so."""
    given: Any = getattr(dataset, "sizes", None)
    if given is None:
        return None
    try:
        found = given.tolist() if isinstance(given, Tensor | np.ndarray) else list(given)
        whole = len(found) == len(dataset) and all(int(size) == size >= 0 for size in found)
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise InputError(
            f"the dataset's `sizes` must be {len(dataset)} whole numbers, one for each example (the "
            "number of its tokens, say); give it those, or no `sizes`."
        )
    return found


def batches(
    units: Units,
    lot: Indices,
    collate: Collate,
    device: torch.device,
    source: Source,
    kinds: Sequence[Kind],
    apart: bool = False,
) -> Iterator[Batch]:
    """The physical batches of a lot, of these kinds; none for an empty lot.

    apart: for graphs, which tell rows apart by their number alone, there is one unit more where there
    would be as many examples as tokens in each.
    """
    each = units.most
    alike, sizes = lot.tolist(), units.all_sizes
    if sizes is not None:
        alike.sort(key=sizes.__getitem__, reverse=True)  # the most memory first
    drawn = {unit: units.of(unit, source) for unit in alike}  # in one order, however they are cut
    for own, rows, sized in _parts(units, alike, collate, kinds):
        filler = drawn[own[0]][0]
        places: list[int] = []
        weights: list[float] = []
        for examples in [drawn[unit] for unit in own] + [[]] * (rows - len(own)):
            # A unit is filled up from itself: an infinite gradient times zero is not a number, and
            # must not spoil what others contribute.
            places += examples + [examples[0] if examples else filler] * (each - len(examples))
            weights += [1 / max(1, len(examples))] * len(examples) + [0.0] * (each - len(examples))
        data = sized([units.dataset[place] for place in places])
        if apart and _as_long_as_many(data, len(places)):
            places, weights = places + [filler] * each, weights + [0.0] * each
            data = sized([units.dataset[place] for place in places])
        data = move(data, device)
        full = all(weight == 1 for weight in weights)
        yield Batch(data, move(torch.tensor(weights), device), len(weights) // each, full)


def _parts(
    units: Units, alike: list[int], collate: Collate, kinds: Sequence[Kind]
) -> Iterator[tuple[list[int], int, Collate]]:
    """The units of each batch, its rows, and how it is collated; `alike` has the largest first."""
    found: list[list[int]] = [[] for _ in kinds]
    bounds = [kind.size or 0 for kind in kinds[:-1]]  # the last takes all that are larger
    sizes = units.all_sizes
    for unit in alike:
        found[bisect.bisect_left(bounds, 0 if sizes is None else sizes[unit])].append(unit)
    classes, beyond = list[tuple[Kind, list[int]]](), list[int]()
    for kind, fitting in zip(kinds, found, strict=True):
        own = fitting + beyond
        many = 0 if kind.room is None else max(0, len(own) - kind.room)
        beyond, own = own[:many], own[many:]
        classes.insert(0, (kind, own))
    for kind, own in classes:
        start = 0
        for count in kind.cut(len(own)):
            yield own[start : start + count], count, padding(collate, kind.size)
            start += count


def padding(collate: Collate, size: int | None) -> Collate:
    """The same, which pads its batches to this size, if it can be told so."""
    told: Callable[[int], Collate] | None = getattr(collate, "at_least", None)
    found = collate if told is None or size is None else told(size)
    if not callable(found):
        raise InputError(f"collate.at_least({size}) gave {found!r}; it must give a collate function.")
    return found


def _as_long_as_many(data: Any, rows: int) -> bool:
    """Whether a tensor of the batch is as long in some other direction as there are examples."""
    return any(
        isinstance(x, Tensor) and x.dim() > 1 and rows in x.shape[1:] for x in pytree.tree_leaves(data)
    )


def move(data: Any, device: torch.device) -> Any:
    """All tensors in nested lists, tuples and mappings, to the device.

    From memory that a GPU reads by itself: from other memory it takes larger tensors only when it has
    done all it was asked before, and whoever collates the next batch would wait for that.
    """
    if isinstance(data, Tensor):
        dense = data.layout == torch.strided and data.device.type == "cpu"
        return (_pinned(data) if dense and device.type == "cuda" else data).to(
            device, non_blocking=True
        )
    if isinstance(data, Mapping):
        return type(data)({name: move(value, device) for name, value in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move(value, device) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(move(value, device) for value in data)
    return data


def _pinned(x: Tensor) -> Tensor:
    """A copy in memory that a GPU reads by itself; of token ids by one thread, which is faster."""
    if type(x) is not Tensor or x.dtype != torch.int64 or not x.is_contiguous():
        return x.pin_memory()
    found = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)
    np.copyto(found.numpy(), x.numpy())
    return found
