"""resi_dual: x' = LN(x + F), d' = d + F; a stack ends with x + LN(d)."""

import torch

from fairseq_resid import connections
from fairseq_resid.connections import Place
from support.formulas import layer_norm, norm
from support.stacks import C, branch, parameters


def stack(stack, x):
    d = x
    for index, site in enumerate(stack.sites):
        f = branch(stack, index, x)
        d, x = d + f, norm(x + f, parameters(site))
    return x + layer_norm(d, stack.end.weight, stack.end.bias, 1e-7)


def extra(c, options):
    return 0


def test_state_keeps_both_streams():
    site = connections.build("resi_dual", C).double()
    x, d, f = (torch.randn(3, C, dtype=torch.float64) for _ in range(3))
    state = torch.cat([x, d], dim=-1)
    assert torch.equal(site.enter(x), torch.cat([x, x], dim=-1)) and site.enter(state) is state
    assert torch.equal(site.branch_input(state), x)
    torch.testing.assert_close(site(state, f), torch.cat([norm(x + f, parameters(site)), d + f], dim=-1))
    end = connections.build_stream("resi_dual", Place(C, kind="stream"), False)
    assert end is not None
    # If every layer is dropped, the end of the stack gets x itself.
    torch.testing.assert_close(end.double()(x), x + layer_norm(x, end.weight, end.bias, 1e-7))
