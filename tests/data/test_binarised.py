"""Dictionaries and binarised texts that are damaged, incomplete or do not belong together are refused with one line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairseq_resid.data.text.folder import check, check_texts, require_subset

NAME = "test.en-xx.xx"


@pytest.fixture
def data(corpus: Path, tmp_path: Path) -> Path:
    """Return a data folder as fairseq-preprocess makes it, without corpus.json."""
    folder = shutil.copytree(corpus, tmp_path / "data")
    (folder / "corpus.json").unlink()
    return folder


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "index cut off": (".idx", lambda whole: whole[:500], "damaged or truncated; prepare the data folder again"),

    "binary of another text": (".bin", lambda whole: whole + whole[-20:], "damaged: .* bytes, but test.en-xx.xx.idx"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_binarised_text_is_reported(damage: str, data: Path) -> None:
    ending, change, message = DAMAGE[damage]
    file = data / f"{NAME}{ending}"
    file.write_bytes(change(file.read_bytes()))
    said = data / f"{NAME}.bin" if ", but" in message else file
    for subset in (None, "test"):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(said))}: {message}"):
            check_texts(data, subset)
    check_texts(data, "valid")


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
