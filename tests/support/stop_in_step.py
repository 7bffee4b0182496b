"""Run a data preparation that stops in the middle of a step and waits. Tests kill it there.

PREPARE_TEST_STOP names the step. "tokenise train/7" stops after 7 shards of 20 pairs of the training text. The program
prints STOPPED when it has stopped, with half of the work on disk.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from fairseq_resid.data import extract, fetch
from fairseq_resid.data.text import parallel, prepare, subwords, tokenise
from fairseq_resid.data.text.resumable import Steps


def stop() -> None:
    print("STOPPED", flush=True)
    time.sleep(600)


def run_then_stop(run: Any) -> Any:
    def stopping(folder: Path) -> Any:
        run(folder)
        for file in sorted(folder.rglob("*")):  # as if a file were still being written
            if file.is_file():
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
                break
        stop()

    return stopping


def stop_between_texts() -> None:
    """Stop extraction when the texts of one archive are complete and those of the next are written but not checked."""
    whole, written = extract.write_text, []

    def write_text(stream: Any, name: str, output: Path, *rest: Any) -> None:
        whole(stream, name, output, *rest)
        written.append(output)
        if len(written) == 4:
            stop()

    extract.write_text = write_text


def stop_after_shards(what: str, count: int) -> None:
    """Stop the work on a text after `count` shards."""
    advance, done = parallel.Progress.advance, []

    def advance_or_stop(self: parallel.Progress, pairs: int) -> None:
        advance(self, pairs)
        if self.what == what:
            done.append(pairs)
            if len(done) == count:
                stop()

    parallel.Progress.advance = advance_or_stop  # type: ignore[method-assign]


def wait(*_: Any) -> Any:
    """Wait instead of doing the work of a worker or of the process that learns the subwords."""
    os.write(1, f"WORKER {os.getpid()}\n".encode())  # a single write, so that the lines of two workers do not mix
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
    elif where == "worker":
        parallel.SHARD_LINES = 20
        tokenise.tokenise_shard = wait
    elif "/" in where:
        parallel.SHARD_LINES = 20
        what, count = where.split("/")
        stop_after_shards(what, int(count))
    elif where == "learner":
        subwords.sample = wait
    else:
        run = Steps.run

        def run_or_stop(self: Steps, name: str, kind: Any, make: Any) -> Any:
            return run(self, name, kind, run_then_stop(make) if name == where else make)

        Steps.run = run_or_stop  # type: ignore[method-assign]
    sys.exit(prepare.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
