"""A checkpoint is only used with the dictionaries that it was trained with."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid.evaluation import averaging
from support.trainings import SETTINGS

Command = Callable[..., Any]
ALLOW = "--allow-other-dictionary"
FINETUNE = "--finetune-from-model"
SHORT = shlex.split("--gen-subset valid --beam 1 --max-len-b 8")  # an untrained model does not end its sentences
RESTORE = shlex.split("--reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters --restore-file")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the flag does to the environment of this process."""
    monkeypatch.setenv("FAIRSEQ_RESID_ALLOW_OTHER_DICTIONARY", "0")


@pytest.fixture(scope="module")
def train(cli: Command) -> Command:
    def run(data: Path, run: Path, *flags: object, **settings: Any) -> Any:
        words = [*SETTINGS, "--batch-size", 16, "--max-update", 2, "--save-dir", run, *flags]
        return cli("fairseq-train", data, *(word for word in words if word != "--cpu"), **settings)

    return run


@pytest.fixture(scope="module")
def made(corpus: Path, train: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `data`, a copy of the tiny corpus, and `run`, a model trained on this copy."""
    folder = tmp_path_factory.mktemp("dictionaries")
    train(shutil.copytree(corpus, folder / "data"), folder / "run")
    return folder


@pytest.fixture
def copied(corpus: Path, made: Path) -> Path:
    """Return the data folder of the run, which a test may change or remove."""
    shutil.rmtree(made / "data", ignore_errors=True)
    return Path(shutil.copytree(corpus, made / "data"))


@pytest.fixture
def checkpoint(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the run's checkpoint, which a test may change."""
    return Path(shutil.copytree(made / "run", tmp_path / "run")) / "checkpoint_last.pt"


def words_of(data: Path) -> list[str]:
    return (data / "dict.en.txt").read_text().splitlines()


def changed(data: Path, folder: Path, words: list[str]) -> Path:
    """Return a copy of a data folder with another joined dictionary."""
    shutil.copytree(data, folder)
    for language in ("en", "xx"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{word}\n" for word in words))
    return folder


@pytest.fixture
def other(corpus: Path, tmp_path: Path) -> Path:
    """Return a data folder whose dictionary has the same size, with lines 3 and 4 exchanged."""
    words = words_of(corpus)
    return changed(corpus, tmp_path / "other", [*words[:2], words[3], words[2], *words[4:]])


def forget(checkpoint: Path) -> None:
    """Make a checkpoint like one of version 1.0."""
    state = torch.load(checkpoint, weights_only=False)
    assert state["extra_state"].pop("dictionaries").keys() == {"source", "target"}
    torch.save(state, checkpoint)


def message(checkpoint: Path, data: Path, other: Path) -> str:
    first, second = (words_of(data)[number].split()[0] for number in (2, 3))
    return (
        f"fairseq_resid: error: {checkpoint}: trained with {data}/dict.en.txt, but {other}/dict.en.txt is another "
        f"dictionary: its line 3 has {second!r} instead of {first!r}; "
    )


def test_checkpoint_contains_the_hash_of_the_symbols(checkpoint: Path, copied: Path) -> None:
    words = [line.split()[0] for line in words_of(copied)]
    expected = hashlib.sha256("".join(f"{word}\n" for word in ["<s>", "<pad>", "</s>", "<unk>", *words]).encode())
    stored = torch.load(checkpoint, weights_only=False)["extra_state"]["dictionaries"]
    assert stored == dict.fromkeys(("source", "target"), expected.hexdigest())


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "version 1.0"])
@pytest.mark.parametrize("flags", [[FINETUNE], RESTORE], ids=["finetune", "restore"])
def test_training_on_another_dictionary_is_refused(
    flags: list[str], is_old: bool, checkpoint: Path, copied: Path, other: Path, train: Command, tmp_path: Path
) -> None:
    if is_old:
        forget(checkpoint)
    refused = train(other, tmp_path / "new", *flags, checkpoint, check=False)
    assert refused.code == 1 and refused.error.startswith(message(checkpoint, copied, other))
    assert not list((tmp_path / "new").glob("*.pt"))


