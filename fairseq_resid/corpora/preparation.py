"""From nothing, or from files on disk, to a binarised data folder: the whole preparation of a corpus.

    download -> extract -> tokenise and clean -> learn a joined BPE -> encode and clean -> fairseq-preprocess -> DATA

The data folder, as every other tool of the project reads it:

    DATA/dict.SRC.txt, dict.TGT.txt   the joined dictionary, and fairseq's binary files beside it
    DATA/spm.model                    the sentencepiece model that made the pieces
    DATA/ref/{valid,test}.{SRC,TGT}   the untouched text: what BLEU is scored against
    DATA/corpus.json                  sources, checksums, counts, versions, how text is restored

DATA appears when it is whole; until then everything is in DATA.partial. Nothing in it depends on the time, the
place, or the number of workers.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path

from ..folders import data as data_folder
from ..folders.files import read_lines, sha256, write_text
from ..text import TextForm
from . import binarise, ceiling, clean, disk, repeats, sources, stream, subwords, tokenise
from .manifest import SPLITS, Manifest
from .pipeline import Pipeline, Record, Step

# What a data folder holds is settled by these fields of the manifest, and by --limit.
SETTINGS = (
    "name",
    "source",
    "target",
    "vocab_size",
    "form",
    "plain_form",
    "normalize",
    "clean",
    "max_pieces",
    "max_ratio",
    "deduplicate",
    "split_hyphens",
    "spm_normalizer",
)
# Those of them that only cleaning reads.
LIMITS = ("max_pieces", "max_ratio")


@dataclass(frozen=True)
class Options:
    """How a corpus is to be made, beside what its manifest says.

    verify: compare the checksums of a data folder that is there, not only its sizes
    show: list the valid and test sentences that are in the training text too
    """

    way: sources.Way
    out: Path
    workers: int
    limit: int | None = None
    allow_low_ceiling: bool = False
    verify: bool = False
    show: bool = False


def prepare_data(manifest: Manifest, options: Options, texts: list[sources.Text] | None = None) -> bool:
    """Make the data folder OUT; return False where it already holds this very corpus.

    `texts` are the corpus' texts where they are known; else they are looked for, or downloaded, by the manifest.
    Raises: ValueError for bad input, or where OUT holds another corpus; ChildProcessError; OSError.
    """
    out = options.out
    asked = {**{name: getattr(manifest, name) for name in SETTINGS}, "limit": options.limit}
    if not manifest.clean:
        asked |= dict.fromkeys(LIMITS)
    if texts is None and options.way.raw:
        texts = sources.find(manifest, options.way)
    work = out.with_name(out.name + ".partial")
    if not out.exists():
        disk.check(manifest, options.way, out, options.limit, texts)
        with _working_folder(work) as lock:
            if not out.exists():
                if texts is None:
                    print("download", flush=True)
                    texts = sources.find(manifest, options.way)
                _Preparation(manifest, options, texts, asked, lock).run(work)
                _tell(out, options.show)
                return True
            (work / ".lock").unlink()
            work.rmdir()
    told = _check_same(out, asked, texts or [])
    sizes_known = data_folder.check(out, options.verify)
    if (work / "text.json").is_file():  # of a run that was killed when it had given OUT its name
        shutil.rmtree(work, ignore_errors=True)
    _tell_differences(told)
    if options.show:
        _show_overlap(out, told)
    checked = "its checksums are right" if options.verify else "its sizes are right"
    if not (sizes_known or options.verify):
        checked = "sizes unknown: an earlier version made it; --verify compares checksums"
    print(f"{out}: holds this corpus already ({checked})")
    return False


def _tell(out: Path, show: bool) -> None:
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
    for split, lines in told["overlap"].items():
        print(
            f"{split}: also in the training text are {len(lines['source']):,} source sentences, "
            f"{len(lines['target']):,} target sentences, {len(lines['pair']):,} pairs"
        )
    if show:
        _show_overlap(out, told)
    print(f"{out}: done")


def _show_overlap(out: Path, told: Record) -> None:
    """Print the valid and test sentences that are in the training text too, from the untouched text."""
    if not told["overlap"]:
        raise ValueError(f"{out}: --show: an earlier version made it, and did not compare it with the training text")
    for split, found in told["overlap"].items():
        for kind, languages in (("source", ["source"]), ("target", ["target"]), ("pair", ["source", "target"])):
            texts = [read_lines(out / "ref" / f"{split}.{told[language]}") for language in languages]
            if max(found[kind], default=1) > len(texts[0]):
                raise ValueError(f"{out}: damaged: corpus.json names a line of {split} that is not in ref/")
            for line in found[kind]:
                print(f"{split}:{line} {kind}: {' ||| '.join(text[line - 1] for text in texts)}")


def _tell_differences(told: Record) -> None:
    for difference in told["differences"]:
        print(f"not as released: {difference}")
    if told["unverified"]:
        print(f"not verified, as no checksum vouches for them: {', '.join(told['unverified'])}")


def _check_same(out: Path, asked: Record, texts: list[sources.Text]) -> Record:
    """Return OUT's corpus.json.

    Raises: ValueError unless it is of the corpus that is asked for, made from these files where they are known.
    """
    try:
        told: Record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
        found, sums = told["asked"], {label: item["file_sha256"] for label, item in told["texts"].items()}
        told["differences"] = list(map(str, told["differences"]))
        told["unverified"] = data_folder.unverified(told)
        overlap = told.get("overlap", {})
        told["overlap"] = {
            split: {kind: list(map(int, lines[kind])) for kind in repeats.KINDS} for split, lines in overlap.items()
        }
        # What an earlier version could not be asked for was as it is by default.
        found = {**{item.name: item.default for item in fields(Manifest) if item.name in SETTINGS}, **found}
        if "form" not in told["asked"]:
            is_plain = told["text"]["form"] == "plain"
            found["form"] = asked["form"] if is_plain == (asked["form"] == "plain") else told["text"]["form"]
        if not found["clean"]:
            found |= dict.fromkeys(LIMITS)
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


class _Preparation:
    """The steps from texts on disk to the data folder, with what they have in common."""

    def __init__(
        self, manifest: Manifest, options: Options, texts: list[sources.Text], asked: Record, lock: int
    ) -> None:
        self.manifest, self.options, self.texts, self.asked, self.lock = manifest, options, texts, asked, lock
        files = {text.label: [text.file.name, text.member, text.known["sha256"]] for text in texts}
        self.limits = clean.Limits(manifest.max_pieces, manifest.max_ratio) if manifest.clean else None
        and_clean = " and clean" if manifest.clean else ""
        form = [manifest.form, manifest.plain_form, manifest.normalize, manifest.split_hyphens, version("sacremoses")]
        made_by = [form, manifest.clean and clean.MAX_CHARACTERS]
        kept = self.limits and asdict(self.limits)
        learned = [manifest.vocab_size, manifest.spm_normalizer, subwords.SENTENCEPIECE, subwords.SAMPLED]
        learn_title = f"learn a joined BPE of {manifest.vocab_size:,} pieces"
        # Which step the text to learn from comes from.
        self.text_step = "deduplicate" if manifest.deduplicate else "tokenise"
        self.steps = [
            Step("extract", "extract and count", [files, options.limit], (), self.extract, continues=True),
            Step(
                "tokenise", "tokenise" + and_clean, made_by, ("extract",), self._checked(self.tokenise), continues=True
            ),
            Step("deduplicate", "deduplicate", [], ("tokenise",), self._checked(self.deduplicate)),
            Step(
                "learn",
                learn_title,
                [*learned, version("sentencepiece")],
                (self.text_step,),
                self._checked(self.learn),
            ),
            Step(
                "encode",
                "encode" + and_clean,
                kept,
                ("tokenise", self.text_step, "learn"),
                self._checked(self.encode),
                continues=True,
            ),
            Step("binarise", "fairseq-preprocess", asked, ("encode", "learn"), self._checked(self.binarise)),
        ]
        if not manifest.deduplicate:
            self.steps = [step for step in self.steps if step.name != "deduplicate"]

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
        write_text(told, json.dumps(mine) + "\n")
        self.progress = Pipeline(work, self.steps)
        self.progress.run()
        self._refuse_differences()  # also if every step was done before, under --allow-other-data
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
        form, normalize, split_hyphens = self.manifest.form, self.manifest.normalize, self.manifest.split_hyphens
        if form == "escaped" and sources.one_form(self.progress.record("extract")["kinds"]) != "stanford":
            form = self.manifest.plain_form
        if form == "escaped" and (normalize != "none" or split_hyphens):
            raise ValueError(
                f"{self.manifest.name}: comes tokenised, as Stanford released it: --profile fairseq, --normalize and "
                "--split-hyphens are for plain text"
            )
        return TextForm.of_sides(*self.manifest.languages, form, normalize, split_hyphens)

    def extract(self, folder: Path) -> Record:
        """Make every text a plain file, and count its lines. Texts that are one already stay where they are."""
        paths = sources.bring(self.texts, folder, self.options.limit)
        found: dict[str, Record] = {}
        for text in self.texts:
            path = paths[text.label]
            # A text that stays where it is has been read for its checksum already.
            digest = text.known["sha256"] if path == text.file else sha256(path)
            found[text.label] = {"lines": stream.count_lines(path), "sha256": digest}
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

    def judge(self, text: sources.Text) -> tuple[str, list[str]]:
        """Return the status of a text, and in what it is not that of the manifest.

        Status: "released" if a checksum vouches for it, "other" if its checksum or its line count is wrong, else
        "unverified".
        """
        found, limit = self.progress.record("extract"), self.options.limit
        lines, expected = found["texts"][text.label]["lines"], text.part.lines
        if expected is not None and limit is not None:
            expected = min(expected, limit)
        # The checksum of the text itself is of Stanford's form, and of the whole text.
        digest = text.known["sha256"] if text.is_ready else None if limit else found["texts"][text.label]["sha256"]
        is_native = found["kinds"].get(text.label) == "stanford"
        known = text.part.sha256.get(text.language) if is_native and digest else None
        differences = [f"{text.file.name}: {text.difference}"] if text.difference else []
        if expected is not None and lines != expected:
            differences.append(f"{text.split} {text.part.name} has {lines:,} pairs, and {expected:,} are expected")
        if known and digest != known:
            differences.append(f"{text.label} is not the released text (its sha256 differs)")
        if differences:
            return "other", differences
        return "released" if text.is_verified or known else "unverified", []

    def differences(self) -> list[str]:
        """Say in what the texts are not those of the manifest."""
        return list(dict.fromkeys(said for text in self.texts for said in self.judge(text)[1]))

    def cut(self) -> list[str]:
        """Return the labels of the texts that --limit has cut, or may have."""
        found = self.progress.record("extract")["texts"]
        return [text.label for text in self.texts if found[text.label]["lines"] == self.options.limit]

    def _refuse_differences(self) -> None:
        if (differences := self.differences()) and not self.options.way.allow_other:
            told = "; ".join(differences)
            raise ValueError(f"not the corpus {self.manifest.name}: {told} (--allow-other-data accepts this)")

    def _checked(self, run: Callable[[Path], Record]) -> Callable[[Path], Record]:
        """Return a step that first makes sure that the texts are those that were asked for, whoever extracted them."""

        def checked(folder: Path) -> Record:
            self._refuse_differences()
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

    def deduplicate(self, folder: Path) -> Record:
        """Leave out training pairs that came before, or that are valid or test pairs."""
        evaluation = [self._tokenised(split)[0] for split in SPLITS[1:]]
        total = self.progress.record("tokenise")["counts"]["train"]["out"]
        files = self._both(self.progress.folders["tokenise"], "train")
        counts = repeats.deduplicate(files, evaluation, self._both(folder, "train"), total)
        self._check_left("train", counts)
        return {"counts": {"train": counts}}

    def _tokenised(self, split: str) -> tuple[tuple[Path, Path], int]:
        """Return both sides of a split as sentencepiece shall see them, and how many pairs they hold."""
        step = self.text_step if split == "train" else "tokenise"
        return self._both(self.progress.folders[step], split), self.progress.record(step)["counts"][split]["out"]

    def learn(self, folder: Path) -> Record:
        """Learn the BPE from the training text."""
        made = subwords.learn(
            *self._tokenised("train"), self.manifest.vocab_size, folder / "spm.model", self.manifest.spm_normalizer
        )
        return {"counts": {"bpe": made}}

    def encode(self, folder: Path) -> Record:
        """Cut all text into pieces; find what a perfect model could score, and what evaluation text is in training."""
        counts = {}
        model = self.progress.folders["learn"] / "spm.model"
        for split in SPLITS:
            is_train = split == "train"
            files, total = self._tokenised(split)
            counts[split] = subwords.encode(
                f"encode {split}",
                files,
                self._both(folder, split),
                model,
                self.limits if is_train else None,
                self.options.workers if is_train else 1,
                total,
            )
            self._check_left(split, counts[split])
        references = self.progress.folders["tokenise"] / "ref"
        shutil.copytree(references, folder / "ref", dirs_exist_ok=True)
        form = self._forms()[self.manifest.target]
        trips = {
            split: ceiling.round_trip(
                self._both(folder, split)[1],
                self._both(references, split)[1],
                form,
                binarise.bleu_tokenize(form),
                model,
            )
            for split in SPLITS[1:]
        }
        evaluation = {split: self._both(folder, split) for split in SPLITS[1:]}
        overlap = repeats.overlap(self._both(folder, "train"), evaluation, counts["train"]["out"])
        return {"counts": counts, "round_trip": trips, "overlap": overlap}

    def binarise(self, folder: Path) -> Record:
        """Run fairseq-preprocess and write corpus.json.

        Raises: ValueError if not even a perfect model could score well.
        """
        folders, record = self.progress.folders, self.progress.record
        tokenised, encoded = record("tokenise")["counts"], record("encode")["counts"]
        ceiling.judge(
            self.manifest.name,
            record("encode")["round_trip"],
            self.manifest.spm_normalizer,
            any(label.startswith("train ") for label in self.cut()),
            self.options.allow_low_ceiling,
        )
        # Of the steps that drop pairs, those that ran.
        dropping = [record(step)["counts"] for step in dict.fromkeys(("tokenise", self.text_step, "encode"))]
        not_a_drop = ("in", "out", "source_pieces", "target_pieces")
        lines = {
            split: {
                "in": tokenised[split]["in"],
                "out": encoded[split]["out"],
                "dropped": {
                    reason: count
                    for counts in dropping
                    for reason, count in counts.get(split, {}).items()
                    if reason not in not_a_drop
                },
            }
            for split in SPLITS
        }
        status = {text.label: self.judge(text)[0] for text in self.texts}
        texts = {
            text.label: {
                "file": text.file.name,
                "member": text.member,
                # Only a checksum says that it is what is to be had there.
                "origin": text.address if status[text.label] == "released" else None,
                "file_sha256": text.known["sha256"],
                "status": status[text.label],
                **record("extract")["texts"][text.label],
            }
            for text in self.texts
        }
        limit = self.options.limit
        cut = [f"no more than the first {limit:,} pairs of a text are used (--limit {limit})"] if self.cut() else []
        known = {
            "asked": self.asked,
            "texts": texts,
            "differences": [*self.differences(), *cut],
            # A corpus of one's own promises nothing.
            "unverified": [
                label for label, item in texts.items() if self.manifest.files and item["status"] == "unverified"
            ],
            "lines": lines,
            "tokens": {
                split: {
                    self.manifest.source: encoded[split]["source_pieces"],
                    self.manifest.target: encoded[split]["target_pieces"],
                }
                for split in SPLITS
            },
            "round_trip": record("encode")["round_trip"],
            "overlap": record("encode")["overlap"],
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
