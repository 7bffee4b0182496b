"""Kills and full disks: saved files stay intact, and a resumed run ends like an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.fairseq_patches import UserError, loading
from support import studies
from support.process_groups import all_are_whole, begin, finish, logged, wait_for
from support.trainings import assert_same_state, launched


def test_failed_write_leaves_no_half_written_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a failed torch.save nor a failed copy leaves part of a file or changes the existing file."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    def full(source: Any, target: Any) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    old, new = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint1.pt"
    torch.save({"old": 1}, old)
    torch.save({"new": torch.zeros(1000)}, new)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # fairseq-fixed waits before it tries again; 0.12.2 does not
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(UserError, match=r"checkpoint_last.pt: cannot be written: No space .* MB free"):
            PathManager.copy(str(new), str(old), overwrite=True)
    assert torch.load(old, weights_only=True) == {"old": 1}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", lambda _, file: full("", file.name))
        with pytest.raises(UserError, match=r"checkpoint_last.pt: cannot be written: .* MB free"):
            checkpoint_utils.torch_persistent_save({"model": {"w": torch.zeros(10**6)}}, str(old))
    assert torch.load(old, weights_only=True) == {"old": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint1.pt", "checkpoint_last.pt"]
    assert PathManager.copy(str(new), str(old), overwrite=True)
    assert torch.load(old, weights_only=True)["new"].sum() == 0


def kill_at(command: list[str], moment: Callable[[subprocess.Popen[str]], None]) -> bool:
    """Start a command, call `moment`, then kill its process group; return whether the command was still running."""
    process = begin(command)
    moment(process)
    was_running = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL) if was_running else None
    process.communicate()
    return was_running


@pytest.mark.long
def test_training_killed_at_random_moments_ends_bitwise_equal(recipe: Path, whole: Path, tmp_path: Path) -> None:
    run, choose, kills = tmp_path / "run", random.Random(11), 0

    def after_updates(process: subprocess.Popen[str]) -> None:
        seen = logged(run)
        wait_for(lambda: logged(run) > seen or process.poll() is not None, process, 0.005)
        time.sleep(choose.uniform(0, 0.8))

    def while_writing(process: subprocess.Popen[str]) -> None:
        wait_for(lambda: list(run.glob("*.tmp")) or process.poll() is not None, process, 0)

    def anywhere(process: subprocess.Popen[str]) -> None:
        time.sleep(choose.uniform(0, 12))

    for moment in [after_updates, while_writing, anywhere, after_updates, while_writing] * 2:
        kills += kill_at(launched(recipe, run), moment)
        assert not run.exists() or all_are_whole(run)
        assert not (record := run / "run.json").exists() or not json.loads(record.read_text())["finished"]
    assert kills >= 8
    finish(launched(recipe, run))
    assert_same_state(run / "checkpoint_last.pt", whole)


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("what", ["prepare", "average", "evaluate", "study"])
def test_command_killed_at_random_moments_can_be_repeated(
    what: str, raw_text: dict[str, Path], corpus: Path, whole: Path, tmp_path: Path
) -> None:
    """A command that was killed up to five times, at moments spread over its running time, can be run to completion.

    It then writes the same files as a command that was not killed.
    """
    program = [sys.executable, "-m", "fairseq_resid", what]
    texts = [word for split in ("train", "valid", "test") for word in (f"--{split}", str(raw_text[split]))]

    def command(folder: Path) -> list[str]:
        if what == "study":
            folder.mkdir(exist_ok=True)
            (folder / "recipe.txt").write_text(studies.FLAGS)
            (folder / "real.yaml").write_text(studies.REAL.format(recipe=folder / "recipe.txt", data=corpus))
            return [*program, str(folder / "real.yaml"), "--work", str(folder / "work"), "--weights", "--jobs", "1"]
        if what == "prepare":
            words = ["custom", *texts, "--source", "en", "--target", "xx", "--vocab-size", "90", "--name", "tiny"]
            return [*program, *words, "--out", str(folder / "data")]
        run = folder / "run"
        if not run.exists():
            shutil.copytree(whole.parent, run)
        if what == "average":
            return [*program, "--inputs", str(run), "--last", "3", "--output", str(run / "out.pt")]
        return [*program, str(run), "--last", "2", "--cpu"]

    started = time.monotonic()
    finish(command(tmp_path / "calm"))
    seconds = time.monotonic() - started
    choose, kills, folder = random.Random(5), 0, tmp_path / "killed"
    for part in range(5):
        wait = choose.uniform(part / 5, (part + 1) / 5) * seconds
        kills += kill_at(command(folder), lambda _, wait=wait: time.sleep(wait))  # type: ignore[misc]
        if what == "average" and (out := folder / "run" / "out.pt").exists():
            assert loading.load_checkpoint(out)["model"]
    finish(command(folder))
    calm, killed = (tree(at) for at in (tmp_path / "calm", folder))
    assert sorted(calm) == sorted(killed) and kills >= 3
    # The content of these files differs between runs: they contain times or, like a study file, name their folder.
    with_times = (".log", ".log.gz", ".out", ".json", ".md", ".svg", *((".yaml", ".pt") if what == "study" else ()))
    assert [name for name in calm if calm[name] != killed[name] and not name.endswith(with_times)] == []
    if what == "study":
        assert_same_state(*(at / "work/recipe.base.seed1/checkpoint_last.pt" for at in (tmp_path / "calm", folder)))


def test_resume_uses_newest_intact_checkpoint(train: Callable[..., Any], tmp_path: Path) -> None:
    """checkpoint_last.pt and the newest numbered checkpoint are empty, are truncated or contain a block of zeros."""
    from fairseq_resid.runs.recovery import repair_to_resume
    from fairseq_resid.runs.run import Run
    from fairseq_resid.runs.training_command import TrainingCommand

    whole = tmp_path / "whole"
    train(whole, "--save-interval-updates", 1, "--max-update", 3)
    content = (whole / "checkpoint_last.pt").read_bytes()
    hole = bytearray(content)
    hole[len(hole) // 2 : len(hole) // 2 + 4096] = bytes(4096)
    for damaged in (b"", content[:100], content[: len(content) // 2], content[:-1], bytes(hole)):
        run = Run(tmp_path / "run")
        shutil.copytree(whole, run.path)
        run.last.write_bytes(damaged)
        newest, other = run.numbered("update")[-1:-3:-1]
        newest.write_bytes(damaged)
        repair_to_resume(run, TrainingCommand())
        assert run.last.read_bytes() == other.read_bytes()
        shutil.rmtree(run.path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that mounts a file system of this size in KiB, or resizes it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        options = f"size={size}k" + (",remount" if folder.is_mount() else "")
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
        ).returncode:
            pytest.skip("needs permission to mount a file system")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
def test_full_disk_is_reported_and_training_resumes(
    recipe: Path, whole: Path, small_disk: Callable[[int], Path]
) -> None:
    size = whole.stat().st_size // 1024
    disk = small_disk(int(4.5 * size))
    run = disk / "run"
    process = begin(launched(recipe, run))
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 1, output[-2000:]
    said = [line for line in output.splitlines() if "cannot be written" in line]
    assert said and "No space left on device (" in said[-1] and str(run) in said[-1], output[-2000:]
    assert all_are_whole(run) and list(run.glob("checkpoint_*.pt")) and not list(run.glob("*.tmp"))
    small_disk(20 * size)
    finish(launched(recipe, run))
    assert_same_state(run / "checkpoint_last.pt", whole)
