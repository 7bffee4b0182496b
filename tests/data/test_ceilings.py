"""References that no model can produce."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from support import mirror
from support.preparing import Released, build, record_of

pytestmark = pytest.mark.once


def test_unreachable_references_are_refused_with_their_cause(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for prefix in raw.values():
        file = Path(f"{prefix}.xx")
        file.write_text(unicodedata.normalize("NFD", file.read_text()), encoding="utf-8")
    assert build(raw, tmp_path / "data") == 2
    error = capsys.readouterr().err
    assert "the best possible BLEU on the" in error and "sentencepiece's normaliser nmt_nfkc" in error
    assert "--spm-normalizer identity" in error and "--allow-low-ceiling" in error
    assert not (tmp_path / "data").exists()
    assert build(raw, tmp_path / "data", "--allow-low-ceiling") == 0
    output = capsys.readouterr().out
    assert output.count("already done") == 4 and "warning: the best possible BLEU on the" in output
    trip = record_of(tmp_path / "data")["round_trip"]["test"]
    assert trip["bleu"] < 95 and trip["lost"] == {"unknown": 0, "normalizer": 203, "form": 0}
    assert build(raw, tmp_path / "same", "--spm-normalizer", "identity") == 0
    record = record_of(tmp_path / "same")
    assert record["subwords"]["normalizer"] == "identity" and record["round_trip"]["test"]["exact"] == 203


def test_unseen_characters_are_refused_but_samples_only_warn(
    released: Released, raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(f"{raw['test']}.xx")
    file.write_text(file.read_text().replace("a", "ж"), encoding="utf-8")
    assert build(raw, tmp_path / "own") == 2
    assert (
        "contain characters that are missing from the training text, or that occur there only inside longer subwords"
        in capsys.readouterr().err
    )
    host, main = released
    left, right = mirror.sides(mirror.pairs(20, ("en", "de"), 8))
    stem = "test-full/newstest2014-deen"
    strange = {f"{stem}-src.en.sgm": mirror.sgm(left), f"{stem}-ref.de.sgm": mirror.sgm(right.replace("e", "ж"))}
    mirror.archive(host / "test-full.tgz", dict(strange))
    flags = ["--raw", host, "--allow-other-data", "--vocab-size", 200]
    assert main("limited", *flags, "--limit", 15) == 0
    assert "warning: the best possible BLEU on the" in capsys.readouterr().out
    assert main("uncut", *flags, "--limit", 1000) == 2
    assert main("whole", *flags) == 2


def test_subwords_that_the_training_text_lacks_are_not_produced(raw: dict[str, Path], tmp_path: Path) -> None:
    """fairseq's dictionary lacks them, so they would be read as <unk>, although shorter subwords spell the same."""
    for language in ("en", "xx"):
        train, test = (Path(f"{raw[split]}.{language}") for split in ("train", "test"))
        text, lines = train.read_text(encoding="utf-8"), test.read_text(encoding="utf-8").splitlines()
        letters = sorted(set("".join(lines) + text) - {" ", "\n"})
        train.write_text(text + "".join(letters) + "\n" + "".join(reversed(letters)) + "\n", encoding="utf-8")
        # New words that begin like known ones.
        test.write_text("".join(f"{line[: len(line) // 2]}{line[3:]}\n" for line in lines), encoding="utf-8")
    assert build(raw, tmp_path / "data", "--vocab-size", "100") == 0
    dictionary = Dictionary.load(str(tmp_path / "data/dict.en.txt"))
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "data/spm.model"))
    pieces = {number: model.id_to_piece(number) for number in range(3, model.vocab_size())}
    unused = {piece for number, piece in pieces.items() if model.is_unused(number)}
    assert unused == {piece for piece in pieces.values() if len(piece) > 1 and piece not in dictionary.indices} != set()
    for split in ("train", "valid", "test"):
        for language in ("en", "xx"):
            binary = load_indexed_dataset(str(tmp_path / f"data/{split}.en-xx.{language}"), dictionary)
            assert not any((binary[line] == dictionary.unk()).any() for line in range(len(binary)))
    assert record_of(tmp_path / "data")["round_trip"]["test"]["bleu"] == 100.0
