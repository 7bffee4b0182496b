"""Run fairseq-preprocess on the subwords of a corpus, and show its progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from ...cli import children
from ...cli.progress import POLL, Progress
from ...console import with_lines
from ...files import last_lines
from .manifest import number_of_test


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
