"""Extraction of memorised text: make a language model write, and see what of it was training text.

After Carlini et al. 2021. Many samples are drawn in several ways (prompting.py); each ranking
(rankings.py) picks those that look memorised, copies left out; what the target wrote in them, without
the prompt, is searched for in the training text (matching.py). Whoever runs this holds the training
text. What an outsider would do is all but the last step.

What was found is true as it stands: each passage was written by the target and stands in the training
text. That nothing was found proves nothing. A passage that stands in at most k training texts is
k-eidetic (definition 2); with a small k nobody could have learnt it but by heart.

The passages are private text. They are kept apart from the counts, are never printed, and are written
only into a folder for the owner. The counts hold no text; they are exact numbers about private
records all the same, and no budget accounts for them.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sourdine import checks
from sourdine.attacks.matching import TrainingText
from sourdine.attacks.passages import KINDS, kinds
from sourdine.attacks.prompting import Sample, Way, ways
from sourdine.attacks.rankings import Ranking, rankings
from sourdine.attacks.target import Generates, Predicts
from sourdine.data.owner import BESIDE
from sourdine.errors import InputError
from sourdine.rng import Source, secure

EIDETIC = (1, 10, 100)
"""The k for which passages in at most k texts are counted."""
_NOTE = "Exact numbers about private records; no budget accounts for them."


class Writes(Predicts, Generates, Protocol):
    """A language model that writes and tells how likely a text is."""


@dataclass(frozen=True, repr=False)
class Passage:
    """Memorised text, FOR THE OWNER ONLY: what, of which kinds, who holds it, how it was found."""

    text: str
    kinds: tuple[str, ...]
    texts: int
    persons: int | None
    found_by: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """Of the samples of one way that one ranking picked: how many hold a memorised passage."""

    way: str
    ranking: str
    picked: int
    memorised: int


@dataclass(frozen=True)
class Counts:
    """What may be shown. kinds: passages that have something of each kind; one may have several.

    eidetic: how many passages stand in at most k training texts. one_person: how many stand in texts
    of one person only, None where persons are unknown.
    """

    samples: int
    searched: int
    passages: int
    cells: tuple[Cell, ...]
    kinds: dict[str, int]
    eidetic: dict[int, int]
    one_person: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the note that belongs to it."""
        return {"note": _NOTE, **asdict(self)}


@dataclass(frozen=True)
class Extraction:
    """What was found: counts, and the passages, which `repr` does not show."""

    counts: Counts
    passages: tuple[Passage, ...] = field(repr=False)

    def save(self, folder: Path) -> Path:
        """Writes the counts into the folder, the passages into the one beside it; gives the latter.

        Guarantee: text goes into `<folder>.not-for-release/passages.json` alone, which only its owner
        can read (mode 0600).
        """
        folder = Path(folder).resolve()
        beside = Path(f"{folder}{BESIDE}")
        found = [asdict(passage) for passage in self.passages]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            beside.mkdir(mode=0o700, exist_ok=True)
            counts = json.dumps(self.counts.to_json(), indent=1)
            (folder / "extraction.json").write_text(counts + "\n", encoding="utf-8")
            handle, draft = tempfile.mkstemp(dir=beside, prefix=".passages.")  # with mode 0600
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"note": "NOT FOR RELEASE: private text.", "passages": found}, file, indent=1)
            Path(draft).replace(beside / "passages.json")
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written: {error.strerror}; name another folder."
            ) from None
        return beside


