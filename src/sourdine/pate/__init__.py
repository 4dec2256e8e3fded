"""PATE: teachers vote on public inputs, and only noisy answers leave the house (docs/pate.md).

parts = partitions(corpus, 250)
votes = fit_heads(features, targets, parts, classes=2).vote(public_features)
plan = plan_blindly(Budget(2, 1e-6), teachers=250, classes=2, questions=len(votes))
labelling = Labelling(plan.aggregator, ledger, questions=plan.questions, answers=plan.answers)
answers = labelling.ask(votes[: plan.questions])
student = fit_student(public_features, answers.labels, classes=2)
"""

from sourdine.pate.aggregators import (
    NO_ANSWER,
    Aggregator,
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
)
from sourdine.pate.labelling import Answers, Labelling
from sourdine.pate.planner import Plan, fit_noise, plan, plan_blindly
from sourdine.pate.sanitise import Sanitised
from sourdine.pate.student import Student, fit_student
from sourdine.pate.teachers import Each, Heads, check_parts, fit_each, fit_heads, partitions
from sourdine.pate.votes import Votes, simulated

__all__ = [
    "NO_ANSWER",
    "Aggregator",
    "Answers",
    "ConfidentGNMax",
    "Each",
    "GNMax",
    "Heads",
    "InteractiveGNMax",
    "LNMax",
    "Labelling",
    "Plan",
    "Sanitised",
    "Student",
    "Votes",
    "check_parts",
    "fit_each",
    "fit_heads",
    "fit_noise",
    "fit_student",
    "partitions",
    "plan",
    "plan_blindly",
    "simulated",
]
