"""The merges of subword-nmt: every version can be read, and an invalid file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_resid.data.text.segmentation import Segmenter

pytestmark = pytest.mark.once


def test_invalid_subword_merges_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bpe.codes").write_text("a b\nabc\n")
    with pytest.raises(ValueError, match=r"bpe\.codes: not a subword_nmt model"):
        Segmenter("subword_nmt", tmp_path / "bpe.codes")


@pytest.mark.parametrize("version", ["", "#version: 0.1\n", "#version: 0.2\n", "#version: 0.2.0\n"])
def test_subword_merges_of_every_version_can_be_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "bpe.codes").write_text(f"{version}a b\nab c</w>\n")
    assert Segmenter("subword_nmt", tmp_path / "bpe.codes").encode(["abc xab"])[0]
