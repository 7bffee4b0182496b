"""From nothing, or from files on disk, to a binarised data folder: the whole preparation of a corpus.

    python -m fairseq_resid.corpora.prepare NAME [--raw DIR] [--mirror URL] [--limit N] [--workers N] [--out DATA] ...

download -> extract -> tokenise and clean -> learn a joined BPE -> encode and clean -> fairseq-preprocess -> DATA.
The data folder, as every other tool of the project reads it:

    DATA/dict.SRC.txt, dict.TGT.txt   the joined dictionary, and fairseq's binary files beside it
    DATA/spm.model                    the sentencepiece model that made the pieces
    DATA/ref/{valid,test}.{SRC,TGT}   the untouched text: what BLEU is scored against
    DATA/corpus.json                  sources, checksums, counts, versions, how text is restored

DATA appears when it is whole; until then everything is in DATA.partial. Nothing in it depends on the time, the
place, or the number of workers.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from ..files import read_lines, sha256, write_atomically
from ..text import NORMALIZE, TextForm
from . import binarise, clean, pieces, sources, stream, tokenise
from . import manifest as manifests
from .manifest import SPLITS, Manifest
from .progress import amount
from .steps import Record, Step, Steps

# What the work takes at its peak, as a multiple of the raw text: the tokenised text with its pieces, or the pieces with
# fairseq's binary files, which are there twice while its workers' are joined.
WORK_FACTOR = 2.6
WORK_BYTES = 50_000_000  # whatever the corpus
# How a text of IWSLT'15 goes to the model, by the form it comes in.
FORMS = {"stanford": "escaped", "plain": "moses", "xml": "moses"}


@dataclass(frozen=True)
class Options:
    """How a corpus is to be made, beside what its manifest says."""

    way: sources.Way
    out: Path
    workers: int
    limit: int | None = None


def build(manifest: Manifest, options: Options, texts: list[sources.Text] | None = None) -> bool:
    """Make the data folder OUT; return False where it already holds this very corpus.

    `texts` are the corpus' texts where they are known; else they are looked for, or downloaded, by the manifest.
    Raises: ValueError for bad input, or where OUT holds another corpus; ChildProcessError; OSError.
    """
    out = options.out
    asked = {
        "name": manifest.name,
        "source": manifest.source,
        "target": manifest.target,
        "vocab_size": manifest.vocab_size,
        "normalize": manifest.normalize,
        "clean": manifest.clean,
        "limit": options.limit,
    }
    if texts is None and options.way.raw:
        texts = sources.find(manifest, options.way)
    work = out.with_name(out.name + ".partial")
    if not out.exists():
        check_disk(manifest, options, texts)
        with _working_folder(work) as lock:
            if not out.exists():
                if texts is None:
                    print("download", flush=True)
                    texts = sources.find(manifest, options.way)
                _Preparation(manifest, options, texts, asked, lock).run(work)
                _tell(out)
                return True
            (work / ".lock").unlink()
            work.rmdir()
    told = _check_same(out, asked, texts or [])
    if (work / "text.json").is_file():  # of a run that was killed when it had given OUT its name
        shutil.rmtree(work, ignore_errors=True)
    _tell_differences(told)
    print(f"{out}: holds this corpus already")
    return False


def _tell(out: Path) -> None:
    """Print what a data folder holds."""
    told = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    for split in SPLITS:
        lines, tokens = told["lines"][split], told["tokens"][split]
        sides = ", ".join(f"{count:,} {language} pieces" for language, count in tokens.items())
        print(f"{split}: {lines['out']:,} of {lines['in']:,} pairs, {sides}")
    _tell_differences(told)
    for split, trip in told["round_trip"].items():
        print(
            f"{split}: cut and restored, {trip['exact']:,} of {trip['of']:,} {told['target']} lines are the same; "
            f"a perfect model's BLEU {trip['bleu']:.2f} {trip['signature']}"
        )
    print(f"{out}: done")


def _tell_differences(told: Record) -> None:
    for difference in told["differences"]:
        print(f"not as released: {difference}")


def _check_same(out: Path, asked: Record, texts: list[sources.Text]) -> Record:
    """Return OUT's corpus.json.

    Raises: ValueError unless it is of the corpus that is asked for, made from these files where they are known.
    """
    try:
        told: Record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
        found, sums = told["asked"], {label: item["file_sha256"] for label, item in told["texts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{out}: exists and holds no corpus.json that this version can read; remove it or choose another folder"
        ) from None
    if differing := [key for key in asked if found.get(key) != asked[key]]:
        said = ", ".join(f"{key} is {found.get(key)}, not {asked[key]}" for key in differing)
        raise ValueError(f"{out}: holds another corpus ({said}); choose another folder")
    for text in texts:
        if text.known["sha256"] != sums.get(text.label):
            raise ValueError(f"{out}: holds another corpus (not made from {text.file}); choose another folder")
    return told


@contextmanager
def _working_folder(work: Path) -> Iterator[int]:
    """Hold the working folder for one process, waiting for another that holds it; yields the lock's descriptor."""
    while True:
        work.mkdir(parents=True, exist_ok=True)
        with (work / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{work}: another process is at work in it; waiting", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            # The other one may have finished, and taken the folder away.
            if (work / ".lock").exists() and os.path.samestat((work / ".lock").stat(), os.fstat(lock.fileno())):
                yield lock.fileno()
                return


def check_disk(manifest: Manifest, options: Options, texts: list[sources.Text] | None) -> None:
    """Say how much disk is needed.

    Raises: ValueError where there is less.
    """
    text, download = manifest.text_bytes, 0
    if texts is not None:
        text = sum({item.file: item.known["bytes"] for item in texts}.values())
        if any(item.member or item.name.endswith(".gz") for item in texts):
            text = max(text, manifest.text_bytes)
    else:
        download = options.way.missing_bytes(manifest)
    if options.limit is not None and (pairs := sum(part.lines or 0 for part in manifest.parts["train"])):
        asked = sum(min(part.lines or options.limit, options.limit) for part in manifest.parts["train"])
        text = text * asked // pairs
    # What an earlier run left is there already.
    work = int(WORK_FACTOR * text) + WORK_BYTES - size_of(options.out.with_name(options.out.name + ".partial"))
    needed: dict[int, int] = {}
    for folder, size in ((options.way.downloads, download), (options.out, max(work, 0))):
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        disk, free = there.stat().st_dev, shutil.disk_usage(there).free
        needed[disk] = needed.get(disk, 0) + size
        if size:
            print(f"disk: about {amount(size, 'B')} needed for {folder}, {amount(free, 'B')} free", flush=True)
        if needed[disk] > free:
            raise ValueError(
                f"{folder}: about {amount(needed[disk], 'B')} are needed on its disk and {amount(free, 'B')} are free; "
                "make room, or choose another place with --out and --downloads"
            )


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, which another process may be changing."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_size
    return size


class _Preparation:
    """The steps from texts on disk to the data folder, with what they have in common."""

    def __init__(
        self, manifest: Manifest, options: Options, texts: list[sources.Text], asked: Record, lock: int
    ) -> None:
        self.manifest, self.options, self.texts, self.asked, self.lock = manifest, options, texts, asked, lock
        files = {text.label: [text.file.name, text.member, text.known["sha256"]] for text in texts}
        thresholds = [clean.MAX_CHARACTERS, clean.MAX_PIECES, clean.MAX_RATIO]
        cleaning = manifest.clean and thresholds
        and_clean = " and clean" if manifest.clean else ""
        made_by = [manifest.form, manifest.normalize, cleaning, version("sacremoses")]
        learned = [manifest.vocab_size, pieces.SENTENCEPIECE, pieces.SAMPLED, version("sentencepiece")]
        learn_title = f"learn a joined BPE of {manifest.vocab_size:,} pieces"
        self.steps = [
            Step("extract", "extract and count", [files, options.limit], (), self.extract, continues=True),
            Step(
                "tokenise", "tokenise" + and_clean, made_by, ("extract",), self._checked(self.tokenise), continues=True
            ),
            Step("learn", learn_title, learned, ("tokenise",), self._checked(self.learn)),
            Step("encode", "encode" + and_clean, [], ("tokenise", "learn"), self._checked(self.encode), continues=True),
            Step("binarise", "fairseq-preprocess", asked, ("encode", "learn"), self._checked(self.binarise)),
        ]

    def run(self, work: Path) -> None:
        """Do what is not done, and give the data folder its name.

        Raises: ValueError where WORK holds unfinished work on another text.
        """
        mine = {"name": self.manifest.name, "limit": self.options.limit}
        told = work / "text.json"
        strangers = [path.name for path in work.iterdir() if path.name != ".lock"]
        if strangers and not told.is_file():
            raise ValueError(f"{work}: holds {strangers[0]} and is none of ours; remove it or choose another --out")
        if told.is_file() and (found := json.loads(told.read_text(encoding="utf-8"))) != mine:
            said = ", ".join(
                f"{key} is {found.get(key)}, not {mine[key]}" for key in mine if found.get(key) != mine[key]
            )
            raise ValueError(
                f"{work}: holds unfinished work on another text ({said}); remove it or choose another folder with --out"
            )
        write_atomically(told, json.dumps(mine) + "\n")
        self.progress = Steps(work, self.steps)
        self.progress.run()
        os.replace(self.progress.folders["binarise"] / "data", self.options.out)
        shutil.rmtree(work, ignore_errors=True)

    def _both(self, folder: Path, split: str) -> tuple[Path, Path]:
        return folder / f"{split}.{self.manifest.source}", folder / f"{split}.{self.manifest.target}"

    def _pairs(self, split: str) -> list[tuple[Path, Path]]:
        """Return the raw texts of a split, part by part."""
        extracted = self.progress.record("extract")["paths"]
        folder = self.progress.folders["extract"]
        sides = [
            # Text that needed no extraction is where it is now, wherever it was when it was counted.
            [
                folder / extracted[text.label] if text.label in extracted else text.file
                for text in self.texts
                if (text.split, text.language) == (split, language)
            ]
            for language in self.manifest.languages
        ]
        return list(zip(*sides, strict=True))

    def _forms(self) -> dict[str, TextForm]:
        """Return how each language's text goes to the model."""
        form = self.manifest.form
        if form == "escaped":
            form = FORMS[sources.one_form(self.progress.record("extract")["kinds"])]
        normalize = self.manifest.normalize if form == "moses" else "none"
        return TextForm.of_sides(*self.manifest.languages, form, normalize)

    def extract(self, folder: Path) -> Record:
        """Make every text a plain file, and count its lines. Texts that are one already stay where they are."""
        paths = sources.bring(self.texts, folder, self.options.limit)
        found: dict[str, Record] = {}
        for text in self.texts:
            path = paths[text.label]
            found[text.label] = {"lines": stream.count_lines(path), "sha256": sha256(path)}
            if self.manifest.form == "escaped":
                found[text.label]["kind"] = sources.form_of(path, text.name)
        for source, target in zip(self.texts[::2], self.texts[1::2], strict=True):
            if found[source.label]["lines"] != found[target.label]["lines"]:
                raise stream.unequal((paths[source.label], paths[target.label]))
        for text in self.texts:
            if text.split != "train":
                check_evaluation_text(paths[text.label])
        counts = {split: {} for split in SPLITS}  # type: dict[str, dict[str, int]]
        for text in self.texts[::2]:
            counts[text.split][text.part.name] = found[text.label]["lines"]
        kinds = {label: item.pop("kind") for label, item in found.items() if "kind" in item}
        # By their names alone: the folder is renamed when the step is done.
        places = {label: path.name for label, path in paths.items() if path.parent == folder}
        if kinds:
            print(f"  form: {', '.join(sorted(set(kinds.values())))}", flush=True)
        return {"counts": counts, "texts": found, "kinds": kinds, "paths": places}

    def differences(self) -> list[str]:
        """Say in what the texts are not those of the manifest."""
        found = self.progress.record("extract")
        told = []
        for text in self.texts[::2]:
            lines, expected = found["texts"][text.label]["lines"], text.part.lines
            if self.options.limit is not None:
                expected = min(expected, self.options.limit) if expected is not None else None
            if expected is not None and lines != expected:
                told.append(f"{text.split} {text.part.name} has {lines:,} pairs, and {expected:,} are expected")
        for text in self.texts:
            expected_sum = text.part.sha256.get(text.language)
            is_native = found["kinds"].get(text.label) == "stanford" and self.options.limit is None
            if expected_sum and is_native and found["texts"][text.label]["sha256"] != expected_sum:
                told.append(f"{text.label} is not the released text (its sha256 differs)")
        return told

    def _checked(self, run: Callable[[Path], Record]) -> Callable[[Path], Record]:
        """Return a step that first makes sure that the texts are those that were asked for, whoever extracted them."""

        def checked(folder: Path) -> Record:
            if (differences := self.differences()) and not self.options.way.allow_other:
                told = "; ".join(differences)
                raise ValueError(f"not the corpus {self.manifest.name}: {told} (--allow-other-data accepts this)")
            return run(folder)

        return checked

    def tokenise(self, folder: Path) -> Record:
        """Take all text to the form that sentencepiece sees; keep the untouched valid and test text."""
        forms = self._forms()
        counts = {}
        (folder / "ref").mkdir(exist_ok=True)
        for split in SPLITS:
            pairs = self._pairs(split)
            is_train = split == "train"
            total = sum(self.progress.record("extract")["counts"][split].values())
            both_forms = (forms[self.manifest.source], forms[self.manifest.target])
            counts[split] = tokenise.tokenise(
                f"tokenise {split}",
                pairs,
                self._both(folder, split),
                both_forms,
                self.manifest.clean and is_train,
                self.options.workers if is_train else 1,
                total,
            )
            self._check_left(split, counts[split])
            if not is_train:
                for side, path in enumerate(self._both(folder / "ref", split)):
                    with path.open("wb") as reference:
                        for pair in pairs:
                            raw = pair[side].read_bytes()
                            reference.write(raw if raw.endswith(b"\n") else raw + b"\n")
        return {"counts": counts}

    def _check_left(self, split: str, counts: dict[str, int]) -> None:
        if not counts["out"]:
            told = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
            raise ValueError(f"{self.manifest.name}: no pair of the {split} text can be used: {told or 'it is empty'}")

    def learn(self, folder: Path) -> Record:
        """Learn the BPE from the training text."""
        files = self._both(self.progress.folders["tokenise"], "train")
        pairs = self.progress.record("tokenise")["counts"]["train"]["out"]
        return {"counts": {"bpe": pieces.learn(files, pairs, self.manifest.vocab_size, folder / "spm.model")}}

    def encode(self, folder: Path) -> Record:
        """Cut all text into pieces."""
        counts = {}
        for split in SPLITS:
            is_train = split == "train"
            counts[split] = pieces.encode(
                f"encode {split}",
                self._both(self.progress.folders["tokenise"], split),
                self._both(folder, split),
                self.progress.folders["learn"] / "spm.model",
                self.manifest.clean and is_train,
                self.options.workers if is_train else 1,
                self.progress.record("tokenise")["counts"][split]["out"],
            )
            self._check_left(split, counts[split])
        shutil.copytree(self.progress.folders["tokenise"] / "ref", folder / "ref", dirs_exist_ok=True)
        return {"counts": counts}

    def binarise(self, folder: Path) -> Record:
        """Run fairseq-preprocess and write corpus.json."""
        folders, record = self.progress.folders, self.progress.record
        tokenised, encoded = record("tokenise")["counts"], record("encode")["counts"]
        not_a_drop = ("in", "out", "source_pieces", "target_pieces")
        lines = {
            split: {
                "in": tokenised[split]["in"],
                "out": encoded[split]["out"],
                "dropped": {
                    reason: count
                    for counts in (tokenised[split], encoded[split])
                    for reason, count in counts.items()
                    if reason not in not_a_drop
                },
            }
            for split in SPLITS
        }
        texts = {
            text.label: {
                "file": text.file.name,
                "member": text.member,
                "origin": text.origin(self.manifest),
                "file_sha256": text.known["sha256"],
                "as_released": text.as_released(self.manifest),
                **record("extract")["texts"][text.label],
            }
            for text in self.texts
        }
        known = {
            "asked": self.asked,
            "texts": texts,
            "differences": self.differences(),
            "lines": lines,
            "tokens": {
                split: {
                    self.manifest.source: encoded[split]["source_pieces"],
                    self.manifest.target: encoded[split]["target_pieces"],
                }
                for split in SPLITS
            },
        }
        binarise.make(
            self.manifest,
            self.options.workers,
            known,
            self._forms(),
            folders["encode"],
            folders["encode"] / "ref",
            folders["learn"] / "spm.model",
            folder / "data",
            self.lock,
        )
        return {}


def check_evaluation_text(path: Path) -> None:
    """Raise ValueError naming the file where a valid or test text cannot be used as it is; it is never changed."""
    with path.open("rb") as file:
        if file.read(3) == stream.BYTE_ORDER_MARK:
            raise ValueError(f"{path}: begins with a byte-order mark; valid and test text is never changed: remove it")
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path}: empty")
    for number, line in enumerate(lines, start=1):
        if len(line) > clean.MAX_CHARACTERS:
            raise ValueError(f"{path}:{number}: a line of more than {clean.MAX_CHARACTERS:,} characters")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every front end of the preparation has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help="processes (default: all cores)")
    parser.add_argument(
        "--clean",
        action=argparse.BooleanOptionalAction,
        help="drop training pairs that are empty, too long, ... or not",
    )


