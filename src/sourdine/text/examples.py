"""From records to what a model reads: token ids, or features that are computed once.

Guarantee: what a record becomes depends on that record, the tokenizer and the stated length alone.
Nothing is fitted to the texts: a vocabulary, an average or a longest length would be releases.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sourdine.data.fingerprint import own_key
from sourdine.data.resting import bound_features, features_folder, used
from sourdine.text.machine import halves, multiplies_halves
from sourdine.text.models import Classifier, quiet

NOTHING = -1
"""The class of a record without one: its loss is zero, and so is what it adds to any sum."""
_PAD_TO = 2  # lengths are rounded up to multiples, so that the engine meets fewer shapes


class Examples(list[dict[str, Any]]):
    """Records as dictionaries: arrays of token ids, a class. By `sizes` like lengths share a batch."""

    @functools.cached_property
    def sizes(self) -> list[int]:
        return [len(row["input_ids"]) for row in self]


def tokenized(
    tokenizer: Any, texts: Sequence[Sequence[str]], classes: Sequence[int], most: int
) -> Examples:
    """Each record, a text or a pair of texts, as at most `most` token ids."""
    with quiet():
        found = tokenizer(*(list(column) for column in texts), truncation=True, max_length=most)
    names = [name for name in ("input_ids", "token_type_ids", "attention_mask") if name in found]
    rows = zip(*(found[name] for name in names), strict=True)
    return Examples(
        {
            **{name: np.array(ids, dtype=np.int64) for name, ids in zip(names, row, strict=True)},
            "labels": own,
        }
        for row, own in zip(rows, classes, strict=True)
    )


def lengths(tokenizer: Any, texts: Sequence[Sequence[str]]) -> list[int]:
    """How many tokens each record has, whole."""
    with quiet():
        found = tokenizer(*(list(column) for column in texts), add_special_tokens=True)
    return [len(ids) for ids in found["input_ids"]]


class Collate:
    """Token ids to tensors, padded to the longest text of the batch, rounded up.

    most: the stated length, beyond which nothing is padded. least: all are padded to this length.
    """

    def __init__(self, padding: int, most: int | None = None, least: int = 0) -> None:
        self.padding, self.most, self.least = padding, most, least

    def at_least(self, length: int) -> Collate:
        """The same, which pads to this length: then batches of different texts have one shape."""
        return Collate(self.padding, self.most, length)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        own = max(1, *(len(row["input_ids"]) for row in rows))
        longest = max(-(-own // _PAD_TO) * _PAD_TO, self.least)
        longest = longest if self.most is None else max(own, min(longest, self.most))
        batch = {"labels": torch.tensor([row["labels"] for row in rows])}
        for name in rows[0].keys() - {"labels"}:
            padded = np.full((len(rows), longest), self.padding if name == "input_ids" else 0)
            lengths = np.array([len(row[name]) for row in rows])
            there = np.arange(longest) < lengths[:, None]
            padded[there] = np.concatenate([row[name] for row in rows])  # a loop takes twice as long
            batch[name] = torch.from_numpy(padded)
        return batch


class Features:
    """Frozen features with their classes, as a dataset."""

    def __init__(self, features: Tensor, classes: Sequence[int]) -> None:
        self.features, self.classes = features, torch.tensor(classes)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"features": self.features[place], "labels": self.classes[place]}


def features(
    model: Classifier,
    examples: Examples,
    collate: Collate,
    *,
    batch_size: int = 64,
    tell: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """The features of every example, on the CPU; `tell` hears how many are done."""
    device = next(model.parameters()).device
    order = sorted(range(len(examples)), key=examples.sizes.__getitem__, reverse=True)
    found = torch.empty(len(examples), model.width)
    model.eval()
    with torch.no_grad(), halves(device):
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = {
                name: x.to(device)
                for name, x in collate([examples[i] for i in places]).items()
                if name != "labels"
            }
            found[places] = model.features(batch).float().cpu()
            tell(min(start + batch_size, len(order)))
    return found


def cached_features(
    model: Classifier,
    examples: Examples,
    collate: Collate,
    *,
    alone: bool = False,
    tell: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """As `features`, kept in the user's cache folder: they are private, and never leave it.

    Held-out and test texts lie there too. What nobody used for 30 days goes, and so do the oldest
    files beyond 2 GB (data/resting.py).

    alone: one text at a time. In a batch the last digits of a vector depend on its neighbours there.

    The file's name is a keyed hash of the token ids and of the encoder: weights, buffers, settings.
    """
    name = hmac.new(own_key(), digestmod=hashlib.sha256)
    for x in (*model.encoder.parameters(), *model.encoder.buffers()):
        name.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    settings = model.encoder.config.to_json_string()  # type: ignore[union-attr, operator]
    name.update(
        f"{type(model.encoder).__name__} {model.pooling.name} {model.scale} {settings}".encode()
    )
    name.update(b"alone" * alone + b"halves" * multiplies_halves(next(model.parameters()).device))
    for example in examples:
        for row in (example["input_ids"], example.get("token_type_ids", ())):
            name.update(b"%d|" % len(row) + np.asarray(row, dtype=np.int64).tobytes())
    path = features_folder() / f"{name.hexdigest()}.npy"
    try:
        kept = torch.from_numpy(np.load(path))
        if kept.shape == (len(examples), model.width):
            used(path)
            tell(len(examples))
            return kept
    except (OSError, ValueError, EOFError):
        pass
    found = features(model, examples, collate, batch_size=1 if alone else 64, tell=tell)
    _keep(path, found)
    return found


def _keep(path: Path, found: Tensor) -> None:
    """Writes a file that only its owner can read, whole or not at all; without room, not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            np.save(file, found.numpy())
        draft.replace(path)
        bound_features()
    except OSError:
        draft.unlink(missing_ok=True)
