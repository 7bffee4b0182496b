"""What a corpus is made of: manifests/NAME.yaml, read and checked.

A manifest names the texts of train, valid and test with their expected line counts, the files (archives mostly) that
hold them with URLs and checksums, and how text goes to the model. manifests/wmt14-en-de.yaml explains every field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ... import records
from ..fetch import RemoteFile
from .forms import TextForm

SPLITS = ("train", "valid", "test")  # of every corpus; further test sets are test1, test2, ...
FURTHER = re.compile(r"test[1-9]\d*")
MANIFESTS = Path(__file__).with_name("manifests")


# Written by hand: a field that is none of these is an error.
class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One parallel text: for each language its places, FILE or FILE/MEMBER, in order of preference."""

    name: str
    places: Mapping[str, tuple[str, ...]]
    lines: int | None = None
    sha256: Mapping[str, str] = {}
    sacrebleu: str | None = None


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole corpus; see the module's docstring."""

    name: str
    source: str
    target: str
    vocab_size: int
    parts: Mapping[str, tuple[Part, ...]]
    form: str = "plain"
    plain_form: str = "moses"  # the form of the same text that comes plain, if `form` is "escaped"
    normalize: str = "none"
    clean: bool = False
    max_pieces: int = 250
    max_ratio: float = 1.5
    deduplicate: bool = False
    split_hyphens: bool = False
    spm_normalizer: str = "nmt_nfkc"
    subwords: str = "sentencepiece"  # or "subword_nmt", with `vocab_size` merges
    profile: str = ""  # as whom the text is prepared, if the data folder depends on more than the settings
    facts: Mapping[str, Mapping[str, int]] = {}  # counts that the prepared text must have
    text_bytes: int = 0
    files: Mapping[str, RemoteFile] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """The parts of the data folder, in order."""
        return (*SPLITS, *self.further_tests)

    @property
    def further_tests(self) -> list[str]:
        """The test sets beyond the first, by number; a preparation without some of them leaves gaps."""
        return sorted(self.parts.keys() - {*SPLITS}, key=number_of_test)

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Those whose text stays untouched."""
        return self.splits[1:]

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def file(self, place: str) -> RemoteFile:
        """Return the file that a place FILE or FILE/MEMBER names."""
        name = place.split("/")[0]
        return replace(self.files.get(name, RemoteFile()), name=name)


def number_of_test(split: str) -> int:
    """Return N of the test set testN; 0 for `test`."""
    return int(split.removeprefix("test") or 0)


def check_further_tests(splits: Iterable[str]) -> None:
    """Check that the test sets beyond the first are test1, test2, ..., without a gap.

    Raises: ValueError naming an unknown split, or the test set that is missing.
    """
    others = [split for split in splits if split not in SPLITS]
    if strange := [split for split in others if not FURTHER.fullmatch(split)]:
        raise ValueError(f"`parts` has {strange[0]}: allowed are {', '.join(SPLITS)}, test1, test2, ...")
    expected = [f"test{number}" for number in range(1, len(others) + 1)]
    if missing := [split for split in expected if split not in others]:
        raise ValueError(f"`parts` has no {missing[0]}, but {max(others)}")


def names() -> list[str]:
    """Return the names of the corpora that have a manifest."""
    return sorted(path.stem for path in MANIFESTS.glob("*.yaml"))


def read(path: Path) -> Manifest:
    """Read a manifest.

    Raises: ValueError naming the file and what is wrong; OSError.
    """
    manifest = records.read(path, Manifest)
    try:
        _check(manifest)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return manifest


def _check(manifest: Manifest) -> None:
    check_further_tests(manifest.parts)
    TextForm.of_sides(*manifest.languages, manifest.form, manifest.normalize, manifest.split_hyphens)
    for split in manifest.splits:
        for part in manifest.parts.get(split, ()):
            if part.places.keys() != {*manifest.languages}:
                raise ValueError(f"{split} {part.name}: `places` must be of {' and '.join(manifest.languages)}")
            if len({len(alternatives) for alternatives in part.places.values()}) != 1:
                raise ValueError(f"{split} {part.name}: its sides have different numbers of alternatives")
            for place in (place for alternatives in part.places.values() for place in alternatives):
                if place.split("/")[0] not in manifest.files:
                    raise ValueError(f"{split} {part.name}: {place}: `files` has no {place.split('/')[0]}")
    if missing := [split for split in SPLITS if not manifest.parts.get(split)]:
        raise ValueError(f"`parts` has no {missing[0]}")
