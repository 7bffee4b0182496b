"""The whole preparation of a corpus: from downloads or files on disk to a binarised data folder.

    download -> extract -> tokenise and clean -> learn a joint BPE -> encode and clean -> fairseq-preprocess -> DATA

The data folder that the other commands read:

    DATA/dict.SRC.txt, dict.TGT.txt   the joined dictionary, next to fairseq's binary files
    DATA/spm.model or DATA/bpe.codes  the subword model, of sentencepiece or subword-nmt
    DATA/ref/SPLIT.{SRC,TGT}          the unchanged validation and test texts: the references for BLEU
    DATA/corpus.json                  sources, checksums, counts, versions, how to restore text

DATA appears when it is complete; until then everything is in DATA.partial. The content of DATA does not depend on the
time, the path or the number of workers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec import structs

from ...cli.machine import versions
from ...cli.progress import Progress
from ...console import say
from ...files import read_lines
from .. import preparing
from . import checks, clean, disk, fairseq_preprocess, parallel, sources, subwords, summary, tokenise
from . import folder as data_folder
from .bleu import default_tokenizer, metric
from .folder import CorpusRecord, Overlap, PairCounts, Restore, RoundTrip, SourceText, SubwordSettings, TextSettings
from .forms import TOKENISED, TextForm
from .manifest import DEFAULTS, SETTINGS, TextManifest
from .parallel import Sides
from .resumable import FinishedStep, Step, Steps
from .segmentation import FILES, Segmenter

# The settings that only matter with `clean`.
LIMITS = ("max_pieces", "max_ratio")
MARK = "text.json"  # a file that shows that a working folder is ours
ACCEPTS = "use --allow-other-data to accept this"
TOOLS = ("fairseq", "fairseq-fixed", "sacremoses", "sentencepiece", "subword-nmt")


@dataclass(frozen=True)
class TextOptions(preparing.Options):
    """Options of the preparation that are not in the manifest.

    show: list validation and test sentences that also occur in the training text
    vocab_from: the data folder whose subword model and dictionary are used; None: they are made from the training text
    """

    workers: int = 1
    limit: int | None = None
    allow_low_ceiling: bool = False
    show: bool = False
    vocab_from: Path | None = None


@dataclass(frozen=True)
class Job:
    """A corpus to prepare from its texts.

    settings: the settings that the data folder depends on; lock: file descriptor of the working folder's lock
    skipped: names of the test sets without files, by split; they are not in `manifest`
    forms: the form of each language, known after extraction
    """

    manifest: TextManifest
    options: TextOptions
    texts: list[sources.Text]
    settings: dict[str, Any]
    lock: int
    skipped: Mapping[str, str]
    forms: Mapping[str, TextForm] = field(default_factory=dict)

    @property
    def form(self) -> TextForm:
        """The form of the target side."""
        return self.forms[self.manifest.target]

    @property
    def tokenize(self) -> str:
        """The name of sacrebleu's tokeniser for the target side: the manifest's, or that of its form and language.

        Text that is released or published in tokenised form is scored on its own tokens, as in publications that use
        it.
        """
        own_tokens = self.form.form in TOKENISED
        return self.manifest.tokenize or ("none" if own_tokens else default_tokenizer(self.manifest.target))

    @property
    def dictionary(self) -> Path | None:
        """The dictionary of another data folder that is used, if any; both languages share it."""
        data = self.options.vocab_from
        return data and data / f"dict.{CorpusRecord.of(data).source}.txt"

    @property
    def limits(self) -> clean.Limits | None:
        return clean.Limits(self.manifest.max_pieces, self.manifest.max_ratio) if self.manifest.clean else None

    def sides(self, folder: Path, split: str) -> Sides:
        """Return both files of a split in a folder."""
        return folder / f"{split}.{self.manifest.source}", folder / f"{split}.{self.manifest.target}"

    def check_left(self, split: str, counts: PairCounts) -> None:
        """Raise ValueError if no pairs of a split are left."""
        if not counts.kept:
            lost = (
                f"all pairs of the {split} text were dropped: {counts}" if counts.read else f"the {split} text is empty"
            )
            raise ValueError(f"{self.manifest.name}: {lost}")


def prepare_data(manifest: TextManifest, options: TextOptions, texts: list[sources.Text] | None = None) -> None:
    """Make the data folder OUT, unless it already contains exactly this corpus.

    texts: the texts of the corpus; None: find or download them as described in the manifest
    Raises: ValueError for bad input, or if OUT contains a different corpus; ChildProcessError; OSError.
    """
    out = options.out
    if "," in str(out):
        raise ValueError(f"--out {out}: must not contain a comma, at which fairseq-preprocess splits paths")
    skipped = sources.absent_tests(manifest, options) if texts is None else {}
    for split, name in skipped.items():
        folders = ", ".join(map(str, options.raw))
        print(f"skipped: test set {split} ({name}): none of its files is in --raw {folders}", flush=True)
    parts = {split: manifest.parts[split] for split in manifest.parts if split not in skipped}
    manifest = structs.replace(manifest, parts=parts)
    settings = {**{name: getattr(manifest, name) for name in SETTINGS}, "limit": options.limit}
    settings["skipped"] = [*skipped] or None
    if not manifest.clean:
        settings |= dict.fromkeys(LIMITS)
    if texts is None and options.raw:
        texts = sources.find(manifest, options)

    def make(work: Path, lock: int) -> Path:
        if not options.mirror:  # whose files may be smaller than the released ones
            disk.check(manifest, options, options.limit, texts)
        found = sources.find(manifest, options) if texts is None else texts
        return run(Job(manifest, options, found, settings, lock, skipped), work) / "data"

    if preparing.made(out, MARK, {"name": manifest.name, "limit": options.limit}, make, refuses=True):
        summary.show_result(out, options.show)
        return
    record = _check_same(out, settings, texts or [])
    sizes_known = data_folder.check(out, options.verify)
    summary.show_differences(record)
    if options.show:
        summary.show_overlap(out, record)
    checked = "checksums verified" if options.verify else "sizes verified"
    if not (sizes_known or options.verify):
        checked = "sizes not recorded by the earlier version that made it; use --verify to compare checksums"
    say(f"{out}: already contains this corpus ({checked})")


def _check_same(out: Path, settings: dict[str, Any], texts: list[sources.Text]) -> CorpusRecord:
    """Return OUT's corpus.json.

    Raises: ValueError if OUT was made with different settings, or from different texts.
    """
    record = preparing.finished(out, CorpusRecord)
    # An earlier version that lacked a setting behaved like today's default.
    found = {**{name: DEFAULTS[name] for name in SETTINGS}, **record.asked}
    if "form" not in record.asked:
        is_plain = record.text.form == "plain"
        found["form"] = settings["form"] if is_plain == (settings["form"] == "plain") else record.text.form
    if not found["clean"]:
        found |= dict.fromkeys(LIMITS)
    preparing.check_settings(out, "a different corpus", found, settings)
    sums = {label: text.file_sha256 for label, text in record.texts.items()}
    if texts and (others := sums.keys() - {text.label for text in texts}):
        raise ValueError(f"{out}: contains a different corpus (it also has {min(others)}); choose another --out")
    for text in texts:
        if text.known.sha256 != sums.get(text.label):
            raise ValueError(f"{out}: contains a different corpus (not made from {text.file}); choose another --out")
    return record


# ------------------------------------------------------------------------------------------------ results of the steps


@dataclass(frozen=True)
class ExtractedText:
    """One side of one part as a plain file.

    file: its name in the step's folder; None if the text is used in its original place
    form: result of sources.form_of, for a corpus that exists in several forms
    """

    lines: int
    sha256: str
    file: str | None = None
    form: str | None = None


@dataclass(frozen=True)
class Extracted:
    """The texts by label, and the number of pairs of each part of a split."""

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
    """The number of pairs of each split that a step kept and dropped."""

    pairs: dict[str, PairCounts]

    def __str__(self) -> str:
        return ", ".join(f"{split} {counts}" for split, counts in self.pairs.items()) + " pairs"


@dataclass(frozen=True)
class Learned:
    """The number of pairs that the subwords were learned from."""

    pairs: int

    def __str__(self) -> str:
        return f"from {self.pairs:,} pairs"


@dataclass(frozen=True)
class Encoded(Kept):
    """The counts of pairs, the number of subwords per split and language, and the results of checks on the text."""

    tokens: dict[str, dict[str, int]]
    round_trip: dict[str, RoundTrip]
    overlap: dict[str, Overlap]

    __str__ = Kept.__str__


@dataclass(frozen=True)
class Binarised:
    """The number of subwords in the dictionary."""

    types: int

    def __str__(self) -> str:
        return f"dictionary of {self.types:,} subwords"


# ------------------------------------------------------------------------------------------------ the steps


def run(job: Job, work: Path) -> Path:
    """Run the unfinished steps in the folder WORK; return the folder that contains the result, `data`."""
    manifest, and_clean = job.manifest, " and clean" if job.manifest.clean else ""
    files = {text.label: [text.file.name, text.member, text.known.sha256] for text in job.texts}
    form = [manifest.form, manifest.plain_form, manifest.normalize, manifest.split_hyphens, version("sacremoses")]
    learner = subwords.settings_of(manifest.subwords, manifest.vocab_size, manifest.spm_normalizer)
    learner |= {"library": version(manifest.subwords.replace("_", "-")), "pairs": subwords.SAMPLED}
    units = f"{manifest.vocab_size:,} {'merges' if manifest.subwords == 'subword_nmt' else 'subwords'}"
    train = "deduplicate" if manifest.deduplicate else "tokenise"
    limits = job.limits and asdict(job.limits)
    encoding = [limits, manifest.tokenize, manifest.vocab_from]
    unused = {"deduplicate": not manifest.deduplicate, "learn": bool(manifest.vocab_from)}
    declared = [
        Step("extract", "extract and count", [files, job.options.limit]),
        Step("tokenise", f"tokenise{and_clean}", [form, manifest.clean and clean.MAX_CHARACTERS], ["extract"]),
        Step("deduplicate", "deduplicate", [manifest.subwords, manifest.spm_normalizer], ["tokenise"]),
        Step("learn", f"learn a joint BPE of {units}", learner, [train]),
        Step("encode", f"encode{and_clean}", encoding, ["tokenise", train, "learn"]),
        Step("binarise", "fairseq-preprocess", job.settings, ["encode"]),
    ]
    steps = Steps(work, [step for step in declared if not unused.get(step.name)])
    extracted = steps.run("extract", Extracted, lambda folder: extract(job, folder))
    texts, differences = source_texts(job, extracted.result)
    if differences and not job.options.allow_other:  # even if an earlier run accepted them
        raise ValueError(f"not the corpus {manifest.name}: {'; '.join(differences)} ({ACCEPTS})")
    job = replace(job, forms=forms(manifest, extracted.result))
    metric(job.tokenize)  # names a missing package before hours of work
    tokenised = steps.run("tokenise", Kept, lambda folder: tokenise_text(job, extracted, folder))
    training = tokenised
    if manifest.deduplicate:
        training = steps.run("deduplicate", Kept, lambda folder: deduplicate(job, tokenised, folder))
    if job.options.vocab_from is not None:
        model = job.options.vocab_from / FILES[manifest.subwords]
    else:
        learned = steps.run("learn", Learned, lambda folder: learn(job, training, folder))
        model = learned.folder / FILES[manifest.subwords]
    encoded = steps.run("encode", Encoded, lambda folder: encode(job, tokenised, training, model, folder))
    record = corpus_record(job, texts, differences, tokenised.result, training.result, encoded.result)
    return steps.run("binarise", Binarised, lambda folder: binarise_text(job, record, encoded.folder, folder)).folder


def extract(job: Job, folder: Path) -> Extracted:
    """Convert every text to a plain file and count its lines. A text that already is one is used in place."""
    paths = sources.extract_all(job.texts, folder, job.options.limit)
    found: dict[str, ExtractedText] = {}
    with Progress("count lines", sum(path.stat().st_size for path in paths.values()), "B") as progress:
        for text in job.texts:
            path = paths[text.label]
            measured = parallel.measure(path, progress)
            form = sources.form_of(path, text.name) if job.manifest.form == "escaped" else None
            # Store only the name, because the folder is renamed when the step is done.
            name = path.name if path.parent == folder else None
            found[text.label] = ExtractedText(measured.lines, measured.sha256, name, form)
    pairs: dict[str, dict[str, int]] = {split: {} for split in job.manifest.splits}
    for source, target in zip(job.texts[::2], job.texts[1::2], strict=True):
        left, right = found[source.label].lines, found[target.label].lines
        parallel.check_equal((paths[source.label], paths[target.label]), left, right)
        pairs[source.split][source.part.name] = left
    # Validation and test text is never changed, so it must be usable.
    for path in (paths[text.label] for text in job.texts if text.split != "train"):
        with path.open("rb") as file:
            if file.read(3) == parallel.BYTE_ORDER_MARK:
                raise ValueError(
                    f"{path}: begins with a byte-order mark, which is not removed from validation and test text; "
                    "remove it"
                )
        for number, line in enumerate(read_lines(path), start=1):
            if len(line) > clean.MAX_CHARACTERS:
                raise ValueError(f"{path}:{number}: {tokenise.PROBLEMS['too_long']}")
    return Extracted(found, pairs)


def tokenise_text(job: Job, extracted: FinishedStep[Extracted], folder: Path) -> Kept:
    """Convert all text to the form that is segmented into subwords; also keep the original validation and test text."""
    source, target = (job.forms[language] for language in job.manifest.languages)
    counts = {}
    (folder / "ref").mkdir()
    for split in job.manifest.splits:
        # A text that needed no extraction may have been moved since its lines were counted, so use its current path.
        files = [
            extracted.folder / name if (name := extracted.result.texts[text.label].file) else text.file
            for text in job.texts
            if text.split == split
        ]
        raw, outputs = list(zip(files[::2], files[1::2], strict=True)), job.sides(folder, split)
        cleaned = job.manifest.clean and split == "train"
        counts[split] = tokenise.tokenise(
            f"tokenise {split}", raw, outputs, (source, target), cleaned, job.options.workers
        )
        job.check_left(split, counts[split])
        if split == "train":
            continue
        for path, parts in zip(job.sides(folder / "ref", split), zip(*raw, strict=True), strict=True):
            with path.open("wb") as reference:
                for content in map(Path.read_bytes, parts):
                    reference.write(content if content.endswith(b"\n") else content + b"\n")
    return Kept(counts)


def forms(manifest: TextManifest, extracted: Extracted) -> dict[str, TextForm]:
    """Return the text form of each language."""
    form, normalize, split_hyphens = manifest.form, manifest.normalize, manifest.split_hyphens
    if form == "escaped":
        examples = {found: label for label, found in extracted.forms().items()}
        if len(examples) > 1:
            mixed = ", ".join(f"{label} is {found}" for found, label in sorted(examples.items()))
            raise ValueError(
                f"--raw contains several releases of the corpus: {mixed}; all texts must come from the same release"
            )
        form = "escaped" if "stanford" in examples else manifest.plain_form
    if form == "escaped" and (normalize != "none" or split_hyphens):
        raise ValueError(
            f"{manifest.name}: Stanford's release is already tokenised; --profile fairseq and --normalize need plain "
            "text"
        )
    return TextForm.of_sides(*manifest.languages, form, normalize, split_hyphens)


def deduplicate(job: Job, tokenised: FinishedStep[Kept], folder: Path) -> Kept:
    """Drop repeated training pairs, and training pairs that are also validation or test pairs."""
    train, *evaluation = (job.sides(tokenised.folder, split) for split in job.manifest.splits)
    total = tokenised.result.pairs["train"].kept
    normalise = subwords.normaliser(job.manifest.subwords, job.manifest.spm_normalizer)
    counts = checks.deduplicate(train, evaluation, job.sides(folder, "train"), total, normalise)
    job.check_left("train", counts)
    return Kept({"train": counts})


def learn(job: Job, training: FinishedStep[Kept], folder: Path) -> Learned:
    files, total = job.sides(training.folder, "train"), training.result.pairs["train"].kept
    kind, size, normalizer = job.manifest.subwords, job.manifest.vocab_size, job.manifest.spm_normalizer
    return Learned(subwords.learn(kind, files, total, size, folder / FILES[kind], normalizer))


def encode(job: Job, tokenised: FinishedStep[Kept], training: FinishedStep[Kept], model: Path, folder: Path) -> Encoded:
    """Segment all text into subwords, compute the best possible score, and find evaluation text in the training text.

    model: the learned model, whose restricted copy is written to `folder`, or the model of another data folder, which
    is copied
    """
    kind = job.manifest.subwords
    counts, tokens, known = {}, {}, set[str]()
    for split in job.manifest.splits:
        is_train = split == "train"
        files = job.sides((training if is_train else tokenised).folder, split)
        limits = job.limits if is_train else None
        counts[split], sides = subwords.encode(
            f"encode {split}", files, job.sides(folder, split), kind, model, limits, job.options.workers
        )
        tokens[split] = dict(zip(job.manifest.languages, sides, strict=True))
        job.check_left(split, counts[split])
        if is_train and job.dictionary is not None:
            known = {line.rpartition(" ")[0] for line in read_lines(job.dictionary)}
            shutil.copyfile(model, folder / model.name)
        elif is_train:  # the first split
            known = subwords.used(job.sides(folder, split), counts[split].kept)
            subwords.restrict(kind, model, known, folder / model.name)
            model = folder / model.name
    shutil.copytree(tokenised.folder / "ref", folder / "ref")
    train, trips, evaluation = job.sides(folder, "train"), {}, {}
    normalise = subwords.normaliser(kind, job.manifest.spm_normalizer)
    for split in job.manifest.splits[1:]:
        evaluation[split] = job.sides(folder, split)
        (_, cut), (_, reference) = evaluation[split], job.sides(folder / "ref", split)
        trips[split] = checks.round_trip(
            cut, reference, job.form, job.tokenize, Segmenter(kind, model), normalise, known
        )
    return Encoded(counts, tokens, trips, checks.overlap(train, evaluation, counts["train"].kept))


def binarise_text(job: Job, record: CorpusRecord, text: Path, folder: Path) -> Binarised:
    """Run fairseq-preprocess on the segmented text and write corpus.json.

    Raises: ValueError if even a perfect model would score badly, or if the counts are not the published ones.
    """
    manifest, data, model = job.manifest, folder / "data", FILES[job.manifest.subwords]
    cut = [label for label, source in record.texts.items() if source.lines == job.options.limit]
    is_cut = any(label.startswith("train ") for label in cut)
    checks.judge(manifest.name, record.round_trip, manifest.spm_normalizer, is_cut, job.options.allow_low_ceiling)
    # Each side of every pair ends in </s>. The bytes per token follow fairseq's best_fitting_int_dtype.
    tokens = sum(sum(record.tokens[split].values()) + 2 * lines.kept for split, lines in record.lines.items())
    size = tokens * (2 if record.vocab_size < 65500 else 4)
    fairseq_preprocess.preprocess(
        text, data, *manifest.languages, record.lines, job.options.workers, size, job.lock, job.dictionary
    )
    shutil.copytree(text / "ref", data / "ref")
    shutil.copyfile(text / model, data / model)
    facts = _facts(record, data) if manifest.facts else {}
    wrong = tuple(
        f"{fact} of {what}: {facts[fact][what]:,}; published: {count:,}"
        for fact, counts in manifest.facts.items()
        for what, count in counts.items()
        if what not in job.skipped and facts[fact].get(what, 0) != count
    )
    if wrong and not job.options.allow_other:
        raise ValueError(f"not the text of --profile {manifest.profile}: {'; '.join(wrong)} ({ACCEPTS})")
    replace(record, facts=facts, differences=record.differences + wrong, tools=versions(TOOLS)).write(data)
    return Binarised(len(read_lines(data / f"dict.{manifest.source}.txt")))


# ------------------------------------------------------------------------------------------------ corpus.json


def source_texts(job: Job, extracted: Extracted) -> tuple[dict[str, SourceText], list[str]]:
    """Return the texts by label, and their differences from the manifest.

    Status: "released" if verified by a checksum, "other" if the checksum or the line count is wrong, else "unverified".
    """
    limit, texts, differences = job.options.limit, {}, dict[str, None]()
    for text in job.texts:
        found, expected, wrong = extracted.texts[text.label], text.part.lines, []
        if expected is not None and limit is not None:
            expected = min(expected, limit)
        # The checksums in the manifest are those of the complete texts in Stanford's form.
        digest = text.known.sha256 if text.is_ready else None if limit else found.sha256
        known = text.part.sha256.get(text.language) if found.form == "stanford" and digest else None
        if text.difference:
            wrong.append(f"{text.file.name}: {text.difference}")
        if expected is not None and found.lines != expected:
            wrong.append(f"{text.split} {text.part.name} has {found.lines:,} pairs; expected {expected:,}")
        if known and digest != known:
            wrong.append(f"{text.label} is not the released text (sha256 differs)")
        status = "other" if wrong else "released" if text.is_verified or known else "unverified"
        # Only a checksum proves that this is the text from that URL.
        urls = text.expected.urls if text.expected and status == "released" else ()
        file = text.file.name, text.member, next(iter(urls), None), text.known.sha256
        texts[text.label] = SourceText(*file, status, found.lines, found.sha256)
        differences |= dict.fromkeys(wrong)
    return texts, [*differences]


def corpus_record(
    job: Job,
    texts: dict[str, SourceText],
    differences: list[str],
    tokenised: Kept,
    training: Kept,
    encoded: Encoded,
) -> CorpusRecord:
    """Return the part of corpus.json that is known before the text is binarised."""
    manifest, limit, form = job.manifest, job.options.limit, job.form
    dropped = {split: dict(counts.dropped) for split, counts in tokenised.pairs.items()}
    dropped["train"] |= training.pairs["train"].dropped
    limited = f"only the first {limit:,} pairs of each text are used (--limit {limit})" if limit else ""
    is_cut = any(text.lines == limit for text in texts.values())
    # The user's own corpus has no release to compare with.
    unverified = [label for label, text in texts.items() if manifest.files and text.status == "unverified"]
    return CorpusRecord(
        name=manifest.name,
        source=manifest.source,
        target=manifest.target,
        vocab_size=manifest.vocab_size,
        asked=job.settings,
        texts=texts,
        differences=(*differences, *([limited] if is_cut else [])),
        unverified=tuple(unverified),
        skipped=dict(job.skipped),
        lines={
            split: PairCounts(
                tokenised.pairs[split].read, counts.kept, dropped[split] | counts.dropped, counts.half_empty
            )
            for split, counts in encoded.pairs.items()
        },
        tokens=encoded.tokens,
        round_trip=encoded.round_trip,
        overlap=encoded.overlap,
        text=TextSettings(form.form, manifest.normalize if form.form == "moses" else "none", form.split_hyphens),
        subwords=SubwordSettings(
            normalizer=manifest.spm_normalizer if manifest.subwords == "sentencepiece" else "none"
        ),
        restore=Restore(manifest.subwords, FILES[manifest.subwords]),
        profile=manifest.profile,
        bleu_tokenize=job.tokenize,
    )


def _facts(record: CorpusRecord, data: Path) -> dict[str, dict[str, int]]:
    """Return counts that others can compare with those of their own prepared text.

    training tokens: subwords and </s> per language; reference tokens: words of the target side of each test set, in the
    form that is scored; dictionary: number of types, including fairseq's four special symbols
    """
    form, pairs = record.forms()[record.target], record.lines["train"].kept
    words = {
        split: sum(len(form.reference(line).split()) for line in read_lines(data / "ref" / f"{split}.{form.language}"))
        for split in record.lines
        if split != "train"
    }
    return {
        "training tokens": {language: count + pairs for language, count in record.tokens["train"].items()},
        "reference tokens": words,
        "dictionary": {"types": len(read_lines(data / f"dict.{record.source}.txt")) + 4},
    }
