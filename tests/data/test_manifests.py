"""The manifests of the corpora, and test sets from sacrebleu."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from fairseq_resid.data.text import manifest as manifests
from fairseq_resid.data.text import sources
from fairseq_resid.data.text.fingerprints import Fingerprints
from fairseq_resid.data.text.manifest import SPLITS
from support import mirror
from support.preparing import ROOT

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", manifests.names())
def test_every_manifest_is_complete(name: str) -> None:
    found = manifests.read(name)
    assert found.name == name and (ROOT / "data-prep" / f"{name}.sh").is_file()
    assert found.text_bytes > 0 and found.vocab_size >= 1000
    for split in found.splits:
        assert found.parts[split] and all(part.lines for part in found.parts[split])
        labels = [part.name for part in found.parts[split]]
        assert len(set(labels)) == len(labels)
        for part in found.parts[split]:
            first, second = part.places.values()
            assert part.places.keys() == {*found.languages} and len(first) == len(second)
            assert all(place.split("/")[0] in found.files for place in (*first, *second))
    assert sorted(found.parts) == sorted([*SPLITS, *(f"test{n}" for n in range(1, len(found.parts) - 2))])
    for file in found.files.values():
        assert all(url.startswith(("http://", "https://")) for url in file.urls)
        assert file.md5 is None or len(file.md5) == 32
        assert file.sha256 is None or len(file.sha256) == 64


def test_files_shared_by_corpora_are_declared_equally() -> None:
    read = [manifests.read(name).files for name in manifests.names()]
    for one in read:
        for other in read:
            assert all(one[name] == other[name] for name in one.keys() & other.keys())


def test_line_counts_match_the_papers() -> None:
    lines = {
        name: {split: sum(part.lines or 0 for part in read.parts[split]) for split in SPLITS}
        for name in manifests.names()
        for read in [manifests.read(name)]
    }
    assert lines["iwslt15-en-vi"] == {"train": 133_317, "valid": 1553, "test": 1268}
    assert lines["wmt14-en-de"] == {"train": 4_520_620, "valid": 3000, "test": 3003}
    assert lines["wmt14-en-fr"] == {"train": 40_842_333, "valid": 6003, "test": 3003}


def test_test_set_comes_from_sacrebleu_if_possible(
    hosts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sacrebleu's own code runs with a local host, then with a damaged cache, and finally without a network."""
    import sacrebleu.dataset.base
    import sacrebleu.utils

    read = manifests.read("wmt14-en-de")
    part = read.parts["test"][0]
    dataset = sacrebleu.utils.DATASETS["wmt14/full"]
    archive = hosts["de"] / "test-full.tgz"
    monkeypatch.setattr(dataset, "data", [archive.as_uri()])
    monkeypatch.setattr(dataset, "md5", [hashlib.md5(archive.read_bytes()).hexdigest()])
    for module in (sacrebleu.utils, sacrebleu.dataset.base):
        monkeypatch.setattr(module, "SACREBLEU_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path / "cache" / "wmt14_full"), raising=False)
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "cache" / "wmt14_full" / "raw"), raising=False)
    bring = lambda: sources._from_sacrebleu(read, Fingerprints(None), "test", part)  # noqa: E731
    texts = bring()
    assert texts is not None and "sacrebleu -t wmt14/full -l en-de" in capsys.readouterr().out
    assert all(text.is_verified and text.expected for text in texts)
    assert {text.expected.urls for text in texts if text.expected} == {("sacrebleu -t wmt14/full -l en-de",)}
    paths = sources.extract_all(texts, tmp_path / "out", None)
    expected = mirror.sides(mirror.pairs(20, ("en", "de"), 8))
    assert [path.read_text() for path in paths.values()] == list(expected)
    # sacrebleu's cache contains half a file, as after a killed run.
    texts[1].file.write_bytes(texts[1].file.read_bytes()[:500])
    assert bring() is None
    assert "wrong md5 checksum" in capsys.readouterr().out

    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(dataset, "data", ["http://127.0.0.1:9/test-full.tgz"])
    assert bring() is None
    assert "sacrebleu could not download it" in capsys.readouterr().out
