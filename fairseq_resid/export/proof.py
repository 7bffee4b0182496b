"""The proof of an export: the engine and fairseq compute the same log probabilities and translations.

Both score the references of up to 200 validation lines and translate these lines with the settings of the run. Weights
of another type give different results; for them the comparison only measures how different.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..cli.progress import Progress
from .engine import Engine, Record, Search, batches

SUBSET = "valid"
LINES = 200
# Allowed difference in log p of a token. In a model with large activations, ONNX Runtime rounds more than PyTorch.
TOLERANCE = 1e-3
SHARE = 0.99  # of the translations must be identical


class NotEqual(Exception):
    """The results of the engine differ from those of fairseq."""


def prove(loaded: Any, engine: Engine, record: Record) -> dict[str, Any]:
    """Compare the engine of an export with fairseq, and return the result for export.json.

        subset, sentences, tokens    what was compared; tokens include </s>
        largest                      largest difference in log p of a reference token
        translations, identical      number of translations, and of those that are identical
        differences                  the others: their line, both texts, and the engine's scores of both

    Lines that are too long for the model are left out, and blank ones, for which fairseq invents a translation.
    loaded: the exported model, loaded by scoring.loading
    Raises: NotEqual if an export in full precision gives different results, or if any log p is NaN; FileNotFoundError
    if there is no validation set.
    """
    task, longest = loaded.task, record.longest
    task.load_dataset(SUBSET)
    dataset = task.dataset(SUBSET)
    pairs: list[Any] = []
    for index in range(len(dataset)):
        pair = dataset[index]
        if 1 < len(pair["source"]) <= longest[0] and len(pair["target"]) <= longest[1] and len(pairs) < LINES:
            pairs.append(pair)
    if not pairs:
        raise ValueError(f"{loaded.data}: {SUBSET} has no sentence that the model accepts")
    sources = [words(task.source_dictionary, pair["source"]) for pair in pairs]
    targets = [words(task.target_dictionary, pair["target"]) for pair in pairs]
    search = replace(record.search, nbest=1, batch_size=Search.batch_size)
    with Progress(f"fairseq and {record.engine}"):
        expected, theirs = by_fairseq(loaded, pairs, batches(sources, search.batch_size), search)
        found = engine.score(sources, targets)
        mine = [list(hypotheses[0].tokens) for hypotheses in engine.translate(sources, search)]
        wrong = [number for number, own in enumerate(mine) if own != theirs[number]]
        scores = [
            engine.score([sources[number] for number in wrong], [texts[number] for number in wrong])
            for texts in (theirs, mine)
        ]
    apart = [abs(one - other) for rows in zip(found, expected, strict=True) for one, other in zip(*rows, strict=True)]
    proof = {
        "subset": SUBSET,
        "sentences": len(pairs),
        "tokens": len(apart),
        "largest": math.nan if any(map(math.isnan, apart)) else max(apart),
        "translations": len(pairs),
        "identical": len(pairs) - len(wrong),
        "differences": [
            {
                "line": pairs[number]["id"] + 1,
                "fairseq": " ".join(theirs[number]),
                "engine": " ".join(mine[number]),
                "fairseq_score": sum(one) / len(one) ** search.length_penalty,
                "engine_score": sum(other) / len(other) ** search.length_penalty,
            }
            for number, one, other in zip(wrong, *scores, strict=True)
        ],
    }
    check(proof, record.quantization in (None, "float32"))
    return proof


def check(proof: dict[str, Any], is_exact: bool) -> None:
    """Raise NotEqual if any log p is NaN, or if the results differ and the weights are exact."""
    is_equal = proof["largest"] <= TOLERANCE and proof["identical"] >= SHARE * proof["translations"]
    if math.isnan(proof["largest"]) or (is_exact and not is_equal):
        allowed = f"at most {TOLERANCE:g}, and at least {100 * SHARE:g}% must be identical"
        raise NotEqual(f"the engine differs from fairseq: {summary(proof)}; {allowed}")


def summary(proof: dict[str, Any]) -> str:
    """Return the result of a comparison in one line."""
    found = (
        f"log p of {proof['tokens']:,} reference subwords ({proof['subset']}) differs by at most "
        f"{proof['largest']:.1e}; {proof['identical']} of {proof['translations']} translations are identical"
    )
    if apart := [abs(each["fairseq_score"] - each["engine_score"]) for each in proof["differences"]]:
        found += f", and the scores of the others differ by at most {max(apart):.1e}"
    return found


def by_fairseq(
    loaded: Any, pairs: list[Any], numbers: Iterable[list[int]], search: Search
) -> tuple[list[list[float]], list[list[str]]]:
    """Return fairseq's log p of every target token, and its best translation of each source as subwords.

    numbers: the sentences in each batch, which determines the maximum length of its translations
    """
    import torch

    from ..models.likelihood import token_nll

    settings = {"beam": search.beam, "lenpen": search.length_penalty}
    generator = loaded.task.build_generator(
        [loaded.model], Namespace(**settings, max_len_a=search.max_len_a, max_len_b=search.max_len_b)
    )
    dictionary, dataset = loaded.task.target_dictionary, loaded.task.dataset(SUBSET)
    log_p: dict[int, list[float]] = {}
    texts: dict[int, list[str]] = {}
    for rows in numbers:
        sample = loaded.moved(dataset.collater([pairs[row] for row in rows]))
        with torch.no_grad():
            nll = token_nll(loaded.model, sample["net_input"], sample["target"], dictionary.pad())
            made = loaded.task.inference_step(generator, [loaded.model], sample)
        for line, row, kept, hypotheses in zip(
            sample["id"].tolist(), nll, sample["target"] != dictionary.pad(), made, strict=True
        ):
            log_p[line], texts[line] = (-row[kept]).tolist(), words(dictionary, hypotheses[0]["tokens"])
    return [log_p[pair["id"]] for pair in pairs], [texts[pair["id"]] for pair in pairs]


def words(dictionary: Any, ids: Any) -> list[str]:
    return [dictionary[index] for index in ids.tolist() if index != dictionary.eos()]
