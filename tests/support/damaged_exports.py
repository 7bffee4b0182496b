"""Damage the files of an export at random, and translate with it: `python damaged_exports.py EXPORT TRIES SCRATCH`.

The script must run in a separate process, because a crash of an engine's library would end it. It prints the number,
file and kind of damage of each case before trying it, and finally how many folders were refused and how many still
translated. An unexpected error or a crash ends it with a nonzero exit code, and then the test fails.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

from fairseq_resid.export.engine import RECORD, Search, read
from fairseq_resid.export.translator import Translator
from support.hostile_lines import altered, damaged

HEADER = 4096  # half of the damage to binary files affects their first bytes


def damage(choose: random.Random, content: bytes, is_json: bool) -> tuple[str, bytes]:
    """Damage the content of a file; return the kind of damage and the new content."""
    how = choose.choice(["cut", "flipped", "overwritten", "mixed", "altered"])
    place = choose.randrange(min(len(content), HEADER) if choose.random() < 0.5 else len(content))
    if how == "altered" and is_json:
        return how, json.dumps(altered(choose, json.loads(content))).encode()
    if how == "cut":
        return how, content[:place]
    if how == "flipped":
        return how, content[:place] + bytes([content[place] ^ 1 << choose.randrange(8)]) + content[place + 1 :]
    if how == "mixed":
        return how, damaged(choose, content)
    new = choose.choice([bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(8), b"\xff" * 8, choose.randbytes(8)])
    return "overwritten", content[:place] + new + content[place + len(new) :]


def main(whole: Path, tries: int, scratch: Path) -> None:
    choose = random.Random(str(whole.name))
    names = sorted(file.name for file in whole.iterdir() if file.name in read_by(whole))
    counts = {"refused": 0, "translated": 0}
    for number in range(tries):
        name = names[number % len(names)]
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(whole, scratch)
        how, content = damage(choose, (whole / name).read_bytes(), name.endswith(".json"))
        (scratch / name).write_bytes(content)
        print(number, name, how, flush=True)
        try:
            translator = Translator(scratch, threads=1, beam=2)
            translator.translate(["w1 w2", "w3"])
            translator.engine.translate([["w1"]], Search(max_len_b=5))
            counts["translated"] += 1
        except (ValueError, OSError) as error:
            assert str(scratch) in str(error) and "\n" not in str(error), error
            counts["refused"] += 1
    print(json.dumps(counts))


def read_by(folder: Path) -> set[str]:
    """Return the names of the files that translation with an export reads."""
    from fairseq_resid.export.engine import ENGINES

    known = read(folder)
    return {RECORD, str(known.text.model), *ENGINES[known.engine].load().FILES}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
