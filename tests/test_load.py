"""Much of everything: pairs of text, lines to translate, checkpoints. Memory and disk stay bounded, nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
from conftest import sentence_pair

from fairseq_resid.corpora import disk

ROOT = Path(__file__).resolve().parent.parent
RESID = [sys.executable, "-m", "fairseq_resid"]
pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def write_pairs(folder: Path, count: int) -> dict[str, Path]:
    """Write so many short training pairs, all different, and small valid and test texts; return their prefixes."""
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
    """The most memory that every step of a preparation takes, and fairseq-preprocess within the last of them."""

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
            with contextlib.suppress(FileNotFoundError):  # renamed just now
                self.disk = max(self.disk, bytes_below(self.work))
            time.sleep(0.5)


def test_pairs_by_the_million(tmp_path: Path, fault: Callable[..., None]) -> None:
    """Our own steps take no more memory for 5,000,000 pairs than for 1,000,000; fairseq's is measured."""
    peaks, figures = {}, {}
    for count in (1_000_000, 5_000_000):
        folder = tmp_path / str(count)
        prefixes = write_pairs(folder, count)
        data = folder / "data"
        command = [*RESID, "prepare", "custom", "--name", "many", "--source", "en", "--target", "xx"]
        command += [word for split, prefix in prefixes.items() for word in (f"--{split}", str(prefix))]
        command += ["--vocab-size", "2000", "--out", str(data), "--workers", "2"]
        start = time.monotonic()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            found = Peaks(process, data.with_name("data.partial"))
            assert process.stdout is not None
            output = process.stdout.read().decode()
        found.watcher.join()
        seconds = time.monotonic() - start
        assert process.returncode == 0, output
        told = json.loads((data / "corpus.json").read_text())
        assert told["lines"]["train"] == {"in": count, "out": count, "dropped": {}}
        assert (data / "train.en-xx.en.idx").stat().st_size == 26 + count * 12
        raw = sum(Path(f"{prefix}.{side}").stat().st_size for prefix in prefixes.values() for side in ("en", "xx"))
        figures[count] = {"seconds": seconds, "text": raw, "work": found.disk, "data": bytes_below(data)}
        peaks[count] = found.most
        assert found.disk <= disk.WORK_FACTOR * raw + disk.WORK_BYTES  # what was asked for beforehand
        shutil.rmtree(folder)
    few, many = peaks.values()
    for step in ("tokenise", "learn", "encode", "binarise"):
        assert many[step] < 1.1 * few[step] + 10e6, (step, few, many)

    def told_of(name: str) -> str:
        return f"{few[name] / 1e6:.0f} and {many[name] / 1e6:.0f} MB"

    last = figures[5_000_000]
    fault(
        "5,000,000 pairs of text, after 1,000,000",
        2,
        f"peak of our steps: tokenise {told_of('tokenise')}, learn {told_of('learn')}, encode {told_of('encode')}; of "
        f"fairseq-preprocess with its workers {told_of('fairseq-preprocess')}; {last['seconds']:.0f} s, "
        f"{last['text'] / 1e6:.0f} MB of text, {last['work'] / 1e6:.0f} MB at work, {last['data'] / 1e6:.0f} MB made",
    )
