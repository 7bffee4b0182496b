#!/usr/bin/env python3
"""Write an English-Vietnamese phrasebook, generated from the words and sentence patterns of phrasebook.tsv.

    data-prep/phrasebook.py --out DIR [--seed 1] [--train 8000] [--valid 200] [--test 200]

The script writes DIR/{train,valid,test}.{en,vi} and needs only Python. In every pattern, each combination of fillers
for the slots that are held out (a noun and its adjective, a verb and its place ...) belongs to training, validation or
test, whatever the seed. A combination in the test set therefore never occurs in a training sentence of its pattern.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("phrasebook.tsv")
SPLITS = ("train", "valid", "test")
HELD_OUT = 0.1  # share of each pattern's combinations reserved for test; the same share is reserved for validation
AGREEMENT = {"present": "third", "be": "is", "was": "was", "do": "does", "have": "has"}  # verb forms after "he"

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ENGLISH += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
VIETNAMESE = ["không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín"]


def english_number(number: int) -> str:
    """Return a whole number from 0 to 999,999 in English words."""
    if number < 20:
        return ENGLISH[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return ENGLISH_TENS[tens] + (f"-{ENGLISH[unit]}" if unit else "")
    base, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, base)
    words = f"{english_number(count)} {name}"
    return f"{words}{' and' if rest < 100 else ''} {english_number(rest)}" if rest else words


def vietnamese_number(number: int) -> str:
    """Return a whole number from 0 to 999,999 in Vietnamese words, in the northern variety ("linh", "nghìn")."""
    thousands, rest = divmod(number, 1000)
    words = [vietnamese_number(thousands), "nghìn"] if thousands else []
    if thousands and not rest:
        return " ".join(words)
    hundreds, rest = divmod(rest, 100)
    tens, unit = divmod(rest, 10)
    if hundreds or thousands:  # after thousands, the hundreds are spoken even if they are zero
        words += [VIETNAMESE[hundreds], "trăm"]
    if tens:
        words += [VIETNAMESE[tens], "mươi"] if tens > 1 else ["mười"]
    elif words and unit:
        words.append("linh")
    if unit == 5 and tens:
        words.append("lăm")
    elif unit == 1 and tens > 1:
        words.append("mốt")
    elif unit or not words:
        words.append(VIETNAMESE[unit])
    return " ".join(words)


class Filler(dict[str, str]):
    """The forms of a word or phrase: English (""), Vietnamese ("vi") and others; `{slot:form}` in a pattern."""

    def __format__(self, form: str) -> str:
        return self[form]


class Pattern(NamedTuple):
    """A sentence in both languages; `key` names the slots whose fillers are held out together."""

    name: str
    key: tuple[str, ...]
    english: str
    vietnamese: str
    is_rare: bool


class Example(NamedTuple):
    """A sentence pair, with its pattern and the combination of fillers that determines its split."""

    pattern: str
    combination: tuple[str, ...]
    english: str
    vietnamese: str


def slots_of(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"{(\w+)", text)))


def kind(slot: str) -> str:
    """Return the kind of fillers that a slot takes: `place` for `place2`."""
    return slot.rstrip("0123456789")


def read() -> tuple[dict[str, list[Filler]], list[Pattern]]:
    """Return the fillers of every slot and the sentence patterns of phrasebook.tsv, which explains its columns."""
    no_number = Filler({"": "{n}", "vi": "{n:vi}"})  # leaves {n} unchanged, for a row with numbers
    fillers, patterns = defaultdict(list, n=[no_number]), []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        slot, english, vietnamese, *rest = line.split("\t")
        notes = dict(note.split(": ", 1) for note in rest[0].split("; ")) if rest else {}
        if slot == "sentence":
            patterns.append(
                Pattern(notes["name"], tuple(notes["held out"].split()), english, vietnamese, "rare" in notes)
            )
            continue
        numbers = [no_number]
        if span := notes.pop("n", ""):
            first, last, step = re.fullmatch(r"(\d+)-(\d+)(?: by (\d+))?", span).groups()
            every = range(int(first), int(last) + 1, int(step or 1))
            numbers = [Filler({"": english_number(each), "vi": vietnamese_number(each)}) for each in every]
        slots = [each for each in slots_of(vietnamese) if each != "n"]
        for number in numbers:
            for choice in itertools.product(*(fillers[kind(each)] for each in slots)):
                # A row whose English is a single slot inherits the forms of its filler.
                inherited = choice[0] if [english] == [f"{{{each}}}" for each in slots] else AGREEMENT
                texts = {**inherited, "": english, "base": english, "vi": vietnamese, **notes}
                parts = dict(zip(slots, choice, strict=True), n=no_number)
                fillers[slot].append(
                    Filler({form: text.format_map(parts).format(n=number) for form, text in texts.items()})
                )
    return fillers, patterns


class Space(NamedTuple):
    """All sentences of a pattern in one split: one choice per group of slots, starting with the held-out slots."""

    pattern: Pattern
    groups: list[tuple[tuple[str, ...], list[tuple[Filler, ...]]]]

    def size(self) -> int:
        return math.prod(len(choices) for _, choices in self.groups)

    def example(self, index: int) -> Example:
        """Return the sentence pair with this index, from 0 to size - 1."""
        chosen: dict[str, Filler] = {}
        for slots, choices in self.groups:
            index, position = divmod(index, len(choices))
            chosen.update(zip(slots, choices[position], strict=True))
        # "an" before a vowel sound
        english = re.sub(r"\ba (?=(?!useful)[aeiou]|honest)", "an ", self.pattern.english.format_map(chosen))
        texts = (
            re.sub(r"(^|[.?!] )(\w)", lambda match: match[1] + match[2].upper(), text)
            for text in (english, self.pattern.vietnamese.format_map(chosen))
        )
        return Example(self.pattern.name, tuple(chosen[slot][""] for slot in self.pattern.key), *texts)


def spaces() -> dict[str, list[Space]]:
    """Distribute the combinations of every pattern over the splits."""
    fillers, patterns = read()

    def choices(slots: Sequence[str]) -> list[tuple[Filler, ...]]:
        """Return every way to fill these slots without using a filler in two slots of the same kind."""
        ways = itertools.product(*(fillers[kind(slot)] for slot in slots))
        return [way for way in ways if len(set(map(id, way))) == len(way)]

    found: dict[str, list[Space]] = {split: [] for split in SPLITS}
    for pattern in patterns:
        others: dict[str, list[str]] = defaultdict(list)
        for slot in slots_of(pattern.english):
            if slot not in pattern.key:
                others[kind(slot)].append(slot)
        groups = [(tuple(slots), choices(slots)) for slots in others.values()]
        combinations = choices(pattern.key)
        # Sorted, because swapping two words does not make a new combination.
        words = [tuple(sorted(filler[""] for filler in each)) for each in combinations]
        order = sorted(set(words), key=lambda each: hashlib.sha256("\t".join([pattern.name, *each]).encode()).digest())
        count = math.ceil(HELD_OUT * len(order))
        held_out = {**dict.fromkeys(order[:count], "test"), **dict.fromkeys(order[count : 2 * count], "valid")}
        for split in SPLITS:
            own = [each for each, key in zip(combinations, words, strict=True) if held_out.get(key, "train") == split]
            found[split].append(Space(pattern, [(pattern.key, own), *groups]))
    return found


def permutation(size: int, generator: random.Random) -> Iterator[int]:
    """Yield 0 ... size - 1 in random order, using memory in proportion to how many of them are drawn."""
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        index = int(generator.random() * (last + 1))  # Python guarantees never to change the sequence of random()
        yield moved.get(index, index)
        moved[index] = moved.pop(last, last)


def draw_split(own: list[Space], size: int, generator: random.Random, seen: tuple[set[str], set[str]]) -> list[Example]:
    """Draw examples from the patterns in turn, skipping sentences in `seen` and adding the new ones to it."""
    order = [own[index] for index in permutation(len(own), generator)]
    streams = {space.pattern: map(space.example, permutation(space.size(), generator)) for space in order}
    examples: list[Example] = []
    for turn in itertools.count():
        for pattern, stream in list(streams.items()):
            if turn % 2 and pattern.is_rare:
                continue
            unseen = (each for each in stream if not (each.english in seen[0] or each.vietnamese in seen[1]))
            if (example := next(unseen, None)) is None:
                del streams[pattern]
                continue
            seen[0].add(example.english)
            seen[1].add(example.vietnamese)
            examples.append(example)
            if len(examples) == size:
                return examples
        if not streams:
            sys.exit(f"phrasebook.py: error: {size} pairs: too many; at most {len(examples)} can be generated")
    raise AssertionError


def draw(seed: int = 1, train: int = 8000, valid: int = 200, test: int = 200) -> dict[str, list[Example]]:
    """Return the examples of each split; those of test and validation do not depend on the number for training."""
    seen: tuple[set[str], set[str]] = (set(), set())
    every, drawn = spaces(), {}
    for split, size in (("test", test), ("valid", valid), ("train", train)):
        generator = random.Random(int.from_bytes(hashlib.sha256(f"{seed} {split}".encode()).digest(), "big"))
        examples = draw_split(every[split], size, generator, seen)
        drawn[split] = [examples[index] for index in permutation(len(examples), generator)]
    return drawn


def write(folder: Path, drawn: dict[str, list[Example]]) -> None:
    """Write the six files; a file that exists with other content is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in drawn.items():
        for language, side in (("en", "english"), ("vi", "vietnamese")):
            path = folder / f"{split}.{language}"
            content = "".join(f"{getattr(each, side)}\n" for each in examples).encode("utf-8")
            if path.exists() and path.read_bytes() != content:
                sys.exit(f"phrasebook.py: error: {path}: exists and is different; remove it or choose another --out")
            partial = path.with_name(f"{path.name}.partial")
            partial.write_bytes(content)
            partial.replace(path)


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description="Write an English-Vietnamese phrasebook as raw text.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random selection (default: %(default)s)")
    for split, size in (("train", 8000), ("valid", 200), ("test", 200)):
        parser.add_argument(f"--{split}", type=int, default=size, metavar="N", help=f"pairs (default: {size})")
    args = parser.parse_args()
    drawn = draw(args.seed, args.train, args.valid, args.test)
    write(args.out, drawn)
    print(f"{args.out}: " + ", ".join(f"{split} {len(drawn[split]):,}" for split in SPLITS) + " pairs")


if __name__ == "__main__":
    main()
