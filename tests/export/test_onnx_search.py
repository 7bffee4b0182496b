"""Beam search on ONNX Runtime finds the same hypotheses and scores as fairseq's SequenceGenerator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairseq_resid.export.engine import Search
from fairseq_resid.export.onnx_runner import largest
from support.engines import as_words, exported, generated, need, speaking
from support.models import PAD, sentences

pytestmark = [need("onnx"), pytest.mark.once]
SOURCES = sentences(3, (6, 2, 9, 4, 0, 12) * 4)
TOGETHER = len(SOURCES)


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a model that ends its sentences at various lengths and often prefers <pad>, which fairseq forbids."""
    made = speaking()
    with torch.no_grad():
        made.decoder.output_projection.weight[PAD, 0] = 3
    return made


@pytest.fixture(scope="module")
def engine(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the exported model."""
    return exported("onnx", model, tmp_path_factory.mktemp("speaking"))


def check(engine: Any, model: Any, search: Search, prefixes: list[torch.Tensor] | None = None) -> list[Any]:
    """Compare the hypotheses for all sources with fairseq's, and return them."""
    begun = None if prefixes is None else as_words(prefixes)
    found = engine.translate(as_words(SOURCES), search, begun)
    forced = prefixes and torch.nn.utils.rnn.pad_sequence(prefixes, batch_first=True, padding_value=PAD)
    expected = generated(model, SOURCES, search, forced)
    assert [[each.tokens for each in row] for row in found] == [[words for words, _ in row] for row in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.score for each in mine] == pytest.approx([score for _, score in theirs], abs=1e-5)
    return found


@pytest.mark.parametrize(
    "search",
    [
        Search(1, 1.0, 1, 8, 1, TOGETHER),
        Search(4, 0.6, 1, 12, 4, TOGETHER),
        Search(5, 1.0, 1.5, 5, 5, TOGETHER),
        Search(4, 0.0, 0, 7, 4, TOGETHER),
        Search(7, 2.0, 0, 20, 7, TOGETHER),
        Search(3, 1.0, 0, 1, 3, TOGETHER),
        Search(60, 1.0, 0, 2, 53, TOGETHER),
    ],
    ids=["greedy", "beam 4", "beam 5", "no length penalty", "long", "one subword", "beam wider than the vocabulary"],
)
def test_hypotheses_equal_those_of_fairseq_without_padding(search: Search, engine: Any, model: Any) -> None:
    found = check(engine, model, search)
    assert all("<pad>" not in each.tokens for row in found for each in row)
    lengths = {len(each.tokens) for row in found for each in row}
    assert min(lengths) >= 1
    assert len(lengths) > 3 or search.max_len_b < 5


def test_hypotheses_start_with_prefixes_of_different_lengths(engine: Any, model: Any) -> None:
    """Some sources have no prefix, and </s> is allowed at the first position."""
    prefixes = sentences(5, (2, 0, 1, 3) * 6)
    found = check(engine, model, Search(4, 0.6, 1, 6, 4, TOGETHER), prefixes)
    for row, prefix in zip(found, as_words(prefixes), strict=True):
        assert all(list(each.tokens[: len(prefix)]) == prefix for each in row)


def test_prefix_longer_than_the_maximum_is_truncated(engine: Any, model: Any) -> None:
    prefixes = sentences(5, (5,) * TOGETHER)
    found = check(engine, model, Search(2, 1.0, 0, 3, 1, TOGETHER), prefixes)
    assert all(list(row[0].tokens) == prefix[:3] for row, prefix in zip(found, as_words(prefixes), strict=True))


def test_hypothesis_has_the_score_of_its_words(engine: Any) -> None:
    search = Search(4, 0.6, 1, 8, 2)
    found = engine.translate(as_words(SOURCES), search)
    for number in (0, 1):
        targets = [row[number].tokens for row in found]
        for log_p, row in zip(engine.score(as_words(SOURCES), targets), found, strict=True):
            assert row[number].score == pytest.approx(sum(log_p) / len(log_p) ** 0.6, abs=1e-5)


def test_largest_values_are_sorted_with_ties_by_position() -> None:
    minus = -np.inf
    values = np.array([[1, 5, 3, 5, 2], [0, 0, 0, 0, 0], [minus, 2, minus, minus, 7]], np.float32)
    assert largest(values, 3).tolist() == [[1, 3, 2], [0, 1, 2], [4, 1, 0]]
    values = np.random.default_rng(1).normal(size=(5, 400)).astype(np.float32)
    values[:, ::7] = 0.5
    assert np.array_equal(largest(values, 90), np.argsort(-values, axis=1, kind="stable")[:, :90])
