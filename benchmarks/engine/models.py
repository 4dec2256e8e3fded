"""The models of the benchmark: random weights, no dropout, random tokens, one loss per example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A model and what it is trained on: `batch` has one row per example in each of its tensors."""

    describe: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]  # so many examples
    examples: int


def losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of each example: the mean over its labels, one or one per token."""
    each = cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return each.reshape(len(labels), -1).mean(1)


class Logits(nn.Module):
    """A Hugging Face model that returns its logits alone, as the wrappers of all engines can carry."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs).logits


class TextCNN(nn.Module):
    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128)
        self.convolutions = nn.ModuleList(nn.Conv1d(128, 100, width) for width in (3, 4, 5))
        self.head = nn.Linear(300, classes)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids).transpose(1, 2)
        return self.head(torch.cat([c(x).relu().amax(2) for c in self.convolutions], dim=1))


class Lstm(nn.Module):
    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.head = nn.Linear(256, classes)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(input_ids))
        return self.head(outputs[:, -1])


def bert(layers: int, hidden: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    return Logits(BertForSequenceClassification(config))


def gpt2(layers: int, hidden: int, *, tied: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=hidden // 64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    return Logits(GPT2LMHeadModel(config))


def tokens(vocabulary: int, length: int, classes: int) -> Callable[[int], Batch]:
    def batch(count: int) -> Batch:
        chance = torch.Generator().manual_seed(1)
        return {
            "input_ids": torch.randint(vocabulary, (count, length), generator=chance),
            "labels": torch.randint(classes, (count,), generator=chance),
        }

    return batch


def positioned(vocabulary: int, length: int, classes: int | None) -> Callable[[int], Batch]:
    """With the ids that a Hugging Face model makes itself, but with one row for each example.

    Opacus needs them: it takes the first dimension of each layer's input for the examples. Without
    classes, the labels are one token per position.
    """

    def batch(count: int) -> Batch:
        made = tokens(vocabulary, length, classes or 1)(count)
        made["position_ids"] = torch.arange(length).expand(count, length).contiguous()
        if classes:
            made["token_type_ids"] = torch.zeros(count, length, dtype=torch.long)
        else:
            made["labels"] = made["input_ids"].roll(-1, 1)
        return made

    return batch


CPU = {
    "bert": Task(
        "BERT 4 x 256, batch 32 x 64",
        lambda: bert(4, 256),
        positioned(30522, 64, 2),
        32,
    ),
    "gpt2": Task(
        "GPT-2 4 x 256 untied, batch 16 x 64",
        lambda: gpt2(4, 256, tied=False),
        positioned(50257, 64, None),
        16,
    ),
    "gpt2-tied": Task(
        "GPT-2 4 x 256 tied, batch 16 x 64",
        lambda: gpt2(4, 256, tied=True),
        positioned(50257, 64, None),
        16,
    ),
    "textcnn": Task(
        "TextCNN 128, 3/4/5 x 100, batch 64 x 64",
        lambda: TextCNN(20000, 2),
        tokens(20000, 64, 2),
        64,
    ),
    "lstm": Task(
        "LSTM 128, 256, batch 32 x 64",
        lambda: Lstm(20000, 2),
        tokens(20000, 64, 2),
        32,
    ),
}

CUDA = {
    "bert": Task("BERT-base, batch 64 x 128", lambda: bert(12, 768), positioned(30522, 128, 2), 64),
    "gpt2": Task(
        "GPT-2 small untied, batch 16 x 512",
        lambda: gpt2(12, 768, tied=False),
        positioned(50257, 512, None),
        16,
    ),
    "gpt2-tied": Task(
        "GPT-2 small tied, batch 16 x 512",
        lambda: gpt2(12, 768, tied=True),
        positioned(50257, 512, None),
        16,
    ),
    "gpt2-medium": Task(
        "GPT-2 medium untied, batch 16 x 512",
        lambda: gpt2(24, 1024, tied=False),
        positioned(50257, 512, None),
        16,
    ),
    "textcnn": CPU["textcnn"],
    "lstm": CPU["lstm"],
}
