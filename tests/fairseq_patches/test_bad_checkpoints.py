"""Checkpoints are read as data, without running code; damaged and unusable ones are refused, naming the file."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.fairseq_patches import UserError, reader
from fairseq_resid.models import ResidualTransformerModel


class Runs:
    """An object whose pickle runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def flip_a_bit(file: Path) -> None:
    """Change a weight, which torch alone would not notice."""
    with zipfile.ZipFile(file) as archive:
        record = max(archive.infolist(), key=lambda one: one.file_size)
    content = bytearray(file.read_bytes())
    content[record.header_offset + 30 + record.file_size // 2] ^= 64
    file.write_bytes(content)


FILES: dict[str, Callable[[Path], Any]] = {
    "cut off": lambda file: os.truncate(file, file.stat().st_size // 2),
    "a wrong bit in the weights": flip_a_bit,
    "a web page": lambda file: file.write_text("<!DOCTYPE html>\n<html><body>Not Found</body></html>\n"),
    "code in the pickle": lambda file: torch.save({"model": Runs(f"touch {file.with_name('code-has-run')}")}, file),
}


@pytest.mark.parametrize("kind", FILES)
def test_bad_checkpoint_is_refused(kind: str, sas_checkpoint: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(sas_checkpoint, tmp_path / "a.pt"))
    FILES[kind](file)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: "):
        checkpoint_utils.load_checkpoint_to_cpu(str(file))
    assert not (tmp_path / "code-has-run").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, sas_checkpoint: Path, tmp_path: Path) -> None:
    state = torch.load(sas_checkpoint, weights_only=False)
    state["model"]["encoder.layers.0.fc1.weight"].fill_(value)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"a\.pt: .* has NaN or infinite values"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "a.pt"))


def test_tied_weights_stay_tied_and_mapped_files_unchanged(sas_checkpoint: Path) -> None:
    before = sas_checkpoint.read_bytes()
    for is_mapped in (False, True):
        found = reader.read(sas_checkpoint, is_mapped=is_mapped)["model"]
        tied = found["encoder.embed_tokens.weight"], found["decoder.output_projection.weight"]
        assert tied[0].data_ptr() == tied[1].data_ptr()
        tied[0].zero_()
    assert sas_checkpoint.read_bytes() == before


def test_subwords_and_decoding_in_a_config_are_ignored(
    sas_checkpoint: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights replace initial embeddings; subword models and decoding options come from the user."""
    state = torch.load(sas_checkpoint, weights_only=False)
    state["cfg"]["model"].encoder_embed_path = str(tmp_path / "missing")
    state["cfg"]["generation"].update(replace_unk=str(tmp_path / "missing"))
    state["cfg"]["bpe"] = argparse.Namespace(_name="subword_nmt", bpe_codes=str(tmp_path / "missing"))
    file = tmp_path / "a.pt"
    torch.save(state, file)
    ResidualTransformerModel.from_pretrained(str(tmp_path), file.name, data_name_or_path=str(corpus))
    assert f"{file}: its config has bpe=" in caplog.text and "which is ignored" in caplog.text
