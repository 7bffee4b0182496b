"""Odd text in preparation, translation and scoring: no crash, no lost line, no change of order."""

from __future__ import annotations

import io
import random
import re
import shutil
import sys
import unicodedata
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_resid.data.text import forms, parallel, tokenise
from fairseq_resid.data.text.forms import TextForm
from fairseq_resid.evaluation import translate
from fairseq_resid.evaluation.translate import Translator
from fairseq_resid.files import read_lines
from fairseq_resid.scoring import decoding, translation_scores
from fairseq_resid.scoring.source import token_ids
from support.preparing import build, record_of

BLANK = ["", " ", "\t", "\u200b", "\u00a0\u3000", "\ufeff", "▁"]
ODD = [
    "a\u2028b", "a\u2029b", "a\u0085b", "a\x0cb", "a\x0bb", "a\rb", "a\x1eb\x1fc", "no-break\u00a0space \u202f \u3000",
    "\ufeffa byte-order mark", "zero\u200bwidth\u200cjoiners\u200d \u2060", "soft\u00adhyphen", "tab\tand  two spaces ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇻🇳 👍🏽 1️⃣", "\U0001d573 \ue000", "e\u0301 e\u0323\u0302",
    "שלום \u200f(a) \u202babc\u202c", "مرحبا ١٢", "漢字かな ｶﾅ",
    "ﬁ ½ Ⅳ ① ™", "İstanbul ISTANBUL ß ẞ ς", "a▁b ▁ ▁▁c", "<s> </s> <pad> <unk> x</s>", "<Lua heritage> <2vi> ###",
    "&amp;quot; &quot; &#124; & ; <b> [c] 'd' \"e\" |", "@@ ab@@ @-@ ##AT##-##AT##", "H-3\t-0.5\t▁a", "D-0\t-0.5\ta b",
    '{"epoch": 1, "num_updates": "2"}', "red \x1b[31m \x07 \x7f", "-- --flag $HOME `x` %s {0} \\n", "1,000.5 1e999 NaN",
    "a" * 10_000, "word " * 2_000,
]  # fmt: skip
LINES = BLANK + ODD
UNUSABLE = [b"caf\xe9", b"\xff\xfea\x00b\x00", "漢".encode()[:2], b"a\xed\xa0\x80", b"a\0b", "ж".encode() * 10_001]
FORMS = [TextForm("en"), TextForm("en", "escaped"), TextForm("en", "moses"), TextForm("de", "moses", True, True),
         TextForm("vi", "moses")]  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("form", FORMS)
def test_any_line_survives_tokenising_and_restoring(form: TextForm) -> None:
    """After conversion for the model and back, a line is still one line, with plain spaces only.

    Untokenised text does not change otherwise.
    """
    for line in LINES:
        found = form.to_model(line)
        assert not forms.WHITE_SPACE.search(found) and found.splitlines() in ([found], [])
        restored = form.restore(found)
        assert "\n" not in restored
        if form.form == "plain":
            assert found == restored == "".join(" " if letter.isspace() else letter for letter in line)
        if form.form == "escaped":
            assert forms.escape(forms.unescape(restored)) == restored


@pytest.mark.once
@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_escapes_are_undone(line: str) -> None:
    assert forms.unescape(forms.escape(line)) == line


def write(folder: Path, name: str, sides: tuple[list[bytes], list[bytes]]) -> Path:
    for language, lines in zip(("en", "xx"), sides, strict=True):
        (folder / f"{name}.{language}").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder / name


@pytest.mark.once
def test_cleaning_keeps_usable_pairs_in_order(tmp_path: Path) -> None:
    """Each pair is either kept in order or dropped and counted."""
    lines = [line.encode() for line in LINES]
    sides = (
        [b"first", *lines, *UNUSABLE, *lines],
        [b"erste", *lines[::-1], *[b"gut\r"] * (len(UNUSABLE) + len(lines))],
    )
    prefix = write(tmp_path, "raw", sides)
    both, outputs = ((Path(f"{stem}.en"), Path(f"{stem}.xx")) for stem in (prefix, tmp_path / "out"))
    found = tokenise.tokenise("test", [both], outputs, (TextForm("en"), TextForm("xx")), True, 2)
    expected, control = [], re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
    for raw in zip(*sides, strict=True):
        if any(line in UNUSABLE for line in raw):
            continue
        source, target = (line.decode().removesuffix("\r") for line in raw)
        if (
            not control.search(source + target)
            and source.strip()
            and target.strip()
            and source.strip() != target.strip()
        ):
            expected.append((re.sub(r"\s", " ", source), re.sub(r"\s", " ", target)))
    assert list(zip(*(read_lines(path) for path in outputs), strict=True)) == expected
    assert found.read == len(sides[0]) and found.kept == len(expected)
    assert sum(found.dropped.values()) == found.read - found.kept
    assert all(found.dropped[reason] for reason in ("not_utf8", "too_long", "control_characters", "empty"))


