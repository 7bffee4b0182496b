"""NLL of the reference translations or captions under a model, sentence by sentence, without decoding.

NLL is measured in nats per token of the reference, including the end-of-sentence mark. It is computed with teacher
forcing and without label smoothing. NLL depends on the tokens, so only models trained on the same data folder can be
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli.progress import Progress
from .rows import Row
from .task import ScoringJob

UNIT = "nats per reference subword with EOS, unsmoothed, teacher-forced"
MAX_TOKENS = 4096  # padded positions per batch; the result does not depend on this


@dataclass(frozen=True)
class Sentence(Row):
    """The summed NLL of one reference sentence in nats, and its number of tokens."""

    digits = 4
    nll: float
    tokens: int


def mean(sentences: Sequence[Sentence]) -> float:
    """Return the NLL per token."""
    return sum(one.nll for one in sentences) / sum(one.tokens for one in sentences)


def measure_nll(job: ScoringJob[Any], checkpoint: Path) -> list[Sentence]:
    """Return the NLL of every reference sentence of a subset, in order."""
    from .loading import load

    loaded = load(job.run, checkpoint, job.data.path, job.cpu)
    import torch

    from ..models.likelihood import token_nll

    model, task = loaded.model, loaded.task
    job.task.load_examples(loaded, job.subset)
    dataset = task.dataset(job.subset)
    longest = max(max(map(int, dataset.size(index))) for index in range(len(dataset)))
    batches = task.get_batch_iterator(
        dataset, max_tokens=max(MAX_TOKENS, longest), max_positions=model.max_positions()
    ).next_epoch_itr(shuffle=False)
    padding = task.target_dictionary.pad()
    measured: dict[int, Sentence] = {}
    title = f"NLL {job.subset} of {checkpoint.name}"
    with torch.no_grad(), Progress(title, len(dataset), "sentences") as progress:
        for sample in map(loaded.moved, batches):
            nll = token_nll(model, sample["net_input"], sample["target"], padding).double().sum(dim=1)
            counts = sample["target"].ne(padding).sum(dim=1)
            sentences = map(Sentence, nll.tolist(), counts.tolist())
            measured.update(zip(sample["id"].tolist(), sentences, strict=True))
            progress.advance(len(nll))
    return [measured[number] for number in range(len(dataset))]
