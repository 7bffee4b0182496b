"""What an image corpus is made of: manifests/NAME.yaml, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from ... import records
from ..fetch import RemoteFile

MANIFESTS = Path(__file__).with_name("manifests")
PARTS = ("train", "test")  # what every corpus comes in; `valid` is taken from the images of `train`


# Written by hand: a field that is none of these is an error.
class ImageManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """An image corpus; whatever is not given is not known beforehand, and taken from the images.

    classes: their names, in the order of the labels; shape: channels, height, width; counts: images of each part
    valid: images of `train` that become `valid`; None: a tenth of them
    file: the archive of the release; members: its members that hold each part; names: the one that lists the classes
    labels: what the bytes before the pixels of an image are; the one called "class" is its class
    """

    name: str
    classes: tuple[str, ...] = ()
    shape: tuple[int, int, int] | None = None
    counts: Mapping[str, int] = {}
    valid: int | None = None
    file: RemoteFile | None = None
    members: Mapping[str, tuple[str, ...]] = {}
    names: str = ""
    labels: tuple[str, ...] = ()


CUSTOM = ImageManifest("custom")  # the user's own images


def names() -> list[str]:
    """Return the names of the corpora that can be prepared."""
    return [*sorted(path.stem for path in MANIFESTS.glob("*.yaml")), CUSTOM.name]


def read(name: str) -> ImageManifest:
    """Read the manifest of a corpus.

    Raises: ValueError naming the file and what is wrong; OSError.
    """
    return CUSTOM if name == CUSTOM.name else records.read(MANIFESTS / f"{name}.yaml", ImageManifest)
