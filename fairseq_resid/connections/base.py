"""What every residual connection is: one object per sublayer site, with two verbs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

EPS = 1e-5


def invalid(option: str, value: object, allowed: str) -> ValueError:
    """Return the error for an option's bad value; it names the flag, what was given and what is allowed."""
    return ValueError(f"--{option.replace('_', '-')} {value}: {allowed}")


class ResidualConnection(nn.Module):
    """Joins a sublayer's shortcut x and its output f into y.

    Use, the same for pre-norm and post-norm structures:

        y = site(x, sublayer(site.branch_input(x)))

    A subclass gives the formula in `combine`; its constructor's keyword-only arguments are the options of the
    variant, and what `fairseq_resid.connections.registry` shows to the user.

    Shapes:   x, f_out: (T, B, C) -> (T, B, C); T time, B batch, C channels (any leading shape works)
    Dtype:    fp16 / bf16 / fp32 / fp64 in, the same out; LayerNorm is affine, eps 1e-5, its statistics in fp32
    Args:     dim: C; dropout: the branch's dropout, a module or a probability: F = dropout(f_out)
    Raises:   ValueError naming the option, what was given and what is allowed
    """

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim {dim}: must be at least 1")
        self.dim = dim
        self.dropout = dropout if isinstance(dropout, nn.Module) else nn.Dropout(dropout)
        self.described: dict[str, Any] = {}

    @torch.jit.export
    def branch_input(self, x: Tensor) -> Tensor:
        """Return what the sublayer sees of the shortcut x: x itself, unless the structure normalises before."""
        return x

    def forward(self, x: Tensor, f_out: Tensor) -> Tensor:
        """Return y from the shortcut x and the sublayer's raw output f_out."""
        return self.combine(x, self.dropout(f_out))

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        """Return y from the shortcut x and the branch F = dropout(f_out): the formula of the variant."""
        raise NotImplementedError("a ResidualConnection defines combine")

    def extra_repr(self) -> str:
        """Return what print(model) shows of the connection: its width, its --residual name and its options."""
        return ", ".join([str(self.dim), *(f"{name}={value}" for name, value in self.described.items())])


def layer_norm(dim: int) -> nn.LayerNorm:
    """Return the affine LayerNorm of every variant."""
    return nn.LayerNorm(dim, eps=EPS)


def xavier_uniform(rows: int, columns: int) -> Tensor:
    """Return a (rows, columns) weight, Xavier-uniform by its own fans (tensor2tensor's default initialiser)."""
    return nn.init.xavier_uniform_(torch.empty(rows, columns))
