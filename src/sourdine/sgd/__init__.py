"""DP-SGD for any PyTorch model: lots, per-example gradients, clipping, noise, and the loop."""

from sourdine.sgd.canaries import Canaries
from sourdine.sgd.clipped import Clipped, clipped_sum
from sourdine.sgd.clipping import Adaptive, Automatic, Clip, Flat, PerLayer
from sourdine.sgd.correlated import Bands, CorrelatedNoise, FixedLots
from sourdine.sgd.engine import Engine, Lot
from sourdine.sgd.graphs import compiled, traced, unchanging
from sourdine.sgd.optim import AdamW
from sourdine.sgd.sampling import Lots, PoissonLots, ShuffledLots, TruncatedPoissonLots
from sourdine.sgd.uses import Gradients, Lookup, Outer

__all__ = [
    "AdamW",
    "Adaptive",
    "Automatic",
    "Bands",
    "Canaries",
    "Clip",
    "Clipped",
    "CorrelatedNoise",
    "Engine",
    "FixedLots",
    "Flat",
    "Gradients",
    "Lookup",
    "Lot",
    "Lots",
    "Outer",
    "PerLayer",
    "PoissonLots",
    "ShuffledLots",
    "TruncatedPoissonLots",
    "clipped_sum",
    "compiled",
    "traced",
    "unchanging",
]