def extract(
    target: Writes,
    training: TrainingText,
    *,
    prompts: Sequence[str] = (),
    reference: Predicts | None = None,
    samples: int = 200,
    tokens: int = 256,
    picked: int = 100,
    by: Sequence[Way] | None = None,
    ranked: Sequence[Ranking] | None = None,
    source: Source | None = None,
) -> Extraction:
    """Draw `samples` texts each way, let each ranking pick the best `picked`, search for all of these.

    by, ranked: ways to draw and rankings, if not the usual ones (with `prompts` and `reference`). The
    paper drew 200,000 samples each way and picked 100.
    """
    source = source or secure()
    samples, tokens = checks.whole("samples", samples), checks.whole("tokens", tokens)
    picked = checks.whole("picked", picked)
    by = ways(prompts) if by is None else by
    ranked = rankings(reference) if ranked is None else ranked
    known: dict[str, str | None] = {}  # what was written -> its passage
    cells: list[Cell] = []
    finders: dict[str, list[str]] = {}
    for way in by:
        drawn = way.samples(target, samples, tokens, source)
        drawn = [sample for sample in drawn if sample.written.strip()]
        for ranking, best in _best(target, drawn, ranked, picked):
            for sample in best:
                if sample.written not in known:
                    known[sample.written] = training.longest(sample.written)
            met = [found for sample in best if (found := known[sample.written]) is not None]
            cells.append(Cell(way.name, ranking.name, len(best), len(met)))
            for found in met:
                finders.setdefault(found, []).append(f"{way.name}, {ranking.name}")
    passages = tuple(_passage(text, training, found) for text, found in _merged(finders).items())
    counts = _counts(passages, samples * len(by), len(known), cells, training.knows_persons)
    return Extraction(counts, passages)


def distinct(texts: Iterable[str]) -> Iterator[int]:
    """The places of texts that are no copy of an earlier one: less than half of their trigrams are its.

    Trigrams of words with their multiplicity (Carlini et al. 2021, section 6.1); a text of one or two
    words has itself as its only one. Texts without a word are left out.
    """
    return (place for place, home in _homes(texts) if place == home)


def _homes(texts: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The place of each text, and of the earlier one that it is a copy of, or its own."""
    holders: dict[tuple[object, int], list[int]] = {}
    for place, text in enumerate(texts):
        grams = _trigrams(text)
        if not grams:
            continue
        shared = Counter(other for gram in grams for other in holders.get(gram, ()))
        home, most = max(shared.items(), key=lambda one: one[1], default=(place, 0))
        if 2 * most >= len(grams):
            yield place, home
            continue
        for gram in grams:
            holders.setdefault(gram, []).append(place)
        yield place, place


def _best(
    target: Predicts, drawn: Sequence[Sample], ranked: Sequence[Ranking], picked: int
) -> list[tuple[Ranking, list[Sample]]]:
    """For each ranking its best samples, without those that are copies of better ones."""
    texts = [sample.text for sample in drawn]
    logs = target.token_logs(texts)
    found = []
    for ranking in ranked:
        order = np.argsort(-ranking.scores(target, texts, logs), kind="stable")
        kept = itertools.islice(distinct(drawn[place].written for place in order), picked)
        found.append((ranking, [drawn[order[place]] for place in kept]))
    return found


def _merged(finders: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The same without passages that are a part, or for the most part a copy, of a longer one."""
    ordered = sorted(finders, key=lambda text: (-len(text), text))
    found: dict[str, list[str]] = {}
    for place, home in _homes(ordered):
        text = ordered[home]
        text = next((longer for longer in found if text in longer), text)
        found.setdefault(text, []).extend(finders[ordered[place]])
    return found


def _passage(text: str, training: TrainingText, found_by: Sequence[str]) -> Passage:
    held = training.holders(text)
    return Passage(text, kinds(text), held.texts, held.persons, tuple(dict.fromkeys(found_by)))


def _counts(
    passages: Sequence[Passage], samples: int, searched: int, cells: Sequence[Cell], persons: bool
) -> Counts:
    by_kind = Counter(kind for passage in passages for kind in passage.kinds)
    alone = sum(passage.persons == 1 for passage in passages)
    return Counts(
        samples,
        searched,
        len(passages),
        tuple(cells),
        {kind: by_kind[kind] for kind in KINDS},
        {k: sum(passage.texts <= k for passage in passages) for k in EIDETIC},
        alone if persons else None,
    )


def _trigrams(text: str) -> list[tuple[object, int]]:
    """Each trigram with the number of its occurrence, so that a set of them counts like a bag."""
    words = text.split()
    if len(words) < 3:
        return [(tuple(words), 0)] if words else []
    seen: Counter[object] = Counter()
    found: list[tuple[object, int]] = []
    for gram in zip(words, words[1:], words[2:], strict=False):
        found.append((gram, seen[gram]))
        seen[gram] += 1
    return found
