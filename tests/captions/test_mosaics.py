"""Mosaics: true captions, disjoint photographs, features from an image model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_resid.data.captions import caption_folder as folder
from fairseq_resid.data.images import image_folder
from support.image_models import FLAGS, build, train, write_data
from support.scripts import imported
from support.trainings import weights

pytestmark = pytest.mark.once

mosaics = imported(Path(__file__).resolve().parents[2] / "data-prep" / "mosaic-captions.py")
Capture = pytest.CaptureFixture[str]
COUNTS = ("30", "6", "8")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({4: "cat"}, ["a cat"]),
        ({0: "cat", 2: "airplane"}, ["a cat and an airplane", "a cat to the left of an airplane",
                                     "an airplane to the right of a cat"]),
        ({0: "cat", 2: "cat", 4: "bus"}, ["two cats and a bus", "two cats above a bus", "a bus below two cats"]),
        ({3: "frog", 4: "ship", 5: "dog"}, ["a frog and a ship and a dog", "a ship between a frog and a dog"]),
        ({0: "deer", 1: "fox", 2: "deer"}, ["two deer and a fox", "a fox between two deer"]),
    ],
)  # fmt: skip
def test_statements_describe_the_mosaic(cells: dict[int, str], expected: list[str]) -> None:
    assert mosaics.statements(cells) == expected


def test_mosaics_depend_on_seed_and_number_only() -> None:
    labels = np.arange(60) % 5
    every = mosaics.plan("train", 200, 1, labels, np.arange(60), 1)
    assert mosaics.plan("train", 100, 101, labels, np.arange(60), 1) == every[100:]
    assert mosaics.plan("train", 200, 1, labels, np.arange(60), 2) != every
    assert {len(one.cells) for one in every} == set(range(1, 7))
    assert max(len({labels[index] for index in one.cells.values()}) for one in every) == 3
    for one in every:
        texts = mosaics.captions(one, {cell: f"n{labels[index]}" for cell, index in one.cells.items()}, 1)
        assert len(set(texts)) == 5 and " is two" not in texts[1] and " are a " not in texts[1]


def test_box_and_picture_agree() -> None:
    photographs = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    mosaic = mosaics.Mosaic(1, "test", {1: 0, 5: 1})
    picture = mosaic.draw(photographs)
    assert picture.shape == (8, 15, 3)
    for cell, index in mosaic.cells.items():
        left, top, right, bottom = mosaic.box(cell, (4, 5))
        assert np.array_equal(picture[top:bottom, left:right].transpose(2, 0, 1), photographs[index])
    assert not picture[:4, :5].any()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("images") / "farm")


@pytest.fixture(scope="module")
def network(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network")
    (folder / "farm.txt").write_text(f"{images}\n{FLAGS}\n")
    assert train(folder / "farm.txt", folder / "run", "--residual", "xskip") == 0
    return folder / "run"


def test_corpus_has_features_of_the_network_and_pictures(
    images: Path, network: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "mosaics"
    flags = ["--images", str(images), "--network", str(network), "--out", str(out), "--mosaics", *COUNTS, "--cpu"]
    assert mosaics.main(flags) == 0
    record = folder.CaptionRecord.checked(out, verify=True)
    assert record.counts == {"train": 30, "valid": 6, "test": 8} and record.captions["test"] == 40
    assert record.width == 64 and record.has_boxes and record.thumbnail == (64, 96) and not record.unverified
    made = mosaics.planned(images, [30, 6, 8], 1)
    known = image_folder.ImageRecord.of(images)
    pixels = {split: image_folder.open_split(images, split, known)["pixels"] for split in made}
    model = build("preact_resnet20", classes=4, stage_blocks="1,1,1")
    model.load_state_dict(weights(network))
    data = folder.CaptionData(out, record)
    pictures = data.thumbnails("test")
    assert pictures is not None and data.thumbnails("train") is None
    for source, split in (("valid", "train"), ("test", "test")):
        chosen = [one for one, _ in made[source] if one.split == split]
        regions = folder.open_regions(out, split, record)
        for place, one in enumerate(chosen[:4]):
            shown = torch.from_numpy(np.stack([pixels[source][index] for index in one.cells.values()])).float() / 255
            mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (known.mean, known.deviation))
            with torch.no_grad():
                x = model.eval().stem((shown - mean) / deviation)
                for stage in model.stages:
                    x = stage(x)
                expected = model.end(x).mean(dim=(2, 3)).numpy()
            found = regions.of(place)
            assert found[:, :64] == pytest.approx(expected, rel=2e-2, abs=2e-3)  # stored as float16
            assert found[:, 64:] == pytest.approx(
                np.array([one.box(cell, (32, 32)) for cell in one.cells]) / [96, 64, 96, 64]
            )
            if split == "test":
                assert np.array_equal(pictures[place], one.draw(pixels["test"]))
    assert mosaics.main(flags) == 2
    assert f"{out}: exists; remove it" in capsys.readouterr().err


def test_no_photograph_is_used_in_two_splits(images: Path) -> None:
    made = mosaics.planned(images, [300, 50, 80], 1)
    used = {
        split: {(source, index) for source, parts in made.items() for one, _ in parts if one.split == split
                for index in one.cells.values()}
        for split in ("train", "valid", "test")
    }  # fmt: skip
    assert not used["train"] & used["valid"] and not used["test"] & (used["train"] | used["valid"])
    assert {source for source, _ in used["train"]} == {"valid"}


def test_networks_that_know_the_photographs_are_refused(
    images: Path, network: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "farm.txt").write_text(f"{images}\n{FLAGS}\n")
    run = tmp_path / "run"
    flags = ["--train-subset", "train+valid", "--valid-subset", "test", "--max-update", "1"]
    assert train(tmp_path / "farm.txt", run, *flags) == 0
    given = ["--images", str(images), "--out", str(tmp_path / "out"), "--cpu", "--network"]
    assert mosaics.main([*given, str(run)]) == 2
    assert "was trained on the split valid; mosaics need photographs that it has not seen" in capsys.readouterr().err
    given[1] = str(write_data(tmp_path / "other", train=50))
    assert mosaics.main([*given, str(network)]) == 2
    assert "which differs from --images" in capsys.readouterr().err
