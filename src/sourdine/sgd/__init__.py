"""DP-SGD for any PyTorch model: lots, per-example gradients, clipping, noise, and the loop."""

from sourdine.sgd.clipped import Clipped, clipped_sum

__all__ = ["Clipped", "clipped_sum"]
