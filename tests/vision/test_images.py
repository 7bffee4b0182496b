"""Images from releases and from folders by class to a data folder: every pixel, or one line that says what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from fairseq_resid.folders import images as image_folder
from fairseq_resid.vision import by_class, manifest, prepare
from support import mirror

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
CIFAR10, CIFAR100 = manifest.read("cifar10"), manifest.read("cifar100")
RELEASES = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def main(name: str, out: Path, *flags: object) -> int:
    given = ["--out", out, "--downloads", out.parent / "downloads", *flags]
    if "--workers" not in flags:
        given += ["--workers", 1]
    return prepare.main([name, *map(str, given)])


def error_of(capsys: Capture, name: str, out: Path, *flags: object) -> str:
    """Return the one line that a run that fails ends with; nothing of it is left."""
    capsys.readouterr()
    try:
        code = main(name, out, *flags)
    except SystemExit as end:  # argparse's
        code = int(end.code or 0)
    assert code == 2
    said = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "\n".join(said) and not list(out.parent.glob("*.partial"))
    return said[-1].removeprefix("fairseq-resid prepare-images: error: ")


def told(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "images.json").read_text())
    return found


def stored(data: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and pixels of a split."""
    images = image_folder.open_split(data, split, image_folder.read(data))
    return np.array(images["label"]), np.array(images["pixels"])


def content(data: Path, without: str = "") -> dict[str, str]:
    files = sorted(file for file in data.iterdir() if file.name != without)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def release(folder: Path, name: str = "cifar10", **changed: str | bytes | None) -> Path:
    """Write a small release; `changed` are the ends of its members' names, with `_` for the dot."""
    inside = mirror.cifar_members(name)
    for end, data in changed.items():
        (member,) = [member for member in inside if member.replace(".", "_").endswith(end)]
        del inside[member]
        if data is not None:
            inside[member] = data
    return mirror.cifar(folder, name, inside)


