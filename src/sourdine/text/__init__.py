"""Private training for text tasks: models, what trains, the planner, the Trainer, its releases."""

from sourdine.text.model import TextModel, load
from sourdine.text.run import Run
from sourdine.text.trainer import Trainer

__all__ = ["Run", "TextModel", "Trainer", "load"]
