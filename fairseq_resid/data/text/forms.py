"""Between a corpus' own text and the text that is cut into subwords: one `TextForm` per language, both ways.

    form        to the model                                   back to the text that is scored
    plain       unchanged                                      unchanged
    moses       Moses punctuation normalisation (optional),    Moses detokenisation
                Moses tokenisation without escapes
    escaped     for text that was tokenised and escaped by     the escapes put back
                Moses: &quot; &apos; &amp; ... become characters
    lowercased  Moses punctuation normalisation, lower case,   unchanged: the tokens are scored, against the reference
                Moses tokenisation with escapes                that was prepared in the same way

On the way to the model every white space is made a plain space: fairseq parts pieces at all of them, a no-break space
or U+2028 within a piece too. DATA/corpus.json names the form, so that whoever decodes restores text the way preparation
took it apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

FORMS = ("plain", "moses", "escaped", "lowercased")
TOKENISED = ("escaped", "lowercased")  # scored by their own tokens
NORMALIZE = ("none", "source", "both")  # which sides' punctuation is normalised
WHITE_SPACE = re.compile(r"[^\S ]")

# What Moses' escape-special-chars.perl writes, in its order: & first, or the others would be escaped twice.
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

# fairseq's own words, which text must not write. A run of unknown characters is a subword as it stands.
SPECIAL = frozenset(("<s>", "<pad>", "</s>"))


def plain_words(subwords: Iterable[str]) -> list[str]:
    """Return subwords of text for fairseq: unknown characters that read as one of its own words are <unk>."""
    return ["<unk>" if subword in SPECIAL else subword for subword in subwords]


@lru_cache
def _tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer

    return MosesTokenizer(language)


@lru_cache
def _detokenizer(language: str) -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(language)


@lru_cache
def _plain_normalizer(language: str) -> Any:
    from sacremoses import MosesPunctNormalizer

    return MosesPunctNormalizer(language)


@lru_cache
def _normalizer(language: str) -> Any:
    from sacremoses import MosesPunctNormalizer

    # Also removes soft hyphens, zero-width marks and the like.
    return MosesPunctNormalizer(language, post_remove_control_chars=True)


def escape(line: str) -> str:
    """Return a tokenised line with Moses' eight escapes, as its tokenizer.perl writes it."""
    for character, entity in ESCAPES.items():
        line = line.replace(character, entity)
    return line


def unescape(line: str) -> str:
    """Return a line without Moses' escapes, undone once: `&amp;quot;` becomes `&quot;`."""
    for character, entity in reversed(ESCAPES.items()):
        line = line.replace(entity, character)
    return line


@dataclass(frozen=True)
class TextForm:
    """How one language's text is taken to the model and back.

    normalize: Moses punctuation normalisation; split_hyphens: well-known becomes well @-@ known, and comes back
    Raises: ValueError for a form that is none of FORMS, or an option of text that is not tokenised here.
    """

    language: str
    form: str = "plain"
    normalize: bool = False
    split_hyphens: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form {self.form!r}: must be one of {', '.join(FORMS)}")
        if self.normalize and self.form != "moses":
            raise ValueError(f"form {self.form!r} cannot be normalised; only 'moses' can")
        if self.split_hyphens and self.form != "moses":
            raise ValueError(f"form {self.form!r}: hyphens can only be split in form 'moses'")

    @classmethod
    def of_sides(
        cls, source: str, target: str, form: str, normalize: str, split_hyphens: bool = False
    ) -> dict[str, TextForm]:
        """Return the forms of both languages.

        Raises: ValueError for what is none of FORMS or NORMALIZE, or if they exclude each other.
        """
        if normalize not in NORMALIZE:
            raise ValueError(f"normalize {normalize!r}: must be one of {', '.join(NORMALIZE)}")
        return {
            source: cls(source, form, normalize != "none", split_hyphens),
            target: cls(target, form, normalize == "both", split_hyphens),
        }

    def to_model(self, line: str) -> str:
        """Return a line of the corpus as it is cut into subwords."""
        if self.form == "escaped":
            line = unescape(line)
        if self.form == "lowercased":
            # One of the normaliser's patterns, for a quotation mark after a full stop, looks for the end of the line.
            line = _plain_normalizer(self.language).normalize(f"{line}\n").lower()
            line = _tokenizer(self.language).tokenize(line, return_str=True, escape=True)
        if self.form == "moses":
            if self.normalize:
                # The normaliser deletes what does not print, also where it parts two words.
                line = _normalizer(self.language).normalize(line.replace("\t", " ").replace("\u200b", " "))
            line = _tokenizer(self.language).tokenize(
                line, return_str=True, escape=False, aggressive_dash_splits=self.split_hyphens
            )
        return WHITE_SPACE.sub(" ", line)

    def restore(self, line: str) -> str:
        """Return a decoded line (its pieces joined) in the form that is scored."""
        if self.form == "escaped":
            return escape(line)
        if self.form == "moses":
            return _detokenizer(self.language).detokenize(line.split(), unescape=False)
        return line

    def to_raw(self, line: str) -> str:
        """Return a decoded line in the form of the corpus' raw text; what was lower-cased stays lower-cased."""
        return self.plain(line) if self.form == "lowercased" else self.restore(line)

    def reference(self, line: str) -> str:
        """Return a line of the untouched reference text in the form that is scored."""
        return self.to_model(line) if self.form == "lowercased" else line

    def plain(self, line: str) -> str:
        """Return a line in the form that is scored as plain text, without tokenisation and escapes."""
        if self.form in TOKENISED:
            return _detokenizer(self.language).detokenize(unescape(line).split(), unescape=False)
        return line
