"""An English to Vietnamese phrasebook, generated from a grammar and the words of `lexicon`.

    fairseq-resid prepare phrasebook --out DIR [--seed 1] [--train 8000] [--valid 500] [--test 500]

writes DIR/{train,valid,test}.{en,vi}. In every template the fillers of some slots (its combination: a noun with its
adjective, a verb with its place ...) are dealt once and for all, whatever the seed, to training, validation or test:
a combination of the test set occurs in that template in no training sentence, whatever stands in the other slots.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ...folders.files import partial_of, replacing
from . import lexicon

SPLITS = ("train", "valid", "test")
LANGUAGES = ("en", "vi")
HELD_OUT = 0.1  # share of each template's combinations kept for test, and as much again for validation


def english_number(number: int) -> str:
    """Return a whole number from 0 to 999,999 in English words."""
    _check_number(number)
    if number < 20:
        return lexicon.ENGLISH_UNITS[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return lexicon.ENGLISH_TENS[tens] + (f"-{lexicon.ENGLISH_UNITS[unit]}" if unit else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{lexicon.ENGLISH_UNITS[hundreds]} hundred" + (f" and {english_number(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    words = f"{english_number(thousands)} thousand"
    if not rest:
        return words
    return f"{words} and {english_number(rest)}" if rest < 100 else f"{words} {english_number(rest)}"


def vietnamese_number(number: int) -> str:
    """Return a whole number from 0 to 999,999 in Vietnamese words, as said in the north ("linh", "nghìn")."""
    _check_number(number)
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _vietnamese_below_1000(rest, whole=True)
    words = f"{_vietnamese_below_1000(thousands, whole=True)} nghìn"
    return f"{words} {_vietnamese_below_1000(rest, whole=False)}" if rest else words


def _vietnamese_below_1000(number: int, whole: bool) -> str:
    """Return up to three digits in words; not whole: they follow thousands, so the hundreds are said even when zero."""
    hundreds, rest = divmod(number, 100)
    tens, unit = divmod(rest, 10)
    words = []
    if hundreds or not whole:
        words += [lexicon.VIETNAMESE_UNITS[hundreds], "trăm"]
    if tens > 1:
        words += [lexicon.VIETNAMESE_UNITS[tens], "mươi"]
    elif tens == 1:
        words.append("mười")
    elif words and unit:
        words.append("linh")
    if unit == 5 and tens:
        words.append("lăm")
    elif unit == 1 and tens > 1:
        words.append("mốt")
    elif unit or not words:
        words.append(lexicon.VIETNAMESE_UNITS[unit])
    return " ".join(words)


def _check_number(number: int) -> None:
    if not 0 <= number <= 999_999:
        raise ValueError(f"{number}: numbers are spelled from 0 to 999999")


class Entry:
    """A filler of a slot: its English, its Vietnamese (form `vi`), and the other forms a pattern may ask for."""

    __slots__ = ("english", "forms")

    def __init__(self, english: str, vietnamese: str, **forms: str) -> None:
        self.english = english
        self.forms = {"": english, "vi": vietnamese, **forms}

    def __format__(self, form: str) -> str:
        return self.forms[form]


class Example(NamedTuple):
    """A sentence pair, with the template and the combination of fillers that decided its split."""

    template: str
    combination: tuple[str, ...]
    english: str
    vietnamese: str


class Template(NamedTuple):
    """A sentence pattern in both languages; `key` names the slots whose fillers together are held out."""

    name: str
    key: tuple[str, ...]
    english: str
    vietnamese: str

    @property
    def slots(self) -> list[str]:
        """The slots of the English pattern, in order and once each."""
        return list(dict.fromkeys(re.findall(r"{(\w+)", self.english)))

    def render(self, fillers: Mapping[str, Entry]) -> tuple[str, str]:
        """Return the English and the Vietnamese sentence with these fillers, by slot."""
        english = _articles(self.english.format_map(fillers))
        return _sentence(english), _sentence(self.vietnamese.format_map(fillers))


def _plain(words: Iterable[tuple[str, str]]) -> list[Entry]:
    return [Entry(english, vietnamese) for english, vietnamese in words]


def _verbs(words: Iterable[tuple[str, str, str, str, str, str, str]]) -> list[Entry]:
    entries = []
    for base, third, past, participle, ing, rest, vietnamese in words:
        forms = {"base": base, "third": third, "past": past, "participle": participle, "ing": ing}
        entries.append(Entry(base + rest, vietnamese, **{form: word + rest for form, word in forms.items()}))
    return entries


def _nouns(words: Iterable[tuple[str, str, str]]) -> list[Entry]:
    return [Entry(singular, vietnamese, plural=plural) for singular, plural, vietnamese in words]


def _described(nouns: Iterable[tuple[str, str, str]], adjectives: Sequence[tuple[str, str]]) -> list[Entry]:
    """Return every noun with every adjective; Vietnamese puts the adjective last."""
    return [
        Entry(f"{adjective} {singular}", f"{vietnamese} {vietnamese_adjective}", plural=f"{adjective} {plural}")
        for singular, plural, vietnamese in nouns
        for adjective, vietnamese_adjective in adjectives
    ]


def _person(english: str, vietnamese: str, third: bool = True, be: str = "is", was: str = "was") -> Entry:
    """Return a subject, with the verb forms that agree with it."""
    return Entry(
        english,
        vietnamese,
        present="third" if third else "base",
        be=be,
        was=was,
        do="does" if third else "do",
        have="has" if third else "have",
    )


def _relatives(owners: Iterable[tuple[str, str]]) -> list[Entry]:
    return [
        _person(f"{determiner} {kin}", f"{vietnamese_kin} của {owner}")
        for determiner, owner in owners
        for kin, vietnamese_kin in lexicon.KIN
    ]


def _numbers(numbers: Iterable[int]) -> list[Entry]:
    return [Entry(english_number(number), vietnamese_number(number)) for number in numbers]


def _spans(english: str, vietnamese: str) -> list[Entry]:
    return [
        Entry(
            english.format(span=f"{english_number(number)} {unit}"),
            vietnamese.format(span=f"{vietnamese_number(number)} {vietnamese_unit}"),
        )
        for unit, vietnamese_unit in lexicon.SPANS
        for number in (2, 3, 4)
    ]


def _weekdays(english: str, vietnamese: str) -> list[Entry]:
    return [Entry(english.format(day=day), vietnamese.format(day=word)) for day, word in lexicon.DAYS]


def _hours(hours: Iterable[int]) -> list[Entry]:
    """Return the clock times of these hours, every five or ten minutes."""
    return [
        Entry(english.format(hour=english_number(hour)), vietnamese.format(hour=vietnamese_number(hour)))
        for hour in hours
        for english, vietnamese in lexicon.MINUTES
    ]


def _clock() -> list[Entry]:
    return [
        Entry(f"{hour} {period}", f"{hour:vi} {vietnamese_period}")
        for period, vietnamese_period, hours in lexicon.CLOCK_PERIODS
        for hour in _hours(hours)
    ]


@lru_cache(maxsize=1)
def pools() -> dict[str, list[Entry]]:
    """Return the fillers of every slot."""
    pronouns = [_person(en, vi, third, be, was) for en, third, be, was, vi in lexicon.PRONOUNS]
    mine, yours = _relatives(lexicon.OWNERS_OF_SUBJECTS), _relatives(lexicon.OWNERS_OF_COMPANIONS)
    names = [_person(en, vi) for en, vi in lexicon.NAMES]
    owners = lexicon.OWNERS_OF_SUBJECTS + lexicon.OWNERS_OF_COMPANIONS
    things = _described(lexicon.THINGS, lexicon.ADJECTIVES_OF_THINGS)
    goods = (
        things
        + _described(lexicon.TEXTS, lexicon.ADJECTIVES_OF_TEXTS)
        + _described(lexicon.FRUITS, lexicon.ADJECTIVES_OF_FRUITS)
    )
    animals = _described(lexicon.ANIMALS, lexicon.ADJECTIVES_OF_ANIMALS)
    return {
        "pronoun": pronouns,
        "subject": pronouns + names + mine + [_person(f"the {en}", vi) for en, vi in lexicon.JOBS],
        "companion": yours,
        "kin": mine,
        "kin_noun": _plain(lexicon.KIN),
        "relative": mine + yours,
        "owner": [Entry(en, f"của {vi}") for en, vi in owners + tuple((f"{en}'s", vi) for en, vi in lexicon.NAMES)],
        "possessive": [Entry(en, f"của {vi}") for en, vi in lexicon.POSSESSIVES],
        "object": _plain(lexicon.OBJECTS),
        "name": names,
        "job": _plain(lexicon.JOBS),
        "trait": _plain(lexicon.TRAITS),
        "quality": _plain(lexicon.QUALITIES),
        "feeling": _plain(lexicon.FEELINGS),
        "mood": _plain(lexicon.MOODS_OF_ANIMALS),
        "goods": goods,
        "animal": animals,
        "thing": goods + animals,
        "folk": _described(lexicon.FOLK, lexicon.ADJECTIVES_OF_FOLK),
        "beast": _nouns(lexicon.ANIMALS),
        "coat": _plain(lexicon.ADJECTIVES_OF_ANIMALS),
        "article": _nouns(lexicon.THINGS),
        "colour": _plain(lexicon.ADJECTIVES_OF_THINGS),
        "worth": _plain(lexicon.WORTHS),
        "comparison": _plain(lexicon.COMPARISONS_OF_THINGS),
        "food": _plain(lexicon.FOODS),
        "portion": _plain(lexicon.PORTIONS),
        "place": _plain(lexicon.PLACES),
        "size": _plain(lexicon.SIZES_OF_PLACES),
        "relation": _plain(lexicon.RELATIONS_OF_PLACES),
        "spot": _plain(lexicon.SPOTS),
        "city": _plain(lexicon.CITIES),
        "weather": _plain(lexicon.WEATHERS),
        "ride": _plain(lexicon.RIDES),
        "trip": _plain(lexicon.TRIPS),
        "event": _plain(lexicon.EVENTS),
        "deal": _verbs(lexicon.DEALS),
        "favour": _verbs(lexicon.FAVOURS),
        "use": _verbs(lexicon.USES_OF_FOOD),
        "wish": _verbs(lexicon.WISHES),
        "activity": _verbs(lexicon.ACTIVITIES),
        "day": _plain(lexicon.DAYS),
        "past": _plain(lexicon.PAST_TIMES)
        + _weekdays("last {day}", "{day} tuần trước")
        + _spans("{span} ago", "{span} trước"),
        "future": _plain(lexicon.FUTURE_TIMES)
        + _weekdays("next {day}", "{day} tuần sau")
        + _spans("in {span}", "{span} nữa"),
        "present": _plain(lexicon.PRESENT_TIMES),
        "repeated": _plain(lexicon.REPEATED_TIMES) + _weekdays("every {day}", "mỗi {day}"),
        "frequency": _plain(lexicon.FREQUENCIES),
        "part": _plain(lexicon.PARTS_OF_DAY),
        "clock": _clock(),
        "hour": _hours(range(1, 13)),
        "this": _plain(lexicon.THIS_THAT),
        "these": _plain(lexicon.THESE_THOSE),
        "count": _numbers(range(2, 21)),
        "number": _numbers(range(11, 61)),
        "age": _numbers(range(18, 61)),
        "price": _numbers(range(5_000, 1_000_000, 5_000)),
    }


def templates() -> list[Template]:
    """Return every sentence pattern of the lexicon."""
    return [Template(name, tuple(key.split()), en, vi) for name, key, en, vi in lexicon.TEMPLATES]


class _Space(NamedTuple):
    """The sentences of one template in one split: a combination, then one choice from every group of other slots."""

    template: Template
    combinations: list[tuple[Entry, ...]]
    groups: list[tuple[tuple[str, ...], list[tuple[Entry, ...]]]]

    def size(self) -> int:
        return len(self.combinations) * math.prod(len(choices) for _, choices in self.groups)

    def example(self, index: int) -> Example:
        """Return the sentence pair of this number, from 0 to size - 1."""
        index, position = divmod(index, len(self.combinations))
        combination = self.combinations[position]
        fillers = dict(zip(self.template.key, combination, strict=True))
        for slots, choices in self.groups:
            index, position = divmod(index, len(choices))
            fillers.update(zip(slots, choices[position], strict=True))
        return Example(
            self.template.name,
            tuple(entry.english for entry in combination),
            *self.template.render(fillers),
        )


def _articles(english: str) -> str:
    """Turn "a" into "an" if the next word begins with the sound of a vowel."""
    return re.sub(r"\ba (?=(?!useful)[aeiou]|honest)", "an ", english)


def _sentence(text: str) -> str:
    """Capitalise the first letter of every sentence of a line."""
    return re.sub(r"(^|[.?!] )(\w)", lambda match: match[1] + match[2].upper(), text)


def _choices(slots: Sequence[str]) -> list[tuple[Entry, ...]]:
    """Return every way to fill these slots, two slots of one kind never with the same filler."""
    kinds = [_kind(slot) for slot in slots]
    ways = itertools.product(*(pools()[kind] for kind in kinds))
    repeated = len(set(kinds)) < len(kinds)
    return [way for way in ways if not repeated or len({id(entry) for entry in way}) == len(way)]


def _kind(slot: str) -> str:
    return slot.rstrip("0123456789")


@lru_cache(maxsize=1)
def _spaces() -> dict[str, list[_Space]]:
    """Deal every template's combinations to the splits."""
    spaces: dict[str, list[_Space]] = {split: [] for split in SPLITS}
    for template in templates():
        others = [slot for slot in template.slots if slot not in template.key]
        kinds = dict.fromkeys(_kind(slot) for slot in others)
        slot_groups = [tuple(slot for slot in others if _kind(slot) == kind) for kind in kinds]
        groups = [(slots, _choices(slots)) for slots in slot_groups]
        combinations = _choices(template.key)
        held_out = _held_out(template.name, {_words(combination) for combination in combinations})
        for split in SPLITS:
            dealt = [entries for entries in combinations if held_out.get(_words(entries), "train") == split]
            spaces[split].append(_Space(template, dealt, groups))
    return spaces


