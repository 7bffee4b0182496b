"""Deep models of every structure start with finite loss and gradients."""

from __future__ import annotations

import math

import pytest

import fairseq_resid.models  # noqa: F401  (registers the architectures)
from support import structures
from support.deep import start
from support.structures import spec

pytestmark = pytest.mark.once


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("encoder", "decoder"), [(24, 24), (6, 18)], ids=["24+24", "6+18"])
@structures.over("residual", [name for name in structures.NAMES if spec(name).deep is not None])
def test_a_deep_model_starts_finite(residual: str, encoder: int, decoder: int, autocast: bool) -> None:
    loss, gradient = start(residual, encoder, decoder, autocast, **spec(residual).deep)
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
