"""Cleaning limits, and profiles that follow other projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_resid.data.text import folder as data_folder
from fairseq_resid.data.text import prepare
from support import mirror
from support.preparing import main, record_of

pytestmark = pytest.mark.once


def test_limit_of_cleaning_drops_pairs(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    assert main("wmt14-en-de", tmp_path / "short", "--raw", hosts["de"], "--max-pieces", 14) == 0
    default, short = (record_of(data)["lines"]["train"]["dropped"] for data in (en_de, tmp_path / "short"))
    assert default["ratio"] > 0 and default["length"] == 0 < short["length"]


def test_profiles_prepare_text_as_other_projects_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = mirror.wmt14(tmp_path / "host", "de")
    left, right = mirror.sides(mirror.pairs(120, ("en", "de"), 2))
    lines = right.splitlines()
    lines[0] = "Ein wohl-bekannter „Satz“ ."
    text = "".join(line + "\n" for line in lines)
    mirror.archive(
        host / "training-parallel-commoncrawl.tgz", {"commoncrawl.de-en.de": text, "commoncrawl.de-en.en": left}
    )
    flags = ["--raw", host, "--allow-low-ceiling"]
    assert main("wmt14-en-de", tmp_path / "t2t", *flags, "--profile", "tensor2tensor") == 0
    corpus = record_of(tmp_path / "t2t")
    assert corpus["text"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert corpus["lines"]["train"]["dropped"] == {} and corpus["subwords"]["normalizer"] == "identity"
    assert corpus["round_trip"]["test"]["exact"] == 20
    assert main("wmt14-en-de", tmp_path / "fairseq", *flags, "--profile", "fairseq") == 0
    corpus = record_of(tmp_path / "fairseq")
    assert corpus["text"] == {"form": "moses", "normalize": "both", "split_hyphens": True}
    form = data_folder.CorpusRecord.of(tmp_path / "fairseq").forms()["de"]
    assert form.to_model(lines[0]) == 'Ein wohl @-@ bekannter " Satz " .'
    assert form.restore(form.to_model("Ein wohl-bekannter Satz.")) == "Ein wohl-bekannter Satz."
    assert prepare.TOOLKITS["fairseq"]["vocab_size"] == 40_000  # which `main` overrides
    tensor2tensor = [*flags, "--profile", "tensor2tensor"]
    assert main("wmt14-en-de", tmp_path / "again", *tensor2tensor, "--normalize", "both") == 2
    assert "--normalize both: has no effect, because wmt14-en-de is not tokenised" in capsys.readouterr().err


def test_profiles_handle_tokenised_releases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--raw", mirror.iwslt15(tmp_path / "raw", "stanford"), "--allow-low-ceiling"]
    assert main("iwslt15-en-vi", tmp_path / "fairseq", *flags, "--profile", "fairseq") == 2
    assert "iwslt15-en-vi: Stanford's release is already tokenised; --profile fairseq" in capsys.readouterr().err
    assert main("iwslt15-en-vi", tmp_path / "t2t", *flags, "--profile", "tensor2tensor") == 0
    assert record_of(tmp_path / "t2t")["text"]["form"] == "escaped"
