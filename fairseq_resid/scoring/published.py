"""Published scores, and a check of whether a run can be compared with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..data.text.folder import Corpus
from .task import ScoringJob

LABEL = "as published"


@dataclass(frozen=True)
class Publication:
    """A published score, with its test set, decoding settings, averaged checkpoints and source."""

    subset: str
    bleu: float
    decoding: Mapping[str, str]
    count: int
    source: str
    tokenize: str = "none"  # the text is tokenised


# The publications, by corpus name. The data of each can be prepared with `--profile published`.
PUBLICATIONS = {
    "multi30k-en-de": Publication(
        subset="test",
        bleu=41.02,
        decoding={"beam": "5", "lenpen": "1", "max-len-a": "0", "max-len-b": "200"},
        count=10,
        source="Wu et al. 2021, text-only Transformer",
    ),
}


def differences(job: ScoringJob[Corpus]) -> list[str]:
    """Return the reasons why the scores of a run cannot be compared with published ones; empty if they can be."""
    corpus = job.data
    known = PUBLICATIONS.get(corpus.name)
    if known is None or corpus.record.profile != "published":
        names = " or ".join(f"{name} --profile published" for name in PUBLICATIONS)
        return [f"{corpus.path} is {corpus.name}, profile {corpus.record.profile or 'own'}, not {names}"]
    found = [f"{corpus.path}: {difference}" for difference in corpus.differences]
    found += [
        f"--{name} {job.settings.decoding[name]}, not {value}"
        for name, value in known.decoding.items()
        if float(job.settings.decoding[name]) != float(value)
    ]
    if corpus.tokenize != known.tokenize:
        found.append(f"--tokenize {corpus.tokenize}, not {known.tokenize}")
    numbered, averaged = job.run.numbered("epoch"), job.averages["averaged"]
    if averaged != numbered[-known.count :]:
        found.append(f"{len(averaged)} checkpoints averaged instead of those of the last {known.count} epochs")
    return found


def beside(job: ScoringJob[Corpus]) -> str:
    """Return the published score of a subset as a phrase; empty if there is none."""
    known = PUBLICATIONS.get(job.data.name)
    return f"published: {known.bleu:.2f} ({known.source})" if known and known.subset == job.subset else ""
