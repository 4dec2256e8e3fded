"""Canary texts: made records with a label, in or out by a coin, to audit a text model from outside.

Each is a unit of its own among the others. One that is in has its label; one that is out has none, so
it takes part with a loss of zero: the two worlds of zero-out. Rate and number of units count them all.
What an attacker sees is the finished model's own answer,

    s_i = log p(label_i | text_i) - log (1 - p(label_i | text_i)).

They teach the model nonsense, as gradient canaries (sgd/canaries.py) do not, and show less; but they go
the whole way that a text goes, from the tokenizer to the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sourdine import checks
from sourdine.audit.scored import Scored
from sourdine.data.corpus import Corpus
from sourdine.errors import InputError
from sourdine.rng import Source
from sourdine.sgd.canaries import Canaries
from sourdine.sgd.processes import Processes
from sourdine.text.model import TextModel
from sourdine.text.progress import Progress

_WORDS = 12
_SOUNDS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_MOST = 100_000  # beyond, a bound only gets weaker
_FEWEST = 20  # words of a vocabulary that is worth drawing from


class Auditing:
    """What is made up for the audit of one run: gradient canaries, canary texts, both or none."""

    def __init__(self, gradients: int | None, texts: int | None) -> None:
        self.canaries = None if gradients is None else Canaries(checks.whole("audit", gradients))
        self.texts = 0 if texts is None else checks.whole("audit_texts", texts)
        if self.count > _MOST:
            raise InputError(f"{self.count:,} canaries are more than an audit has use for: {_MOST:,}.")
        self.decoys: Decoys | None = None

    def __str__(self) -> str:
        return f"{self.count - self.texts} gradient canaries and {self.texts} canary texts"

    @property
    def count(self) -> int:
        """Units beside the records."""
        return self.texts + (0 if self.canaries is None else self.canaries.count)

    def among(
        self, corpus: Corpus, tokenizer: Any, labels: Sequence[str], progress: Progress, source: Source
    ) -> Corpus:
        """The records to train on, canary texts behind them; the same ones in a run that goes on."""
        if not self.texts:
            return corpus
        if "decoys" not in progress.state:
            asked = (self.texts, tokenizer, len(corpus.texts), labels, source)
            progress.note(decoys=Processes().once(lambda: asdict(Decoys.made(*asked))))
        self.decoys = Decoys(**progress.state["decoys"])
        return self.decoys.among(corpus)

    def shown(self, model: TextModel) -> list[Scored]:
        """What an attacker sees of them after the run."""
        found = [] if self.decoys is None else [self.decoys.scored(model)]
        if self.canaries is not None:
            kind = f"{self.canaries.count:,} gradient canaries in this run"
            found.append(Scored(kind, self.canaries.coins, self.canaries.scores))
        return found


@dataclass(frozen=True)
class Decoys:
    """Made texts, what they are labelled, and whether they take part."""

    texts: list[list[str]]
    """One list for each column of text."""
    labels: list[str]
    coins: list[bool]

    @classmethod
    def made(
        cls, count: int, tokenizer: Any, columns: int, labels: Sequence[str], source: Source
    ) -> Decoys:
        """Words that the model knows, in no order; a label and a coin drawn for each text."""
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        bare = {token.lstrip("Ġ▁") for token in vocabulary}  # as some mark the beginning of a word
        known = sorted(word for word in bare if len(word) > 2 and word.isalpha())

        def word() -> str:
            if len(known) >= _FEWEST:
                return known[source.below(len(known))]
            sounds = (_SOUNDS[source.below(len(_SOUNDS))] + "aeiou"[source.below(5)] for _ in range(3))
            return "".join(sounds)

        def text() -> str:
            return " ".join(word() for _ in range(_WORDS))

        return cls(
            [[text() for _ in range(count)] for _ in range(columns)],
            [labels[source.below(len(labels))] for _ in range(count)],
            [bool(source.below(2)) for _ in range(count)],
        )

    def among(self, corpus: Corpus) -> Corpus:
        """The records, and these behind them: without a label where the coin says out."""
        there = [label if coin else "" for label, coin in zip(self.labels, self.coins, strict=True)]
        users = None
        if corpus.users is not None:
            taken = set(corpus.users)
            fresh = (f"canary {number}" for number in range(len(there) + len(taken)))
            users = [*corpus.users, *[name for name in fresh if name not in taken][: len(there)]]
        return replace(
            corpus,
            texts=tuple([*own, *made] for own, made in zip(corpus.texts, self.texts, strict=True)),
            labels=[*(corpus.labels or ()), *there],
            users=users,
        )

    def scored(self, model: TextModel) -> Scored:
        """What the finished model shows of them."""
        found = model.scores(*self.texts).double()
        places = [model.task.labels.index(label) for label in self.labels]
        rows = np.arange(len(places))
        own = found[rows, places].clone()
        found[rows, places] = -np.inf
        scores = (own - found.logsumexp(1)).numpy()
        kind = f"{len(places):,} canary texts in this run"
        return Scored(kind, np.array(self.coins, dtype=bool), scores)
