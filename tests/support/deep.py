"""Deep and lopsided models of a structure, and their first loss and gradient."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from support.models import dictionary

WORDS = dictionary(30)
TASK = argparse.Namespace(source_dictionary=WORDS, target_dictionary=WORDS)
SIZE = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32}
SIZE |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


def build(residual: str, encoder: int, decoder: int, **options: object) -> Any:
    """Return a new model whose weights are the same in every call."""
    torch.manual_seed(1)
    args = argparse.Namespace(residual=residual, encoder_layers=encoder, decoder_layers=decoder, **SIZE, **options)
    return ARCH_MODEL_REGISTRY["transformer_resid"].build_model(args, TASK)


def start(
    residual: str, encoder: int, decoder: int, autocast: bool, dtype: torch.dtype = torch.float32, **options: object
) -> tuple[float, float]:
    """Return the loss of a new model and the norm of its gradient."""
    model = build(residual, encoder, decoder, **options).to(dtype).train()
    source, target = (torch.randint(4, len(WORDS), (3, 6)) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = model(source, torch.full((3,), 6), target)[0]
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    loss.backward()
    squares = [parameter.grad.double().square().sum() for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), torch.stack(squares).sum().sqrt().item()
