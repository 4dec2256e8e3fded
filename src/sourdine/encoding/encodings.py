"""Encodings as they are handed on: vectors, soft labels, the public map, and how they were made.

A file of safetensors with `vectors` (T, d), `labels` (T, K), the map's arrays, and one JSON text about
them. Labels are real numbers whose mean is the indicator of the true class (mixed like the vectors), so
that sums over them are unbiased; single ones may lie outside of 0 and 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sourdine.encoding.maps import Map
from sourdine.encoding.vectors import Floats
from sourdine.errors import InputError

FILE = "encodings.safetensors"
_ABOUT = "sourdine.encodings"


@dataclass(frozen=True, eq=False, repr=False)
class Encodings:
    """See the top of this file. variance: of the noise in one number of a vector, which is known."""

    vectors: Floats
    labels: Floats
    classes: tuple[str, ...]
    variance: float
    map: Map | None
    about: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"<{len(self)} encodings of {self.vectors.shape[1]} numbers, {self.about.get('mode')}>"

    def seen(self, features: Floats) -> Floats:
        """Clean features of other records, as a model of these encodings reads them."""
        rows = np.asarray(features, dtype=np.float64)
        return rows if self.map is None else self.map(rows)

    def save(self, path: str | Path) -> Path:
        """Writes the file; a folder gets one of the usual name."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        arrays = {"vectors": self.vectors, "labels": self.labels}
        arrays |= {} if self.map is None else self.map.tensors()
        about = {
            "classes": self.classes,
            "variance": self.variance,
            "map": None if self.map is None else self.map.name,
            "about": dict(self.about),
        }
        save_file(
            {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in arrays.items()},
            path,
            metadata={_ABOUT: json.dumps(about)},
        )
        return path

    @staticmethod
    def load(path: str | Path) -> Encodings:
        """Reads a file, or the one in a folder."""
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        try:
            with safe_open(path, framework="numpy") as file:
                about = json.loads((file.metadata() or {})[_ABOUT])
                arrays = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
            own = None if about["map"] is None else Map.from_tensors(about["map"], arrays)
            return Encodings(
                arrays["vectors"],
                arrays["labels"],
                tuple(about["classes"]),
                float(about["variance"]),
                own,
                about["about"],
            )
        except FileNotFoundError:
            raise InputError(f"there are no encodings at {path}; name their file or folder.") from None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            raise InputError(
                f"{path} holds no encodings; name a file that `sourdine encode` wrote."
            ) from None


def pooled(parts: Sequence[Encodings]) -> Encodings:
    """Encodings of several owners as one; each has charged its own ledger, and keeps its own budget.

    They must agree on classes, map, noise and all else that `about` says. Somebody whose records lie
    with two owners is promised the sum of both budgets.
    """
    if not parts:
        raise InputError("there are no encodings to pool.")
    first = parts[0]
    for other in parts[1:]:
        if other.classes != first.classes or other.vectors.shape[1] != first.vectors.shape[1]:
            raise InputError("encodings of other classes or dimensions cannot be pooled.")
        if not np.isclose(other.variance, first.variance, rtol=1e-3):
            raise InputError("encodings with other noise cannot be pooled; agree on a budget first.")
        for name in sorted({*first.about, *other.about} - {"scale", "records"}):
            if first.about.get(name) != other.about.get(name):
                raise InputError(f"encodings that differ in their {name} cannot be pooled.")
        maps = [None if x.map is None else x.map.tensors() for x in (first, other)]
        if (maps[0] is None) != (maps[1] is None) or (
            maps[0] is not None
            and maps[1] is not None
            and not all(
                np.array_equal(np.float32(x), np.float32(maps[1].get(n, 0))) for n, x in maps[0].items()
            )
        ):
            raise InputError("encodings by different maps cannot be pooled; share one map.")
    return Encodings(
        np.concatenate([x.vectors for x in parts]),
        np.concatenate([x.labels for x in parts]),
        first.classes,
        first.variance,
        first.map,
        {**first.about, "owners": len(parts)},
    )
