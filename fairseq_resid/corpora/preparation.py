"""From nothing, or from files on disk, to a binarised data folder: the whole preparation of a corpus.

    download -> extract -> tokenise and clean -> learn a joined BPE -> encode and clean -> fairseq-preprocess -> DATA

The data folder, as every other tool of the project reads it:

    DATA/dict.SRC.txt, dict.TGT.txt   the joined dictionary, and fairseq's binary files beside it
    DATA/spm.model, DATA/bpe.codes    the model that cut the text into subwords, sentencepiece's or subword-nmt's
    DATA/ref/SPLIT.{SRC,TGT}          the untouched valid and test texts: what BLEU is scored against
    DATA/corpus.json                  sources, checksums, counts, versions, how text is restored

DATA appears when it is whole; until then everything is in DATA.partial. Nothing in it depends on the time, the
place, or the number of workers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import fields

from ..commands.progress import Progress
from ..folders import data as data_folder
from ..folders import records
from ..folders.data import (
    CorpusRecord,
    Overlap,
    PairCounts,
    Restore,
    RoundTrip,
    SourceText,
    SubwordSettings,
    TextSettings,
)
from ..folders.files import locked, partial_of, read_lines
from ..segmentation import FILES
from ..text import TextForm
from . import binarise, ceiling, clean, disk, repeats, sources, stream, subwords, tokenise
from .manifest import Manifest
from .pipeline import Pipeline, Step

T = TypeVar("T")

# These fields of the manifest, and --limit, determine what a data folder holds.
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
    "subwords",
    "profile",
)
ACCEPTS = "--allow-other-data accepts this"
# Those of them that only cleaning reads.
LIMITS = ("max_pieces", "max_ratio")


@dataclass(frozen=True)
class Options:
    """How a corpus is made, apart from what its manifest says.

    verify: compare the checksums of a finished data folder, not only its sizes
    show: list the valid and test sentences that are in the training text too
    """

    way: sources.Way
    out: Path
    workers: int
    limit: int | None = None
    allow_low_ceiling: bool = False
    verify: bool = False
    show: bool = False


@dataclass(frozen=True)
class Unfinished:
    """text.json in the working folder: which text the unfinished work is on."""

    name: str
    limit: int | None


def prepare_data(manifest: Manifest, options: Options, texts: list[sources.Text] | None = None) -> bool:
    """Make the data folder OUT; return False if it holds this very corpus already.

    texts: the texts of the corpus; None: they are searched for, or downloaded, as the manifest says
    Raises: ValueError for bad input, or if OUT holds another corpus; ChildProcessError; OSError.
    """
    out = options.out
    asked = {**{name: getattr(manifest, name) for name in SETTINGS}, "limit": options.limit}
    if not manifest.clean:
        asked |= dict.fromkeys(LIMITS)
    if texts is None and options.way.raw:
        texts = sources.find(manifest, options.way)
    work = partial_of(out)
    if not out.exists():
        disk.check(manifest, options.way, out, options.limit, texts)
        with locked(work / ".lock", f"{work}: another process is at work in it", wait=True) as lock:
            if not out.exists():
                if texts is None:
                    texts = sources.find(manifest, options.way)
                _Preparation(manifest, options, texts, asked, work, lock).run()
                _show_result(out, options.show)
                return True
            (work / ".lock").unlink()
            work.rmdir()
    record = _check_same(out, asked, texts or [])
    sizes_known = data_folder.check(out, options.verify)
    if (work / "text.json").is_file():  # the run was killed after it had renamed its result
        shutil.rmtree(work, ignore_errors=True)
    _show_differences(record)
    if options.show:
        _show_overlap(out, record)
    checked = "its checksums are right" if options.verify else "its sizes are right"
    if not (sizes_known or options.verify):
        checked = "sizes unknown: an earlier version made it; --verify compares checksums"
    print(f"{out}: holds this corpus already ({checked})")
    return False


def _show_result(out: Path, show: bool) -> None:
    """Print what a data folder holds."""
    record = data_folder.read(out)
    for split, lines in record.lines.items():
        sides = " and ".join(f"{count:,} {language}" for language, count in record.tokens[split].items())
        phrases = [f"{split}: {lines.kept:,} of {lines.read:,} pairs, {sides} subwords"]
        if trip := record.round_trip.get(split):
            best = "" if trip.exact == trip.of else f" (a perfect model's BLEU {trip.bleu:.2f} {trip.signature})"
            phrases.append(f"{trip.exact:,} of {trip.of:,} {record.target} lines come back from subwords{best}")
        if overlap := record.overlap.get(split):
            counts = [f"{len(getattr(overlap, kind)):,} {kind}s" for kind in ("source", "target", "pair")]
            phrases.append(f"also in the training text: {', '.join(counts)}")
        print("; ".join(phrases))
    for fact, number_of in record.facts.items():
        print(f"{fact}: {', '.join(f'{count:,} {what}' for what, count in number_of.items())}")
    _show_differences(record)
    if show:
        _show_overlap(out, record)
    print(f"{out}: done")


def _show_overlap(out: Path, record: CorpusRecord) -> None:
    """Print the valid and test sentences that are in the training text too, from the untouched text."""
    if not record.overlap:
        raise ValueError(f"{out}: --show: an earlier version made it, and did not compare it with the training text")
    for split, overlap in record.overlap.items():
        source = read_lines(out / "ref" / f"{split}.{record.source}")
        target = read_lines(out / "ref" / f"{split}.{record.target}")
        pairs = [f"{left} ||| {right}" for left, right in zip(source, target, strict=True)]
        for kind, lines, text in (
            ("source", overlap.source, source),
            ("target", overlap.target, target),
            ("pair", overlap.pair, pairs),
        ):
            if max(lines, default=1) > len(text):
                raise ValueError(f"{out}: damaged: corpus.json names a line of {split} that is not in ref/")
            for line in lines:
                print(f"{split}:{line} {kind}: {text[line - 1]}")


def _show_differences(record: CorpusRecord) -> None:
    for difference in record.differences:
        print(f"not as released: {difference}")
    if unverified := record.unverified_texts:
        print(f"not verified, because no checksum of them is known: {', '.join(unverified)}")


def _check_same(out: Path, asked: dict[str, Any], texts: list[sources.Text]) -> CorpusRecord:
    """Return OUT's corpus.json.

    Raises: ValueError unless it is of the corpus that is asked for, and made from these texts if they are known.
    """
    record = records.remembered(out / data_folder.CORPUS, CorpusRecord)
    sums = {label: text.file_sha256 for label, text in record.texts.items()} if record else {}
    if record is None or not record.asked or None in sums.values():
        raise ValueError(
            f"{out}: exists and holds no corpus.json that this version can read; remove it or choose another folder"
        )
    # A setting that an earlier version did not have was as its default is now.
    found = {**{item.name: item.default for item in fields(Manifest) if item.name in SETTINGS}, **record.asked}
    if "form" not in record.asked:
        is_plain = record.text.form == "plain"
        found["form"] = asked["form"] if is_plain == (asked["form"] == "plain") else record.text.form
    if not found["clean"]:
        found |= dict.fromkeys(LIMITS)
    if differing := [key for key in asked if found.get(key) != asked[key]]:
        changes = ", ".join(f"{key} is {found.get(key)}, not {asked[key]}" for key in differing)
        raise ValueError(f"{out}: holds another corpus ({changes}); choose another folder")
    for text in texts:
        if text.known.sha256 != sums.get(text.label):
            raise ValueError(f"{out}: holds another corpus (not made from {text.file}); choose another folder")
    return record


# ------------------------------------------------------------------------------------------------ results of the steps


@dataclass(frozen=True)
class ExtractedText:
    """One side of one part as a plain file.

    file: its name in the step's folder; None if the text stays where it is
    form: sources.form_of, for a corpus that exists in several forms
    """

    lines: int
    sha256: str
    file: str | None = None
    form: str | None = None


@dataclass(frozen=True)
class Extracted:
    """The texts by label, and how many pairs each part of a split has."""

    texts: dict[str, ExtractedText]
    pairs: dict[str, dict[str, int]]

    def forms(self) -> dict[str, str]:
        return {label: text.form for label, text in self.texts.items() if text.form}

    def __str__(self) -> str:
        splits = []
        for split, parts in self.pairs.items():
            each = ", ".join(f"{part} {count:,}" for part, count in parts.items()) if len(parts) > 1 else ""
            splits.append(f"{split} {sum(parts.values()):,}" + (f" ({each})" if each else ""))
        forms = sorted(set(self.forms().values()))
        return f"{', '.join(splits)} pairs" + (f", form: {', '.join(forms)}" if forms else "")


@dataclass(frozen=True)
class Kept:
    """How many pairs of each split a step has kept and dropped."""

    pairs: dict[str, PairCounts]

    def __str__(self) -> str:
        return ", ".join(f"{split} {counts}" for split, counts in self.pairs.items()) + " pairs"


class Tokenised(Kept):
    """Of every split."""


class Deduplicated(Kept):
    """Of the training text alone."""


@dataclass(frozen=True)
class Learned:
    """From how many pairs the subwords were learned."""

    pairs: int

    def __str__(self) -> str:
        return f"from {self.pairs:,} pairs"


@dataclass(frozen=True)
class Encoded(Kept):
    """Of every split; with the subwords of each split and language, and what the encoded text was compared with."""

    tokens: dict[str, dict[str, int]]
    round_trip: dict[str, RoundTrip]
    overlap: dict[str, Overlap]


@dataclass(frozen=True)
class Binarised:
    """How many subwords the dictionary has."""

    types: int

    def __str__(self) -> str:
        return f"dictionary of {self.types:,} subwords"


class _Preparation:
    """The steps from texts on disk to the data folder, with what they have in common."""

    def __init__(
        self,
        manifest: Manifest,
        options: Options,
        texts: list[sources.Text],
        asked: dict[str, Any],
        work: Path,
        lock: int,
    ) -> None:
        self.manifest, self.options, self.texts, self.asked = manifest, options, texts, asked
        self.work, self.lock = work, lock
        self.limits = clean.Limits(manifest.max_pieces, manifest.max_ratio) if manifest.clean else None
        and_clean = " and clean" if manifest.clean else ""
        # The settings are part of the folders' names, by which an interrupted run goes on.
        files = {text.label: [text.file.name, text.member, text.known.sha256] for text in texts}
        form = [manifest.form, manifest.plain_form, manifest.normalize, manifest.split_hyphens, version("sacremoses")]
        self.model = FILES[manifest.subwords]
        learning = [
            manifest.subwords,
            subwords.settings_of(manifest.subwords, manifest.vocab_size, manifest.spm_normalizer),
            subwords.SAMPLED,
        ]
        unit = "merges" if manifest.subwords == "subword_nmt" else "subwords"
        # The step that the training text for the subwords comes from.
        train = "deduplicate" if manifest.deduplicate else "tokenise"
        self.extracting = Step(
            "extract", "extract and count", [files, options.limit], (), self.extract, Extracted, continues=True
        )
        self.tokenising = Step(
            "tokenise",
            f"tokenise{and_clean}",
            [form, manifest.clean and clean.MAX_CHARACTERS],
            ("extract",),
            self._checked(self.tokenise),
            Tokenised,
            continues=True,
        )
        self.deduplicating = Step(
            "deduplicate", "deduplicate", [], ("tokenise",), self._checked(self.deduplicate), Deduplicated
        )
        self.learning = Step(
            "learn",
            f"learn a joined BPE of {manifest.vocab_size:,} {unit}",
            [*learning, version(manifest.subwords.replace("_", "-"))],
            (train,),
            self._checked(self.learn),
            Learned,
        )
        self.encoding = Step(
            "encode",
            f"encode{and_clean}",
            self.limits and asdict(self.limits),
            ("tokenise", train, "learn"),
            self._checked(self.encode),
            Encoded,
            continues=True,
        )
        self.binarising = Step(
            "binarise", "fairseq-preprocess", asked, ("encode", "learn"), self._checked(self.binarise), Binarised
        )
        steps: list[Step[Any]] = [self.extracting, self.tokenising]
        steps += [self.deduplicating] if manifest.deduplicate else []
        self.pipeline = Pipeline(work, [*steps, self.learning, self.encoding, self.binarising])

    def run(self) -> None:
        """Run the unfinished steps, then rename the result.

        Raises: ValueError if the working folder holds unfinished work on another text.
        """
        work, file = self.work, self.work / "text.json"
        strangers = [path.name for path in work.iterdir() if path.name != ".lock"]
        if strangers and not file.is_file():
            raise ValueError(f"{work}: holds {strangers[0]} and is none of ours; remove it or choose another --out")
        mine = Unfinished(self.manifest.name, self.options.limit)
        found = records.read_if_there(file, Unfinished)
        if found is not None and found != mine:
            values = {key: (getattr(found, key), value) for key, value in asdict(mine).items()}
            changes = ", ".join(f"{key} is {old}, not {new}" for key, (old, new) in values.items() if old != new)
            raise ValueError(
                f"{work}: holds unfinished work on another text ({changes}); "
                "remove it or choose another folder with --out"
            )
        records.write(file, mine)
        self.pipeline.run()
        self._refuse_differences()  # also if an earlier run finished all steps, with --allow-other-data
        os.replace(self.pipeline.folder(self.binarising) / "data", self.options.out)
        shutil.rmtree(work, ignore_errors=True)

    @property
    def extracted(self) -> Extracted:
        return self.pipeline.result(self.extracting)

    def _both(self, folder: Path, split: str) -> tuple[Path, Path]:
        return folder / f"{split}.{self.manifest.source}", folder / f"{split}.{self.manifest.target}"

    def _raw_pairs(self, split: str) -> list[tuple[Path, Path]]:
        """Return the raw texts of a split, part by part."""
        extracted, folder = self.extracted.texts, self.pipeline.folder(self.extracting)
        # A text that needed no extraction is where it is now: it may have been moved since it was counted.
        sides = [
            [
                folder / name if (name := extracted[text.label].file) else text.file
                for text in self.texts
                if (text.split, text.language) == (split, language)
            ]
            for language in self.manifest.languages
        ]
        return list(zip(*sides, strict=True))

    def _forms(self) -> dict[str, TextForm]:
        """Return how each language's text goes to the model."""
        form, normalize, split_hyphens = self.manifest.form, self.manifest.normalize, self.manifest.split_hyphens
        if form == "escaped" and sources.one_form(self.extracted.forms()) != "stanford":
            form = self.manifest.plain_form
        if form == "escaped" and (normalize != "none" or split_hyphens):
            raise ValueError(
                f"{self.manifest.name}: comes tokenised, as Stanford released it: --profile fairseq, --normalize and "
                "--split-hyphens are for plain text"
            )
        return TextForm.of_sides(*self.manifest.languages, form, normalize, split_hyphens)

    def extract(self, folder: Path) -> Extracted:
        """Make every text a plain file, and count its lines. A text that is one already stays where it is."""
        paths = sources.extract_all(self.texts, folder, self.options.limit)
        found: dict[str, ExtractedText] = {}
        size = sum(path.stat().st_size for path in paths.values())
        with Progress("count lines", size, "B") as progress:
            for text in self.texts:
                path = paths[text.label]
                lines, digest = stream.measure(path, progress)
                form = sources.form_of(path, text.name) if self.manifest.form == "escaped" else None
                # The name alone: the folder is renamed when the step is done.
                found[text.label] = ExtractedText(lines, digest, path.name if path.parent == folder else None, form)
        for source, target in zip(self.texts[::2], self.texts[1::2], strict=True):
            if found[source.label].lines != found[target.label].lines:
                raise stream.unequal((paths[source.label], paths[target.label]))
        for text in self.texts:
            if text.split != "train":
                check_evaluation_text(paths[text.label])
        pairs: dict[str, dict[str, int]] = {split: {} for split in self.manifest.splits}
        for text in self.texts[::2]:
            pairs[text.split][text.part.name] = found[text.label].lines
        return Extracted(found, pairs)

    def judge(self, text: sources.Text) -> tuple[str, list[str]]:
        """Return the status of a text, and how it differs from that of the manifest.

        Status: "released" if a checksum vouches for it, "other" if its checksum or its line count is wrong, else
        "unverified".
        """
        extracted, limit, expected = self.extracted.texts[text.label], self.options.limit, text.part.lines
        if expected is not None and limit is not None:
            expected = min(expected, limit)
        # The checksum of the text itself is of Stanford's form, and of the whole text.
        digest = text.known.sha256 if text.is_ready else None if limit else extracted.sha256
        known = text.part.sha256.get(text.language) if extracted.form == "stanford" and digest else None
        differences = [f"{text.file.name}: {text.difference}"] if text.difference else []
        if expected is not None and extracted.lines != expected:
            differences.append(
                f"{text.split} {text.part.name} has {extracted.lines:,} pairs, and {expected:,} are expected"
            )
        if known and digest != known:
            differences.append(f"{text.label} is not the released text (its sha256 differs)")
        if differences:
            return "other", differences
        return "released" if text.is_verified or known else "unverified", []

    def differences(self) -> list[str]:
        """Return how the texts differ from those of the manifest."""
        return list(dict.fromkeys(difference for text in self.texts for difference in self.judge(text)[1]))

    def cut(self) -> list[str]:
        """Return the labels of the texts that --limit has cut, or may have."""
        extracted = self.extracted.texts
        return [text.label for text in self.texts if extracted[text.label].lines == self.options.limit]

    def _refuse_differences(self) -> None:
        if (differences := self.differences()) and not self.options.way.allow_other:
            raise ValueError(f"not the corpus {self.manifest.name}: {'; '.join(differences)} ({ACCEPTS})")

    def _checked(self, run: Callable[[Path], T]) -> Callable[[Path], T]:
        """Return a step that first makes sure that the texts are the manifest's, whichever run extracted them."""

        def checked(folder: Path) -> T:
            self._refuse_differences()
            return run(folder)

        return checked

    def tokenise(self, folder: Path) -> Tokenised:
        """Take all text to the form that is cut into subwords; keep the untouched valid and test text."""
        forms = self._forms()
        both_forms = (forms[self.manifest.source], forms[self.manifest.target])
        counts = {}
        (folder / "ref").mkdir(exist_ok=True)
        for split, parts in self.extracted.pairs.items():
            pairs = self._raw_pairs(split)
            is_train = split == "train"
            counts[split] = tokenise.tokenise(
                f"tokenise {split}",
                pairs,
                self._both(folder, split),
                both_forms,
                self.manifest.clean and is_train,
                self.options.workers if is_train else 1,
                sum(parts.values()),
            )
            self._check_left(split, counts[split])
            if not is_train:
                for side, path in enumerate(self._both(folder / "ref", split)):
                    with path.open("wb") as reference:
                        for pair in pairs:
                            raw = pair[side].read_bytes()
                            reference.write(raw if raw.endswith(b"\n") else raw + b"\n")
        return Tokenised(counts)

    def _check_left(self, split: str, counts: PairCounts) -> None:
        if not counts.kept:
            raise ValueError(f"{self.manifest.name}: no pair of the {split} text can be used: {counts}")

    def deduplicate(self, folder: Path) -> Deduplicated:
        """Drop training pairs that came before, or that are valid or test pairs."""
        (files, total), *others = (self._made(self.tokenising, split) for split in self.manifest.splits)
        counts = repeats.deduplicate(files, [pair for pair, _ in others], self._both(folder, "train"), total)
        self._check_left("train", counts)
        return Deduplicated({"train": counts})

    def _made(self, step: Step[Any], split: str) -> tuple[tuple[Path, Path], int]:
        """Return both sides of a split as a step has written them, and how many pairs they hold."""
        result: Kept = self.pipeline.result(step)
        return self._both(self.pipeline.folder(step), split), result.pairs[split].kept

    def _tokenised(self, split: str) -> tuple[tuple[Path, Path], int]:
        """Return both sides of a split as they are cut into subwords, and how many pairs they hold."""
        is_less = split == "train" and self.manifest.deduplicate
        return self._made(self.deduplicating if is_less else self.tokenising, split)

    def learn(self, folder: Path) -> Learned:
        """Learn the BPE from the training text."""
        files, total = self._tokenised("train")
        manifest, model = self.manifest, folder / self.model
        return Learned(
            subwords.learn(manifest.subwords, files, total, manifest.vocab_size, model, manifest.spm_normalizer)
        )

    def encode(self, folder: Path) -> Encoded:
        """Cut all text into subwords; score a perfect model; find the evaluation text that is in the training text."""
        counts, tokens = {}, {}
        model = self.pipeline.folder(self.learning) / self.model
        for split in self.manifest.splits:
            is_train = split == "train"
            files, total = self._tokenised(split)
            counts[split], sides = subwords.encode(
                f"encode {split}",
                files,
                self._both(folder, split),
                self.manifest.subwords,
                model,
                self.limits if is_train else None,
                self.options.workers if is_train else 1,
                total,
            )
            tokens[split] = dict(zip(self.manifest.languages, sides, strict=True))
            self._check_left(split, counts[split])
        references = self.pipeline.folder(self.tokenising) / "ref"
        shutil.copytree(references, folder / "ref", dirs_exist_ok=True)
        form = self._forms()[self.manifest.target]
        trips = {
            split: ceiling.round_trip(
                self._both(folder, split)[1],
                self._both(references, split)[1],
                form,
                binarise.bleu_tokenize(form),
                model,
                self.manifest.subwords,
                self._both(folder, "train"),
            )
            for split in self.manifest.evaluated
        }
        evaluation = {split: self._both(folder, split) for split in self.manifest.evaluated}
        overlap = repeats.overlap(self._both(folder, "train"), evaluation, counts["train"].kept)
        return Encoded(counts, tokens, trips, overlap)

    def binarise(self, folder: Path) -> Binarised:
        """Run fairseq-preprocess and write corpus.json.

        Raises: ValueError if not even a perfect model could score well.
        """
        manifest, limit, cut = self.manifest, self.options.limit, self.cut()
        tokenised, encoded = self.pipeline.result(self.tokenising), self.pipeline.result(self.encoding)
        is_cut = any(label.startswith("train ") for label in cut)
        ceiling.judge(
            manifest.name, encoded.round_trip, manifest.spm_normalizer, is_cut, self.options.allow_low_ceiling
        )
        dropped = {split: dict(counts.dropped) for split, counts in tokenised.pairs.items()}
        if manifest.deduplicate:
            dropped["train"] |= self.pipeline.result(self.deduplicating).pairs["train"].dropped
        lines = {
            split: PairCounts(tokenised.pairs[split].read, counts.kept, dropped[split] | counts.dropped)
            for split, counts in encoded.pairs.items()
        }
        texts = {text.label: self._source(text) for text in self.texts}
        limited = [f"no more than the first {limit:,} pairs of a text are used (--limit {limit})"] if cut else []
        # The user's own corpus promises nothing.
        unverified = [label for label, text in texts.items() if manifest.files and text.status == "unverified"]
        form = self._forms()[manifest.target]
        normalize = manifest.normalize if form.form == "moses" else "none"
        record = CorpusRecord(
            name=manifest.name,
            source=manifest.source,
            target=manifest.target,
            vocab_size=manifest.vocab_size,
            asked=self.asked,
            texts=texts,
            differences=(*self.differences(), *limited),
            unverified=tuple(unverified),
            lines=lines,
            tokens=encoded.tokens,
            round_trip=encoded.round_trip,
            overlap=encoded.overlap,
            text=TextSettings(form.form, normalize, form.split_hyphens),
            subwords=SubwordSettings(
                normalizer=manifest.spm_normalizer if manifest.subwords == "sentencepiece" else "none"
            ),
            restore=Restore(manifest.subwords, self.model),
            profile=manifest.profile,
            bleu_tokenize=binarise.bleu_tokenize(form),
        )
        text, data = self.pipeline.folder(self.encoding), folder / "data"
        model = self.pipeline.folder(self.learning) / self.model
        binarise.make(record, text, text / "ref", model, data, self.options.workers, self.lock)
        facts = self._facts(data) if manifest.facts else {}
        wrong = [
            f"{fact} of {what}: {facts[fact][what]:,}, and {count:,} are published"
            for fact, counts in manifest.facts.items()
            for what, count in counts.items()
            if facts[fact].get(what, 0) != count
        ]
        if wrong and not self.options.way.allow_other:
            raise ValueError(f"not the text of --profile {manifest.profile}: {'; '.join(wrong)} ({ACCEPTS})")
        binarise.write_record(replace(record, facts=facts, differences=(*record.differences, *wrong)), data)
        return Binarised(len(read_lines(data / f"dict.{manifest.source}.txt")))

    def _facts(self, data: Path) -> dict[str, dict[str, int]]:
        """Return what others can count in their own copy of the prepared text.

        training tokens: subwords and end marks by language; reference tokens: words of each test set's target side, in
        the form that is scored; dictionary: its types, with fairseq's four special ones
        """
        manifest, encoded = self.manifest, self.pipeline.result(self.encoding)
        form = self._forms()[manifest.target]
        pairs = encoded.pairs["train"].kept
        references = {
            split: sum(
                len(form.reference(line).split()) for line in read_lines(data / "ref" / f"{split}.{form.language}")
            )
            for split in manifest.evaluated
        }
        return {
            "training tokens": {language: count + pairs for language, count in encoded.tokens["train"].items()},
            "reference tokens": references,
            "dictionary": {"types": len(read_lines(data / f"dict.{manifest.source}.txt")) + 4},
        }

    def _source(self, text: sources.Text) -> SourceText:
        """Return what corpus.json says of a text."""
        status, extracted = self.judge(text)[0], self.extracted.texts[text.label]
        # Only a checksum shows that this is the text of that address.
        origin = text.address if status == "released" else None
        return SourceText(
            text.file.name, text.member, origin, text.known.sha256, status, extracted.lines, extracted.sha256
        )


def check_evaluation_text(path: Path) -> None:
    """Raise ValueError naming the file if a valid or test text cannot be used as it is; it is never changed."""
    with path.open("rb") as file:
        if file.read(3) == stream.BYTE_ORDER_MARK:
            raise ValueError(f"{path}: begins with a byte-order mark; valid and test text is never changed: remove it")
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path}: empty")
    for number, line in enumerate(lines, start=1):
        if len(line) > clean.MAX_CHARACTERS:
            raise ValueError(f"{path}:{number}: a line of more than {clean.MAX_CHARACTERS:,} characters")
