"""Online back-translation with the architectures of this package."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, tasks

from support.fairseq_models import ARCHS, archs, built, pairs

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def monolingual(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny corpus for online back-translation: a training set for each language, and one dictionary."""
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


def monolingual_batch(task: Any, count: int = 6) -> dict[str, Any]:
    task.load_dataset("train")
    dataset = task.dataset("train")
    return dataset.collater([dataset[number] for number in dataset.ordered_indices()[-count:]])


def language(task: Any, name: str) -> int:
    return task.dictionary.index(f"__{name}__")


@archs
def test_back_translation_adds_language_tokens(arch: str, monolingual: Path, corpus: Path) -> None:
    """The dictionary has no language tokens: the task adds them, also to the embeddings of the model."""
    before = len(tasks.setup_task(options.get_args(str(corpus))).source_dictionary)
    task, model = back_translation(monolingual, arch)
    assert [task.dictionary[index] for index in range(before, before + 3)] == ["<mask>", "__en__", "__xx__"]
    assert len(task.dictionary) == before + 3
    for table in (model.encoder.embed_tokens, model.decoder.embed_tokens, model.decoder.output_projection):
        assert table.weight.shape == (before + 3, 64)
    assert model.args.residual == ARCHS[arch]


@archs
def test_sample_is_back_translated(arch: str, monolingual: Path) -> None:
    task, model = back_translation(monolingual, arch)
    model.eval()
    sample = monolingual_batch(task)["en-BT"]
    english, target = sample["net_input"]["src_tokens"].clone(), sample["target"].clone()
    assert set(english[:, 0].tolist()) == {language(task, "en")}
    task.backtranslate_sample(sample, "en", "xx")
    generated, lengths = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
    assert set(generated[:, 0].tolist()) == {language(task, "xx")}
    assert torch.equal(sample["target"], target)
    assert generated.size(1) == lengths.max() and (lengths > 2).all()
    for row, length in zip(generated, lengths, strict=True):
        assert row[length - 1] == task.dictionary.eos()
        assert (row[length:] == task.dictionary.pad()).all() and not (row[:length] == task.dictionary.pad()).any()


@pytest.mark.parametrize(("bt", "dae"), [("1", "1"), ("0", "1"), ("1", "0")])
@archs
def test_back_translation_step_updates_parameters(arch: str, bt: str, dae: str, monolingual: Path) -> None:
    task, model = back_translation(monolingual, arch, lambda_bt=bt, lambda_dae=dae, lr=[0.01])
    criterion = task.build_criterion(argparse.Namespace(criterion="label_smoothed_cross_entropy", label_smoothing=0.1))
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.backward = lambda loss: loss.backward()
    loss, size, logged = task.train_step(monolingual_batch(task), model, criterion, optimizer, update_num=0)
    optimizer.step()
    assert loss > 0 and size > 0 and model.training
    assert ("bt_loss" in logged, "dae_loss" in logged) == (bt == "1", dae == "1")
    for name, value in model.named_parameters():
        if not name.endswith("k_proj.bias"):
            assert not torch.equal(value, before[name]), name


@archs
def test_generation_uses_the_other_language(arch: str, monolingual: Path) -> None:
    task, model = back_translation(monolingual, arch)
    batch = pairs(task, count=5)
    assert set(batch["net_input"]["src_tokens"][:, 0].tolist()) == {language(task, "en")}
    assert task.get_bos_token_from_sample(batch) == language(task, "xx")
    found = task.generate(batch, model)
    assert len(found) == 5 and not model.training
    for hypotheses in found:
        assert hypotheses[0]["tokens"][-1] == task.dictionary.eos()
        assert hypotheses[0]["positional_scores"].isfinite().all()


@archs
def test_fairseq_train_runs_online_back_translation(arch: str, monolingual: Path, cli: Command, tmp_path: Path) -> None:
    """fairseq-train trains, validates and saves a checkpoint that can be loaded."""
    flags = "--task online_backtranslation --mono-langs en,xx --valid-lang-pairs en-xx --share-all-embeddings"
    flags += " --optimizer adam --lr 0.01 --criterion label_smoothed_cross_entropy --label-smoothing 0.1"
    flags += " --batch-size 16 --max-update 3 --no-epoch-checkpoints --log-format json --log-interval 1"
    done = cli("fairseq-train", monolingual, *flags.split(), "--arch", arch, "--save-dir", tmp_path)
    assert '"train_num_updates": "3"' in done.output and '"valid_loss"' in done.output
    assert "bt_loss" in done.output and "dae_loss" in done.output
