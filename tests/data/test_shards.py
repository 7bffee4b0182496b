"""data/text/shards.py, cli/workers.py: neither kills nor the number of workers changes the output."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path
from typing import IO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_resid import records
from fairseq_resid.data.text import clean, shards
from fairseq_resid.data.text.folder import PairCounts
from fairseq_resid.data.text.tokenise import tokenise
from support import mirror

from .test_clean import BAD, MOSES, ROOT, run, write

pytestmark = pytest.mark.once


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("lengths", [(5, 6), (6, 5), (0, 1), (2500, 2501)])
def test_sides_of_unequal_length_are_reported(tmp_path: Path, lengths: tuple[int, int], workers: int) -> None:
    with pytest.raises(
        ValueError,
        match=rf"in\.en has {lengths[0]} lines, but \S*in\.de has {lengths[1]}; both must have the same number",
    ):
        run(tmp_path, b"a\n" * lengths[0], b"b\n" * lengths[1], workers=workers)


def test_number_of_workers_does_not_change_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = [side.encode() for side in mirror.sides(mirror.pairs(5000, ("en", "de")))]
    lines = text[0].split(b"\n")
    for index, bad in enumerate(BAD.values()):
        lines[700 * index + 3] = bad
    text[0] = b"\n".join(lines)
    whole = run(tmp_path / "one shard", *text, forms=MOSES)
    monkeypatch.setattr(shards, "SHARD_LINES", 700)
    one, two, three = (run(tmp_path / str(workers), *text, forms=MOSES, workers=workers) for workers in (1, 2, 3))
    assert whole == one == two == three and one[2].kept == 4996


def lossy(text: bytes) -> list[bytes]:
    """Split a text as specified: only at LF, and an empty last line does not count."""
    lines = text.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")), max_size=12).map(b"\n".join))
def test_only_newlines_end_a_line(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "text"
    file.write_bytes(text)
    with file.open("rb") as opened:
        found = [line.removesuffix(b"\n") for line in shards.lines(opened)]
    expected = lossy(text)
    if expected and text.startswith(shards.BYTE_ORDER_MARK):
        expected[0] = expected[0][3:]
    assert found == expected and len(found) == shards.measure(file).lines


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9, 40])
def test_shards_contain_every_line_once_in_order(
    count: int, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any block size used to read the file."""
    choose = random.Random(count)
    expected = [b"x" * choose.randrange(12) + str(number).encode() for number in range(count)]
    file = tmp_path / "text"
    file.write_bytes(b"\n".join(expected) + (end if count else b""))
    monkeypatch.setattr(shards, "SHARD_LINES", 4)
    for block in (1, 2, 5, 7, 1000):
        monkeypatch.setattr(shards, "BLOCK", block)
        found = shards.measure(file)
        assert found.lines == count and len(found.starts) == -(-count // 4)
        pieces = [shards.Shard((file, file), 1, (start, start)) for start in found.starts]
        pairs = [pair for piece in pieces for pair in piece.pairs()]
        assert [line.rstrip(b"\n") for line, _ in pairs] == expected and all(left == right for left, right in pairs)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """With 20 times the text (24 MB more), the peak memory of a separate process grows by less than 3 MB."""
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from fairseq_resid.data.text.tokenise import tokenise
        from fairseq_resid.data.text.forms import TextForm
        folder = Path(sys.argv[1])
        forms = (TextForm("en"), TextForm("de"))
        tokenise("t", [(folder / "in.en", folder / "in.de")], (folder / "o.en", folder / "o.de"), forms, True, 1)
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
    """)
    peaks = []
    for count in (20_000, 400_000):
        write(tmp_path, b"a line of some fifty bytes, as they are in a corpus\n" * count, b"eine Zeile\n" * count)
        command = [sys.executable, "-c", code, str(tmp_path)]
        peaks.append(int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout))
    assert peaks[1] - peaks[0] < 3000


def interrupted_text(folder: Path) -> list[tuple[Path, Path]]:
    """Write two texts with a byte-order mark, dropped lines, long lines, CRLF, and no LF at the end."""
    pairs = []
    for part, count in enumerate((23, 9)):
        sides = [bytearray(b"\xef\xbb\xbf"), bytearray()]
        for number in range(count):
            for side, word in zip(sides, ("word", "Wörter"), strict=True):
                side += f"{word} {part} {number}\r\n".encode()
        sides[0] = sides[0].replace(b"word 0 4\r", BAD["not_utf8"]).replace(b"word 0 11\r", b"x" * 900)
        sides[1] = sides[1].replace("Wörter 0 13".encode(), b"y" * 901 + b"\xef\xbb\xbf")
        pairs.append(write(folder / str(part), bytes(sides[0]), bytes(sides[1].removesuffix(b"\r\n"))))
    return pairs


class Work:
    """A tokenisation in shards of 4 pairs that can be interrupted and resumed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shards, "SHARD_LINES", 4)
        self.texts = interrupted_text(folder)
        self.folder = folder / "out"
        self.outputs = (self.folder / "out.en", self.folder / "out.de")

    def run(self, workers: int = 1, stop: int | None = None, cleaned: bool = True) -> tuple[int, list[bytes], object]:
        """Start or resume tokenising; with `stop`, interrupt it after this number of shards.

        Returns the number of shards done, the content of both outputs, and the counts.
        """
        done: list[int] = []

        def advance(_: object, count: int) -> None:
            done.append(count)
            if len(done) == stop:
                raise KeyboardInterrupt

        self.folder.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shards.Progress, "advance", advance)
            if stop is not None:
                with pytest.raises(KeyboardInterrupt):
                    tokenise("test", self.texts, self.outputs, MOSES, cleaned, workers)
                return len(done), [], None
            counts = tokenise("test", self.texts, self.outputs, MOSES, cleaned, workers)
        return len(done), [path.read_bytes() for path in self.outputs], counts

    @property
    def shards(self) -> Path:
        """Return the folder of the finished shards."""
        (folder,) = (path for path in self.folder.iterdir() if path.is_dir())
        return folder

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_only_missing_shards_are_processed_after_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Work(tmp_path, monkeypatch)
    whole = work.run()
    assert whole[0] == 9 and whole[2] == PairCounts(32, 31, {**dict.fromkeys(clean.RAW_REASONS, 0), "not_utf8": 1})
    for stop, pairs in enumerate((4, 8, 12, 16, 20, 23, 27, 31, 32), start=1):
        work.clear()
        assert work.run(workers, stop)[0] == stop
        (work.shards / "000008.target.partial").write_bytes(b"half of a li")
        finished = len(list(work.shards.glob("*.json")))
        assert finished == stop or (workers > 1 and finished > stop)
        capsys.readouterr()
        assert work.run(workers) == (9 - finished, *whole[1:])
        assert finished > stop or f"test: resuming after {pairs} pairs\n" in capsys.readouterr().out
        assert work.run(workers) == (0, *whole[1:])  # finished work is not repeated
        assert len(list(work.folder.iterdir())) == 3  # both sides and their record


