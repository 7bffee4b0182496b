"""CIDEr-D, the reward of self-critical training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

LONGEST, SIGMA = 4, 6.0  # longest n-gram; standard deviation in the length penalty
Words = Sequence[Hashable]
Vectors = list[dict[tuple[Hashable, ...], float]]  # by length of the n-grams


def ngrams(words: Words) -> Counter[tuple[Hashable, ...]]:
    """Return the n-grams of 1 to LONGEST words with their counts."""
    return Counter(
        tuple(words[start : start + size]) for size in range(1, LONGEST + 1) for start in range(len(words) - size + 1)
    )


class Cider:
    """CIDEr-D with the document frequencies of a set of images.

    Formula:  10/(4m) Σ_n Σ_j exp(−(l(c) − l(r_j))² / 2σ²) · min(g_n(c), g_n(r_j)) · g_n(r_j) / (|g_n(c)| |g_n(r_j)|)
              for a caption c with m references r_j; l: number of bigrams; g_n: counts of the n-grams, each times
              ln(images) − ln(images with this n-gram in a reference)
    Source:   Vedantam et al. 2015, as implemented in pycocoevalcap; papers print 100 times this value
    """

    def __init__(self, images: Iterable[Sequence[Words]]) -> None:
        self.frequencies: Counter[tuple[Hashable, ...]] = Counter()
        count = 0
        for references in images:
            count += 1
            self.frequencies.update({ngram for words in references for ngram in ngrams(words)})
        self.most = math.log(max(count, 1))

    def vectors(self, words: Words) -> tuple[Vectors, list[float]]:
        """Return the weighted n-gram counts of a caption, and their norms."""
        found: Vectors = [{} for _ in range(LONGEST)]
        for ngram, count in ngrams(words).items():
            found[len(ngram) - 1][ngram] = count * (self.most - math.log(max(1, self.frequencies[ngram])))
        return found, [math.sqrt(sum(value * value for value in each.values())) for each in found]

    def score(self, caption: Words, references: Sequence[Words]) -> float:
        """Return the CIDEr-D of a caption."""
        mine, norms = self.vectors(caption)
        total = 0.0
        for reference in references:
            theirs, others = self.vectors(reference)
            apart = max(len(caption) - 1, 0) - max(len(reference) - 1, 0)
            penalty = math.exp(-(apart**2) / (2 * SIGMA**2))
            for ours, other, norm, its in zip(mine, theirs, norms, others, strict=True):
                common = sum(min(value, other[ngram]) * other[ngram] for ngram, value in ours.items() if ngram in other)
                total += penalty * (common / (norm * its) if norm and its else common)
        return 10 * total / (LONGEST * len(references))