def read_png(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def by_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images by class. Not to be written to."""
    return mirror.images(tmp_path_factory.mktemp("images") / "raw", ("cat", "dog", "emu"))


@pytest.fixture(scope="module")
def made(by_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of `by_classes`. Not to be written to."""
    out = tmp_path_factory.mktemp("made") / "animals"
    assert main("custom", out, "--raw", by_classes, "--valid", 3) == 0
    return out


# ------------------------------------------------------------------------------------------------ what comes out


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_pixel_by_pixel(name: str, tmp_path: Path, capsys: Capture) -> None:
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
                labels.append(raw[start + size - 3073])  # the byte before the pixels: of CIFAR-100 the fine label
                pixels.append(raw[start + size - 3072 : start + size])
    sizes = {"train": 26, "valid": 4, "test": 10}
    place = 0
    for split, size in sizes.items():
        found = stored(out, split)
        assert found[0].tolist() == labels[place : place + size]
        assert [image.tobytes() for image in found[1]] == pixels[place : place + size]
        place += size
    record = told(out)
    assert record["counts"] == sizes and record["classes"] == list(known.classes) and record["source"] == "release"
    assert record["sizes"] == {f"{split}.npy": (out / f"{split}.npy").stat().st_size for split in sizes}
    assert record["checksums"] == content(out, "images.json")
    assert record["read"] == {archive.name: hashlib.sha256(archive.read_bytes()).hexdigest()}
    wrong, *counted = record["differences"]
    assert wrong.startswith(f"{archive.name}: wrong md5 checksum: ") and record["unverified"] == []
    assert counted == [
        "train has 30 images, and 50,000 are expected",
        "test has 10 images, and 10,000 are expected",
    ]
    assert f"not as released: {wrong}\n" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "data"}


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path: Path) -> None:
    out = tmp_path / "data"
    assert main("cifar10", out, "--raw", release(tmp_path / "raw"), "--allow-other-data", "--valid", 5) == 0
    pixels = stored(out, "train")[1].astype(np.float64) / 255
    record = told(out)
    np.testing.assert_allclose(record["mean"], pixels.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(record["deviation"], pixels.std((0, 2, 3)), rtol=1e-13)
    assert record["mean"][0] < 0.25 < record["mean"][1] < 0.45 < record["mean"][2]


def test_moments_of_so_many_images_that_float32_sums_would_stop_growing() -> None:
    histogram = np.zeros((2, 256), np.int64)
    histogram[0, [10, 250]] = 3 * 10**10, 10**10
    histogram[1, [0, 255]] = 10**10 - 1, 10**10 + 1
    mean, deviation = prepare.moments(histogram)
    assert mean == pytest.approx([70 / 255, 0.5], rel=1e-9) and mean[1] > 0.5
    assert deviation == pytest.approx([240 * (3 / 16) ** 0.5 / 255, 0.5], rel=1e-12)


def test_a_release_that_its_checksum_vouches_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a mirror, from disk, from earlier downloads: nothing differs."""
    archive = release(tmp_path / "host")
    known = yaml.safe_load((manifest.MANIFESTS / "cifar10.yaml").read_text())
    known["file"]["md5"] = hashlib.md5(archive.read_bytes()).hexdigest()
    known |= {"counts": {"train": 30, "test": 10}, "valid": 5}
    (tmp_path / "cifar10.yaml").write_text(yaml.safe_dump(known))
    monkeypatch.setattr(manifest, "MANIFESTS", tmp_path)
    host = ["--mirror", archive.parent.as_uri()]
    assert main("cifar10", tmp_path / "data", *host) == 0
    record = told(tmp_path / "data")
    assert record["differences"] == record["unverified"] == []
    assert record["counts"] == {"train": 25, "valid": 5, "test": 10}
    copied = tmp_path / "renamed.tar.gz"
    archive.rename(copied)
    for raw in ([], ["--raw", copied], ["--raw", tmp_path / "downloads"]):
        out = tmp_path / f"data{len(str(raw))}"
        assert main("cifar10", out, *raw) == 0
        assert content(out, "images.json") == content(tmp_path / "data", "images.json")
        assert told(out)["differences"] == []


def test_a_folder_pixel_by_pixel(by_classes: Path, made: Path) -> None:
    """In the order of classes and names; the last of each class are held out."""
    record = told(made)
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


@pytest.mark.parametrize("chunk", [1, 4, 250])
def test_any_number_of_workers_makes_the_same(
    chunk: int, by_classes: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_class, "CHUNK_IMAGES", chunk)
    out = tmp_path / "animals"
    assert main("custom", out, "--raw", by_classes, "--valid", 3, "--workers", 2) == 0
    assert content(out) == content(made)


@pytest.mark.parametrize("name", ["raw.tar.xz", "raw.tar.gz", "raw.tar", "raw.zip"])
def test_an_archive_of_a_folder(name: str, by_classes: Path, made: Path, tmp_path: Path) -> None:
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
        "not the images of cifar10: train has 30 images, and 50,000 are expected; "
        "test has 10 images, and 10,000 are expected (--allow-other-data accepts this)"
    )
    assert main("cifar10", tmp_path / "data", "--raw", raw, "--allow-other-data", "--valid", 10) == 0
    record = told(tmp_path / "data")
    assert record["differences"][0] == "read from image files, not from the release" and len(record["differences"]) == 3
    assert record["unverified"] == ["train", "test"] and record["classes"] == list(CIFAR10.classes)
    assert stored(tmp_path / "data", "valid")[0].tolist() == list(range(10))
    said = capsys.readouterr().out
    assert "train: 20 images, 2 of every class\nvalid: 10 images, 1 of every class\n" in said
    assert "not verified, because no checksum of them is known: train, test\n" in said


@pytest.mark.parametrize("mode, suffix", [("RGB", "bmp"), ("L", "png"), ("1", "png"), ("P", "gif"), ("RGBA", "png")])
def test_every_image_becomes_rgb(mode: str, suffix: str, tmp_path: Path) -> None:
    raw = mirror.images(tmp_path / "raw", ("cat", "dog", "emu"))
    path = raw / "train" / "cat" / "0000.png"
    image = Image.open(path).convert(mode)
    path.unlink()
    image.save(path.with_suffix(f".{suffix}"))
    assert main("custom", tmp_path / "data", "--raw", raw) == 0
    expected = np.array(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(stored(tmp_path / "data", "train")[1][0], expected)


def test_jpeg_images_of_another_shape(tmp_path: Path) -> None:
    raw = mirror.images(tmp_path / "raw", ("cat", "dog", "emu"))
    decoded = {}
    for path in sorted(raw.rglob("*.png")):
        jpeg = path.with_suffix(".JPG")
        Image.open(path).resize((20, 12)).save(jpeg, "JPEG")
        path.unlink()
        decoded[jpeg] = np.array(Image.open(jpeg)).transpose(2, 0, 1)
    assert main("custom", tmp_path / "data", "--raw", raw, "--valid", 1) == 0
    assert told(tmp_path / "data")["shape"] == [3, 12, 20]
    first = [image for path, image in decoded.items() if "train" in path.parts][:5]
    np.testing.assert_array_equal(stored(tmp_path / "data", "train")[1][:5], first)


def test_uneven_classes_are_held_out_in_proportion(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    raw = tmp_path / "raw"
    shutil.copytree(by_classes, raw)
    for number in (3, 4):
        (raw / "train" / "dog" / f"{number:04}.png").unlink()
    shutil.rmtree(raw / "test" / "emu")  # a class need not be tested
    assert main("custom", tmp_path / "data", "--raw", raw, "--valid", 5) == 0
    assert told(tmp_path / "data")["counts"] == {"train": 8, "valid": 5, "test": 4}
    assert stored(tmp_path / "data", "valid")[0].tolist() == [0, 1, 1, 2, 2]
    said = capsys.readouterr().out
    assert "train: 8 images, 1 (dog) to 4 (cat) of a class\n" in said
    assert "test: 4 images, 0 (emu) to 2 (cat) of a class\n" in said


def test_holding_out() -> None:
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


def test_the_default_of_a_folder_of_ones_own_is_a_tenth(tmp_path: Path) -> None:
    raw = mirror.images(tmp_path / "raw", ("a", "b"), 15, 1)
    assert main("custom", tmp_path / "data", "--raw", raw) == 0
    assert told(tmp_path / "data")["counts"] == {"train": 27, "valid": 3, "test": 2}


def test_a_link_within_the_folder_is_followed(by_classes: Path, made: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    shutil.copytree(by_classes, raw)
    path = raw / "train" / "cat" / "0001.png"
    path.rename(raw / "kept.png")
    path.symlink_to("../../kept.png")
    (tmp_path / "link").symlink_to(raw)
    assert main("custom", tmp_path / "animals", "--raw", tmp_path / "link", "--valid", 3) == 0
    assert content(tmp_path / "animals", "images.json") == content(made, "images.json")


# ------------------------------------------------------------------------------------------------ run again


def test_again_it_does_nothing(by_classes: Path, made: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "animals"
    shutil.copytree(made, out)
    before = content(out)
    (tmp_path / "animals.partial" / "raw").mkdir(parents=True)  # of a run that was killed at its very end
    for flags, checked in (([], "sizes"), (["--verify"], "checksums")):
        assert main("custom", out, "--raw", by_classes, "--valid", 3, *flags) == 0
        assert capsys.readouterr().out == f"{out}: holds these images already (its {checked} are right)\n"
    assert content(out) == before and {path.name for path in tmp_path.iterdir()} == {"animals"}


def test_other_settings_are_refused(by_classes: Path, made: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "animals"
    shutil.copytree(made, out)

    def said(name: str, *flags: object) -> str:
        return error_of(capsys, name, out, *flags)

    other = f"{out}: holds other images ("
    assert said("custom", "--raw", by_classes) == f"{other}valid is 3, not None); choose another folder"
    cifar = ["--mirror", "http://nowhere"]
    assert said("cifar10", *cifar) == (
        f"{other}name is custom, not cifar10, valid is 3, not 5000); choose another folder"
    )
    raw = tmp_path / "raw"
    shutil.copytree(by_classes, raw)
    (raw / "train" / "cat" / "0000.png").rename(raw / "train" / "cat" / "0009.png")
    assert said("custom", "--raw", raw, "--valid", 3) == f"{other}not made from raw); choose another folder"
    (out / "images.json").write_text("{}")
    expected = f"{out}: exists and holds no images.json that this version can read; remove it or choose another folder"
    assert said("custom", "--raw", by_classes, "--valid", 3) == expected


def test_a_damaged_data_folder_is_found(by_classes: Path, made: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "animals"
    shutil.copytree(made, out)
    raw = bytearray((out / "train.npy").read_bytes())
    raw[-5] ^= 1
    (out / "train.npy").write_bytes(raw)
    flags = ["--raw", by_classes, "--valid", 3]
    assert main("custom", out, *flags) == 0
    assert "train.npy has another checksum than images.json says" in error_of(capsys, "custom", out, *flags, "--verify")
    (out / "train.npy").write_bytes(raw[:-5])
    (out / "test.npy").unlink()
    said = error_of(capsys, "custom", out, *flags)
    assert "train.npy has" in said and "test.npy is missing" in said


@pytest.mark.parametrize("stop", ["os.replace", "image_folder.begin", "sha256"])
def test_interrupted_the_next_run_makes_the_same(
    stop: str, by_classes: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    out, flags = tmp_path / "animals", ["--raw", by_classes, "--valid", 3, "--workers", 2]
    with monkeypatch.context() as patch:
        patch.setattr(f"fairseq_resid.vision.prepare.{stop}", interrupt)
        assert main("custom", out, *flags) == 130
    assert capsys.readouterr().err.endswith("interrupted; the same command begins again, and a download goes on\n")
    assert list(tmp_path.iterdir()) == []
    # Killed: nothing was cleared away.
    for name in ("data/train.npy", "data/more", "raw/train/cat/0000.png", ".lock"):
        (tmp_path / "animals.partial" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "animals.partial" / name).write_text("half of")
    assert main("custom", out, *flags) == 0
    assert content(out) == content(made) and list(tmp_path.iterdir()) == [out]


def test_a_working_folder_of_something_else_is_left_alone(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    work = tmp_path / "animals.partial"
    work.mkdir()
    (work / "text.json").write_text("{}")
    assert main("custom", tmp_path / "animals", "--raw", by_classes) == 2
    assert f"{work}: holds text.json and is none of ours; remove it" in capsys.readouterr().err
    assert (work / "text.json").read_text() == "{}"


# ------------------------------------------------------------------------------------------------ bad releases

TRAIN = CIFAR10.members["train"][1]
IMAGE = bytes([3]) + bytes(3072)


@pytest.mark.parametrize(
    "changed, said",
    [
        (
            {"data_batch_2_bin": IMAGE * 2 + IMAGE[:-1]},
            f"{TRAIN} has 9,218 bytes, and images of 3,073 bytes are expected",
        ),
        ({"data_batch_2_bin": b""}, f"{TRAIN} has 0 bytes, and images of 3,073 bytes are expected; is it whole?"),
        ({"data_batch_2_bin": None}, f"has no member {TRAIN}; it has "),
        (
            {"data_batch_2_bin": IMAGE * 2 + b"\x0a" + IMAGE[1:]},
            f"{TRAIN}: image 3 has the label 10, and the labels of cifar10 are 0 to 9",
        ),
        ({"meta_txt": "airplane\nship\n"}, f"{CIFAR10.names} does not name the classes of cifar10"),
    ],
)
def test_a_release_with_other_members(changed: dict[str, Any], said: str, tmp_path: Path, capsys: Capture) -> None:
    archive = release(tmp_path / "raw", **changed)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive, "--allow-other-data")
    assert found.startswith(str(archive)) and said in found


def web_page(archive: Path) -> None:
    archive.write_text("<!DOCTYPE html><html>Log in</html>")


def cut_off(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-1000])


def flipped(archive: Path) -> None:
    raw = bytearray(archive.read_bytes())
    raw[len(raw) // 2] ^= 4
    archive.write_bytes(raw)


@pytest.mark.parametrize(
    "damage, said",
    [(web_page, "is a web page, not an archive"), (cut_off, "damaged or cut off"), (flipped, "damaged or cut off")],
)
def test_a_damaged_release(damage: Callable[[Path], None], said: str, tmp_path: Path, capsys: Capture) -> None:
    archive = release(tmp_path / "raw")
    damage(archive)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"not the released file (--allow-other-data accepts it): {archive}: wrong md5 checksum: ")
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive.parent, "--allow-other-data")
    assert found.startswith(f"{archive}: {said}") and found.endswith("replace it with a whole file")
    if damage is not web_page:
        host = ["--mirror", archive.parent.as_uri()]
        assert error_of(capsys, "cifar10", tmp_path / "data", *host).endswith("--raw DIR or --mirror URL can help")
        found = error_of(capsys, "cifar10", tmp_path / "data", *host, "--allow-other-data")
        assert found.endswith("it was removed, and the same command downloads it again")
        assert not (tmp_path / "downloads" / archive.name).exists()


def test_another_number_of_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Also in an archive whose checksum is right."""
    archive = release(tmp_path / "raw")
    monkeypatch.setattr("fairseq_resid.vision.sources.problem", lambda *_: None)
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", archive)
    assert "train has 30 images, and 50,000 are expected; test has 10 images, and 10,000 are expected" in found


# ------------------------------------------------------------------------------------------------ bad folders


def changed(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def to(mode: str, size: tuple[int, int] = (32, 32), form: str = "png") -> Callable[[Path], None]:
    return lambda raw: Image.new(mode, size).save(raw / "train/dog/0001.png", form)


def link(target: str, name: str = "train/dog/0009.png") -> Callable[[Path], None]:
    return lambda raw: (raw / name).symlink_to(target)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "size": (to("RGB", (33, 32)), "train/dog/0001.png: 33x32 pixels, and 32x32 are expected"),
    "high": (to("RGB", (32, 40)), "train/dog/0001.png: 32x40 pixels, and 32x32 are expected"),
    "16 bits": (to("I;16"), "train/dog/0001.png: more than 8 bits a channel (I;16)"),
    "floats": (to("F", form="tiff"), "train/dog/0001.png: more than 8 bits a channel (F)"),
    "format": (to("RGB", form="pcx"), "train/dog/0001.png: no image of a format that is read (BMP, GIF, JPEG,"),
    "text": (lambda raw: (raw / "train/dog/a.txt").write_text("x"), "train/dog/a.txt: no image of a format that is"),
    "empty": (lambda raw: changed(raw / "test/dog/0001.png", lambda _: b""), "test/dog/0001.png: no image of a format"),
    "cut off": (
        lambda raw: changed(raw / "train/emu/0004.png", lambda data: data[:-700]),
        "train/emu/0004.png: no image that can be read: ",
    ),
    "damaged": (
        lambda raw: changed(raw / "train/emu/0004.png", lambda data: data[:900] + b"damage" + data[906:]),
        "train/emu/0004.png: no image that can be read: ",
    ),
    "first": (lambda raw: changed(raw / "train/cat/0000.png", lambda data: data[:60]), "train/cat/0000.png: no image"),
    "no train": (lambda raw: (raw / "train").rename(raw / "training"), "the images are not there: none of a folder"),
    "no test": (lambda raw: (raw / "test").rename(raw / "tests"), ": has no folder test/; it needs train/CLASS/IMAGE"),
    "valid": (lambda raw: (raw / "valid").mkdir(), "/valid: valid is made of training images (--valid N)"),
    "no class": (lambda raw: (shutil.rmtree(raw / "test"), (raw / "test").mkdir()), "/test: holds no images"),
    "empty class": (lambda raw: (raw / "train/fox").mkdir(), "train/fox: holds no images"),
    "unknown class": (
        lambda raw: shutil.copytree(raw / "test/dog", raw / "test/fox"),
        "test/fox: no class; the classes are those of ",
    ),
    "file": (lambda raw: (raw / "train/notes.txt").write_text("x"), "train/notes.txt: is no folder; "),
    "folder": (lambda raw: (raw / "train/dog/more").mkdir(), "train/dog/more: is no file; the folder of a class holds"),
    "link out": (link("/etc/hostname"), "train/dog/0009.png: a link that leads out of the folder"),
    "class out": (link("../..", "train/fox"), "train/fox: a link that leads out of the folder"),
    "link to nothing": (link("nothing"), "train/dog/0009.png: is no file"),
    "one value": (
        lambda raw: [Image.new("RGB", (32, 32)).save(file) for file in (raw / "train").rglob("*.png")],
        "the training images have one value everywhere in a channel: they cannot be normalised",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_folder(case: str, workers: int, by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    raw = tmp_path / "raw"
    shutil.copytree(by_classes, raw)
    change, said = BAD[case]
    change(raw)
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", raw, "--workers", workers)
    assert said in found and (str(raw) in found or case == "one value") and not (tmp_path / "data").exists()


def test_the_classes_of_a_known_corpus(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", by_classes)
    assert found == (
        f"{by_classes}/train/emu: no class; the classes are those airplane, automobile, bird, cat, deer, dog, frog, "
        "horse, ship, truck"
    )
    raw = mirror.images(tmp_path / "raw", CIFAR10.classes, 1, 1)
    shutil.rmtree(raw / "test" / "frog")
    found = error_of(capsys, "cifar10", tmp_path / "data", "--raw", raw)
    assert found == f"{raw}/test: has no folder for the class frog"
    assert len(CIFAR100.classes) == len(set(CIFAR100.classes)) == 100 and list(CIFAR100.classes) == sorted(
        CIFAR100.classes
    )


def test_a_decompression_bomb(
    by_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for limit in (1000, 500):  # Pillow warns, and refuses
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        found = error_of(capsys, "custom", tmp_path / "data", "--raw", by_classes)
        assert f"{by_classes}/train/cat/0000.png: no image that can be read: Image size (1024 pixels) exceeds" in found


def test_an_archive_with_a_bad_image_names_it(by_classes: Path, tmp_path: Path, capsys: Capture) -> None:
    inside = {str(file.relative_to(by_classes)): file.read_bytes() for file in by_classes.rglob("*.png")}
    archive = tmp_path / "raw.tar.xz"
    mirror.archive(archive, {**inside, "train/cat/0002.png": b"no image"})
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"{archive}/train/cat/0002.png: no image of a format that is read")
    mirror.archive(archive, {f"top/{name}": data for name, data in inside.items()})
    found = error_of(capsys, "custom", tmp_path / "data", "--raw", archive)
    assert found.startswith(f"{archive}: has no folder train/; it needs train/CLASS/IMAGE")


def die(*_: Any, **__: Any) -> None:
    os._exit(1)


def test_a_worker_that_dies(by_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(by_class, "_decode_all", die)
    assert main("custom", tmp_path / "data", "--raw", by_classes, "--workers", 2) == 1
    assert "a worker process ended (out of memory?); fewer --workers need less" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ flags


@pytest.mark.parametrize(
    "name, flags, said",
    [
        ("cifar10", ["--valid", 0], "--valid 0: must be 1 or more"),
        ("cifar10", ["--workers", 0], "--workers 0: must be 1 or more"),
        ("cifar10", ["--raw", "nowhere"], "--raw nowhere: no such file or folder"),
        ("cifar10", ["--raw", ".", "--mirror", "file:///"], "--raw and --mirror: images come from disk or from"),
        ("custom", [], "custom: name the folder of your images with --raw"),
        ("custom", ["--mirror", "file:///"], "custom: name the folder of your images with --raw"),
        ("cifar1000", [], "invalid choice: 'cifar1000'"),
        (
            "cifar10",
            ["--raw", "{empty}"],
            "{empty}: the images are not there: none of cifar-10-binary.tar.gz, a folder",
        ),
        ("custom", ["--raw", "{file}"], "{file}: the images are not there: none of a folder with train/CLASS/IMAGE"),
        ("custom", ["--raw", "{images}", "--valid", 15], "--valid 15: must be less than the 15 training images"),
        ("custom", ["--raw", "{images}", "--valid", 14], "--valid 14: would take all 5 training images of dog"),
    ],
)
def test_flags_that_are_wrong(
    name: str, flags: list[object], said: str, by_classes: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").write_text("x")
    places = {"empty": tmp_path / "empty", "file": tmp_path / "file.bin", "images": by_classes}
    given = [str(flag).format(**places) for flag in flags]
    assert said.format(**places) in error_of(capsys, name, tmp_path / "data", *given)


def test_a_reader_names_a_file_that_is_not_what_it_was(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "animals"
    shutil.copytree(made, out)
    known = image_folder.read(out)
    shutil.copy(out / "test.npy", out / "valid.npy")
    with pytest.raises(ValueError, match=r"valid\.npy: not the valid split of "):
        image_folder.open_split(out, "valid", known)
    np.save(out / "valid.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"valid\.npy: damaged: "):
        image_folder.open_split(out, "valid", known)
    (out / "valid.npy").unlink()
    with pytest.raises(ValueError, match=r"valid\.npy: no such file"):
        image_folder.open_split(out, "valid", known)
