"""Membership inference: which of these records was the target trained on?

All attacks that the target, a reference and shadows allow are run on the same members and others, and
the blind baseline (blind.py) always beside them.

Guarantee: on a fair split, `told` names any attack on a target that is independent of who is a member
with probability at most (1 - confidence) / 2, up to the normal law in roc.py: each of k attacks is
tested at a k-th of the level. What no attack finds may still be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sourdine import checks
from sourdine.attacks import lira, rmia
from sourdine.attacks.blind import Blind, blind
from sourdine.attacks.calibrated import calibrated, calibrated_tokens, check_reference
from sourdine.attacks.roc import RATES, Roc
from sourdine.attacks.scores import (
    compressed,
    least_likely,
    least_likely_standardised,
    logit,
    negative_loss,
    places,
    text_of,
    token_loss,
    true_probability,
)
from sourdine.attacks.shadows import Shadows, learned
from sourdine.attacks.target import Classifies, Floats, Predicts, Record, Target
from sourdine.errors import InputError

PRIVATE = (
    "These figures are exact, about the members; no privacy was charged for them. Keep them among "
    "those who may know who the members are."
)


@dataclass(frozen=True, eq=False)
class Membership:
    """What attacks on one target found. The scores of single records stay inside the Rocs.

    attacks: by name. unit: "record" or "user", what was told apart. notes: what a reader must know.
    """

    attacks: Mapping[str, Roc]
    blind: Blind
    unit: str = "record"
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The attack with the largest AUC, of those told if there are any: the best in hindsight."""
        return max(self.told or self.attacks, key=lambda name: self.attacks[name].auc)

    @property
    def told(self) -> tuple[str, ...]:
        """The attacks that tell members from others, by AUC or by a few that they are sure of."""
        level = (1 - self.blind.confidence) / 2 / len(self.attacks)
        return tuple(name for name, roc in self.attacks.items() if roc.beats_chance(level))

    @property
    def verdict(self) -> str:
        """One of "differ in kind", "told apart" or "not told apart"."""
        if self.blind.differs:
            return "differ in kind"
        return "told apart" if self.told else "not told apart"

    def words(self) -> tuple[str, ...]:
        """The finding in plain sentences, the verdict first."""
        roc = self.attacks[self.best]
        low, high = roc.auc_interval()
        best = f"{self.best} has AUC {roc.auc:.3f} ({low:.3f} to {high:.3f})"
        rate = next((rate for rate in map(roc.at, RATES[::-1]) if rate.tpr is not None), None)
        if rate is not None:
            best += f" and finds {rate.tpr:.1%} of the members at a false-positive rate of {rate.fpr:g}"
        many = f"{len(roc.members):,} members and {len(roc.others):,} others"
        said = {
            "differ in kind": (
                f"Nothing can be said about the target: of {many}, a bag of words tells one from the "
                f"other without it. Of the attacks, {best}; how much of that is memory is open."
            ),
            "told apart": f"The target gives its members away: {best}, on {many}.",
            "not told apart": (
                f"No attack told {many} apart. The strongest: {best}. That is no proof that none can."
            ),
        }
        return (said[self.verdict], f"Blind baseline: {self.blind}", *self.notes, PRIVATE)

    def __str__(self) -> str:
        return " ".join(self.words())

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Everything but the scores of records."""
        first = next(iter(self.attacks.values()))
        return {
            "verdict": self.verdict,
            "unit": self.unit,
            "members": len(first.members),
            "others": len(first.others),
            "confidence": self.blind.confidence,
            "told": list(self.told),
            "best": self.best,
            "attacks": {name: roc.to_json() for name, roc in self.attacks.items()},
            "blind": self.blind.to_json(),
            "words": list(self.words()),
        }


def attack_membership(
    target: Target,
    members: Sequence[Record],
    others: Sequence[Record],
    *,
    reference: Target | None = None,
    shadows: Shadows | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Membership:
    """Tell members from others by all that the target answers.

    members, others: records that it was and was not trained on, of one kind. reference: a model that
    answers the same and saw none of the members. shadows: from shadows.py, their pool being members,
    then others (more records behind them are left out). seed: of the blind baseline's halves.

    A classifier is attacked by its loss, a language model by loss, zlib, Min-K% and Min-K%++; a
    reference adds calibration, shadows add LiRA, RMIA and, for classifiers, Shokri's classifier.
    """
    checks.probability("confidence", confidence)
    pool = [*members, *others]
    both = {record.texts for record in members} & {record.texts for record in others}
    if sum(record.texts in both for record in others) > len(others) / 2:
        raise InputError(
            "most of the others are members too: the tables are the same, or nearly. Others must be "
            "records that the target never saw."
        )
    baseline = blind(members, others, confidence=confidence, seed=seed)
    if reference is not None:
        check_reference(target, reference)
    if isinstance(target, Classifies):
        scores = _classifier(target, pool, reference, shadows)
    elif isinstance(target, Predicts):
        scores = _language_model(target, pool, reference, shadows)
    else:
        raise InputError(
            "this target neither classifies nor predicts tokens; membership needs one of the two."
        )
    rocs = {
        name: Roc(found[: len(members)], found[len(members) :], confidence)
        for name, found in scores.items()
    }
    return Membership(rocs, baseline, notes=_notes(members, others, shadows))


def _classifier(
    target: Classifies, pool: list[Record], reference: Any, shadows: Shadows | None
) -> dict[str, Floats]:
    at = places(target, pool)
    vectors = target.probabilities(pool)
    found = {"loss": logit(vectors, at)}
    if reference is not None:
        found["reference"] = calibrated(negative_loss(vectors, at), reference, pool)
    if shadows is not None:
        shadows = _first(shadows, len(pool))
        found |= _shadowed(found["loss"], true_probability(vectors, at), shadows)
        if shadows.vectors is not None and shadows.places is not None:
            if not np.array_equal(shadows.places, at):
                raise InputError("the shadows name their labels in another order than the target.")
            found["shadow classifier"] = learned(shadows, vectors)
    return found


def _language_model(
    target: Predicts, pool: list[Record], reference: Any, shadows: Shadows | None
) -> dict[str, Floats]:
    texts = [text_of(record) for record in pool]
    logs = target.token_logs(texts)
    simple: dict[str, Callable[[Any, str], float]] = {
        "loss": lambda one, _: token_loss(one),
        "zlib": compressed,
        "Min-20%": lambda one, _: least_likely(one),
        "Min-20%++": lambda one, _: least_likely_standardised(one),
    }
    found = {
        name: np.array([rule(one, text) for one, text in zip(logs, texts, strict=True)])
        for name, rule in simple.items()
    }
    if reference is not None:
        triples = zip(logs, reference.token_logs(texts), texts, strict=True)
        found["reference"] = np.array([calibrated_tokens(*triple) for triple in triples])
    if shadows is not None:
        found |= _shadowed(found["loss"], np.exp(found["loss"]), _first(shadows, len(pool)))
    return found


def _shadowed(phi: Floats, likely: Floats, shadows: Shadows) -> dict[str, Floats]:
    """LiRA and RMIA, each with and without shadows that were trained on the record."""
    outside = rmia.mean_outside(shadows.likely, shadows.inside)
    usual = {
        "RMIA online": rmia.online_usual(rmia.mean_inside(shadows.likely, shadows.inside), outside),
        "RMIA offline": rmia.offline_usual(outside, rmia.choose_a(shadows.likely, shadows.inside)),
    }
    found = {
        "LiRA online": lira.online(phi, shadows.phi, shadows.inside),
        "LiRA offline": lira.offline(phi, shadows.phi, shadows.inside),
    }
    for name, p in usual.items():
        ratios = rmia.ratio(likely, p)
        found[name] = rmia.score(ratios, ratios)
    return found


def _first(shadows: Shadows, count: int) -> Shadows:
    """What the shadows say of the first records of their pool."""
    if shadows.inside.shape[1] < count:
        raise InputError(
            f"the shadows know {shadows.inside.shape[1]} records, but {count} are under attack; train "
            "them on a pool of the members, then the others."
        )
    return Shadows(
        shadows.inside[:, :count],
        shadows.phi[:, :count],
        shadows.likely[:, :count],
        None if shadows.vectors is None else shadows.vectors[:, :count],
        None if shadows.places is None else shadows.places[:count],
    )


def _notes(
    members: Sequence[Record], others: Sequence[Record], shadows: Shadows | None
) -> tuple[str, ...]:
    notes = []
    known = {record.texts for record in members}
    both = sum(record.texts in known for record in others)
    if both:
        notes.append(
            f"{both:,} of the others hold the text of a member: the target saw these texts, and the "
            "attacks look weaker than they are."
        )
    if shadows is not None:
        notes.append(f"{len(shadows.inside)} shadow models were used.")
    return tuple(notes)
