"""The lookup of tasks, and errors for results of different tasks."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data import folders
from fairseq_resid.evaluation import compare
from fairseq_resid.runs.run import Results, Scored
from fairseq_resid.runs.training_log import TrainingSummary
from fairseq_resid.scoring import kinds
from fairseq_resid.scoring.task import Task

pytestmark = pytest.mark.once


def results(**scores: Any) -> Results:
    return Results("arch", 1, "corpus", "test", TrainingSummary(), **scores)


TEXT = results(bleu={"averaged": 30.0, "last": 29.0})
IMAGES = results(scores={"last": {"error": Scored(8.0, "percent")}})
CAPTIONS = results(scores={"averaged": {"CIDEr": Scored(90.0, "nrefs:5")}})


@pytest.mark.parametrize("task", kinds.TASKS, ids=lambda task: task.folder.content)
def test_kind_is_found_by_fairseq_task_and_example(task: Task[Any]) -> None:
    name = task.folder.task
    assert kinds.of_name(name) is task and folders.of_task(name) is task.folder
    for section in ({"_name": name}, Namespace(_name=name), Namespace(_name=None, task=name)):
        assert kinds.of_checkpoint({"task": section}) is task
    assert kinds.of_example(task.words.example) is task


def test_unknown_names_default_to_translation() -> None:
    assert [kinds.of_name(name).folder.content for name in ("translation_moe", "", None)] == ["text"] * 3
    assert kinds.of_checkpoint({}) is kinds.of_example("word") is kinds.of_name("translation")


def test_kind_of_results_and_measures_is_found() -> None:
    contents = [kinds.of_results(each).folder.content for each in (TEXT, CAPTIONS, IMAGES, results())]
    assert contents == ["text", "captions", "images", "images"]
    contents = [kinds.of_measure(name).folder.content for name in ("BLEU", "NLL", "CIDEr", "error")]
    assert contents == ["text", "text", "captions", "images"]
    assert kinds.measures() == ["NLL", "BLEU", "CIDEr", "error"]


def test_error_names_results_of_different_tasks() -> None:
    assert compare.one_task({Path("a"): IMAGES, Path("b"): IMAGES}) is kinds.of_measure("error")
    with pytest.raises(ValueError, match=r"^b and a cannot be compared: a model of images and a model of text$"):
        compare.one_task({Path("a"): TEXT, Path("b"): IMAGES})


def test_folder_defaults_to_text_without_images_json(tmp_path: Path) -> None:
    assert folders.of_folder(tmp_path) is folders.of_folder(tmp_path / "none") is folders.TEXT
    (tmp_path / "images.json").write_text("{}")
    assert folders.of_folder(tmp_path) is folders.IMAGES
    (tmp_path / "captions").mkdir()
    (tmp_path / "captions" / "captions.json").write_text("{}")
    assert folders.of_folder(tmp_path / "captions") is folders.CAPTIONS
    with pytest.raises(ValueError, match="contains images, but the recipe's task requires text"):
        folders.TEXT.check(tmp_path)
    assert [folders.of_log({key: "1"}).unit for key in ("valid_error", "loss")] == ["images", "target tokens"]
