"""CTranslate2: log probabilities and translations equal fairseq's, and invalid folders are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_resid import records
from fairseq_resid.connections import CannotFold
from fairseq_resid.export import ctranslate2
from fairseq_resid.export.engine import FORMAT, RECORD, Record, Search, Text, load
from support.engines import need
from support.models import DICT, EOS, PAD, PRE, TASK, build, left_padded, sentences, shaken, stock

from .test_folding import FOLDING, SETTINGS

pytestmark = need("ctranslate2")
END = torch.tensor([EOS])


def as_words(rows: list[torch.Tensor], dictionary: Any = DICT) -> list[list[str]]:
    return [[dictionary[index] for index in row.tolist()] for row in rows]


def exported(model: Any, folder: Path, task: Any = TASK, quantization: str | None = None) -> Any:
    """Write a model and its export.json into a folder, and return the engine."""
    folder.mkdir(exist_ok=True)
    ctranslate2.write(model, task.source_dictionary, task.target_dictionary, folder, quantization)
    longest = model.max_positions()
    record = Record(
        FORMAT,
        "ctranslate2",
        "4",
        "run",
        "checkpoint_last.pt",
        "data",
        {},
        quantization,
        longest,
        Text("a", "b"),
        Search(),
    )
    records.write(folder / RECORD, record)
    return load(folder, threads=1)


def scores(model: Any, sources: list[torch.Tensor], targets: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return fairseq's log p of every target token and of </s>, computed in one padded batch."""
    rows = [torch.cat([row, END]) for row in sources]
    previous = torch.nn.utils.rnn.pad_sequence(
        [torch.cat([END, row]) for row in targets], batch_first=True, padding_value=PAD
    )
    with torch.no_grad():
        logits = model(left_padded(rows), torch.tensor([len(row) for row in rows]), previous)[0]
    return [
        log_p[: len(row) + 1].gather(1, torch.cat([row, END])[:, None])[:, 0]
        for log_p, row in zip(logits.log_softmax(-1), targets, strict=True)
    ]


def differences(engine: Any, model: Any, task: Any = TASK) -> torch.Tensor:
    """Return the absolute differences in log p of the tokens of four sentences."""
    sources, targets = sentences(1, (3, 9, 5, 2), len(task.source_dictionary)), sentences(2, (7, 2, 4, 11))
    found = engine.score(as_words(sources, task.source_dictionary), as_words(targets))
    expected = scores(model, sources, targets)
    return torch.cat([(torch.tensor(mine) - theirs).abs() for mine, theirs in zip(found, expected, strict=True)])


def worst_difference(engine: Any, model: Any, task: Any = TASK) -> float:
    return differences(engine, model, task).max().item()


@pytest.mark.parametrize("name", FOLDING)
def test_log_probabilities_equal_those_of_fairseq(name: str, tmp_path: Path) -> None:
    model = shaken(build(residual=name, **FOLDING[name][0]), 7, 0.1)
    assert worst_difference(exported(model, tmp_path), model) < 2e-5


@pytest.mark.parametrize("name", SETTINGS)
def test_engine_supports_fairseq_setting(name: str, tmp_path: Path) -> None:
    settings, task = SETTINGS[name]
    model = shaken(build(task=task, **settings), 7, 0.1)
    assert worst_difference(exported(model, tmp_path, task), model, task) < 2e-5


@pytest.mark.parametrize("settings", [{}, PRE], ids=["post-norm", "pre-norm"])
def test_stock_transformers_can_be_exported(settings: dict[str, Any], tmp_path: Path) -> None:
    model = stock(**settings)
    assert worst_difference(exported(model, tmp_path), model) < 2e-5


def speaking(residual: str = "deep_norm", seed: int = 1, **options: Any) -> Any:
    """Return a model with peaked distributions that ends its sentences at various lengths.

    The first channel of the decoder's output is constant, so this channel's output weights act as biases.
    <pad> has p = 0.
    """
    model = shaken(build(residual=residual, **options), seed, 0.15)
    with torch.no_grad():
        last = model.decoder.layers[-1].ffn_residual.norm
        last.weight[0], last.bias[0] = 0, 1
        rows = model.decoder.output_projection.weight
        rows *= 1.5
        rows[:, 0] = 0
        rows[PAD, 0], rows[EOS, 0] = -100, 2.5
    return model


def generated(model: Any, sources: list[torch.Tensor], search: Search, prefix: torch.Tensor | None = None) -> Any:
    """Return fairseq's hypotheses for each source: (words, score), best first."""
    generator = SequenceGenerator(
        [model],
        DICT,
        beam_size=search.beam,
        max_len_a=search.max_len_a,
        max_len_b=search.max_len_b,
        len_penalty=search.length_penalty,
    )
    rows = [torch.cat([row, END]) for row in sources]
    net_input = {"src_tokens": left_padded(rows), "src_lengths": torch.tensor([len(row) for row in rows])}
    found = generator.generate([model], {"net_input": net_input}, prefix_tokens=prefix)
    return [
        [(tuple(as_words([each["tokens"][:-1]])[0]), each["score"].item()) for each in hypotheses]
        for hypotheses in found
    ]


