"""Preparation from archives to a data folder, on mirrors with made-up text."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from fairseq_resid.data.text import parallel
from fairseq_resid.data.text.forms import TextForm
from fairseq_resid.data.text.manifest import SPLITS
from fairseq_resid.files import read_lines
from support import mirror
from support.preparing import content, decoded, main, record_of

pytestmark = pytest.mark.once


@pytest.mark.parametrize("target", ["de", "fr"])
def test_wmt14_data_folder_matches_its_sources(
    target: str, hosts: dict[str, Path], en_de: Path, tmp_path: Path
) -> None:
    data = en_de
    if target == "fr":
        data = tmp_path / "data"
        assert main("wmt14-en-fr", data, "--mirror", hosts["fr"].as_uri()) == 0
    corpus = record_of(data)
    parts = {"de": 3, "fr": 5}[target]
    expected = {"train": 120 * parts - 60, "valid": {"de": 20, "fr": 40}[target], "test": 20}
    assert {split: counts["in"] for split, counts in corpus["lines"].items()} == expected
    assert sum(label.startswith("train") for label in corpus["texts"]) == 2 * parts
    for split in SPLITS:
        lines = corpus["lines"][split]
        assert lines["out"] == lines["in"] - sum(lines["dropped"].values())
        assert len(decoded(data, split, target)) == lines["out"]
    assert corpus["lines"]["train"]["dropped"]["ratio"] > 0
    assert corpus["lines"]["test"]["dropped"] == corpus["lines"]["valid"]["dropped"] == {}
    assert corpus["text"] == {"form": "moses", "normalize": "source", "split_hyphens": False}
    # The files in ref/ contain the text of the test set, in its order. The binarised target has the same order.
    left, right = mirror.sides(mirror.pairs(20, ("en", target), 8))
    assert (data / "ref" / "test.en").read_text() == left and (data / f"ref/test.{target}").read_text() == right
    model_text = [TextForm(target, "moses").to_model(line) for line in right.split("\n")[:-1]]
    assert decoded(data, "test", target) == model_text
    if target == "fr":
        valid = "".join(mirror.sides(mirror.pairs(20, ("en", "fr"), seed))[1] for seed in (6, 7))
        assert (data / "ref" / "valid.fr").read_text() == valid
    assert corpus["checksums"] == {name: digest for name, digest in content(data).items() if name != "corpus.json"}
    assert not list(data.parent.glob("*.partial"))


def test_training_text_contains_all_parts_in_order(en_de: Path) -> None:
    corpus = record_of(en_de)
    pairs = [pair for seed, count in ((1, 120), (2, 120), (3, 60)) for pair in mirror.pairs(count, ("en", "de"), seed)]
    forms = TextForm("en", "moses", True), TextForm("de", "moses")
    texts = [(forms[0].to_model(left), forms[1].to_model(right)) for left, right in pairs]
    found = list(zip(decoded(en_de, "train", "en"), decoded(en_de, "train", "de"), strict=True))
    kept = iter(texts)
    assert all(any(pair == text for text in kept) for pair in found)  # a subsequence
    assert len(found) == corpus["lines"]["train"]["out"]


def test_result_does_not_depend_on_source_path_or_workers(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "SHARD_LINES", 50)
    assert main("wmt14-en-de", tmp_path / "other" / "name", "--raw", hosts["de"], "--workers", 3) == 0
    assert content(tmp_path / "other" / "name") == content(en_de)


def test_parts_are_not_joined_within_a_line(tmp_path: Path) -> None:
    """EN-FR's validation set has two parts, and the last line of the first may lack a newline."""
    host = mirror.wmt14(tmp_path / "host", "fr")
    members: dict[str, str | bytes] = {}
    for year in (2012, 2013):
        for language in ("en", "fr"):
            members[f"dev/newstest{year}.{language}"] = f"{language} {year} one .\n{language} {year} two ."
    mirror.archive(host / "dev.tgz", members)
    # The small training text contains few characters as subwords of their own.
    assert main("wmt14-en-fr", tmp_path / "data", "--raw", host, "--allow-low-ceiling") == 0
    assert record_of(tmp_path / "data")["lines"]["valid"]["out"] == 4
    assert len(read_lines(tmp_path / "data" / "ref" / "valid.fr")) == 4


