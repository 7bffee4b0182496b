"""Hyper-connections that preserve the sum of the streams: mHC."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import sinkhorn
from .core import InvalidOption, Place, Structure, option, register
from .core.norms import EPS
from .core.tensors import full_precision_linear, mix, widened, xavier_uniform
from .hyper import SCALE, HyperStream, ManyStreams, StreamsOptions

SINKHORN_STEPS = 20
# Initial values of the biases: σ(±READ) are the weights with which a site reads its own stream (0.98) and the others
# (0.02); KEPT is the logit of the diagonal of H_res.
READ, KEPT = 4.0, 8.0
HEAD_EPS = 1e-6  # added to each weight of the learned head (mhc_pre_eps in DeepSeek's code)
MOST_PERMUTED = 5  # maximum number of streams with --hyper-mixing permutation, which has n! weights


@dataclass(frozen=True)
class ManifoldOptions(StreamsOptions):
    """Options of mhc."""

    hyper_mixing: str = option(
        "sinkhorn",
        "form of H_res. sinkhorn: 20 rounds of scaling; permutation: a weighted mean of the n! permutations, n <= 5; "
        "identity: the streams are not mixed",
        choices=("sinkhorn", "permutation", "identity"),
    )
    hyper_head: str = option(
        "sum",
        "what the norm at the end of a stack sees. sum: the sum of the streams; learned: a sum with predicted weights",
        choices=("sum", "learned"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hyper_mixing == "permutation" and self.hyper_streams > MOST_PERMUTED:
            allowed = f"must be <= {MOST_PERMUTED} with {{others}}"
            raise InvalidOption("hyper_streams", self.hyper_streams, allowed, {"hyper_mixing": "permutation"})


def normed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm(x) @ weight.T without storing RMSNorm(x), which has no gain."""
    rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * weight.size(-1) ** -0.5
    return torch.rsqrt(rms.square() + EPS) * full_precision_linear(x, weight)


