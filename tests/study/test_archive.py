"""The archive of a complete study keeps the content and is unpacked once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fairseq_resid import records
from fairseq_resid.files import pack, read_lines, sha256
from fairseq_resid.study import archive, plan, study
from support import studies

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAIRSEQ_RESID_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "studies"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return the folder of a study with results and two runs."""
    folder = tmp_path / "studies" / "trial"
    for name in ("flat.base.seed1", "flat.sas.seed1"):
        run = folder / name
        (run / "decode").mkdir(parents=True)
        records.write(run / "study.json", {"run": name})
        (run / "train.log").write_text(f"{name}\nsecond line\n")
        pack(run / "train.log", run)
        (run / "train.log").unlink()
    records.write(folder / "results.json", {"title": "trial"})
    return folder


def content(folder: Path) -> dict[str, list[str]]:
    """Return the lines of every file, compressed or not."""
    files = (file for file in folder.rglob("*") if file.is_file())
    plain = (file.with_suffix("") if file.suffix == ".gz" else file for file in files)
    return {str(file.relative_to(folder)): read_lines(file) for file in plain if file.name != "results.json"}


def test_archive_replaces_the_run_folders(kept: Path, cache: Path) -> None:
    before = content(kept)
    assert archive.runs_folder(kept) == kept
    packed = archive.pack(kept)
    assert packed.name == "trial.tar.xz" and [path.name for path in kept.iterdir()] == ["results.json"]
    unpacked = archive.runs_folder(kept)
    assert unpacked.parent == cache and sha256(packed).startswith(unpacked.name.rpartition("-")[2])
    assert content(unpacked) == before


def test_archive_is_unpacked_once(kept: Path) -> None:
    archive.pack(kept)
    log = archive.runs_folder(kept) / "flat.sas.seed1" / "train.log"
    os.utime(log, (1, 1))
    archive.runs_folder(kept)
    assert log.stat().st_mtime == 1


def test_same_runs_give_the_same_bytes_from_either_form(kept: Path) -> None:
    first = archive.pack(kept).read_bytes()
    assert archive.unpack(kept) == 2
    assert archive.runs_folder(kept) == kept, "run folders must take precedence over the archive"
    os.utime(kept / "flat.sas.seed1" / "study.json", (1, 1))
    assert archive.pack(kept).read_bytes() == first


@pytest.mark.parametrize("cut", [0, 1, 100], ids=["empty", "one byte", "half"])
def test_damaged_archive_is_reported_and_nothing_is_left(kept: Path, cache: Path, cut: int) -> None:
    packed = archive.pack(kept)
    packed.write_bytes(packed.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"trial\.tar\.xz: "):
        archive.runs_folder(kept)
    assert list(cache.iterdir()) == []


def test_unreadable_file_keeps_the_run_folders(kept: Path) -> None:
    log = kept / "flat.sas.seed1" / "train.log.gz"
    log.write_bytes(log.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"train.log.gz: damaged"):
        archive.pack(kept)
    assert len(archive.run_folders(kept)) == 2 and not archive.archive_file(kept).exists()


def test_complete_study_is_packed_with_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results from the archive equal those from the folders, except that they contain the archive's SHA-256."""
    file = studies.written(tmp_path, studies.SMALL)
    folder, work = file.with_suffix(""), ["--work", str(tmp_path / "work")]
    runs = studies.all_kept(folder, plan.read_study(file))
    assert study.main([str(file), *work, "--results"]) == 0
    before = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    assert study.main([str(file), *work, "--pack"]) == 0
    assert str(archive.archive_file(folder)) in capsys.readouterr().out and not archive.run_folders(folder)
    digest = sha256(archive.archive_file(folder))
    assert records.read(folder / "results.json", dict)["archive"] == digest
    after = {path.name: path.read_text() for path in folder.iterdir()}
    assert after.keys() == before.keys()
    line = f"- The archive of the kept runs has the SHA-256 {digest}.\n"
    assert after["results.md"].replace(line, "") == before["results.md"]
    assert {name for name in after if after[name] != before[name]} == {"results.json", "results.md"}
    assert study.main([str(file), *work, "--unpack"]) == 0 and len(archive.run_folders(folder)) == len(runs)
    (archive.run_folders(folder)[0] / "train.log").write_text("another log\n")  # other content, other SHA-256
    (archive.run_folders(folder)[0] / "train.log.gz").unlink(missing_ok=True)
    assert study.main([str(file), *work, "--pack"]) == 0 and study.main([str(file), *work, "--results"]) == 0
    again = records.read(folder / "results.json", dict)["archive"]
    assert again == sha256(archive.archive_file(folder)) != digest


def test_interrupted_unpacking_is_reported_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with some runs of the archive never stands for the whole study."""
    file = studies.written(tmp_path, studies.SMALL)
    folder, words = file.with_suffix(""), [str(file), "--work", str(tmp_path / "work")]
    runs = [*studies.all_kept(folder, plan.read_study(file))]
    assert study.main([*words, "--pack"]) == 0
    copy, copied = shutil.copytree, []

    def stop(source: Path, target: Path, *rest: object) -> None:
        copied.extend([] if rest else [source])  # a folder within a run is copied with more arguments
        if len(copied) == 6:
            target.mkdir()
            raise KeyboardInterrupt
        copy(source, target, *rest)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(shutil, "copytree", stop)
        assert study.main([*words, "--unpack"]) == 130
    before = (folder / "results.json").read_bytes()
    capsys.readouterr()
    for flag in ("--plan", "--results", "--pack", "--hours=1"):
        assert study.main([*words, flag]) == 2
        said = capsys.readouterr().err
        assert f"trial: {len(runs) - 5} of the runs in trial.tar.xz are missing, such as flat." in said
        assert "`fairseq-resid study --unpack` restores them" in said
    assert (folder / "results.json").read_bytes() == before and len(archive.run_folders(folder)) == 5
    assert study.main([*words, "--unpack"]) == 0 and len(archive.run_folders(folder)) == len(runs)
    assert study.main([*words, "--results"]) == 0


def test_incomplete_study_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = studies.written(tmp_path)
    folder = file.with_suffix("")
    runs = [*studies.all_kept(folder, plan.read_study(file))]
    shutil.rmtree(folder / runs[-1])
    assert study.main([str(file), "--work", str(tmp_path / "work"), "--pack"]) == 2
    assert "1 run missing" in (error := capsys.readouterr().err) and "only a complete study can be packed" in error
    assert len(archive.run_folders(folder)) == len(runs) - 1 and not archive.archive_file(folder).exists()
