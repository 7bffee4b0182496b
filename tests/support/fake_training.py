"""A fake fairseq-train that only records its arguments; the fixture `fake_train` installs it."""

from __future__ import annotations

from pathlib import Path

FAKE = """#!/bin/sh
echo "$@" >> FOLDER/calls
while [ "$1" != --save-dir ]; do shift; done
[ -e FOLDER/crash ] || cp FOLDER/whole.pt "$2/checkpoint_1_9.pt"
[ ! -e FOLDER/slow ] || { trap 'kill $!; echo stopped by a signal >> FOLDER/calls; exit 0' TERM INT; sleep 30 & wait; }
exit $(cat FOLDER/code)
"""


def make_data(folder: Path) -> None:
    """Make a folder with the file names of a data folder."""
    folder.mkdir(parents=True)
    for name in (
        "dict.en.txt",
        "dict.vi.txt",
        *(f"train.en-vi.{side}.{kind}" for side in ("en", "vi") for kind in ("bin", "idx")),
    ):
        (folder / name).touch()


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []
