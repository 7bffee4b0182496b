"""Residual connections with kernels: saved memory, autocast, dropout modules, transforms, training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fairseq_resid import connections
from fairseq_resid.ops import fused
from support.kernels import DEVICE, DTYPES, FUSED, draw, every, results, site, twin

pytestmark = pytest.mark.once  # needs only torch and triton


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("post_ln", {}, 1.05),
        ("rskip_ln", {"skip_lambda": 2}, 1.05),
        ("rskip_ln", {"skip_lambda": 3}, 1.05),
        ("wskip_ln", {}, 1.05),
        ("res_post_norm", {}, 1.05),
        ("sas", {}, 3.1),
    ],
)
def test_kernels_save_few_activations(name: str, options: dict[str, Any], most: float) -> None:
    """Saved values are counted in C-vectors per token, without x, which the first GEMM of the sublayer saves anyway."""
    c, rows = 512, 2
    made = site(name, c, 0.1, **options).half()
    x = draw(rows, c, dtype=torch.float16, seed=1)
    f_out = draw(rows, c, dtype=torch.float16, seed=2) * 1
    known = {t.untyped_storage().data_ptr() for t in (x, *made.parameters())}
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in known:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = made(x, f_out)
    assert y.requires_grad
    assert 0.9 * math.floor(most) <= sum(kept.values()) / (rows * c * x.element_size()) <= most


@every
def test_second_derivatives_are_refused(name: str, options: dict[str, Any]) -> None:
    made = site(name, **options)
    x, f = draw(1, 64, seed=1), draw(1, 64, seed=2)
    with pytest.raises(RuntimeError, match=r"second derivative.*--residual-backend eager"):
        torch.autograd.grad(made(x, f).sum(), x, create_graph=True)


def test_decoding_builds_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (fused._Chain, fused._SelfAdaptiveScaling, fused._Dropout):
        monkeypatch.setattr(function, "apply", lambda *_: pytest.fail("autograd in decoding"))
    for name, options in FUSED:
        made = site(name, p=0.1, **options).eval()
        x, f = draw(1, 4, 64, seed=1), draw(1, 4, 64, seed=2)
        with torch.no_grad():
            torch.testing.assert_close(made(x, f), twin(made)(x, f))


def whole(made: connections.ResidualConnection, x: Tensor, f: Tensor) -> Tensor:
    """Return the output of a site plus the input to its branch, which together use all parameters."""
    return made(x, f) + made.branch_input(x)


@every
def test_site_with_kernels_equals_eager(name: str, options: dict[str, Any]) -> None:
    made = site(name, **options)
    x, f, g = draw(2, 2, 64, seed=1), draw(2, 2, 64, seed=2), draw(2, 2, 64, seed=3).detach()
    found, expected = (
        results(lambda x, f, _, one=one: whole(one, x, f), x, f, list(one.parameters()), g)
        for one in (made, twin(made))
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert made.state_dict().keys() == site(name, backend="eager", **options).state_dict().keys()


@every
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_kernels_under_autocast_equal_eager(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Under autocast, the shortcut is in fp32 and the branch in 16 bits; the result equals that of eager PyTorch."""
    made = site(name, **options)
    x, g = draw(2, 64, seed=1), draw(2, 64, seed=3).detach()
    f = draw(2, 64, dtype=dtype, seed=2)
    both = []
    for one in (made, twin(made)):
        with torch.autocast(DEVICE.type, dtype=dtype):
            y = whole(one, x, f)
        assert y.dtype == torch.float32
        both.append([y, *torch.autograd.grad(y, [x, f, *one.parameters()], g)])
    for ours, theirs in zip(*both, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


class Tripled(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return 3 * input


class Other(nn.Module):
    def forward(self, f: Tensor) -> Tensor:
        return 3 * f


@pytest.mark.parametrize("dropout", [Tripled(0.5), Other(), nn.Dropout(1.0)], ids=["subclass", "module", "p=1"])
@pytest.mark.parametrize("name", ["post_ln", "sas"])
def test_other_dropout_modules_are_called(name: str, dropout: nn.Module) -> None:
    made = site(name)
    made.dropout = dropout
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    torch.testing.assert_close(made(x, f), twin(made)(x, f), rtol=1e-5, atol=1e-5)
    times = 0 if isinstance(dropout, nn.Dropout) and dropout.p == 1 else 3
    torch.testing.assert_close(made(x, f), made.combine(x, times * f), rtol=1e-5, atol=1e-5)


def fairseq_dropout(p: float) -> Any:
    from fairseq_resid.models.layers import SiteDropout

    return SiteDropout(p, module_name="layer")


@pytest.mark.both
@pytest.mark.parametrize("made", [nn.Dropout, fairseq_dropout])
def test_standard_dropout_runs_inside_the_kernel(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dropout module is not called; the kernel zeroes half of the ones in F whenever the module would do so."""
    one = site("xskip_ln", p=made(0.5))
    monkeypatch.setattr(type(one.dropout), "forward", lambda *_: pytest.fail("called"))
    with torch.no_grad():
        one.norm.weight.fill_(1.0), one.norm.bias.zero_()
    zeros, ones = torch.zeros(8, 64, device=DEVICE), torch.ones(8, 64, device=DEVICE)
    assert (one(zeros, ones) < 0).float().mean().item() == pytest.approx(0.5, abs=0.12)
    one.eval()
    assert not (one(zeros, ones) < 0).any()
    if made is fairseq_dropout:
        one.dropout.make_generation_fast_("", retain_dropout=True)
        assert (one(zeros, ones) < 0).any()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@every
def test_torchscript_compile_and_transforms_work(name: str, options: dict[str, Any]) -> None:
    made = site(name, **options)
    x, f = draw(2, 64, seed=1).detach(), draw(2, 64, seed=2).detach()
    expected = twin(made)(x, f)
    torch.testing.assert_close(torch.jit.script(made)(x, f), expected)
    torch.testing.assert_close(torch.jit.trace(made, (x, f))(x, f), expected)
    torch.compiler.reset()  # the limit of recompilations counts those of earlier tests in this process
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, f), expected)
    torch.testing.assert_close(torch.func.vmap(made)(x, f), expected)
    torch.testing.assert_close(torch.func.jvp(made, (x, f), (x, f))[0], expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(made(dual, f)).tangent is not None


def test_activation_checkpointing_repeats_the_dropout_mask() -> None:
    from torch.utils.checkpoint import checkpoint

    made = site("rskip_ln", p=0.5)
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    found = []
    for call in (made, lambda x, f: checkpoint(made, x, f, use_reentrant=False)):
        torch.manual_seed(8)
        y = call(x, f)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, f])])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("arch", ["transformer_sas_tiny", "transformer_rskip_ln_tiny"])
def test_training_with_kernels_follows_eager(arch: str) -> None:
    import argparse

    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    import fairseq_resid.models  # noqa: F401  (registers the architectures)

    words = Dictionary()
    for index in range(12):
        words.add_symbol(f"w{index}")
    task = argparse.Namespace(source_dictionary=words, target_dictionary=words)
    tokens = torch.arange(4, 10).view(2, 3).to(DEVICE)
    losses: dict[str, list[float]] = {}
    for backend in ("eager", "triton"):
        torch.manual_seed(0)
        args = argparse.Namespace(arch=arch, residual_backend=backend, dropout=0.0, encoder_layers=1, decoder_layers=1)
        ARCH_CONFIG_REGISTRY[arch](args)
        assert args.residual_backend == backend
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).to(DEVICE).train()
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        losses[backend] = []
        for _ in range(3):
            optimizer.zero_grad()
            output = model(tokens, torch.tensor([3, 3], device=DEVICE), tokens)[0]
            loss = functional.cross_entropy(output.flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            losses[backend].append(loss.item())
    assert losses["triton"] == pytest.approx(losses["eager"], rel=1e-3)
    assert losses["eager"][-1] < 0.9 * losses["eager"][0]
