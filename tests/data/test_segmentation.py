"""Merges of subword-nmt: invalid files are refused with one line, and every version can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_resid.data.text.segmentation import Segmenter

pytestmark = pytest.mark.once


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
