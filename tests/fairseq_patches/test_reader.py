"""The checkpoint reader: unusual valid files are read correctly, and copies are bounded by the file size."""

from __future__ import annotations

import io
import pickle
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid.fairseq_patches import reader

pytestmark = pytest.mark.once


def read(path: Path, is_mapped: bool = True) -> Any:
    with path.open("rb") as file:
        return reader.read(file, str(path), is_mapped)


@pytest.mark.parametrize("is_mapped", [True, False])
def test_lazily_negated_and_conjugated_tensors_keep_their_values(tmp_path: Path, is_mapped: bool) -> None:
    numbers = torch.complex(torch.arange(3.0), torch.arange(3.0) + 1)
    saved = {
        "plain": numbers,
        "conjugate": numbers.conj(),
        "negative": numbers.conj().imag,
        "both": torch._neg_view(numbers.conj()),
    }
    assert saved["conjugate"].is_conj() and saved["negative"].is_neg()
    for name, tensor in saved.items():
        torch.save({name: tensor}, tmp_path / "a.pt")
        found = read(tmp_path / "a.pt", is_mapped)[name]
        assert torch.equal(found, tensor.resolve_conj().resolve_neg()), name


def test_file_with_many_small_weights_is_read(tmp_path: Path) -> None:
    torch.save({f"w{number}": torch.full((2,), float(number)) for number in range(60_000)}, tmp_path / "a.pt")
    found = read(tmp_path / "a.pt")
    assert len(found) == 60_000 and found["w59999"].tolist() == [59999.0, 59999.0]


def test_copies_of_one_text_are_bounded_by_the_file_size(tmp_path: Path) -> None:
    """Encoding the same 2 MB of text 2,000 times would take 4 GB."""
    text, stream = "x" * 2_000_000, io.BytesIO()
    stream.write(b"\x80\x02]" + pickle.BINUNICODE + len(text).to_bytes(4, "little") + text.encode() + b"q\x01a")
    for _ in range(2000):
        stream.write(b"c_codecs\nencode\nh\x01X\x06\x00\x00\x00latin1\x86Ra")
    stream.write(b".")
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", stream.getvalue())
        archive.writestr("a/version", "3")
    code = "import resource, sys\nfrom fairseq_resid.fairseq_patches import reader\n"
    code += "try:\n    reader.read(open(sys.argv[1], 'rb'), 'a.pt')\nexcept ValueError as error:\n    print(error)\n"
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # noqa: E731
    command = [sys.executable, "-c", code, str(tmp_path / "a.pt")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.stdout == "a.pt: cannot be loaded: too much data for a file of this size\n", done.stderr


@pytest.mark.parametrize("metadata", ["neg", {"neg": 1}, {"other": True}, 3])
def test_unknown_metadata_of_a_tensor_is_refused(metadata: Any) -> None:
    unpickler = reader.Unpickler(reader.Program(io.BytesIO(b""), 100), None)
    with pytest.raises(reader.Refused, match="unknown tensor metadata"):
        unpickler.resolved(torch.ones(2), metadata)
