"""prepare-captions: formats of captions and features, resuming, bad input."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_resid.data import folders
from fairseq_resid.data.captions import caption_folder as folder
from fairseq_resid.data.captions import features, karpathy
from fairseq_resid.data.captions import prepare_captions as prepare
from support import captions
from support.captions import error_of, images, line, main, regions, write_json, write_tsv

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
Official = tuple[Path, Path]
NUMBERS = [image["cocoid"] for image in images()]


def stored(data: Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    found = folder.open_regions(data, split, folder.CaptionRecord.of(data))
    return np.array(found.features), np.array(found.boxes), found.ends


def test_folder_contains_captions_words_and_regions(data: Path) -> None:
    record = folder.CaptionRecord.checked(data, verify=True)
    assert record.counts == {"train": 16, "valid": 4, "test": 6} and record.captions["train"] == 32
    assert record.width == captions.WIDTH and record.has_boxes and record.thumbnail is None
    opened = folder.CaptionData(data, record)
    assert opened.captions("train").texts[0] == ["a cat on the grass", "there is a cat a small one"]
    assert opened.references("train").texts[0] == ["A cat on the grass.", "There is a cat, a small one!"]
    assert opened.captions("test").ids == [str(number) for number in NUMBERS[20:]]
    words = dict(row.split() for row in (data / folder.DICTIONARY).read_text().splitlines())
    assert words["a"] == "48" and "cat" in words and "frog" in words and next(iter(words)) == "a"
    found, boxes, ends = stored(data, "test")
    for place, number in enumerate(NUMBERS[20:]):
        here = slice(ends[place - 1] if place else 0, ends[place])
        assert np.array_equal(found[here], regions(number)[0].astype(np.float16))
        assert boxes[here] == pytest.approx(regions(number)[1] / [640, 480, 640, 480])
    assert folders.of_folder(data) is folders.CAPTIONS and folders.CAPTIONS.missing_split(data, ["valid"]) is None
    assert "nosuch: " in str(folders.CAPTIONS.missing_split(data, ["nosuch"]))


def test_rare_words_are_not_in_the_dictionary(tmp_path: Path) -> None:
    found = images()
    for count, image in enumerate(found):
        image["sentences"][0]["tokens"] += ["Four"] * (count < 4) + ["Five"] * (count < 5) + ["<unk>"]
    corpus = karpathy.read_corpus(write_json(tmp_path / "a.json", found))
    words = dict(corpus.dictionary())
    assert words["five"] == 5 and "four" not in words and "<unk>" not in words


def write_npz(folder: Path, with_boxes: Callable[[int], bool]) -> Path:
    """Write one file for each image; `with_boxes` says of the n-th image whether its file has boxes."""
    folder.mkdir()
    for place, number in enumerate(NUMBERS):
        feat, boxes = regions(number)
        given = {"bbox": boxes, "image_w": 640, "image_h": 480} if with_boxes(place) else {}
        np.savez_compressed(folder / f"{number}.npz", feat=feat.astype(np.float16), **given)
    return folder


def test_npz_and_hdf5_give_the_same_regions(data: Path, official: Official, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for number in NUMBERS:
            feat, boxes = regions(number)
            file[f"{number}_features"], file[f"{number}_boxes"] = feat, boxes / [640, 480, 640, 480]
    for source in (write_npz(tmp_path / "npz", lambda place: True), tmp_path / "all.h5"):
        out = tmp_path / f"made-{source.name}"
        assert main(out, official[0], source) == 0
        for mine, theirs in zip(stored(out, "train"), stored(data, "train"), strict=True):
            assert mine == pytest.approx(theirs)


def test_boxes_are_of_all_images_or_of_none(official: Official, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "made"
    source = write_npz(tmp_path / "some", lambda place: place % 2 == 1)
    said = error_of(capsys, out, official[0], source)
    assert f"{source}: 13 of 26 images have no boxes, for example {NUMBERS[0]}, {NUMBERS[2]}, " in said
    assert "must have boxes for all images or for none" in said and not out.exists()
    assert main(out, official[0], write_npz(tmp_path / "none", lambda place: False)) == 0
    assert not folder.CaptionRecord.of(out).has_boxes and not stored(out, "valid")[1].any()


def test_captions_that_are_left_out_or_filled_are_counted(official: Official, tmp_path: Path, capsys: Capture) -> None:
    found = images()
    for place in (0, 1, 21):
        found[place]["sentences"].append({"tokens": [], "raw": " ", "sentid": 2})
    found[2]["sentences"][0]["raw"] = ""
    out = tmp_path / "made"
    assert main(out, write_json(tmp_path / "found.json", found), official[1]) == 0
    train, valid, test = (row for row in capsys.readouterr().out.splitlines() if " images, " in row)
    assert (
        "train: 16 images, 32 captions" in train and "; 2 captions without words left out; 1 references made" in train
    )
    assert "left out" not in valid and "references made" not in test and "; 1 captions without words left out" in test
    record = folder.CaptionRecord.of(out)
    assert record.empty == {"train": 2, "valid": 0, "test": 1} and record.captions["train"] == 32


def test_finished_folder_is_kept_and_another_corpus_refused(
    data: Path, official: Official, tmp_path: Path, capsys: Capture
) -> None:
    out = shutil.copytree(data, tmp_path / "pets")
    assert main(out, *official, "--verify") == 0
    assert "already contains these captions (checksums verified)" in capsys.readouterr().out
    other = write_json(tmp_path / "other.json", images()[:-1])
    assert "was not made from these files" in error_of(capsys, out, other, official[1])
    same_size = tmp_path / official[1].name
    same_size.write_text(official[1].read_text())  # a file of this name and size may contain other numbers
    assert "was not made from these files" in error_of(capsys, out, official[0], same_size)
    with (out / "train.features").open("r+b") as file:
        file.write(b"\xff")
    assert "train.features does not have the checksum" in error_of(capsys, out, *official, "--verify")
    (out / "train.features").unlink()
    assert "train.features is missing" in error_of(capsys, out, *official)


def test_killed_preparation_resumes_after_the_last_image(
    data: Path, official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "TOGETHER", 4)
    out, read, find = tmp_path / "pets", [], features.TsvFeatures.find

    def counted(self: Any, image: str) -> Any:
        read.append(image)
        if len(read) == 12:  # in the third block of train
            raise KeyboardInterrupt
        return find(self, image)

    monkeypatch.setattr(features.TsvFeatures, "find", counted)
    assert main(out, *official) == 130 and not out.exists()
    with (tmp_path / "pets.partial" / "data" / "train.features").open("ab") as file:
        file.write(b"half of a region")
    before = len(read)
    assert main(out, *official) == 0 and len(read) - before < len(NUMBERS)
    names = sorted(file.relative_to(data) for file in data.rglob("*") if file.is_file())
    assert all((out / name).read_bytes() == (data / name).read_bytes() for name in names)
    assert not (tmp_path / "pets.partial").exists()


def test_coco_counts_and_dataset_are_checked(official: Official, tmp_path: Path, capsys: Capture) -> None:
    found = error_of(capsys, tmp_path / "made", *official, name="coco-captions")
    assert "16 train images, not 113,287; 4 valid images, not 5,000" in found and "--allow-other-data" in found
    flickr = write_json(tmp_path / "flickr.json", images(), "flickr8k")
    assert "dataset 'flickr8k', not 'coco'" in error_of(
        capsys, tmp_path / "made", flickr, official[1], name="coco-captions"
    )
    assert main(tmp_path / "made", *official, "--allow-other-data", name="coco-captions") == 0
    differences = folder.CaptionRecord.of(tmp_path / "made").differences
    assert any("words, not 9,567" in each for each in differences)
    assert any("8 features per region, not 2,048" in each for each in differences)
    assert not list(tmp_path.glob("*.partial"))


def changed(**image: Any) -> list[dict[str, Any]]:
    """Return the images with the first one changed."""
    first, *others = images()
    return [{**first, **image}, *others]


BAD_CAPTIONS: dict[str, tuple[Any, str]] = {
    "only empty captions": (changed(sentences=[{"tokens": [" "], "raw": "."}]), "image 100: has no captions"),
    "twice": (changed(cocoid=101), "image 101: appears twice"),
    "unknown split": (changed(split="dev"), "image 100: split 'dev': must be one of train, restval, val, test"),
}


@pytest.mark.parametrize("case", BAD_CAPTIONS)
def test_bad_captions_are_refused_by_image(official: Official, tmp_path: Path, case: str, capsys: Capture) -> None:
    found, message = BAD_CAPTIONS[case]
    assert message in error_of(capsys, tmp_path / "made", write_json(tmp_path / "a.json", found), official[1])
    assert not list(tmp_path.glob("*.partial"))


feat, box = regions(100)
LINE = line(100, feat, box)
BAD_LINES: dict[str, tuple[str, str]] = {
    "cut": (LINE[: LINE.rindex("\t") + 42], "image 100: features.tsv:26: "),
    "wrong width": (line(100, feat[:, :-1], box), "image 101: 8 features per region: must be 7"),
    "box outside": (
        line(100, feat, box, (90, 480)),
        "image 100: box 1 (0, 20, 100, 480): must be left, top, right, bottom within 90x480",
    ),
    "NaN": (line(100, feat * np.nan, box), "image 100: a feature is out of range or NaN; must be -65,504 to 65,504"),
    "too large for float16": (line(100, feat + 1e6, box), "image 100: a feature is out of range or NaN"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_tsv_lines_are_refused_by_image(official: Official, tmp_path: Path, case: str, capsys: Capture) -> None:
    wrong, message = BAD_LINES[case]
    tsv = write_tsv(tmp_path / "features.tsv", NUMBERS[1:])
    with tsv.open("a") as file:
        file.write(wrong)
    assert message in error_of(capsys, tmp_path / "made", official[0], tsv)


def test_missing_features_are_listed_by_image(official: Official, tmp_path: Path, capsys: Capture) -> None:
    tsv = write_tsv(tmp_path / "features.tsv", NUMBERS[7:])
    found = error_of(capsys, tmp_path / "made", official[0], tsv)
    assert "no features for train images: 100, 101, 102, 103, 104 and 2 more" in found


def test_backups_of_feature_files_are_not_read(tmp_path: Path) -> None:
    for name in ("a.tsv", "b.tsv.0", "b.tsv.12", "a.tsv.bak", "a.tsv~", "old.tsv.gz"):
        (tmp_path / name).touch()
    assert [file.name for file in features.feature_files(tmp_path)] == ["a.tsv", "b.tsv.0", "b.tsv.12"]


def test_last_line_of_an_image_counts(official: Official, tmp_path: Path, data: Path) -> None:
    """The released files repeat the images at which their extraction was restarted."""
    tsv = tmp_path / "features.tsv"
    tsv.write_text(LINE[:40] + "\n" + "".join(line(number, *regions(number)) for number in NUMBERS))
    assert main(tmp_path / "made", official[0], tsv) == 0
    assert np.array_equal(stored(tmp_path / "made", "train")[0], stored(data, "train")[0])