@pytest.mark.parametrize("place", [0, 1, 8, 9, 17])
def test_interrupted_joining_resumes_without_repeating_shards(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, copied = Work(tmp_path, monkeypatch), []
    whole = work.run()
    work.clear()

    def copy(source: IO[bytes], target: IO[bytes], length: int) -> None:
        copied.append(source.read())
        target.write(copied[-1][: len(copied[-1]) // 2] if len(copied) > place else copied[-1])
        if len(copied) > place:
            target.flush()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq_resid.data.text.shards.shutil.copyfileobj", copy)
        work.run()
    assert work.run() == (0, *whole[1:])


def test_errors_after_interrupt_name_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(tmp_path, monkeypatch)
    for path in work.texts[0]:
        path.write_bytes(path.read_bytes().replace(BAD["not_utf8"], b"a caf"))
    second = work.texts[1][1]
    second.write_bytes(second.read_bytes().replace("Wörter 1 6".encode(), BAD["not_utf8"]))
    assert work.run(stop=7, cleaned=False)[0] == 7
    for workers in (1, 2):
        with pytest.raises(ValueError, match=r"1/in\.de:7: not UTF-8"):
            work.run(workers, cleaned=False)
    second.write_bytes(second.read_bytes() + b"\none more")
    with pytest.raises(ValueError, match=r"in\.en has 9 lines, but \S*in\.de has 10; both must have the same number"):
        work.run()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda work: (work.shards / "000002.target").write_bytes(b"short\n"),
        lambda work: (work.shards / "000000.source").unlink(),
        lambda work: (work.shards / "000001.json").write_text(""),
        lambda work: (work.shards / "000001.json").unlink(),
        lambda work: work.outputs[0].write_text("something else\n" * 99),
    ],
)
def test_damaged_shards_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Work], object]
) -> None:
    work = Work(tmp_path, monkeypatch)
    whole = work.run()
    work.clear()
    work.run(stop=5)
    spoil(work)
    assert work.run()[1:] == whole[1:]