class ManifoldHyperConnection(ManyStreams):
    """Hyper-connections with a doubly stochastic mixing matrix, which preserves the sum of the streams.

    Formula:  n streams, mixed by doubly stochastic matrices
    Where:    h = H_pre H; H' = H_res H + H_postᵀ F, F = dropout(f(LN(h))), H in R^{n×C}; u = RMSNorm(vec H), over nC;
              each from a (u φ) + b: H_pre = σ(.), H_post = 2σ(.), H_res = Sinkhorn(.), 20 rounds of columns, then rows;
              or with --hyper-mixing permutation H_res = Σ_p softmax(.)_p P_p over the n! permutation matrices P_p,
              exactly doubly stochastic; or with --hyper-mixing identity H_res = I, without parameters. A stack ends
              with LN(Σ_i H_i), or with --hyper-head learned with LN(Σ_i w_i H_i), w = σ(s (u φ) + b) + 1e-6, where s is
              a scalar and RMSNorm has no gain
    Source:   Xie 2025, mHC, arXiv 2512.24880; permutation: mHC-lite, arXiv 2601.05732, and its code (FFTYYY/mhc-lite,
              mhc_lite.py), where b_post is ±1 and H_pre starts at σ(±1); identity: an ablation in the ICML 2026 version
              of mHC; learned head: DeepSeek's code (deepseek-ai/TileKernels, mhc_head in
              tile_kernels/modeling/mhc/functional.py, and tile_kernels/torch/mhc.py), where RMSNorm's gain is optional
              and absent by default, and its eps is 1e-6 instead of our 1e-5
    Start:    a = 0.01, three scalars. Our choices, which the paper does not state: φ Xavier-uniform; b_pre = 4 for
              stream i mod n of site i and -4 for the others; b_post = 0; b_res = 8 on the diagonal and 0 elsewhere,
              with permutations 0 for the identity and -8 for the others, as in mHC-lite; the streams start as copies
              of the input. The learned head starts with s = 0.01, φ Xavier-uniform and b = 0, so that its weights are
              nearly equal
    """

    def __init__(self, place: Place, options: ManifoldOptions, *rest: Any) -> None:
        super().__init__(place, options, *rest)
        place.require_depths()
        n = self.streams
        self.stream_weight = nn.Parameter(torch.ones(n * place.dim))
        reading = torch.full((n,), -READ)
        reading[place.index % n] = READ
        self.pre_weight = nn.Parameter(xavier_uniform(n, n * place.dim))
        self.pre_bias = nn.Parameter(reading)
        self.post_weight = nn.Parameter(xavier_uniform(n, n * place.dim))
        self.post_bias = nn.Parameter(torch.zeros(n))
        bias, permutations = KEPT * torch.eye(n).flatten(), None
        is_mixed = options.hyper_mixing != "identity"
        if options.hyper_mixing == "permutation":
            orders = torch.tensor(list(itertools.permutations(range(n))))  # the identity first
            bias = torch.full((len(orders),), -KEPT)
            bias[0] = 0.0
            permutations = torch.eye(n)[orders].flatten(1).t()  # (n·n, n!)
        self.register_buffer("permutations", permutations, persistent=False)
        self.mixing_weight = nn.Parameter(xavier_uniform(len(bias), n * place.dim)) if is_mixed else None
        self.mixing_bias = nn.Parameter(bias) if is_mixed else None
        self.scales = nn.Parameter(torch.full((3 if is_mixed else 2,), SCALE))

    def projected(self, state: Tensor, weight: Tensor) -> Tensor:
        """Return u φ, computed as r x (γ φ), where r = 1 / RMS(x) and γ is the weight of the norm.

        Dtype:  fp32 for 16-bit states, in which the squares and the product would overflow; otherwise the dtype of the
                state
        """
        x = widened(state)
        return normed_linear(x, weight.to(x.dtype) * self.stream_weight.to(x.dtype))

    def reading_weights(self, state: Tensor) -> Tensor:
        """Return H_pre, (..., n)."""
        return torch.sigmoid(self.scales[0] * self.projected(state, self.pre_weight) + self.pre_bias)

    def writing_weights(self, state: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return H_res, (..., n, n), or None for the identity, and H_post, (..., n)."""
        n, mixing = self.streams, self.mixing_weight
        weight = self.post_weight if mixing is None else torch.cat([self.post_weight, mixing])
        both = self.projected(state, weight)  # one GEMM and one u for both
        writing = 2 * torch.sigmoid(self.scales[1] * both[..., :n] + self.post_bias)
        if self.mixing_bias is None:
            return None, writing
        logits = self.scales[2] * both[..., n:] + self.mixing_bias
        if self.permutations is not None:
            shares, permutations = torch.softmax(logits, -1), self.permutations.to(logits.dtype)
            return full_precision_linear(shares, permutations).unflatten(-1, [n, n]), writing  # type: ignore[arg-type]
        return sinkhorn(logits.unflatten(-1, [n, n]), SINKHORN_STEPS), writing

    def branch_input(self, state: Tensor) -> Tensor:
        return self.norm(mix(self.reading_weights(state).unsqueeze(-2), self.split(state)).squeeze(-2))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        return self.mixed(*self.writing_weights(state), self.split(state), f)

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        weights, writing = self.writing_weights(state)
        mixing = {} if weights is None else {"H_res": weights}
        return {"H_pre": self.reading_weights(state), **mixing, "H_post": writing}


class ManifoldStream(HyperStream):
    """Ends a stack of mhc.

    Formula:  LN(Σ_i H_i), or with --hyper-head learned LN(Σ_i w_i H_i), w = σ(s (RMSNorm(vec H) φ) + b) + 1e-6
    """

    def __init__(self, place: Place, options: ManifoldOptions, final_norm: bool) -> None:
        super().__init__(place, options, final_norm)
        n = options.hyper_streams
        is_learned = options.hyper_head == "learned"
        self.head_weight = nn.Parameter(xavier_uniform(n, n * place.dim)) if is_learned else None
        self.head_bias = nn.Parameter(torch.zeros(n)) if is_learned else None
        self.head_scale = nn.Parameter(torch.tensor(SCALE)) if is_learned else None

    def leave(self, state: Tensor) -> Tensor:
        weight, bias, scale = self.head_weight, self.head_bias, self.head_scale
        if weight is None or bias is None or scale is None:
            return super().leave(state)
        state = self.entered(state)
        streams, x = state.unflatten(-1, [-1, self.dim]), widened(state)
        weights = torch.sigmoid(scale * normed_linear(x, weight.to(x.dtype)) + bias) + HEAD_EPS
        return mix(weights.unsqueeze(-2), streams).squeeze(-2)


register(
    "mhc",
    Structure(
        ManifoldOptions,
        ManifoldHyperConnection,
        ManifoldStream,
        final_norm=None,
        family="Several streams",
        use_when="Several streams, mixed without amplification, at a considerable cost in speed.",
    ),
)
