"""Calibration by a reference model: how much likelier does the target find a record than another model?

score = loss under the reference - loss under the target (Watson et al. 2022; Carlini et al. 2021).
What is easy for any model drops out. The reference must not have seen the members: one trained on
other text of the same kind is best, and the model from which the target was fine-tuned will do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sourdine.attacks.scores import negative_loss, places
from sourdine.attacks.target import Classifies, Floats, Predicts, Record, TokenLogs
from sourdine.errors import InputError


def calibrated(own: Floats, reference: Classifies, records: Sequence[Record]) -> Floats:
    """The target's log p_y, `own`, less that of the reference, which may order its labels otherwise."""
    found: Floats = own - negative_loss(reference.probabilities(records), places(reference, records))
    return found


def calibrated_tokens(logs: TokenLogs, reference: TokenLogs, text: str) -> float:
    """The same for the tokens of a text, over its bytes: the two may cut it into other tokens.

    Minus infinity for a text in which one of them has no token to judge.
    """
    if not (len(logs.log) and len(reference.log)):
        return -np.inf
    return float(logs.log.sum() - reference.log.sum()) / max(1, len(text.encode()))


def check_reference(target: object, reference: object) -> None:
    """Both must answer the same question."""
    for protocol in (Classifies, Predicts):
        if isinstance(target, protocol) and not isinstance(reference, protocol):
            raise InputError(
                "the reference does not answer what the target does; give a classifier of the same "
                "labels for a classifier, and a language model for a language model."
            )
