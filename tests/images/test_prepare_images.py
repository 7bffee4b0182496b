"""Data folders made from releases and from folders by class, compared pixel by pixel."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fairseq_resid.data.images import by_class, manifest
from fairseq_resid.data.images import prepare_images as prepare
from support import mirror
from support.image_folders import CIFAR10, RELEASES, error_of, main, record_of, release, stored
from support.preparing import content

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def read_png(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image).transpose(2, 0, 1)


@pytest.mark.parametrize("name", RELEASES)
def test_release_is_stored_pixel_by_pixel(name: str, tmp_path: Path, capsys: Capture) -> None:
    known, archive = RELEASES[name], release(tmp_path / "raw", name)
    out = tmp_path / "data"
    assert main(name, out, "--raw", archive, "--allow-other-data", "--valid", 4) == 0
    labels, pixels = [], []
    inside = mirror.cifar_members(name)
    for part in ("train", "test"):
        for member in known.members[part]:
            raw = inside[member]
            assert isinstance(raw, bytes)
            size = len(known.labels) + 3072
            for start in range(0, len(raw), size):
                labels.append(raw[start + size - 3073])  # the byte before the pixels; the fine label in CIFAR-100
                pixels.append(raw[start + size - 3072 : start + size])
    sizes = {"train": 26, "valid": 4, "test": 10}
    place = 0
    for split, size in sizes.items():
        found = stored(out, split)
        assert found[0].tolist() == labels[place : place + size]
        assert [image.tobytes() for image in found[1]] == pixels[place : place + size]
        place += size
    record = record_of(out)
    assert record["counts"] == sizes and record["classes"] == list(known.classes) and record["source"] == "release"
    assert record["sizes"] == {f"{split}.npy": (out / f"{split}.npy").stat().st_size for split in sizes}
    assert record["checksums"] == content(out, "images.json")
    assert record["read"] == {archive.name: hashlib.sha256(archive.read_bytes()).hexdigest()}
    wrong, *counted = record["differences"]
    assert wrong.startswith(f"{archive.name}: wrong md5 checksum: ") and record["unverified"] == []
    assert counted == [
        "train has 30 images; expected 50,000",
        "test has 10 images; expected 10,000",
    ]
    assert f"not as released: {wrong}\n" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "data"}


def test_mean_and_deviation_come_from_training_images(tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert main("cifar10", out, "--raw", release(tmp_path / "raw"), "--allow-other-data", "--valid", 5) == 0
    pixels = stored(out, "train")[1].astype(np.float64) / 255
    record = record_of(out)
    np.testing.assert_allclose(record["mean"], pixels.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(record["deviation"], pixels.std((0, 2, 3)), rtol=1e-13)
    assert record["mean"][0] < 0.25 < record["mean"][1] < 0.45 < record["mean"][2]


def test_moments_are_exact_beyond_float32_sums() -> None:
    histogram = np.zeros((2, 256), np.int64)
    histogram[0, [10, 250]] = 3 * 10**10, 10**10
    histogram[1, [0, 255]] = 10**10 - 1, 10**10 + 1
    mean, deviation = prepare.moments(histogram)
    assert mean == pytest.approx([70 / 255, 0.5], rel=1e-9) and mean[1] > 0.5
    assert deviation == pytest.approx([240 * (3 / 16) ** 0.5 / 255, 0.5], rel=1e-12)


def test_release_with_matching_checksum_has_no_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are the same whether the archive comes from a mirror, from disk or from earlier downloads."""
    archive = release(tmp_path / "host")
    known = yaml.safe_load((manifest.MANIFESTS / "cifar10.yaml").read_text())
    known["file"]["md5"] = hashlib.md5(archive.read_bytes()).hexdigest()
    known |= {"counts": {"train": 30, "test": 10}, "valid": 5}
    (tmp_path / "cifar10.yaml").write_text(yaml.safe_dump(known))
    monkeypatch.setattr(manifest, "MANIFESTS", tmp_path)
    host = ["--mirror", archive.parent.as_uri()]
    assert main("cifar10", tmp_path / "data", *host) == 0
    record = record_of(tmp_path / "data")
    assert record["differences"] == record["unverified"] == []
    assert record["counts"] == {"train": 25, "valid": 5, "test": 10}
    copied = tmp_path / "renamed.tar.gz"
    archive.rename(copied)
    for raw in ([], ["--raw", copied], ["--raw", tmp_path / "downloads"]):
        out = tmp_path / f"data{len(str(raw))}"
        assert main("cifar10", out, *raw) == 0
        assert content(out, "images.json") == content(tmp_path / "data", "images.json")
        assert record_of(out)["differences"] == []


def test_folder_is_stored_pixel_by_pixel(by_classes: Path, made: Path) -> None:
    """Images are sorted by class and name, and the last images of each class are held out."""
    record = record_of(made)
    assert record["classes"] == ["cat", "dog", "emu"] and record["name"] == "animals"
    assert record["counts"] == {"train": 12, "valid": 3, "test": 6} and record["source"] == "folder"
    assert record["differences"] == record["unverified"] == [] and record["shape"] == [3, 32, 32]
    for split, part, kept in (("train", "train", range(4)), ("valid", "train", [4]), ("test", "test", range(2))):
        labels, pixels = stored(made, split)
        expected = [(label, number) for label in range(3) for number in kept]
        assert labels.tolist() == [label for label, _ in expected]
        for (label, number), image in zip(expected, pixels, strict=True):
            path = by_classes / part / record["classes"][label] / f"{number:04}.png"
            np.testing.assert_array_equal(image, read_png(path))


