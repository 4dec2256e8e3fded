"""Questions about text: how many people use a word.

Each unit (a row, or a person with all counted rows) counts once for a word and for at most
`words_per_unit` words, so that it moves so many counts by one each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sourdine import checks
from sourdine.data.words import persons_by_word
from sourdine.errors import InputError
from sourdine.mechanisms import Laplace, OpenCounts, sensitivity
from sourdine.query.answers import Answer
from sourdine.query.curator import Curator


class Words(Curator):
    """The part of a Session that asks about text."""

    def word_counts(
        self,
        vocabulary: Sequence[str] | None = None,
        *,
        epsilon: float,
        delta: float | None = None,
        column: str | None = None,
        words_per_unit: int = 10,
        where: Sequence[str] = (),
    ) -> dict[str, Answer]:
        """How many units use each word of a public vocabulary.

        Without a vocabulary, words come from the text itself: that takes a delta, and only words that
        many use come out, most frequent first (mechanisms.OpenCounts).
        """
        column = column or self._only_text()
        most = checks.whole("words_per_unit", words_per_unit)
        label = self._label("word counts", column, where)
        if vocabulary is None:
            if delta is None:
                raise InputError(
                    "words read off private text need a delta, the probability that a word of one "
                    "person comes out, such as 1e-8; or give a public vocabulary."
                )
            open_counts = OpenCounts(epsilon, delta, most, self.adjacency)
            counts = self._users(column, None, most, where)
            (found,) = self._released(f"{label}, open vocabulary", [(open_counts, counts)])
            return self._worded(label, found, open_counts.noise)
        if delta is not None:
            raise InputError("counts over a public vocabulary cost no delta; leave it out.")
        moved = sensitivity.words(most, self.adjacency)
        noise = Laplace(epsilon, moved, self.adjacency, whole=True)
        counts = self._users(column, vocabulary, most, where)
        (released,) = self._released(label, [(noise, list(counts.values()))])
        return self._worded(label, dict(zip(counts, released, strict=True)), noise)

    def top_words(
        self,
        vocabulary: Sequence[str] | None = None,
        *,
        k: int,
        epsilon: float,
        delta: float | None = None,
        column: str | None = None,
        words_per_unit: int = 10,
        where: Sequence[str] = (),
    ) -> dict[str, Answer]:
        """The k words with the largest noisy counts, which is post-processing of `word_counts`."""
        k = checks.whole("k", k)
        found = self.word_counts(
            vocabulary,
            epsilon=epsilon,
            delta=delta,
            column=column,
            words_per_unit=words_per_unit,
            where=where,
        )
        ranked = sorted(found, key=lambda word: (-found[word].value, word))
        return {word: found[word] for word in ranked[:k]}

    def _users(
        self, column: str, vocabulary: Sequence[str] | None, most: int, where: Sequence[str]
    ) -> dict[str, int]:
        mask, texts, owner = self._mask(where), self.table.text(column), self._owner
        if mask is not None:
            texts = texts.filter(mask)
            owner = None if owner is None else owner[mask]
        return persons_by_word(texts, owner, vocabulary=vocabulary, most=most)

    def _worded(self, label: str, counts: Mapping[str, float], noise: Laplace) -> dict[str, Answer]:
        width = noise.half_width(self.confidence)
        return {
            word: Answer(float(x), float(x - width), float(x + width), self.confidence, label)
            for word, x in counts.items()
        }

    def _only_text(self) -> str:
        # A column of a text file may hold text: whether its cells look like numbers does not matter.
        found = [name for name in self.table.columns if self.table.may_be_text(name)]
        if len(found) != 1:
            raise InputError(
                f"{self.table.name} has {len(found)} columns that may hold text; name the one in "
                "question (column=)."
            )
        return found[0]
