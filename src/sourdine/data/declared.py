"""Declared labels that do not fit the records: the owner is asked, before anything is charged.

A record whose label was not declared teaches nothing and is tested on by nobody. Misspelt labels make
that many records, so the owner hears how many there are, exactly, and says whether to go on. This is
one of the two places where records decide whether a run is made (the other: public texts that copy
private records). The answer is no release under the budget: the certificate lists "the records passed
the checks at load" as NOT ACCOUNTED, whether or not somebody was asked, and neither a refusal, nor a
count, nor the answer is written into a folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sourdine import checks
from sourdine.data.corpus import Corpus
from sourdine.errors import InputError

DROP = "drop"
"""What `other_labels` may be: records with other labels teach nothing."""

Ask = Callable[[str, str], bool]
"""Shows the owner exact facts about the records, asks a question, and returns the answer."""


@dataclass(frozen=True)
class Labels:
    """How the labels of the records fit those that were declared. Exact: for the owner alone.

    absent: declared, and no record has it. others: records with a label that was not declared.
    missing: records without a label. values: how many different labels the records have. largest: how
    many records the most frequent of them has.
    """

    declared: tuple[str, ...]
    absent: tuple[str, ...]
    others: int
    missing: int
    values: int
    largest: int
    records: int

    @property
    def sentence(self) -> str:
        """The facts in words. Only declared labels are named, since the others stand in records."""
        if not self.declared:
            share = self.largest / max(1, self.records - self.missing)
            said = f"the labels have {self.values:,} different values; the largest class has "
            said += f"{self.largest:,} of {self.records:,} records ({share:.0%})"
        else:
            said = f"{self.others:,} of {self.records:,} records have a label that was not declared"
            if self.absent:
                said += f", and no record has {', '.join(map(repr, self.absent))}"
        return said + (f"; {self.missing:,} have no label." if self.missing else ".")


def count(declared: Sequence[str] | None, corpora: Sequence[Corpus]) -> Labels:
    """Looks at the labels of all private records that a run reads."""
    found = Counter(label for corpus in corpora for label in corpus.labels or ())
    missing = found.pop("", 0)
    known = tuple(declared or ())
    return Labels(
        known,
        tuple(label for label in known if label not in found),
        sum(found.values()) - sum(found[label] for label in known),
        missing,
        len(found),
        max(found.values(), default=0),
        sum(found.values()) + missing,
    )


def check_option(declared: Sequence[str] | None, other_labels: str | None) -> None:
    """Whether `other_labels` makes sense here; no record is looked at."""
    if other_labels is None:
        return
    checks.one_of("other_labels", other_labels, (DROP,))
    if declared is None:
        raise InputError(
            "--other-labels (other_labels=) is about records whose label is not among --labels; "
            "declare the labels, or leave it out."
        )


def check_labels(
    declared: Sequence[str] | None,
    corpora: Sequence[Corpus],
    *,
    other_labels: str | None = None,
    ask: Ask | None = None,
) -> None:
    """Asks the owner whether the run may be made; raises InputError where it may not.

    declared: None where the labels will be found by a noisy count; then the owner sees how many values
    there are, since a column that holds no classes would cost the whole budget. ask: None where nobody
    can answer; then records with other labels stop the run, unless other_labels="drop" lets it go on.
    """
    check_option(declared, other_labels)
    found = count(declared, corpora)
    if ask is not None:  # always: a question that only some records raise would tell of them
        question = (
            "Is this the column of classes?"
            if declared is None
            else "Go on, with such records left out?"
        )
        if not ask(found.sentence, question):
            raise InputError("you answered no, so nothing was charged. Check --label and --labels.")
    elif found.others and declared is not None and other_labels is None:
        raise InputError(
            f"(for you only, not for release) {found.sentence} Nothing was charged. Check the labels "
            "that you declared; or say that these records shall teach nothing: --other-labels drop "
            "(other_labels='drop')."
        )