def test_number_of_workers_does_not_change_images(
    by_classes: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_class, "CHUNK_IMAGES", 4)
    out = tmp_path / "animals"
    assert main("custom", out, "--raw", by_classes, "--valid", 3, "--workers", 2) == 0
    assert content(out) == content(made)


@pytest.mark.parametrize("name", ["raw.tar.xz", "raw.zip"])
def test_archive_of_a_folder_gives_same_data(name: str, by_classes: Path, made: Path, tmp_path: Path) -> None:
    files = sorted(file for file in by_classes.rglob("*") if file.is_file())
    random.Random(1).shuffle(files)
    mirror.archive(tmp_path / name, {str(file.relative_to(by_classes)): file.read_bytes() for file in files})
    assert main("custom", tmp_path / "animals", "--raw", tmp_path / name, "--valid", 3) == 0
    assert content(tmp_path / "animals", "images.json") == content(made, "images.json")
    assert main("custom", tmp_path / "animals", "--raw", tmp_path / name, "--valid", 3) == 0
    assert {path.name for path in tmp_path.iterdir()} == {name, "animals"}


def test_cifar10_from_image_files_is_not_the_release(tmp_path: Path, capsys: Capture) -> None:
    raw = mirror.images(tmp_path / "raw", CIFAR10.classes, 3, 1)
    assert error_of(capsys, "cifar10", tmp_path / "data", "--raw", raw) == (
        "not the images of cifar10: train has 30 images; expected 50,000; "
        "test has 10 images; expected 10,000 (use --allow-other-data to accept this)"
    )
    assert main("cifar10", tmp_path / "data", "--raw", raw, "--allow-other-data", "--valid", 10) == 0
    record = record_of(tmp_path / "data")
    assert record["differences"][0] == "read from image files, not from the release" and len(record["differences"]) == 3
    assert record["unverified"] == ["train", "test"] and record["classes"] == list(CIFAR10.classes)
    assert stored(tmp_path / "data", "valid")[0].tolist() == list(range(10))
    said = capsys.readouterr().out
    assert "train: 20 images, 2 per class\nvalid: 10 images, 1 per class\n" in said
    assert "not verified (no known checksum): train, test\n" in said


@pytest.mark.parametrize("mode, suffix", [("L", "png"), ("P", "gif"), ("RGBA", "png")])
def test_every_image_becomes_rgb(mode: str, suffix: str, tmp_path: Path) -> None:
    raw = mirror.images(tmp_path / "raw", ("cat", "dog", "emu"))
    path = raw / "train" / "cat" / "0000.png"
    image = Image.open(path).convert(mode)
    path.unlink()
    image.save(path.with_suffix(f".{suffix}"))
    assert main("custom", tmp_path / "data", "--raw", raw) == 0
    expected = np.array(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(stored(tmp_path / "data", "train")[1][0], expected)


def test_jpeg_images_of_another_shape_are_accepted(tmp_path: Path) -> None:
    raw = mirror.images(tmp_path / "raw", ("cat", "dog", "emu"))
    decoded = {}
    for path in sorted(raw.rglob("*.png")):
        jpeg = path.with_suffix(".JPG")
        Image.open(path).resize((20, 12)).save(jpeg, "JPEG")
        path.unlink()
        decoded[jpeg] = np.array(Image.open(jpeg)).transpose(2, 0, 1)
    assert main("custom", tmp_path / "data", "--raw", raw, "--valid", 1) == 0
    assert record_of(tmp_path / "data")["shape"] == [3, 12, 20]
    first = [image for path, image in decoded.items() if "train" in path.parts][:5]
    np.testing.assert_array_equal(stored(tmp_path / "data", "train")[1][:5], first)


def test_hold_out_is_proportional_to_class_sizes() -> None:
    choose = random.Random(2)
    for _ in range(200):
        counts = [choose.randint(1, 40) for _ in range(choose.randint(1, 12))]
        labels, total = np.repeat(np.arange(len(counts)), counts), sum(counts)
        held = choose.randint(1, total)
        try:
            mask = prepare.hold_out(labels, held, True, [str(label) for label in range(len(counts))])
        except ValueError as error:
            assert "--valid" in str(error)
            continue
        assert mask.sum() == held
        for label, count in enumerate(counts):
            mine = mask[labels == label]
            assert abs(mine.sum() - held * count / total) < 1 and not mine[: count - mine.sum()].any()
        assert np.flatnonzero(prepare.hold_out(labels, held, False, [])).tolist() == list(range(total - held, total))


def test_custom_folder_holds_out_a_tenth_by_default(tmp_path: Path) -> None:
    raw = mirror.images(tmp_path / "raw", ("a", "b"), 15, 1)
    assert main("custom", tmp_path / "data", "--raw", raw) == 0
    assert record_of(tmp_path / "data")["counts"] == {"train": 27, "valid": 3, "test": 2}
