"""Large inputs: pairs of text, lines to translate, checkpoints. Memory and disk stay bounded, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import sentence_pair
from fairseq_resid.data.text import disk
from fairseq_resid.files import read_lines
from support import processes

ROOT = Path(__file__).resolve().parents[2]
RESID = [sys.executable, "-m", "fairseq_resid"]
LINES = 100_000
pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def write_pairs(folder: Path, count: int) -> dict[str, Path]:
    """Write `count` different short training pairs, and small validation and test texts; return their prefixes."""
    folder.mkdir()
    choose = random.Random(3)
    known = [sentence_pair(choose) for _ in range(2000)]
    for split, number in (("train", count), ("valid", 1000), ("test", 1000)):
        for side, language in enumerate(("en", "xx")):
            lines = (f"{split} {index} {known[index % 2000][side]}\n" for index in range(number))
            with (folder / f"{split}.{language}").open("w") as file:
                while block := "".join(itertools.islice(lines, 10_000)):
                    file.write(block)
    return {split: folder / split for split in ("train", "valid", "test")}


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class Peaks:
    """Peak memory of every step of a preparation, and of fairseq-preprocess in the last step."""

    def __init__(self, process: subprocess.Popen[bytes], work: Path) -> None:
        self.process, self.work = process, work
        self.most: dict[str, int] = defaultdict(int)
        self.disk = 0
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            step = next((path.name.split("-")[0] for path in self.work.glob("*.partial")), "")
            found = processes.proportional(self.process.pid)
            theirs = sum(size for command, size in found.items() if "fairseq-preprocess" in command)
            self.most["fairseq-preprocess"] = max(self.most["fairseq-preprocess"], theirs)
            self.most[step] = max(self.most[step], sum(found.values()) - theirs)
            with contextlib.suppress(FileNotFoundError):  # just renamed
                self.disk = max(self.disk, bytes_below(self.work))
            time.sleep(0.5)


def test_preparing_millions_of_pairs_uses_bounded_memory(tmp_path: Path) -> None:
    """Our own steps need no more memory for 5,000,000 pairs than for 1,000,000; fairseq's use is only measured."""
    peaks, figures = {}, {}
    for count in (1_000_000, 5_000_000):
        folder = tmp_path / str(count)
        prefixes = write_pairs(folder, count)
        data = folder / "data"
        command = [*RESID, "prepare", "custom", "--name", "many", "--source", "en", "--target", "xx"]
        command += [word for split, prefix in prefixes.items() for word in (f"--{split}", str(prefix))]
        command += ["--vocab-size", "2000", "--out", str(data), "--workers", "2"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            found = Peaks(process, data.with_name("data.partial"))
            assert process.stdout is not None
            output = process.stdout.read().decode()
        found.watcher.join()
        assert process.returncode == 0, output
        record = json.loads((data / "corpus.json").read_text())
        assert record["lines"]["train"] == {"in": count, "out": count, "dropped": {}, "half_empty": 0}
        assert (data / "train.en-xx.en.idx").stat().st_size == 26 + count * 12
        raw = sum(Path(f"{prefix}.{side}").stat().st_size for prefix in prefixes.values() for side in ("en", "xx"))
        figures[count] = {"text": raw, "work": found.disk, "data": bytes_below(data)}
        peaks[count] = found.most
        assert found.disk <= disk.WORK_FACTOR * raw + disk.WORK_BYTES  # the estimate of the disk check
        shutil.rmtree(folder)
    few, many = peaks.values()
    for step in ("tokenise", "learn", "encode", "binarise"):
        assert many[step] < 1.1 * few[step] + 10e6, (step, few, many)

    def megabytes(name: str) -> str:
        return f"{few[name] / 1e6:.0f} and {many[name] / 1e6:.0f} MB"


@pytest.fixture(scope="module")
def smallest(train: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a model with 1 + 1 layers and 16 channels, trained until its translations terminate."""
    run = tmp_path_factory.mktemp("smallest") / "run"
    sizes = [(f"--{stack}-{what}", size) for stack in ("encoder", "decoder") for what, size in SMALLEST.items()]
    train(run, *itertools.chain(*sizes), "--residual", "pre_ln", "--lr", 0.01, "--batch-size", 64, "--max-update", 200)
    return run


SMALLEST = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 1}


def test_translating_many_lines_uses_constant_memory(smallest: Path, corpus: Path, tmp_path: Path) -> None:
    """`translate` translates all lines in order, and needs no more memory at the end than after 10,000 lines."""
    choose = random.Random(6)
    sentences = ["", *read_lines(corpus / "ref" / "test.en")]
    lines = choose.choices(sentences, k=LINES)
    command = [*RESID, "translate", str(smallest), "--data", str(corpus), "--cpu"]

    def translated(text: list[str], each: Callable[[int, int], None] = lambda pid, count: None) -> list[str]:
        stdin = tmp_path / "stdin"
        stdin.write_text("".join(line + "\n" for line in text))
        answers = []
        with stdin.open() as file, subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            for answer in process.stdout:
                answers.append(answer.decode().removesuffix("\n"))
                each(process.pid, len(answers))
        assert process.returncode == 0
        return answers

    of = dict(zip(sentences, translated(sentences), strict=True))
    assert of[""] == "" and len(set(of.values())) > 20
    resident: dict[int, int] = {}

    def sample(pid: int, count: int) -> None:
        if count % 1000 == 0:
            resident[count] = processes.resident(pid)

    answers = translated(lines, sample)
    assert answers == [of[line] for line in lines]
    before, last = resident[10_000], max(resident[count] for count in resident if count > LINES - 10_000)
    assert 0 < last < 1.1 * before, resident


# Training saves a checkpoint after every second update; the newest three and checkpoint_last.pt are kept.
CHECKPOINTS, KEPT = 200, 3
WEEK = """
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 4 --seed 1 --cpu
    --criterion label_smoothed_cross_entropy --share-all-embeddings --disable-validation --distributed-world-size 1
    --batch-size 8 --save-interval-updates 2 --no-epoch-checkpoints --log-interval 1 --num-workers 0 --residual sas
"""


@pytest.fixture
def week(corpus: Path, tmp_path: Path) -> list[str]:
    """Return the command of a training run that writes 200 checkpoints to the folder `run`."""
    recipe = tmp_path / "week.txt"
    sizes = [f"--{stack}-{what} {size}" for stack in ("encoder", "decoder") for what, size in SMALLEST.items()]
    ends = f"--max-update {2 * CHECKPOINTS} --keep-interval-updates {KEPT}"
    recipe.write_text("\n".join([shlex.quote(str(corpus)), *WEEK.splitlines(), *sizes, ends]))
    return [*RESID, "train", str(recipe), "--arch", "transformer_resid", "--run", str(tmp_path / "run")]


class Watched:
    """Watches a run folder during training; records its largest size and the processes' memory and open files."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.files = self.size = self.newest = 0
        self.held: dict[int, tuple[int, int]] = {}  # by the newest checkpoint: resident bytes, open files

    def look(self, process: subprocess.Popen[Any]) -> None:
        """Take one measurement."""
        with contextlib.suppress(OSError):  # a file or process has just disappeared
            found = [file for file in self.run.iterdir() if file.name.startswith("checkpoint")]
            sizes = [file.stat().st_size for file in found]
            self.files, self.size = max(self.files, len(found)), max(self.size, sum(sizes))
            numbers = [
                int(file.stem.split("_")[-1]) for file in found if re.fullmatch(r"checkpoint_\d+_\d+\.pt", file.name)
            ]
            self.newest = max(numbers, default=0) // 2
            trainings = [pid for pid in processes.tree(process.pid) if pid != process.pid]
            if trainings and self.newest not in self.held:
                held = processes.resident(process.pid), sum(map(processes.descriptors, trainings))
                self.held[self.newest] = held

    def until(self, process: subprocess.Popen[Any], newest: int = CHECKPOINTS + 1) -> None:
        """Watch until training ends or has written this number of checkpoints."""
        while process.poll() is None and self.newest < newest:
            self.look(process)
            time.sleep(0.02)

    def check(self) -> int:
        """Check that the folder never contained more than KEPT + 3 checkpoints; return the size of one."""
        one = (self.run / "checkpoint_last.pt").stat().st_size
        assert 0 < self.files <= KEPT + 3 and self.size <= (KEPT + 3) * 1.1 * one
        return one

    def check_end(self) -> None:
        """Check that the folder of a finished run contains exactly the expected files, and no half-written ones."""
        numbers = range(2 * (CHECKPOINTS - KEPT + 1), 2 * CHECKPOINTS + 1, 2)
        found = {file.name.rsplit("_")[-1] for file in self.run.glob("checkpoint_*_*.pt")}
        assert found == {f"{number}.pt" for number in numbers}
        beside = {file.name for file in self.run.iterdir()} - {file.name for file in self.run.glob("checkpoint_*_*.pt")}
        assert beside <= {"checkpoint_last.pt", "run.json", "train.log", ".lock"}
        assert json.loads((self.run / "run.json").read_text())["finished"]


def test_long_training_keeps_disk_and_memory_bounded(week: list[str], tmp_path: Path) -> None:
    """Training writes 200 checkpoints and keeps four; disk, memory and the number of open files do not grow."""
    watched = Watched(tmp_path / "run")
    with subprocess.Popen(week, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        watched.until(process)
    assert process.returncode == 0
    watched.check()
    watched.check_end()
    early = next(watched.held[number] for number in range(20, 40) if number in watched.held)
    late = next(watched.held[number] for number in range(CHECKPOINTS, 180, -1) if number in watched.held)
    assert late[0] < 1.1 * early[0] and late[1] <= early[1], watched.held


def test_long_training_with_kills_leaves_nothing_half_written(week: list[str], tmp_path: Path) -> None:
    """Training is killed at eight moments and resumed each time by the same command."""
    choose = random.Random(9)
    watched = Watched(tmp_path / "run")
    ends = [*sorted(choose.sample(range(10, CHECKPOINTS - 10), 8)), CHECKPOINTS + 1]
    for newest in ends:
        with subprocess.Popen(week, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
            watched.until(process, newest)
            time.sleep(choose.random() / 10)
            if newest <= CHECKPOINTS:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == (0 if newest > CHECKPOINTS else -signal.SIGKILL)
    watched.check()
    watched.check_end()
