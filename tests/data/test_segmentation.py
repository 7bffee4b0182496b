"""The merges of subword-nmt: every version can be read, and an invalid file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_resid.data.text.segmentation import Segmenter

pytestmark = pytest.mark.once


@pytest.mark.parametrize("version", ["", "#version: 0.1\n", "#version: 0.2\n", "#version: 0.2.0\n"])
def test_subword_merges_of_every_version_can_be_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "bpe.codes").write_text(f"{version}a b\nab c</w>\n")
    assert Segmenter("subword_nmt", tmp_path / "bpe.codes").encode(["abc xab"])[0]
