"""Marks and helpers for tests of exported models, and fairseq's results for comparison.

Tests are skipped on Python 3.10 and, except in CI, without the engine.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_resid import records
from fairseq_resid.connections import sites
from fairseq_resid.export.engine import ENGINES, FORMAT, OLDEST_PYTHON, RECORD, Record, Search, Text, load
from support.models import DICT, EOS, PAD, TASK, build, dictionary, left_padded, sentences, shaken

END = torch.tensor([EOS])
SMALL = {
    **{f"{stack}_{name}": 16 for stack in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")},
    **{f"{stack}_attention_heads": 2 for stack in ("encoder", "decoder")},
    "encoder_layers": 1,
    "decoder_layers": 2,
}
# Every structure that folds, with non-default options if it has any, and its graph.
FOLDING: dict[str, tuple[dict[str, Any], str]] = {
    "post_ln": ({}, "post_norm"),
    "rskip_ln": ({"skip_lambda": 1}, "post_norm"),
    "deep_norm": ({}, "post_norm"),
    "xskip_ln": ({"skip_lambda": 3, "branch_scale": 0.5}, "post_norm"),
    "wskip_ln": ({"wskip_init": 2}, "post_norm"),
    "admin": ({"admin_start": "closed"}, "post_norm"),
    "pre_ln": ({}, "pre_norm"),
    "layer_scale": ({}, "pre_norm"),
    "scaled_pre_ln": ({}, "pre_norm"),
    "sandwich_ln": ({}, "pre_and_post_norm"),
    "peri_ln": ({}, "pre_and_post_norm"),
}
SOURCES = argparse.Namespace(source_dictionary=dictionary(70), target_dictionary=DICT)
SETTINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "unequal depth": ({"residual": "deep_norm", "encoder_layers": 3, "decoder_layers": 1}, TASK),
    "final norm after post-norm": ({"residual": "wskip_ln", "final_norm": "layer"}, TASK),
    "no final norm after pre-norm": ({"residual": "layer_scale", "final_norm": "none"}, TASK),
    "no final norm of the decoder": ({"residual": "pre_ln", "no_decoder_final_norm": True}, TASK),
    "shared embeddings": ({"residual": "xskip_ln", "share_all_embeddings": True}, TASK),
    "shared embeddings of the decoder": ({"residual": "wskip_ln", "share_decoder_input_output_embed": True}, TASK),
    "norm of the embedding": ({"residual": "deep_norm", "layernorm_embedding": True}, TASK),
    "learned positions": (
        {"residual": "wskip_ln", "encoder_learned_pos": True, "decoder_learned_pos": True},
        TASK,
    ),
    "two dictionaries": ({"residual": "xskip_ln"}, SOURCES),
    "GELU and unscaled embeddings": (
        {"residual": "deep_norm", "activation_fn": "gelu", "no_scale_embedding": True},
        TASK,
    ),
    "narrow encoder": ({"residual": "xskip_ln", "encoder_embed_dim": 32, "decoder_embed_dim": 64}, TASK),
    "different numbers of heads": ({"residual": "post_ln", "decoder_attention_heads": 2}, TASK),
}


def need(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests if an engine is not installed. If the variable CI is set, they fail instead."""
    if sys.version_info < OLDEST_PYTHON:
        return pytest.mark.skipif(True, reason="models are exported on Python 3.11 and later")
    is_missing = find_spec(ENGINES[name]) is None and not os.environ.get("CI")
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed: scripts/setup.sh --with-tests")


def exported(
    name: str, model: Any, folder: Path, task: Any = TASK, quantization: str | None = None, text: Text | None = None
) -> Any:
    """Write a model and its export.json into a folder, and return the engine."""
    folder.mkdir(exist_ok=True)
    site, longest = next(iter(sites(model).values()), None), model.max_positions()
    structure, text = ({} if site is None else site.described), text or Text("a", "b")
    record = Record(FORMAT, name, "1", "run", "last.pt", "data", structure, quantization, longest, text, Search())
    dictionaries = task.source_dictionary, task.target_dictionary
    import_module(f"fairseq_resid.export.{name}").write(model, *dictionaries, folder, record)
    records.write(folder / RECORD, record)
    return load(folder, threads=1)


def as_words(rows: list[torch.Tensor], dictionary: Any = DICT) -> list[list[str]]:
    return [[dictionary[index] for index in row.tolist()] for row in rows]


def scores(model: Any, sources: list[torch.Tensor], targets: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return fairseq's log p of every target token and of </s>, computed in one padded batch."""
    rows = [torch.cat([row, END]) for row in sources]
    previous = torch.nn.utils.rnn.pad_sequence(
        [torch.cat([END, row]) for row in targets], batch_first=True, padding_value=PAD
    )
    with torch.no_grad():
        logits = model(left_padded(rows), torch.tensor([len(row) for row in rows]), previous)[0]
    return [
        log_p[: len(row) + 1].gather(1, torch.cat([row, END])[:, None])[:, 0]
        for log_p, row in zip(logits.log_softmax(-1), targets, strict=True)
    ]


def differences(engine: Any, model: Any, task: Any = TASK) -> torch.Tensor:
    """Return the absolute differences in log p of the tokens of four sentences."""
    sources, targets = sentences(1, (3, 9, 5, 2), len(task.source_dictionary)), sentences(2, (7, 2, 4, 11))
    found = engine.score(as_words(sources, task.source_dictionary), as_words(targets))
    expected = scores(model, sources, targets)
    return torch.cat([(torch.tensor(mine) - theirs).abs() for mine, theirs in zip(found, expected, strict=True)])


def worst_difference(engine: Any, model: Any, task: Any = TASK) -> float:
    return differences(engine, model, task).max().item()


def speaking(residual: str = "deep_norm", seed: int = 1, **options: Any) -> Any:
    """Return a model with peaked distributions that ends its sentences at various lengths.

    The first channel of the decoder's output is constant, so this channel's output weights act as biases.
    <pad> has p = 0.
    """
    model = shaken(build(residual=residual, **options), seed, 0.15)
    with torch.no_grad():
        last = model.decoder.layers[-1].ffn_residual.norm
        last.weight[0], last.bias[0] = 0, 1
        rows = model.decoder.output_projection.weight
        rows *= 1.5
        rows[:, 0] = 0
        rows[PAD, 0], rows[EOS, 0] = -100, 2.5
    return model


def generated(model: Any, sources: list[torch.Tensor], search: Search, prefix: torch.Tensor | None = None) -> Any:
    """Return fairseq's hypotheses for each source: (words, score), best first."""
    generator = SequenceGenerator(
        [model],
        DICT,
        beam_size=search.beam,
        max_len_a=search.max_len_a,
        max_len_b=search.max_len_b,
        len_penalty=search.length_penalty,
    )
    rows = [torch.cat([row, END]) for row in sources]
    net_input = {"src_tokens": left_padded(rows), "src_lengths": torch.tensor([len(row) for row in rows])}
    found = generator.generate([model], {"net_input": net_input}, prefix_tokens=prefix)
    return [
        [(tuple(as_words([each["tokens"][:-1]])[0]), each["score"].item()) for each in hypotheses]
        for hypotheses in found
    ]
