"""Several streams that are mixed at every site: hyper-connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core import Options, Place, ResidualConnection, ResidualStream, Structure, option, register
from .core.tensors import full_precision_linear, mix

SCALE = 0.01  # initial value of s (Zhu 2024, section 3.2) and of mHC's a (Xie 2025)


@dataclass(frozen=True)
class StreamsOptions(Options):
    """Options of a structure with n streams."""

    hyper_streams: int = option(4, "number n of streams", least=1, most=32, example=2)


@dataclass(frozen=True)
class HyperOptions(StreamsOptions):
    """Options of hyper."""

    hyper_weights: str = option(
        "dynamic",
        "static: the weights are learned constants; dynamic: the weights also depend on the streams",
        choices=("static", "dynamic"),
    )


class ManyStreams(ResidualConnection):
    """Base class of connections with n streams.

    The state (..., nC) consists of n streams, which start as copies of the input. With `divides_state`, the state is
    (..., C) and starts as the input, and each stream is a part of it.
    """

    divides_state = False

    def __init__(self, place: Place, options: StreamsOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        self.streams = options.hyper_streams
        self.least_width = self.most_width = place.dim if self.divides_state else self.streams * place.dim
        self.part = self.least_width // self.streams  # channels of a stream
        self.norm = place.norm(place.dim)

    def split(self, state: Tensor) -> Tensor:
        """Return a state as (..., n, C), or with `divides_state` as (..., n, C/n)."""
        return state.unflatten(-1, [-1, self.part])

    def split_branch(self, f: Tensor) -> Tensor:
        """Return a branch as (..., 1, C), or with `divides_state` as (..., n, C/n)."""
        if self.part != self.dim:
            return f.unflatten(-1, [-1, self.part])
        # Not unflatten: if C is symbolic (torch.compile with dynamic=True), its size of 1 is the expression C // part.
        # Inductor (torch 2.13, CPU) does not broadcast it in the backward pass of addcmul: for the gradient of
        # `writing`, it reads n rows of f where there is one, and so past its end.
        return f.unsqueeze(f.dim() - 1)

    def mixed(self, weights: Tensor | None, writing: Tensor, streams: Tensor, f: Tensor) -> Tensor:
        """Return the next state: weights (..., n, n) @ streams, plus `writing` (..., n) times the branch.

        weights: None for the identity
        """
        writing, f = writing.to(streams.dtype).unsqueeze(-1), self.split_branch(f).to(streams.dtype)
        kept = streams if weights is None else mix(weights, streams)
        return torch.addcmul(kept, writing, f).flatten(-2)

    def enter(self, x: Tensor) -> Tensor:
        if self.streams == 1 or x.size(-1) != self.dim:
            return x
        return torch.cat([x] * self.streams, dim=-1)


class HyperConnection(ManyStreams):
    """Reads the input of the branch from n streams, mixes the streams, and adds the branch to each.

    Formula:  n streams, mixed at every site
    Where:    h = A_mᵀ H; H' = A_rᵀ H + B F, F = dropout(f(LN(h))), H in R^{n×C}; static: A_m, A_r, B learned;
              dynamic: each of them + s tanh(LN'(H) W), LN' over C of each stream, one s for A_m and A_r, one for B; a
              stack ends with LN(Σ_i H_i)
    Source:   Zhu 2024, arXiv 2409.19606, eq. 1 to 13. Not implemented: scaling the initial output projections by √n,
              and excluding A_m, A_r and B from weight decay
    Start:    A_m = e_(i mod n) at site i, A_r = I, B = 1, W = 0, s = 0.01: n identical pre-norm streams
    """

    def __init__(self, place: Place, options: HyperOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        reading = every = torch.eye(self.streams)
        if not self.divides_state:
            place.require_depths()
            reading = every[place.index % self.streams].unsqueeze(0)
        self.reads = len(reading)
        # Rows: A_mᵀ, then A_rᵀ.
        self.mixing = nn.Parameter(torch.cat([reading, every]))
        self.writing = nn.Parameter(torch.ones(self.streams))
        self.stream_norm = None
        if options.hyper_weights == "dynamic":
            self.stream_norm = place.norm(self.part)
            self.mixing_weight = nn.Parameter(torch.zeros(len(self.mixing), self.part))
            self.writing_weight = nn.Parameter(torch.zeros(1, self.part))
            self.mixing_scale = nn.Parameter(torch.tensor(SCALE))
            self.writing_scale = nn.Parameter(torch.tensor(SCALE))

    def reading_weights(self, streams: Tensor) -> Tensor:
        """Return A_mᵀ, (..., 1, n) or (1, n). With `divides_state`, it is (..., n, n) or (n, n)."""
        weights: Tensor = self.mixing[: self.reads]
        if self.stream_norm is not None:
            logits = full_precision_linear(self.stream_norm(streams), self.mixing_weight[: self.reads])
            weights = weights + self.mixing_scale * torch.tanh(logits).transpose(-1, -2)
        return weights

    def writing_weights(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return A_rᵀ, (..., n, n) or (n, n), and B, (..., n) or (n,)."""
        weights: Tensor = self.mixing[self.reads :]
        writing: Tensor = self.writing
        if self.stream_norm is not None:
            normed = self.stream_norm(streams)
            logits = torch.matmul(normed, self.mixing_weight[self.reads :].t())
            weights = weights + self.mixing_scale * torch.tanh(logits).transpose(-1, -2)
            logits = torch.matmul(normed, self.writing_weight.t()).squeeze(-1)
            writing = writing + self.writing_scale * torch.tanh(logits)
        return weights, writing

    def branch_input(self, state: Tensor) -> Tensor:
        streams = self.split(state)
        return self.norm(mix(self.reading_weights(streams), streams).flatten(-2))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        streams = self.split(state)
        return self.mixed(*self.writing_weights(streams), streams, f)

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        streams = self.split(state)
        weights, writing = self.writing_weights(streams)
        return {"A_m": self.reading_weights(streams), "A_r": weights, "B": writing}


class HyperStream(ResidualStream):
    """Ends a stack of hyper-connections.

    Formula:  LN(Σ_i H_i)
    """

    def __init__(self, place: Place, options: StreamsOptions, final_norm: bool) -> None:
        super().__init__(place, options, final_norm=True)
        self.streams = options.hyper_streams

    def entered(self, state: Tensor) -> Tensor:
        """Return a state, or the initial state of a stack whose layers were all dropped, which is n copies of x."""
        return torch.cat([state] * self.streams, dim=-1) if state.size(-1) == self.dim else state

    def leave(self, state: Tensor) -> Tensor:
        return self.entered(state).unflatten(-1, [-1, self.dim]).sum(-2)


register(
    "hyper",
    Structure(
        HyperOptions,
        HyperConnection,
        HyperStream,
        final_norm=None,
        family="Several streams",
        use_when="Several streams with learned connections, if time and memory allow.",
    ),
)
