"""Models as targets: a folder of transformers, a classifier of scikit-learn, a plain function.

Nothing is downloaded: a target is what its owner holds. Padding never changes an answer: a classifier
whose pad token is not settled reads one text at a time.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sourdine.attacks.causal import CausalModel
from sourdine.attacks.target import Floats, Record
from sourdine.errors import InputError

_BATCH = 32
_LONGEST = 512
"""Tokens of a text where neither model nor tokenizer says how many it can read."""
_SHIFTED = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer", "mpnet"})
"""Kinds of model whose first two positions are never used."""


@dataclass(frozen=True, eq=False)
class Function:
    """A function from records to probabilities, with the names of its columns."""

    answer: Callable[[Sequence[Record]], Any]
    labels: tuple[str, ...]

    def probabilities(self, records: Sequence[Record]) -> Floats:
        """What the function says, checked."""
        return _rows(self.answer(records), len(records), len(self.labels))


@dataclass(frozen=True, eq=False)
class Scikit:
    """A classifier of scikit-learn with `predict_proba`: a pipeline that takes texts, or with what
    turns texts into its input."""

    classifier: Any
    vectoriser: Any = None

    def __post_init__(self) -> None:
        if not (hasattr(self.classifier, "predict_proba") and hasattr(self.classifier, "classes_")):
            raise InputError(
                "the classifier has no probabilities; give one that is fitted and has predict_proba."
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, as text."""
        return tuple(map(str, self.classifier.classes_))

    def probabilities(self, records: Sequence[Record]) -> Floats:
        """One row for each record; pairs are refused."""
        if any(len(record.texts) != 1 for record in records):
            raise InputError("this classifier reads one text a record; wrap pairs in a Function.")
        texts: Any = [record.texts[0] for record in records]
        asked = texts if self.vectoriser is None else self.vectoriser.transform(texts)
        return _rows(self.classifier.predict_proba(asked), len(records), len(self.labels))


@dataclass(frozen=True, eq=False)
class SequenceClassifier:
    """A sequence classifier of transformers with its tokenizer."""

    model: Any
    tokenizer: Any
    labels: tuple[str, ...]
    longest: int

    def probabilities(self, records: Sequence[Record]) -> Floats:
        """One row for each record; texts are cut at the longest that the model reads."""
        import torch  # noqa: PLC0415

        found = np.empty((len(records), len(self.labels)))
        with torch.inference_mode():
            for at, batch in _batches(self.model, self.tokenizer, records, self.longest):
                found[at] = self.model(**batch).logits.double().softmax(1).cpu().numpy()
        return found


def from_folder(
    path: str | Path, *, device: str | None = None, longest: int | None = None
) -> SequenceClassifier | CausalModel:
    """The model that transformers saved in a folder: a sequence classifier or a causal model.

    longest: tokens of a text that are read; by default all that model and tokenizer can. Give what the
    target was trained with, if that was less.
    """
    folder = _folder(path)
    kinds = _architectures(folder)
    classifies = any(kind.endswith("ForSequenceClassification") for kind in kinds)
    if not classifies and not any("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        raise InputError(
            f"the model in {str(path)!r} is {', '.join(kinds) or 'of no stated kind'}; an attack needs "
            "a sequence classifier or a causal language model, saved with its head."
        )
    kind = "AutoModelForSequenceClassification" if classifies else "AutoModelForCausalLM"
    model, tokenizer = _loaded(folder, kind, device)
    reads = _limit(model.config, tokenizer)
    longest = reads if longest is None else min(longest, reads)
    if not classifies:
        return CausalModel(model, tokenizer, longest)
    config = model.config
    if config.num_labels < 2 or config.problem_type == "multi_label_classification":
        raise InputError(
            f"the model in {str(path)!r} does not choose one of several labels; an attack on its "
            "probabilities needs that. Wrap it in a Function that gives rows that sum to 1."
        )
    return SequenceClassifier(model, tokenizer, _labels(config), longest)


def _labels(config: Any) -> tuple[str, ...]:
    """The names of the classes; numbers where transformers made up LABEL_0, LABEL_1 for them."""
    labels = [str(config.id2label[place]) for place in range(config.num_labels)]
    unnamed = all(label == f"LABEL_{place}" for place, label in enumerate(labels))
    return tuple(map(str, range(len(labels)))) if unnamed else tuple(labels)


def features(path: str | Path, records: Sequence[Record], *, device: str | None = None) -> Floats:
    """The mean of an encoder's last states over the tokens of each record, one row for each.

    For shadows whose heads are trained on frozen features (shadows.train_heads).
    """
    model, tokenizer = _loaded(_folder(path), "AutoModel", device, absent="pooler")
    import torch  # noqa: PLC0415

    found = np.empty((len(records), model.config.hidden_size))
    with torch.inference_mode():
        for at, batch in _batches(model, tokenizer, records, _limit(model.config, tokenizer)):
            mask = batch["attention_mask"][:, :, None].double()
            states = model(**batch).last_hidden_state.double() * mask
            found[at] = (states.sum(1) / mask.sum(1)).cpu().numpy()
    return found


