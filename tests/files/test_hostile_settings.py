"""Untrusted settings that reach the command line of fairseq-generate, and files that it opens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fairseq_resid.data.text.folder import Corpus, check
from fairseq_resid.runs import settings
from fairseq_resid.runs.run import Run
from fairseq_resid.tasks.text import decoding
from support.scored_runs import data_folder

pytestmark = pytest.mark.once


@pytest.mark.parametrize("value", ["--user-dir=/tmp/code", "--help", "", 5])
def test_post_process_cannot_become_an_option(value: object, tmp_path: Path) -> None:
    """--post-process takes an optional value, so --user-dir=X after it would load code."""
    data = data_folder(tmp_path / "data")
    record = json.loads((data / "corpus.json").read_text())
    (data / "corpus.json").write_text(json.dumps({**record, "restore": {"post_process": value}}))
    with pytest.raises(ValueError, match=r"corpus\.json: damaged.*post_process"):
        Corpus.read(data)


def test_data_folder_named_like_an_option_stays_a_folder() -> None:
    command = decoding.generate_command(Path("--user-dir=code"), Path("a.pt"), "test", None)
    assert command[1] == "./--user-dir=code"


@pytest.mark.parametrize("name", ["dict.xx.txt", "test.en-xx.en.bin", "test.en-xx.en.idx"])
def test_pipes_among_binarised_files_are_refused(name: str, tmp_path: Path) -> None:
    data = data_folder(tmp_path / "data")
    os.mkfifo(data / name)
    with pytest.raises(ValueError, match=f"{name}: not a regular file"):
        check(data)


@pytest.mark.parametrize(
    "words",
    [
        "--lenpen nan",
        "--lenpen inf",
        "--max-len-a 1e9",
        "--max-len-b 999999999",
        "--max-len-b -1",
        "--beam ٣",
        "--beam 101",
    ],
)
def test_decoding_settings_out_of_range_are_refused(words: str, tmp_path: Path) -> None:
    record = {"command": [], "finished": True, "evaluate": words.split()}
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"run\.json: evaluate: .*must be"):
        settings.of(Run(tmp_path))


def test_long_maximum_length_is_passed_exactly(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"command": [], "finished": True, "evaluate": ["--max-len-b", "123457"]})
    )
    assert settings.of(Run(tmp_path)).decoding["max-len-b"] == "123457"
