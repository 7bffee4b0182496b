"""From pieces to the data folder: fairseq-preprocess, and corpus.json beside what it makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ..commands import children
from ..commands.progress import POLL, Progress
from ..folders import data as data_folder
from ..folders.files import write_text
from ..text import TextForm
from .manifest import SPLITS, Manifest


def preprocess(
    text: Path, data: Path, source: str, target: str, workers: int, size: int, lock: int | None = None
) -> None:
    """Run fairseq-preprocess over TEXT/{train,valid,test} into DATA, showing the command and how far it is.

    size: the bytes that its .bin files will have
    Raises: ChildProcessError where it fails; OSError if the disk is full.
    """
    command = [children.program("fairseq-preprocess"), "--source-lang", source, "--target-lang", target]
    command += ["--joined-dictionary"]
    for flag, split in (("--trainpref", "train"), ("--validpref", "valid"), ("--testpref", "test")):
        command += [flag, str(text / split)]
    command += ["--destdir", str(data), "--workers", str(workers)]
    children.show(command)
    log = data.with_name(data.name + ".log")
    with log.open("wb") as file, _watched(data, size):
        code = children.run(command, file, lock, errors=file)
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        # On a full disk the log has no room for the reason. Then this raises it.
        room = data.with_name(data.name + ".room")
        room.write_bytes(bytes(1 << 20))
        room.unlink()
        raise ChildProcessError(f"fairseq-preprocess failed with exit code {code}:\n{tail}")
    log.unlink()
    # It names folders that are gone when the data folder is whole.
    (data / "preprocess.log").unlink(missing_ok=True)


@contextmanager
def _watched(data: Path, size: int) -> Iterator[None]:
    """Show how far fairseq-preprocess is by the files that it writes: it reports nothing itself."""
    ended = Event()

    def watch() -> None:
        with Progress("fairseq-preprocess, dictionary") as progress:
            while not ended.wait(POLL) and not any(data.glob("dict.*")):
                progress.advance(0)
        with Progress("fairseq-preprocess", size, "B") as progress:
            while not ended.wait(POLL):
                written = 0
                for file in data.glob("*.bin"):  # its workers' too
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


def bleu_tokenize(form: TextForm) -> str:
    """Return sacrebleu's name of the tokenisation to score with.

    Text that the corpus tokenised itself is scored by its own tokens, as the publications on it do.
    """
    return "none" if form.form == "escaped" else "13a"


def tools() -> dict[str, str]:
    """Return the versions of what makes the data folder."""
    found = {}
    for name in ("fairseq", "fairseq-fixed", "sacremoses", "sentencepiece"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def make(
    manifest: Manifest,
    workers: int,
    known: Mapping[str, Any],
    form: Mapping[str, TextForm],
    text: Path,
    references: Path,
    model: Path,
    data: Path,
    lock: int | None = None,
) -> None:
    """Make DATA from TEXT/{train,valid,test} (pieces), the reference texts and the model; `known` goes to corpus.json.

    Raises: ChildProcessError where fairseq-preprocess fails.
    """
    source, target = manifest.languages
    tokens = sum(sum(known["tokens"][split].values()) + 2 * known["lines"][split]["out"] for split in SPLITS)
    # With an end of sentence on each side of every pair; a token's bytes are fairseq's best_fitting_int_dtype.
    size = tokens * (2 if manifest.vocab_size < 65500 else 4)
    preprocess(text, data, source, target, workers, size, lock)
    shutil.copytree(references, data / "ref")
    shutil.copyfile(model, data / "spm.model")
    corpus = {
        "name": manifest.name,
        "source": source,
        "target": target,
        "vocab_size": manifest.vocab_size,
        **known,
        "text": {
            "form": form[target].form,
            "normalize": manifest.normalize if form[target].form == "moses" else "none",
            "split_hyphens": form[target].split_hyphens,
        },
        "subwords": {"model": "bpe", "normalizer": manifest.spm_normalizer},
        "restore": {"post_process": "sentencepiece", "model": "spm.model"},
        "bleu_tokenize": bleu_tokenize(form[target]),
        "tools": tools(),
        **data_folder.fingerprints(data),
    }
    write_text(data / data_folder.CORPUS, json.dumps(corpus, indent=2, ensure_ascii=False) + "\n")
