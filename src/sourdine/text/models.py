"""Models that read text: an encoder out of transformers, a way to pool its tokens, a linear head.

Any encoder or causal model of transformers serves, by local path or hub name. Without one there is a
small transformer on bytes, made here: its 256 symbols come from nobody's text, where a vocabulary made
from private text would be a release of its own.

Guarantee: what a text gives depends on that text alone, not on the others of its batch: padding is
masked out of attention and pooling.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sourdine.errors import InputError

BYTES = "bytes"
"""The name of the built-in model."""
CONFIG, WEIGHTS = "encoder.json", "encoder.safetensors"
"""The encoder of a run folder; model.py says why it is not called as transformers calls it."""


class Classifier(nn.Module):
    """logits = head(pool(encoder(text))).

    pooling: Mean() for encoders, Last() for causal models.
    """

    def __init__(self, encoder: nn.Module, classes: int, pooling: Pooling, scale: float = 1.0) -> None:
        super().__init__()
        self.encoder, self.pooling, self.scale = encoder, pooling, scale
        self.width = int(encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.head = nn.Linear(self.width, classes)
        nn.init.zeros_(self.head.weight)  # every class alike at first; noise is not needed twice
        nn.init.zeros_(self.head.bias)
        self.prompt: nn.Parameter | None = None

    def add_prompt(self, length: int) -> None:
        """Puts trained vectors in front of every text, at first words of the model's own."""
        known = self.encoder.get_input_embeddings().weight  # type: ignore[operator]
        spread = torch.linspace(0, len(known) - 1, length).long()
        self.prompt = nn.Parameter(known[spread].detach().clone())

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.features(batch))  # type: ignore[no-any-return]

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        """One vector for each text, of norm `scale` whatever the text."""
        inputs = {name: x for name, x in batch.items() if name != "labels"}
        mask = inputs["attention_mask"]
        if self.prompt is not None:
            ids = inputs.pop("input_ids")
            inputs.pop("token_type_ids", None)
            words = self.encoder.get_input_embeddings()(ids)  # type: ignore[operator]
            prompt = self.prompt.expand(len(ids), *self.prompt.shape)
            inputs["inputs_embeds"] = torch.cat([prompt, words], 1)
            mask = torch.cat([mask.new_ones(len(ids), len(self.prompt)), mask], 1)
            inputs["attention_mask"] = mask
        with plain_attention(self.encoder):
            hidden = self.encoder(**inputs).last_hidden_state
        pooled = self.pooling(hidden, mask)
        return nn.functional.normalize(pooled, dim=-1) * self.scale


class Pooling(nn.Module):
    """From a vector for each token to one for the text."""

    name: str


class Mean(Pooling):
    """The average over the tokens of the text."""

    name = "mean"

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        weights = mask.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


class Last(Pooling):
    """The last token of the text: the only one that has seen all the others in a causal model."""

    name = "last"

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(mask.shape[1], device=mask.device)
        last = (mask * places).argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]


@contextlib.contextmanager
def plain_attention(encoder: Any) -> Iterator[None]:
    """On a CPU in half precision: attention as products and a softmax, not as torch's fused kernel.

    There the fused kernel's sums depend on how far a text is padded, which is to say on its neighbours
    (3e-4 of a loss for MiniLM), and its backward pass takes longer than all of the rest.
    """
    before = getattr(encoder.config, "_attn_implementation", None)
    if before != "sdpa" or not torch.is_autocast_enabled("cpu"):
        yield
        return
    encoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        encoder.set_attn_implementation(before)


POOLINGS: dict[str, type[Pooling]] = {kind.name: kind for kind in (Mean, Last)}


def load_encoder(name: str) -> tuple[Any, Any, Pooling]:
    """Encoder, tokenizer and pooling of a local path, a hub name, or `bytes`."""
    if name == BYTES:
        return (*_bytes(), Mean())
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 (seconds)

    _check_path(name)
    try:
        with quiet():
            config = _config(name)
            tokenizer = AutoTokenizer.from_pretrained(name, config=config)
            model, notes = AutoModel.from_pretrained(name, config=config, output_loading_info=True)
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise InputError(
            f"the model {name!r} cannot be loaded: {_first_line(error)} Name a folder that "
            f"transformers can load, a model of its hub, or {BYTES!r} for the built-in one."
        ) from None
    absent = [key for key in notes["missing_keys"] if "pooler" not in key]
    if absent:
        raise InputError(
            f"the model {name!r} lacks weights for {absent[0]} and {len(absent) - 1} others, which "
            "would stay random; take a folder that holds the whole model."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"the model {name!r} is an encoder with a decoder; classification takes an encoder (such "
            "as BERT) or a causal model (such as GPT-2)."
        )
    if len(tokenizer) < getattr(config, "vocab_size", 0) / 2:
        raise InputError(
            f"the tokenizer of {name!r} knows {len(tokenizer)} tokens, the model {config.vocab_size}: "
            "its files are missing or belong to another model. Copy the right ones there."
        )
    if getattr(tokenizer, "pad_token_id", None) is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    causal = any("CausalLM" in kind or "LMHead" in kind for kind in config.architectures or ())
    model = model.float()  # many are kept in half precision, in which small steps would be lost
    return model, tokenizer, Last() if causal or not _looks_back(model) else Mean()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """transformers without its progress bars and notes."""
    from transformers.utils import logging as notes  # noqa: PLC0415

    level, shown = notes.get_verbosity(), notes.is_progress_bar_enabled()
    notes.set_verbosity_error()
    notes.disable_progress_bar()
    hub = logging.getLogger("huggingface_hub")
    before = hub.level
    hub.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        notes.set_verbosity(level)
        hub.setLevel(before)
        if shown:
            notes.enable_progress_bar()


def _config(name: str) -> Any:
    """The config of a model of transformers, or of the encoder in a run folder."""
    from transformers import AutoConfig  # noqa: PLC0415 (seconds)

    own = Path(name).expanduser() / CONFIG
    if not own.exists():
        return AutoConfig.from_pretrained(name)
    config = AutoConfig.for_model(**json.loads(own.read_text(encoding="utf-8")))
    config.transformers_weights = WEIGHTS
    return config


def _bytes() -> tuple[Any, Any]:
    """Four layers of 128 on bytes, weights as drawn; the tokenizer has a symbol for each byte.

    The weights are the same each time: a run that goes on must find those that it left frozen.
    """
    from transformers import BertConfig, BertModel, ByT5Tokenizer  # noqa: PLC0415

    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return BertModel(config, add_pooling_layer=False), tokenizer


def _check_path(name: str) -> None:
    """A path that is meant as one must exist: a typo must not become a download."""
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "~", os.sep)) or name.count("/") > 1
    if path.is_dir():
        if not (path / "config.json").exists():
            raise InputError(f"the folder {name!r} holds no model: config.json is missing.")
        if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
            raise InputError(f"the folder {name!r} holds no weights (*.safetensors); copy them there.")
    elif looks_local or path.exists():
        raise InputError(f"there is no model folder {name!r}; check the path.")


def _looks_back(model: Any) -> bool:
    """Whether a token sees those after it: if not, only the last has seen the text."""
    model.eval()
    with torch.no_grad():
        ids = torch.tensor([[5, 6, 7], [5, 6, 8]])
        hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    return not torch.equal(hidden[0, 0], hidden[1, 0])


def _first_line(error: BaseException) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line if line.endswith(".") else line + "."
