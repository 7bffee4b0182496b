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

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import fields, replace

from ... import records
from ...console import say
from ...files import locked, read_lines, working_folder
from . import disk, sources, text_steps
from . import folder as data_folder
from .folder import CorpusRecord
from .manifest import TextManifest
from .text_steps import Job, TextOptions

# The raw texts, these manifest fields, --limit and the skipped test sets determine the content of a data folder.
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
    "tokenize",
    "vocab_from",
    "profile",
)
# The settings that only matter with `clean`.
LIMITS = ("max_pieces", "max_ratio")
# The fraction of a validation or test set that may also be in the training text without a warning.
LEAKAGE = 0.1
MARK = "text.json"  # a file that shows that a working folder is ours


def prepare_data(manifest: TextManifest, options: TextOptions, texts: list[sources.Text] | None = None) -> bool:
    """Make the data folder OUT; return False if it already contains exactly this corpus.

    texts: the texts of the corpus; None: find or download them as described in the manifest
    Raises: ValueError for bad input, or if OUT contains a different corpus; ChildProcessError; OSError.
    """
    out = options.out
    if "," in str(out):
        raise ValueError(f"--out {out}: must not contain a comma, at which fairseq-preprocess splits paths")
    work = working_folder(out)
    skipped = sources.absent_tests(manifest, options.source) if texts is None else {}
    for split, name in skipped.items():
        folders = ", ".join(map(str, options.source.raw))
        print(f"skipped: test set {split} ({name}): none of its files is in --raw {folders}", flush=True)
    manifest = replace(
        manifest, parts={split: manifest.parts[split] for split in manifest.parts if split not in skipped}
    )
    settings = {**{name: getattr(manifest, name) for name in SETTINGS}, "limit": options.limit}
    settings["skipped"] = [*skipped] or None
    if not manifest.clean:
        settings |= dict.fromkeys(LIMITS)
    if texts is None and options.source.raw:
        texts = sources.find(manifest, options.source)
    if not out.exists():
        if not options.source.mirror:  # whose files may be smaller than the released ones
            disk.check(manifest, options.source, out, options.limit, texts)
        with locked(work / ".lock", f"{work}: another process is using this folder", wait=True) as lock:
            if not out.exists():
                if texts is None:
                    texts = sources.find(manifest, options.source)
                _make(Job(manifest, options, texts, settings, lock, skipped), work)
                _show_result(out, options.show)
                return True
            (work / ".lock").unlink()
            work.rmdir()
    record = _check_same(out, settings, texts or [])
    sizes_known = data_folder.check(out, options.verify)
    if (work / MARK).is_file():  # the run was killed after renaming its result
        shutil.rmtree(work, ignore_errors=True)
    _show_differences(record)
    if options.show:
        _show_overlap(out, record)
    checked = "checksums verified" if options.verify else "sizes verified"
    if not (sizes_known or options.verify):
        checked = "sizes not recorded by the earlier version that made it; use --verify to compare checksums"
    say(f"{out}: already contains this corpus ({checked})")
    return False


def _make(job: Job, work: Path) -> None:
    """Run the unfinished steps in the working folder, then rename the result.

    Raises: ValueError if the working folder contains files that are not ours, or unfinished work on another text.
    """
    strangers = [path.name for path in work.iterdir() if path.name != ".lock"]
    if strangers and not (work / MARK).is_file():
        raise ValueError(
            f"{work}: contains {strangers[0]}, which this command did not create; remove it or choose another --out"
        )
    mine = {"name": job.manifest.name, "limit": job.options.limit}
    if (known := records.remembered(work / MARK, dict)) not in (None, mine):
        raise ValueError(f"{work}: contains unfinished work on {known}, not {mine}; remove it or choose another --out")
    records.write(work / MARK, mine)
    os.replace(text_steps.run(job, work) / "data", job.options.out)
    shutil.rmtree(work, ignore_errors=True)


