"""Fixtures for the tests of images. Those for models import fairseq themselves; the others do not need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import image_folders, mirror


@pytest.fixture(scope="session")
def by_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images by class. Read-only."""
    return mirror.images(tmp_path_factory.mktemp("images") / "raw", ("cat", "dog", "emu"))


@pytest.fixture(scope="session")
def made(by_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of `by_classes`. Read-only."""
    out = tmp_path_factory.mktemp("made") / "animals"
    assert image_folders.main("custom", out, "--raw", by_classes, "--valid", 3) == 0
    return out


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.image_models import write_data

    return write_data(tmp_path_factory.mktemp("images") / "farm")


@pytest.fixture(scope="session")
def recipe(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.image_models import FLAGS

    file = tmp_path_factory.mktemp("recipe") / "farm.txt"
    file.write_text(f"{data}\n{FLAGS}\n")
    return file


@pytest.fixture(scope="session")
def runs(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two trained and evaluated runs; sas uses a different number of workers."""
    from fairseq_resid.__main__ import main
    from support.image_models import train

    folder = tmp_path_factory.mktemp("runs")
    made = [folder / "xskip", folder / "sas"]
    assert train(recipe, made[0], "--residual", "xskip") == 0
    assert train(recipe, made[1], "--residual", "sas", "--log-coefficients") == 0
    assert main(["evaluate", *map(str, made), "--cpu"]) == 0
    return made
