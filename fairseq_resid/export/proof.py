"""The proof of an export: the engine and fairseq compute the same log probabilities and translations.

Both score the references of the validation set, and translate its first sentences with the settings of the run. A
quantised model gives different results, so both translate the whole set instead, and the proof shows both BLEU scores.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cli.progress import Progress
from ..console import say
from ..data.text.folder import Corpus
from .engine import Engine, Record, Search

SUBSET = "valid"
TOLERANCE = 1e-4  # allowed difference in log p of a token
# Allowed for a few tokens: in a model with large activations, ONNX Runtime rounds more than PyTorch.
MOST = 1e-3
TRANSLATIONS = 200
SHARE = 0.99  # of the tokens must be within the tolerance, and of the translations must be identical
TOGETHER = 32  # sentences per batch
EXACT = (None, "float32")  # quantizations that leave the weights unchanged


class NotEqual(Exception):
    """The results of the engine differ from those of fairseq."""


@dataclass(frozen=True)
class Difference:
    """A sentence that fairseq and the engine translate differently, with the engine's score of each translation."""

    line: int
    fairseq: str
    engine: str
    fairseq_score: float
    engine_score: float

    def __str__(self) -> str:
        return (
            f"line {self.line}: fairseq {self.fairseq_score:.4f} {self.fairseq!r}, "
            f"engine {self.engine_score:.4f} {self.engine!r}"
        )


@dataclass(frozen=True)
class Bleu:
    """BLEU of fairseq and the engine on the validation set, without the sentences that are too long for the model."""

    fairseq: float
    engine: float
    signature: str


@dataclass(frozen=True)
class Proof:
    """The comparison of an engine with fairseq.

    sentences, tokens: references scored by both, including </s>; skipped: references that are too long for the model
    largest: largest difference in log p of a token; beyond: number of tokens whose difference exceeds the tolerance
    identical: number of identical translations among `translations`
    """

    subset: str
    sentences: int
    tokens: int
    largest: float
    translations: int
    identical: int
    skipped: int = 0
    differences: list[Difference] = field(default_factory=list)
    bleu: Bleu | None = None
    beyond: int = 0

    def lines(self, engine: str) -> list[str]:
        """Return the result as lines of text."""
        found = [
            f"log p of {self.tokens:,} reference subwords ({self.subset}): largest difference {self.largest:.1e}",
            f"translations: {self.identical} of {self.translations} identical",
        ]
        if self.skipped:
            sentences = "sentence" if self.skipped == 1 else "sentences"
            found.append(f"skipped: {self.skipped:,} {sentences} too long for the model")
        if self.bleu is not None:
            found.append(
                f"BLEU ({self.subset}): fairseq {self.bleu.fairseq:.2f}, {engine} {self.bleu.engine:.2f}  "
                f"{self.bleu.signature}"
            )
        return found

    def check(self) -> None:
        """Raise NotEqual unless the engine computes the same as fairseq."""
        if not self.largest <= MOST:  # also true for NaN
            raise NotEqual(f"log p differs by {self.largest:.1e} from fairseq's: must be at most {MOST:g}")
        if self.tokens - self.beyond < SHARE * self.tokens:
            raise NotEqual(
                f"log p of {self.beyond:,} of {self.tokens:,} subwords differs by more than {TOLERANCE:g} from "
                f"fairseq's: must be at most {100 * (1 - SHARE):.0f}% of them"
            )
        if self.identical < SHARE * self.translations:
            raise NotEqual(
                f"{self.identical} of {self.translations} translations match fairseq's: at least "
                f"{100 * SHARE:g}% must match"
            )


@dataclass(frozen=True)
class Pair:
    """A sentence pair of a data folder: its line, and the ids of both sides, with </s>, in fairseq's dictionaries."""

    line: int
    source: Any
    target: Any


