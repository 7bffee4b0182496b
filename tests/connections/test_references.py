"""Structures are compared with other implementations, which `scripts/test.sh --references` installs.

Each implementation confirms some of our formulas:

- admin-torch confirms the closed-form initial value and the weighted sum of `admin`;
- torchscale confirms α and the order of norms of DeepNorm, but not its initialisation;
- hyper-connections confirms HC with an RMSNorm in place of the LayerNorm;
- x-transformers confirms the sandwich norm, LayerScale, the plain structures, the orthogonal update up to its ε, Keel
  without its exceptions in the first layer, and GTrXL's gate if one of its matrices is diagonal.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.connections import Place

pytestmark = pytest.mark.once
C = 8
FOLDER = Path(sys.prefix) / "references"  # scripts/test.sh --references installs them here


def reference(name: str) -> Any:
    """Import a module of a reference implementation, or skip the test."""
    sys.path.append(str(FOLDER))
    try:
        return pytest.importorskip(name, reason=f"{name} is not installed: scripts/test.sh --references")
    finally:
        sys.path.remove(str(FOLDER))


def shaken(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module.double().eval()


def place(index: int, sites: int, **given: Any) -> Place:
    """Return the place of a site in an encoder whose layers have one sublayer each."""
    return Place(C, "encoder", "ffn", index, True, index, sites, {"encoder": sites, "decoder": 2}, **given)


def test_admin_equals_that_of_admin_torch() -> None:
    admin_torch = reference("admin_torch")
    for sites in (2, 12, 36):
        ours = connections.build("admin", place(0, sites), admin_start="closed").double()
        theirs = admin_torch.as_module(sites, as_parameter=True, embed_dim=C).double()
        torch.testing.assert_close(ours.skip_weight, theirs.omega)
        x, f = torch.randn(2, 3, C, dtype=torch.float64), torch.randn(2, 3, C, dtype=torch.float64)
        torch.testing.assert_close(ours(x, f), ours.norm(theirs(x, f)))


@pytest.fixture
def torchscale(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a module of torchscale, with stand-ins for fairscale and timm.

    The tests use nothing that needs these two packages.
    """
    for name, attributes in (("fairscale.nn", ("checkpoint_wrapper", "wrap")), ("timm.models.layers", ("drop_path",))):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            stand_in = types.ModuleType(".".join(parts[:end]))
            for attribute in attributes:
                setattr(stand_in, attribute, None)
            monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return lambda name: reference(f"torchscale.architecture.{name}")


@pytest.mark.parametrize(("encoder", "decoder"), [(6, 6), (18, 18), (6, 18)])
def test_deep_norm_equals_that_of_torchscale(torchscale: Callable[[str], Any], encoder: int, decoder: int) -> None:
    config = torchscale("config").EncoderConfig(
        encoder_layers=encoder, encoder_embed_dim=C, encoder_ffn_embed_dim=16, encoder_attention_heads=2, deepnorm=True
    )
    config.decoder_layers = decoder
    depths = {"encoder": encoder, "decoder": decoder}
    layer = shaken(torchscale("encoder").EncoderLayer(config, 0, is_encoder_decoder=True))
    sites = []
    for number, norm in enumerate((layer.self_attn_layer_norm, layer.final_layer_norm)):
        at = Place(C, "encoder", "ffn", 0, number == 1, number, 2 * encoder, depths)
        sites.append(connections.build("deep_norm", at).double())
        sites[-1].norm.load_state_dict(norm.state_dict())
        assert sites[-1].alpha == pytest.approx(layer.alpha, rel=1e-12)
    x = torch.randn(2, 5, C, dtype=torch.float64)
    y = sites[0](x, layer.self_attn(query=x, key=x, value=x)[0])
    torch.testing.assert_close(sites[1](y, layer.ffn(y)), layer(x, None)[0])

    config = torchscale("config").DecoderConfig(
        decoder_layers=decoder, decoder_embed_dim=C, decoder_ffn_embed_dim=16, decoder_attention_heads=2, deepnorm=True
    )
    config.encoder_layers, config.encoder_embed_dim = encoder, C
    theirs = torchscale("decoder").DecoderLayer(config, 0, is_encoder_decoder=True)
    at = Place(C, "decoder", "ffn", 0, True, 2, 3 * decoder, depths)
    assert connections.build("deep_norm", at).alpha == pytest.approx(theirs.alpha, rel=1e-12)
    alone = torchscale("decoder").DecoderLayer(config, 0, is_encoder_decoder=False)
    at = Place(C, "decoder", "ffn", 0, True, 1, 2 * decoder, {"decoder": decoder})
    assert connections.build("deep_norm", at).alpha == pytest.approx(alone.alpha, rel=1e-12)


