"""prepare-images with existing output: finished, different, damaged, interrupted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data.images import by_class
from support.image_folders import error_of, main
from support.preparing import content

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def test_finished_preparation_is_not_repeated(by_classes: Path, made: Path, tmp_path: Path, capsys: Capture) -> None:
    out = shutil.copytree(made, tmp_path / "animals")
    before = content(out)
    work = tmp_path / "animals.partial"
    work.mkdir()
    (work / "preparing.json").write_text("{}")  # from a run that was killed at its very end
    for flags, checked in (([], "sizes"), (["--verify"], "checksums")):
        assert main("custom", out, "--raw", by_classes, "--valid", 3, *flags) == 0
        assert capsys.readouterr().out == f"{out}: already contains these images ({checked} verified)\n"
    assert content(out) == before and {path.name for path in tmp_path.iterdir()} == {"animals"}


def test_changed_images_of_the_same_size_are_different_images(
    by_classes: Path, made: Path, tmp_path: Path, capsys: Capture
) -> None:
    out, raw = tmp_path / "animals", tmp_path / "raw"
    shutil.copytree(made, out)
    shutil.copytree(by_classes, raw)
    file = raw / "train" / "cat" / "0000.png"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "different images (not made from raw)" in error_of(capsys, "custom", out, "--raw", raw, "--valid", 3)
    # Version 0.6 recorded only names and sizes.
    record = json.loads((out / "images.json").read_text())
    folder = by_class.find(by_classes, str(by_classes))
    record["read"] = {by_classes.name: folder.sha256(lambda path: path.stat().st_size)}
    (out / "images.json").write_text(json.dumps(record))
    assert main("custom", out, "--raw", by_classes, "--valid", 3) == 0


def test_damaged_image_data_is_detected(by_classes: Path, made: Path, tmp_path: Path, capsys: Capture) -> None:
    out = shutil.copytree(made, tmp_path / "animals")
    raw = bytearray((out / "train.npy").read_bytes())
    raw[-5] ^= 1
    (out / "train.npy").write_bytes(raw)
    flags = ["--raw", by_classes, "--valid", 3]
    assert main("custom", out, *flags) == 0
    assert "train.npy does not have the checksum recorded in images.json" in error_of(
        capsys, "custom", out, *flags, "--verify"
    )
    (out / "train.npy").write_bytes(raw[:-5])
    (out / "test.npy").unlink()
    said = error_of(capsys, "custom", out, *flags)
    assert "train.npy has" in said and "test.npy is missing" in said


def test_different_settings_are_refused(by_classes: Path, made: Path, tmp_path: Path, capsys: Capture) -> None:
    out = shutil.copytree(made, tmp_path / "animals")
    other = f"{out}: contains different images ("
    for name, flags, said in (
        ("custom", ["--raw", by_classes], "valid is 3, not None)"),
        ("cifar10", ["--mirror", "http://nowhere"], "name is custom, not cifar10, valid is 3, not 5000)"),
    ):
        assert error_of(capsys, name, out, *flags).startswith(f"{other}{said}")


def test_interrupted_preparation_gives_same_result_when_repeated(
    by_classes: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    out, flags = tmp_path / "animals", ["--raw", by_classes, "--valid", 3, "--workers", 2]
    with monkeypatch.context() as patch:
        patch.setattr("fairseq_resid.data.recorded.sha256", interrupt)
        assert main("custom", out, *flags) == 130
    assert list(tmp_path.iterdir()) == []
    # A killed process leaves its temporary files behind.
    for name in ("data/train.npy", "data/more", "raw/train/cat/0000.png", ".lock", "preparing.json"):
        (tmp_path / "animals.partial" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "animals.partial" / name).write_text("half of")
    assert main("custom", out, *flags) == 0
    assert content(out) == content(made) and list(tmp_path.iterdir()) == [out]
