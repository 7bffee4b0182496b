"""`prepare custom --vocab-from`: a data folder with the subword model and the dictionary of another one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data.text import custom
from support.preparing import decoded, main
from support.trainings import SETTINGS

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def domain(raw_text: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Return the prefixes of another text: less training text, which would give another vocabulary."""
    folder = Path(shutil.copytree(raw_text["train"].parent, tmp_path / "domain"))
    for language in ("en", "xx"):
        file = folder / f"train.{language}"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:40]))
    return {split: folder / split for split in raw_text}


def prepare(prefixes: dict[str, Path], out: Path, *flags: object, source: str = "en", target: str = "xx") -> int:
    given = ["--name", "domain", "--source", source, "--target", target, "--out", out, "--workers", 1, *flags]
    given += [word for split, prefix in prefixes.items() for word in (f"--{split}", prefix)]
    return custom.main([str(word) for word in given])


def test_vocabulary_of_another_folder_is_used(corpus: Path, domain: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert prepare(domain, data, "--vocab-from", corpus) == 0
    for name in ("spm.model", "dict.en.txt", "dict.xx.txt"):
        assert (data / name).read_bytes() == (corpus / name).read_bytes()
    for split, prefix in domain.items():
        for language in ("en", "xx"):
            assert decoded(data, split, language) == Path(f"{prefix}.{language}").read_text().splitlines()
    # Without the flag, the dictionary would be another one.
    assert prepare(domain, tmp_path / "own", "--vocab-size", 90) == 0
    assert (tmp_path / "own" / "dict.en.txt").read_bytes() != (corpus / "dict.en.txt").read_bytes()


@pytest.mark.both
def test_model_is_fine_tuned_in_the_other_direction(
    corpus: Path, domain: dict[str, Path], cli: Callable[..., Any], sas_checkpoint: Path, tmp_path: Path
) -> None:
    assert prepare(domain, tmp_path / "data", "--vocab-from", corpus, source="xx", target="en") == 0
    assert (tmp_path / "data" / "dict.xx.txt").read_bytes() == (corpus / "dict.en.txt").read_bytes()
    words = [*(word for word in SETTINGS if word != "--cpu"), "--batch-size", 16, "--max-update", 2]
    run = ["--save-dir", tmp_path / "run", "--finetune-from-model", sas_checkpoint]
    assert "another dictionary" not in cli("fairseq-train", tmp_path / "data", *words, *run).output


def test_text_is_tokenised_like_that_of_the_other_folder(hosts: dict[str, Path], tmp_path: Path) -> None:
    first, raw = tmp_path / "first", tmp_path / "raw"
    assert main("wmt14-en-de", first, "--mirror", hosts["de"].as_uri(), "--profile", "fairseq") == 0
    raw.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            shutil.copy(first / "ref" / f"test.{language}", raw / f"{split}.{language}")
    prefixes = {split: raw / split for split in ("train", "valid", "test")}
    assert prepare(prefixes, tmp_path / "data", "--vocab-from", first, target="de") == 0
    theirs, ours = (json.loads((data / "corpus.json").read_text()) for data in (first, tmp_path / "data"))
    assert ours["text"] == theirs["text"] and ours["text"]["form"] == "moses"
    for language in ("en", "de"):
        assert decoded(tmp_path / "data", "test", language) == decoded(first, "test", language)


def test_folder_with_another_vocabulary_is_another_corpus(
    corpus: Path, domain: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    data, flags = tmp_path / "data", ("--vocab-from", corpus)
    assert prepare(domain, data, *flags) == 0 and prepare(domain, data, *flags) == 0
    assert "already contains this corpus" in capsys.readouterr().out
    assert prepare(domain, tmp_path / "own", "--vocab-size", 90) == 0
    assert prepare(domain, data, "--vocab-from", tmp_path / "own") == 2
    assert "contains a different corpus (vocab_from is " in capsys.readouterr().err


def test_separate_dictionaries_are_refused(
    corpus: Path, domain: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    separate = Path(shutil.copytree(corpus, tmp_path / "separate"))
    (separate / "dict.xx.txt").write_text("la 1\n")
    assert prepare(domain, tmp_path / "data", "--vocab-from", separate) == 2
    assert "its two dictionaries differ; only a joined dictionary is supported" in capsys.readouterr().err
