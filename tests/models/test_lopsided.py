"""Deep models, and models with more layers in one stack than in the other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid import connections
from support import deep, structures
from support.structures import spec

pytestmark = pytest.mark.once


def is_finite(start: tuple[float, float]) -> bool:
    """Return whether the loss and gradient of a new model are finite."""
    return all(0 < value < math.inf for value in start)


@pytest.mark.parametrize("name", ["rskip_ln", "xskip_ln"])
def test_deep_model_with_large_lambda_starts_with_finite_values(name: str) -> None:
    assert is_finite(deep.start(name, 24, 24, False, torch.float16, skip_lambda=8))


@pytest.mark.parametrize(("encoder", "decoder"), [(5, 1), (1, 0)])
@structures.each
def test_lopsided_model_starts_with_finite_values_and_reloads(
    name: str, encoder: int, decoder: int, tmp_path: Path
) -> None:
    options = spec(name).deep or {}
    assert is_finite(deep.start(name, encoder, decoder, False, **options))
    model = deep.build(name, encoder, decoder, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = deep.build(name, encoder, decoder, **options).eval()
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    words = torch.randint(4, 30, (2, 5), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        first, second = (one(words, torch.full((2,), 5), words)[0] for one in (model, other))
    assert torch.equal(first, second) and first.isfinite().all()


@pytest.mark.parametrize(("encoder", "decoder"), [(24, 2), (2, 24), (1, 1)])
def test_constants_of_lopsided_models_follow_the_depths(encoder: int, decoder: int) -> None:
    """The constants of a stack depend on its own depth, and those of DeepNorm's encoder on both depths."""
    layers = {"encoder": encoder, "decoder": decoder}
    sublayers = {"encoder": 2 * encoder, "decoder": 3 * decoder}

    def sites(name: str, **options: Any) -> list[tuple[str, Any]]:
        model = deep.build(name, encoder, decoder, **options)
        return [(key.split(".")[0], site) for key, site in connections.sites(model).items()]

    # Wang 2022, table 1.
    scales = {"encoder": math.exp((4 * math.log(encoder) + math.log(decoder)) / 16), "decoder": decoder**0.25}
    factors = {"encoder": (0.81, 0.87), "decoder": (3**0.25, 12**-0.25)}
    for stack, site in sites("deep_norm"):
        alpha, beta = factors[stack]
        assert (site.alpha, site.beta) == pytest.approx((alpha * scales[stack], beta / scales[stack]), rel=1e-12)
    for stack, site in sites("keel"):
        assert site.alpha == (1 if site.place.layer == 0 else sublayers[stack])
    for stack, site in sites("layer_scale"):
        assert site.branch_weight.unique().tolist() == pytest.approx([1e-5 if layers[stack] == 24 else 0.1])
    for stack, site in sites("admin", admin_start="closed"):
        n = sublayers[stack]
        assert site.skip_weight.unique().tolist() == pytest.approx([math.sqrt((n + 1) / math.log(n + 1) - 1)])
    for stack, site in sites("b2t"):
        assert site.scale == pytest.approx(1 / math.sqrt(layers[stack]))
    for stack, site in sites("mix_ln"):
        assert site.is_post == (site.place.layer < {24: 6, 2: 1, 1: 1}[layers[stack]])
    for _, site in sites("dense_former"):
        weights = None if site.layer_weights is None else site.layer_weights.tolist()
        assert weights == ([0.0] * (site.place.layer + 1) + [1.0] if site.place.last else None)
