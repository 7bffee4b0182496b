"""The manifest of a text corpus: manifests/NAME.yaml.

A manifest lists the texts of train, valid and test with their expected line counts, and their files (mostly archives)
with URLs and checksums. It also says how to convert text for the model. manifests/wmt14-en-de.yaml is a commented
example.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import fields, replace

from ... import records
from ..fetch import RemoteFile
from .forms import Form, Normalize

SPLITS = ("train", "valid", "test")  # the splits of every corpus; further test sets are test1, test2, ...
MANIFESTS = Path(__file__).with_name("manifests")


# Manifests are written by hand, so an unknown field is an error.
class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One parallel text: for each language its places, FILE or FILE/MEMBER, in order of preference."""

    name: str
    places: Mapping[str, tuple[str, ...]]
    lines: int | None = None
    sha256: Mapping[str, str] = {}
    sacrebleu: str | None = None


class TextManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A corpus; see the module docstring."""

    name: str
    source: str
    target: str
    vocab_size: int
    parts: Mapping[str, tuple[Part, ...]]
    form: Form = "plain"
    plain_form: Form = "moses"  # the form to use if `form` is "escaped" but the text found is not tokenised
    normalize: Normalize = "none"
    clean: bool = False
    max_pieces: int = 250
    max_ratio: float = 1.5
    deduplicate: bool = False
    split_hyphens: bool = False
    spm_normalizer: str = "nmt_nfkc"
    subwords: Literal["sentencepiece", "subword_nmt"] = "sentencepiece"  # subword_nmt: with `vocab_size` merges
    tokenize: str = ""  # sacrebleu's tokeniser; "": the one that fits the form and the target language
    vocab_from: str = ""  # SHA-256 of another folder's subword model and dictionary, which are used
    profile: str = ""  # the preparation to reproduce, if the settings alone do not determine the data folder
    facts: Mapping[str, Mapping[str, int]] = {}  # expected counts of the prepared text
    text_bytes: int = 0
    files: Mapping[str, RemoteFile] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the data folder, in order."""
        return (*SPLITS, *self.further_tests)

    @property
    def further_tests(self) -> list[str]:
        """The further test sets in the order of their numbers, which have gaps if some are skipped."""
        return sorted(self.parts.keys() - {*SPLITS}, key=number_of_test)

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def file(self, place: str) -> RemoteFile:
        """Return the file of a place, FILE or FILE/MEMBER."""
        name = place.split("/")[0]
        return replace(self.files.get(name, RemoteFile()), name=name)


DEFAULTS = {item.name: item.default for item in fields(TextManifest)}
# These fields, the raw texts, --limit and the skipped test sets determine the content of a data folder.
SETTINGS = tuple(name for name in DEFAULTS if name not in ("parts", "facts", "text_bytes", "files"))


def number_of_test(split: str) -> int:
    """Return N of the test set testN; 0 for `test`."""
    return int(split.removeprefix("test") or 0)


def names() -> list[str]:
    return sorted(path.stem for path in MANIFESTS.glob("*.yaml"))


def read(name: str) -> TextManifest:
    return records.read(MANIFESTS / f"{name}.yaml", TextManifest)
