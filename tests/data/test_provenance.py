"""The origin of texts: checksums, different text under an official name, line counts, fingerprints."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.data.text import prepare
from fairseq_resid.data.text.fingerprints import Fingerprints
from support import mirror
from support.preparing import Released, other_text, record_of, unpack

pytestmark = pytest.mark.once


@pytest.mark.parametrize("way", ["--raw", "--mirror"])
def test_different_text_under_official_name_is_refused_or_recorded(
    way: str, released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    other_text(host, "training-parallel-commoncrawl.tgz")
    source = host if way == "--raw" else host.as_uri()
    assert main("data", way, source) == 2
    error = capsys.readouterr().err
    assert "training-parallel-commoncrawl.tgz" in error and "wrong md5 checksum" in error
    assert "use --allow-other-data to accept" in error and not (tmp_path / "data").exists()
    assert main("data", way, source, "--allow-other-data") == 0
    assert "not as released: training-parallel-commoncrawl.tgz: wrong md5" in capsys.readouterr().out
    corpus = record_of(tmp_path / "data")
    (difference,) = corpus["differences"]
    assert difference.startswith("training-parallel-commoncrawl.tgz: wrong md5 checksum: ")
    for label, item in corpus["texts"].items():
        if "commoncrawl" in label:
            assert (item["status"], item["origin"]) == ("other", None)
        else:
            assert item["status"] == "released" and item["origin"].startswith("https://www.statmt.org/")
    assert corpus["unverified"] == []


def test_text_without_known_checksum_is_recorded_as_unverified(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, main = released
    assert main("data", "--raw", unpack(host, tmp_path / "unpacked")) == 0
    corpus = record_of(tmp_path / "data")
    assert corpus["differences"] == [] and len(corpus["unverified"]) == 10
    assert all((item["status"], item["origin"]) == ("unverified", None) for item in corpus["texts"].values())
    assert "not verified (no known checksum): train europarl-v7.en" in capsys.readouterr().out
    # The same holds for a zip archive on a mirror that lacks the released archive.
    host_of_zips = shutil.copytree(host, tmp_path / "zips")
    (host_of_zips / "training-parallel-nc-v9.tgz").unlink()
    stem = "training/news-commentary-v9.de-en"
    members = {f"{stem}.{side}": (tmp_path / "unpacked" / f"{stem}.{side}").read_text() for side in ("en", "de")}
    mirror.archive(host_of_zips / "training-parallel-nc-v9.zip", dict(members))
    assert main("zipped", "--mirror", host_of_zips.as_uri()) == 0
    assert record_of(tmp_path / "zipped")["unverified"] == [
        "train news-commentary-v9.en",
        "train news-commentary-v9.de",
    ]
    assert record_of(tmp_path / "zipped")["checksums"] == corpus["checksums"]


def test_limit_is_recorded_as_a_difference(released: Released, tmp_path: Path) -> None:
    host, main = released
    assert main("data", "--raw", host, "--limit", 9, "--vocab-size", 120) == 0
    said = "only the first 9 pairs of each text are used (--limit 9)"
    assert record_of(tmp_path / "data")["differences"] == [said]
    # A limit larger than the text is not a difference.
    assert main("whole", "--raw", host, "--limit", 1000) == 0
    assert record_of(tmp_path / "whole")["differences"] == []


def test_wrong_line_count_is_refused_even_after_all_steps(
    released: Released, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, main = released
    raw = unpack(host, tmp_path / "unpacked")
    for side in ("en", "de"):
        file = raw / f"commoncrawl.de-en.{side}"
        file.write_text(file.read_text() + "one more\n")
    replaced = os.replace

    def killed(source: Any, target: Any) -> None:
        if Path(target).name == "data" and Path(source).name == "data":
            raise KeyboardInterrupt
        replaced(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        assert main("data", "--raw", raw, "--allow-other-data") == 130
    assert main("data", "--raw", raw) == 2
    assert "train commoncrawl has 121 pairs; expected 120 (use --allow-other" in capsys.readouterr().err
    assert main("data", "--raw", raw, "--allow-other-data") == 0
    status = {label: item["status"] for label, item in record_of(tmp_path / "data")["texts"].items()}
    assert {label for label, kind in status.items() if kind == "other"} == {
        "train commoncrawl.en", "train commoncrawl.de",
    }  # fmt: skip


def test_known_checksum_is_compared_despite_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = mirror.iwslt15(tmp_path / "raw", "stanford")
    flags = ["--raw", str(raw), "--out", str(tmp_path / "data"), "--downloads", str(tmp_path / "dl")]
    assert prepare.main(["iwslt15-en-vi", *flags, "--limit", "20", "--vocab-size", "150"]) == 2
    assert "test tst2013.vi is not the released text (sha256 differs)" in capsys.readouterr().err


def test_archives_and_unpacked_files_give_same_reference(released: Released, tmp_path: Path) -> None:
    """A no-break space is part of the sentence; line breaks within a <seg> are layout."""
    host, main = released
    left, right = mirror.sides(mirror.pairs(20, ("en", "de"), 8))
    right = right.replace(" ", "\u00a0", 1)
    stem = "test-full/newstest2014-deen"
    laid_out = mirror.sgm(right).replace('<seg id="2">', '<seg id="2">\n  ')
    members = {f"{stem}-src.en.sgm": mirror.sgm(left), f"{stem}-ref.de.sgm": laid_out}
    mirror.archive(host / "test-full.tgz", dict(members))
    assert main("data", "--raw", host, "--allow-other-data") == 0
    assert main("unpacked", "--raw", unpack(host, tmp_path / "u"), "--allow-other-data") == 0
    for out in ("data", "unpacked"):
        assert (tmp_path / out / "ref" / "test.de").read_text() == right
    assert record_of(tmp_path / "data")["round_trip"]["test"]["lost"]["normalizer"] == 1


def test_changed_file_gets_a_new_fingerprint(tmp_path: Path) -> None:
    import os

    file = tmp_path / "a.txt"
    file.write_text("one")
    known = Fingerprints(tmp_path / "memory.json").of(file)
    assert known.sha256 == hashlib.sha256(b"one").hexdigest()
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text("two")  # same size and modification time
    os.utime(file, ns=times)
    assert Fingerprints(tmp_path / "memory.json").of(file).sha256 == hashlib.sha256(b"two").hexdigest()
    (tmp_path / "memory.json").write_text("[1")
    assert Fingerprints(tmp_path / "memory.json").of(file).sha256 == hashlib.sha256(b"two").hexdigest()
