"""A norm of the branch only: residual post-norm."""

from __future__ import annotations

from torch import Tensor

from .core import Options, Structure, register
from .post_ln import PostLayerNorm


class ResidualPostNorm(PostLayerNorm):
    """Normalises only the output of the branch.

    Formula:  x + LN(F)
    Source:   OLMo 2 (2024), which uses RMSNorm
    """

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        return x + self.norm(f)


register(
    "res_post_norm",
    Structure(
        Options,
        ResidualPostNorm,
        final_norm=True,
        family="Norms",
        use_when="Models that need bounded branches and a shortcut without norms.",
    ),
)
