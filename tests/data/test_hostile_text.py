"""Hostile text in preparation, translation and scoring: no crash, no lost line, no change of order."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_resid.data.text import custom, shards, tokenise
from fairseq_resid.data.text import forms as text
from fairseq_resid.data.text.forms import TextForm
from fairseq_resid.evaluation import translate
from fairseq_resid.evaluation.translate import Translator
from fairseq_resid.files import read_lines, read_pairs
from fairseq_resid.scoring import decoding, translation_scores
from support import hostile_lines


def cases(count: int) -> pytest.MarkDecorator:
    """Parametrize a test over `count`: long runs test this number of lines, and every run tests a fiftieth of it."""
    return pytest.mark.parametrize("count", [pytest.param(count // 50), pytest.param(count, marks=pytest.mark.long)])


FORMS = [
    TextForm("en"), TextForm("en", "escaped"), TextForm("en", "moses"), TextForm("de", "moses", True, True),
    TextForm("fr", "moses", True), TextForm("vi", "moses"),
]  # fmt: skip


@pytest.mark.once
@cases(20_000)
def test_any_line_survives_tokenising_and_restoring(count: int) -> None:
    """After conversion for the model and back, a line is still one line, with plain spaces only.

    Untokenised text does not change otherwise.
    """
    for number, line in enumerate(hostile_lines.valid(1, count)):
        form = FORMS[number % len(FORMS)]
        found = form.to_model(line)
        assert not text.WHITE_SPACE.search(found) and found.splitlines() in ([found], [])
        restored = form.restore(found)
        assert "\n" not in restored
        if form.form == "plain":
            assert found == restored == "".join(" " if letter.isspace() else letter for letter in line)
        if form.form == "escaped":
            assert text.escape(text.unescape(restored)) == restored


@pytest.mark.once
@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_escapes_are_undone(line: str) -> None:
    assert text.unescape(text.escape(line)) == line


def usable(raw: bytes) -> str | None:
    """Return the text of a raw line if cleaning must keep it, computed by an independent implementation."""
    raw = raw[:-1] if raw.endswith(b"\r") else raw
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return line if len(line) <= 10_000 and "\0" not in line else None


def is_control(character: str) -> bool:
    return character != "\t" and (character < " " or "\x7f" <= character < "\xa0")


def numbered(lines: Iterator[bytes]) -> list[bytes]:
    """Append the line number to every third line, if it is short, so that the line can be recognised later."""
    return [
        line.rstrip(b"\r") + b" %d" % number if number % 3 == 0 and len(line) < 9000 else line
        for number, line in enumerate(lines)
    ]


def write(folder: Path, name: str, sides: tuple[list[bytes], list[bytes]]) -> Path:
    for language, lines in zip(("en", "xx"), sides, strict=True):
        (folder / f"{name}.{language}").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder / name


@pytest.mark.once
@cases(30_000)
def test_cleaning_keeps_usable_pairs_in_order(count: int, tmp_path: Path) -> None:
    """In files that mix text with arbitrary bytes, each pair is either kept in order or dropped and counted."""
    sides = tuple(numbered(hostile_lines.any_lines(seed, count // 2, 0.1)) for seed in (2, 3))
    prefix = write(tmp_path, "raw", sides)
    both, outputs = ((Path(f"{stem}.en"), Path(f"{stem}.xx")) for stem in (prefix, tmp_path / "out"))
    forms = (TextForm("en"), TextForm("xx"))
    found = tokenise.tokenise("test", [both], outputs, forms, True, 2)
    expected = []
    for raw in zip(*sides, strict=True):
        pair = [usable(line) for line in raw]
        if None in pair or any(is_control(character) for line in pair for character in line or ""):
            continue
        if all((line or "").strip() for line in pair) and pair[0].strip() != pair[1].strip():
            expected.append(tuple(re.sub(r"\s", " ", line) for line in pair))
    assert list(zip(*(read_lines(path) for path in outputs), strict=True)) == expected
    assert found.read == len(sides[0]) and found.kept == len(expected)
    assert sum(found.dropped.values()) == found.read - found.kept
    assert all(found.dropped[reason] for reason in ("not_utf8", "too_long", "control_characters", "empty"))


@pytest.mark.once
@cases(2_000)
def test_unusable_line_is_reported(count: int, tmp_path: Path) -> None:
    """Without cleaning, and in validation or test text, the error names the file and the first unusable line."""
    choose = random.Random(4)
    good = [line.encode() for line in hostile_lines.valid(5, 200, without=("long", "byte-order mark"))]
    for wrong in hostile_lines.bad(6, count):
        sides = (list(good), list(good))
        side, place = choose.randrange(2), choose.randrange(200)
        sides[side][place] = wrong
        both = tuple(Path(f"{write(tmp_path, 'raw', sides)}.{language}") for language in ("en", "xx"))
        named = f"{re.escape(str(both[side]))}:{place + 1}: "
        outputs = (tmp_path / "out.en", tmp_path / "out.xx")
        with pytest.raises(ValueError, match=f"^{named}.*--clean drops such pairs$"):
            tokenise.tokenise("test", [both], outputs, (TextForm("en"), TextForm("xx")), False, 1)
        if len(wrong) < 9000:
            with pytest.raises(ValueError, match=f"^{named}(not UTF-8|contains a NUL byte)"):
                read_pairs(*both)
        assert shards.measure(both[side]).lines == 200


def read_back(data: Path, split: str, language: str) -> list[list[str]]:
    """Return the subwords of every line of a data folder, as fairseq reads them."""
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(data / f"dict.{language}.txt"))
    stored = data_utils.load_indexed_dataset(str(data / f"{split}.en-xx.{language}"), words, "mmap")
    assert all(int(item[-1]) == words.eos() for item in stored)
    return [[words[int(number)] for number in item[:-1]] for item in stored]


@cases(30_000)
@pytest.mark.parametrize("normalizer", ["nmt_nfkc", "identity"])
def test_data_folder_contains_the_given_text(normalizer: str, count: int, tmp_path: Path) -> None:
    """`prepare custom` keeps all lines in order, as segmented by sentencepiece, and leaves references unchanged."""
    import sentencepiece

    splits = {"train": count * 3 // 10, "valid": count // 10, "test": count // 10}
    texts = {}
    for number, (split, size) in enumerate(splits.items()):
        sides = tuple(
            [b"the first line", *numbered(line.encode() for line in hostile_lines.valid(10 * number + side, size - 1))]
            for side in (0, 1)
        )
        texts[split] = sides
        write(tmp_path, split, sides)
    letters = {letter for side in texts["train"] for line in side for letter in line.decode()}
    letters |= {letter for one in letters for letter in unicodedata.normalize("NFKC", one)}
    flags = ["--name", "hostile", "--source", "en", "--target", "xx", "--vocab-size", str(len(letters) + 100)]
    flags += [word for split in splits for word in (f"--{split}", str(tmp_path / split))]
    flags += ["--out", str(tmp_path / "data"), "--workers", "2", "--allow-low-ceiling", "--spm-normalizer", normalizer]
    assert custom.main(flags) == 0
    record = json.loads((tmp_path / "data" / "corpus.json").read_text())
    assert {split: lines["out"] for split, lines in record["lines"].items()} == splits

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "data" / "spm.model"))
    unknown = 0
    dictionary = {line.split(" ")[0] for line in read_lines(tmp_path / "data" / "dict.en.txt")}
    for split, sides in texts.items():
        for language, lines in zip(("en", "xx"), sides, strict=True):
            found = read_back(tmp_path / "data", split, language)
            assert len(found) == len(lines)
            for line, stored in zip(lines, found, strict=True):
                cut = pieces.encode(re.sub(r"\s", " ", line.decode()), out_type=str)
                known = [piece if piece in dictionary else "<unk>" for piece in cut]
                unknown += known.count("<unk>")
                assert stored == known, line
            if split != "train":
                assert (tmp_path / "data" / "ref" / f"{split}.{language}").read_bytes() == b"".join(
                    line + b"\n" for line in lines
                )


def test_fairseq_symbols_in_text_become_unknown_subwords(tmp_path: Path) -> None:
    """Without Latin letters in the vocabulary, `</s>` in a text becomes unknown and must not end the sentence."""
    odd = ["да <s> нет", "</s>", "<pad> да<pad>", "нет <unk>", "да"]
    choose = random.Random(8)
    for split, size in (("train", 400), ("valid", 20), ("test", 0)):
        lines = [" ".join(choose.choices(["да", "нет", "дом", "мама"], k=4)) for _ in range(size)] or odd
        write(tmp_path, split, ([line.encode() for line in lines],) * 2)
    flags = ["--name", "odd", "--source", "en", "--target", "xx", "--vocab-size", "24", "--allow-low-ceiling"]
    flags += [word for split in ("train", "valid", "test") for word in (f"--{split}", str(tmp_path / split))]
    assert custom.main([*flags, "--out", str(tmp_path / "data"), "--workers", "1"]) == 0
    assert read_back(tmp_path / "data", "test", "en") == [
        ["▁да", "<unk>", "<unk>", "▁нет"], ["<unk>", "<unk>"], ["<unk>", "<unk>", "▁да", "<unk>"],
        ["▁нет", "<unk>", "<unk>"], ["▁да"],
    ]  # fmt: skip
    trip = json.loads((tmp_path / "data" / "corpus.json").read_text())["round_trip"]["test"]
    assert trip["lost"] == {"unknown": 4, "normalizer": 0, "form": 0}


@pytest.mark.once
@cases(10_000)
def test_any_text_survives_log_and_scoring(count: int, tmp_path: Path) -> None:
    """Hypotheses are read from fairseq-generate's log in order, and every text gets a valid score."""
    choose = random.Random(11)
    # Plain spaces only, as in dictionaries: to_model replaces all other white space.
    found = [re.sub(r"\s", " ", line).strip() for line in hostile_lines.valid(12, count)]
    log = tmp_path / "test.log"
    order = list(range(len(found)))
    choose.shuffle(order)
    with log.open("w", encoding="utf-8", newline="\n") as file:
        for number in order:
            for kind, rest in (("S", found[-number]), ("T", found[-number]), ("H", f"-0.5\t{found[number]}")):
                file.write(f"{kind}-{number}\t{rest}\n")
            file.write(f"D-{number}\t-0.5\t{found[number]}\nP-{number}\t-0.5\n")
    assert decoding.read_hypotheses(log) == found
    blocks = range(0, len(found), 40)
    for form in (TextForm("en"), TextForm("de", "moses"), TextForm("vi", "escaped")):
        for start in blocks if form.form == "plain" else blocks[:: max(1, len(blocks) // 10)]:
            some = found[start : start + 40]
            scores = translation_scores.side_by_side(some, some[::-1], form)
            assert all(0 <= score.value <= 100 for score in scores.values())
            assert translation_scores.bleu(some, some).value == pytest.approx(100)
            assert len(translation_scores.statistics(some, some[::-1])) == len(some)


# ------------------------------------------------------------------------------------------------ translation


@pytest.fixture(scope="module")
def translator(sas_checkpoint: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    run = tmp_path_factory.mktemp("hostile") / "run"
    run.mkdir()
    shutil.copy(sas_checkpoint, run / "checkpoint_last.pt")
    return Translator(run, corpus, cpu=True)


@cases(5_000)
def test_translations_keep_the_order_of_lines(
    count: int, translator: Translator, corpus: Path, capsysbinary: Any, monkeypatch: Any
) -> None:
    """Known sentences among hostile lines keep their translations; lines that are too long are reported."""
    sentences = read_lines(corpus / "ref" / "test.en")[:20]
    known = translator.translate(sentences)
    lines, refused = [], 0
    for number, line in enumerate(hostile_lines.valid(13, count)):
        try:
            translator.encode(line, number)
        except ValueError as error:
            assert re.fullmatch(rf"line {number}: 1?\d,\d\d\d subwords; the model accepts at most 1,024", str(error))
            refused += 1
            continue
        if len(line) < 300:  # for longer lines the tiny model generates nonsense for minutes
            lines.append(line)
        if number % 5 == 0:
            lines.append(sentences[number % 20])
    monkeypatch.setattr(translate, "Translator", lambda *_: translator)
    stdin = "".join(line + "\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert translate.main(["run"]) == 0
    out = capsysbinary.readouterr().out.decode().split("\n")
    assert out.pop() == "" and len(out) == len(lines)
    of = dict(zip(sentences, known, strict=True))
    assert all(of.get(line, answer) == answer for line, answer in zip(lines, out, strict=True))
    blank = [answer for line, answer in zip(lines, out, strict=True) if not re.sub(r"[\s▁\u200b\ufeff]", "", line)]
    assert blank and not any(blank)


@cases(500)
def test_untranslatable_line_is_reported_after_translating_earlier_lines(
    count: int, translator: Translator, corpus: Path, capsysbinary: Any, monkeypatch: Any
) -> None:
    choose = random.Random(14)
    sentences = read_lines(corpus / "ref" / "test.en")[:20]
    of = dict(zip(sentences, translator.translate(sentences), strict=True))
    monkeypatch.setattr(translate, "Translator", lambda *_: translator)
    monkeypatch.setattr(translate, "BUFFER", 4)
    for line in hostile_lines.bad(15, count, without=("NUL", "too many characters")):
        before = choose.choices(sentences, k=choose.randrange(9))
        stdin = "".join(f"{one}\n" for one in before).encode() + line + b"\nafter\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        assert translate.main(["run"]) == 2
        out, error = capsysbinary.readouterr()
        assert out.decode() == "".join(f"{of[one]}\n" for one in before)
        said = f"fairseq-resid translate: error: line {len(before) + 1}: "
        assert error.decode().startswith(said) and error.count(b"\n") == 1, error


def test_source_that_looks_like_fairseq_symbols_translates(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator.text.segmenter, "encode", lambda lines: [line.split() for line in lines])
    words = translator.hub.src_dict
    found = translator.encode("<s> ▁the </s> <pad> <unk>", 1)
    assert found is not None
    assert found.tolist() == [words.unk(), words.index("▁the"), words.unk(), words.unk(), words.unk(), words.eos()]
