"""Fixtures for the tests of captions."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import captions


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A JSON file and a TSV file in the official formats. Read-only."""
    folder = tmp_path_factory.mktemp("official")
    found = captions.images()
    tsv = captions.write_tsv(folder / "features.tsv", [image["cocoid"] for image in found])
    return captions.write_json(folder / "dataset_coco.json", found), tsv


@pytest.fixture(scope="session")
def data(official: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of `official`. Read-only."""
    out = tmp_path_factory.mktemp("made") / "pets"
    assert captions.main(out, *official) == 0
    return out