each_search = pytest.mark.parametrize(
    "search",
    [Search(1, 1.0, 1, 8), Search(4, 0.6, 1, 12), Search(5, 1.0, 1.5, 5), Search(4, 0.0, 0, 7)],
    ids=["greedy", "beam 4", "beam 5", "no length penalty"],
)


@each_search
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_translations_equal_those_of_fairseq(search: Search, seed: int, tmp_path: Path) -> None:
    model = speaking(seed=seed)
    sources = sentences(seed, (6,) * 30)
    found = exported(model, tmp_path).translate(as_words(sources), search)
    expected = generated(model, sources, search)
    same = [mine[0].tokens == theirs[0][0] for mine, theirs in zip(found, expected, strict=True)]
    assert sum(same) >= 29, same
    lengths = {len(mine[0].tokens) for mine in found}
    assert len(lengths) > 1 and max(lengths) <= search.longest(6)
    # Neither program allows </s> at the first position, but fairseq includes its probability in the normalisation.
    ends = scores(model, sources, [row[:0] for row in sources])
    for mine, theirs, is_same, end in zip(found, expected, same, ends, strict=True):
        length = len(mine[0].tokens)
        missing = math.log1p(-math.exp(end.item())) / (length + 1) ** search.length_penalty
        is_ended = length < search.longest(6)  # the engine rescores truncated translations
        assert not is_same or mine[0].score + is_ended * missing == pytest.approx(theirs[0][1], abs=1e-4)


def test_maximum_length_and_end_of_sentence_match_fairseq(tmp_path: Path) -> None:
    """The model never ends a sentence by itself.

    At the maximum length, fairseq appends </s> and adds its log probability to the score.
    """
    model = speaking()
    with torch.no_grad():
        model.decoder.output_projection.weight[EOS, 0] = -100
    sources = sentences(3, (5,) * 12)
    search = Search(4, 0.6, 1, 3, nbest=3)
    found = exported(model, tmp_path).translate(as_words(sources), search)
    expected = generated(model, sources, search)
    for mine, theirs in zip(found, expected, strict=True):
        assert [len(each.tokens) for each in mine] == [9, 9, 9]
        assert [each.tokens for each in mine] == [tokens for tokens, _ in theirs[:3]]
        assert [each.score for each in mine] == pytest.approx([score for _, score in theirs[:3]], abs=1e-4)


def test_translation_continues_its_prefix_and_score_covers_both(tmp_path: Path) -> None:
    model = speaking()
    sources, prefixes = sentences(4, (5, 5, 5)), sentences(5, (2, 2, 2))
    search = Search(4, 0.6, 1, 6, nbest=2)
    engine = exported(model, tmp_path)
    found = engine.translate(as_words(sources), search, as_words(prefixes))
    expected = generated(model, sources, search, torch.stack(prefixes))
    for mine, theirs, prefix in zip(found, expected, as_words(prefixes), strict=True):
        assert list(mine[0].tokens[:2]) == prefix
        assert mine[0].tokens == theirs[0][0]
        assert mine[0].score == pytest.approx(theirs[0][1], abs=1e-4)
        assert mine[0].score >= mine[1].score


def test_translations_are_in_source_order(tmp_path: Path) -> None:
    engine = exported(speaking(), tmp_path)
    sources = as_words(sentences(6, (9, 2, 5, 3, 7)))
    alone = [engine.translate([source], Search(max_len_a=0, max_len_b=9))[0] for source in sources]
    together = engine.translate(sources, Search(max_len_a=0, max_len_b=9, batch_size=2))
    assert [each[0].tokens for each in together] == [each[0].tokens for each in alone]
    assert engine.translate([], Search()) == [] and engine.score([], []) == []


@pytest.mark.parametrize("beam", [1, 4])
def test_padding_is_never_generated(beam: int, tmp_path: Path) -> None:
    """fairseq forbids <pad>, but includes its probability in the normalisation."""
    model = speaking()
    with torch.no_grad():
        model.decoder.output_projection.weight[PAD, 0] = 9
    sources = sentences(8, (4, 6, 8))
    found = exported(model, tmp_path).translate(as_words(sources), Search(beam, 1.0, 0, 6))
    expected = generated(model, sources, Search(beam, 1.0, 0, 6))
    assert [len(each) for each in found] == [1, 1, 1]
    assert all("<pad>" not in each[0].tokens for each in found)
    if beam == 1:
        assert [each[0].tokens for each in found] == [each[0][0] for each in expected]


