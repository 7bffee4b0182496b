"""A fake fairseq-train that records its arguments and prints FOLDER/log; the fixture `fake_train` installs it."""

from __future__ import annotations

import struct
from pathlib import Path

from fairseq_resid.data.text.folder import HEADER, MAGIC

EOS = 2  # its index in fairseq's dictionaries
FAKE = """#!/bin/sh
echo "$@" >> FOLDER/calls
while [ "$1" != --save-dir ]; do shift; done
[ -e FOLDER/crash ] || { cp FOLDER/whole.pt "$2/checkpoint_1_9.pt"; cp FOLDER/whole.pt "$2/checkpoint_last.pt"; }
[ ! -e FOLDER/log ] || cat FOLDER/log
[ ! -e FOLDER/slow ] || { trap 'kill $!; echo stopped by a signal >> FOLDER/calls; exit 0' TERM INT; sleep 30 & wait; }
exit $(cat FOLDER/code)
"""


def make_data(folder: Path) -> None:
    """Make a data folder whose training set is one empty sentence."""
    folder.mkdir(parents=True)
    header = HEADER.pack(MAGIC, 1, 8, 1)  # token ids are uint16
    for side in ("en", "vi"):
        (folder / f"dict.{side}.txt").touch()
        (folder / f"train.en-vi.{side}.idx").write_bytes(header + struct.pack("<iq", 1, 0))
        (folder / f"train.en-vi.{side}.bin").write_bytes(struct.pack("<H", EOS))


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []
