"""corpora/{clean,stream,tokenise,subwords}.py: which pairs stay, and that parallel work changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import resource
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_resid.corpora import clean, stream, subwords
from fairseq_resid.corpora.tokenise import tokenise
from fairseq_resid.folders.data import PairCounts
from fairseq_resid.text import TextForm
from support import mirror

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
LIMITS = clean.Limits(250, 1.5)
PLAIN = (TextForm("en"), TextForm("de"))
MOSES = (TextForm("en", "moses", True), TextForm("de", "moses", True))


def write(folder: Path, source: bytes, target: bytes) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    (folder / "in.en").write_bytes(source)
    (folder / "in.de").write_bytes(target)
    return folder / "in.en", folder / "in.de"


def run(
    folder: Path,
    source: bytes,
    target: bytes,
    cleaned: bool = True,
    forms: tuple[TextForm, TextForm] = PLAIN,
    workers: int = 1,
) -> tuple[list[bytes], list[bytes], PairCounts]:
    """Tokenise a text; return both sides' lines and what was counted."""
    outputs = (folder / "out.en", folder / "out.de")
    counts = tokenise("test", [write(folder, source, target)], outputs, forms, cleaned, workers, None)
    left, right = (path.read_bytes().split(b"\n")[:-1] for path in outputs)
    assert len(left) == len(right) == counts.kept
    return left, right, counts


