"""Data folders that are damaged, invalid or from an earlier version, and how a card describes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data.text import folder as data_folder
from fairseq_resid.data.text.folder import Corpus
from fairseq_resid.data.text.forms import TextForm
from fairseq_resid.runs.training_command import TrainingCommand
from support.preparing import Released, record_of

pytestmark = pytest.mark.once


def test_damaged_data_folder_is_not_called_complete(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    assert main("data", "--raw", host) == 0
    data = tmp_path / "data"
    assert main("data", "--raw", host) == 0
    assert "already contains this corpus (sizes verified)" in capsys.readouterr().out
    binary = data / "train.en-de.de.bin"
    whole = binary.read_bytes()
    binary.write_bytes(whole[:100])
    (data / "ref" / "test.de").rename(tmp_path / "test.de")
    assert main("data", "--raw", host) == 2
    error = capsys.readouterr().err
    assert f"train.en-de.de.bin has 100 bytes, not {len(whole):,}" in error and "ref/test.de is missing" in error
    binary.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    (tmp_path / "test.de").rename(data / "ref" / "test.de")
    assert main("data", "--raw", host) == 0  # the size alone does not reveal the damage
    assert main("data", "--raw", host, "--verify") == 2
    assert "train.en-de.de.bin does not have the checksum recorded in corpus.json" in capsys.readouterr().err
    binary.write_bytes(whole)
    # A folder of an earlier version has checksums but no sizes, and fewer settings.
    corpus = record_of(data)
    del corpus["sizes"], corpus["overlap"], corpus["unverified"]
    corpus["asked"] = {name: corpus["asked"][name] for name in ("name", "source", "target", "vocab_size", "limit")}
    corpus["asked"] |= {"normalize": "source", "clean": True}
    (data / "corpus.json").write_text(json.dumps(corpus))
    assert main("data", "--raw", host) == 0
    output = capsys.readouterr().out
    assert "sizes not recorded by the earlier version that made it; use --verify to compare checksums" in output
    assert "not verified (no known checksum): all texts (an earlier version did not compare" in output
    assert Corpus.read(data).unverified == ("all texts (an earlier version did not compare them)",)
    assert main("data", "--raw", host, "--verify") == 0
    assert "(checksums verified)" in capsys.readouterr().out
    for flags, said in (
        (["--max-pieces", "3"], "max_pieces is 250, not 3"),
        (["--profile", "tensor2tensor"], "form is moses, not plain"),
    ):
        assert main("data", "--raw", host, *flags) == 2
        assert said in capsys.readouterr().err


# Parts of corpus.json as written by earlier versions.
EARLIER: dict[str, dict[str, Any]] = {
    "0.1.0": {
        "sentencepiece": "bpe",
        "inputs": {"train.en": {"file": "train.en", "sha256": "00"}},
        "lines": {"train": {"in": 3, "out": 2, "dropped_empty": 1}},
        "tools": {"sentencepiece": "0.2.0"},
    },
    "0.2.0": {
        "asked": {"name": "c", "vocab_size": 90, "normalize": "none", "clean": False, "limit": None},
        "files": {"train.en": {"bytes": 3, "url": None}},
        "texts": {"train t.en": {"file": "train.en", "member": None, "lines": 3, "sha256": "00"}},
        "differences": ["a difference"],
        "lines": {"train": {"in": 3, "out": 2, "dropped": {"empty": 1}}},
        "text": {"form": "moses", "normalize": "source"},
        "round_trip": {"test": {"exact": 1, "of": 2, "bleu": 99, "signature": "nrefs:1"}},
        "checksums": {"dict.en.txt": "00"},
    },
}


@pytest.mark.parametrize("version", EARLIER)
def test_data_folder_of_earlier_version_loads(version: str, tmp_path: Path) -> None:
    both = {"name": "c", "source": "en", "target": "xx", "vocab_size": 90, "bleu_tokenize": "13a"}
    restore = {"post_process": "sentencepiece", "model": "spm.model"}
    (tmp_path / "corpus.json").write_text(json.dumps({**both, "restore": restore, **EARLIER[version]}))
    found = Corpus.read(tmp_path)
    assert (found.post_process, found.tokenize, found.unverified) == ("sentencepiece", "13a", ())
    assert found.form == TextForm("xx", "plain" if version == "0.1.0" else "moses")
    assert found.differences == (() if version == "0.1.0" else ("a difference",))
    assert found.preparation == EARLIER[version].get("asked", {})
    assert not data_folder.check(tmp_path)  # sizes are not known


def test_training_refuses_a_damaged_data_folder(corpus: Path, tmp_path: Path) -> None:
    from fairseq_resid.runs import launch

    data = shutil.copytree(corpus, tmp_path / "data")
    launch.check_data(TrainingCommand.parse([str(data), "--arch", "transformer"]))
    (data / "valid.en-xx.xx.idx").write_bytes(b"cut off")
    with pytest.raises(ValueError, match=r"data: damaged: valid\.en-xx\.xx\.idx has 7 bytes"):
        launch.check_data(TrainingCommand.parse([str(data), "--arch", "transformer"]))
    (data / "corpus.json").write_text("[]")
    with pytest.raises(ValueError, match=r"corpus\.json: damaged"):
        data_folder.check(data)
    (data / "corpus.json").unlink()  # made by fairseq-preprocess alone, so its sizes are not known
    with pytest.raises(ValueError, match=r"valid\.en-xx\.xx\.idx: damaged or truncated"):
        data_folder.check(data)
    shutil.copy(corpus / "valid.en-xx.xx.idx", data)
    launch.check_data(TrainingCommand.parse([str(data), "--arch", "transformer"]))