def read_pairs(loaded: Any, subset: str, longest: tuple[int, int]) -> tuple[list[Pair], int]:
    """Return the sentence pairs of a subset that the model accepts, and the number of pairs that are too long for it.

    Pairs with a blank source are in neither.

    Raises: FileNotFoundError if the data folder has no such subset.
    """
    loaded.task.load_dataset(subset)
    dataset = loaded.task.dataset(subset)
    pairs, skipped = [], 0
    for index in range(len(dataset)):
        item = dataset[index]
        if len(item["source"]) == 1:  # only </s>: its translation is empty in every engine, but not in fairseq
            continue
        if len(item["source"]) <= longest[0] and len(item["target"]) <= longest[1]:
            pairs.append(Pair(index + 1, item["source"], item["target"]))
        else:
            skipped += 1
    if not pairs:
        raise ValueError(f"{loaded.data}: {subset} has no sentence that the model accepts")
    return pairs, skipped


def batches(pairs: Sequence[Pair]) -> Iterator[list[int]]:
    """Yield the indices of the pairs, sorted by source length, in batches of the same size as the engine's."""
    order = sorted(range(len(pairs)), key=lambda number: len(pairs[number].source))
    for start in range(0, len(order), TOGETHER):
        yield order[start : start + TOGETHER]


def net_input(loaded: Any, chosen: Sequence[Pair]) -> dict[str, Any]:
    """Return the source side of a batch, collated as in fairseq."""
    import torch
    from fairseq.data.data_utils import collate_tokens

    padding = loaded.task.source_dictionary.pad()
    sources = collate_tokens([pair.source for pair in chosen], padding, left_pad=True)
    return {"src_tokens": sources, "src_lengths": torch.tensor([len(pair.source) for pair in chosen])}


def fairseq_scores(loaded: Any, pairs: Sequence[Pair]) -> list[list[float]]:
    """Return fairseq's log p of every target token."""
    import torch
    from fairseq.data.data_utils import collate_tokens

    from ..models.likelihood import token_nll

    dictionary = loaded.task.target_dictionary
    found: list[list[float]] = [[] for _ in pairs]
    with torch.no_grad(), Progress("log p by fairseq", len(pairs), "sentences") as progress:
        for numbers in batches(pairs):
            chosen = [pairs[number] for number in numbers]
            targets = [pair.target for pair in chosen]
            given = {
                **net_input(loaded, chosen),
                "prev_output_tokens": collate_tokens(
                    targets, dictionary.pad(), dictionary.eos(), move_eos_to_beginning=True
                ),
            }
            target = collate_tokens(targets, dictionary.pad())
            sample = loaded.moved({"net_input": given, "target": target})
            nll = token_nll(loaded.model, sample["net_input"], sample["target"], dictionary.pad())
            for number, row, pair in zip(numbers, nll, chosen, strict=True):
                found[number] = (-row[: len(pair.target)]).tolist()
            progress.advance(len(numbers))
    return found


def fairseq_translations(loaded: Any, pairs: Sequence[Pair], search: Search) -> list[list[str]]:
    """Return fairseq's best translation of each source, as subwords."""
    import torch
    from fairseq.sequence_generator import SequenceGenerator

    dictionary = loaded.task.target_dictionary
    generator = SequenceGenerator(
        [loaded.model],
        dictionary,
        beam_size=search.beam,
        max_len_a=search.max_len_a,
        max_len_b=search.max_len_b,
        len_penalty=search.length_penalty,
    )
    found: list[list[str]] = [[] for _ in pairs]
    with torch.no_grad(), Progress("translations by fairseq", len(pairs), "sentences") as progress:
        for numbers in batches(pairs):
            sample = loaded.moved({"net_input": net_input(loaded, [pairs[number] for number in numbers])})
            for number, hypotheses in zip(numbers, generator.generate([loaded.model], sample), strict=True):
                found[number] = words(dictionary, hypotheses[0]["tokens"])
            progress.advance(len(numbers))
    return found


def words(dictionary: Any, ids: Any) -> list[str]:
    return [dictionary[index] for index in ids.tolist() if index != dictionary.eos()]


