"""frac: hyper-connections between m fractions of the state (Zhu 2025, Frac-Connections)."""

import pytest
import torch

from fairseq_resid import connections
from support.formulas import grid, norm
from support.stacks import C, Stack

EXAMPLES = grid(hyper_streams=[1, 2, 4], hyper_weights=["static", "dynamic"])
VARIANTS = {"static": {"hyper_weights": "static"}}
LIMITS = [{"hyper_weights": "static", "hyper_streams": 4}]


def weights(x, p, options):
    """Return Y (the read weights), A and B, computed fraction by fraction."""
    m = options.hyper_streams
    y, a, b = p["mixing"][:m].T, p["mixing"][m:].T, p["writing"]
    if options.hyper_weights == "static":
        return y, a, b
    normed = torch.stack([norm(part, p, "stream_norm") for part in x.chunk(m, -1)], -2)
    tanh = torch.tanh(normed @ p["mixing_weight"].T)
    y, a = y + p["mixing_scale"] * tanh[..., :m], a + p["mixing_scale"] * tanh[..., m:]
    return y, a, b + p["writing_scale"] * torch.tanh(normed @ p["writing_weight"][0])


def mixed(x, matrix, m):
    parts = x.chunk(m, -1)
    return torch.cat([sum(matrix[..., i, j, None] * parts[i] for i in range(m)) for j in range(m)], -1)


def branch_input(x, p, options, place):
    return norm(mixed(x, weights(x, p, options)[0], options.hyper_streams), p)


def formula(x, f, p, options, place):
    _, a, b = weights(x, p, options)
    m = options.hyper_streams
    return mixed(x, a, m) + torch.cat([b[..., i, None] * part for i, part in enumerate(f.chunk(m, -1))], -1)


def width(c, options):
    return c * options.hyper_streams


def weight_sum(site):
    return 2.0 + 2 * 0.01 * site.streams  # A = I, B = 1, and s tanh(.) of each fraction


def test_a_stack_starts_as_a_pre_norm_stack():
    torch.manual_seed(0)
    frac = Stack("frac", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain = Stack("pre_ln", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain.branches.load_state_dict(frac.branches.state_dict())
    x = torch.randn(5, 2, C, dtype=torch.float64)
    torch.testing.assert_close(frac(x), plain(x))


def test_number_of_fractions_must_divide_the_width():
    with pytest.raises(ValueError, match=r"^hyper_streams=3: must divide the 8 channels$"):
        connections.build("frac", 8, hyper_streams=3)
