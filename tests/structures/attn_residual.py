"""attn_residual: the branch sees LN of a softmax-weighted mean of the outputs of earlier sublayers."""

import torch

from support.formulas import grid, layer_norm, norm, rms_norm
from support.stacks import C, Stack, branches, parameters

EXAMPLES = grid(block_size=[1, 2, 3, 4, 50])
VARIANTS = {"blocks": {"block_size": 2}}
HAS_GATE = True


def attend(values, query, gain):
    """Attend over depth (arXiv 2603.15031): softmax over i of query . RMSNorm(v_i), times the unnormalised v_i."""
    scores = torch.stack([(rms_norm(value, gain) * query).sum(dim=-1) for value in values])
    shares = torch.softmax(scores, dim=0)
    result = shares[0].unsqueeze(-1) * values[0]
    for share, value in zip(shares[1:], values[1:], strict=True):
        result = result + share.unsqueeze(-1) * value
    return result


def attn_residual(x, sites, end, block_size=1):
    """Compute a stack with attention residuals (Kimi Team 2026, arXiv 2603.15031). block_size 1 is the full form.

    With larger blocks, `finished` contains b_0 (the embedding), b_1, ... and `running` the branches of the incomplete
    block.

    Written from the source, independently of the package."""
    finished = [x]
    running = []  # the branches of the incomplete block, before they are summed
    for f, query, gain, ln_weight, ln_bias in sites:
        values = [*finished, sum(running[1:], running[0])] if running else finished
        if query is None or gain is None:
            assert len(values) == 1, "only the first site has no query"
            h = values[0]
        else:
            h = attend(values, query, gain)
        running = [*running, f(layer_norm(h, ln_weight, ln_bias))]
        if len(running) == block_size:
            finished = [*finished, sum(running[1:], running[0])]
            running = []
    end_query, end_gain, ln_weight, ln_bias = end
    values = [*finished, sum(running[1:], running[0])] if running else finished
    return layer_norm(attend(values, end_query, end_gain), ln_weight, ln_bias)


def stack(stack, x):
    depths = [(None, None), *((site.depth.query, site.depth.weight) for site in list(stack.sites)[1:])]
    sites = [(f, *depth, *norms) for (f, *norms), depth in zip(branches(stack), depths, strict=True)]
    end = stack.end
    exit_parts = (end.depth.query, end.depth.weight, end.weight, end.bias)
    return attn_residual(x, sites, exit_parts, stack.options.block_size)


def extra(c, options):
    return 2 * c


def test_attention_starts_as_a_mean():
    torch.manual_seed(0)
    made = Stack("attn_residual", "encoder", {"encoder": 3})
    state = torch.randn(5, 4 * C)
    expected = norm(state.view(5, 4, C).mean(1), parameters(made.sites[3]))
    torch.testing.assert_close(made.sites[3].branch_input(state), expected)
