"""Untrusted files in run, study and data folders: devices, pipes, compression bombs and huge files are refused."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_resid import files, records
from fairseq_resid.runs.run import Run, RunRecord

pytestmark = pytest.mark.once
# Each reads RUN/NAME through the one function that opens untrusted files.
READERS: dict[str, Callable[[Path], object]] = {
    "train.log": lambda path: list(Run(path.parent).log_lines()),
    "run.json": lambda path: records.read(path, RunRecord),
    "study.yaml": lambda path: records.read(path, dict),
    "test.hyp": files.read_lines,
}


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [zeros, pipe, giant])
def test_devices_pipes_and_huge_files_are_refused(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    wrong = "bytes; at most" if make is giant else "(not a regular file|leads to /dev/zero)"
    with pytest.raises(ValueError, match=rf"{name}: .*{wrong}"):
        READERS[name](tmp_path / name)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("content", [b"\0", b"\n", b"line\n"], ids=["one line", "empty lines", "lines"])
def test_compressed_bomb_is_refused_in_little_memory(content: bytes, tmp_path: Path) -> None:
    """3 GB of repeated text in a file of 3 to 9 MB, read in a separate process to measure its memory."""
    with gzip.open(tmp_path / "train.log.gz", "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(content * (10_000_000 // len(content)))
    code = "import sys\nfrom pathlib import Path\nfrom fairseq_resid import files\n"
    code += "try:\n    files.read_lines(Path(sys.argv[1]))\nexcept ValueError as error:\n    print(error)\n"
    code += "(peak,) = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
    code += "print(int(peak) // 1024)"
    command = [sys.executable, "-c", code, str(tmp_path / "train.log")]
    error, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "train.log" in error and ("too large" in error or "NUL" in error)
    assert int(megabytes) < 900


def test_long_lines_are_refused_and_ordinary_ones_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * files.MOST_LINE_BYTES + b"\n")
    with pytest.raises(ValueError, match="a:1: too large"):
        files.read_lines(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"x" * (files.MOST_LINE_BYTES - 1) + b"\nlast")
    assert [len(line) for line in files.read_lines(tmp_path / "a")] == [files.MOST_LINE_BYTES - 1, 4]


def test_aliases_in_yaml_are_refused(tmp_path: Path) -> None:
    """Nine levels of nine aliases expand to 9^9 values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (tmp_path / "study.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"study\.yaml: damaged: aliases"):
        records.read(tmp_path / "study.yaml", dict)


def test_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.log").mkdir()
    with pytest.raises(ValueError, match=r"train\.log: no such file"):
        files.read_lines(tmp_path / "train.log")
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path / "train.log")


def test_lock_and_partial_name_do_not_follow_links(tmp_path: Path) -> None:
    """Someone else's run folder may contain links out of it under every name that we write."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in (".lock", "results.json.partial", "train.log"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(ValueError, match=r"\.lock: a symbolic link"), files.locked(tmp_path / ".lock", "busy"):
        pass
    with pytest.raises(ValueError, match=r"train\.log: a symbolic link"):
        files.open_to_append(tmp_path / "train.log")
    files.write_text(tmp_path / "results.json", "new")
    assert precious.read_text() == "mine" and (tmp_path / "results.json").read_text() == "new"


def test_pipes_in_place_of_written_files_do_not_hang(tmp_path: Path) -> None:
    for name in ("card.md.partial", "train.log"):
        os.mkfifo(tmp_path / name)
    files.write_text(tmp_path / "card.md", "new")
    assert (tmp_path / "card.md").read_text() == "new"
    with pytest.raises(OSError, match=r"train\.log"):
        files.open_to_append(tmp_path / "train.log")


def test_device_or_pipe_is_not_replaced_by_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(ValueError, match=f"{name}: not a regular file, which this output must be"):
            files.write_text(tmp_path / name, "new")
        assert not (tmp_path / name).is_file() and (tmp_path / name).exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_last_lines_of_a_giant_log_are_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\none\ntwo\xff\nthree\n")
    assert files.last_lines(tmp_path / "log", 3) == ["one", "two\ufffd", "three"]
