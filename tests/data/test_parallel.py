"""data/text/parallel.py, cli/workers.py: neither kills nor the number of workers changes the output."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_resid.data.text import clean, parallel
from fairseq_resid.data.text.folder import PairCounts
from fairseq_resid.data.text.tokenise import tokenise
from support import mirror

from .test_clean import BAD, MOSES, PLAIN, run, write

pytestmark = pytest.mark.once


@pytest.mark.parametrize("lengths", [(5, 6), (6, 5), (2500, 2501)])
def test_sides_of_unequal_length_are_reported(tmp_path: Path, lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"in\.en has {lengths[0]} lines, but \S*in\.de has {lengths[1]};"):
        run(tmp_path, b"a\n" * lengths[0], b"b\n" * lengths[1], workers=2)


def test_number_of_workers_does_not_change_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = [side.encode() for side in mirror.sides(mirror.pairs(500, ("en", "de")))]
    lines = text[0].split(b"\n")
    for index, bad in enumerate(BAD.values()):
        lines[70 * index + 3] = bad
    text[0] = b"\n".join(lines)
    whole = run(tmp_path / "one shard", *text, forms=MOSES)
    monkeypatch.setattr(parallel, "SHARD_LINES", 70)
    one, two, three = (run(tmp_path / str(workers), *text, forms=MOSES, workers=workers) for workers in (1, 2, 3))
    assert whole == one == two == three and one[2].kept == 496


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")), max_size=12).map(b"\n".join))
def test_only_newlines_end_a_line(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "text"
    file.write_bytes(text)
    with file.open("rb") as opened:
        found = [line.removesuffix(b"\n") for line in parallel.lines(opened)]
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()  # an empty last line does not count
    if expected and text.startswith(parallel.BYTE_ORDER_MARK):
        expected[0] = expected[0][3:]
    assert found == expected and len(found) == parallel.measure(file).lines


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 40])
def test_shards_contain_every_line_once_in_order(
    count: int, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any block size used to read the file."""
    choose = random.Random(count)
    expected = [b"x" * choose.randrange(12) + str(number).encode() for number in range(count)]
    file = tmp_path / "text"
    file.write_bytes(b"\n".join(expected) + (end if count else b""))
    monkeypatch.setattr(parallel, "SHARD_LINES", 4)
    for block in (1, 2, 5, 7, 1000):
        monkeypatch.setattr(parallel, "BLOCK", block)
        found = parallel.measure(file)
        assert found.lines == count and len(found.starts) == -(-count // 4)
        pieces = [parallel.Shard((file, file), 1, (start, start)) for start in found.starts]
        pairs = [pair for piece in pieces for pair in piece.pairs()]
        assert [line.rstrip(b"\n") for line, _ in pairs] == expected and all(left == right for left, right in pairs)


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20 times the text (2 MB more), the peak of the allocated memory hardly grows."""
    monkeypatch.setattr(parallel, "SHARD_LINES", 1000)
    monkeypatch.setattr(parallel, "BLOCK", 1 << 16)
    peaks = []
    for count in (2_000, 40_000):
        files = write(
            tmp_path, b"a line of some fifty bytes, as they are in a corpus\n" * count, b"eine Zeile\n" * count
        )
        tracemalloc.start()
        tokenise("test", [files], (tmp_path / "out.en", tmp_path / "out.de"), PLAIN, True, 1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 300_000


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


@pytest.mark.parametrize("workers", [1, 3])
def test_interrupted_work_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(parallel, "SHARD_LINES", 4)
    texts, outputs = interrupted_text(tmp_path), (tmp_path / "out.en", tmp_path / "out.de")
    whole = tokenise("test", texts, outputs, MOSES, True, 1)
    assert whole == PairCounts(32, 31, {**dict.fromkeys(clean.RAW_REASONS, 0), "not_utf8": 1})
    expected, done = [path.read_bytes() for path in outputs], list[int]()
    assert all(side.count(b"\n") == 31 for side in expected)

    def advance(_: object, count: int) -> None:
        done.append(count)
        if len(done) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parallel.Progress, "advance", advance)
        tokenise("test", texts, outputs, MOSES, True, workers)
    assert tokenise("test", texts, outputs, MOSES, True, workers) == whole
    assert [path.read_bytes() for path in outputs] == expected


def test_dead_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "SHARD_LINES", 2)
    files = write(tmp_path, b"a\n" * 40, b"b\n" * 40)
    with pytest.raises(ChildProcessError, match="a worker process died"):
        parallel.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), die, 2)
    assert not active_children()
    counts = parallel.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), copy, 2)
    assert counts["in"] == 40 and (tmp_path / "o.de").read_bytes() == b"b\n" * 40


def die(shard: parallel.Shard, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    if shard.first == 21:
        os._exit(9)
    return copy(shard, counts)


def copy(shard: parallel.Shard, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    for source, target in shard.pairs():
        counts["in"] += 1
        yield source.decode().rstrip(), target.decode().rstrip()
