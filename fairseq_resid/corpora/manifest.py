"""What a corpus is made of: manifests/NAME.yaml, read and checked.

A manifest names the texts of train, valid and test with their expected line counts, the files (archives mostly) that
hold them with URLs and checksums, and how text goes to the model. manifests/wmt14-en-de.yaml explains every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..text import TextForm

SPLITS = ("train", "valid", "test")
MANIFESTS = Path(__file__).with_name("manifests")


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: its name, where it is (in order of preference), and what is known of its content."""

    name: str
    urls: tuple[str, ...] = ()
    bytes: int | None = None
    about: int | None = None  # bytes, where the exact size is not known: for the check of free disk
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Part:
    """One parallel text: for each language its places, FILE or FILE/MEMBER, in order of preference."""

    name: str
    places: Mapping[str, tuple[str, ...]]
    lines: int | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    sacrebleu: str | None = None


@dataclass(frozen=True)
class Manifest:
    """A whole corpus; see the module's docstring."""

    name: str
    source: str
    target: str
    vocab_size: int
    parts: Mapping[str, tuple[Part, ...]]
    form: str = "plain"
    plain_form: str = "moses"  # if `form` is "escaped": how the same text goes to the model where it comes plain
    normalize: str = "none"
    clean: bool = False
    max_pieces: int = 250
    max_ratio: float = 1.5
    deduplicate: bool = False
    split_hyphens: bool = False
    spm_normalizer: str = "nmt_nfkc"
    text_bytes: int = 0
    files: Mapping[str, RemoteFile] = field(default_factory=dict)

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def file(self, place: str) -> RemoteFile:
        """Return the file that a place FILE or FILE/MEMBER names."""
        return self.files.get(place.split("/")[0], RemoteFile(place.split("/")[0]))


def names() -> list[str]:
    """Return the names of the corpora that have a manifest."""
    return sorted(path.stem for path in MANIFESTS.glob("*.yaml"))


def read(path: Path) -> Manifest:
    """Read a manifest.

    Raises: ValueError naming the file and the field where it is missing, no YAML, or says what cannot be.
    """
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from None
    try:
        return _manifest(told)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: {said}") from None


def _manifest(told: dict[str, Any]) -> Manifest:
    languages = told["source"], told["target"]
    files = {name: RemoteFile(name, tuple(item.pop("urls")), **item) for name, item in told.pop("files").items()}
    parts = {split: tuple(_part(item, languages) for item in told.pop(split)) for split in SPLITS}
    manifest = Manifest(**told, parts=parts, files=files)
    TextForm.of_sides(*languages, manifest.form, manifest.normalize, manifest.split_hyphens)  # raises if it cannot be
    for split in SPLITS:
        for part in parts[split]:
            for place in (place for places in part.places.values() for place in places):
                if place.split("/")[0] not in files:
                    raise ValueError(f"{split} {part.name}: {place}: `files` has no {place.split('/')[0]}")
    return manifest


def _part(told: dict[str, Any], languages: tuple[str, str]) -> Part:
    places = {}
    for language in languages:
        place = told.pop(language)
        places[language] = (place,) if isinstance(place, str) else tuple(place)
    if len({len(alternatives) for alternatives in places.values()}) != 1:
        raise ValueError(f"{told['name']}: its sides have different numbers of alternatives")
    return Part(places=places, **told)