def _batches(
    model: Any, tokenizer: Any, records: Sequence[Record], longest: int
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Places of records and their tokens, records of about one length together."""
    import torch  # noqa: PLC0415

    columns = [list(column) for column in zip(*(r.texts for r in records), strict=True)]
    if not columns:
        return
    rows = tokenizer(*columns, truncation=True, max_length=longest)
    pad = tokenizer.pad_token_id
    for place in (at for at, ids in enumerate(rows["input_ids"]) if not ids):
        for name, value in (("input_ids", tokenizer.eos_token_id or pad or 0), ("attention_mask", 1)):
            rows[name][place] = [value]  # a model must be given some token to look at
    sizes = [len(ids) for ids in rows["input_ids"]]
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    step = _BATCH if pad is not None and pad == model.config.pad_token_id else 1
    for start in range(0, len(order), step):
        at = order[start : start + step]
        widest = sizes[at[-1]]
        batch = {}
        for name, values in rows.items():
            fill = pad if name == "input_ids" else 0
            padded = [[*values[place], *[fill] * (widest - sizes[place])] for place in at]
            batch[name] = torch.tensor(padded, dtype=torch.long, device=model.device)
        yield at, batch


def _folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    if (folder / "sourdine.json").is_file():
        raise InputError(
            f"{str(path)!r} is a run folder of sourdine, which transformers cannot load. As a target, "
            "wrap the model of sourdine.load in a Function (the command line does that). As an "
            "encoder, name the one that the run started from."
        )
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{str(path)!r} is no folder with a model of transformers: it has no config.json. Nothing "
            "is downloaded here; save the model with save_pretrained and name that folder."
        )
    return folder


def _architectures(folder: Path) -> list[str]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return [str(kind) for kind in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError):
        raise InputError(f"{folder / 'config.json'} cannot be read; save the model again.") from None


def _loaded(folder: Path, kind: str, device: str | None, absent: str = "") -> tuple[Any, Any]:
    """Model and tokenizer in single precision, ready to answer.

    absent: part of the names of weights that may be missing, as they are not used.
    """
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError(f"this target needs {error.name}: pip install 'sourdine[text]'.") from None
    try:
        with _quiet():
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, notes = getattr(transformers, kind).from_pretrained(
                folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
            )
    except Exception as error:  # what is wrong with a folder comes in many classes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"the model in {str(folder)!r} cannot be loaded: {reason}. Save model and tokenizer into "
            "it with save_pretrained."
        ) from None
    missing = [name for name in notes["missing_keys"] if not absent or absent not in name]
    if missing:
        raise InputError(
            f"the model in {str(folder)!r} lacks {len(missing)} of its weights, which "
            "would stay random; save it with its head."
        )
    known = getattr(model.config, "vocab_size", None) or 0
    if len(tokenizer) < known / 2:  # transformers makes one up where there is none
        raise InputError(
            f"the tokenizer in {str(folder)!r} knows {len(tokenizer)} tokens, the model {known}: its "
            "files are missing or belong to another model, and all attacks would fail. Copy them there."
        )
    tokenizer.padding_side = "right"
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return model.to(where).eval(), tokenizer
    except (RuntimeError, AssertionError):
        raise InputError(f"there is no device {where!r} on this machine; cpu always is.") from None


def _limit(config: Any, tokenizer: Any) -> int:
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if most is not None and config.model_type in _SHIFTED:
        most -= 2
    stated = [size for size in (most, tokenizer.model_max_length) if size and size < 10**6]
    return min(stated, default=_LONGEST)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its progress bars and notes."""
    from transformers.utils import logging as notes  # noqa: PLC0415

    level, shown = notes.get_verbosity(), notes.is_progress_bar_enabled()
    notes.set_verbosity_error()
    notes.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        notes.set_verbosity(level)
        if shown:
            notes.enable_progress_bar()


def _rows(answer: Any, records: int, labels: int) -> Floats:
    """Probabilities, one row for each record, that sum to 1."""
    found = np.asarray(answer, dtype=np.float64)
    if found.shape != (records, labels):
        raise InputError(
            f"the target answered with shape {found.shape}, but {records} records and {labels} labels "
            f"make ({records}, {labels}); give a row for each record and a column for each label."
        )
    if not ((found >= 0).all() and np.allclose(found.sum(axis=1), 1, atol=1e-4)):
        raise InputError("the target's answers are no probabilities: rows must be >= 0 and sum to 1.")
    return found
