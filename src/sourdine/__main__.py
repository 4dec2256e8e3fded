"""`python -m sourdine` is the command line."""

from sourdine.cli import script

script()