def test_unknown_words_become_the_unknown_symbol(tmp_path: Path) -> None:
    engine = exported(build(residual="post_ln"), tmp_path)
    known, unknown = engine.score([["w1", "<unk>"], ["w1", "nonsense"]], [["w2"], ["w2"]])
    assert known == pytest.approx(unknown)


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16", "bfloat16"])
def test_quantised_models_are_close_and_smaller(quantization: str, tmp_path: Path) -> None:
    model = build(residual="deep_norm", share_all_embeddings=quantization == "int8")
    whole, small = tmp_path / "float32", tmp_path / "quantised"
    exported(model, whole)
    engine = exported(model, small, quantization=quantization)
    assert 0 < differences(engine, model).mean() < 0.4  # with other weights: above 1.5
    assert (small / "model.bin").stat().st_size < 0.75 * (whole / "model.bin").stat().st_size


def test_sentences_longer_than_the_model_accepts_are_reported(tmp_path: Path) -> None:
    engine = exported(build(residual="post_ln", max_source_positions=8, max_target_positions=6), tmp_path)
    assert len(engine.score([["w1"] * 7], [["w1"] * 5])[0]) == 6
    with pytest.raises(ValueError, match="source 2: 8 subwords; the model accepts at most 7"):
        engine.translate([["w1"], ["w1"] * 8], Search())
    with pytest.raises(ValueError, match="target 1: 6 subwords; the model accepts at most 5"):
        engine.score([["w1"]], [["w1"] * 6])
    assert len(engine.translate([["w1"] * 3], Search(max_len_b=50))[0][0].tokens) <= 5


def test_unknown_quantization_and_activation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--quantization int4: choose one of int8, "):
        ctranslate2.write(build(residual="post_ln"), DICT, DICT, tmp_path, "int4")
    with pytest.raises(CannotFold, match=r"--activation-fn tanh: .*; use --to onnx"):
        ctranslate2.write(build(residual="post_ln", activation_fn="tanh"), DICT, DICT, tmp_path)
    assert not list(tmp_path.iterdir())


def break_folder(folder: Path, how: str) -> None:
    if how == "no weights":
        (folder / "model.bin").unlink()
    elif how == "short weights":
        (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:10_000])
    elif how == "foreign weights":
        (folder / "model.bin").write_bytes(b"PK\x03\x04" + bytes(5000))
    elif how == "pipe":
        (folder / "config.json").unlink()
        (folder / "config.json").symlink_to("/dev/zero")
    elif how in ("small vocabulary", "large vocabulary"):
        words = json.loads((folder / "shared_vocabulary.json").read_text())
        words = words[:-1] if how == "small vocabulary" else [*words, "more"]
        (folder / "shared_vocabulary.json").write_text(json.dumps(words))
    elif how == "vocabulary of numbers":
        (folder / "shared_vocabulary.json").write_text("[1, 2]")
    else:
        (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    "how",
    [
        "no weights",
        "short weights",
        "foreign weights",
        "pipe",
        "small vocabulary",
        "large vocabulary",
        "vocabulary of numbers",
        "config",
    ],
)
def test_damaged_files_are_refused_with_one_line(how: str, tmp_path: Path) -> None:
    exported(build(residual="post_ln"), tmp_path)
    break_folder(tmp_path, how)
    with pytest.raises((ValueError, OSError)) as refused:
        load(tmp_path)
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format 2: this version reads format 1"),
        ({"engine": "pickle"}, "engine 'pickle': must be one of ctranslate2"),
        ({"engine": 7}, "damaged"),
        ({"longest": [0, 5]}, "must be positive"),
        ({"longest": [10]}, "damaged"),
        ({"search": {"beam": 1_000_000}}, "beam must be at most 1000"),
        ({"search": {"beam": 0}}, "damaged.*beam 0"),
        ({"text": {"source": "a", "target": "b", "model": "../../etc/passwd"}}, "must be the name of a file"),
    ],
    ids=str,
)
def test_invalid_export_json_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    exported(build(residual="post_ln"), tmp_path)
    known = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps({**known, **change}))
    with pytest.raises(ValueError, match=reason) as refused:
        load(tmp_path)
    assert str(tmp_path / RECORD) in str(refused.value) and "\n" not in str(refused.value)


def test_length_beyond_the_position_table_is_refused(tmp_path: Path) -> None:
    exported(build(residual="post_ln", max_source_positions=8), tmp_path)
    known = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps({**known, "longest": [9, 1024]}))
    with pytest.raises(ValueError, match=r"model\.bin: 8 source positions: must be at least 9"):
        load(tmp_path)


def test_embedding_without_positions_is_refused(tmp_path: Path) -> None:
    exported(build(residual="post_ln"), tmp_path)
    weights = (tmp_path / "model.bin").read_bytes()
    assert weights.count(b"encoder/position_encodings/encodings") == 1
    changed = weights.replace(b"encoder/position_encodings/encodings", b"encoder/position_encodings/encodingz")
    (tmp_path / "model.bin").write_bytes(changed)
    with pytest.raises(ValueError, match=r"model\.bin: damaged, or not written by fairseq-resid export"):
        load(tmp_path)
