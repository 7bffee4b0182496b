"""fairseq keeps the last batch of every dataset, regardless of its size."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fairseq_resid.models  # noqa: F401  (applies the patches)

Command = Callable[..., Any]


def test_generate_returns_every_sentence(sas_checkpoint: Path, generate: Command) -> None:
    assert sorted(generate(sas_checkpoint, "--beam", 1).hypotheses) == list(range(203))


def test_training_sees_every_pair_in_every_epoch(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairseq.trainer import Trainer

    seen: Counter[int] = Counter()
    original = Trainer.train_step

    def train_step(self: Trainer, samples: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
        for sample in samples:
            seen.update(sample["id"].tolist())
        return original(self, samples, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    train(tmp_path, "--batch-size", 64, "--max-epoch", 2, "--max-update", 0, "--no-save")
    assert seen == Counter({number: 2 for number in range(301)})


@pytest.fixture(scope="module")
def five(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose train, validation and test sets are all the first five sentences of the test set."""
    from fairseq.data import data_utils, indexed_dataset

    folder = tmp_path_factory.mktemp("five")
    for language in ("en", "xx"):
        (folder / f"dict.{language}.txt").write_bytes((corpus / f"dict.{language}.txt").read_bytes())
        sentences = data_utils.load_indexed_dataset(str(corpus / f"test.en-xx.{language}"), dataset_impl="mmap")
        for split in ("train", "valid", "test"):
            prefix = folder / f"{split}.en-xx.{language}"
            builder = indexed_dataset.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
            for number in range(5):
                builder.add_item(sentences[number])
            builder.finalize(f"{prefix}.idx")
    return folder


def test_set_with_fewer_than_eight_sentences_works(
    five: Path, sas_checkpoint: Path, cli: Command, train: Command, tmp_path: Path, generate: Command
) -> None:
    done = cli("fairseq-generate", five, "--path", sas_checkpoint, "--beam", 2, "--max-len-b", 20)
    assert sorted(done.hypotheses) == list(range(5))
    flags = shlex.split("--arch transformer_rskip_ln_tiny --optimizer sgd --lr 0.1 --max-epoch 2 --batch-size 64")
    done = cli("fairseq-train", five, *flags, "--save-dir", tmp_path, "--no-epoch-checkpoints", "--log-format", "json")
    assert '"train_num_updates": "2"' in done.output and '"valid_num_updates": "2"' in done.output


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=90),
    max_tokens=st.none() | st.integers(30, 200),
    max_sentences=st.none() | st.integers(1, 40),
    multiple=st.sampled_from([1, 2, 8]),
    by_function=st.booleans(),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_batches_keep_all_indices_in_order(
    lengths: list[int], max_tokens: int | None, max_sentences: int | None, multiple: int, by_function: bool
) -> None:
    from fairseq.data import data_utils

    sizes = np.array(lengths)
    indices = np.argsort(sizes, kind="stable")
    vector = None if by_function else sizes
    limits = {"max_tokens": max_tokens, "max_sentences": max_sentences, "required_batch_size_multiple": multiple}
    batches = data_utils.batch_by_size(indices, lambda index: sizes[index], vector, **limits)
    assert np.concatenate(batches).tolist() == indices.tolist()
    for batch in batches:
        assert len(batch) <= (max_sentences or len(indices))
    before = data_utils.batch_by_size.__wrapped__(indices, lambda index: sizes[index], vector, **limits)
    assert len(batches) - len(before) in (0, 1)
    for kept, batch in zip(before, batches, strict=False):
        assert kept.tolist() == batch.tolist()
