"""Deep models of every structure start with finite loss and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import fairseq_resid.models  # noqa: F401  (registers the architectures)
from support import structures
from support.deep import WORDS, build, start
from support.structures import spec

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("encoder", "decoder", "autocast"), [(24, 24, False), (6, 18, True)], ids=["24+24 fp32", "6+18 bf16"]
)
@structures.over("residual", [name for name in structures.NAMES if spec(name).deep is not None])
def test_deep_model_starts_with_finite_values(residual: str, encoder: int, decoder: int, autocast: bool) -> None:
    loss, gradient = start(residual, encoder, decoder, autocast, **spec(residual).deep)
    assert 0 < loss < float("inf") and 0 < gradient < float("inf")


@pytest.mark.parametrize(
    ("residual", "layers"),
    [("xskip", 12), ("linear_shortcut", 12), ("dropout_shortcut", 4), ("highway", 36), ("shortcut_gate", 36)],
)
def test_norm_free_model_of_moderate_depth_starts_with_finite_values(residual: str, layers: int) -> None:
    assert all(map(math.isfinite, start(residual, layers, layers, False)))


def gradient_in_fp64(residual: str, layers: int, monkeypatch: pytest.MonkeyPatch, **options: object) -> float:
    """Return the gradient norm of a new model, computed so that it is the same on every machine.

    In fp32, the norm depends on the CPU. These gradients amplify rounding errors, and the backward pass of torch's
    fused attention, which computes exp(score − logsumexp), gives infinity once rounding changes the large scores by
    more than 100. Therefore everything is computed in fp64, and attention uses plain matrix products. Weights are drawn
    in fp64 and positions are learned, because random normal numbers and sinusoids in fp32 depend on the CPU as well.
    """
    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: torch.softmax(x, dim))
    torch.set_default_dtype(torch.float64)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            positions = {"encoder_learned_pos": True, "decoder_learned_pos": True}
            model = build(residual, layers, layers, **positions, **options).train()
            source, target = (torch.randint(4, len(WORDS), (3, 6)) for _ in range(2))
            logits = model(source, torch.full((3,), 6), target)[0]
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert logits.dtype == torch.float64
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt().item()


DEPTHS = (6, 12, 24, 36)
# Powers of ten of the largest gradient of a new model.
GRADIENTS: dict[tuple[str, float | None], tuple[int, ...]] = {
    ("xskip", 1): (2, 6, 10, 13),
    ("xskip", 2): (10, 19, 38, 57),
    ("linear_shortcut", None): (2, 4, 7, 10),
    ("dropout_shortcut", None): (6, 12, 21, 27),
    ("xskip", 0.5): (0, 0, 0, 0),
    ("highway", None): (0, 0, 0, 0),
    ("shortcut_gate", None): (0, 0, 0, 0),
    ("rezero", None): (0, 0, 0, 0),
}


@pytest.mark.parametrize(("residual", "weight"), GRADIENTS)
def test_gradients_without_a_norm_grow_with_depth(
    residual: str, weight: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {} if weight is None else {"skip_lambda": weight}
    for layers, power in zip(DEPTHS, GRADIENTS[residual, weight], strict=True):
        gradient = gradient_in_fp64(residual, layers, monkeypatch, **options)
        assert abs(math.log10(gradient) - power) <= 1, (layers, gradient)
