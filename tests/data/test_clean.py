"""text/{clean,tokenise,subwords}.py: the pairs that are kept, and the changes to the text."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from fairseq_resid.data.text import clean, subwords
from fairseq_resid.data.text.folder import PairCounts
from fairseq_resid.data.text.forms import TextForm
from fairseq_resid.data.text.tokenise import tokenise
from support import mirror

pytestmark = pytest.mark.once

LIMITS = clean.Limits(250, 1.5)
PLAIN = (TextForm("en"), TextForm("de"))
MOSES = (TextForm("en", "moses", True), TextForm("de", "moses", True))


def write(folder: Path, source: bytes, target: bytes) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    (folder / "in.en").write_bytes(source)
    (folder / "in.de").write_bytes(target)
    return folder / "in.en", folder / "in.de"


def run(
    folder: Path,
    source: bytes,
    target: bytes,
    cleaned: bool = True,
    forms: tuple[TextForm, TextForm] = PLAIN,
    workers: int = 1,
) -> tuple[list[bytes], list[bytes], PairCounts]:
    """Tokenise a text; return the lines of both sides and the counts."""
    outputs = (folder / "out.en", folder / "out.de")
    counts = tokenise("test", [write(folder, source, target)], outputs, forms, cleaned, workers)
    left, right = (path.read_bytes().split(b"\n")[:-1] for path in outputs)
    assert len(left) == len(right) == counts.kept
    return left, right, counts


BAD = {
    "not_utf8": b"caf\xe9 au lait",
    "too_long": "ä".encode() * 600_000,  # longer than a block
    "control_characters": b"a bell \x07 rings",
    "empty": b" \t ",
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("side", [0, 1])
def test_each_reason_to_drop_pairs_is_counted(tmp_path: Path, reason: str, side: int) -> None:
    texts = [b"one\ntwo\nthree\n", b"eins\nzwei\ndrei\n"]
    lines = texts[side].split(b"\n")
    lines[1] = BAD[reason]
    texts[side] = b"\n".join(lines)
    left, right, counts = run(tmp_path, *texts)
    assert (left, right) == ([b"one", b"three"], [b"eins", b"drei"])
    assert counts == PairCounts(3, 2, {name: int(name == reason) for name in clean.RAW_REASONS})


@pytest.mark.parametrize(
    "line, is_dropped",
    [
        (b"tab\tand\xc2\xa0no-break space", False),
        ("U+2028 \u2028 is not a control character".encode(), False),
        (b"carriage \r return inside", True),
        (b"nul \0", True),
        ("next line \u0085".encode(), True),
        ("ä".encode() * 10_000, False),
        (b"same", True),
        (b" same \t", True),
    ],
)
def test_only_unusable_pairs_are_dropped(tmp_path: Path, line: bytes, is_dropped: bool) -> None:
    assert run(tmp_path, line + b"\n", b"same\n")[2].kept == int(not is_dropped)


def test_cleaning_keeps_duplicates(tmp_path: Path) -> None:
    assert run(tmp_path, b"one\n" * 5, b"eins\n" * 5)[2].kept == 5


def test_windows_line_endings_and_byte_order_marks_are_stripped(tmp_path: Path) -> None:
    left, right, _ = run(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n", b"\xef\xbb\xbfeins\r\nzwei")
    assert (left, right) == ([b"one", b"two"], [b"eins", b"zwei"])


def test_without_cleaning_nothing_is_dropped(tmp_path: Path) -> None:
    source = b"\nsame\n\x07\n" + b"a " * 400 + b"\n"
    left, right, counts = run(tmp_path, source, b"leer\nsame\nb\n\n", cleaned=False)
    assert counts == PairCounts(4, 4, {}) and len(left) == len(right) == 4


def test_tokenised_text_equals_that_of_sacremoses(tmp_path: Path) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    text = mirror.sides(mirror.pairs(400, ("en", "de")))
    found = run(tmp_path, text[0].encode(), text[1].encode(), forms=MOSES)
    for side, language in enumerate(("en", "de")):
        normalizer = MosesPunctNormalizer(language, post_remove_control_chars=True)
        tokenizer = MosesTokenizer(language)
        expected = [
            tokenizer.tokenize(normalizer.normalize(line), return_str=True, escape=False)
            for line in text[side].split("\n")[:-1]
        ]
        assert [line.decode() for line in found[side]] == expected
    assert run(tmp_path, b"one\ttwo\xe2\x80\x8bthree\n", b"eins\n", forms=MOSES)[0] == [b"one two three"]


LENGTHS = {
    None: [(1, 1), (250, 250), (2, 3), (3, 2)],
    "length": [(251, 250), (250, 251), (0, 1)],
    "ratio": [(20, 31), (31, 20), (1, 2)],
}


@pytest.mark.parametrize("reason", LENGTHS)
def test_length_and_ratio_limits_equal_those_of_clean_corpus_n(reason: str | None) -> None:
    assert [LIMITS.reason(*lengths) for lengths in LENGTHS[reason]] == [reason] * len(LENGTHS[reason])


def test_pairs_with_too_many_subwords_are_dropped_and_counted(tmp_path: Path) -> None:
    import sentencepiece

    items = mirror.pairs(600, ("en", "de"))
    items[5] = ("word " * 300, "Wort " * 300)
    items[9] = ("we", "einer sehr großen Stadt am Fluss mit alten Freunden")
    text = [side.encode() for side in mirror.sides(items)]
    files = write(tmp_path, *text)
    subwords.learn("sentencepiece", files, 600, 120, tmp_path / "spm.model")
    outputs = (tmp_path / "out.en", tmp_path / "out.de")
    counts, sides = subwords.encode("test", files, outputs, "sentencepiece", tmp_path / "spm.model", LIMITS, 1)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    encoded = [tuple(processor.encode(side, out_type=str) for side in pair) for pair in items]
    reasons = Counter(LIMITS.reason(len(left), len(right)) for left, right in encoded)
    kept = [pair for pair in encoded if LIMITS.reason(len(pair[0]), len(pair[1])) is None]
    assert reasons["length"] >= 1 and reasons["ratio"] >= 1
    assert counts == PairCounts(600, len(kept), {"length": reasons["length"], "ratio": reasons["ratio"]})
    assert sides == (sum(len(left) for left, _ in kept), sum(len(right) for _, right in kept))
    for side, path in enumerate(outputs):
        assert path.read_text().split("\n")[:-1] == [" ".join(pair[side]) for pair in kept]
    # Without limits every pair is kept.
    outputs = (tmp_path / "all.en", tmp_path / "all.de")
    assert subwords.encode("test", files, outputs, "sentencepiece", tmp_path / "spm.model", None, 1)[0].kept == 600


def test_restricted_model_contains_the_learned_bytes(tmp_path: Path) -> None:
    """Field 3 of a piece, 5 for "unused", is added to its message in the Protocol Buffers format, and nothing else."""
    import sentencepiece

    files = write(tmp_path, *(side.encode() for side in mirror.sides(mirror.pairs(600, ("en", "de")))))
    subwords.learn("sentencepiece", files, 600, 120, tmp_path / "spm.model")
    learned = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    pieces = [learned.id_to_piece(number) for number in range(3, learned.vocab_size())]
    unused = [piece for piece in pieces if len(piece) > 1][::2]
    expected = (tmp_path / "spm.model").read_bytes()
    for piece in unused:
        # The piece is field 1 of its message and followed by its score, field 2, which takes five bytes.
        text = piece.encode()
        start = expected.index(bytes([0x0A, len(text) + 7, 0x0A, len(text), *text]))
        end = start + 2 + len(text) + 7
        expected = (
            expected[: start + 1] + bytes([len(text) + 9]) + expected[start + 2 : end] + b"\x18\x05" + expected[end:]
        )
    subwords.restrict("sentencepiece", tmp_path / "spm.model", {*pieces} - {*unused}, tmp_path / "out.model")
    assert len(unused) > 20 and (tmp_path / "out.model").read_bytes() == expected


@pytest.mark.parametrize("pairs, sampled", [(1, 10), (9, 10), (10, 10), (11, 10), (20, 10), (29, 10), (1000, 7)])
def test_sample_is_even_and_bounded(tmp_path: Path, pairs: int, sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "SAMPLED", sampled)
    files = write(
        tmp_path, "".join(f"{i}\n" for i in range(pairs)).encode(), "".join(f"-{i}\n" for i in range(pairs)).encode()
    )
    found = list(subwords.sample(files, pairs))
    numbers = [int(line) for line in found[::2]]
    assert [line.removeprefix("-") for line in found[1::2]] == found[::2]
    assert len(numbers) <= sampled and (pairs > sampled or len(numbers) == pairs)
    assert len({right - left for left, right in itertools.pairwise(numbers)}) <= 1
