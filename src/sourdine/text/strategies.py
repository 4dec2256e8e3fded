"""What trains: small objects that make a Classifier ready, each with the papers it comes from.

Fewer trained parameters mean less noise in all (its norm grows with the square root of their number)
and less to learn with. The planner chooses; a user may name another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import nn

from sourdine import checks
from sourdine.errors import InputError
from sourdine.text.models import Classifier


class Strategy(Protocol):
    """Freezes and adds parameters; what requires a gradient afterwards is trained."""

    name: ClassVar[str]

    def prepare(self, model: Classifier) -> None: ...

    def finish(self, model: Classifier) -> None:
        """Folds what was added into the encoder, where that can be done."""


@dataclass(frozen=True)
class Everything:
    """All weights, except the word vectors of a pretrained model: most words occur in few texts."""

    name: ClassVar[str] = "all"
    words: bool = False

    def prepare(self, model: Classifier) -> None:
        model.requires_grad_(True)
        _freeze_unused(model)
        if not self.words:
            for module in model.encoder.modules():
                if isinstance(module, nn.Embedding):
                    module.requires_grad_(False)

    def finish(self, model: Classifier) -> None:
        pass


@dataclass(frozen=True)
class LoRA:
    """Low-rank additions to linear layers (Hu et al. 2022; privately Yu et al. 2022), and the head."""

    name: ClassVar[str] = "lora"
    rank: int = 8

    def __post_init__(self) -> None:
        checks.whole("rank", self.rank)

    def prepare(self, model: Classifier) -> None:
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415 (seconds)

        model.requires_grad_(False)
        turned = any(type(module).__name__ == "Conv1D" for module in model.encoder.modules())  # GPT-2
        config = LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank,
            lora_dropout=0.0,
            target_modules="all-linear",
            fan_in_fan_out=turned,
        )
        model.encoder = get_peft_model(model.encoder, config)
        model.head.requires_grad_(True)
        _freeze_unused(model)

    def finish(self, model: Classifier) -> None:
        model.encoder = model.encoder.merge_and_unload()  # type: ignore[operator]


@dataclass(frozen=True)
class Biases:
    """Biases and the head (BitFit, Ben Zaken et al. 2022; privately Bu et al. 2022)."""

    name: ClassVar[str] = "bitfit"

    def prepare(self, model: Classifier) -> None:
        model.requires_grad_(False)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        model.head.requires_grad_(True)
        _freeze_unused(model)
        if sum(x.requires_grad for x in model.encoder.parameters()) == 0:
            raise InputError("this model has no biases to train; train with lora, head or all instead.")

    def finish(self, model: Classifier) -> None:
        pass


@dataclass(frozen=True)
class Head:
    """The head alone, on features that are computed once."""

    name: ClassVar[str] = "head"

    def prepare(self, model: Classifier) -> None:
        model.requires_grad_(False)
        model.head.requires_grad_(True)

    def finish(self, model: Classifier) -> None:
        pass


@dataclass(frozen=True)
class Prompt:
    """Vectors in front of every text, and the head (Lester et al. 2021; privately Duan et al. 2023)."""

    name: ClassVar[str] = "prompt"
    length: int = 10

    def __post_init__(self) -> None:
        checks.whole("prompt length", self.length)

    def prepare(self, model: Classifier) -> None:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        if model.prompt is None:
            model.add_prompt(self.length)
        model.prompt.requires_grad_(True)  # type: ignore[union-attr]

    def finish(self, model: Classifier) -> None:
        pass


STRATEGIES: dict[str, type[Everything | LoRA | Biases | Head | Prompt]] = {
    kind.name: kind for kind in (Head, Biases, LoRA, Prompt, Everything)
}


def strategy(name: str) -> Strategy:
    """The strategy of this name."""
    return STRATEGIES[checks.one_of("what trains", name, tuple(STRATEGIES))]()


def _freeze_unused(model: Classifier) -> None:
    """A pooler behind the last hidden state takes no part: it would only use up noise."""
    for name, parameter in model.encoder.named_parameters():
        if "pooler" in name.split("."):
            parameter.requires_grad_(False)
