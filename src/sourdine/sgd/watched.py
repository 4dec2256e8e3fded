"""What a graph holds on to of a model, and whether it has changed since.

Two models share graphs if their tensors have the same shapes and their settings are equal. Settings
that are no attributes of a module (a global, say) are not seen here; graphs are held against the eager
code for those (sgd/graphs.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

PLAIN = frozenset((type(None), bool, int, float, str))


class Watched:
    """A model with its tensors and plain settings.

    owned: its parameters and buffers, each once; given: the same without a history. number: of the
    model as it is now; one that was seen before has its number again. by_place: the same tensors at
    another place are others, as for what was recorded on a GPU.
    """

    def __init__(self, model: nn.Module, by_place: bool) -> None:
        self.model, self._by_place = model, by_place
        self._numbers: dict[Any, int] = {}
        self._last: tuple[list[Any], list[type], list[Any]] = ([], [], [])
        self.changed()

    def changed(self) -> bool:
        """Whether it has changed since the last call.

        Modules are gone through without `modules()` and its generators in generators, which are slow.
        """
        plain, tensors = list[Any](), list[Tensor | None]()
        modules, seen = [self.model], {self.model}
        for module in modules:  # which grows on the way
            own = vars(module)
            plain += [x for x in own.values() if type(x) in PLAIN]
            tensors += own["_parameters"].values()
            tensors += own["_buffers"].values()
            inner = [x for x in own["_modules"].values() if x is not None and x not in seen]
            modules += dict.fromkeys(inner)
            seen.update(inner)
        places = [(id(x), x.requires_grad, x.data_ptr()) for x in tensors if x is not None]
        now = (plain, list(map(type, plain)), places)
        if now == self._last:
            return False
        self._last = now
        self.owned = [*self.model.parameters(), *self.model.buffers()]
        self.given = [x.detach() for x in self.owned]
        settings = tuple(
            (name, type(value), value)
            for module in self.model.modules()
            for name, value in vars(module).items()
            if type(value) in PLAIN
        )
        where = tuple(x.data_ptr() for x in self.owned) if self._by_place else ()
        found = tuple(map(shape, self.owned)), settings, where
        self.number = self._numbers.setdefault(found, len(self._numbers))
        return True


def shape(x: Tensor) -> tuple[Any, ...]:
    """All that a graph takes for granted of a tensor."""
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.device, x.requires_grad
