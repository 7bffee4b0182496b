"""The benchmarks run: at a size that says nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mirror

ROOT = Path(__file__).resolve().parent.parent


def test_data_prep(tmp_path: Path) -> None:
    for side, text in zip(("en", "de"), mirror.sides(mirror.pairs(300, ("en", "de"))), strict=True):
        (tmp_path / f"text.{side}").write_text(text)
    flags = ["--text", tmp_path / "text", "--source", "en", "--target", "de", "--rounds", 1, "--only", "extract"]
    command = [sys.executable, ROOT / "benchmarks" / "data_prep.py", *flags, "--json", tmp_path / "out.json"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["pairs"] == 300 and set(found["steps"]) == {"extract: ours", "extract: tar"}
    assert all(row["pairs_per_second"] > 0 for row in found["steps"].values())
