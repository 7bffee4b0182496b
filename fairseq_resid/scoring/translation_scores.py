"""sacrebleu scores against the original reference text, always with their signature."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..data.text.bleu import default_tokenizer, metric
from ..data.text.forms import TOKENISED, TextForm
from ..runs.run import Scored

# "rich-text format" becomes "rich ##AT##-##AT## text format". EN-DE papers since Luong et al. 2015 usually score
# this way, and so does tensor2tensor's get_ende_bleu.sh.
COMPOUND = re.compile(r"(\S)-(\S)")


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
    smooth: str = "exp",
) -> Scored:
    """Score hypotheses against one reference each; `tokenize` and `smooth` are names from sacrebleu.

    Raises: ValueError if there are no sentences, if the number of hypotheses is not the number of references, or if the
    tokeniser is unknown or requires a package that is missing.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references: must be equal and at least 1")
    measured = metric(tokenize, lowercase, smooth)
    score = measured.corpus_score(hypotheses, [references])
    return Scored(score.score, measured.get_signature().format())


def statistics(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> list[list[int]]:
    """Return the BLEU counts of each sentence: both lengths, then matched n-grams and all n-grams for n = 1 to 4."""
    return [list(map(int, one)) for one in metric(tokenize)._extract_corpus_statistics(hypotheses, [references])]


def bleu_of(summed: Any) -> float:
    """Return the BLEU of summed statistics, with the same smoothing as `bleu`."""
    from sacrebleu.metrics.bleu import BLEU

    length, reference, *counts = summed
    return float(BLEU.compute_bleu(counts[:4], counts[4:], int(length), int(reference), smooth_method="exp").score)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Scored:
    """Score hypotheses with chrF2 (character n-grams up to 6), using the defaults of sacrebleu."""
    from sacrebleu.metrics.chrf import CHRF

    measured = CHRF()
    score = measured.corpus_score(hypotheses, [references])
    return Scored(score.score, measured.get_signature().format())


def split_compounds(line: str) -> str:
    """Return a tokenised line in which every hyphen between two words is a separate token."""
    return COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def side_by_side(
    hypotheses: Sequence[str], references: Sequence[str], form: TextForm, tokenize: str = "13a"
) -> dict[str, Scored]:
    """Return the scores used in publications, by label, for text in the form of the corpus.

    detokenised                  BLEU with `tokenize` (13a for most languages; if that is none, as the corpus is
                                 tokenised, the default of the language): the score to report
    detokenised, lower case      the same, case-insensitive
    tokenised                    BLEU as in multi-bleu.perl (no smoothing), on the tokens of the corpus if it is
                                 distributed tokenised (IWSLT'15 EN-VI), otherwise on Moses tokens of both sides;
                                 not for Chinese, Japanese and Korean, which Moses does not segment
    tokenised, compounds split   the same with hyphenated words split, for German only
    chrF                         on the detokenised text

    For lower-cased text, there are only "detokenised, lower case" and chrF.
    """
    sides = list(hypotheses), list(references)
    plain = _each(form.plain, sides)
    raw = default_tokenizer(form.language)
    tokenize = raw if tokenize == "none" else tokenize
    tokens = sides if form.form in TOKENISED else _each(TextForm(form.language, "moses").to_model, sides)
    scores = {
        "detokenised": bleu(plain[0], plain[1], tokenize),
        "detokenised, lower case": bleu(plain[0], plain[1], tokenize, lowercase=True),
        "tokenised": bleu(tokens[0], tokens[1], "none", smooth="none"),
    }
    if raw != "13a" and form.form not in TOKENISED:
        del scores["tokenised"]
    if form.form == "lowercased":  # the other scores are case-sensitive
        scores = {"detokenised, lower case": scores["detokenised, lower case"]}
    elif form.language == "de":
        split = _each(split_compounds, tokens)
        scores["tokenised, compounds split"] = bleu(split[0], split[1], "none", smooth="none")
    return {**scores, "chrF": chrf(plain[0], plain[1])}


def _each(function: Callable[[str], str], sides: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    return [function(line) for line in sides[0]], [function(line) for line in sides[1]]
