"""Cleaning limits, and profiles that follow other projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_resid.data.text import folder as data_folder
from fairseq_resid.data.text import prepare
from support import mirror
from support.preparing import Released, record_of

pytestmark = pytest.mark.once


def test_limit_of_cleaning_drops_pairs(released: Released, tmp_path: Path) -> None:
    host, main = released
    dropped = {}
    for out, flags in {"default": [], "short": ["--max-pieces", "14"]}.items():
        assert main(out, "--raw", host, *flags) == 0
        dropped[out] = record_of(tmp_path / out)["lines"]["train"]["dropped"]
    assert dropped["default"]["ratio"] > 0 and dropped["default"]["length"] == 0 < dropped["short"]["length"]


def test_profiles_prepare_text_as_other_projects_do(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    left, right = mirror.sides(mirror.pairs(120, ("en", "de"), 2))
    lines = right.splitlines()
    lines[0] = "Ein wohl-bekannter „Satz“ ."
    text = "".join(line + "\n" for line in lines)
    mirror.archive(
        host / "training-parallel-commoncrawl.tgz", {"commoncrawl.de-en.de": text, "commoncrawl.de-en.en": left}
    )
    flags = ["--raw", host, "--allow-other-data", "--allow-low-ceiling", "--vocab-size", 250]
    assert main("t2t", *flags, "--profile", "tensor2tensor") == 0
    corpus = record_of(tmp_path / "t2t")
    assert corpus["text"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert corpus["lines"]["train"]["dropped"] == {} and corpus["subwords"]["normalizer"] == "identity"
    assert corpus["round_trip"]["test"]["exact"] == 20
    assert main("fairseq", *flags, "--profile", "fairseq") == 0
    corpus = record_of(tmp_path / "fairseq")
    assert corpus["text"] == {"form": "moses", "normalize": "both", "split_hyphens": True}
    form = data_folder.CorpusRecord.of(tmp_path / "fairseq").forms()["de"]
    assert form.to_model(lines[0]) == 'Ein wohl @-@ bekannter " Satz " .'
    assert form.restore(form.to_model("Ein wohl-bekannter Satz.")) == "Ein wohl-bekannter Satz."
    assert prepare.TOOLKITS["fairseq"]["vocab_size"] == 40_000  # the flag above overrides it
    capsys.readouterr()
    assert main("again", *flags, "--profile", "tensor2tensor", "--normalize", "both") == 2
    assert "--normalize both: has no effect, because wmt14-en-de is not tokenised" in capsys.readouterr().err


def test_profiles_handle_tokenised_and_plain_releases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def main(form: str, profile: str) -> int:
        raw = tmp_path / form
        if not raw.is_dir():
            mirror.iwslt15(raw, form)
        given = ["--raw", raw, "--out", tmp_path / f"{form}-{profile}", "--downloads", tmp_path / "dl"]
        flags = [*map(str, given), "--vocab-size", "200", "--allow-other-data", "--allow-low-ceiling"]
        return prepare.main(["iwslt15-en-vi", *flags, "--profile", profile])

    assert main("stanford", "fairseq") == 2
    assert "iwslt15-en-vi: Stanford's release is already tokenised; --profile fairseq" in capsys.readouterr().err
    found = {}
    for form, profile in (("stanford", "tensor2tensor"), ("plain", "tensor2tensor"), ("plain", "fairseq")):
        assert main(form, profile) == 0
        found[form, profile] = record_of(tmp_path / f"{form}-{profile}")["text"]
    assert found["stanford", "tensor2tensor"]["form"] == "escaped"
    assert found["plain", "tensor2tensor"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert found["plain", "fairseq"] == {"form": "moses", "normalize": "both", "split_hyphens": True}
