"""Paired significance tests of BLEU between translation models, with sacrebleu."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..data.text.bleu import metric
from ..runs.run import Results
from .task import Candidate, TableRows


@dataclass(frozen=True)
class Translations:
    """The hypotheses of one model, the references, and sacrebleu's tokeniser for both."""

    hypotheses: list[str]
    references: list[str]
    tokenize: str


def conditions(results: Results, model: str, score: str = "BLEU") -> dict[str, object]:
    """Return the conditions that must be equal for two results to be comparable, by readable name.

    score: the name of the score whose signature is one of the conditions
    """
    facts: dict[str, object] = {
        "corpus": results.corpus,
        "test set": results.subset,
        "number of examples": results.sentences,
        score: results.signature,
        "decoding": results.decoding,
    }
    count = len(results.averaged_checkpoints)
    return {**facts, "number of averaged checkpoints": count} if model == "averaged" else facts


def check_conditions(first: Candidate, other: Candidate, score: str = "BLEU") -> None:
    """Raise ValueError naming both runs and the condition that differs; see `conditions`."""
    mine, theirs = (conditions(each.results, each.model, score) for each in (first, other))
    for what in mine:
        if mine[what] != theirs[what]:
            raise ValueError(
                f"{first.path} and {other.path} cannot be compared: {what} differs ({mine[what]} and {theirs[what]})"
            )


def check_comparable(first: Candidate, other: Candidate) -> None:
    """Raise ValueError naming both runs and their difference if two scores cannot be compared."""
    check_conditions(first, other)
    texts = [each.outputs.references for each in (first, other)]
    if texts[0] != texts[1]:
        digests = [digest(text)[:12] for text in texts]
        raise ValueError(
            f"{first.path} and {other.path} cannot be compared: reference texts differ "
            f"(sha256 {digests[0]}..., {digests[1]}...)"
        )


def digest(lines: Sequence[str]) -> str:
    """Return the SHA-256 of reference texts, in hex."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def significance(candidates: Sequence[Candidate]) -> tuple[TableRows, list[str]]:
    """Return a row for every run, tested against the first one, and the signatures of both tests."""
    from sacrebleu.significance import PairedTest

    baseline: Translations = candidates[0].outputs
    systems: list[tuple[str, Sequence[str]]] = [(str(each.path), each.outputs.hypotheses) for each in candidates]
    tested: dict[str, list[Any]] = {}
    signatures = []
    for kind in ("bs", "ar"):
        signature, scores = PairedTest(
            systems, {"BLEU": metric(baseline.tokenize)}, [baseline.references], test_type=kind
        )()
        tested[kind] = list(scores["BLEU"])
        signatures.append(f"BLEU {signature['BLEU'].format()}")
    rows: TableRows = []
    for candidate, bootstrap, randomisation in zip(candidates, tested["bs"], tested["ar"], strict=True):
        tests = ("", "baseline", "baseline")
        if rows:
            difference = f"{bootstrap.score - tested['bs'][0].score:+.2f}"
            tests = (difference, f"{bootstrap.p_value:.4f}", f"{randomisation.p_value:.4f}")
            if candidate.outputs.hypotheses == baseline.hypotheses:
                # sacrebleu would report a p of 1/1,001, because no resample differs by more than 0.
                tests = (difference, "1.0000", "1.0000")
        interval = f"{bootstrap.mean:.2f} ± {bootstrap.ci:.2f}"
        architecture = str(candidate.results.architecture)
        rows.append((candidate.name, architecture, f"{bootstrap.score:.2f}", tests[0], interval, *tests[1:]))
    return rows, signatures
