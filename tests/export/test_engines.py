"""Every engine scores and translates like fairseq, in order and within the lengths that the model accepts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_resid.export.engine import ENGINES, Search
from support.engines import as_words, exported, generated, need, scores, speaking, worst_difference
from support.models import EOS, PAD, PRE, sentences, stock

pytestmark = pytest.mark.once
# Without ONNX Runtime, whose search test_onnx_search compares with fairseq's, and whose export takes seconds.
each_fast_engine = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=need(name)) for name in ENGINES if name != "onnx"]
)


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a model that accepts 32 positions and ends its sentences at various lengths."""
    return speaking(max_source_positions=32, max_target_positions=32)


@pytest.fixture(scope="module", params=[pytest.param(name, marks=need(name)) for name in ENGINES])
def engine(request: Any, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the exported model."""
    return exported(request.param, model, tmp_path_factory.mktemp(request.param))


def test_scores_equal_those_of_fairseq_in_order(engine: Any, model: Any) -> None:
    assert worst_difference(engine, model) < 2e-5
    sources, targets = as_words(sentences(3, (9, 2, 5) * 12)), as_words(sentences(4, (1, 6, 0) * 12))
    together = engine.score(sources, targets)
    assert [len(row) for row in together] == [len(row) + 1 for row in targets]
    alone = [engine.score([source], [target])[0] for source, target in zip(sources, targets, strict=True)]
    assert np.concatenate(together) == pytest.approx(np.concatenate(alone), abs=2e-5)
    assert engine.score([], []) == []


def test_translations_are_in_source_order(engine: Any) -> None:
    sources, search = as_words(sentences(6, (9, 2, 5, 3, 7))), Search(max_len_a=0, max_len_b=9, batch_size=2)
    alone = [engine.translate([source], search)[0] for source in sources]
    together = engine.translate(sources, search)
    assert [[each.tokens for each in row] for row in together] == [[each.tokens for each in row] for row in alone]
    assert [len(row) for row in together] == [1] * 5
    assert engine.translate([], search) == []


def test_unknown_words_become_the_unknown_symbol(engine: Any) -> None:
    known, unknown = engine.score([["w1", "<unk>"], ["w1", "nonsense"]], [["w2"], ["<unk>"]])
    again, also = engine.score([["w1", "nonsense"], ["w1", "<unk>"]], [["w2"], ["more"]])
    assert known == pytest.approx(again) and unknown == pytest.approx(also)


def test_sentences_longer_than_the_model_accepts_are_reported(engine: Any) -> None:
    assert len(engine.score([["w1"] * 31], [["w1"] * 31])[0]) == 32
    with pytest.raises(ValueError, match="source 2: 32 subwords; the model accepts at most 31"):
        engine.translate([["w1"], ["w1"] * 32], Search())
    with pytest.raises(ValueError, match="target 1: 32 subwords; the model accepts at most 31"):
        engine.score([["w1"]], [["w1"] * 32])
    assert len(engine.translate([["w1"] * 3], Search(max_len_b=50))[0][0].tokens) <= 31


@each_fast_engine
@pytest.mark.parametrize("settings", [{}, PRE], ids=["post-norm", "pre-norm"])
def test_stock_transformers_can_be_exported(settings: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = stock(**settings)
    assert worst_difference(exported(name, model, tmp_path), model) < 2e-5


@each_fast_engine
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_translations_equal_those_of_fairseq(seed: int, name: str, tmp_path: Path) -> None:
    model = speaking(seed=seed)
    engine, sources = exported(name, model, tmp_path), sentences(seed, (6,) * 30)
    # No engine allows </s> at the first position, but all except CTranslate2 include its probability in the
    # normalisation. CTranslate2 scores truncated translations again, and then includes it, too.
    ends = scores(model, sources, [row[:0] for row in sources])
    for search in (Search(1, 1.0, 1, 8), Search(4, 0.6, 1, 12), Search(5, 1.0, 1.5, 5), Search(4, 0.0, 0, 7)):
        found, expected = engine.translate(as_words(sources), search), generated(model, sources, search)
        same = [mine[0].tokens == theirs[0][0] for mine, theirs in zip(found, expected, strict=True)]
        assert sum(same) >= 29, (search, same)
        lengths = {len(mine[0].tokens) for mine in found}
        assert len(lengths) > 1 and max(lengths) <= search.longest(6)
        for mine, theirs, is_same, end in zip(found, expected, same, ends, strict=True):
            length, missing = len(mine[0].tokens), 0.0
            if name == "ctranslate2" and length < search.longest(6):
                missing = math.log1p(-math.exp(end.item())) / (length + 1) ** search.length_penalty
            assert not is_same or mine[0].score + missing == pytest.approx(theirs[0][1], abs=1e-4), search


@each_fast_engine
def test_maximum_length_and_end_of_sentence_match_fairseq(name: str, tmp_path: Path) -> None:
    """The model never ends a sentence by itself.

    At the maximum length, fairseq appends </s> and adds its log probability to the score.
    """
    model = speaking()
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS, 0] = -100
    sources = sentences(3, (5,) * 12)
    search = Search(4, 0.6, 1, 3, nbest=3)
    found = exported(name, model, tmp_path).translate(as_words(sources), search)
    expected = generated(model, sources, search)
    for mine, theirs in zip(found, expected, strict=True):
        assert [len(each.tokens) for each in mine] == [9, 9, 9]
        assert [each.tokens for each in mine] == [tokens for tokens, _ in theirs[:3]]
        assert [each.score for each in mine] == pytest.approx([score for _, score in theirs[:3]], abs=1e-4)


@each_fast_engine
@pytest.mark.parametrize("beam", [1, 4])
def test_padding_is_never_generated_but_its_probability_counts(beam: int, name: str, tmp_path: Path) -> None:
    model = speaking()
    with torch.no_grad():
        model.decoder.output_projection.weight[PAD, 0] = 9
    sources, search = sentences(8, (4, 4, 4)), Search(beam, 1.0, 0, 6)
    found = exported(name, model, tmp_path).translate(as_words(sources), search)
    expected = generated(model, sources, search)
    assert all(len(each) == 1 and "<pad>" not in each[0].tokens for each in found)
    if beam == 1 or name != "ctranslate2":
        assert [each[0].tokens for each in found] == [each[0][0] for each in expected]
    if name != "ctranslate2":
        assert [each[0].score for each in found] == pytest.approx([each[0][1] for each in expected], abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_translation_continues_its_prefix_and_score_covers_both(beam: int, engine: Any, model: Any) -> None:
    sources, prefixes = sentences(4, (5, 5, 5)), sentences(5, (2, 2, 2))
    search = Search(beam, 0.6, 1, 6, nbest=min(beam, 2))
    found = engine.translate(as_words(sources), search, as_words(prefixes))
    expected = generated(model, sources, search, torch.stack(prefixes))
    for mine, theirs, prefix in zip(found, expected, as_words(prefixes), strict=True):
        assert list(mine[0].tokens[:2]) == prefix
        assert mine[0].tokens == theirs[0][0]
        assert mine[0].score == pytest.approx(theirs[0][1], abs=1e-4)
        assert mine[0].score >= mine[-1].score > -1e6
