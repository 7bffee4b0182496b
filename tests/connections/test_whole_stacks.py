"""`build_stack`: the sites of a stack with their places, options and shared parameters, and the end of the stack."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from fairseq_resid import connections
from fairseq_resid.connections import NORMS
from support.stacks import KINDS, C, Stack, places
from support.structures import each_variant

pytestmark = pytest.mark.once  # needs only torch


@each_variant
def test_sites_and_end_are_those_of_the_places(name: str, options: dict[str, Any]) -> None:
    depths, kinds = {"encoder": 2, "decoder": 3}, KINDS["decoder"]
    expected = Stack(name, "decoder", depths, norm=NORMS["rms"], **options)
    sites, end = connections.build_stack(
        name, C, 3, kinds=kinds, stack="decoder", depths={"encoder": 2}, norm=NORMS["rms"], **options
    )
    assert [len(layer) for layer in sites] == [len(kinds)] * 3
    made = nn.ModuleList([site for layer in sites for site in layer])
    assert [repr(site) for site in made] == [repr(site) for site in expected.sites]
    assert [site.place for site in made] == places("decoder", depths, norm=NORMS["rms"])
    assert list(dict(made.named_parameters())) == list(dict(expected.sites.named_parameters()))  # shared: named once
    assert repr(end) == repr(nn.Identity() if expected.end is None else expected.end)
    assert isinstance(end, nn.Identity) or end.place == expected.end.place


def test_dropout_backend_and_final_norm_reach_the_stack() -> None:
    sites, end = connections.build_stack("post_ln", C, 2, 0.25, backend="eager", final_norm="layer")
    assert {(site.dropout.p, site.backend) for layer in sites for site in layer} == {(0.25, "eager")}
    assert isinstance(end, connections.ResidualStream) and end.has_norm
    assert isinstance(connections.build_stack("pre_ln", C, 2, final_norm="none")[1], nn.Identity)
