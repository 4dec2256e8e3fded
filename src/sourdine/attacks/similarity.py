"""stub"""

from sourdine.attacks.mixtures import reconstruct as reconstruct
