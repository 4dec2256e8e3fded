"""A tiny encoder, a tiny causal model, and records of words that tell their class."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

GOOD, BAD = ["great", "lovely", "superb", "charming"], ["awful", "boring", "dull", "poor"]
PLAIN = [
    "the",
    "film",
    "was",
    "a",
    "story",
    "of",
    "people",
    "and",
    "places",
    "that",
    "one",
    "may",
    "see",
    "today",
]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *PLAIN]


def tokenizer() -> Any:
    """Words as they stand, between [CLS] and [SEP]."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing

    words = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def encoder(folder: Path) -> str:
    """A folder with a small BERT of random weights, as transformers saves one."""
    folder.mkdir(parents=True)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.4,  # random features that still tell words apart
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        transformers.BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def causal(folder: Path) -> str:
    """The same with a small GPT-2."""
    folder.mkdir(parents=True)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        eos_token_id=3,
        initializer_range=0.4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def records(count: int, *, people: int = 0, classes: int = 2, seed: int = 5) -> dict[str, list[str]]:
    """Texts whose words tell good from bad; further classes have plain words only."""
    chance = random.Random(seed)
    found: dict[str, list[str]] = {"note": [], "mood": []}
    names = ["good", "bad", *(f"class {n}" for n in range(2, classes))]
    for _ in range(count):
        name = chance.choice(names)
        words = chance.choices(PLAIN, k=5)
        words += chance.choices({"good": GOOD, "bad": BAD}.get(name, PLAIN), k=4)
        chance.shuffle(words)
        found["note"].append(" ".join(words))
        found["mood"].append(name)
    if people:
        found["author"] = [f"person {place % people}" for place in range(count)]
    return found
