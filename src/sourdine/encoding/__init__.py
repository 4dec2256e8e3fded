"""Instance encoding: TextHide, the published repair, and one that is private."""

from sourdine.encoding.encoder import Central, InstanceEncoder, Local, Secret
from sourdine.encoding.encodings import Encodings, pooled
from sourdine.encoding.heads import accuracy, linear, mlp, noise_aware
from sourdine.encoding.labels import Inside, Public, Randomized
from sourdine.encoding.maps import autoencoder, pca, random_projection, whole
from sourdine.encoding.mixing import Stream, draw_mixing
from sourdine.encoding.noises import Gaussian, IidLaplace, L1Laplace, RadialLaplace
from sourdine.encoding.paper import Paper
from sourdine.encoding.texthide import TextHide

__all__ = [
    "Central",
    "Encodings",
    "Gaussian",
    "IidLaplace",
    "Inside",
    "InstanceEncoder",
    "L1Laplace",
    "Local",
    "Paper",
    "Public",
    "RadialLaplace",
    "Randomized",
    "Secret",
    "Stream",
    "TextHide",
    "accuracy",
    "autoencoder",
    "draw_mixing",
    "linear",
    "mlp",
    "noise_aware",
    "pca",
    "pooled",
    "random_projection",
    "whole",
]
