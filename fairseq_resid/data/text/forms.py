"""Conversion between the text of a corpus and the model's text (before segmentation), with one `TextForm` per language.

    form        to the model                                   back to the text that is scored
    plain       unchanged                                      unchanged
    moses       Moses punctuation normalisation (optional),    Moses detokenisation
                Moses tokenisation without escapes
    escaped     for text that was tokenised and escaped by     escaped again
                Moses: &quot; &apos; &amp; ... become characters
    lowercased  Moses punctuation normalisation, lower case,   unchanged: the tokens are scored against the reference
                Moses tokenisation with escapes                prepared in the same way

For the model, every white-space character becomes a plain space, because fairseq splits at all of them, even at a
no-break space or U+2028 within a piece. DATA/corpus.json records the form, so that decoding can reverse the conversion.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

Form = Literal["plain", "moses", "escaped", "lowercased"]
TOKENISED = ("escaped", "lowercased")  # scored on their own tokens
Normalize = Literal["none", "source", "both"]  # sides with punctuation normalisation
WHITE_SPACE = re.compile(r"[^\S ]")

# The escapes of Moses' escape-special-chars.perl in its order: & first, so that the others are not escaped twice.
ESCAPES = {
    "&": "&amp;",
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "[": "&#91;",
    "]": "&#93;",
}

# fairseq's special symbols, which must not occur in text. sentencepiece turns a run of unknown characters into one
# subword without changing it.
SPECIAL = frozenset(("<s>", "<pad>", "</s>"))


def is_blank(line: str) -> bool:
    """Return whether a line shows nothing: it has only white space, control characters and zero-width characters."""
    return all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in line)


def plain_words(subwords: Iterable[str]) -> list[str]:
    """Return subwords for fairseq, with <unk> for unknown characters that spell one of its special symbols."""
    return ["<unk>" if subword in SPECIAL else subword for subword in subwords]


@lru_cache
def _moses(tool: str, language: str, **settings: bool) -> Any:
    """Return a tool of sacremoses; each is made once, because compiling its patterns takes time."""
    return getattr(import_module("sacremoses"), f"Moses{tool}")(language, **settings)


def escape(line: str) -> str:
    """Return a tokenised line with Moses' eight escapes, like the output of its tokenizer.perl."""
    for character, entity in ESCAPES.items():
        line = line.replace(character, entity)
    return line


def unescape(line: str) -> str:
    """Return a line with Moses' escapes undone once: `&amp;quot;` becomes `&quot;`."""
    for character, entity in reversed(ESCAPES.items()):
        line = line.replace(entity, character)
    return line


@dataclass(frozen=True)
class TextForm:
    """The conversion of one language's text to the form that the model uses, and back.

    normalize: Moses punctuation normalisation; split_hyphens: well-known becomes well @-@ known; `restore` reverses it.
    Both only have an effect in the form "moses".
    """

    language: str
    form: Form = "plain"
    normalize: bool = False
    split_hyphens: bool = False

    @classmethod
    def of_sides(
        cls, source: str, target: str, form: Form, normalize: Normalize, split_hyphens: bool = False
    ) -> dict[str, TextForm]:
        """Return the forms of both languages."""
        return {
            source: cls(source, form, normalize != "none", split_hyphens),
            target: cls(target, form, normalize == "both", split_hyphens),
        }

    def to_model(self, line: str) -> str:
        """Convert a line of the corpus to the text that is segmented into subwords."""
        if self.form == "escaped":
            line = unescape(line)
        if self.form == "lowercased":
            # One pattern of the normaliser, for a quotation mark after a full stop, needs the line end.
            line = _moses("PunctNormalizer", self.language).normalize(f"{line}\n").lower()
            line = _moses("Tokenizer", self.language).tokenize(line, return_str=True, escape=True)
        if self.form == "moses":
            if self.normalize:
                # The normaliser deletes soft hyphens, zero-width marks and other non-printing characters, even if they
                # separate two words.
                normalizer = _moses("PunctNormalizer", self.language, post_remove_control_chars=True)
                line = normalizer.normalize(line.replace("\t", " ").replace("\u200b", " "))
            line = _moses("Tokenizer", self.language).tokenize(
                line, return_str=True, escape=False, aggressive_dash_splits=self.split_hyphens
            )
        return WHITE_SPACE.sub(" ", line)

    def restore(self, line: str) -> str:
        """Convert a decoded line, with its pieces joined, to the form that is scored."""
        if self.form == "escaped":
            return escape(line)
        if self.form == "moses":
            return _moses("Detokenizer", self.language).detokenize(line.split(), unescape=False)
        return line

    def to_raw(self, line: str) -> str:
        """Convert a decoded line to the form of the raw text of the corpus; lower-cased text stays lower-cased."""
        return self.plain(line) if self.form == "lowercased" else self.restore(line)

    def reference(self, line: str) -> str:
        """Convert a line of the original reference text to the form that is scored."""
        return self.to_model(line) if self.form == "lowercased" else line

    def plain(self, line: str) -> str:
        """Convert a line from the form that is scored to plain text without tokenisation or escapes."""
        if self.form in TOKENISED:
            return _moses("Detokenizer", self.language).detokenize(unescape(line).split(), unescape=False)
        return line
