"""A base model that is the folder of an earlier run: how it is loaded, and what it has cost already.

Guarantee: none of its own. A run that goes on from a private model promises its own epsilon for its own
records, and the base keeps the promise that it was made with. Whoever is among the records of both is
promised the sum (basic composition; Dwork and Roth 2014, theorem 3.16). The base's certificate is
checked as `sourdine verify` does, and its epsilon is told to the owner before the charge. The new
certificate states it with the sum, in words that do not depend on whether the records are the same.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sourdine.budget import Budget
from sourdine.certificate import Access, verify
from sourdine.data.corpus import Corpus
from sourdine.data.fingerprint import fingerprint
from sourdine.digits import above
from sourdine.errors import InputError, SourdineError
from sourdine.ledger import Ledger
from sourdine.ledger.shared import FILE
from sourdine.register import open_book, recall
from sourdine.text.model import DESCRIPTION, load
from sourdine.text.models import Pooling, load_encoder

CERTIFICATE = "certificate.json"
_WHAT = "a base model that was trained before, on its own records"


@dataclass(frozen=True)
class Base:
    """The run that a base model comes from. claim: of its certificate, where that holds.

    failed: the checks that its certificate failed; none where it has no certificate at all. deeper:
    whether its certificate names a base in its turn, whose cost is not in the claim.
    """

    folder: Path
    claim: Mapping[str, Any] | None
    fingerprint: str = ""
    failed: tuple[str, ...] = ()
    deeper: bool = False

    def accesses(self, budget: Budget) -> list[Access]:
        """What a new certificate says of it, for a run with this budget: nothing of any record."""
        return [Access(_WHAT, None, self._known + self._sum(budget, "where its records are these, "))]

    def sentence(self, budget: Budget | None, *, same: bool) -> str:
        """For the owner, before the charge. same: whether the records are known to be the same."""
        said = f"the base model {self.folder.name}: {self._known}"
        if budget is not None:
            said += self._sum(
                budget, "its records are these, so " if same else "where its records are also these, "
            )
        return f"{said}."

    @property
    def _known(self) -> str:
        if self.claim is not None:
            claim = self.claim
            return (
                f"its own certificate, which holds, claims epsilon <= {above(claim['epsilon'])} at "
                f"delta = {claim['delta']:g} per {claim['unit']} ({claim['adjacency']})"
                + (" beside what its own base has cost" if self.deeper else "")
            )
        why = "it is a run without a certificate"
        if self.failed:
            why = f"its certificate does not hold ({', '.join(self.failed)})"
        return f"{why}, so nobody knows what it gives away about the records that it was trained on"

    def _sum(self, budget: Budget, where: str) -> str:
        if self.claim is None:
            return "; this run's epsilon does not cover that"
        if (self.claim["unit"], self.claim["adjacency"]) != (budget.unit, budget.adjacency):
            return f"; another unit or adjacency than this run's: {where}there is no common sum"
        epsilon = above(self.claim["epsilon"] + budget.epsilon)
        delta = self.claim["delta"] + budget.delta
        return f"; {where}both runs together cost at most epsilon {epsilon} at delta = {delta:.4g}"


def read_base(model: str) -> Base | None:
    """The run behind a model; None for a model that is no run of ours."""
    folder = Path(model).expanduser()
    try:
        if not any((folder / name).exists() for name in (CERTIFICATE, DESCRIPTION)):
            return None
        path = folder / CERTIFICATE
        changed = path.stat().st_mtime_ns if path.exists() else 0
    except OSError:
        return None
    return _checked(folder.resolve(), changed)


@functools.lru_cache(maxsize=8)  # every run of a comparison asks
def _checked(folder: Path, changed: int) -> Base:
    if not changed:
        return Base(folder, None)
    verdict = verify(folder)
    if not verdict.passed or verdict.certificate is None:
        return Base(folder, None, failed=verdict.failed or ("certificate",))
    document = verdict.certificate.document
    deeper = any(access["what"] == _WHAT for access in document["accesses"])
    return Base(folder, document["guarantee"], str(document["data"]["fingerprint"]), deeper=deeper)


def tell_of_base(model: str, budget: Budget | None, given: Any, train: Corpus, encoding: str) -> None:
    """Tells the owner, before the charge, what the base has cost already, if it is an earlier run."""
    if (base := read_base(model)) is not None:
        same = budget is not None and _same_records(base, given, train, encoding)
        print(f"sourdine: {base.sentence(budget, same=same)}", file=sys.stderr)


def _same_records(base: Base, given: Any, train: Corpus, encoding: str) -> bool:
    """Whether the base was trained on these records, as far as this user's keys and register tell."""
    if base.fingerprint == fingerprint(train.table()):
        return True
    if not (base.folder / FILE).exists() or (records := recall(given, encoding)) is None:
        return False
    try:
        own = Ledger(base.folder / FILE).identity
    except SourdineError:
        return False
    with open_book() as book:
        return any(line.ledger == own for line in book.lines(records))


def load_base(model: str) -> tuple[Any, Any, Pooling]:
    """Encoder, tokenizer and pooling of a model of transformers, or of an earlier run of ours."""
    if not (Path(model).expanduser() / DESCRIPTION).exists():
        return load_encoder(model)
    found = load(model)
    if found.network.prompt is not None:
        raise InputError(
            f"the run {model!r} learnt a prompt before an encoder that it left as it was; another "
            "training would drop the prompt. Name that encoder with --model instead."
        )
    return found.network.encoder, found.tokenizer, found.network.pooling
