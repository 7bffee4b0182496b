"""A joined sentencepiece BPE: learned from the training text, then applied to all of it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..commands.progress import POLL, Progress
from . import clean, stream

# Learned from at most so many training pairs, evenly spread: memory does not grow with the corpus.
SAMPLED = 1_000_000
SENTENCEPIECE: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 1.0,
    "num_threads": 1,  # the model must not depend on the machine
    "minloglevel": 1,
}
# sentencepiece's names: NFKC with what machine translation wants besides, Unicode's NFKC, nothing.
NORMALIZERS = ("nmt_nfkc", "nfkc", "identity")


def sample(files: tuple[Path, Path], pairs: int) -> Iterator[str]:
    """Yield both sides of at most SAMPLED of so many pairs, evenly spread over the text."""
    step = max(1, -(-pairs // SAMPLED))
    with (
        files[0].open(encoding="utf-8", newline="\n") as source,
        files[1].open(encoding="utf-8", newline="\n") as target,
    ):
        for left, right in zip(islice(source, 0, None, step), islice(target, 0, None, step), strict=True):
            yield left.removesuffix("\n")
            yield right.removesuffix("\n")


def learn(
    files: tuple[Path, Path], pairs: int, vocab_size: int, model: Path, normalizer: str = NORMALIZERS[0]
) -> dict[str, int]:
    """Learn one model over both sides of the training text; returns how many pairs it was learned from.

    normalizer: what sentencepiece does to text before it cuts it, one of NORMALIZERS
    Raises: ValueError if the text does not hold as many pieces as asked for; ChildProcessError if the library's process
    is killed.
    """
    asked = {**SENTENCEPIECE, "normalization_rule_name": normalizer, "vocab_size": vocab_size}
    settings = " ".join(f"{key}={value}" for key, value in asked.items())
    used = -(-pairs // max(1, -(-pairs // SAMPLED)))
    print(f"  sentencepiece: {settings} on {2 * used:,} sentences", flush=True)
    # In a process of its own: while the library works, for minutes, Python would not see Ctrl-C.
    receiver, sender = stream.context().Pipe(duplex=False)
    process = stream.context().Process(target=_learn, args=(sender, files, pairs, asked))
    told: int | bytes = 0
    process.start()  # before a progress bar starts a thread
    try:
        sender.close()
        with Progress("read", 2 * used, "sentences") as progress:
            while progress.done < 2 * used and isinstance(told := _hear(receiver), int):
                progress.advance(told)
        with Progress("learn") as progress:
            while isinstance(told, int):
                progress.advance(0)
                told = _hear(receiver)
    finally:
        process.kill()
        process.join()
    model.write_bytes(told)
    return {"pairs": used, "vocab_size": vocab_size}


def _learn(sender: Connection, files: tuple[Path, Path], pairs: int, asked: dict[str, Any]) -> None:
    """Learn the model: send every 10,000 sentences how many were read, at the end the model or an exception."""
    stream.start_worker()
    import sentencepiece

    def counted() -> Iterator[str]:
        count = 0
        for sentence in sample(files, pairs):
            yield sentence
            count += 1
            if count == 10_000:
                sender.send(count)
                count = 0
        sender.send(count)

    content = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=counted(),
            model_writer=content,  # a file name would be stored in the model
            **asked,
        )
        sender.send(content.getvalue())
    except RuntimeError as error:
        sender.send(ValueError(f"--vocab-size {asked['vocab_size']}: sentencepiece could not learn it: {error}"))
    except Exception as error:
        sender.send(error)


def _hear(receiver: Connection) -> int | bytes:
    """Return what `_learn` sends, or 0 if it sends nothing for POLL seconds.

    Raises: the exception that it sends; ChildProcessError if it ended without one.
    """
    if not receiver.poll(POLL):
        return 0
    try:
        told: int | bytes | Exception = receiver.recv()
    except EOFError:
        raise ChildProcessError("sentencepiece was ended (out of memory?)") from None
    if isinstance(told, Exception):
        raise told
    return told


_processor: Any = None  # a worker's own; it cannot be sent to it


def _load(model: str) -> None:
    global _processor
    import sentencepiece

    _processor = sentencepiece.SentencePieceProcessor(model_file=model)


def encoded(lines: list[bytes]) -> list[list[str]]:
    """Return the pieces of every line; on one thread, as there is a process for every core."""
    texts = [line.decode().rstrip("\n") for line in lines]
    pieces: list[list[str]] = _processor.encode(texts, out_type=str, num_threads=1)
    return pieces


class Encode:
    """The work on one chunk, as an object that can be sent to a worker process."""

    def __init__(self, limits: clean.Limits | None) -> None:
        self.limits = limits

    def __call__(self, chunk: stream.Chunk) -> stream.Result:
        counts: Counter[str] = Counter()
        sides = [encoded(side) for side in chunk.sides]
        outputs: tuple[list[str], list[str]] = ([], [])
        for source, target in zip(*sides, strict=True):
            counts["in"] += 1
            reason = self.limits.reason(len(source), len(target)) if self.limits else None
            if reason:
                counts[reason] += 1
                continue
            counts["out"] += 1
            counts["source_pieces"] += len(source)
            counts["target_pieces"] += len(target)
            outputs[0].append(" ".join(source) + "\n")
            outputs[1].append(" ".join(target) + "\n")
        return stream.Result(("".join(outputs[0]).encode(), "".join(outputs[1]).encode()), counts)


def encode(
    what: str,
    files: tuple[Path, Path],
    outputs: tuple[Path, Path],
    model: Path,
    limits: clean.Limits | None,
    workers: int,
    total: int,
) -> dict[str, int]:
    """Write a parallel text as pieces with spaces between; with limits, without the pairs that are beyond them.

    Returns lines in, lines out, drops by reason, and the pieces of both sides that were written.
    """
    counts = stream.transform(what, [files], outputs, Encode(limits), workers, total, _load, (str(model),))
    kept = ("in", "out", *(clean.PIECE_REASONS if limits else ()), "source_pieces", "target_pieces")
    return {name: counts[name] for name in kept}
