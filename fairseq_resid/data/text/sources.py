"""Find the raw texts of a corpus: in the user's folders, through sacrebleu, or by download.

IWSLT'15 EN-VI exists in three forms, which are recognised by file name (xml) or content (stanford, plain):

    stanford   tokenised, with Moses' escapes
    plain      not tokenised
    xml        the official release: <seg> elements, train.tags.*
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from ...console import further_lines, say, with_lines
from .. import extract
from ..fetch import SILENCE, FetchError, Fingerprint, RemoteFile, fetch, problem, usable
from ..preparing import Options
from .fingerprints import Fingerprints
from .manifest import Part, TextManifest

SNIFFED = 2000  # lines that decide whether a text is tokenised


@dataclass(frozen=True)
class Text:
    """One side of one part: its file on disk, and its member if the file is an archive."""

    split: str
    part: Part
    language: str
    file: Path
    member: str | None
    known: Fingerprint  # of `file`
    expected: RemoteFile | None = None  # size, checksums and URLs of `file` according to the manifest or sacrebleu

    @property
    def name(self) -> str:
        """The name that determines the format."""
        return self.member or self.file.name

    @property
    def is_ready(self) -> bool:
        """Whether `file` itself is the text, with one sentence per line."""
        return self.member is None and extract.is_plain(self.name)

    @property
    def label(self) -> str:
        return f"{self.split} {self.part.name}.{self.language}"

    @property
    def difference(self) -> str | None:
        """How `file` differs from the expected one; None if it does not, or if no file is expected."""
        return problem(self.expected, self.known) if self.expected else None

    @property
    def is_verified(self) -> bool:
        """Whether a checksum shows that `file` is the expected one."""
        expected = self.expected
        return expected is not None and bool(expected.sha256 or expected.md5) and self.difference is None


def downloaded_alternatives(part: Part, downloads: Path) -> list[int]:
    """Return the numbers of the alternatives of a text whose files have all been downloaded."""
    alternatives = enumerate(zip(*part.places.values(), strict=True))
    return [
        index for index, places in alternatives if all((downloads / place.split("/")[0]).is_file() for place in places)
    ]


def find(manifest: TextManifest, options: Options) -> list[Text]:
    """Return both sides of every part, downloading them if necessary.

    Raises: ValueError naming a text that is in none of the --raw folders, or a file that is not the released one;
    FetchError.
    """
    fingerprints = Fingerprints(None if options.verify else options.downloads / "fingerprints.json")
    texts = [
        text
        for split in manifest.splits
        for part in manifest.parts[split]
        for text in _part(manifest, options, fingerprints, split, part)
    ]
    wrong = dict.fromkeys(f"{text.file}: {text.difference}" for text in texts if text.difference)
    if wrong and not options.allow_other:
        failure = ValueError("not the released files (use --allow-other-data to accept them):")
        raise with_lines(failure, [f"  {one}" for one in wrong])
    return texts


def absent_tests(manifest: TextManifest, options: Options) -> dict[str, str]:
    """Return the names, by split, of further test sets without any file in the --raw folders.

    An incomplete test set is not included, because `find` reports its missing files. Without --raw the result is empty,
    because a host that does not respond must not change the corpus.
    """
    if not options.raw:
        return {}
    absent = {}
    for split in manifest.further_tests:
        places = [place for part in manifest.parts[split] for both in part.places.values() for place in both]
        files = {name for place in places for name, _ in _candidates(place)}
        if not any((folder / name).is_file() for folder in options.raw for name in files):
            absent[split] = ", ".join(part.name for part in manifest.parts[split])
    return absent


def _part(manifest: TextManifest, options: Options, fingerprints: Fingerprints, split: str, part: Part) -> list[Text]:
    if options.raw:
        return _on_disk(manifest, options.raw, fingerprints, split, part)
    there = downloaded_alternatives(part, options.downloads)
    is_tried = part.sacrebleu and not (options.mirror or there)
    if is_tried and (released := _from_sacrebleu(manifest, fingerprints, split, part)):
        return released
    refusals: list[FetchError] = []
    # Earlier downloads come first, because a host that is temporarily down must not change the corpus.
    for index in dict.fromkeys([*there, *range(len(part.places[manifest.source]))]):
        texts = []
        try:
            for language in manifest.languages:
                place = part.places[language][index]
                file = manifest.file(place)
                known = fetch(file, options.downloads, options.mirror, options.allow_other)
                texts.append(Text(split, part, language, options.downloads / file.name, _member(place), known, file))
            return texts
        except FetchError as error:
            refusals.append(error)
    first, *others = refusals
    raise with_lines(first, [line for other in others for line in (str(other), *further_lines(other))])


def _member(place: str) -> str | None:
    _, slash, member = place.partition("/")
    return member if slash else None


def _candidates(place: str) -> list[tuple[str, str | None]]:
    """Return all (file, member) pairs where a place may be found on the user's disk: in its archive, or extracted."""
    member = _member(place)
    if member is None:
        plain: list[tuple[str, str | None]] = [(place, None)]
    else:
        plain = [(place.split("/")[0], member), (member, None), (PurePosixPath(member).name, None)]
    uncompressed = [(name[: -len(".gz")], None) for name, _ in plain if name.endswith(".gz")]
    return uncompressed + plain


