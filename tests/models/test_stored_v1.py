"""Checkpoints of version 1.0.0 give the same outputs, and training continues from them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import stored_v1, structures

EXPECTED = stored_v1.expected()
TEXT, CAPTIONS, IMAGES = EXPECTED["text"], EXPECTED["captions"], EXPECTED["images"]
AS_CAPTIONS = ("--task", "image_captioning")
# Structures that draw random numbers in training, which another CPU may draw differently.
RANDOM = {"dropout_shortcut"}
each_text_model = structures.over("name", [name for name in TEXT if name.partition(" ")[0] in structures.NAMES])
each_image_model = pytest.mark.parametrize("name", list(IMAGES))
Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the unpacked files. Tests must not write to it."""
    return stored_v1.unpack(tmp_path_factory.mktemp("v1"))


def check_outputs(found: dict[int, list[tuple[float, str]]], expected: dict[str, tuple[str, float]]) -> None:
    for number, (text, score) in expected.items():
        assert found[int(number)][0] == (pytest.approx(score, abs=1e-5), text)


def check_log_probabilities(found: dict[int, float], expected: dict[str, float]) -> None:
    assert found == pytest.approx({int(number): log_p for number, log_p in expected.items()}, abs=1e-5)


def check_next_update(
    cli: Cli, data: Path, checkpoint: Path, out: Path, expected: dict[str, Any], tolerance: float = 1e-3
) -> None:
    """Check the step of every parameter, up to `tolerance` times the largest step of any parameter.

    A parameter that got no state, or that of another one, takes a step of another length.
    """
    steps = expected["steps"]
    found = stored_v1.one_update(cli, data, checkpoint, out, shlex.split(expected["flags"]), expected["update"])
    assert found == pytest.approx(steps, abs=tolerance * max(steps.values()))


@each_text_model
def test_translations_are_the_same(name: str, stored: Path, cli: Cli) -> None:
    found = stored_v1.translations(cli, stored / "data-bin" / "text", stored / "models" / f"{name}.pt")
    check_outputs(found, TEXT[name]["outputs"])


@each_text_model
def test_log_probabilities_are_the_same(name: str, stored: Path, cli: Cli) -> None:
    found = stored_v1.log_probabilities(cli, stored / "data-bin" / "text", stored / "models" / f"{name}.pt")
    check_log_probabilities(found, TEXT[name]["log_p"])


@pytest.mark.slow
@each_text_model
def test_next_update_uses_the_stored_optimizer_state(name: str, stored: Path, cli: Cli, tmp_path: Path) -> None:
    checkpoint = stored / "models" / f"{name}.pt"
    tolerance = 0.3 if name in RANDOM else 1e-3
    check_next_update(cli, stored / "data-bin" / "text", checkpoint, tmp_path, TEXT[name], tolerance)


def test_captions_and_their_next_update_are_the_same(stored: Path, cli: Cli, tmp_path: Path) -> None:
    data, checkpoint = stored / "data-bin" / "captions", stored / "models" / "captioning.pt"
    by_image = stored_v1.translations(cli, data, checkpoint, *AS_CAPTIONS, "--by-image", "--max-len-b", "12")
    check_outputs(by_image, CAPTIONS["outputs"])
    check_log_probabilities(stored_v1.log_probabilities(cli, data, checkpoint, *AS_CAPTIONS), CAPTIONS["log_p"])
    check_next_update(cli, data, checkpoint, tmp_path, CAPTIONS)


@each_image_model
def test_classes_of_images_are_the_same(name: str, stored: Path) -> None:
    checkpoint = stored / "checkpoints" / name / "checkpoint_last.pt"
    found = stored_v1.class_log_probabilities(stored / "data-bin" / "images", checkpoint)
    assert len(found) == len(IMAGES[name]["log_p"]) == 30
    for row, expected in zip(found, IMAGES[name]["log_p"], strict=True):
        assert row == pytest.approx(expected, abs=1e-5)


@each_image_model
def test_next_update_of_image_models_is_the_same(name: str, stored: Path, cli: Cli, tmp_path: Path) -> None:
    checkpoint = stored / "checkpoints" / name / "checkpoint_last.pt"
    check_next_update(cli, stored / "data-bin" / "images", checkpoint, tmp_path, IMAGES[name])
