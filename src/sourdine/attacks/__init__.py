"""Attacks: what a result gives away at least, found by trying.

An attack sees a target through the small protocols of target.py and never our training code. Scores
are high for members.
"""

from sourdine.attacks.adapters import Function, Scikit, from_folder
from sourdine.attacks.extraction import Extraction, extract
from sourdine.attacks.matching import TrainingText
from sourdine.attacks.membership import Membership, attack_membership
from sourdine.attacks.roc import Roc
from sourdine.attacks.shadows import Shadows, train_shadows
from sourdine.attacks.target import Record, Target
from sourdine.attacks.users import attack_users

__all__ = [
    "Extraction",
    "Function",
    "Membership",
    "Record",
    "Roc",
    "Scikit",
    "Shadows",
    "Target",
    "TrainingText",
    "attack_membership",
    "attack_users",
    "extract",
    "from_folder",
    "train_shadows",
]