@pytest.mark.once
@pytest.mark.parametrize(("wrong", "side"), [(UNUSABLE[0], 0), (b"a\0b", 1), (UNUSABLE[-1], 1)], ids=range(3))
def test_unusable_line_is_reported(wrong: bytes, side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cleaning, and in validation or test text, the error names the file and the first unusable line."""
    monkeypatch.setattr(parallel, "SHARD_LINES", 4)
    good = [line.encode() for line in LINES]
    sides = (list(good), list(good))
    sides[side][20] = wrong
    both = tuple(Path(f"{write(tmp_path, 'raw', sides)}.{language}") for language in ("en", "xx"))
    named = f"{re.escape(str(both[side]))}:21: "
    outputs = (tmp_path / "out.en", tmp_path / "out.xx")
    with pytest.raises(ValueError, match=f"^{named}.*--clean drops such pairs and very uneven ones$"):
        tokenise.tokenise("test", [both], outputs, (TextForm("en"), TextForm("xx")), False, 2)
    assert not active_children() and parallel.measure(both[side]).lines == len(LINES)


def read_back(data: Path, split: str, language: str) -> list[list[str]]:
    """Return the subwords of every line of a data folder, as fairseq reads them."""
    from fairseq.data import Dictionary, data_utils

    words = Dictionary.load(str(data / f"dict.{language}.txt"))
    stored = data_utils.load_indexed_dataset(str(data / f"{split}.en-xx.{language}"), words, "mmap")
    assert all(int(item[-1]) == words.eos() for item in stored)
    return [[words[int(number)] for number in item[:-1]] for item in stored]


@pytest.mark.parametrize("normalizer", ["nmt_nfkc", "identity"])
def test_data_folder_contains_the_given_text(normalizer: str, tmp_path: Path) -> None:
    """`prepare custom` keeps all lines in order, as segmented by sentencepiece, and leaves references unchanged."""
    import sentencepiece

    texts = {}
    for split in ("train", "valid", "test"):
        lines = [line.encode() for line in LINES] * (3 if split == "train" else 1)
        texts[split] = ([b"the first line", *lines], [b"the first line", *lines[::-1]])
        write(tmp_path, split, texts[split])
    letters = {letter for line in LINES for letter in line + unicodedata.normalize("NFKC", line)}
    flags = ["--vocab-size", len(letters) + 40, "--workers", 2, "--allow-low-ceiling", "--spm-normalizer", normalizer]
    assert build({split: tmp_path / split for split in texts}, tmp_path / "data", *flags) == 0
    record = record_of(tmp_path / "data")
    assert {split: lines["out"] for split, lines in record["lines"].items()} == {
        split: len(sides[0]) for split, sides in texts.items()
    }

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "data" / "spm.model"))
    dictionary = {line.split(" ")[0] for line in read_lines(tmp_path / "data" / "dict.en.txt")}
    for split, sides in texts.items():
        for language, lines in zip(("en", "xx"), sides, strict=True):
            found = read_back(tmp_path / "data", split, language)
            assert len(found) == len(lines)
            for line, stored in zip(lines, found, strict=True):
                cut = pieces.encode(re.sub(r"\s", " ", line.decode()), out_type=str)
                assert stored == [piece if piece in dictionary else "<unk>" for piece in cut], line
            if split != "train":
                written = b"".join(line + b"\n" for line in lines)
                assert (tmp_path / "data" / "ref" / f"{split}.{language}").read_bytes() == written


def test_fairseq_symbols_in_text_become_unknown_subwords(tmp_path: Path) -> None:
    """Without Latin letters in the vocabulary, `</s>` in a text becomes unknown and must not end the sentence."""
    odd = ["да <s> нет", "</s>", "<pad> да<pad>", "нет <unk>", "да"]
    choose = random.Random(8)
    for split, size in (("train", 400), ("valid", 20), ("test", 0)):
        lines = [" ".join(choose.choices(["да", "нет", "дом", "мама"], k=4)) for _ in range(size)] or odd
        write(tmp_path, split, ([line.encode() for line in lines],) * 2)
    prefixes = {split: tmp_path / split for split in ("train", "valid", "test")}
    assert build(prefixes, tmp_path / "data", "--vocab-size", 24, "--allow-low-ceiling") == 0
    assert read_back(tmp_path / "data", "test", "en") == [
        ["▁да", "<unk>", "<unk>", "▁нет"], ["<unk>", "<unk>"], ["<unk>", "<unk>", "▁да", "<unk>"],
        ["▁нет", "<unk>", "<unk>"], ["▁да"],
    ]  # fmt: skip
    trip = record_of(tmp_path / "data")["round_trip"]["test"]
    assert trip["lost"] == {"unknown": 4, "normalizer": 0, "form": 0}


@pytest.mark.once
def test_any_text_survives_log_and_scoring(tmp_path: Path) -> None:
    """Hypotheses are read from fairseq-generate's log in order, and every text gets a valid score."""
    # Plain spaces only, as in dictionaries: to_model replaces all other white space.
    found = [re.sub(r"\s", " ", line).strip() for line in LINES]
    log, order = tmp_path / "test.log", list(range(len(found)))
    random.Random(11).shuffle(order)
    with log.open("w", encoding="utf-8", newline="\n") as file:
        for number in order:
            for kind, rest in (("S", found[-number]), ("T", found[-number]), ("H", f"-0.5\t{found[number]}")):
                file.write(f"{kind}-{number}\t{rest}\n")
            file.write(f"D-{number}\t-0.5\t{found[number]}\nP-{number}\t-0.5\n")
    assert decoding.read_hypotheses(log) == found
    for form in (TextForm("en"), TextForm("de", "moses"), TextForm("vi", "escaped")):
        scores = translation_scores.side_by_side(found, found[::-1], form)
        assert all(0 <= score.score <= 100 for score in scores.values())
    assert translation_scores.bleu(found, found).score == pytest.approx(100)
    assert len(translation_scores.statistics(found, found[::-1])) == len(found)


# ------------------------------------------------------------------------------------------------ translation


@pytest.fixture(scope="module")
def translator(sas_checkpoint: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    run = tmp_path_factory.mktemp("odd") / "run"
    run.mkdir()
    shutil.copy(sas_checkpoint, run / "checkpoint_last.pt")
    return Translator(run, corpus, cpu=True)


def test_translations_keep_the_order_of_lines(
    translator: Translator, corpus: Path, capsysbinary: Any, monkeypatch: Any
) -> None:
    """Known sentences among odd lines keep their translations; a line that is too long is reported."""
    with pytest.raises(ValueError, match=r"^line 7: 5,00\d subwords; the model accepts at most 1,024"):
        translator.encode("the " * 5_000, 7)
    sentences = read_lines(corpus / "ref" / "test.en")[:20]
    of = dict(zip(sentences, translator.translate(sentences), strict=True))
    lines = []
    for number, line in enumerate(LINES):
        lines += [line] * (len(line) < 300) + [sentences[number % 20]]
    monkeypatch.setattr(translate, "Translator", lambda *_: translator)
    stdin = "".join(line + "\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert translate.main(["run"]) == 0
    out = capsysbinary.readouterr().out.decode().split("\n")
    assert out.pop() == "" and len(out) == len(lines)
    assert all(of.get(line, answer) == answer for line, answer in zip(lines, out, strict=True))
    assert [answer for line, answer in zip(lines, out, strict=True) if line in BLANK] == [""] * len(BLANK)


def test_untranslatable_line_is_reported_after_translating_earlier_lines(
    translator: Translator, corpus: Path, capsysbinary: Any, monkeypatch: Any
) -> None:
    sentences = read_lines(corpus / "ref" / "test.en")[:7]
    monkeypatch.setattr(translate, "Translator", lambda *_: translator)
    monkeypatch.setattr(translate, "BUFFER", 4)
    stdin = "".join(f"{one}\n" for one in sentences).encode() + UNUSABLE[0] + b"\nafter\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert translate.main(["run"]) == 2
    out, error = capsysbinary.readouterr()
    assert out.decode() == "".join(f"{one}\n" for one in translator.translate(sentences))
    assert error.decode().startswith("fairseq-resid translate: error: line 8: ") and error.count(b"\n") == 1, error


def test_source_that_looks_like_fairseq_symbols_translates(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator.text.segmenter, "encode", lambda lines: [line.split() for line in lines])
    words = translator.hub.src_dict
    found = token_ids(translator.encode("<s> ▁the </s> <pad> <unk>", 1), words)
    assert found.tolist() == [words.unk(), words.index("▁the"), words.unk(), words.unk(), words.unk(), words.eos()]
