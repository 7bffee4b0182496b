"""Streams that are mixed at every site: hyper-connections, Frac-Connections, and mHC, which preserves their sum."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import sinkhorn
from .core.base import ResidualConnection, xavier_uniform
from .core.mixing import full_precision_linear, mix, widened
from .core.norms import EPS
from .core.options import InvalidOption, Options, option
from .core.place import Place
from .core.registry import Structure, register
from .core.stream import ResidualStream

SCALE = 0.01  # initial value of s (Zhu 2024, section 3.2) and of a (Xie 2025)
SINKHORN_STEPS = 20
# Initial values of mHC's biases: σ(±READ) are the weights with which a site reads its own stream (0.98) and the others
# (0.02); KEPT is the logit of the diagonal of H_res.
READ, KEPT = 4.0, 8.0
HEAD_EPS = 1e-6  # added to each weight of mHC's learned head (mhc_pre_eps in DeepSeek's code)
MOST_PERMUTED = 5  # maximum number of streams with --hyper-mixing permutation, which has n! weights


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


@dataclass(frozen=True)
class FractionOptions(HyperOptions):
    """Options of frac."""

    hyper_streams: int = option(2, "number m of fractions, a divisor of the width", least=1, most=32, example=4)

    def check_width(self, dim: int) -> None:
        if dim % self.hyper_streams:
            raise InvalidOption("hyper_streams", self.hyper_streams, f"must divide the {dim} channels")


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


def mixed(weights: Tensor | None, writing: Tensor, streams: Tensor, f: Tensor) -> Tensor:
    """Return the next state: weights (..., n, n) @ streams, plus `writing` (..., n) times the branch.

    weights: None for the identity
    f: the branch as (..., 1, C), or as (..., n, C/n) with one part for each stream
    """
    writing, f = writing.to(streams.dtype).unsqueeze(-1), f.to(streams.dtype)
    kept = streams if weights is None else mix(weights, streams)
    return torch.addcmul(kept, writing, f).flatten(-2)


def normed_linear(x: Tensor, weight: Tensor, width: int, eps: float = EPS) -> Tensor:
    """Return RMSNorm(x) @ weight.T for x (..., width) without storing RMSNorm(x), which has no gain."""
    rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * width**-0.5
    return torch.rsqrt(rms.square() + eps) * full_precision_linear(x, weight)


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

    def enter(self, x: Tensor) -> Tensor:
        if self.streams == 1 or x.size(-1) != self.dim:
            return x
        return torch.cat([x for _ in range(self.streams)], dim=-1)


class HyperConnection(ManyStreams):
    """Reads the input of the branch from n streams, mixes the streams, and adds the branch to each.

    Formula:  h = A_mᵀ H;  H' = A_rᵀ H + B F, F = dropout(f(LN(h))), H in R^{n×C};  static: A_m, A_r, B learned;
              dynamic: each of them + s tanh(LN'(H) W), LN' over C of each stream, one s for A_m and A_r, one for B
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
        streams, f = self.split(state), self.split_branch(f)
        weights, writing = self.writing_weights(streams)
        return mixed(weights, writing, streams, f)

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        streams = self.split(state)
        weights, writing = self.writing_weights(streams)
        return {"A_m": self.reading_weights(streams), "A_r": weights, "B": writing}


class FractionalConnection(HyperConnection):
    """Hyper-connections between m fractions of one C-wide state, which mix channels instead of copies.

    Formula:  h = A_mᵀ H;  H' = A_rᵀ H + B ⊙ F, F = dropout(f(LN(vec h))), H in R^{m×C/m}, F as m fractions, A_m and A_r
              in R^{m×m};  static or dynamic as in hyper, LN' over C/m of each fraction; the stack ends with a norm
    Source:   Zhu 2025, Frac-Connections, arXiv 2503.14125, eq. 6 to 15 and algorithms 2 and 3. The
              hyper-connections package differs: its B adds every fraction of the branch to every fraction of the
              state. The paper tries m = 2 and 4
    Start:    A_m = A_r = I, B = 1, W = 0, s = 0.01: a pre-norm stack
    """

    divides_state = True
    enter = ResidualConnection.enter

    def __init__(self, place: Place, options: FractionOptions, *rest: Any) -> None:
        options.check_width(place.dim)
        super().__init__(place, options, *rest)


class ManifoldHyperConnection(ManyStreams):
    """Hyper-connections with a doubly stochastic mixing matrix, which preserves the sum of the streams.

    Formula:  h = H_pre H;  H' = H_res H + H_postᵀ F, F = dropout(f(LN(h))), H in R^{n×C};  u = RMSNorm(vec H), over nC;
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
        self.width, self.steps = n * place.dim, SINKHORN_STEPS
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
        return normed_linear(x, weight.to(x.dtype) * self.stream_weight.to(x.dtype), self.width)

    def reading_weights(self, state: Tensor) -> Tensor:
        """Return H_pre, (..., n)."""
        return torch.sigmoid(self.scales[0] * self.projected(state, self.pre_weight) + self.pre_bias)

    def writing_weights(self, state: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return H_res, (..., n, n), or None for the identity, and H_post, (..., n)."""
        n, mixing_weight, mixing_bias = self.streams, self.mixing_weight, self.mixing_bias
        weight = self.post_weight if mixing_weight is None else torch.cat([self.post_weight, mixing_weight])
        both = self.projected(state, weight)  # one GEMM and one u for both
        writing = 2 * torch.sigmoid(self.scales[1] * both[..., :n] + self.post_bias)
        if mixing_bias is None:
            return None, writing
        logits = self.scales[2] * both[..., n:] + mixing_bias
        if self.permutations is not None:
            shares, permutations = torch.softmax(logits, -1), self.permutations.to(logits.dtype)
            return full_precision_linear(shares, permutations).unflatten(-1, [n, n]), writing  # type: ignore[arg-type]
        return sinkhorn(logits.unflatten(-1, [n, n]), self.steps), writing

    def branch_input(self, state: Tensor) -> Tensor:
        return self.norm(mix(self.reading_weights(state).unsqueeze(-2), self.split(state)).squeeze(-2))

    def combine(self, state: Tensor, f: Tensor) -> Tensor:
        weights, writing = self.writing_weights(state)
        return mixed(weights, writing, self.split(state), self.split_branch(f))

    def coefficients(self, state: Tensor, f: Tensor) -> dict[str, Tensor]:
        weights, writing = self.writing_weights(state)
        mixing = {} if weights is None else {"H_res": weights}
        return {"H_pre": self.reading_weights(state), **mixing, "H_post": writing}


class HyperStream(ResidualStream):
    """Ends a stack of hyper-connections.

    Formula:  LN(Σ_i H_i)
    """

    def __init__(self, place: Place, options: StreamsOptions, final_norm: bool) -> None:
        super().__init__(place, options, final_norm=True)
        self.dim, self.streams = place.dim, options.hyper_streams

    def entered(self, state: Tensor) -> Tensor:
        """Return a state, or the initial state of a stack whose layers were all dropped, which is n copies of x."""
        return torch.cat([state for _ in range(self.streams)], dim=-1) if state.size(-1) == self.dim else state

    def leave(self, state: Tensor) -> Tensor:
        return self.entered(state).unflatten(-1, [-1, self.dim]).sum(-2)


class ManifoldStream(HyperStream):
    """Ends a stack of mhc.

    Formula:  LN(Σ_i H_i), or with --hyper-head learned LN(Σ_i w_i H_i), w = σ(s (RMSNorm(vec H) φ) + b) + 1e-6
    """

    def __init__(self, place: Place, options: ManifoldOptions, final_norm: bool) -> None:
        super().__init__(place, options, final_norm)
        n = options.hyper_streams
        self.width, self.head_eps = n * place.dim, HEAD_EPS
        is_learned = options.hyper_head == "learned"
        self.head_weight = nn.Parameter(xavier_uniform(n, self.width)) if is_learned else None
        self.head_bias = nn.Parameter(torch.zeros(n)) if is_learned else None
        self.head_scale = nn.Parameter(torch.tensor(SCALE)) if is_learned else None

    def leave(self, state: Tensor) -> Tensor:
        weight, bias, scale = self.head_weight, self.head_bias, self.head_scale
        state = self.entered(state)
        streams = state.unflatten(-1, [-1, self.dim])
        if weight is None or bias is None or scale is None:
            return streams.sum(-2)
        x = widened(state)
        weights = torch.sigmoid(scale * normed_linear(x, weight.to(x.dtype), self.width) + bias) + self.head_eps
        return mix(weights.unsqueeze(-2), streams).squeeze(-2)


register(
    "mhc",
    Structure(
        ManifoldOptions,
        ManifoldHyperConnection,
        ManifoldStream,
        final_norm=None,
        formula="n streams, mixed by doubly stochastic matrices",
        source="Xie 2025",
        family="Several streams",
        use_when="Several streams, mixed without amplification, at a considerable cost in speed.",
    ),
)
register(
    "hyper",
    Structure(
        HyperOptions,
        HyperConnection,
        HyperStream,
        final_norm=None,
        formula="n streams, mixed at every site",
        source="Zhu 2024",
        family="Several streams",
        use_when="Several streams with learned connections, if time and memory allow.",
    ),
)
register(
    "frac",
    Structure(
        FractionOptions,
        FractionalConnection,
        final_norm=True,
        formula="A_r x + BF, F from f(LN(A_m x)), on m fractions of x and F",
        source="Zhu 2025",
        family="Several streams",
        use_when="Learned connections as in `hyper`, in a state no wider than that of a plain Transformer.",
    ),
)
