"""A trained run, its translations by fairseq-generate and its exports, which tests must not change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.export import export


@pytest.fixture(scope="session")
def run(train: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of scaled_pre_ln, trained until many of its translations differ."""
    folder = tmp_path_factory.mktemp("export") / "run"
    train(folder, "--residual", "scaled_pre_ln", "--batch-size", 64, "--max-update", 100, "--dropout", 0)
    return folder


@pytest.fixture(scope="session")
def expected(run: Path, generate: Callable[..., Any]) -> list[str]:
    """Return fairseq-generate's translations of the test set, with the settings of scripts/evaluate.sh."""
    found = generate(run / "checkpoint_last.pt", "--max-len-b", 50, "--post-process", "sentencepiece").lines("D")
    assert len({line.split("\t", 1)[1] for line in found.values()}) > 15
    return [found[number].split("\t", 1)[1] for number in range(len(found))]


@pytest.fixture(scope="session")
def exported_to(run: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that exports the run to an engine, once, and returns the folder."""

    @functools.cache
    def exported(engine: str) -> Path:
        out = tmp_path_factory.mktemp("export") / "out"
        assert export.main([str(run), "--to", engine, "--out", str(out), "--data", str(corpus)]) == 0
        return out

    return exported
