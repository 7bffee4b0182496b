"""The preparation, made to stop in the middle of one step and wait there: for the tests that kill it.

PREPARE_TEST_STOP names the step, or a text in it and a number of chunks: "tokenise train/7". The word STOPPED on stdout
says that it is there, its work half done on disk.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from fairseq_resid.commands import extract, fetch
from fairseq_resid.corpora import prepare, stream, subwords
from fairseq_resid.corpora.pipeline import Step


def stop() -> None:
    print("STOPPED", flush=True)
    time.sleep(600)


def run_then_stop(run: Any) -> Any:
    def stopping(folder: Path) -> Any:
        run(folder)
        for file in sorted(folder.rglob("*")):  # as if the last file were being written
            if file.is_file():
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
                break
        stop()

    return stopping


def stop_between_texts() -> None:
    """Extraction stops with the texts of one archive whole and those of the next written, but not yet checked."""
    whole, written = extract.write_text, []

    def write_text(stream: Any, name: str, output: Path, limit: int | None = None) -> None:
        whole(stream, name, output, limit)
        written.append(output)
        if len(written) == 4:
            stop()

    extract.write_text = write_text


def stop_after_chunks(what: str, count: int) -> None:
    """A text's work stops after so many chunks of 20 pairs, all in its journal."""
    stream.CHUNK_LINES, stream.FEW_PAIRS, stream.JOURNAL_EVERY = 20, 0, 0.0
    advance, done = stream.Progress.advance, []

    def advance_or_stop(self: stream.Progress, pairs: int) -> None:
        advance(self, pairs)
        if self.what == what:
            done.append(pairs)
            if len(done) == count:
                stop()

    stream.Progress.advance = advance_or_stop  # type: ignore[method-assign]


def wait(*_: Any) -> Any:
    """What a worker, or the process that learns, does in place of its work."""
    print("WORKER", os.getpid(), flush=True)
    time.sleep(600)


def main() -> None:
    where = os.environ["PREPARE_TEST_STOP"]
    if where == "download":
        replaced = os.replace

        def replace(source: Any, target: Any) -> None:
            if str(source).endswith("commoncrawl.tgz.partial"):
                Path(source).write_bytes(Path(source).read_bytes()[:1000])
                stop()
            replaced(source, target)

        fetch.os.replace = replace  # type: ignore[attr-defined]
    elif where == "extract":
        stop_between_texts()
    elif "/" in where:
        what, count = where.split("/")
        stop_after_chunks(what, int(count))
    elif where == "worker":
        stream.FEW_PAIRS = 0
        transform = stream.transform

        def slowly(what: str, pairs: Any, outputs: Any, function: Any, workers: int, *rest: Any) -> Any:
            return transform(what, pairs, outputs, wait, 2, *rest)

        stream.transform = slowly
    elif where == "learner":
        subwords.sample = wait
    else:
        original = Step.__init__

        def init(self: Step[Any], name: str, title: str, settings: Any, needs: Any, run: Any, *rest: Any, **kept: Any):
            changed = run_then_stop(run)
            original(self, name, title, settings, needs, changed if name == where else run, *rest, **kept)

        Step.__init__ = init  # type: ignore[method-assign, assignment]
    sys.exit(prepare.main(sys.argv[1:]))
