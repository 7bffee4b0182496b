"""Structures from other packages, registered by an entry point, a separate --user-dir or an import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STRUCTURE = """
from fairseq_resid.connections import Options, ResidualConnection, Structure, register
class Doubled(ResidualConnection):
    def combine(self, x, f):
        return x + 2 * f
register("doubled", Structure(Options, Doubled))
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def install(folder: Path, value: str) -> None:
    """Create a package with an entry point, as pip would install it."""
    (folder / "stranger").mkdir()
    (folder / "stranger" / "__init__.py").write_text("")
    (folder / "stranger" / "doubled.py").write_text(STRUCTURE)
    record = folder / "stranger-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[fairseq_resid.structures]\ndoubled = {value}\n")


USE = """
import torch
from fairseq_resid import connections
one = torch.ones(2, 3)
assert (connections.build("doubled", 3)(one, one) == 3).all()
assert "doubled" in connections.names() and "doubled" not in connections.own_names()
"""


@pytest.mark.once
@pytest.mark.parametrize("first", ["", "import stranger.doubled\n"], ids=["entry point", "imported before"])
def test_entry_point_registers_a_structure(first: str, tmp_path: Path) -> None:
    install(tmp_path, "stranger.doubled")
    done = run(first + USE, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.once
def test_import_registers_a_structure(tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(STRUCTURE)
    done = run("import doubled\n" + USE, tmp_path)
    assert done.returncode == 0, done.stderr


def test_separate_user_dir_trains_its_structure(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "__init__.py").write_text("import fairseq_resid.models\nfrom . import doubled\n")
    (folder / "doubled.py").write_text(STRUCTURE)
    flags = "--arch transformer_resid_tiny --residual doubled --optimizer adam --lr 0.001 --batch-size 16 --cpu"
    words = f"{flags} --max-update 2 --disable-validation --no-save --user-dir".split()
    code = f"import sys; sys.argv = {['fairseq-train', str(corpus), *words, str(folder)]!r}"
    done = run(f"{code}; from fairseq_cli.train import cli_main; cli_main()", tmp_path / "none")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "residual=doubled" in done.stdout + done.stderr and "done training" in done.stdout + done.stderr
