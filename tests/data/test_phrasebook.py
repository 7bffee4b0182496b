"""The phrasebook, data-prep/phrasebook.py: its sentences, splits and files."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from support.scripts import imported

pytestmark = pytest.mark.once

SCRIPT = Path(__file__).resolve().parents[2] / "data-prep" / "phrasebook.py"
phrasebook = imported(SCRIPT)
# Hash of the default files, concatenated in the order of their names.
# Change it only together with the figures in the documentation.
DEFAULT_SHA256 = "dc0ca590362915ec72a29679a0f240dc878daaea57754bb91a23f5b396654011"
SPLITS = ("train", "valid", "test")


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, "--out", folder, *flags], capture_output=True, text=True)


@pytest.fixture(scope="module")
def default() -> dict[str, list[Any]]:
    """Return the default corpus with its combinations; tests must not change it."""
    return phrasebook.draw()


def words(text: str) -> list[str]:
    """Return the words of a sentence in lower case, with their hyphens and apostrophes."""
    return re.findall(r"[\w'-]+", text.lower())


def test_sentences_are_well_formed_and_translate_one_to_one() -> None:
    """No sentence has two translations, in either direction.

    The examples come straight from the grammar. A drawn corpus would hide a second translation, because it repeats no
    sentence.
    """
    generator = random.Random(7)
    translations: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, set[str]] = defaultdict(set)
    for space in [each for spaces in phrasebook.spaces().values() for each in spaces]:
        for index in generator.sample(range(space.size()), min(space.size(), 300)):
            example = space.example(index)
            translations[example.english].add(example.vietnamese)
            sources[example.vietnamese].add(example.english)
    assert len(translations) > 30_000
    assert not [entry for entry in (*translations.items(), *sources.items()) if len(entry[1]) > 1]
    for text in (*translations, *sources):
        assert text == " ".join(text.split()) and text[-1] in ".?" and text[0].isupper(), text
        assert not re.search(r"[{}_]", text), text
        assert all(letter.isupper() for letter in re.findall(r"[.?!] (\w)", text)), text
    for english in translations:
        assert english.isascii() and 4 <= len(english.split()) <= 15, english
        assert not re.search(r"\b[Aa] (?!useful)[aeiou]|\b[Aa]n [^aeiouh]", english), english


@pytest.mark.parametrize(
    ("number", "english", "vietnamese"),
    [
        (0, "zero", "không"), (15, "fifteen", "mười lăm"), (21, "twenty-one", "hai mươi mốt"),
        (105, "one hundred and five", "một trăm linh năm"),
        (2_030, "two thousand and thirty", "hai nghìn không trăm ba mươi"),
        (45_511, "forty-five thousand five hundred and eleven", "bốn mươi lăm nghìn năm trăm mười một"),
    ],
)  # fmt: skip
def test_numbers_in_words(number: int, english: str, vietnamese: str) -> None:
    assert phrasebook.english_number(number) == english and phrasebook.vietnamese_number(number) == vietnamese


def test_default_output_is_frozen_and_existing_files_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    for _ in range(2):
        assert run(out).stdout == f"{out}: train 8,000, valid 200, test 200 pairs\n"
        files = sorted(out.iterdir())
        assert [path.name for path in files] == sorted(f"{split}.{side}" for split in SPLITS for side in ("en", "vi"))
        assert hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest() == DEFAULT_SHA256
    (out / "test.vi").write_text("mine")
    done = run(out)
    assert done.returncode == 1 and done.stderr.startswith(f"phrasebook.py: error: {out}/test.vi: exists")
    assert (out / "test.vi").read_text() == "mine"


def test_output_depends_on_seed_but_not_on_training_size(default: dict[str, list[Any]]) -> None:
    first, other = phrasebook.draw(3, 300, 40, 50), phrasebook.draw(4, 300, 40, 50)
    assert [len(first[split]) for split in SPLITS] == [300, 40, 50]
    assert all(first[split] != other[split] for split in SPLITS)
    larger = phrasebook.draw(3, 600, 40, 50)
    assert larger["test"] == first["test"] and larger["valid"] == first["valid"]


def test_no_sentence_occurs_twice_and_combinations_are_held_out(default: dict[str, list[Any]]) -> None:
    """Combinations are held out across seeds too, whatever the order of their words."""
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


def test_words_of_evaluation_occur_in_training(default: dict[str, list[Any]]) -> None:
    for side in ("english", "vietnamese"):
        train = Counter(word for item in default["train"] for word in words(getattr(item, side)))
        for split in ("valid", "test"):
            held_out = {word for item in default[split] for word in words(getattr(item, side))}
            assert not {word: train[word] for word in held_out if train[word] < 5}, f"{split} {side}"


def test_permutation_is_complete() -> None:
    for size in (0, 1, 2, 37):
        assert sorted(phrasebook.permutation(size, random.Random(1))) == list(range(size))
