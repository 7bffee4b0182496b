"""Fixtures for the tests of captions."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import captions


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a JSON file and a TSV file in the official formats. Tests must not write to them."""
    folder = tmp_path_factory.mktemp("official")
    found = captions.images()
    tsv = captions.write_tsv(folder / "features.tsv", [image["cocoid"] for image in found])
    return captions.write_json(folder / "dataset_coco.json", found), tsv


@pytest.fixture(scope="session")
def data(official: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder made from `official`. Tests must not write to it."""
    out = tmp_path_factory.mktemp("made") / "pets"
    assert captions.main(out, *official) == 0
    return out


@pytest.fixture(scope="session")
def recipe(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captions.write_recipe(tmp_path_factory.mktemp("recipe") / "pets.txt", data)


@pytest.fixture(scope="session")
def trained(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two trained runs. Tests must not change them, except by evaluating them."""
    folder = tmp_path_factory.mktemp("runs")
    made = [folder / "post_ln", folder / "sas"]
    assert captions.train(recipe, made[0], "--residual", "post_ln") == 0
    assert captions.train(recipe, made[1], "--log-coefficients", arch="captioning_sas") == 0
    return made


@pytest.fixture(scope="session")
def java() -> Iterator[None]:
    """Let all evaluations share one process of METEOR, which takes seconds to start. Skip without the programs."""
    meteor = pytest.importorskip("pycocoevalcap.meteor.meteor")
    if shutil.which("java") is None:
        pytest.skip("no Java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meteor, "Meteor", functools.cache(meteor.Meteor))
        yield


@pytest.fixture(scope="session")
def runs(trained: list[Path], java: None) -> list[Path]:
    """Return the trained runs after evaluating them on `test`."""
    from fairseq_resid.__main__ import main

    assert main(["evaluate", *map(str, trained), "--subset", "test", "--cpu"]) == 0
    return trained