def check_positive(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    """End with a line that names the option where a number is given that is below 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value}: must be 1 or more")


def run(prog: str, work: Callable[[], object]) -> int:
    """Do the work of a command; return its exit code, with one line on stderr for a mistake or a failure."""
    try:
        work()
    except (ValueError, ChildProcessError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "; make room and run the same command again: it goes on where it was stopped" if full else ""
        print(f"{prog}: error: {error}{hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line of `python -m fairseq_resid.corpora.prepare`."""
    parser = argparse.ArgumentParser(prog="prepare", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("name", choices=manifests.names(), help="the corpus")
    add(
        "--raw",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="texts or archives on disk; may be repeated",
    )
    add("--mirror", metavar="URL", help="download every archive from URL/NAME (file:// too)")
    add("--out", type=Path, metavar="DATA", help="the folder to make (default data-bin/NAME)")
    add("--downloads", type=Path, default=Path("data-bin/downloads"), metavar="DIR", help="where downloads are kept")
    add("--limit", type=int, metavar="N", help="only the first N pairs of every text, to try it out")
    add("--vocab-size", type=int, metavar="N", help="pieces of the joined vocabulary")
    add("--normalize", choices=NORMALIZE, help="Moses punctuation normalisation of these sides")
    add("--allow-other-data", action="store_true", help="accept checksums and line counts that are not the corpus'")
    add_options(parser)
    args = parser.parse_args(argv)
    check_positive(parser, args, "workers", "limit", "vocab_size")
    if args.out is not None and not args.out.name:
        parser.error(f"--out {args.out}: must name a folder to be made")
    if args.raw and args.mirror:
        parser.error("--raw and --mirror: texts come from disk or from a mirror, not from both")
    for folder in args.raw:
        if not folder.is_dir():
            parser.error(f"--raw {folder}: no such folder")

    def work() -> None:
        manifest = manifests.read(manifests.MANIFESTS / f"{args.name}.yaml")
        asked = {
            name: value for name in ("vocab_size", "normalize", "clean") if (value := getattr(args, name)) is not None
        }
        if asked.get("normalize", "none") != "none" and manifest.form != "moses":
            raise ValueError(f"--normalize {asked['normalize']}: the text of {args.name} is not tokenised here")
        way = sources.Way(tuple(args.raw), args.mirror, args.downloads, args.allow_other_data)
        out = args.out or Path("data-bin") / args.name
        build(replace(manifest, **asked), Options(way, out, args.workers, args.limit))

    return run(parser.prog, work)


if __name__ == "__main__":
    sys.exit(main())
