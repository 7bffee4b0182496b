"""BLEU with sacrebleu: which tokeniser fits a language, and the metric itself.

Every BLEU in this package is computed by `metric`, so every score has the same defaults and a signature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

# The tokenisers of sacrebleu that need no downloaded model. Those of Japanese and Korean need another package.
TOKENIZERS = ("13a", "none", "zh", "intl", "char", "ja-mecab", "ko-mecab")
PACKAGES = {"ja-mecab": ("MeCab", "ja"), "ko-mecab": ("mecab_ko", "ko")}  # module, and sacrebleu's extra
# By the first part of a language code, of two letters or three.
LANGUAGES = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}


def default_tokenizer(language: str) -> str:
    """Return sacrebleu's tokeniser for raw text in a language: zh, ja-mecab, ko-mecab, or 13a for all others.

    13a splits at spaces, so a whole Chinese sentence would be one token, and even a perfect translation would score 0.
    """
    return LANGUAGES.get(re.split("[-_]", language.lower())[0], "13a")


def metric(tokenize: str, lowercase: bool = False, smooth: str = "exp") -> Any:
    """Return sacrebleu's BLEU; `tokenize` and `smooth` are names from sacrebleu.

    Raises: ValueError if the tokeniser is not in TOKENIZERS, or naming the package that it needs.
    """
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in TOKENIZERS:
        raise ValueError(f"BLEU tokeniser {tokenize[:40]!r}: must be one of {', '.join(TOKENIZERS)}")
    module, extra = PACKAGES.get(tokenize, ("sacrebleu", ""))
    if find_spec(module) is None:
        raise ValueError(f"BLEU tokeniser {tokenize}: requires another package: pip install 'sacrebleu[{extra}]'")
    # force: text for `none` is tokenised on purpose, so sacrebleu must not warn about it.
    return BLEU(tokenize=tokenize, lowercase=lowercase, smooth_method=smooth, force=tokenize == "none")


def perfect(references: Sequence[str], tokenize: str) -> float:
    """Return the BLEU of a perfect translation: 100, or less if no reference has four tokens."""
    return float(metric(tokenize).corpus_score(references, [references]).score)