def _words(combination: tuple[Entry, ...]) -> tuple[str, ...]:
    """Return the English of a combination whatever its order: two words swapped make no new combination."""
    return tuple(sorted(entry.english for entry in combination))


def _held_out(template: str, combinations: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return the split of the combinations that are not for training: those first in the order of their digests."""

    def digest(words: tuple[str, ...]) -> bytes:
        return hashlib.sha256("\t".join([template, *words]).encode()).digest()

    order = sorted(combinations, key=digest)
    count = math.ceil(HELD_OUT * len(order))
    return {**dict.fromkeys(order[:count], "test"), **dict.fromkeys(order[count : 2 * count], "valid")}


def capacity() -> dict[str, int]:
    """Return how many pairs the grammar holds for each split."""
    return {split: sum(space.size() for space in spaces) for split, spaces in _spaces().items()}


def _below(generator: random.Random, bound: int) -> int:
    # random() is the one method whose numbers Python promises never to change
    return int(generator.random() * bound)


def _permutation(size: int, generator: random.Random) -> Iterator[int]:
    """Yield 0 ... size - 1 in random order, in memory that grows only with the numbers taken."""
    moved: dict[int, int] = {}
    for last in range(size - 1, -1, -1):
        index = _below(generator, last + 1)
        yield moved.get(index, index)
        moved[index] = moved.pop(last, last)


def draw(seed: int = 1, train: int = 8000, valid: int = 500, test: int = 500) -> dict[str, list[Example]]:
    """Return the examples of each split, the templates in turn as long as each holds enough.

    Test and validation examples do not depend on the number of training pairs.

    Raises: ValueError if a size is not positive, or larger than the grammar.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    for split, held in capacity().items():
        if sizes[split] < 1:
            raise ValueError(f"{split}: {sizes[split]} pairs asked for, at least 1 is needed")
        if sizes[split] > held:
            raise ValueError(f"{split}: {sizes[split]} pairs asked for, the grammar holds {held}")
    seen: tuple[set[str], set[str]] = (set(), set())
    drawn = {}
    for split in ("test", "valid", "train"):
        state = hashlib.sha256(f"{seed} {split}".encode()).digest()
        generator = random.Random(int.from_bytes(state, "big"))
        examples = _draw_split(_spaces()[split], sizes[split], generator, seen)
        if len(examples) < sizes[split]:
            raise ValueError(f"{split}: {sizes[split]} pairs asked for, the grammar holds {len(examples)}")
        drawn[split] = [examples[index] for index in _permutation(len(examples), generator)]
    return {split: drawn[split] for split in SPLITS}


def _draw_split(
    spaces: list[_Space], size: int, generator: random.Random, seen: tuple[set[str], set[str]]
) -> list[Example]:
    """Take examples from the templates in turn, passing over sentences already in `seen`, which grows."""
    order = [spaces[index] for index in _permutation(len(spaces), generator)]
    streams = {space.template.name: map(space.example, _permutation(space.size(), generator)) for space in order}
    examples: list[Example] = []
    for turn in itertools.count():
        for name in list(streams):
            if turn % 2 and name in lexicon.RARE_TEMPLATES:
                continue
            example = next(
                (item for item in streams[name] if not (item.english in seen[0] or item.vietnamese in seen[1])), None
            )
            if example is None:
                del streams[name]
                continue
            seen[0].add(example.english)
            seen[1].add(example.vietnamese)
            examples.append(example)
            if len(examples) == size:
                return examples
        if not streams:
            break
    return examples


def generate(seed: int = 1, train: int = 8000, valid: int = 500, test: int = 500) -> dict[str, list[tuple[str, str]]]:
    """Return the (English, Vietnamese) pairs of train, valid and test.

    Raises: ValueError if a size is not positive, or larger than the grammar.
    """
    drawn = draw(seed, train, valid, test)
    return {split: [(item.english, item.vietnamese) for item in examples] for split, examples in drawn.items()}


def files(pairs: dict[str, list[tuple[str, str]]]) -> dict[str, bytes]:
    """Return the content of each file of the corpus, by name: UTF-8, LF, one sentence a line."""
    return {
        f"{split}.{language}": "".join(f"{pair[side]}\n" for pair in pairs[split]).encode("utf-8")
        for split in SPLITS
        for side, language in enumerate(LANGUAGES)
    }


def write(folder: Path, contents: dict[str, bytes]) -> bool:
    """Write the files into a new folder, all or none; leave it alone if it holds them already.

    Returns: whether anything was written.
    Raises: ValueError if the folder, or its .partial, holds something else.
    """
    if folder.exists() or folder.is_symlink():
        if not folder.is_dir():
            raise ValueError(f"{folder}: exists and is not a folder")
        names = sorted(path.name for path in folder.iterdir())
        if names == sorted(contents) and all(
            (folder / name).is_file() and (folder / name).read_bytes() == content for name, content in contents.items()
        ):
            return False
        if names:
            raise ValueError(f"{folder}: exists with other content; name another folder or remove it")
    left = partial_of(folder)
    if left.exists() or left.is_symlink():
        # A run that was stopped leaves some of our files. Anything else is the user's.
        if left.is_symlink() or not left.is_dir() or {path.name for path in left.iterdir()} - set(contents):
            raise ValueError(f"{left}: in the way, and not left by this command; remove it first")
        shutil.rmtree(left)
    with replacing(folder) as partial:
        partial.mkdir(parents=True)
        for name, content in contents.items():
            (partial / name).write_bytes(content)
    return True
