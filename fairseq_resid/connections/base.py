"""What every residual connection is: one object per sublayer site, with two verbs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..ops import use_kernels

EPS = 1e-5


class InvalidOption(ValueError):
    """A name, an option or a backend that cannot be: a mistake of the caller."""


def invalid(option: str, value: object, allowed: str) -> InvalidOption:
    """Return the error for an option's bad value; it names the flag, what was given and what is allowed."""
    return InvalidOption(f"--{option.replace('_', '-')} {value}: {allowed}")


class ResidualConnection(nn.Module):
    """Joins a sublayer's shortcut x and its output f into y.

    Use, the same for pre-norm and post-norm structures:

        y = site(x, sublayer(site.branch_input(x)))

    A subclass gives the formula in `combine`; its constructor's keyword-only arguments are the options of the
    variant, and what `fairseq_resid.connections.registry` shows to the user. One that has a kernel gives the same
    formula, dropout included, in `combine_fused`; `backend` (--residual-backend) decides which of them runs.

    Shapes:   x, f_out: (T, B, C) -> (T, B, C); T time, B batch, C channels (any leading shape works)
    Dtype:    fp16 / bf16 / fp32 / fp64 in, the same out; LayerNorm is affine, eps 1e-5, its statistics in fp32
    Args:     dim: C; dropout: the branch's dropout, a module or a probability: F = dropout(f_out)
    Raises:   ValueError naming the option, what was given and what is allowed
    """

    has_kernel = False  # whether `combine_fused` computes the variant, with the options it has

    def __init__(self, dim: int, dropout: nn.Module | float = 0.0) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim {dim}: must be at least 1")
        self.dim = dim
        self.dropout = dropout if isinstance(dropout, nn.Module) else nn.Dropout(dropout)
        self.described: dict[str, Any] = {}
        self.backend = "auto"

    @torch.jit.export
    def branch_input(self, x: Tensor) -> Tensor:
        """Return what the sublayer sees of the shortcut x: x itself, unless the structure normalises before."""
        return x

    def forward(self, x: Tensor, f_out: Tensor) -> Tensor:
        """Return y from the shortcut x and the sublayer's raw output f_out."""
        if not torch.jit.is_scripting():  # noqa: SIM102  (TorchScript leaves out what stands under this alone)
            if self.has_kernel and use_kernels(self.backend, self.training, x, f_out):
                p = dropout_probability(self.dropout)
                return self.combine_fused(x, self.dropout(f_out), 0.0) if p is None else self.combine_fused(x, f_out, p)
        return self.combine(x, self.dropout(f_out))

    def combine_fused(self, x: Tensor, f_out: Tensor, p: float) -> Tensor:
        """Return what `combine` returns for x and F = dropout(f_out, p), computed by the kernels of `ops`."""
        raise NotImplementedError("a ResidualConnection with a kernel defines combine_fused")

    def combine(self, x: Tensor, f: Tensor) -> Tensor:
        """Return y from the shortcut x and the branch F = dropout(f_out): the formula of the variant."""
        raise NotImplementedError("a ResidualConnection defines combine")

    def extra_repr(self) -> str:
        """Return what print(model) shows of the connection: its width, its --residual name and its options."""
        return ", ".join([str(self.dim), *(f"{name}={value}" for name, value in self.described.items())])


def dropout_probability(dropout: nn.Module) -> float | None:
    """Return the probability with which a dropout module drops now; None if only the module itself knows it.

    What is known: nn.Dropout, and fairseq's FairseqDropout, which goes on in inference if it is set so
    (--retain-dropout).
    """
    kind = type(dropout)
    if kind is nn.Dropout:
        drops = dropout.training
    elif kind.__name__ == "FairseqDropout" and kind.__module__ == "fairseq.modules.fairseq_dropout":
        drops = dropout.training or bool(dropout.apply_during_inference)
    else:
        return None
    p: Any = dropout.p
    if p >= 1:  # everything: F / (1 - p) has no value
        return None
    return p if drops else 0.0


def layer_norm(dim: int) -> nn.LayerNorm:
    """Return the affine LayerNorm of every variant."""
    return nn.LayerNorm(dim, eps=EPS)


def xavier_uniform(rows: int, columns: int) -> Tensor:
    """Return a (rows, columns) weight, Xavier-uniform by its own fans (tensor2tensor's default initialiser)."""
    return nn.init.xavier_uniform_(torch.empty(rows, columns))
