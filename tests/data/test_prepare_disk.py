"""Preparation on a full disk, or on a disk with too little space for the corpus."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from fairseq_resid.data.preparing import Options
from fairseq_resid.data.text import disk, prepare, sources
from fairseq_resid.data.text import manifest as manifests
from support.preparing import ROOT, command, content, main

pytestmark = pytest.mark.once


def test_full_disk_gives_one_line_and_next_run_succeeds(hosts: dict[str, Path], en_de: Path, tmp_path: Path) -> None:
    """Files are limited to 8 KB, which the tokenised training text exceeds."""
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # noqa: E731
    run = subprocess.run(command(hosts, tmp_path / "data"), cwd=ROOT, preexec_fn=small, capture_output=True, text=True)
    assert run.returncode == 2 and not (tmp_path / "data").exists()
    line = run.stderr.splitlines()[-1]  # other packages print their own errors first
    assert "File too large" in line and "Traceback" not in run.stderr
    assert prepare.main([*command(hosts, tmp_path / "data")[4:], "--workers", "1"]) == 0
    assert content(tmp_path / "data") == content(en_de)


def checked(name: str, folder: Path, raw: Path | None = None) -> None:
    """Run only the disk check of a preparation in `folder`."""
    read = manifests.read(name)
    raws = (raw,) if raw else ()
    options = Options(folder / "data", raws, downloads=folder / "downloads", allow_other=True, verify=True)
    disk.check(read, options, None, sources.find(read, options) if raw else None)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12 - size, size))


def test_too_little_disk_space_is_reported_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 10**9)
    assert main("wmt14-en-fr", tmp_path / "data") == 2
    captured = capsys.readouterr()
    assert "GB needed, 1.0 GB free" in captured.err and "--out" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["de", "fr"])
def test_small_folder_needs_little_disk_space(
    target: str, hosts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the smallest corpus needs 50 MB."""
    free(monkeypatch, 60_000_000)
    name, host = f"wmt14-en-{target}", hosts[target]
    checked(name, tmp_path, host)
    with pytest.raises(ValueError, match="GB needed"):
        checked(name, tmp_path)
    shutil.copytree(host, tmp_path / "downloads")
    checked(name, tmp_path)