BAD = {
    "not_utf8": b"caf\xe9 au lait",
    "too_long": "ä".encode() * 10_001,
    "control_characters": b"a bell \x07 rings",
    "empty": b" \t ",
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("side", [0, 1])
def test_each_reason_to_drop_pairs_is_counted(tmp_path: Path, reason: str, side: int) -> None:
    texts = [b"one\ntwo\nthree\n", b"eins\nzwei\ndrei\n"]
    lines = texts[side].split(b"\n")
    lines[1] = BAD[reason]
    texts[side] = b"\n".join(lines)
    left, right, counts = run(tmp_path, *texts)
    assert (left, right) == ([b"one", b"three"], [b"eins", b"drei"])
    assert counts == PairCounts(3, 2, {name: int(name == reason) for name in clean.RAW_REASONS})


@pytest.mark.parametrize(
    "line, is_dropped",
    [
        (b"tab\tand\xc2\xa0no-break space", False),
        ("U+2028 \u2028 is no control character".encode(), False),
        (b"carriage \r return inside", True),
        (b"nul \0", True),
        ("next line \u0085".encode(), True),
        ("ä".encode() * 10_000, False),
        (b"same", True),
        (b" same \t", True),
    ],
)
def test_only_unusable_pairs_are_dropped(tmp_path: Path, line: bytes, is_dropped: bool) -> None:
    assert run(tmp_path, line + b"\n", b"same\n")[2].kept == int(not is_dropped)


def test_cleaning_keeps_duplicates(tmp_path: Path) -> None:
    assert run(tmp_path, b"one\n" * 5, b"eins\n" * 5)[2].kept == 5


def test_windows_line_endings_and_byte_order_marks_are_stripped(tmp_path: Path) -> None:
    left, right, _ = run(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n", b"\xef\xbb\xbfeins\r\nzwei")
    assert (left, right) == ([b"one", b"two"], [b"eins", b"zwei"])


@pytest.mark.parametrize(
    "length", [stream.LINE_BYTES - 1, stream.LINE_BYTES, stream.LINE_BYTES + 1, 1_000_000, 3 << 20]
)
def test_very_long_line_does_not_shift_other_lines(tmp_path: Path, length: int) -> None:
    left, right, counts = run(tmp_path, b"one\n" + b"x" * length + b"\nthree\n", b"eins\nzwei\ndrei\n")
    assert (left, right) == ([b"one", b"three"], [b"eins", b"drei"])
    assert counts.dropped["too_long"] == 1


@pytest.mark.parametrize("reason", ["not_utf8", "too_long"])
def test_unusable_text_is_an_error_without_cleaning(tmp_path: Path, reason: str) -> None:
    target = b"eins\nzwei\n" + BAD[reason] + b"\n"
    with pytest.raises(ValueError, match=r"in\.de:3: .*; --clean drops such pairs"):
        run(tmp_path, b"one\ntwo\nthree\n", target, cleaned=False)


def test_without_cleaning_nothing_is_dropped(tmp_path: Path) -> None:
    source = b"\nsame\n\x07\n" + b"a " * 400 + b"\n"
    left, right, counts = run(tmp_path, source, b"leer\nsame\nb\n\n", cleaned=False)
    assert counts == PairCounts(4, 4, {}) and len(left) == len(right) == 4


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("lengths", [(5, 6), (6, 5), (0, 1), (2500, 2501)])
def test_sides_of_unequal_length_are_named(tmp_path: Path, lengths: tuple[int, int], workers: int) -> None:
    with pytest.raises(
        ValueError, match=rf"in\.en has {lengths[0]} lines, \S*in\.de has {lengths[1]}: they must be equal"
    ):
        run(tmp_path, b"a\n" * lengths[0], b"b\n" * lengths[1], workers=workers)


def test_tokenised_text_equals_sacremoses(tmp_path: Path) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    text = mirror.sides(mirror.pairs(400, ("en", "de")))
    found = run(tmp_path, text[0].encode(), text[1].encode(), forms=MOSES)
    for side, language in enumerate(("en", "de")):
        normalizer = MosesPunctNormalizer(language, post_remove_control_chars=True)
        tokenizer = MosesTokenizer(language)
        expected = [
            tokenizer.tokenize(normalizer.normalize(line), return_str=True, escape=False)
            for line in text[side].split("\n")[:-1]
        ]
        assert [line.decode() for line in found[side]] == expected


def test_tab_separates_words(tmp_path: Path) -> None:
    assert run(tmp_path, b"one\ttwo\xe2\x80\x8bthree\n", b"eins\n", forms=MOSES)[0] == [b"one two three"]


def test_number_of_workers_does_not_change_output(tmp_path: Path) -> None:
    text = [side.encode() for side in mirror.sides(mirror.pairs(5000, ("en", "de")))]
    lines = text[0].split(b"\n")
    for index, bad in enumerate(BAD.values()):
        lines[700 * index + 3] = bad
    text[0] = b"\n".join(lines)
    one, two, three = (run(tmp_path / str(workers), *text, forms=MOSES, workers=workers) for workers in (1, 2, 3))
    assert one == two == three and one[2].kept == 4996


def lossy(text: bytes) -> list[bytes]:
    """Split as the definition says: at LF alone, a last empty line is none."""
    lines = text.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    text=st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")), max_size=12).map(b"\n".join),
    limit=st.integers(3, 9),
)
def test_only_newlines_end_a_line(tmp_path: Path, text: bytes, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text"
    file.write_bytes(text)
    monkeypatch.setattr(stream, "LINE_BYTES", limit)
    with file.open("rb") as opened:
        found = [line.removesuffix(b"\n") for line in stream.lines(opened)]
    expected = lossy(text)
    if expected and text.startswith(stream.BYTE_ORDER_MARK):
        expected[0] = expected[0][3:]
    assert len(found) == len(expected) == stream.measure(file)[0]
    for got, line in zip(found, expected, strict=True):
        assert line.startswith(got) and (got == line or len(got) >= limit - 3)


@pytest.mark.parametrize(
    "lengths, reason",
    [
        ((1, 1), None),
        ((250, 250), None),
        ((251, 250), "length"),
        ((250, 251), "length"),
        ((0, 1), "length"),
        ((2, 3), None),
        ((3, 2), None),
        ((20, 31), "ratio"),
        ((31, 20), "ratio"),
        ((1, 2), "ratio"),
    ],
)
def test_length_and_ratio_limits_equal_clean_corpus_n(lengths: tuple[int, int], reason: str | None) -> None:
    assert LIMITS.reason(*lengths) == reason


def test_pairs_with_too_many_subwords_are_dropped_and_counted(tmp_path: Path) -> None:
    import sentencepiece

    items = mirror.pairs(600, ("en", "de"))
    items[5] = ("word " * 300, "Wort " * 300)
    items[9] = ("we", "einer sehr großen Stadt am Fluss mit alten Freunden")
    text = [side.encode() for side in mirror.sides(items)]
    files = write(tmp_path, *text)
    subwords.learn("sentencepiece", files, 600, 120, tmp_path / "spm.model")
    outputs = (tmp_path / "out.en", tmp_path / "out.de")
    counts, sides = subwords.encode("test", files, outputs, "sentencepiece", tmp_path / "spm.model", LIMITS, 1, 600)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    encoded = [tuple(processor.encode(side, out_type=str) for side in pair) for pair in items]
    reasons = Counter(LIMITS.reason(len(left), len(right)) for left, right in encoded)
    kept = [pair for pair in encoded if LIMITS.reason(len(pair[0]), len(pair[1])) is None]
    assert reasons["length"] >= 1 and reasons["ratio"] >= 1
    assert counts == PairCounts(600, len(kept), {"length": reasons["length"], "ratio": reasons["ratio"]})
    assert sides == (sum(len(left) for left, _ in kept), sum(len(right) for _, right in kept))
    for side, path in enumerate(outputs):
        assert path.read_text().split("\n")[:-1] == [" ".join(pair[side]) for pair in kept]
    # Off: every pair stays.
    outputs = (tmp_path / "all.en", tmp_path / "all.de")
    assert subwords.encode("test", files, outputs, "sentencepiece", tmp_path / "spm.model", None, 1, 600)[0].kept == 600


@pytest.mark.parametrize("pairs, sampled", [(1, 10), (9, 10), (10, 10), (11, 10), (20, 10), (29, 10), (1000, 7)])
def test_sample_is_even_and_bounded(tmp_path: Path, pairs: int, sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "SAMPLED", sampled)
    files = write(
        tmp_path, "".join(f"{i}\n" for i in range(pairs)).encode(), "".join(f"-{i}\n" for i in range(pairs)).encode()
    )
    found = list(subwords.sample(files, pairs))
    numbers = [int(line) for line in found[::2]]
    assert [line.removeprefix("-") for line in found[1::2]] == found[::2]
    assert len(numbers) <= sampled and (pairs > sampled or len(numbers) == pairs)
    assert len({right - left for left, right in itertools.pairwise(numbers)}) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """The peak of a process of its own, over 20 times the text: 380,000 pairs more, 24 MB, in less than 3 MB more."""
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from fairseq_resid.corpora.tokenise import tokenise
        from fairseq_resid.text import TextForm
        folder = Path(sys.argv[1])
        forms = (TextForm("en"), TextForm("de"))
        tokenise("t", [(folder / "in.en", folder / "in.de")], (folder / "o.en", folder / "o.de"), forms, True, 1, None)
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
    """)
    peaks = []
    for count in (20_000, 400_000):
        write(tmp_path, b"a line of some fifty bytes, as they are in a corpus\n" * count, b"eine Zeile\n" * count)
        command = [sys.executable, "-c", code, str(tmp_path)]
        peaks.append(int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout))
    assert peaks[1] - peaks[0] < 3000


class Stopped(Exception):
    pass


def interrupted_text(folder: Path) -> list[tuple[Path, Path]]:
    """Write two texts: with a mark, lines that are dropped, one that is cut, CRLF, and a last line without its end."""
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


class Interrupted:
    """A tokenisation of some texts in chunks of 4 pairs, that can be stopped and run again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (("CHUNK_LINES", 4), ("LINE_BYTES", 300), ("JOURNAL_EVERY", 0.0)):
            monkeypatch.setattr(stream, name, value)
        self.pairs = interrupted_text(folder)
        self.outputs = (folder / "out.en", folder / "out.de")
        self.journal = folder / "out.en.journal"

    def run(self, workers: int = 1, stop: int | None = None, cleaned: bool = True) -> tuple[int, list[bytes], object]:
        """Tokenise, from the beginning or from where it was stopped; with `stop`, no further than so many chunks.

        Returns how many chunks were done, what both outputs hold, and the counts.
        """
        done = []

        def advance(_: object, count: int) -> None:
            done.append(count)
            if len(done) == stop:
                raise Stopped

        counts = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream.Progress, "advance", advance)
            with contextlib.suppress(Stopped):
                counts = tokenise("test", self.pairs, self.outputs, MOSES, cleaned, workers, None)
        return len(done), [path.read_bytes() for path in self.outputs], counts

    def clear(self) -> None:
        for path in (*self.outputs, self.journal):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_cleaning_resumes_after_any_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Interrupted(tmp_path, monkeypatch)
    whole = work.run()
    assert whole[0] == 9 and whole[2] == PairCounts(32, 31, {**dict.fromkeys(clean.RAW_REASONS, 0), "not_utf8": 1})
    for stop, pairs in enumerate((4, 8, 12, 16, 20, 23, 27, 31, 32), start=1):
        work.clear()
        assert work.run(workers, stop)[0] == stop
        for output in work.outputs:  # what was written after the journal
            with output.open("ab") as file:
                file.write(b"half of a li")
        capsys.readouterr()
        assert work.run(workers) == (9 - stop, *whole[1:])
        assert f"test: goes on after {pairs} pairs\n" in capsys.readouterr().out
        assert work.run(workers) == (0, *whole[1:])  # finished, it is not done again


def test_errors_after_a_stop_name_the_same_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Interrupted(tmp_path, monkeypatch)
    for path in work.pairs[0]:
        path.write_bytes(path.read_bytes().replace(BAD["not_utf8"], b"a caf"))
    second = work.pairs[1][1]
    second.write_bytes(second.read_bytes().replace("Wörter 1 6".encode(), BAD["not_utf8"]))
    assert work.run(stop=7, cleaned=False)[0] == 7
    for _ in range(2):
        with pytest.raises(ValueError, match=r"1/in\.de:7: not UTF-8"):
            work.run(cleaned=False)
    second.write_bytes(second.read_bytes() + b"\none more")
    with pytest.raises(ValueError, match=r"in\.en has 9 lines, \S*in\.de has 10: they must be equal"):
        work.run()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda work: work.outputs[1].write_bytes(b"short\n"),
        lambda work: work.outputs[0].unlink(),
        lambda work: work.journal.write_text(""),
        lambda work: work.journal.write_text("[1]"),
        lambda work: work.journal.write_text('{"inputs": []}'),
        lambda work: work.journal.unlink(),
    ],
)
def test_mismatched_journal_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Interrupted], object]
) -> None:
    work = Interrupted(tmp_path, monkeypatch)
    whole = work.run()
    work.clear()
    work.run(stop=5)
    spoil(work)
    assert work.run() == whole


