"""From subwords to the data folder: run fairseq-preprocess and write corpus.json."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

from ... import records
from ...cli import children
from ...cli.machine import versions
from ...cli.progress import POLL, Progress
from ...console import with_lines
from ...files import last_lines, sha256
from . import folder as data_folder
from .folder import CorpusRecord
from .manifest import number_of_test

TOOLS = ("fairseq", "fairseq-fixed", "sacremoses", "sentencepiece", "subword-nmt")


def preprocess(
    text: Path,
    data: Path,
    source: str,
    target: str,
    splits: Collection[str],
    workers: int,
    size: int,
    lock: int | None = None,
    dictionary: Path | None = None,
) -> None:
    """Run fairseq-preprocess on TEXT/SPLIT of every split and write DATA; print the command and show its progress.

    splits: train, valid, test, and further test sets test1, test2, ..., possibly with gaps
    size: expected total size of the .bin files in bytes
    dictionary: the dictionary of both languages; None: it is made from the training text
    Raises: ChildProcessError if it fails; OSError if the disk is full.
    """
    tests = sorted((split for split in splits if split.startswith("test")), key=number_of_test)
    argv = [children.program("fairseq-preprocess"), "--source-lang", source, "--target-lang", target]
    argv += ["--joined-dictionary", *(["--srcdict", str(dictionary)] if dictionary else [])]
    for flag, prefixes in (("--trainpref", ["train"]), ("--validpref", ["valid"]), ("--testpref", tests)):
        argv += [flag, ",".join(str(text / split) for split in prefixes)]
    argv += ["--destdir", str(data), "--workers", str(workers)]
    children.show(argv)
    log = data.with_name(data.name + ".log")
    with log.open("wb") as file, _watched(data, size):
        code = children.run(argv, file, lock, errors=file)
    if code:
        tail = last_lines(log, 5)
        # On a full disk, the log cannot contain the reason. In that case, the write below raises the OSError.
        room = data.with_name(data.name + ".room")
        room.write_bytes(bytes(1 << 20))
        room.unlink()
        raise with_lines(ChildProcessError(f"fairseq-preprocess failed with exit code {code}:"), tail)
    log.unlink()
    # fairseq-preprocess numbers the test sets by position. Rename the last one first, so that the new name is always
    # free.
    for position, split in reversed([*enumerate(tests)]):
        numbered = f"test{position or ''}"
        if numbered != split:
            for path in data.glob(f"{numbered}.{source}-{target}.*"):
                path.rename(path.with_name(split + path.name.removeprefix(numbered)))
    # The log mentions folders that no longer exist when the data folder is complete.
    (data / "preprocess.log").unlink(missing_ok=True)


@contextmanager
def _watched(data: Path, size: int) -> Iterator[None]:
    """Show the progress of fairseq-preprocess from the size of its output files, because it reports none itself."""
    ended = Event()

    def watch() -> None:
        with Progress("fairseq-preprocess, dictionary") as progress:
            while not ended.wait(POLL) and not any(data.glob("dict.*")):
                progress.advance(0)
        with Progress("fairseq-preprocess", size, "B") as progress:
            while not ended.wait(POLL):
                written = 0
                for file in data.glob("*.bin"):  # including those of its workers
                    with suppress(FileNotFoundError):
                        written += file.stat().st_size
                progress.advance(min(written, size) - progress.done)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def make(
    record: CorpusRecord,
    text: Path,
    references: Path,
    model: Path,
    data: Path,
    workers: int,
    lock: int | None = None,
    dictionary: Path | None = None,
) -> None:
    """Make DATA from TEXT/SPLIT (subwords), the reference texts and the subword model, but without corpus.json.

    Raises: ChildProcessError if fairseq-preprocess fails.
    """
    # Each side of every pair ends in </s>. The bytes per token follow fairseq's best_fitting_int_dtype.
    tokens = sum(sum(record.tokens[split].values()) + 2 * lines.kept for split, lines in record.lines.items())
    size = tokens * (2 if record.vocab_size < 65500 else 4)
    preprocess(text, data, record.source, record.target, record.lines, workers, size, lock, dictionary)
    shutil.copytree(references, data / "ref")
    shutil.copyfile(model, data / model.name)


def write_record(record: CorpusRecord, data: Path) -> None:
    """Write DATA/corpus.json: the record with tool versions, file sizes and checksums added."""
    files = {str(file.relative_to(data)): file for file in sorted(data.rglob("*")) if file.is_file()}
    whole = replace(
        record,
        tools=versions(TOOLS),
        sizes={name: file.stat().st_size for name, file in files.items()},
        checksums={name: sha256(file) for name, file in files.items()},
    )
    records.write(data / data_folder.CORPUS, whole)
