"""Budgeted questions to a table, and surveys by randomized response."""

from sourdine.query.answers import Answer
from sourdine.query.session import Session
from sourdine.query.survey import Survey

__all__ = ["Answer", "Session", "Survey"]
