"""A joined sentencepiece BPE: learned from the training text, then applied to all of it."""

from __future__ import annotations

import io
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

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

    Raises: ValueError where the text does not hold as many pieces as asked for.
    """
    import sentencepiece

    told = {**SENTENCEPIECE, "normalization_rule_name": normalizer, "vocab_size": vocab_size}
    settings = " ".join(f"{key}={value}" for key, value in told.items())
    used = -(-pairs // max(1, -(-pairs // SAMPLED)))
    print(f"  sentencepiece: {settings} on {2 * used:,} sentences", flush=True)
    content = io.BytesIO()
    # Python would see Ctrl-C only when the library returns, which can take minutes; nothing is lost by ending at once.
    on_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if on_main_thread else None
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sample(files, pairs),
            model_writer=content,  # a file name would be stored in the model
            **told,
        )
    except RuntimeError as error:
        raise ValueError(f"--vocab-size {vocab_size}: sentencepiece could not learn it: {error}") from None
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    model.write_bytes(content.getvalue())
    return {"pairs": used, "vocab_size": vocab_size}


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
