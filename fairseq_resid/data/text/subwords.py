"""A joint BPE with sentencepiece or subword-nmt: learned from the training text, then applied to all texts."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import redirect_stderr
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...cli import quiet
from ...cli.progress import POLL, Progress
from ...cli.workers import context, start_worker
from ...console import say
from . import clean, parallel
from .folder import PairCounts
from .forms import plain_words
from .segmentation import Segmenter

# Maximum number of training pairs to learn from. They are sampled evenly, so that memory does not grow with the corpus.
SAMPLED = 1_000_000
TOGETHER = 100  # lines encoded per call
SENTENCEPIECE: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 1.0,
    "num_threads": 1,  # the model must not depend on the machine
    "minloglevel": 1,
    "max_sentence_length": 1 << 18,  # by default, longer lines than 4,192 bytes are ignored
}
# sentencepiece's names: NFKC with extra rules for machine translation, plain NFKC, no normalisation.
NORMALIZERS = ("nmt_nfkc", "nfkc", "identity")
# Where sentencepiece's messages contain the bound that a vocabulary size violates.
BOUNDS = {
    "at most": re.compile(r"set it to a value <= (\d+)"),
    "at least": re.compile(r"smaller than required_chars\. \d+ vs (\d+)"),
}


def sample(files: tuple[Path, Path], pairs: int) -> Iterator[str]:
    """Yield both sides of at most SAMPLED pairs, spread evenly over a text of `pairs` pairs."""
    step = max(1, -(-pairs // SAMPLED))
    with (
        files[0].open(encoding="utf-8", newline="\n") as source,
        files[1].open(encoding="utf-8", newline="\n") as target,
    ):
        for left, right in zip(islice(source, 0, None, step), islice(target, 0, None, step), strict=True):
            yield left.removesuffix("\n")
            yield right.removesuffix("\n")


def settings_of(kind: str, vocab_size: int, normalizer: str) -> dict[str, Any]:
    """Return the library's settings for learning: everything that the model depends on besides the text."""
    if kind == "subword_nmt":
        return {"num_symbols": vocab_size}
    return {**SENTENCEPIECE, "normalization_rule_name": normalizer, "vocab_size": vocab_size}


def normaliser(kind: str, rule: str) -> Callable[[str], str]:
    """Return the normalisation of a line before segmentation: sentencepiece's, which writes ▁ for a space, or none.

    rule: one of NORMALIZERS
    """
    if kind != "sentencepiece":
        return str
    import sentencepiece

    normalise: Callable[[str], str] = sentencepiece.SentencePieceNormalizer(rule_name=rule).normalize
    return normalise


def learn(
    kind: str,
    files: tuple[Path, Path],
    pairs: int,
    vocab_size: int,
    model: Path,
    normalizer: str = NORMALIZERS[0],
) -> int:
    """Learn one model from both sides of the training text; return the number of pairs used.

    kind: kind of model, see segmentation.py; vocab_size: number of subwords, or of merges with subword-nmt
    normalizer: sentencepiece's normalisation before segmentation, one of NORMALIZERS
    Raises: ValueError if the text contains fewer subwords or merges than `vocab_size`; ChildProcessError if the
    library's process is killed.
    """
    settings = settings_of(kind, vocab_size, normalizer)
    used = -(-pairs // max(1, -(-pairs // SAMPLED)))
    if quiet.is_verbose():
        say(f"  {kind}: {' '.join(f'{key}={value}' for key, value in settings.items())}")
    # Learn in a separate process, because Python would not handle Ctrl-C during the minutes that the library takes.
    # Load the library first: a forked process would wait forever for a lock that another thread held at that moment.
    import_module(kind)
    receiver, sender = context().Pipe(duplex=False)
    process = context().Process(target=_learn, args=(sender, LEARNERS[kind], files, pairs, settings))
    received: int | bytes = 0
    process.start()  # must come before the progress bar starts a thread
    try:
        sender.close()
        with Progress("read", 2 * used, "sentences") as progress:
            while progress.done < 2 * used and isinstance(received := _receive(receiver), int):
                progress.advance(received)
        with Progress("learn") as progress:
            while isinstance(received, int):
                progress.advance(0)
                received = _receive(receiver)
    finally:
        process.kill()
        process.join()
    model.write_bytes(received)
    return used


Learner = Callable[[Iterator[str], dict[str, Any]], bytes]


def _learn(
    sender: Connection, learner: Learner, files: tuple[Path, Path], pairs: int, settings: dict[str, Any]
) -> None:
    """Learn the model. Send the count after every 10,000 sentences read, and finally the model or an exception."""
    start_worker()

    def counted() -> Iterator[str]:
        count = 0
        for sentence in sample(files, pairs):
            yield sentence
            count += 1
            if count == 10_000:
                sender.send(count)
                count = 0
        sender.send(count)

    try:
        sender.send(learner(counted(), settings))
    except Exception as error:
        sender.send(error)


def _learn_sentencepiece(sentences: Iterator[str], settings: dict[str, Any]) -> bytes:
    import sentencepiece

    content = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=content,  # a file name would be stored in the model
            **{**settings, "minloglevel": 2},  # its errors are raised
        )
    except RuntimeError as error:
        said = str(error)
        bounds = [(word, found[1]) for word, pattern in BOUNDS.items() if (found := pattern.search(said))]
        reason = f"must be {' '.join(bounds[0])} for this training text" if bounds else f"sentencepiece failed: {said}"
        raise ValueError(f"--vocab-size {settings['vocab_size']}: {reason}") from None
    return content.getvalue()


