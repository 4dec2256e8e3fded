"""Whether a run that goes on would repeat its steps bit by bit: one hash of all that decides them.

Data: every example. Code: this room, the loss, the collation and the model's own classes (those of
torch, transformers and peft by their versions), each with the functions and constants of its module
that it names; what lies in other modules is not followed, so whoever changes that starts a new folder.
Settings, the optimizer and what it is set to, versions, threads and device. Where a step cannot be
repeated (a GPU without deterministic algorithms, data that differ from one look to the next), no two
hashes agree.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sourdine.sgd.gpu import kernels
from sourdine.sgd.precision import repeats_itself, settings

Put = Callable[[bytes], object]
_PLAIN = (str, bytes, int, float, bool, type(None))
_VERSIONED = ("torch", "transformers", "peft")
_DEEP = 6
_OF_MODULES = frozenset(vars(nn.Module()))  # names that every module has


def agreement(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    settings: Any,
    calls: tuple[Any, ...],
    rank: int = 0,
    count: int = 1,
) -> bytes:
    """The hash of one process among `count`, which looks at its own part of the data.

    It is a fact about private data: it must not leave memory but under a key.
    """
    device = next(model.parameters()).device
    return digest(
        _ROOM,
        _machine(device),
        _versions(model),
        settings,
        [str(model), [module.training for module in model.modules()]],
        [_held(module, set()) for module in model.modules()],
        [(name, x.shape, str(x.dtype), x.requires_grad) for name, x in model.named_parameters()],
        [_code(call, set()) for call in (*calls, *_classes(model), type(optimizer))],
        optimizer.state_dict()["param_groups"],
        len(dataset),
        [digest(dataset[place]) for place in range(rank, len(dataset), count)],
    )


def pace(optimizer: torch.optim.Optimizer) -> bytes:
    """What the optimizer is set to now."""
    groups = optimizer.param_groups
    return digest([{name: x for name, x in group.items() if name != "params"} for group in groups])


def digest(*things: Any) -> bytes:
    """The same for equal things, in every process; never the same for things that cannot be read."""
    found = hashlib.blake2b(digest_size=32)
    try:
        for x in things:
            _feed(found.update, x)
    except (TypeError, RecursionError):
        found.update(os.urandom(32))
    return found.digest()


def _feed(put: Put, x: Any) -> None:
    """Type, length and content, so that no two things look alike."""
    if isinstance(x, Tensor):
        whole = x.detach().cpu().contiguous().flatten()
        put(f"tensor {x.dtype} {tuple(x.shape)} ".encode())
        put(memoryview(whole.view(torch.uint8).numpy()))  # type: ignore[arg-type]
    elif isinstance(x, np.ndarray | np.generic) and x.dtype != object:
        put(f"array {x.dtype.descr} {x.shape} ".encode())
        put(x.tobytes())
    elif isinstance(x, str):
        content = x.encode(errors="surrogatepass")
        put(b"str %d " % len(content))
        put(content)
    elif isinstance(x, bytes):
        put(b"bytes %d " % len(x))
        put(x)
    elif isinstance(x, int | float | complex | None):
        put(f"{type(x).__name__} {x!r} ".encode())
    elif isinstance(x, list | tuple):
        put(f"{type(x).__name__} {len(x)} ".encode())
        if {int, float, bool}.issuperset(map(type, x)):  # token ids: all at once is ten times as fast
            put(repr([*x]).encode())
        else:
            for value in x:
                _feed(put, value)
    elif isinstance(x, Mapping):
        put(b"mapping %d " % len(x))
        for name, value in x.items():
            _feed(put, name)
            _feed(put, value)
    elif isinstance(x, set | frozenset):
        put(b"set %d " % len(x))
        for part in sorted(map(digest, x)):
            put(part)
    elif isinstance(x, type | FunctionType):
        put(f"name {x.__module__}.{x.__qualname__} ".encode())
    else:
        put(b"object ")
        made = x.__reduce_ex__(4)  # how it would be pickled; TypeError if it cannot
        if isinstance(made, tuple):
            made = [*made[:3], *(list(part or ()) for part in made[3:5])]
        _feed(put, made)


def _code(call: Any, known: set[int]) -> Any:
    """What a function, class or callable object does, as data."""
    if id(call) in known:
        return None
    known.add(id(call))
    if isinstance(call, functools.partial):
        return [_code(call.func, known), _value(call.args, known), _value(call.keywords, known)]
    if isinstance(call, MethodType):
        return [_code(call.__func__, known), _code(call.__self__, known)]
    if isinstance(call, type):
        # Classes of torch are known by its version; its compiler changes some of them in passing.
        known_by_version = _package(call) in _VERSIONED
        own = [x for x in vars(call).values() if isinstance(x, FunctionType) and not known_by_version]
        return [f"{call.__module__}.{call.__qualname__}", [_code(x, known) for x in own]]
    if not isinstance(call, FunctionType):
        about = str(call) if isinstance(call, nn.Module) else None
        return [_code(type(call), known), about, _held(call, known - {id(call)})]
    named = [call.__globals__.get(name) for name in sorted(_names(call.__code__))]
    near = [
        x for x in named if not isinstance(x, FunctionType | type) or x.__module__ == call.__module__
    ]
    cells = [_read(cell, "cell_contents") for cell in call.__closure__ or ()]  # some are empty as yet
    given = (cells, call.__defaults__, call.__kwdefaults__, near, vars(call))
    return [_instructions(call.__code__), [_value(x, known) for x in given]]


def _held(x: Any, known: set[int], depth: int = _DEEP) -> Any:
    """The settings of an object, and of what they are made of; parts of a model are asked alone."""
    if depth == 0 or id(x) in known or isinstance(x, torch.optim.Optimizer | torch.Generator):
        return None
    known.add(id(x))
    slots = {name for kind in type(x).__mro__ for name in getattr(kind, "__slots__", ())}
    own = {**{name: _read(x, name) for name in slots}, **getattr(x, "__dict__", {})}
    of_modules = _OF_MODULES if isinstance(x, nn.Module) else ()
    return [
        [name, _value(value, known, depth - 1)]
        for name, value in sorted(own.items())
        if name not in of_modules and not isinstance(value, nn.Module)
    ]


def _read(x: Any, name: str) -> Any:
    """An attribute; what cannot be read is never the same."""
    try:
        return getattr(x, name, None)
    except Exception:  # whatever others do in their properties
        return os.urandom(32)


def _value(x: Any, known: set[int], depth: int = _DEEP) -> Any:
    """A constant as it is, a function by its code, anything else by its type and its settings."""
    if isinstance(x, (*_PLAIN, Tensor, np.ndarray)):
        return x
    if isinstance(x, list | tuple | set | frozenset):
        found = [_value(part, known, depth) for part in x]
        return found if isinstance(x, list | tuple) else sorted(map(digest, found))
    if isinstance(x, dict):  # some are filled from sets, whose order changes with every process
        ordered = sorted(x.items(), key=lambda pair: digest(pair[0]))
        return [[_value(part, known, depth) for part in pair] for pair in ordered]
    if isinstance(x, ModuleType):
        return x.__name__
    if isinstance(x, nn.Module):
        return str(x)
    if callable(x):
        return _code(x, known)
    return [f"{type(x).__module__}.{type(x).__qualname__}", _held(x, known, depth)]


def _instructions(code: CodeType) -> Any:
    constants = [_instructions(x) if isinstance(x, CodeType) else x for x in code.co_consts]
    return [code.co_code, code.co_names, code.co_freevars, constants]


def _names(code: CodeType) -> set[str]:
    inner = (x for x in code.co_consts if isinstance(x, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _classes(model: nn.Module) -> list[type]:
    """The model's own classes; those of packages that everyone installs are known by their version."""
    return [kind for kind in _kinds(model) if _package(kind) not in (*_VERSIONED, "builtins")]


def _versions(model: nn.Module) -> list[object]:
    """Of the packages that the model's classes come from: what else is loaded decides nothing."""
    used = set(map(_package, _kinds(model)))
    return [(name, sys.modules[name].__version__) for name in _VERSIONED if name in used]


def _kinds(model: nn.Module) -> dict[type, None]:
    """All classes that the model's parts are of, each once, in their order."""
    return dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _machine(device: torch.device) -> list[object]:
    """What else decides the last bits of a sum."""
    return [
        (sys.version, np.__version__),
        (platform.machine(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()),
        (str(device), torch.cuda.get_device_name(device) if device.type == "cuda" else ""),
        (str(torch.get_default_dtype()), torch.version.cuda, torch.backends.cudnn.version()),
        (settings(device), kernels(torch.empty(0, device=device)) is not None),
        None if repeats_itself(device) else os.urandom(32),
    ]


_HERE = Path(__file__).parent
_ROOM = digest([path.read_bytes() for path in (*sorted(_HERE.glob("*.py")), _HERE.parent / "rng.py")])
"""The code as it was loaded, not as it may be by now."""
