"""ONNX: exported graphs give the model's results for every structure and size."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT
from fairseq_resid.export import onnx, onnx_runner
from fairseq_resid.export.onnx_graph import DecoderStep, Encoder
from support.engines import SETTINGS, SMALL, exported, need, worst_difference
from support.models import DICT, EOS, PAD, PRE, build, left_padded, sentences, shaken, stock
from support.structures import each, each_variant

ENGINE = "onnx"
pytestmark = [need(ENGINE), pytest.mark.once]
TOLERANCE = 2e-5
# Lengths of the sentences in each batch, without </s>. The graphs are traced with two unpadded sources of 5 words.
SIZES = [(0,), (3, 9, 5, 2), (12, 1, 7)]


def batch(lengths: tuple[int, ...], words: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return padded sources with </s>, their lengths, and decoder inputs."""
    end = torch.tensor([EOS])
    rows = [torch.cat([row, end]) for row in sentences(1, lengths, words)]
    inputs = [torch.cat([end, row]) for row in sentences(2, (6,) * len(lengths))]
    return left_padded(rows), torch.tensor([len(row) for row in rows]), torch.stack(inputs)


def relative(found: Any, expected: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value if that exceeds 1."""
    difference = (torch.as_tensor(np.array(found)) - expected).abs().max()
    return (difference / expected.abs().max().clamp(min=1)).item()


def check_graphs(model: Any, encode: Any, decode: Any, words: int = len(DICT)) -> None:
    """Compare an encoder and a decoder step with a model, on batches of several sizes.

    encode(tokens) -> mask, keys, values; decode(token, step, mask, keys, values, keys, values) -> log p, keys, values
    """
    attention = model.decoder.layers[0].self_attn
    for lengths in SIZES:
        source, source_lengths, previous = batch(lengths, words)
        with torch.no_grad():
            log_p = model(source, source_lengths, previous)[0].log_softmax(-1)
            output = model.encoder(source, source_lengths)["encoder_out"][0].transpose(0, 1)
        memory = encode(source)
        assert torch.equal(torch.as_tensor(np.array(memory[0])), source == PAD)
        for number, layer in enumerate(model.decoder.layers):
            for linear, found in zip((layer.encoder_attn.k_proj, layer.encoder_attn.v_proj), memory[1:], strict=True):
                with torch.no_grad():
                    expected = linear(output).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
                kept = (source != PAD)[:, None, :, None]
                assert relative(np.where(kept, found[number], 0), torch.where(kept, expected, 0)) < TOLERANCE
        shape = (len(model.decoder.layers), len(lengths), attention.num_heads, 0, attention.head_dim)
        keys = values = torch.zeros(shape)
        for step in range(previous.size(1)):
            found, keys, values = decode(previous[:, step], torch.tensor(step), *memory, keys, values)
            assert relative(found, log_p[:, step]) < TOLERANCE
            assert keys.shape == values.shape == (*shape[:3], step + 1, shape[4])


def check_engine(model: Any, engine: Any, words: int = len(DICT)) -> None:
    """Compare an exported model with the original."""

    def run(session: Any, *given: Any) -> Any:
        names = [each.name for each in session.get_inputs()]
        return session.run(None, {name: np.array(value) for name, value in zip(names, given, strict=True)})

    check_graphs(model, functools.partial(run, engine.encoder), functools.partial(run, engine.decoder), words)


def check_modules(model: Any, words: int = len(DICT)) -> None:
    """Compare the modules, before they are exported, with the model."""
    with torch.no_grad():
        check_graphs(model, Encoder(model), DecoderStep(model), words)


def check_encoder_graph(model: Any, file: Path) -> None:
    """Compare the exported encoder with its module, on batches of sizes with which it was not traced."""
    import onnxruntime

    encoder, sizes = Encoder(model).eval(), {0: torch.export.Dim("batch"), 1: torch.export.Dim("source")}
    onnx.export(encoder, (torch.full((2, 5), EOS),), (sizes,), file, False)
    session = onnxruntime.InferenceSession(str(file))
    for lengths in SIZES:
        source = batch(lengths, len(DICT))[0]
        found = session.run(None, {session.get_inputs()[0].name: source.numpy()})
        with torch.no_grad():
            expected = encoder(source)
        assert np.array_equal(found[0], expected[0])
        kept = (source != PAD)[:, None, :, None]
        for mine, theirs in zip(found[1:], expected[1:], strict=True):
            assert relative(np.where(kept, mine, 0), torch.where(kept, theirs, 0)) < TOLERANCE


@pytest.mark.slow
@each
def test_graph_computes_structure_at_untraced_sizes(name: str, tmp_path: Path) -> None:
    """The graph of the decoder, which takes seconds longer, contains the same sites; the variants below export it."""
    model = shaken(build(residual=name, **{**SMALL, "encoder_layers": 2, "decoder_layers": 1}), 7, 0.1)
    check_encoder_graph(model, tmp_path / "encoder.onnx")


@pytest.mark.parametrize("norm", ["rms", "scale", "dyt", "derf"])
def test_graph_computes_another_norm(norm: str, tmp_path: Path) -> None:
    model = shaken(build(residual="rskip_ln", norm=norm, final_norm="layer", **SMALL), 7, 0.1)
    check_encoder_graph(model, tmp_path / "encoder.onnx")


VARIANTS = [
    ("hyper", {"hyper_weights": "static"}),
    ("attn_residual", {"block_size": 2}),
    ("sas", {"sas_gate": "transform", "sas_gamma": "free"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_graphs_compute_structure_with_options(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = shaken(build(residual=name, **options, **SMALL), 7, 0.1)
    check_engine(model, exported(ENGINE, model, tmp_path))


@each_variant
def test_modules_compute_structure(name: str, options: dict[str, Any]) -> None:
    check_modules(shaken(build(residual=name, **options, **SMALL), 7, 0.1))


@pytest.mark.parametrize("name", SETTINGS)
def test_modules_support_fairseq_setting(name: str) -> None:
    settings, task = SETTINGS[name]
    check_modules(shaken(build(task=task, **settings), 7, 0.1), len(task.source_dictionary))


WIDTHS = {"decoder_input_dim": 32, "decoder_output_dim": 24, "share_decoder_input_output_embed": False}


@pytest.mark.parametrize(
    "settings",
    [
        {"no_token_positional_embeddings": True},
        {"quant_noise_pq": 0.1},
        {**WIDTHS, "quant_noise_pq": 0.1},
        {"checkpoint_activations": True},
        {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},
    ],
    ids=str,
)
def test_modules_support_settings_that_other_engines_lack(settings: dict[str, Any]) -> None:
    check_modules(shaken(build(residual="deep_norm", **settings), 7, 0.1))


SCALINGS = {"scale_attn": True, "scale_fc": True, "scale_heads": True, "scale_resids": True}


@pytest.mark.parametrize("settings", [{}, PRE, {**PRE, **SCALINGS}, {"scale_heads": True}], ids=str)
def test_modules_compute_stock_transformers(settings: dict[str, Any]) -> None:
    check_modules(shaken(stock(**settings), 7, 0.1))


def test_stock_transformer_with_many_settings_can_be_exported(tmp_path: Path) -> None:
    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True, "layernorm_embedding": True}
    model = shaken(stock(**{**SMALL, **PRE, **SCALINGS, **learned}), 7, 0.1)
    check_engine(model, exported(ENGINE, model, tmp_path))


def test_model_with_two_dictionaries_and_widths_can_be_exported(tmp_path: Path) -> None:
    task = SETTINGS["two dictionaries"][1]
    widths = {"encoder_embed_dim": 32, "decoder_attention_heads": 4, "activation_fn": "gelu", "final_norm": "layer"}
    model = shaken(build(task=task, residual="rskip_ln", **{**SMALL, **widths}), 7, 0.1)
    engine = exported(ENGINE, model, tmp_path, task)
    check_engine(model, engine, len(task.source_dictionary))
    assert worst_difference(engine, model, task) < TOLERANCE


def test_int8_leaves_no_matrix_in_float32(tmp_path: Path) -> None:
    from onnx import TensorProto, load_model

    model = build(residual="sas", **SMALL)
    assert 0 < worst_difference(exported(ENGINE, model, tmp_path, quantization="int8"), model) < 0.1
    linears = {onnx_runner.ENCODER: 6 + 2 * 2, onnx_runner.STEP: 2 * 8 + 1}
    for name, least in linears.items():
        graph = load_model(str(tmp_path / name)).graph
        floats = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT]
        assert not [tensor.name for tensor in floats if sum(size > 1 for size in tensor.dims) > 1]
        assert sum(node.op_type == "MatMulInteger" for node in graph.node) >= least


def test_shared_embeddings_are_stored_once_per_graph(tmp_path: Path) -> None:
    from onnx import load_model

    sizes = {**SMALL, "encoder_embed_dim": 32, "decoder_embed_dim": 32}  # smaller tensors are merged anyway
    model = build(residual="post_ln", share_all_embeddings=True, **sizes)
    assert exported(ENGINE, model, tmp_path)
    shape = sorted(model.decoder.embed_tokens.weight.shape)
    for name in (onnx_runner.ENCODER, onnx_runner.STEP):
        shapes = [sorted(tensor.dims) for tensor in load_model(str(tmp_path / name)).graph.initializer]
        assert shapes.count(shape) == 1


def test_int8_leaves_no_weights_in_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "EXTERNAL", 0)
    model = build(residual="post_ln", **SMALL)
    for quantization, is_split in ((None, True), ("int8", False)):
        folder = tmp_path / str(quantization)
        assert exported(ENGINE, model, folder, quantization=quantization)
        assert bool(list(folder.glob("*.data"))) == is_split


def test_export_writes_its_files_and_leaves_the_model_unchanged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = build(residual="resi_dual", **SMALL)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    caplog.clear()
    assert exported(ENGINE, model, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "encoder.onnx", "decoder_step.onnx", "source_vocabulary.json", "target_vocabulary.json", "export.json",
    }  # fmt: skip
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.training and logging.root.manager.disable == logging.NOTSET
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []
    for name in (onnx_runner.ENCODER, onnx_runner.STEP):
        assert str(ROOT).encode() not in (tmp_path / name).read_bytes()


RUN = """
import json, sys
from pathlib import Path
from fairseq_resid.export.engine import Search, load
engine = load(Path(sys.argv[1]), threads=1)
found = engine.translate([["w1", "w2"]], Search(max_len_b=3))[0][0].tokens
scores = engine.score([["w1", "w2"]], [list(found)])
print(json.dumps([found, scores, [name for name in ("torch", "fairseq", "onnx") if name in sys.modules]]))
"""


def test_translation_imports_neither_torch_nor_fairseq(tmp_path: Path) -> None:
    exported(ENGINE, build(residual="post_ln", **SMALL), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    found, scores, imported = json.loads(done.stdout)
    assert len(scores[0]) == len(found) + 1 and imported == [] and done.stderr == ""
