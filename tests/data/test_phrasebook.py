"""The phrasebook, data-prep/phrasebook.py: its sentences, splits and files."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from support.scripts import imported

pytestmark = pytest.mark.once

SCRIPT = Path(__file__).resolve().parents[2] / "data-prep" / "phrasebook.py"
phrasebook = imported(SCRIPT)
# Hash of the default files, concatenated in the order of their names.
# Change it only together with the figures in the documentation.
DEFAULT_SHA256 = "dc0ca590362915ec72a29679a0f240dc878daaea57754bb91a23f5b396654011"
SPLITS = ("train", "valid", "test")


def test_default_output_is_frozen_and_existing_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "here"
    monkeypatch.setattr(sys, "argv", ["phrasebook.py", "--out", str(out)])
    for _ in range(2):
        phrasebook.main()
        assert capsys.readouterr().out == f"{out}: train 8,000, valid 200, test 200 pairs\n"
        files = sorted(out.iterdir())
        assert [path.name for path in files] == sorted(f"{split}.{side}" for split in SPLITS for side in ("en", "vi"))
        assert hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest() == DEFAULT_SHA256
    (out / "test.vi").write_text("mine")
    with pytest.raises(SystemExit, match=rf"^phrasebook.py: error: {out}/test.vi: exists"):
        phrasebook.main()
    assert (out / "test.vi").read_text() == "mine"


def test_output_depends_on_seed_but_not_on_training_size() -> None:
    first, other = phrasebook.draw(3, 300, 40, 50), phrasebook.draw(4, 300, 40, 50)
    assert [len(first[split]) for split in SPLITS] == [300, 40, 50]
    assert all(first[split] != other[split] for split in SPLITS)
    larger = phrasebook.draw(3, 600, 40, 50)
    assert larger["test"] == first["test"] and larger["valid"] == first["valid"]


def test_no_sentence_occurs_twice_and_combinations_are_held_out() -> None:
    """Combinations are held out across seeds too, whatever the order of their words."""
    default = phrasebook.draw()
    examples = [example for split in SPLITS for example in default[split]]
    assert len({each.english for each in examples}) == len({each.vietnamese for each in examples}) == 8400
    train = [*default["train"], *phrasebook.draw(seed=2, train=4000, valid=1, test=1)["train"]]
    held = {
        split: {(item.pattern, tuple(sorted(item.combination))) for item in examples}
        for split, examples in {**default, "train": train}.items()
    }
    assert not held["train"] & held["test"] and not held["valid"] & (held["train"] | held["test"])
    patterns = {pattern.name for pattern in phrasebook.read()[1]}
    assert all({name for name, _ in held[split]} == patterns for split in SPLITS)
