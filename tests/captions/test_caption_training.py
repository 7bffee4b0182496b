"""Training on captions: batches, resuming, workers, averaging, stock fairseq-generate."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_resid import tasks
from fairseq_resid.__main__ import main
from fairseq_resid.data.captions import caption_folder as folder
from fairseq_resid.evaluation import averaging
from fairseq_resid.runs.run import Run
from fairseq_resid.tasks.captions import ImageCaptioningTask
from support.captions import train
from support.trainings import reopen, weights

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]
tasks.register()


def task_of(data: Path, **given: object) -> ImageCaptioningTask:
    return ImageCaptioningTask.setup_task(Namespace(**{"data": str(data), "by_image": False, **given}))


def test_batches_pair_each_caption_with_its_image(data: Path) -> None:
    task = task_of(data)
    dataset = task.read_split("test", by_image=False)
    assert len(dataset) == 12 and dataset.images.tolist() == [place // 2 for place in range(12)]
    texts, words = folder.CaptionData(data, folder.CaptionRecord.of(data)).captions("test").texts, task.words
    batch = dataset.collater([0, 3, 10])
    assert "references" not in batch and batch["id"].tolist() == [0, 3, 10]
    for row, (image, caption) in enumerate(((0, 0), (1, 1), (5, 0))):
        target = batch["target"][row]
        assert words.string(target[target.ne(words.pad())]) == texts[image][caption]
        length = int(batch["net_input"]["src_lengths"][row])
        regions = batch["net_input"]["src_tokens"][row]
        assert np.array_equal(regions[:length].numpy(), dataset.regions.of(image)) and not regions[length:].any()
        previous = batch["net_input"]["prev_output_tokens"][row]
        assert previous[0] == words.eos() and torch.equal(previous[1:3], target[:2])
    assert batch["ntokens"] == int(batch["target"].ne(words.pad()).sum())


def test_batches_by_image_have_all_captions(data: Path) -> None:
    dataset = task_of(data).read_split("valid", by_image=True)
    assert len(dataset) == 4
    batch = dataset.collater([2, 1])
    assert [len(each) for each in batch["references"]] == [2, 2] and batch["target"].size(0) == 2
    assert batch["references"][0][0] == [int(token) for token in batch["target"][0] if token != 1]


def test_every_example_is_in_one_batch(data: Path) -> None:
    dataset = task_of(data, train_subset="train").read_split("train", by_image=False)
    with_order = [dataset.ordered_indices() for _ in range(2)]
    assert sorted(with_order[0]) == list(range(32)) and not np.array_equal(*with_order)
    sizes = dataset.src_sizes[with_order[0]]
    assert (np.diff(sizes) >= 0).all() and dataset.num_tokens(0) == max(dataset.size(0))
    kept, ignored = dataset.filter_indices_by_size(with_order[0], (2, 100))
    assert sorted([*kept, *ignored]) == list(range(32)) and dataset.src_sizes[kept].max() == 2


@pytest.mark.both
def test_model_learns_and_logs(trained: list[Path]) -> None:
    rows = [row for row in Run(trained[1]).log_records() if "valid_nll_loss" in row]
    assert float(rows[-1]["valid_nll_loss"]) < 0.8 * float(rows[0]["valid_nll_loss"])
    assert any("alpha.encoder.0.self_attn" in key for row in Run(trained[1]).log_records() for key in row)
    summary = Run(trained[0]).training_summary()
    assert summary.num_updates == 60 and summary.unit == "target tokens"


@pytest.mark.both
def test_resuming_is_bitwise_equal_for_any_number_of_workers(recipe: Path, trained: list[Path], tmp_path: Path) -> None:
    halves, workers = tmp_path / "halves", tmp_path / "workers"
    assert train(recipe, halves, "--residual", "post_ln", "--max-update", "33") == 0
    reopen(halves, 33, 60)
    assert train(recipe, halves, "--residual", "post_ln", "--max-update", "60") == 0
    flags = ["--arch", "captioning_resid", "--residual", "post_ln", "--num-workers", "2"]
    assert main(["train", str(recipe), "--run", str(workers), *flags]) == 0
    for name, expected in weights(trained[0]).items():
        assert torch.equal(weights(halves)[name], expected), name
        assert torch.equal(weights(workers)[name], expected), name


@pytest.mark.both
def test_stock_generate_describes_each_image_once(data: Path, trained: list[Path], cli: Any, tmp_path: Path) -> None:
    averaged = tmp_path / "averaged.pt"
    averaging.average(Run(trained[1]).numbered("update"), averaged)
    flags = ["--task", "image_captioning", "--gen-subset", "test", "--by-image", "--beam", 3]
    found = cli("fairseq-generate", data, "--path", averaged, *flags).lines("D")
    assert sorted(found) == list(range(6))
    words = {row.split()[0] for row in (data / folder.DICTIONARY).read_text().splitlines()}
    texts = [row.split("\t")[1] for row in found.values()]
    assert all(text and set(text.split()) <= words for text in texts)
