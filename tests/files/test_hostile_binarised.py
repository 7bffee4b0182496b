"""Damaged dictionaries and binarised texts are refused with one line before fairseq opens them."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairseq_resid.data.text.binarised import check_dictionaries, check_texts, require_subset
from fairseq_resid.data.text.folder import check
from fairseq_resid.data.text.segmentation import Segmenter

LENGTHS, POINTERS = 26, 26 + 4 * 203  # offsets in the index of the test set
NAME = "test.en-xx.xx"


@pytest.fixture
def data(corpus: Path, tmp_path: Path) -> Path:
    """Return a data folder as fairseq-preprocess makes it, without corpus.json."""
    folder = shutil.copytree(corpus, tmp_path / "data")
    (folder / "corpus.json").unlink()
    return folder


def overwrite(place: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:place] + content + whole[place + len(content) :]


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "index cut off": (".idx", lambda whole: whole[:500], "damaged: 500 bytes; its 203 sentences need 2,462"),
    "index that ends in its header": (".idx", lambda whole: whole[:20], "damaged: begins with b'MMIDIDX"),
    "empty index": (".idx", lambda _: b"", "damaged: begins with b''"),
    "random index": (".idx", lambda _: bytes(range(256)) * 9, r"damaged: begins with b'\\x00\\x01"),
    "version": (".idx", overwrite(9, b"\2"), "version 2: must be 1"),
    "unknown type": (".idx", overwrite(17, b"\x63"), "type of token ids 99: must be one of 1, 2"),
    "floating point": (".idx", overwrite(17, b"\6"), "type of token ids 6: must be"),
    "wrong type": (".idx", overwrite(17, b"\5"), r"damaged: sentence 2 has"),
    "giant count": (".idx", overwrite(18, b"\xff" * 8), "damaged: .* its 18,446,744,073,709,551,615 sent"),
    "no sentences": (".idx", lambda whole: whole[:18] + bytes(8), "contains no sentences"),
    "negative length": (".idx", overwrite(LENGTHS, b"\xff" * 4), "damaged: sentence 1 has -1 tokens"),
    "sentence without tokens": (".idx", overwrite(LENGTHS, bytes(4)), "damaged: sentence 1 has 0 tokens"),
    "pointer outside": (".idx", overwrite(POINTERS + 8 * 202, b"\xff" * 7 + b"\x7f"), "damaged: sentence 203 has"),
    "wrong pointer": (".idx", overwrite(POINTERS + 8, bytes(8)), "damaged: .* tokens at byte 0: must have at"),
    "binary cut off": (".bin", lambda whole: whole[:100], "damaged: 100 bytes, but test.en-xx.xx.idx needs"),
    "empty binary": (".bin", lambda _: b"", "damaged: 0 bytes"),
    "unknown token": (".bin", overwrite(40, b"\xff\xff"), "token id 65535: must be 0 to [0-9]+, because dict"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_binarised_text_is_reported(damage: str, data: Path) -> None:
    ending, change, message = DAMAGE[damage]
    file = data / f"{NAME}{ending}"
    file.write_bytes(change(file.read_bytes()))
    for subset in (None, "test"):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: {message}") as caught:
            check_texts(data, subset)
        assert "\n" not in str(caught.value)
    check_texts(data, "valid")


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_missing_half_of_binarised_text_is_reported(ending: str, data: Path) -> None:
    (data / f"{NAME}{ending}").unlink()
    with pytest.raises((ValueError, OSError), match=rf"{NAME}{ending}"):
        check_texts(data)


def test_sides_of_different_length_are_refused(data: Path) -> None:
    for ending in (".bin", ".idx"):
        shutil.copy(data / f"valid.en-xx.xx{ending}", data / f"{NAME}{ending}")
    with pytest.raises(ValueError, match=rf"{NAME}\.idx: 43 sentences, but test\.en-xx\.en\.idx has 203"):
        check_texts(data)


def test_missing_language_of_a_subset_is_reported(data: Path) -> None:
    for ending in (".bin", ".idx"):
        (data / f"{NAME}{ending}").unlink()
    with pytest.raises(ValueError, match="has no binarised test set in xx"):
        require_subset(data, "test", "en", "xx")
    require_subset(data, "valid", "en", "xx")
    (data / NAME).write_text("raw text, which fairseq reads too")
    require_subset(data, "test", "en", "xx")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"word count", "expected 'WORD COUNT'"), (b"word", "expected"), (b"", "expected"), (b"word 1.5", "expected"),
        (b"word #fairseq:overwrite", "expected"), (b"repeated 3", "repeats a word"), (b"<unk> 3", "repeats a word"),
        (b"one 1\rtwo", "expected"), (b"word " + b"9" * 5000, "expected"),
    ],
)  # fmt: skip
def test_invalid_line_of_a_dictionary_is_reported(line: bytes, shown: str, tmp_path: Path) -> None:
    from fairseq.data import Dictionary

    file = tmp_path / "dict.en.txt"
    file.write_bytes(b"repeated 7\n" + line + b"\nlast 1\n")
    with pytest.raises(ValueError, match=rf"dict\.en\.txt:[23]: .*{re.escape(shown)}") as caught:
        check_dictionaries(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    with pytest.raises((RuntimeError, ValueError)):
        Dictionary.load(str(file))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "a 1\nb 2",
        "a 1 #fairseq:overwrite\na 2 #fairseq:overwrite\n",
        " 4\na b 3\n",
        "\u2028 5\n",
        "a 1\r\nb -2\r\n",
    ],
)
def test_dictionary_that_fairseq_accepts_is_accepted(content: str, tmp_path: Path) -> None:
    from fairseq.data import Dictionary

    file = tmp_path / "dict.en.txt"
    file.write_text(content, encoding="utf-8", newline="")
    assert check_dictionaries(tmp_path) == {"en": len(Dictionary.load(str(file)))}


def test_dictionary_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dict.en.txt").write_bytes(b"a 1\nb\xff 1\n")
    with pytest.raises(ValueError, match=r"dict\.en\.txt: not UTF-8 \(invalid start byte\)"):
        check_dictionaries(tmp_path)


@pytest.mark.parametrize("form", ["uint8", "int32", "int64", "uint16"])
def test_every_format_that_fairseq_writes_is_accepted(form: str, data: Path) -> None:
    import torch
    from fairseq.data.indexed_dataset import IndexedDatasetBuilder, MMapIndexedDatasetBuilder

    sentences = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    for language in ("en", "xx"):
        kind = getattr(np, form)
        for name, builder in (("new", MMapIndexedDatasetBuilder), ("old", IndexedDatasetBuilder)):
            if name == "old" and form == "uint16":
                continue
            path = data / f"{name}.en-xx.{language}"
            made = builder(f"{path}.bin", dtype=kind)
            for sentence in sentences:
                made.add_item(sentence)
            made.finalize(f"{path}.idx")
    # Alignments have no dictionary and may be empty; other tools use the extensions .bin and .idx too.
    made = MMapIndexedDatasetBuilder(str(data / "train.align.en-xx.bin"), dtype=np.int32)
    for alignment in (torch.tensor([70_000]), torch.tensor([], dtype=torch.int64)):
        made.add_item(alignment)
    made.finalize(str(data / "train.align.en-xx.idx"))
    (data / "fasttext.bin").write_bytes(b"another format")
    (data / "notes.idx").write_bytes(b"another format")
    assert not check(data)


@pytest.mark.parametrize("name", [NAME, f"{NAME}.bin"])
def test_pipe_in_place_of_raw_or_binarised_text_is_refused(name: str, data: Path) -> None:
    (data / name).unlink(missing_ok=True)
    os.mkfifo(data / name)
    with pytest.raises(ValueError, match=rf"{name}: not a regular file"):
        check(data)


def test_giant_index_is_checked_in_blocks(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_resid.data.text import binarised

    monkeypatch.setattr(binarised, "SENTENCES", 7)
    monkeypatch.setattr(binarised, "BLOCK", 64)
    check_texts(data)
    file = data / f"{NAME}.idx"
    place = POINTERS + 8 * 100
    file.write_bytes(overwrite(place, struct.pack("<q", 1))(file.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged: sentence 101 has .* tokens at byte 1: must"):
        check_texts(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a b\nabc\n", ":2: 'abc': must be"), ("a b c\n", ":1: 'a b c': must be"), ("", ": contains no merges"),
        ("#version: 0.2\n", ": contains no merges"), ("#version: 3\na b\n", ":1: '#version: 3': must be"),
        ("#version: x\na b\n", ":1: '#version: x'"), ("#version: 0.2\n\na b\n", ":2: '': must be two"),
        ("a b\n#version: 0.2 x\n", ":2: '#version: 0.2 x'"),
    ],
)  # fmt: skip
def test_invalid_subword_merges_give_a_one_line_error(
    content: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bpe.codes").write_text(content)
    with pytest.raises(ValueError, match=rf"bpe\.codes{re.escape(message)}"):
        Segmenter("subword_nmt", tmp_path / "bpe.codes")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("version", ["", "#version: 0.1\n", "#version: 0.2\n", "#version: 0.2.0\n"])
def test_subword_merges_of_every_version_can_be_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "bpe.codes").write_text(f"{version}a b\nab c</w>\n\n")
    assert Segmenter("subword_nmt", tmp_path / "bpe.codes").encode(["abc xab"])[0]
