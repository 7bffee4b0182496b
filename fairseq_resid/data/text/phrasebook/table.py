"""Read and check the words and sentence patterns of the phrasebook, phrasebook.tsv.

The comment at the top of phrasebook.tsv explains its columns.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ....files import read_lines
from .numbers import english_number, vietnamese_number

PATH = Path(__file__).with_name("phrasebook.tsv")
AGREEMENT = {"present": "third", "be": "is", "was": "was", "do": "does", "have": "has"}  # verb forms after "he"
REFERENCE = re.compile(r"{(\w+)(?::(\w+|{\w+:\w+}))?}")  # {place}, {place:vi}, {deal:{subject:present}}
NUMBERS = re.compile(r"(\d{1,6})-(\d{1,6})(?: by ([1-9]\d*))?")


@dataclass(frozen=True, eq=False)
class Filler:
    """A word or phrase that fills a slot: English (form ""), Vietnamese (form "vi") and further forms."""

    forms: Mapping[str, str]

    @property
    def english(self) -> str:
        return self.forms[""]

    def __format__(self, form: str) -> str:
        return self.forms[form]


ANY_NUMBER = Filler({"": "{n}", "vi": "{n:vi}"})  # leaves {n} unchanged, for a row with numbers


class Template(NamedTuple):
    """A sentence pattern in both languages; `key` names the slots whose combined fillers are held out."""

    name: str
    key: tuple[str, ...]
    english: str
    vietnamese: str
    is_rare: bool

    @property
    def slots(self) -> list[str]:
        """The slots of the English pattern in order, without repetitions."""
        return list(dict.fromkeys(re.findall(r"{(\w+)", self.english)))

    def render(self, fillers: Mapping[str, Filler]) -> tuple[str, str]:
        """Return the English and the Vietnamese sentence for these fillers, given by slot."""
        english = self.english.format_map(fillers)
        # Use "an" before a vowel sound.
        english = re.sub(r"\ba (?=(?!useful)[aeiou]|honest)", "an ", english)
        return _capitalised(english), _capitalised(self.vietnamese.format_map(fillers))


def kind(slot: str) -> str:
    """Return the kind of fillers that a slot takes: `place` for `place2`."""
    return slot.rstrip("0123456789")


@dataclass
class Table:
    """The fillers of every slot, and the sentences, in the order of their rows."""

    fillers: dict[str, list[Filler]] = field(default_factory=lambda: {"n": [ANY_NUMBER]})
    sentences: list[Template] = field(default_factory=list)
    used: set[str] = field(default_factory=lambda: {"n"})

    def add(self, columns: list[str]) -> str:
        """Add a row, and return its slot.

        Raises: ValueError describing the problem with the row.
        """
        if len(columns) not in (3, 4):
            raise ValueError(f"{len(columns)} columns: a row must have 3 or 4, separated by tabs")
        for column in columns:
            if not column or column != " ".join(column.split()):
                raise ValueError(f"column {column!r}: empty or has extra spaces")
        slot, english, vietnamese, *rest = columns
        if not re.fullmatch("[a-z_]+", slot):
            raise ValueError(f"slot {slot!r}: invalid name; only lower-case letters and _ are allowed")
        if not english.isascii():
            raise ValueError(f"{english!r}: not ASCII; the English must be ASCII")
        if slot in self.used:
            raise ValueError(f"slot {slot!r}: already used by a row above; move this row before it")
        notes = _notes(rest[0]) if rest else {}
        if slot == "sentence":
            self._add_sentence(english, vietnamese, notes)
        else:
            self._add_fillers(slot, english, vietnamese, notes)
        return slot

    def _add_sentence(self, english: str, vietnamese: str, notes: dict[str, str]) -> None:
        slots = self._check_pattern(english, vietnamese)
        for slot in slots:
            for filler in self.fillers[kind(slot)]:
                if "{" in filler.english:
                    raise ValueError(f"{{{slot}}}: {filler.english!r} needs a number")
        if not {"name", "held out"} <= set(notes) <= {"name", "held out", "rare"} or notes.get("rare", "yes") != "yes":
            raise ValueError("invalid notes: a sentence has `name: NAME`, `held out: SLOTS` and optionally `rare: yes`")
        name, key = notes["name"], tuple(notes["held out"].split())
        if name in [template.name for template in self.sentences]:
            raise ValueError(f"name {name!r}: already used by a row above")
        if len(set(key)) < len(key) or not set(key) <= set(slots):
            raise ValueError(f"held out {' '.join(key)!r}: must be slots of the sentence, without repetitions")
        self.sentences.append(Template(name, key, english, vietnamese, "rare" in notes))

    def _add_fillers(self, slot: str, english: str, vietnamese: str, notes: dict[str, str]) -> None:
        numbers: Iterable[int | None] = _numbers(notes.pop("n")) if "n" in notes else [None]
        slots = self._check_pattern(english, vietnamese, *notes.values())
        is_copy = [english] == [f"{{{each}}}" for each in slots]
        known = self.fillers.setdefault(slot, [])
        for number in numbers:
            n = ANY_NUMBER
            if number is not None:
                n = Filler({"": english_number(number), "vi": vietnamese_number(number)})
            for choice in itertools.product(*(self.fillers[kind(each)] for each in slots)):
                inherited = choice[0].forms if is_copy else AGREEMENT
                texts = {**inherited, "": english, "base": english, "vi": vietnamese, **notes}
                parts = dict(zip(slots, choice, strict=True), n=ANY_NUMBER)
                known.append(Filler({form: text.format_map(parts).format(n=n) for form, text in texts.items()}))
        for form in ("", "vi"):
            ((text, times),) = Counter(filler.forms[form] for filler in known).most_common(1)
            if times > 1:
                raise ValueError(f"{text!r}: fills {slot!r} twice")

    def _check_pattern(self, english: str, vietnamese: str, *forms: str) -> list[str]:
        """Check the slots of a row; return those of its Vietnamese side except {n}, without repetitions."""
        for text in (english, vietnamese, *forms):
            if re.search("[{}]", REFERENCE.sub("", text)):
                raise ValueError(f"{text!r}: invalid slot; slots are written {{slot}} or {{slot:form}}")
            for slot, form in REFERENCE.findall(text):
                self._check_forms(slot, form)
        slots, *others = [list(dict.fromkeys(re.findall(r"{(\w+)", text))) for text in (english, vietnamese, *forms)]
        if set(slots) != set(others[0]) or not all(set(slots) >= set(each) for each in others):
            raise ValueError(
                f"different slots: the English has {_listed(slots)}, the rest has {' or '.join(map(_listed, others))}"
            )
        wrong = [slot for slot, form in REFERENCE.findall(vietnamese) if form != "vi"]
        if wrong:
            raise ValueError(f"{{{wrong[0]}}}: the Vietnamese needs {{{wrong[0]}:vi}}")
        return [slot for slot in others[0] if slot != "n"]

    def _check_forms(self, slot: str, form: str) -> set[str]:
        """Check that every filler of a slot has this form; return the texts of the form."""
        fillers = self.fillers.get(kind(slot))
        if fillers is None:
            raise ValueError(f"{{{slot}}}: no row above fills it")
        self.used.add(kind(slot))
        chosen = REFERENCE.fullmatch(form)  # {deal:{subject:present}}
        forms = self._check_forms(chosen[1], chosen[2]) if chosen else {form}
        for filler, each in itertools.product(fillers, forms):
            if each not in filler.forms:
                raise ValueError(f"{{{slot}:{form}}}: {filler.english!r} has no form {each!r}")
        return {filler.forms[each] for filler in fillers for each in forms}


def read(path: Path = PATH) -> Table:
    """Read a table.

    Raises: ValueError naming the file, the line and the problem.
    """
    table = Table()
    lines: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line or line.startswith("#"):
            continue
        try:
            lines.setdefault(table.add(line.split("\t")), number)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    for slot, number in lines.items():
        if slot not in table.used | {"sentence"}:
            raise ValueError(f"{path}:{number}: slot {slot!r}: no row below uses it")
    return table


def _notes(text: str) -> dict[str, str]:
    """Return the notes of a row, by name."""
    notes: dict[str, str] = {}
    for note in text.split("; "):
        name, _, value = note.partition(": ")
        if not value or name in notes or name in ("vi", ""):
            raise ValueError(
                f"{note!r}: invalid note; notes are NAME: TEXT, separated by semicolons, with unique names"
            )
        notes[name] = value
    return notes


def _numbers(text: str) -> Iterable[int]:
    match = NUMBERS.fullmatch(text)
    numbers = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)) if match else range(0)
    if not numbers:
        raise ValueError(f"n: {text!r}: must be FIRST-LAST or FIRST-LAST by STEP")
    return numbers


def _listed(slots: list[str]) -> str:
    return " ".join(f"{{{slot}}}" for slot in slots) or "no slot"


def _capitalised(text: str) -> str:
    """Capitalise the first letter of every sentence of a line."""
    return re.sub(r"(^|[.?!] )(\w)", lambda match: match[1] + match[2].upper(), text)
