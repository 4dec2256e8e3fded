"""A trained model: using it, and keeping it in a folder that `load` reads.

No architecture of transformers pools, scales and classifies as Classifier does (models.py). Given the
encoder alone, transformers would add a head of random weights and answer with it, without an error. So
its config and weights lie under names that transformers does not look for, and config.json names a kind
of model that it refuses. The tokenizer is an ordinary one: AutoTokenizer loads it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sourdine.errors import InputError
from sourdine.text.examples import NOTHING, Collate, tokenized
from sourdine.text.models import CONFIG, POOLINGS, WEIGHTS, Classifier, load_encoder, quiet
from sourdine.text.tasks import Classify

FORMAT, VERSION = "sourdine.model", 2
KNOWN = (1, 2)
"""In version 1, config.json and model.safetensors were the encoder's."""
DESCRIPTION, HEAD = "sourdine.json", "head.safetensors"
MODEL_TYPE = "sourdine text classifier (load this folder with sourdine.load)"
"""What transformers quotes when it refuses the folder."""


@dataclass(frozen=True, eq=False, repr=False)
class TextModel:
    """A classifier with its tokenizer and the names of its classes."""

    network: Classifier
    tokenizer: Any
    task: Classify
    max_length: int
    texts: int = 1
    """How many texts a record has."""

    def __repr__(self) -> str:
        return f"TextModel({self.task.name}, labels={list(self.task.labels)})"

    def predict(self, *texts: Sequence[str], batch_size: int = 64) -> list[str]:
        """The most likely label of each text, or of each pair: predict(premises, hypotheses)."""
        scores = self.scores(*texts, batch_size=batch_size)
        return [self.task.labels[place] for place in scores.argmax(1).tolist()]

    def probabilities(self, *texts: Sequence[str], batch_size: int = 64) -> torch.Tensor:
        """The probability of each label, one row for each text."""
        return self.scores(*texts, batch_size=batch_size).softmax(1)

    def scores(self, *texts: Sequence[str], batch_size: int = 64) -> torch.Tensor:
        """Logits, on the CPU."""
        known = (isinstance(column, Iterable) and not isinstance(column, str) for column in texts)
        texts = tuple(list(column) if many else "" for column, many in zip(texts, known, strict=True))
        wrong = any(isinstance(column, str) for column in texts)
        wrong |= any(not isinstance(text, str) for column in texts for text in column)
        if len(texts) != self.texts or wrong or len({len(column) for column in texts}) > 1:
            asked = "a list of texts" if self.texts == 1 else "two lists, one for each text of a pair"
            raise InputError(f"this model reads {asked}.")
        if not texts[0]:
            return torch.empty(0, len(self.task.labels))
        rows = tokenized(self.tokenizer, texts, [NOTHING] * len(texts[0]), self.max_length)
        collate = Collate(self.tokenizer.pad_token_id)
        found = torch.empty(len(rows), len(self.task.labels))
        order = sorted(range(len(rows)), key=rows.sizes.__getitem__)
        device = next(self.network.parameters()).device
        self.network.eval()
        with torch.no_grad():
            for start in range(0, len(order), batch_size):
                places = order[start : start + batch_size]
                batch = collate([rows[place] for place in places])
                batch = {name: x.to(device) for name, x in batch.items()}
                found[places] = self.network(batch).float().cpu()
        return found

    def save(self, folder: Path) -> None:
        """The encoder under names of its own, the tokenizer as transformers saves it, the head beside.

        OSError where they cannot be written; safetensors has an error of its own for a full disk.
        """
        try:
            self._save(folder)
        except SafetensorError as error:
            raise OSError(errno.EIO, f"the weights could not be written ({error})") from None

    def _save(self, folder: Path) -> None:
        with quiet():
            # In one file, whatever its size.
            self.network.encoder.save_pretrained(folder, max_shard_size="100TB")  # type: ignore[operator]
            self.tokenizer.save_pretrained(folder)
        (folder / "model.safetensors").replace(folder / WEIGHTS)
        (folder / "config.json").replace(folder / CONFIG)
        _write(folder / "config.json", {"model_type": MODEL_TYPE})
        added = {"head.weight": self.network.head.weight, "head.bias": self.network.head.bias}
        if self.network.prompt is not None:
            added["prompt"] = self.network.prompt
        tensors = {name: x.detach().cpu().contiguous() for name, x in added.items()}
        save_file(tensors, folder / HEAD, metadata={"format": "pt"})
        described = {
            "format": FORMAT,
            "version": VERSION,
            "task": self.task.name,
            "labels": list(self.task.labels),
            "texts": self.texts,
            "max_length": self.max_length,
            "pooling": self.network.pooling.name,
            "scale": self.network.scale,
        }
        _write(folder / DESCRIPTION, described)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load(folder: str | Path) -> TextModel:
    """The model of a run folder, of this version or an older one."""
    path = Path(folder).expanduser()
    if not (path / DESCRIPTION).exists():
        raise InputError(f"{str(folder)!r} holds no model of sourdine: {DESCRIPTION} is missing.")
    try:
        described = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
        if described["format"] != FORMAT or described["version"] not in KNOWN:
            raise InputError(f"{path / DESCRIPTION} is of another or a newer kind; update sourdine.")
        task = Classify(tuple(described["labels"]))
        pooling = POOLINGS[described["pooling"]]()
        tensors = load_file(path / HEAD)
        encoder, tokenizer, _ = load_encoder(str(path))
        network = Classifier(encoder, len(task.labels), pooling, float(described["scale"]))
        network.head.load_state_dict({name: tensors[f"head.{name}"] for name in ("weight", "bias")})
        if "prompt" in tensors:
            network.prompt = torch.nn.Parameter(tensors["prompt"])
    except (KeyError, ValueError, TypeError, OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the model in {str(folder)!r} is damaged: {error}.") from None
    return TextModel(network, tokenizer, task, int(described["max_length"]), int(described["texts"]))
