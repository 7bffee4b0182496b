"""Checkpoints written once (stored/make_stored_checkpoint.py) translate the same in every later version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

STORED = Path(__file__).resolve().parents[1] / "stored"
EXPECTED = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
FAMILIES = ["transformer_sas", "transformer_rskip_ln"]


def test_stored_files_are_small_and_not_trivial() -> None:
    assert set(EXPECTED["translations"]) == set(FAMILIES)
    for family, translations in EXPECTED["translations"].items():
        assert (STORED / f"{family}.pt").stat().st_size < 150_000
        hypotheses = {item["hypothesis"] for item in translations}
        assert len(translations) == 12 and len(hypotheses) == 12
        assert all(len(set(text.split())) > 4 for text in hypotheses)  # not one word repeated forever
    assert len((STORED / "dict.en.txt").read_text().splitlines()) < 100


@pytest.mark.parametrize("batch_size", [12, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_stored_checkpoints_translate_the_same(
    family: str, batch_size: int, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    for language in ("en", "xx"):
        shutil.copyfile(STORED / f"dict.{language}.txt", tmp_path / f"dict.{language}.txt")
    expected = EXPECTED["translations"][family]
    typed = "".join(item["source"] + "\n" for item in expected)
    flags = f"--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 8 --buffer-size 12 --batch-size {batch_size}".split()
    languages = ["--source-lang", "en", "--target-lang", "xx"]
    done = cli("fairseq-interactive", tmp_path, "--path", STORED / f"{family}.pt", *flags, *languages, stdin=typed)
    assert sorted(done.hypotheses) == list(range(len(expected)))
    for number, item in enumerate(expected):
        score, text = done.hypotheses[number]
        assert text == item["hypothesis"]
        assert score == pytest.approx(item["score"], abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_stored_parameters_keep_names_and_shapes(family: str) -> None:
    """The names are frozen: the code may map the names in old files, but new files must keep the current names."""
    state = torch.load(STORED / f"{family}.pt", weights_only=False)
    names = {name for name in state["model"] if "_residual." in name}
    sites = [f"{stack}.layers.0.{site}_residual" for stack in ("encoder", "decoder") for site in ("self_attn", "ffn")]
    sites.append("decoder.layers.0.encoder_attn_residual")
    parts = {
        "transformer_sas": ["norm.weight", "norm.bias"],
        "transformer_rskip_ln": ["norm.weight", "norm.bias"],
    }[family]
    assert {f"{site}.{part}" for site in sites for part in parts} <= names
    assert state["last_optimizer_state"] is None