def _on_disk(
    manifest: TextManifest, raw: Sequence[Path], fingerprints: Fingerprints, split: str, part: Part
) -> list[Text]:
    looked_for: list[str] = []
    for index in range(len(part.places[manifest.source])):
        found = {}
        for language in manifest.languages:
            candidates = _candidates(part.places[language][index])
            looked_for += [name for name, _ in candidates]
            hits = [(folder / name, member) for folder in raw for name, member in candidates]
            if hit := next((hit for hit in hits if hit[0].is_file()), None):
                found[language] = hit
        if len(found) == len(manifest.languages):
            return [
                Text(split, part, language, file, member, fingerprints.of(file), manifest.file(file.name))
                for language, (file, member) in found.items()
            ]
    folders = ", ".join(map(str, raw))
    raise ValueError(
        f"--raw {folders}: {split} text {part.name} not found: none of {', '.join(dict.fromkeys(looked_for))} exists"
    )


def _from_sacrebleu(manifest: TextManifest, fingerprints: Fingerprints, split: str, part: Part) -> list[Text] | None:
    """Return the texts of a test set from the archive that sacrebleu downloads; None if the download fails.

    We read the archive instead of sacrebleu's plain text, which replaces every no-break space with a space: the
    reference must be the same from every source. The checksum known to sacrebleu is checked here again, because a
    killed run can leave half a file in its cache.
    """
    from sacrebleu.utils import DATASETS

    pair = f"{manifest.source}-{manifest.target}"
    origin = f"sacrebleu -t {part.sacrebleu} -l {pair}"
    say(f"{part.name}: {origin}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE)
    try:
        dataset: Any = DATASETS[str(part.sacrebleu)]
        # sacrebleu prints messages, and exits the process on errors.
        with contextlib.redirect_stdout(None):
            dataset.maybe_download()
        file = Path(dataset._rawdir) / dataset._get_tarball_filename(dataset.data[0])
        expected = RemoteFile(file.name, (origin,), md5=dataset.md5[0])
        known = fingerprints.of(file)
        if wrong := problem(expected, known):
            raise ValueError(f"{file}: {wrong}")
        members = dataset.langpairs[pair]
    except (Exception, SystemExit) as error:
        say(f"{part.name}: sacrebleu could not download it ({error}); trying the archive")
        return None
    finally:
        socket.setdefaulttimeout(before)
    return [
        Text(split, part, language, file, member, known, expected)
        for language, member in zip(manifest.languages, members, strict=True)
    ]


def extract_all(texts: Sequence[Text], folder: Path, limit: int | None) -> dict[str, Path]:
    """Write every text to FOLDER as a plain file, unless it already is one; return the paths by label.

    Raises: ValueError naming a damaged file or a missing member.
    """
    paths = {}
    archives: dict[Path, dict[str, Path]] = {}
    known = {text.file: text.known for text in texts}
    folder.mkdir(parents=True, exist_ok=True)
    for text in texts:
        output = paths[text.label] = folder / f"{text.split}.{text.part.name}.{text.language}"
        if text.is_ready and limit is None:
            paths[text.label] = text.file
        elif output.is_file():
            continue  # from an interrupted call; the file only appears when it is complete
        elif text.member is not None and extract.is_archive(text.file.name):
            archives.setdefault(text.file, {})[text.member] = output
        else:
            with usable(text.file, text.known):
                extract.convert(text.file, text.name, output, limit)
    for archive, wanted in archives.items():
        with usable(archive, known[archive]):
            extract.extract(archive, wanted, limit)
    return paths


def form_of(path: Path, name: str) -> str:
    """Return the form of an EN-VI text: "stanford", "plain" or "xml"; `name` is the name of its source file."""
    if name.endswith(".xml") or extract.is_tagged(name):
        return "xml"
    attached = detached = 0
    with path.open("rb") as file:
        for line in islice(file, SNIFFED):
            attached += len(re.findall(rb"[^\W\d_][.,?!](?=\s|$)", line))
            detached += len(re.findall(rb"\s[.,?!](?=\s|$)", line))
    return "stanford" if detached > attached else "plain"