def _show_result(out: Path, show: bool) -> None:
    """Print a summary of a data folder."""
    record = data_folder.read(out)
    for split, lines in record.lines.items():
        sides = " and ".join(f"{count:,} {language}" for language, count in record.tokens[split].items())
        phrases = [f"{split}: {lines.kept:,} of {lines.read:,} pairs, {sides} subwords"]
        if lines.half_empty:
            remedy = " (--clean drops them)" if split == "train" else ""
            phrases.append(f"a side is empty in {lines.half_empty:,} of these pairs{remedy}")
        if trip := record.round_trip.get(split):
            best = "" if trip.exact == trip.of else f" (best possible BLEU: {trip.bleu:.2f}, {trip.signature})"
            phrases.append(f"{trip.exact:,} of {trip.of:,} {record.target} lines survive the subword round trip{best}")
        if overlap := record.overlap.get(split):
            counts = [f"{len(getattr(overlap, kind)):,} {kind}s" for kind in ("source", "target", "pair")]
            phrases.append(f"also in the training text: {', '.join(counts)}")
        say("; ".join(phrases))
        if overlap and len(overlap.pair) > lines.kept * LEAKAGE:
            repeated = f"{len(overlap.pair):,} of {lines.kept:,} pairs of {split} are also training pairs"
            remedy = "scores on them are too high; --deduplicate drops them from the training text"
            say(f"{out}: warning: {repeated}: {remedy}", file=sys.stderr)
    for fact, number_of in record.facts.items():
        say(f"{fact}: {', '.join(f'{count:,} {what}' for what, count in number_of.items())}")
    _show_differences(record)
    if show:
        _show_overlap(out, record)
    say(f"{out}: done")


def _show_overlap(out: Path, record: CorpusRecord) -> None:
    """Print the validation and test sentences that also occur in the training text, in their original form."""
    if not record.overlap:
        raise ValueError(
            f"{out}: --show: this data folder has no record of repeated sentences, because an earlier version made it; "
            "prepare it again"
        )
    for split, overlap in record.overlap.items():
        source = read_lines(out / "ref" / f"{split}.{record.source}")
        target = read_lines(out / "ref" / f"{split}.{record.target}")
        pairs = [f"{left} ||| {right}" for left, right in zip(source, target, strict=True)]
        for kind, lines, text in (
            ("source", overlap.source, source),
            ("target", overlap.target, target),
            ("pair", overlap.pair, pairs),
        ):
            for line in lines:
                say(f"{split}:{line} {kind}: {text[line - 1]}")


def shown(setting: Any) -> str:
    return ", ".join(setting) if isinstance(setting, list) else str(setting)


def _show_differences(record: CorpusRecord) -> None:
    if record.skipped:
        print(f"prepared without: {', '.join(f'{split} ({name})' for split, name in record.skipped.items())}")
    for difference in record.differences:
        say(f"not as released: {difference}")
    if unverified := record.unverified_texts:
        say(f"not verified (no known checksum): {', '.join(unverified)}")


def _check_same(out: Path, settings: dict[str, Any], texts: list[sources.Text]) -> CorpusRecord:
    """Return OUT's corpus.json.

    Raises: ValueError if OUT was made with different settings, or from different texts.
    """
    record = records.remembered(out / data_folder.CORPUS, CorpusRecord)
    sums = {label: text.file_sha256 for label, text in record.texts.items()} if record else {}
    if record is None or not record.asked or None in sums.values():
        raise ValueError(
            f"{out}: exists, but contains no corpus.json that this version can read; remove it or choose another --out"
        )
    # An earlier version that lacked a setting behaved like today's default.
    found = {**{item.name: item.default for item in fields(TextManifest) if item.name in SETTINGS}, **record.asked}
    if "form" not in record.asked:
        is_plain = record.text.form == "plain"
        found["form"] = settings["form"] if is_plain == (settings["form"] == "plain") else record.text.form
    if not found["clean"]:
        found |= dict.fromkeys(LIMITS)
    if differing := [key for key in settings if found.get(key) != settings[key]]:
        changes = ", ".join(f"{key} is {shown(found.get(key))}, not {shown(settings[key])}" for key in differing)
        raise ValueError(f"{out}: contains a different corpus ({changes}); choose another --out")
    if texts and (others := sums.keys() - {text.label for text in texts}):
        raise ValueError(f"{out}: contains a different corpus (it also has {min(others)}); choose another --out")
    for text in texts:
        if text.known.sha256 != sums.get(text.label):
            raise ValueError(f"{out}: contains a different corpus (not made from {text.file}); choose another --out")
    return record
