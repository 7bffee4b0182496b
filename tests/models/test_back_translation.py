"""Online back-translation with the architectures of this package."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fairseq import options, tasks

from support.fairseq_models import ARCHS, archs, built

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def monolingual(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny corpus for online back-translation: a training set for each language, and one dictionary."""
    folder = tmp_path_factory.mktemp("monolingual")
    shutil.copy(corpus / "dict.en.txt", folder / "dict.txt")
    for language in ("en", "xx"):
        (folder / language).mkdir()
        for suffix in ("bin", "idx"):
            shutil.copy(corpus / f"train.en-xx.{language}.{suffix}", folder / language / f"train.{suffix}")
            shutil.copy(corpus / f"valid.en-xx.{language}.{suffix}", folder / f"valid.en-xx.{language}.{suffix}")
    return folder


def back_translation(data: Path, arch: str, **given: Any) -> tuple[Any, Any]:
    languages = {"mono_langs": "en,xx", "valid_lang_pairs": "en-xx"}
    args = options.get_args(
        str(data), task="online_backtranslation", arch=arch, share_all_embeddings=True, **languages, **given
    )
    return built(args)


@archs
def test_back_translation_adds_language_tokens(arch: str, monolingual: Path, corpus: Path) -> None:
    """The dictionary has no language tokens: the task adds them, and the embeddings of the model include them."""
    before = len(tasks.setup_task(options.get_args(str(corpus))).source_dictionary)
    task, model = back_translation(monolingual, arch)
    assert [task.dictionary[index] for index in range(before, before + 3)] == ["<mask>", "__en__", "__xx__"]
    assert len(task.dictionary) == before + 3
    for table in (model.encoder.embed_tokens, model.decoder.embed_tokens, model.decoder.output_projection):
        assert table.weight.shape == (before + 3, 64)
    assert model.args.residual == ARCHS[arch]


@archs
def test_fairseq_train_runs_online_back_translation(arch: str, monolingual: Path, cli: Command, tmp_path: Path) -> None:
    """fairseq-train trains, validates and saves a checkpoint that can be loaded."""
    flags = "--task online_backtranslation --mono-langs en,xx --valid-lang-pairs en-xx --share-all-embeddings"
    flags += " --optimizer adam --lr 0.01 --criterion label_smoothed_cross_entropy --label-smoothing 0.1"
    flags += " --batch-size 16 --max-update 3 --no-epoch-checkpoints --log-format json --log-interval 1"
    done = cli("fairseq-train", monolingual, *flags.split(), "--arch", arch, "--save-dir", tmp_path)
    assert '"train_num_updates": "3"' in done.output and '"valid_loss"' in done.output
    assert "bt_loss" in done.output and "dae_loss" in done.output
