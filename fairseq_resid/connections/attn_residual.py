"""Attention over depth: a branch sees a softmax-weighted mean of the outputs of all earlier sublayers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, ResidualStream, Structure, option, register
from .core.growing import append, check_values
from .core.norms import EPS
from .core.tensors import dot, mix
from .pre_ln import PreLayerNorm


@dataclass(frozen=True)
class AttentionOptions(Options):
    """Options of attn_residual."""

    block_size: int = option(
        1, "S: attend to the sums of blocks of S sublayers (1: to every sublayer)", least=1, most=10_000, example=2
    )

    def has_blocks(self) -> bool:
        """Return whether a block contains several sublayers, so that skipping one would shift the later blocks."""
        return self.block_size > 1


class DepthAttention(nn.Module):
    """Computes attention over the values of a state.

    Formula:  h = Σ_i a_i v_i, a = softmax_i(w · RMSNorm(v_i)); w = 0 at the start, which gives the mean
    Shapes:   (..., n·C) -> (..., C)
    Dtype:    that of the state; norms and softmax in at least fp32
    A state has n values v_0 .. v_{n-1}. For i > 0, v_i is the sum of F from the start of the block of sublayer i - 1 to
    that sublayer. The attention reads v_0, the last value of every complete block, and the last value of the state.
    """

    def __init__(self, dim: int, block_size: int) -> None:
        super().__init__()
        self.dim, self.block_size = dim, block_size
        self.query = nn.Parameter(torch.zeros(dim))
        self.weight = nn.Parameter(torch.ones(dim))

    def logits(self, values: Tensor) -> Tensor:
        """Return w · RMSNorm(v) for every value, (..., n, C) -> (..., n)."""
        wide = torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else values.dtype
        length = torch.linalg.vector_norm(values, dim=-1, dtype=wide)
        return dot(values, self.query * self.weight).to(wide) * torch.rsqrt(length * length / self.dim + EPS)

    def attended(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return v_0 with the sums of all complete blocks, and the attention weights.

        If the last block is incomplete, its sum is not among the values, but its weight is the last weight.
        """
        values = state.unflatten(-1, [-1, self.dim])
        last = values.size(-2) - 1
        blocks = values[..., :: self.block_size, :]
        logits = self.logits(blocks)
        if last % self.block_size != 0:
            logits = torch.cat([logits, self.logits(values[..., last:, :])], dim=-1)
        return blocks, torch.softmax(logits, dim=-1)

    def forward(self, state: Tensor) -> Tensor:
        blocks, weights = self.attended(state)
        complete = blocks.size(-2)
        h = mix(weights[..., :complete].unsqueeze(-2), blocks).squeeze(-2)
        if weights.size(-1) > complete:
            h = h + weights[..., complete:].to(state.dtype) * state[..., -self.dim :]
        return h


class AttentionResidual(PreLayerNorm):
    """Replaces the residual sum with attention over depth before every sublayer.

    Formula:  the branch sees LN of a softmax-weighted mean of all F
    Where:    the branch sees LN(h), h = Σ_i a_i v_i, a = softmax_i(w · RMSNorm(v_i)); v_0 is the stack's input and
              v_i = F_i, or with --block-size S the sum of F in block i; an incomplete block contributes its sum so far.
              Each site has its own w and RMSNorm gain; the first site sees LN(v_0); a stack ends with LN(h), which has
              its own w and gain
    Source:   Kimi Team 2026, Attention Residuals, arXiv 2603.15031. The paper covers decoders only; a separate
              attention for each stack of an encoder-decoder is our choice.
    State:    grows by C at each site: v_0, then the F of every sublayer, or the sum of its block so far
    """

    compiles = False  # every site of a stack has its own width, and so its own graph

    def __init__(self, place: Place, options: AttentionOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        place.require_depths()
        self.block_size, self.has_blocks = options.block_size, options.has_blocks()
        self.width, self.position = (place.sites + 1) * place.dim, place.index + 1  # the number of values at this site
        self.depth = nn.Identity() if place.index == 0 else DepthAttention(place.dim, options.block_size)

    def branch_input(self, state: Tensor) -> Tensor:
        return self.norm(self.depth(state))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        if self.has_blocks:
            check_values(self, state, self.position)
        starts_block = (state.size(-1) // self.dim - 1) % self.block_size == 0
        return append(state, f if starts_block else state[..., -self.dim :] + f, self.width)

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        return {"a": self.depth.attended(state)[1]} if isinstance(self.depth, DepthAttention) else {}


class AttentionStream(ResidualStream):
    """Ends a stack of attention residuals.

    Formula:  LN(h), with h computed as before a sublayer, but with its own query w and gain
    """

    def __init__(self, place: Place, options: AttentionOptions, final_norm: bool) -> None:
        super().__init__(place, options, final_norm=True)
        self.depth = DepthAttention(place.dim, options.block_size)

    def leave(self, state: Tensor) -> Tensor:
        return self.depth(state)


register(
    "attn_residual",
    Structure(
        AttentionOptions,
        AttentionResidual,
        AttentionStream,
        final_norm=None,
        needs_every_layer=AttentionOptions.has_blocks,
        family="Depth",
        use_when="If later layers should be able to choose among earlier sublayers. "
        "The running time grows with the square of the depth. "
        "`--block-size S` is the block form that Kimi K3 uses, here with cross-attention too.",
    ),
)
