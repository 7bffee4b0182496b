"""The captioning model with every structure as TorchScript."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.captioning_models import build, captions, images, logits
from support.models import close
from support.structures import each_variant


@pytest.mark.slow
@each_variant
def test_scripted_model_equals_eager(name: str, options: dict[str, Any]) -> None:
    model = build(residual=name, **options, encoder_layers=1, decoder_layers=1)
    scripted = torch.jit.script(model)
    for lengths in ((3, 5, 2), (4, 4), (6,)):
        inputs = (*images(lengths), captions(len(lengths)))
        close(logits(scripted, *inputs), logits(model, *inputs))
