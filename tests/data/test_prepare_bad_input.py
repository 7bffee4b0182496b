"""Errors of preparation: damaged archives, dirty text, unrelated folders, other corpora."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from support import mirror
from support.preparing import content, fail, main, record_of

pytestmark = pytest.mark.once


def test_bad_archive_is_refused_and_good_one_accepted_later(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, out = Path(shutil.copytree(hosts["de"], tmp_path / "bad")), tmp_path / "data"
    archive = bad / "training-parallel-nc-v9.tgz"
    raw = archive.read_bytes()
    archive.write_bytes(raw[:-5] + b"?" + raw[-4:])
    for _ in range(2):  # the first run must not leave a file that the second accepts
        assert main("wmt14-en-de", out, "--mirror", bad.as_uri()) == 2
        assert f"{archive.name}: damaged or truncated (CRC" in capsys.readouterr().err and not out.exists()
        assert not list((tmp_path / "downloads").glob(f"{archive.name}*"))
    assert main("wmt14-en-de", out, "--mirror", hosts["de"].as_uri()) == 0
    assert content(out) == content(en_de)


def test_dirty_training_text_is_dropped_but_test_text_refused(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = shutil.copytree(hosts["de"], tmp_path / "bad")
    choose = random.Random(5)
    items = [(left.encode(), right.encode()) for left, right in mirror.pairs(60, ("en", "de"), 3)]
    dirt = {
        "not_utf8": b"caf\xe9",
        "too_long": b"x" * 1_000_000,
        "control_characters": b"nul \0 byte",
        "empty": b"",
    }
    for position, line in zip(choose.sample(range(60), 4), dirt.values(), strict=True):
        items[position] = (line, items[position][1])
    # After normalisation and tokenisation these two sides would differ.
    items.append(("Berlin’s „wall“".encode(), " Berlin’s „wall“".encode()))
    stem = "training/news-commentary-v9.de-en"
    sides = [b"\xef\xbb\xbf" + b"".join(pair[side] + b"\r\n" for pair in items) for side in (0, 1)]
    members: dict[str, str | bytes] = {f"{stem}.en": sides[0], f"{stem}.de": sides[1]}
    mirror.archive(bad / "training-parallel-nc-v9.tgz", members)
    assert main("wmt14-en-de", tmp_path / "data", "--raw", bad) == 0
    dropped = record_of(tmp_path / "data")["lines"]["train"]["dropped"]
    assert {reason: dropped[reason] for reason in (*dirt, "source_equals_target")} == dict.fromkeys(
        (*dirt, "source_equals_target"), 1
    )
    assert "1 not utf8, 1 too long, 1 control characters, 1 empty, 1 source equals target" in capsys.readouterr().out
    assert main("wmt14-en-de", tmp_path / "other", "--raw", bad, "--no-clean") == 2
    assert "--clean drops such pairs" in capsys.readouterr().err
    for content_, said in ((b"\xff\n" * 20, ":1: not UTF-8"), (b"\xef\xbb\xbfa\n" * 20, "byte-order mark")):
        mirror.archive(bad / "dev.tgz", {"dev/newstest2013.en": content_, "dev/newstest2013.de": b"b\n" * 20})
        assert main("wmt14-en-de", tmp_path / "other", "--raw", bad) == 2
        error = capsys.readouterr().err
        assert "newstest2013.en" in error and said in error


def test_another_corpus_in_the_folder_is_refused(
    hosts: dict[str, Path], en_de: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shutil.copytree(en_de, tmp_path / "data")
    cases: list[tuple[str, list[object], str]] = [
        ("wmt14-en-fr", ["--raw", hosts["fr"]], "name is wmt14-en-de, not wmt14-en-fr"),
        ("wmt14-en-de", ["--raw", hosts["de"], "--vocab-size", 99], "vocab_size is 250, not 99"),
        ("wmt14-en-de", ["--raw", hosts["de"], "--no-clean"], "clean is True, not False"),
        ("wmt14-en-de", ["--raw", hosts["de"], "--limit", 5], "limit is None, not 5"),
        ("wmt14-en-de", ["--raw", mirror.wmt14(tmp_path / "other", "de", 90)], "not made from"),
    ]
    before = content(data)
    for name, flags, said in cases:
        assert main(name, data, *flags) == 2
        error = capsys.readouterr().err
        assert "contains a different corpus" in error and said in error
    (data / "corpus.json").write_text("[]")
    assert main("wmt14-en-de", data, "--raw", hosts["de"]) == 2
    assert "no corpus.json that this version can read" in capsys.readouterr().err
    assert content(data).keys() == before.keys()


def test_unfinished_work_on_another_text_is_kept(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairseq_resid.data.text.fairseq_preprocess.preprocess", fail)
    out = tmp_path / "data"
    assert main("wmt14-en-de", out, "--raw", hosts["de"]) == 1
    before = content(tmp_path / "data.partial")
    capsys.readouterr()
    assert main("wmt14-en-de", out, "--raw", hosts["de"], "--limit", 5) == 2
    assert "contains unfinished work on {'name': 'wmt14-en-de', 'limit': None}, not" in capsys.readouterr().err
    assert content(tmp_path / "data.partial") == before
    assert main("wmt14-en-de", out, "--raw", hosts["de"]) == 1  # the original command resumes
    assert capsys.readouterr().out.count("already done") == 4


def test_unrelated_working_folder_is_not_touched(
    hosts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.partial" / "thesis").mkdir(parents=True)
    (tmp_path / "data.partial" / "thesis" / "text").write_text("years of work")
    assert main("wmt14-en-de", tmp_path / "data", "--raw", hosts["de"]) == 2
    assert "contains thesis, which this command did not create" in capsys.readouterr().err
    assert (tmp_path / "data.partial" / "thesis" / "text").exists()
