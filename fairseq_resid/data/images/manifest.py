"""Read and check the manifest of an image corpus: manifests/NAME.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from ... import records
from ..fetch import RemoteFile

MANIFESTS = Path(__file__).with_name("manifests")
PARTS = ("train", "test")  # the parts of every corpus; `valid` is taken from the images of `train`


# Manifests are written by hand, so an unknown field is an error.
class ImageManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """An image corpus. If a field is not set, its value is taken from the images.

    classes: class names in the order of the labels; shape: channels, height, width; counts: images per part
    valid: number of `train` images that become `valid`; None: a tenth of them
    file: the archive of the release; members: its members for each part; names: the member that lists the classes
    labels: names of the label bytes before the pixels of each image; "class" is the image's class
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
    return [*sorted(path.stem for path in MANIFESTS.glob("*.yaml")), CUSTOM.name]


def read(name: str) -> ImageManifest:
    return CUSTOM if name == CUSTOM.name else records.read(MANIFESTS / f"{name}.yaml", ImageManifest)
