"""siamese: a post-norm stream x and a pre-norm stream y with the same branches."""

import torch

from fairseq_resid import connections
from support.formulas import layer_norm, norm
from support.stacks import C, branch, parameters


def stack(stack, x):
    y = x
    for index, site in enumerate(stack.sites):
        p = parameters(site)
        x = norm(x, p, "post_norm")
        f = branch(stack, index, norm(x + norm(y, p, "pre_norm"), p))
        layer = index // stack.kinds + 1
        x, y = x + f / (2 * layer) ** 0.5, y + f
    p = parameters(stack.end)
    return layer_norm(norm(x, p, "post_norm") + norm(y, p, "pre_norm"), p["weight"], p["bias"])


def extra(c, options):
    return 4 * c


def test_state_keeps_both_streams():
    site = connections.build("siamese", connections.Place(C, depths={"encoder": 1}))
    x, y, f = (torch.randn(3, C) for _ in range(3))
    state = torch.cat([x, y], dim=-1)
    assert torch.equal(site.enter(x), torch.cat([x, x], dim=-1)) and site.enter(state) is state
    expected = torch.cat([norm(x, parameters(site), "post_norm") + f / 2**0.5, y + f], dim=-1)
    torch.testing.assert_close(site(state, f), expected)
    end = connections.build_stream("siamese", connections.Place(C, kind="stream"), False)
    assert end is not None
    torch.testing.assert_close(end(x), end(torch.cat([x, x], dim=-1)))  # if every layer is dropped
