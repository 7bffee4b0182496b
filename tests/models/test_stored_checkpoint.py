"""Checkpoints that earlier versions wrote translate the same in every later version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STORED = Path(__file__).resolve().parents[1] / "stored"
EXPECTED = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
FAMILIES = ["transformer_sas", "transformer_rskip_ln"]


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
