"""Evaluation text that occurs in the training text, and repeated pairs."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from fairseq_resid.data.text import checks
from fairseq_resid.data.text.folder import Overlap, PairCounts
from fairseq_resid.files import read_lines
from support.preparing import build, record_of

pytestmark = pytest.mark.once


def test_evaluation_pairs_in_training_are_counted_listed_and_removed(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {side: read_lines(Path(f"{raw['train']}.{side}")) for side in ("en", "xx")}
    valid = {side: read_lines(Path(f"{raw['valid']}.{side}")) for side in ("en", "xx")}
    # Line 4 of the validation set repeats a training pair, line 5 only a source, and line 6 only a target.
    pair, alone = ("the zebra sings .", "la zebro kantas ."), ("the zebra sits .", "la zebro sidas .")
    valid["en"][3:6] = [pair[0], alone[0], valid["en"][5]]
    valid["xx"][3:6] = [pair[1], valid["xx"][4], alone[1]]
    train["en"] += [pair[0], pair[0], alone[0], *train["en"][:7]]
    train["xx"] += [pair[1], pair[1], alone[1], *train["xx"][:7]]
    for name, text in (("train", train), ("valid", valid)):
        for side, lines in text.items():
            Path(f"{raw[name]}.{side}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert build(raw, tmp_path / "data", "--show") == 0
    output = capsys.readouterr().out
    found = record_of(tmp_path / "data")["overlap"]["valid"]
    assert 4 in found["pair"] and 4 in found["source"] and 4 in found["target"]
    assert 5 in found["source"] and 5 not in found["target"] and 5 not in found["pair"]
    assert 6 in found["target"] and 6 not in found["source"]
    assert f"; also in the training text: {len(found['source'])} sources, " in output
    assert f"valid:4 pair: {pair[0]} ||| {pair[1]}" in output and f"valid:6 target: {alone[1]}" in output
    # This also works for an existing folder.
    assert build(raw, tmp_path / "data", "--show") == 0
    assert f"valid:5 source: {alone[0]}" in capsys.readouterr().out

    everything = [*zip(train["en"], train["xx"], strict=True)]
    held_out = {*zip(valid["en"], valid["xx"], strict=True)}
    held_out |= {*zip(*(read_lines(Path(f"{raw['test']}.{side}")) for side in ("en", "xx")), strict=True)}
    kept = [one for number, one in enumerate(everything) if one not in held_out and one not in everything[:number]]
    assert build(raw, tmp_path / "less", "--deduplicate", "--allow-low-ceiling") == 0
    counts = record_of(tmp_path / "less")["lines"]["train"]
    assert counts["out"] == len(kept) and counts["in"] == len(everything)
    in_evaluation = sum(one in held_out for one in everything)
    repeated = len(everything) - len(kept) - in_evaluation
    assert counts["dropped"] == {"repeated": repeated, "in_evaluation": in_evaluation} and repeated >= 7
    assert record_of(tmp_path / "less")["overlap"]["valid"]["pair"] == []
    assert build(raw, tmp_path / "data", "--deduplicate") == 2
    assert "deduplicate is False, not True" in capsys.readouterr().err


def test_pairs_that_the_model_cannot_distinguish_are_removed(raw: dict[str, Path], tmp_path: Path) -> None:
    """Unicode forms and repeated or trailing spaces disappear in the subword model's own normalisation."""
    for side in ("en", "xx"):
        train, test = (Path(f"{raw[split]}.{side}") for split in ("train", "test"))
        lines = read_lines(train)
        varied = [unicodedata.normalize("NFD", line) for line in read_lines(test)]
        varied += [line.replace(" ", "  ") + " " for line in lines]
        train.write_text("".join(line + "\n" for line in [*lines, *varied]), encoding="utf-8")
    assert build(raw, tmp_path / "data", "--deduplicate", "--allow-low-ceiling") == 0
    record = record_of(tmp_path / "data")
    assert record["overlap"]["test"]["pair"] == []
    dropped = record["lines"]["train"]["dropped"]
    assert dropped["in_evaluation"] >= 203 and dropped["repeated"] >= 250


def test_test_set_from_the_training_text_causes_a_warning(
    raw: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("en", "xx"):
        lines = read_lines(Path(f"{raw['train']}.{side}"))[:40]
        Path(f"{raw['test']}.{side}").write_text("".join(line + "\n" for line in lines))
    assert build(raw, tmp_path / "data") == 0
    said = capsys.readouterr().err
    assert f"{tmp_path / 'data'}: warning: 40 of 40 pairs of test are also training pairs: " in said
    assert build(raw, tmp_path / "less", "--deduplicate") == 0
    assert "warning" not in capsys.readouterr().err


def test_deduplication_keeps_first_pairs_in_order(tmp_path: Path) -> None:
    def write(name: str, lines: list[str]) -> Path:
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return tmp_path / name

    train = write("train.a", ["x", "y", "x", "x", "z"]), write("train.b", ["1", "2", "1", "3", "4"])
    test = write("test.a", ["z"]), write("test.b", ["4"])
    outputs = tmp_path / "out.a", tmp_path / "out.b"
    assert checks.deduplicate(train, [test], outputs, None, str) == PairCounts(
        5, 3, {"repeated": 1, "in_evaluation": 1}
    )
    assert [file.read_text() for file in outputs] == ["x\ny\nx\n", "1\n2\n3\n"]
    found = checks.overlap(train, {"test": test}, None)
    assert found == {"test": Overlap((1,), (1,), (1,))}
