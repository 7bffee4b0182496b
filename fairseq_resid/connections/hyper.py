"""Several copies of the stream, mixed anew at every site: hyper-connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import ResidualConnection
from .options import Options, option
from .place import Place
from .registry import Structure, register
from .stream import ResidualStream

SCALE = 0.01  # start value of both s: Zhu 2024, section 3.2


@dataclass(frozen=True)
class HyperOptions(Options):
    """Of hyper."""

    hyper_streams: int = option(4, "n, how many streams", least=1)
    hyper_weights: str = option(
        "dynamic", "static: learned numbers; dynamic: they also depend on the streams", choices=("static", "dynamic")
    )


def mix(weights: Tensor, streams: Tensor) -> Tensor:
    """Return weights (..., m, n) times streams (..., n, C), in the streams' dtype: autocast would halve it."""
    if torch.jit.is_scripting():
        return torch.matmul(weights.to(streams.dtype), streams)
    with torch.autocast(streams.device.type, enabled=False):
        return torch.matmul(weights.to(streams.dtype), streams)


class HyperConnection(ResidualConnection):
    """Reads its branch's input off n streams, and writes mixed streams and its branch back.

    Formula:  h = A_mᵀ H;  H' = A_rᵀ H + B F, F = dropout(f(LN(h))), H in R^{n×C};  static: A_m, A_r, B learned;
              dynamic: each of them + s tanh(LN'(H) W), LN' over C of each stream, one s for A_m and A_r, one for B
    Source:   Zhu 2024, arXiv 2409.19606, eq. 1 to 13. Scaling the output projections at the start by √n is left out.
    Start:    A_m = e_(i mod n) of site i, A_r = I, B = 1, W = 0, s = 0.01: n times a pre-norm stream
    State:    (..., nC), n copies of the input at first; the streams' sum and a norm end a stack
    """

    def __init__(self, place: Place, options: HyperOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.dim, self.streams = place.dim, options.hyper_streams
        self.is_dynamic = options.hyper_weights == "dynamic"
        self.norm = place.norm(place.dim)
        reading = torch.zeros(1, self.streams)
        reading[0, place.index % self.streams] = 1.0
        # Rows: A_mᵀ, then A_rᵀ.
        self.mixing = nn.Parameter(torch.cat([reading, torch.eye(self.streams)]))
        self.writing = nn.Parameter(torch.ones(self.streams))
        if self.is_dynamic:
            self.stream_norm = place.norm(place.dim)
            self.mixing_weight = nn.Parameter(torch.zeros(self.streams + 1, place.dim))
            self.writing_weight = nn.Parameter(torch.zeros(1, place.dim))
            self.mixing_scale = nn.Parameter(torch.tensor(SCALE))
            self.writing_scale = nn.Parameter(torch.tensor(SCALE))

    def split(self, state: Tensor) -> Tensor:
        """Return the state as (..., n, C)."""
        return state.unflatten(-1, [self.streams, self.dim])

    @torch.jit.export
    def enter(self, x: Tensor) -> Tensor:
        if self.streams == 1 or x.size(-1) != self.dim:
            return x
        return torch.cat([x for _ in range(self.streams)], dim=-1)

    @torch.jit.export
    def branch_input(self, state: Tensor) -> Tensor:
        streams = self.split(state)
        weights: Tensor = self.mixing[:1]
        if self.is_dynamic:
            logits = torch.matmul(self.stream_norm(streams), self.mixing_weight[0].unsqueeze(-1))
            weights = weights + self.mixing_scale * torch.tanh(logits).transpose(-1, -2)
        return self.norm(mix(weights, streams).squeeze(-2))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        streams = self.split(state)
        weights: Tensor = self.mixing[1:]
        writing: Tensor = self.writing
        if self.is_dynamic:
            normed = self.stream_norm(streams)
            logits = torch.matmul(normed, self.mixing_weight[1:].t())
            weights = weights + self.mixing_scale * torch.tanh(logits).transpose(-1, -2)
            logits = torch.matmul(normed, self.writing_weight.t()).squeeze(-1)
            writing = writing + self.writing_scale * torch.tanh(logits)
        written = writing.to(streams.dtype).unsqueeze(-1) * f.to(streams.dtype).unsqueeze(-2)
        return (mix(weights, streams) + written).flatten(-2)


class HyperStream(ResidualStream):
    """Ends a stack of hyper-connections.

    Formula:  LN(Σ_i H_i)
    """

    def __init__(self, place: Place, options: HyperOptions, final_norm: bool) -> None:
        super().__init__(place, options, final_norm=True)
        self.dim = place.dim

    def leave(self, state: Tensor) -> Tensor:
        return state.unflatten(-1, [-1, self.dim]).sum(-2)


register("hyper", Structure(HyperOptions, HyperConnection, HyperStream, final_norm=None))
