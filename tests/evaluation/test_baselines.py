"""`fairseq-resid baselines` on hostile text; its scores are tested with the phrasebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_resid.evaluation.baselines import main

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", ["train.en", "test.en", "test.fr"])
def test_long_line_is_refused_before_any_comparison(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Comparing two lines of two million words each would take hours."""
    for file in ("train.en", "train.fr", "test.en", "test.fr"):
        (tmp_path / file).write_text("a b\n" + "a " * 5000 + "\n")
    flags = ["--raw", str(tmp_path), "--source", "en", "--target", "fr"]
    assert main(flags) == 0
    (tmp_path / name).write_text("a b\n" + "a " * 2_000_000 + "\n")
    capsys.readouterr()
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{name}:2: 4,000,000 characters; must be at most 10,000\n") and error.count("\n") == 1
    assert main([*flags, "--json", str(tmp_path / "none" / "x.json")]) == 2
    assert "none/x.json: cannot be written: its folder does not exist" in capsys.readouterr().err