@pytest.mark.parametrize("streams", [2, 4])
def test_hyper_equals_that_of_hyper_connections(streams: int) -> None:
    """The reference normalises the streams with RMS norms and does not apply the norm before the branch."""
    theirs_class = reference("hyper_connections").HyperConnections
    state = ours_state = torch.randn(3, 5, C, dtype=torch.float64).repeat(1, 1, streams)
    for index in range(3):
        theirs = theirs_class(streams, dim=C, layer_index=index)
        at = place(index, 3, norm=lambda dim: nn.RMSNorm(dim, eps=1e-24))
        ours = connections.build("hyper", at, hyper_streams=streams)
        for mine, other in (
            (ours.mixing, theirs.static_alpha.T),
            (ours.writing, theirs.static_beta),
            (ours.mixing_scale, theirs.dynamic_alpha_scale),
            (ours.writing_scale, theirs.dynamic_beta_scale),
            (ours.mixing_weight, theirs.dynamic_alpha_fn.T),
        ):
            assert torch.equal(mine, other)  # the initial values
        shaken(theirs), ours.double()
        with torch.no_grad():
            ours.mixing.copy_(theirs.static_alpha.T)
            ours.writing.copy_(theirs.static_beta)
            ours.mixing_weight.copy_(theirs.dynamic_alpha_fn.T)
            ours.writing_weight.copy_(theirs.dynamic_beta_fn.unsqueeze(0))
            ours.mixing_scale.copy_(theirs.dynamic_alpha_scale)
            ours.writing_scale.copy_(theirs.dynamic_beta_scale)
            ours.stream_norm.weight.copy_(theirs.norm.gamma + 1)
        branch = shaken(nn.Linear(C, C))
        # The reference folds the streams into the batch dimension.
        rows = state.unflatten(-1, (streams, C)).movedim(-2, 1).flatten(0, 1)
        seen, add = theirs(rows)
        rows = add(branch(ours.norm(seen)))
        state = rows.unflatten(0, (3, streams)).movedim(1, -2).flatten(-2)
        ours_state = ours(ours_state, branch(ours.branch_input(ours_state)))
        torch.testing.assert_close(ours_state, state, rtol=1e-6, atol=1e-6)


def gain(module: Any) -> Tensor:
    """Return the gain of a norm or scale of the reference."""
    return module.gamma.detach() + float(module.unit_offset)  # type: ignore[no-any-return]


def copied(site: connections.ResidualConnection, names: dict[str, Any]) -> None:
    """Copy the gains of the reference, whose norms have no bias, to the norms of a site."""
    for name, theirs in names.items():
        norm = getattr(site, name)
        with torch.no_grad():
            norm.weight.copy_(gain(theirs))
            norm.bias.zero_()


@pytest.mark.parametrize(
    ("name", "given", "norms"),
    [
        ("pre_ln", {}, ("norm", "", "")),
        ("post_ln", {"pre_norm": False}, ("", "", "norm")),
        ("sandwich_ln", {"sandwich_norm": True}, ("norm", "outer_norm", "")),
        ("layer_scale", {"use_layerscale": True, "layerscale_init_value": 0.1}, ("norm", "", "")),
        ("keel", {"pre_and_post_norm": True, "scale_residual_constant": 4.0}, ("inner_norm", "", "norm")),
        ("orthogonal", {"orthog_residual": True}, ("norm", "", "")),
    ],
)
def test_residuals_equal_those_of_x_transformers(name: str, given: dict[str, Any], norms: tuple[str, str, str]) -> None:
    theirs = reference("x_transformers.x_transformers").AttentionLayers(
        C, depth=4, heads=1, custom_layers=("f",) * 4, **given
    )
    shaken(theirs)
    # Each sequence has one position, because x-transformers' update projects whole sequences.
    x = torch.randn(10, 1, C, dtype=torch.float64)
    y: Tensor = x
    for index, (their_norms, block, _) in enumerate(theirs.layers):
        # The reference lacks the exceptions in Keel's first layer, so the four sites belong to later layers.
        at = Place(C, "encoder", "ffn", index + 1, True, index + 1, 4, {"encoder": 5, "decoder": 2})
        site = connections.build(name, at).double()
        copied(site, {mine: norm for mine, norm in zip(norms, their_norms, strict=True) if mine})
        if name == "layer_scale":
            assert (connections.build(name, at).branch_weight == 0.1).all()
            site.branch_weight.data.copy_(gain(block))
            block = block.fn
        y = site(y, block(site.branch_input(y)))
    end = connections.build_stream(name, Place(C, kind="stream"), connections.resolve_final_norm(name, None))
    if end is not None:
        end = end.double()
        with torch.no_grad():
            end.weight.copy_(gain(theirs.final_norm))  # type: ignore[union-attr]
        y = end(y)
    tolerance = 1e-5 if name == "orthogonal" else 1e-7  # the update of the reference has no ε
    torch.testing.assert_close(y, theirs(x), rtol=tolerance, atol=tolerance)


def test_gru_gate_equals_that_of_x_transformers() -> None:
    """The reference, a GRUCell, has r ⊙ (U_h x) in place of U_h (r ⊙ x), more biases, 1 - z for z, and no ReLU."""
    theirs = shaken(reference("x_transformers.x_transformers").GRUGating(C))
    cell, ours = theirs.gru, connections.build("gru_gate", place(0, 4)).double()
    with torch.no_grad():
        cell.weight_hh[2 * C :] = cell.weight_hh[2 * C :].diag().diag()
        for bias in (cell.bias_ih[:C], cell.bias_hh[:C], cell.bias_ih[2 * C :], cell.bias_hh[2 * C :]):
            bias.zero_()
        (w_r, w_z, w_h), (u_r, u_z, u_h) = cell.weight_ih.chunk(3), cell.weight_hh.chunk(3)
        ours.branch_weight.copy_(torch.cat([w_r, -w_z, w_h]))
        ours.shortcut_weight.copy_(torch.cat([u_r, -u_z]))
        ours.candidate_weight.copy_(u_h)
        ours.gate_bias.copy_(-(cell.bias_ih + cell.bias_hh)[C : 2 * C])
    x, f = torch.randn(2, 3, C, dtype=torch.float64), torch.randn(2, 3, C, dtype=torch.float64)
    torch.testing.assert_close(ours(x, f), theirs(f.relu(), x))