def prove(loaded: Any, engine: Engine, record: Record, corpus: Corpus | None = None) -> Proof:
    """Compare the engine of an export with fairseq; print the translations that differ.

    loaded: the exported model, loaded by scoring.loading; corpus: its data folder, for the BLEU of a quantised export
    Raises: NotEqual if an export in full precision gives different results, or if any log p is NaN; FileNotFoundError
    if there is no validation set.
    """
    pairs, skipped = read_pairs(loaded, SUBSET, record.longest)
    source_dictionary, target_dictionary = loaded.task.source_dictionary, loaded.task.target_dictionary
    sources = [words(source_dictionary, pair.source) for pair in pairs]
    targets = [words(target_dictionary, pair.target) for pair in pairs]
    expected = fairseq_scores(loaded, pairs)
    with Progress(f"log p by {record.engine}"):
        found = engine.score(sources, targets)
    apart = token_differences(found, expected)
    is_exact = record.quantization in EXACT
    count = min(TRANSLATIONS, len(pairs)) if is_exact or corpus is None else len(pairs)
    search = Search(
        record.search.beam,
        record.search.length_penalty,
        record.search.max_len_a,
        record.search.max_len_b,
        batch_size=TOGETHER,
    )
    theirs = fairseq_translations(loaded, pairs[:count], search)
    with Progress(f"translations by {record.engine}"):
        mine = [list(hypotheses[0].tokens) for hypotheses in engine.translate(sources[:count], search)]
    lines = [pair.line for pair in pairs]
    bleu = None if is_exact or corpus is None else bleu_of(corpus, lines, theirs, mine)
    compared = min(TRANSLATIONS, count)
    differences = list(
        differing(engine, search, pairs[:compared], sources[:compared], theirs[:compared], mine[:compared])
    )
    proof = Proof(
        SUBSET,
        len(pairs),
        sum(map(len, expected)),
        max(apart),
        compared,
        compared - len(differences),
        skipped,
        differences,
        bleu,
        sum(difference > TOLERANCE for difference in apart),
    )
    for difference in differences:
        say(f"  {difference}", file=sys.stderr)
    if is_exact:
        proof.check()
    return proof


def token_differences(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> list[float]:
    """Return the absolute difference in log p of every token. Raises: NotEqual if any log p is NaN."""
    differences = [
        abs(one - other)
        for mine, theirs in zip(found, expected, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    ]
    if any(map(math.isnan, differences)):
        raise NotEqual("log p is not a number")
    return differences


def differing(
    engine: Engine,
    search: Search,
    pairs: Sequence[Pair],
    sources: Sequence[Sequence[str]],
    theirs: Sequence[Sequence[str]],
    mine: Sequence[Sequence[str]],
) -> Iterator[Difference]:
    """Yield the sentences that fairseq and the engine translate differently."""
    wrong = [number for number in range(len(pairs)) if theirs[number] != mine[number]]
    if not wrong:
        return
    chosen = [sources[number] for number in wrong]
    scores = [
        [sum(tokens) / len(tokens) ** search.length_penalty for tokens in engine.score(chosen, translated)]
        for translated in ([theirs[number] for number in wrong], [mine[number] for number in wrong])
    ]
    for number, one, other in zip(wrong, *scores, strict=True):
        yield Difference(pairs[number].line, " ".join(theirs[number]), " ".join(mine[number]), one, other)


def bleu_of(
    corpus: Corpus, lines: Sequence[int], theirs: Sequence[Sequence[str]], mine: Sequence[Sequence[str]]
) -> Bleu:
    """Return BLEU of both translations of these lines of the validation set, against the raw references."""
    from ..scoring.translation_scores import bleu

    everything = corpus.references(SUBSET)
    references = [everything[line - 1] for line in lines]
    both = [bleu(restored(corpus, translated), references, corpus.tokenize) for translated in (theirs, mine)]
    return Bleu(round(both[0].score, 4), round(both[1].score, 4), both[0].signature)


def restored(corpus: Corpus, translated: Sequence[Sequence[str]]) -> list[str]:
    """Return translations as text in the form that fairseq-generate and evaluation score."""
    from fairseq.data.data_utils import post_process

    return [corpus.form.restore(post_process(" ".join(tokens), corpus.post_process)) for tokens in translated]