def test_second_host_replaces_missing_archives_and_is_kept(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alternates contain the same members in zip archives."""
    other = shutil.copytree(hosts["de"], tmp_path / "other")
    for name in ("training-parallel-europarl-v7", "training-parallel-commoncrawl", "training-parallel-nc-v9"):
        with tarfile.open(other / f"{name}.tgz") as tar:
            members = {item.name: tar.extractfile(item).read() for item in tar}  # type: ignore[union-attr]
        mirror.archive(other / f"{name}.zip", dict(members))
        (other / f"{name}.tgz").unlink()
    assert main("wmt14-en-de", tmp_path / "data", "--mirror", other.as_uri()) == 0
    output = capsys.readouterr().out
    assert output.index("europarl-v7.tgz: ") < output.index("europarl-v7.zip: downloading from")
    found, expected = content(tmp_path / "data"), content(en_de)
    # Otherwise the corpus would change halfway, as soon as the first host responds again.
    assert main("wmt14-en-de", tmp_path / "again", "--mirror", hosts["de"].as_uri()) == 0
    assert content(tmp_path / "again") == found
    assert found.pop("corpus.json") != expected.pop("corpus.json") and found == expected


def test_flags_determine_the_data_folder(hosts: dict[str, Path], tmp_path: Path) -> None:
    flags = ["--raw", hosts["de"], "--no-clean", "--normalize", "both", "--limit", 7, "--vocab-size", 120]
    assert main("wmt14-en-de", tmp_path / "data", *flags) == 0
    corpus = record_of(tmp_path / "data")
    assert corpus["lines"]["train"] == {"in": 21, "out": 21, "dropped": {}, "half_empty": 0}
    assert (corpus["text"]["normalize"], corpus["vocab_size"], corpus["asked"]["limit"]) == ("both", 120, 7)
    assert corpus["lines"]["valid"]["in"] == corpus["lines"]["test"]["in"] == 7
    assert len(read_lines(tmp_path / "data" / "dict.en.txt")) <= 120


def test_finished_folder_is_reused(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shutil.copytree(en_de, tmp_path / "data")
    before = {file: file.stat().st_mtime_ns for file in data.rglob("*")}
    (tmp_path / "data.partial").mkdir()  # from a run that was killed at its very end
    (tmp_path / "data.partial" / "text.json").write_text("{}")
    for flags in (["--mirror", "file:///nowhere"], ["--raw", hosts["de"]]):
        assert main("wmt14-en-de", data, *flags) == 0
        assert "already contains this corpus" in capsys.readouterr().out
    assert not (tmp_path / "data.partial").exists()
    assert {file: file.stat().st_mtime_ns for file in data.rglob("*")} == before


# ------------------------------------------------------------------------------------------------ IWSLT'15


@pytest.fixture(scope="module")
def en_vi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return IWSLT'15 EN-VI in each of its forms, with equal sentences: FORM is a data folder, FORM.raw its text."""
    folder = tmp_path_factory.mktemp("en-vi")
    found = {}
    for form in ("stanford", "plain", "xml"):
        found[f"{form}.raw"] = mirror.iwslt15(folder / "raw" / form, form)
        found[form] = folder / form
        assert main("iwslt15-en-vi", found[form], "--raw", found[f"{form}.raw"]) == 0
    return found


def test_all_three_forms_contain_the_same_text(en_vi: dict[str, Path]) -> None:
    for split in SPLITS:
        for language in ("en", "vi"):
            texts = [decoded(en_vi[form], split, language) for form in ("stanford", "plain", "xml")]
            assert texts[0] == texts[1] == texts[2] and len(texts[0]) == (200 if split == "train" else 25)
    assert {form: record_of(en_vi[form])["text"]["form"] for form in ("stanford", "plain", "xml")} == {
        "stanford": "escaped",
        "plain": "moses",
        "xml": "moses",
    }
    assert record_of(en_vi["stanford"])["bleu_tokenize"] == "none" and record_of(en_vi["xml"])["bleu_tokenize"] == "13a"
    raw = en_vi["stanford.raw"] / "tst2013.vi"
    assert (en_vi["stanford"] / "ref" / "test.vi").read_bytes() == raw.read_bytes()
    assert b"&quot;" in raw.read_bytes()
    # Restored text has the same escaped characters, and nothing else changes.
    assert record_of(en_vi["stanford"])["round_trip"]["test"]["exact"] == 25


def test_forms_are_not_mixed(en_vi: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = shutil.copytree(en_vi["stanford.raw"], tmp_path / "mixed")
    shutil.copy(en_vi["plain.raw"] / "tst2013.vi", mixed)
    assert main("iwslt15-en-vi", tmp_path / "out", "--raw", mixed) == 2
    error = capsys.readouterr().err
    assert "several releases of the corpus" in error and "test tst2013.vi is plain" in error and "is stanford" in error
    # The test sets come from one folder and the training text from another.
    for side in ("en", "vi"):
        (mixed / f"train.{side}").unlink()
        shutil.copy(en_vi["stanford.raw"] / f"tst2013.{side}", mixed)
    assert main("iwslt15-en-vi", tmp_path / "out", "--raw", mixed, "--raw", en_vi["xml.raw"]) == 2
    assert "train train.vi is xml" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_released_test_sets_are_recognised_by_checksum(en_vi: dict[str, Path]) -> None:
    assert "test tst2013.vi is not the released text (sha256 differs)" in record_of(en_vi["stanford"])["differences"]
    assert not any("sha256" in line for line in record_of(en_vi["plain"])["differences"])
