"""Deep models of every structure start with finite loss and gradients."""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_resid.models  # noqa: F401  (registers the architectures)
from fairseq_resid import connections

pytestmark = pytest.mark.once

WORDS = Dictionary()
for number in range(30):
    WORDS.add_symbol(f"w{number}")
TASK = argparse.Namespace(source_dictionary=WORDS, target_dictionary=WORDS)
SIZE = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32}
SIZE |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
STRUCTURES = sorted({connections.canonical(name) for name in connections.names()})
# Without a norm nothing bounds a deep stack.
NORMED = {name: {"residual_norm": "layer"} for name in STRUCTURES if "residual_norm" in connections.options(name)}


def build(residual: str, encoder: int, decoder: int, **options: object) -> Any:
    """A new model, the same one every time."""
    torch.manual_seed(1)
    args = argparse.Namespace(residual=residual, encoder_layers=encoder, decoder_layers=decoder, **SIZE, **options)
    return ARCH_MODEL_REGISTRY["transformer_resid"].build_model(args, TASK)


def start(
    residual: str, encoder: int, decoder: int, autocast: bool, dtype: torch.dtype = torch.float32, **options: object
) -> tuple[float, float]:
    """The loss of a new model, and the norm of its gradient."""
    model = build(residual, encoder, decoder, **options).to(dtype).train()
    source, target = (torch.randint(4, len(WORDS), (3, 6)) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = model(source, torch.full((3,), 6), target)[0]
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    loss.backward()
    squares = [parameter.grad.double().square().sum() for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), torch.stack(squares).sum().sqrt().item()


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("encoder", "decoder"), [(24, 24), (6, 18)], ids=["24+24", "6+18"])
@pytest.mark.parametrize("residual", [name for name in STRUCTURES if name != "xskip"])
def test_a_deep_model_starts_finite(residual: str, encoder: int, decoder: int, autocast: bool) -> None:
    loss, gradient = start(residual, encoder, decoder, autocast, **NORMED.get(residual, {}))
    assert 0 < loss < float("inf") and 0 < gradient < float("inf")


@pytest.mark.parametrize(
    ("residual", "layers", "is_finite"),
    [
        *[(name, layers, layers < 36) for name in ("xskip", "linear_shortcut") for layers in (24, 36)],
        *[("dropout_shortcut", layers, layers < 12) for layers in (6, 12)],
        *[(name, 36, True) for name in ("highway", "shortcut_gate")],
    ],
)
def test_without_a_norm_a_model_is_finite_to_a_depth(residual: str, layers: int, is_finite: bool) -> None:
    """The README names these depths."""
    assert math.isfinite(start(residual, layers, layers, False)[1]) == is_finite


@pytest.mark.parametrize(("factor", "is_finite"), [(3.0, True), (4.0, False)])
def test_a_structure_without_a_norm_overflows_at_a_depth(factor: float, is_finite: bool) -> None:
    """xskip multiplies the shortcut by λ at each of the 72 sites of a 24-layer decoder: 3^72 is below fp32's limit."""
    site = connections.build("xskip", 4, skip_lambda=factor)
    x = torch.ones(1, 4)
    for _ in range(72):
        x = site(x, torch.zeros(1, 4))
    assert bool(x.isfinite().all()) == is_finite