def _learn_subword_nmt(sentences: Iterator[str], settings: dict[str, Any]) -> bytes:
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = iter  # disables its progress bar
    content, messages = io.StringIO(), io.StringIO()
    with redirect_stderr(messages):
        learn_bpe.learn_bpe(sentences, content, **settings)
    merges = content.getvalue().count("\n") - 1  # without the version line
    if merges < settings["num_symbols"]:
        raise ValueError(f"--vocab-size {settings['num_symbols']}: the training text yields only {merges:,} merges")
    return content.getvalue().encode()


LEARNERS: dict[str, Learner] = {"sentencepiece": _learn_sentencepiece, "subword_nmt": _learn_subword_nmt}


def _receive(receiver: Connection) -> int | bytes:
    """Return the next message from `_learn`, or 0 if none arrives within POLL seconds.

    Raises: the exception that `_learn` sent; ChildProcessError if the process died.
    """
    if not receiver.poll(POLL):
        return 0
    try:
        received: int | bytes | Exception = receiver.recv()
    except EOFError:
        raise ChildProcessError("the process that learned the subwords died (out of memory?)") from None
    if isinstance(received, Exception):
        raise received
    return received


def used(files: tuple[Path, Path], pairs: int) -> set[str]:
    """Return the subwords of a segmented text."""
    found: set[str] = set()
    with Progress("collect subwords", 2 * pairs, "lines") as progress:
        for path in files:
            with path.open(encoding="utf-8", newline="\n") as lines:
                while some := list(islice(lines, 10_000)):
                    found.update(" ".join(some).split())
                    progress.advance(len(some))
    return found


def restrict(kind: str, model: Path, known: Set[str], output: Path) -> None:
    """Write a copy of a model that produces only known subwords and single characters.

    A BPE also contains subwords that it always merges into longer ones in the training text. fairseq's dictionary lacks
    them and would replace them by <unk>, for example in names that occur only in a test set. The copy produces shorter
    subwords instead. The training text is segmented as before.

    subword-nmt models, whose text must be that of a publication, are copied unchanged.
    """
    content = model.read_bytes()
    if kind == "sentencepiece":
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

        whole, types = ModelProto.FromString(content), ModelProto.SentencePiece
        for piece in whole.pieces:
            if piece.type == types.NORMAL and len(piece.piece) > 1 and piece.piece not in known:
                piece.type = types.UNUSED
        content = whole.SerializeToString()
    output.write_bytes(content)


_segmenter = lru_cache(maxsize=1)(Segmenter)  # each process loads the model once


def encode_shard(
    kind: str, model: Path, limits: clean.Limits | None, shard: parallel.Shard, counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a shard that are kept as subwords, and count all of them."""
    segmenter, pairs = _segmenter(kind, model), shard.pairs()
    while some := list(islice(pairs, TOGETHER)):
        sides = [segmenter.encode([line.decode().rstrip("\n") for line in side]) for side in zip(*some, strict=True)]
        for source, target in zip(*sides, strict=True):
            reason = limits.reason(len(source), len(target)) if limits else None
            counts.update(("in", reason or "out"))
            if not reason:
                counts.update(source=len(source), target=len(target), half_empty=not (source and target))
                yield " ".join(plain_words(source)), " ".join(plain_words(target))


def encode(
    what: str,
    files: tuple[Path, Path],
    outputs: tuple[Path, Path],
    kind: str,
    model: Path,
    limits: clean.Limits | None,
    workers: int,
) -> tuple[PairCounts, tuple[int, int]]:
    """Write a parallel text as subwords separated by spaces; drop pairs that exceed `limits` if it is set.

    Returns: the numbers of pairs kept and dropped, and the number of subwords written for each side.
    """
    counts = parallel.transform(what, [files], outputs, partial(encode_shard, kind, model, limits), workers)
    reasons = clean.SUBWORD_REASONS if limits else ()
    pairs = PairCounts(
        counts["in"], counts["out"], {reason: counts[reason] for reason in reasons}, counts["half_empty"]
    )
    return pairs, (counts["source"], counts["target"])
