"""data/text/custom.py: the content of the data folder, refused input, and no half-made folders."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from support.preparing import build, content, decoded, record_of

pytestmark = pytest.mark.once

COUNTS = {"train": 301, "valid": 43, "test": 203}


@pytest.mark.both
def test_data_folder_has_expected_files(corpus: Path, raw_text: dict[str, Path]) -> None:
    binary = {f"{split}.en-xx.{side}.{kind}" for split in COUNTS for side in ("en", "xx") for kind in ("bin", "idx")}
    reference = {f"ref/{split}.{side}" for split in ("valid", "test") for side in ("en", "xx")}
    beside = {"corpus.json", "spm.model", "dict.en.txt", "dict.xx.txt"}
    assert set(content(corpus)) == binary | reference | beside
    assert (corpus / "dict.en.txt").read_bytes() == (corpus / "dict.xx.txt").read_bytes()
    for name in reference:
        split, side = Path(name).name.split(".")
        assert (corpus / name).read_bytes() == Path(f"{raw_text[split]}.{side}").read_bytes()
    assert not corpus.with_name("data.partial").exists()


@pytest.mark.both
def test_corpus_json_records_the_preparation(corpus: Path, raw_text: dict[str, Path]) -> None:
    import sentencepiece

    record = record_of(corpus)
    assert (record["name"], record["source"], record["target"], record["vocab_size"]) == ("tiny", "en", "xx", 90)
    assert {split: lines["in"] for split, lines in record["lines"].items()} == COUNTS
    assert {split: lines["out"] for split, lines in record["lines"].items()} == COUNTS
    assert record["lines"]["train"]["dropped"] == {} and record["differences"] == []
    assert record["restore"] == {"post_process": "sentencepiece", "model": "spm.model"}
    assert record["text"] == {"form": "plain", "normalize": "none", "split_hyphens": False}
    assert record["subwords"] == {"model": "bpe", "normalizer": "nmt_nfkc"} and record["bleu_tokenize"] == "13a"
    assert record["unverified"] == []  # the user's own corpus has no release to compare with
    assert len(record["texts"]) == 6
    for label, item in record["texts"].items():
        split, file = label.split(" ")
        raw = Path(f"{raw_text[split]}.{file.split('.')[1]}").read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        unknown = {"member": None, "origin": None, "status": "unverified"}
        assert item == {"file": file, "lines": COUNTS[split], "sha256": digest, "file_sha256": digest, **unknown}
    assert record["round_trip"]["test"]["exact"] == record["round_trip"]["test"]["of"] == 203
    assert record["sizes"] == {name: (corpus / name).stat().st_size for name in record["checksums"]}
    assert record["checksums"] == {name: digest for name, digest in content(corpus).items() if name != "corpus.json"}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(corpus / "spm.model"))
    for split, counts in record["tokens"].items():
        for side, count in counts.items():
            lines = Path(f"{raw_text[split]}.{side}").read_text().splitlines()
            assert count == sum(len(pieces.encode(line)) for line in lines)


@pytest.mark.both
def test_binary_files_contain_the_text(corpus: Path, raw_text: dict[str, Path]) -> None:
    for split in COUNTS:
        for side in ("en", "xx"):
            assert decoded(corpus, split, side) == Path(f"{raw_text[split]}.{side}").read_text().splitlines()


def test_other_texts_make_a_different_corpus(
    corpus: Path, raw_text: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(corpus, tmp_path / "data")
    exchanged = {**raw_text, "valid": raw_text["test"], "test": raw_text["valid"]}
    assert build(exchanged, tmp_path / "data") == 2
    assert build(raw_text, tmp_path / "more", "--test", raw_text["test"], raw_text["valid"]) == 0
    assert build(raw_text, tmp_path / "more") == 2
    assert "a different corpus (it also has test1 " in capsys.readouterr().err


def test_subwords_are_learned_from_long_lines_too(raw: dict[str, Path], tmp_path: Path) -> None:
    for side in ("en", "xx"):
        for split in ("train", "valid"):
            with open(f"{raw[split]}.{side}", "a", encoding="utf-8") as file:
                file.write("ж " * (4_900 if split == "train" else 1) + "\n")
    assert build(raw, tmp_path / "data") == 0
    assert record_of(tmp_path / "data")["round_trip"]["valid"]["bleu"] == 100.0


def test_training_pairs_with_an_empty_side_are_counted(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, line in (("en", 4), ("en", 9), ("xx", 2)):
        file = Path(f"{raw['train']}.{side}")
        lines = file.read_text().splitlines()
        lines[line] = " "
        file.write_text("".join(f"{text}\n" for text in lines))
    kept, clean = tmp_path / "kept", tmp_path / "clean"
    assert build(raw, kept) == 0
    assert "; a side is empty in 3 of these pairs (--clean drops them)" in capsys.readouterr().out
    assert record_of(kept)["lines"]["train"]["half_empty"] == 3
    assert build(raw, clean, "--clean") == 0
    assert "298 of 301 pairs" in (shown := capsys.readouterr().out) and "a side is empty" not in shown


def test_texts_may_share_a_name_in_different_folders(raw_text: dict[str, Path], tmp_path: Path) -> None:
    prefixes = {}
    for split, prefix in raw_text.items():
        prefixes[split] = tmp_path / split / "text"
        prefixes[split].parent.mkdir()
        for side in ("en", "xx"):
            shutil.copy(f"{prefix}.{side}", f"{prefixes[split]}.{side}")
    for _ in range(2):
        assert build(prefixes, tmp_path / "data") == 0
    record = record_of(tmp_path / "data")
    assert [item["lines"] for item in record["texts"].values()] == [301, 301, 43, 43, 203, 203]