def test_resuming_and_decoding_with_another_dictionary_is_refused(
    checkpoint: Path, copied: Path, other: Path, train: Command, generate: Command, cli: Command
) -> None:
    expected = message(checkpoint, copied, other)
    resumed = train(other, checkpoint.parent, "--max-update", 4, check=False)
    decoded = cli("fairseq-generate", other, "--path", checkpoint, check=False)
    typed = cli("fairseq-interactive", other, "--path", checkpoint, stdin="a\n", check=False)
    for refused in (resumed, decoded, typed):
        assert refused.code == 1 and refused.error.startswith(expected)
    assert cli("fairseq-generate", copied, "--path", checkpoint, *SHORT).hypotheses


def test_hub_model_with_another_dictionary_is_refused(checkpoint: Path, copied: Path, other: Path) -> None:
    from fairseq_resid.models import ResidualTransformerModel

    folder = str(checkpoint.parent)
    assert ResidualTransformerModel.from_pretrained(folder, checkpoint.name, str(copied))
    with pytest.raises(ValueError, match="is another dictionary: its line 3 has"):
        ResidualTransformerModel.from_pretrained(folder, checkpoint.name, str(other))


def test_another_dictionary_can_be_allowed(
    checkpoint: Path, copied: Path, other: Path, train: Command, cli: Command, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    tuned = train(other, tmp_path / "new", FINETUNE, checkpoint, ALLOW)
    warning = message(checkpoint, copied, other).removeprefix("fairseq_resid: error: ").removesuffix("; ")
    assert f"{warning}; accepted because of {ALLOW}" in tuned.output
    monkeypatch.setenv("FAIRSEQ_RESID_ALLOW_OTHER_DICTIONARY", "0")
    # The new model is one of the new dictionary.
    last = tmp_path / "new" / "checkpoint_last.pt"
    assert cli("fairseq-generate", other, "--path", last, *SHORT).hypotheses
    refused = cli("fairseq-generate", copied, "--path", last, check=False)
    assert refused.code == 1 and f"{last}: trained with {other}/dict.en.txt" in refused.error
    assert cli("fairseq-generate", copied, "--path", last, *SHORT, ALLOW).hypotheses


def test_dictionaries_that_differ_in_counts_are_equal(
    checkpoint: Path, copied: Path, train: Command, tmp_path: Path
) -> None:
    counted = changed(copied, tmp_path / "counted", [f"{line.split()[0]} 1" for line in words_of(copied)])
    assert "is another" not in train(counted, tmp_path / "new", FINETUNE, checkpoint).output
    forget(checkpoint)
    assert "is another" not in train(counted, tmp_path / "newer", FINETUNE, checkpoint).output


def test_unknown_dictionary_is_reported_once(
    checkpoint: Path, copied: Path, other: Path, train: Command, tmp_path: Path
) -> None:
    forget(checkpoint)
    shutil.rmtree(copied)
    trained = train(other, tmp_path / "new", FINETUNE, checkpoint)
    line = f"{checkpoint}: its dictionary is unknown and was not compared with {other}/dict.en.txt; it was trained on "
    assert trained.output.count("its dictionary is unknown") == 1 and line + str(copied) in trained.output


@pytest.mark.parametrize("change", ["is gone", "has changed"])
def test_hash_is_compared_without_the_old_folder(
    change: str, checkpoint: Path, copied: Path, other: Path, train: Command, tmp_path: Path
) -> None:
    if change == "is gone":
        shutil.rmtree(copied)
    else:
        shutil.copy(other / "dict.en.txt", copied)
    refused = train(other, tmp_path / "new", FINETUNE, checkpoint, check=False)
    assert refused.code == 1 and refused.error.startswith(f"fairseq_resid: error: {checkpoint}: trained with {copied}")
    assert f", but {other}/dict.en.txt is another dictionary: its SHA-256 begins with " in refused.error


def test_average_keeps_the_hash_and_refuses_a_mixture(
    checkpoint: Path, copied: Path, other: Path, train: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(other, tmp_path / "new")
    theirs, out = tmp_path / "new" / "checkpoint_last.pt", tmp_path / "averaged.pt"
    assert averaging.main(["--inputs", str(checkpoint), str(theirs), "--output", str(out)]) == 2
    error = capsys.readouterr().err
    assert f"{checkpoint} and {theirs} are models of different dictionaries: {copied}/dict.en.txt (SHA-256 " in error
    assert f" and {other}/dict.en.txt (SHA-256 " in error and error.count("\n") == 1
    assert averaging.main(["--inputs", str(checkpoint), str(checkpoint), "--output", str(out)]) == 0
    first, averaged = (torch.load(file, weights_only=False)["extra_state"] for file in (checkpoint, out))
    assert averaged["dictionaries"] == first["dictionaries"]
