"""From raw parallel text to a binarised data folder: joined sentencepiece BPE, then fairseq-preprocess.

The data folder, as every other tool of the project reads it:

    DATA/dict.SRC.txt, dict.TGT.txt   the joined dictionary, and fairseq's binary files beside it
    DATA/spm.model                    the sentencepiece model that made the pieces
    DATA/ref/{valid,test}.{SRC,TGT}   the raw text, byte for byte: what BLEU is scored against
    DATA/corpus.json                  where the text came from, counts, versions, how text is restored
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from .. import commands
from ..files import read_pairs, sha256, write_atomically

SPLITS = ("train", "valid", "test")
SENTENCEPIECE: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 1.0,
    "num_threads": 1,  # the model must not depend on the machine
    "minloglevel": 1,
}


def describe(name: str, prefixes: dict[str, Path], source: str, target: str, vocab_size: int) -> dict[str, object]:
    """Return the part of corpus.json that identifies a corpus: what it is made from, and how."""
    return {
        "name": name,
        "source": source,
        "target": target,
        "vocab_size": vocab_size,
        "sentencepiece": SENTENCEPIECE["model_type"],
        "inputs": {
            f"{split}.{language}": {"file": f"{prefixes[split].name}.{language}", "sha256": sha256(path)}
            for split in SPLITS
            for language in (source, target)
            if (path := Path(f"{prefixes[split]}.{language}")).is_file()
        },
        "restore": {"post_process": "sentencepiece", "model": "spm.model"},
        "bleu_tokenize": "13a",
    }


def train_sentencepiece(pairs: list[tuple[str, str]], folder: Path, vocab_size: int) -> None:
    """Learn one sentencepiece model over both sides; writes FOLDER/spm.model.

    Raises: ValueError where the text does not hold as many pieces as asked for.
    """
    import sentencepiece

    settings = " ".join(f"{key}={value}" for key, value in SENTENCEPIECE.items())
    print(f"sentencepiece: {settings} vocab_size={vocab_size} on {2 * len(pairs):,} sentences", flush=True)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(side for pair in pairs for side in pair),
            model_writer=model,  # a file name would be stored in the model
            vocab_size=vocab_size,
            **SENTENCEPIECE,
        )
    except RuntimeError as error:
        raise ValueError(f"--vocab-size {vocab_size}: sentencepiece could not learn it: {error}") from None
    (folder / "spm.model").write_bytes(model.getvalue())


def encode(pairs: list[tuple[str, str]], prefix: Path, source: str, target: str, model: Path) -> dict[str, int]:
    """Write PREFIX.SRC and PREFIX.TGT as sentencepiece pieces; return the number of pieces of each side."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokens = {}
    for side, language in enumerate((source, target)):
        encoded = processor.encode([pair[side] for pair in pairs], out_type=str)
        tokens[language] = sum(map(len, encoded))
        with Path(f"{prefix}.{language}").open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(" ".join(pieces) + "\n" for pieces in encoded)
    return tokens


def run_preprocess(text: Path, data: Path, source: str, target: str, workers: int) -> None:
    """Run fairseq-preprocess over TEXT/{train,valid,test} into DATA, showing the command.

    Raises: ChildProcessError where it fails.
    """
    command = [commands.program("fairseq-preprocess"), "--source-lang", source, "--target-lang", target]
    command += ["--joined-dictionary"]
    for flag, split in (("--trainpref", "train"), ("--validpref", "valid"), ("--testpref", "test")):
        command += [flag, str(text / split)]
    command += ["--destdir", str(data), "--workers", str(workers)]
    commands.show(command)
    log = data.with_name(data.name + ".log")
    with log.open("wb") as file:
        code = commands.run(command, file, errors=file)
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise ChildProcessError(f"fairseq-preprocess failed with exit code {code}:\n{tail}")
    log.unlink()


def binarise(
    name: str, prefixes: dict[str, Path], source: str, target: str, vocab_size: int, out: Path, workers: int = 2
) -> bool:
    """Make the data folder OUT from raw text; return False where it already holds this very corpus.

    A training pair with an empty side is dropped and counted; valid and test are never changed.
    Everything is made in OUT.partial and renamed at the end, so that a folder named OUT is whole.

    Raises: ValueError for bad text, or where OUT holds another corpus; ChildProcessError from fairseq-preprocess.
    """
    pairs = {
        split: list(zip(*read_pairs(*(Path(f"{prefixes[split]}.{side}") for side in (source, target))), strict=True))
        for split in SPLITS
    }
    corpus = describe(name, prefixes, source, target, vocab_size)
    if out.exists():
        try:
            found = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ValueError(f"{out}: exists and holds no readable corpus.json; remove it or choose another") from None
        if {key: found.get(key) for key in corpus} == corpus:
            print(f"{out}: holds this corpus already")
            return False
        raise ValueError(f"{out}: holds another corpus, or this one made with other settings; choose another folder")

    kept = [pair for pair in pairs["train"] if pair[0].strip() and pair[1].strip()]
    lines = {split: {"in": len(pairs[split]), "out": len(pairs[split])} for split in SPLITS}
    lines["train"] |= {"out": len(kept), "dropped_empty": len(pairs["train"]) - len(kept)}
    if not kept:
        raise ValueError(f"{prefixes['train']}: every pair has an empty side")
    pairs["train"] = kept

    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    data, text = partial / "data", partial / "text"
    text.mkdir(parents=True)
    train_sentencepiece(kept, partial, vocab_size)
    tokens = {split: encode(pairs[split], text / split, source, target, partial / "spm.model") for split in SPLITS}
    run_preprocess(text, data, source, target, workers)

    (data / "ref").mkdir()
    for split in ("valid", "test"):
        for language in (source, target):
            shutil.copyfile(f"{prefixes[split]}.{language}", data / "ref" / f"{split}.{language}")
    os.replace(partial / "spm.model", data / "spm.model")
    import sentencepiece

    corpus |= {"lines": lines, "tokens": tokens, "tools": {"sentencepiece": sentencepiece.__version__}}
    write_atomically(data / "corpus.json", json.dumps(corpus, indent=2, ensure_ascii=False) + "\n")
    os.replace(data, out)
    shutil.rmtree(partial)
    for split in SPLITS:
        sides = ", ".join(f"{count:,} {language} pieces" for language, count in tokens[split].items())
        print(f"{split}: {lines[split]['out']:,} of {lines[split]['in']:,} pairs, {sides}")
    print(f"{out}: done")
    return True


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m fairseq_resid.corpora.binarise`."""
    parser = argparse.ArgumentParser(prog="fairseq_resid.corpora.binarise", description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="name of the corpus, for corpus.json")
    for split in SPLITS:
        parser.add_argument(f"--{split}", required=True, type=Path, metavar="PREFIX", help=f"raw {split} text")
    parser.add_argument("--source", required=True, metavar="LANG")
    parser.add_argument("--target", required=True, metavar="LANG")
    parser.add_argument("--vocab-size", required=True, type=int, help="pieces of the joined vocabulary")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", required=True, type=Path, metavar="DATA")
    args = parser.parse_args(argv)
    prefixes = {split: getattr(args, split) for split in SPLITS}
    if args.workers < 1:
        parser.error(f"--workers {args.workers}: must be 1 or more")
    if args.source == args.target:
        parser.error(f"--source and --target are both {args.source}: they name the files of two languages")
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        binarise(args.name, prefixes, args.source, args.target, args.vocab_size, args.out, args.workers)
    except (ValueError, OSError) as error:
        print(f"binarise: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