@pytest.mark.parametrize("spoil", ["short\n", None])
def test_damaged_output_while_joining_restarts_the_text(
    spoil: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, monkeypatch)
    whole = work.run()
    work.clear()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq_resid.data.text.shards.records.write", _failing_at("out.en"))
        work.run()
    if spoil is None:
        work.outputs[1].unlink()
    else:
        work.outputs[1].write_text(spoil)
    assert work.run() == whole


def _failing_at(name: str) -> Callable[[Path, object], None]:
    """Return a records.write that raises KeyboardInterrupt for records whose name starts with `name`."""
    write = records.write

    def write_or_stop(path: Path, value: object) -> None:
        if path.name.startswith(name):
            raise KeyboardInterrupt
        write(path, value)

    return write_or_stop


def test_changed_inputs_restart_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(tmp_path, monkeypatch)
    work.run(stop=5)
    file = work.texts[0][0]
    file.write_bytes(file.read_bytes().replace(b"word 0 2\r", b"word 0 3\r"))  # of the same size
    done, outputs, _ = work.run()
    assert done == 9 and b"word 0 3\nword 0 3\n" in outputs[0]


@pytest.mark.parametrize("workers", [2, 3])
def test_dead_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(shards, "SHARD_LINES", 2)
    files = write(tmp_path, b"a\n" * 40, b"b\n" * 40)
    with pytest.raises(ChildProcessError, match="a worker process died"):
        shards.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), die, workers)
    assert not active_children()
    counts = shards.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), copy, workers)
    assert counts["in"] == 40 and (tmp_path / "o.de").read_bytes() == b"b\n" * 40


def die(shard: shards.Shard, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    if shard.first == 21:
        os._exit(9)
    return copy(shard, counts)


def copy(shard: shards.Shard, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    for source, target in shard.pairs():
        counts["in"] += 1
        yield source.decode().rstrip(), target.decode().rstrip()


def test_error_in_one_shard_ends_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error in order is reported, even if a later shard fails earlier."""
    monkeypatch.setattr(shards, "SHARD_LINES", 2)
    files = write(tmp_path, b"a\n" * 40, b"b\n" * 40)
    with pytest.raises(ValueError, match="line 5"):
        shards.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), fail_slowly, 3)
    assert not active_children()


def test_error_ends_workers_that_inherit_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises an exception can be caught inside a task; the worker must end nevertheless."""
    monkeypatch.setattr(shards, "SHARD_LINES", 2)
    files = write(tmp_path, b"a\n" * 40, b"b\n" * 40)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        start = time.monotonic()
        with pytest.raises(ValueError, match="line 5"):
            shards.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), fail_or_stay, 3)
        assert time.monotonic() - start < 50 and not active_children()
    finally:
        signal.signal(signal.SIGTERM, before)


def fail_or_stay(shard: shards.Shard, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    if shard.first == 5:
        time.sleep(0.3)
        raise ValueError("line 5")
    end = time.monotonic() + 60
    while shard.first > 5 and time.monotonic() < end:
        with suppress(SystemExit):
            time.sleep(1)
    return copy(shard, counts)


def fail_slowly(shard: shards.Shard, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    if shard.first == 5:
        time.sleep(0.3)
        raise ValueError("line 5")
    if shard.first > 5:
        raise ValueError("a later line")
    return copy(shard, counts)
