"""hyper: n streams, mixed by learned or predicted weights at every site (Zhu 2024, eq. 1 to 13)."""

import torch

from support.formulas import grid, layer_norm, norm
from support.stacks import C, Stack, branch, parameters

EXAMPLES = grid(hyper_streams=[1, 2, 4], hyper_weights=["static", "dynamic"])
VARIANTS = {"static": {"hyper_weights": "static"}}
LIMITS = [{"hyper_weights": "static", "hyper_streams": 8}]
IS_SLOW = True


def stack(stack, x):
    """Compute a whole stack stream by stream."""
    n, dynamic = stack.options.hyper_streams, stack.options.hyper_weights == "dynamic"
    columns = [x for _ in range(n)]
    for i, site in enumerate(stack.sites):
        p = parameters(site)
        a, b = p["mixing"], p["writing"]
        reads = [a[0, j] + torch.zeros((*x.shape[:-1], 1), dtype=x.dtype) for j in range(n)]
        writes = [b[j] + torch.zeros_like(reads[0]) for j in range(n)]
        mixes = [[a[1 + k, j] + torch.zeros_like(reads[0]) for j in range(n)] for k in range(n)]
        if dynamic:
            normed = [norm(column, p, "stream_norm") for column in columns]
            for j, seen in enumerate(normed):
                reads[j] = reads[j] + p["mixing_scale"] * torch.tanh(seen @ p["mixing_weight"][0]).unsqueeze(-1)
                writes[j] = writes[j] + p["writing_scale"] * torch.tanh(seen @ p["writing_weight"][0]).unsqueeze(-1)
                for k in range(n):
                    logits = (seen @ p["mixing_weight"][1 + k]).unsqueeze(-1)
                    mixes[k][j] = mixes[k][j] + p["mixing_scale"] * torch.tanh(logits)
        h = sum(reads[j] * columns[j] for j in range(n))
        f = branch(stack, i, norm(h, p))
        columns = [sum(mixes[k][j] * columns[j] for j in range(n)) + writes[k] * f for k in range(n)]
    return layer_norm(sum(columns), stack.end.weight, stack.end.bias)


def extra(c, options):
    n = options.hyper_streams
    static = n * (n + 1) + n
    return static if options.hyper_weights == "static" else static + 2 * c + (n + 1) * c + c + 2


def weight_sum(site):
    return 3.0 * site.streams  # each stream has x + F or x + 2 F, and the end sums them


def test_a_stack_starts_as_a_pre_norm_stack():
    """Each branch reads one of n equal streams, whose sum before the last norm is n times the pre-norm stream."""
    torch.manual_seed(0)
    hyper = Stack("hyper", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain = Stack("pre_ln", "decoder", {"encoder": 4, "decoder": 3}).double()
    plain.branches.load_state_dict(hyper.branches.state_dict())
    x = torch.randn(5, 2, C, dtype=torch.float64)
    torch.testing.assert_close(hyper(x), plain(x), rtol=1e-4, atol=1e-4)  # the same eps, but 16 times the variance
    for index, site in enumerate(hyper.sites):
        assert site.mixing[0].tolist() == [float(index % 4 == j) for j in range(4)]
        assert torch.equal(site.mixing[1:], torch.eye(4, dtype=torch.float64)) and (site.writing == 1).all()