def test_changed_inputs_restart_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Interrupted(tmp_path, monkeypatch)
    work.run(stop=5)
    file = work.pairs[0][0]
    file.write_bytes(file.read_bytes().replace(b"word 0 2\r", b"word 0 two\r"))
    done, outputs, _ = work.run()
    assert done == 9 and b"word 0 two\n" in outputs[0]


def test_dead_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, b"a\n" * 10, b"b\n" * 10)
    with pytest.raises(ChildProcessError, match="a worker process ended"):
        stream.transform("test", [files], (tmp_path / "o.en", tmp_path / "o.de"), die, 2, None)


def die(chunk: stream.Chunk) -> stream.Result:
    import os

    os._exit(9)


def test_full_disk_is_an_error(tmp_path: Path) -> None:
    files = write(tmp_path, b"a line\n" * 200_000, b"eine Zeile\n" * 200_000)
    code = "from fairseq_resid.corpora.tokenise import tokenise; from fairseq_resid.text import TextForm as F; " + (
        f"from pathlib import Path as P; tokenise('t', [(P({str(files[0])!r}), P({str(files[1])!r}))], "
        f"(P({str(tmp_path)!r})/'o.en', P({str(tmp_path)!r})/'o.de'), (F('en'), F('de')), True, 1, None)"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 1 and "OSError: [Errno 27] File too large" in done.stderr
