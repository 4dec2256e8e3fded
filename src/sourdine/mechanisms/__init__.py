"""What draws noise: each mechanism has `.event`, what a release costs, and `.release(value)`."""

from sourdine.mechanisms.additive import Gaussian, Laplace
from sourdine.mechanisms.choice import Exponential, NoisyMax
from sourdine.mechanisms.response import RandomizedResponse, Share
from sourdine.mechanisms.selection import RandomTrials
from sourdine.mechanisms.sensitivity import Ball, Moves
from sourdine.mechanisms.vocabulary import OpenCounts

__all__ = [
    "Ball",
    "Exponential",
    "Gaussian",
    "Laplace",
    "Moves",
    "NoisyMax",
    "OpenCounts",
    "RandomTrials",
    "RandomizedResponse",
    "Share",
]
