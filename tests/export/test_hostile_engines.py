"""Untrusted engine files are refused with one line before the engine's library, which might crash, opens them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT
from fairseq_resid.export import onnx_runner
from fairseq_resid.export.engine import ENGINES, RECORD
from fairseq_resid.export.translator import Translator
from support.engines import need
from support.model_bin import ModelBin, Variable
from support.shells import run_within

from .test_hostile_exports import change, copied, made  # noqa: F401  (fixtures)

pytestmark = [need("ctranslate2"), need("onnx"), need("huggingface"), pytest.mark.once]


def refused(folder: Path, file: str | None = None) -> str:
    """Return the one-line error that refuses a folder; it must name the file."""
    with pytest.raises((ValueError, OSError)) as error:
        Translator(folder).translate(["w1 w2"])
    reason = str(error.value)
    assert str(folder / file if file else folder) in reason and "\n" not in reason, reason
    return reason


# ------------------------------------------------------------------------------------------------------ CTranslate2

Q = "encoder/layer_0/self_attention/linear_0/weight"


def resized(model: ModelBin, name: str, shape: list[int]) -> None:
    width = len(model.variables[name].content) // max(1, int(np.prod(model.variables[name].shape)))
    model.variables[name] = Variable(shape, model.variables[name].type, bytes(int(np.prod(shape)) * width))


def set_number(model: ModelBin, name: str, form: str, value: float) -> None:
    model.variables[name].content = struct.pack(form, value)


def renamed(model: ModelBin, before: str, after: str) -> None:
    model.variables = {name.replace(before, after): each for name, each in model.variables.items()}


def of_type(model: ModelBin, name: str, type_: int, width: int) -> None:
    shape = model.variables[name].shape
    model.variables[name] = Variable(shape, type_, bytes(int(np.prod(shape)) * width))


MODELS: dict[str, Callable[[ModelBin], Any]] = {
    "no heads": lambda m: set_number(m, "encoder/num_heads", "<h", 0),
    "negative heads": lambda m: set_number(m, "decoder/num_heads", "<h", -2),
    "heads that do not divide the width": lambda m: set_number(m, "encoder/num_heads", "<h", 3),
    "heads as a matrix": lambda m: resized(m, "encoder/num_heads", [2, 2]),
    "an unknown activation": lambda m: set_number(m, "encoder/activation", "<b", 99),
    "an unknown norm": lambda m: set_number(m, "decoder/pre_norm", "<b", 7),
    "a setting of another model": lambda m: set_number(m, "decoder/alibi", "<b", 1),
    "a scale that is not a number": lambda m: set_number(m, "encoder/scale_embeddings", "<f", float("nan")),
    "no scale": lambda m: m.variables.pop("encoder/scale_embeddings"),
    "a matrix with more rows": lambda m: resized(m, Q, [64, 16]),
    "a transposed matrix": lambda m: resized(m, Q, [16, 48]),
    "a matrix as a vector": lambda m: resized(m, Q, [48 * 16]),
    "three dimensions": lambda m: resized(m, Q, [3, 16, 16]),
    "an empty matrix": lambda m: resized(m, Q, [0, 16]),
    "a long bias": lambda m: resized(m, Q.replace("weight", "bias"), [49]),
    "a short norm": lambda m: resized(m, "encoder/layer_0/ffn/layer_norm/gamma", [15]),
    "a narrow embedding": lambda m: resized(m, "decoder/embeddings/weight", [54, 15]),
    "more words": lambda m: resized(m, "decoder/embeddings/weight", [55, 16]),
    "a projection to fewer words": lambda m: resized(m, "decoder/projection/weight", [53, 16]),
    "positions of a wrong width": lambda m: resized(m, "decoder/position_encodings/encodings", [64, 8]),
    "no norm": lambda m: m.variables.pop("decoder/layer_0/attention/layer_norm/gamma"),
    "no matrix": lambda m: m.variables.pop(Q),
    "no layer": lambda m: renamed(m, "decoder/layer_0", "decoder/layer_7"),
    "norms of another graph": lambda m: renamed(m, "layer_0/self_attention/layer_norm", "layer_0/input_layer_norm"),
    "a variable of another model": lambda m: m.variables.update(
        {"encoder/layer_0/self_attention/relative_position_keys": Variable([3, 8], 0, bytes(96))}
    ),
    "integers without a scale": lambda m: of_type(m, Q, 1, 1),
    "weights of an unused type": lambda m: of_type(m, Q, 3, 4),
    "one matrix in half precision": lambda m: of_type(m, Q, 4, 2),
    "an unknown type": lambda m: setattr(m.variables[Q], "type", 9),
    "fewer bytes": lambda m: setattr(m.variables[Q], "content", bytes(8)),
    "sizes larger than the file": lambda m: setattr(m.variables[Q], "shape", [1 << 31, 1 << 31]),
    "an alias of a missing name": lambda m: m.aliases.append(("x", "y")),
    "an alias of itself": lambda m: m.aliases.append(("x", "x")),
    "an alias of a known name": lambda m: m.aliases.append((Q, "decoder/projection/weight")),
    "a name with odd characters": lambda m: renamed(m, Q, "\x1b[2J/../x"),
    "bytes at the end": lambda m: setattr(m, "tail", b"\0"),
    "another kind of model": lambda m: setattr(m, "kind", (6, "WhisperSpec", 3)),
    "another version": lambda m: setattr(m, "kind", (5, "TransformerSpec", 7)),
    "nothing": lambda m: m.variables.clear(),
}


@pytest.mark.parametrize("how", MODELS)
def test_model_bin_must_match_an_export(how: str, copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("ctranslate2")
    model = ModelBin.read(folder / "model.bin")
    MODELS[how](model)
    model.write(folder / "model.bin")
    refused(folder, None if how == "more words" else "model.bin")


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_start_token": "w1"},
        {"unk_token": None},
        {"add_source_eos": False},
        {"layer_norm_epsilon": 0},
        {"layer_norm_epsilon": "x"},
        {"multi_query_attention": True},
        {"quantization_type": 1},
        {"rotary_dim": {"a": []}},
    ],
    ids=str,
)
def test_ctranslate2_settings_must_match_an_export(
    changes: dict[str, Any],
    copied: Callable[[str], Path],  # noqa: F811
) -> None:
    folder = copied("ctranslate2")
    change(folder / "config.json", **changes)
    assert next(iter(changes)) in refused(folder, "config.json")


WORDS = {
    "a line break": lambda words: [*words[:-1], "a\nb"],
    "a return": lambda words: [*words[:-1], "a\rb"],
    "a NUL": lambda words: [*words[:-1], "a\0"],
    "an empty word": lambda words: [*words[:-1], ""],
    "a repeated word": lambda words: [*words[:-1], words[5]],
    "no end of the sentence": lambda words: ["end" if word == "</s>" else word for word in words],
    "no unknown word": lambda words: [word for word in words if word != "<unk>"] + ["x"],
    "one word too few": lambda words: words[:-1],
    "one word too many": lambda words: [*words, "more"],
    "numbers": lambda words: list(range(len(words))),
    "nothing": lambda words: [],
}
VOCABULARIES = {
    "ctranslate2": "shared_vocabulary.json",
    "onnx": "target_vocabulary.json",
    "huggingface": "vocab.json",
}


@pytest.mark.parametrize("how", WORDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_vocabularies_are_checked(how: str, engine: str, copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied(engine)
    file = folder / VOCABULARIES[engine]
    words = WORDS[how](list(json.loads(file.read_text())))
    file.write_text(json.dumps({word: place for place, word in enumerate(words)} if engine == "huggingface" else words))
    refused(folder, None if engine == "onnx" else file.name)


@pytest.mark.parametrize("engine", ENGINES)
def test_vocabularies_that_are_not_utf8_are_reported(engine: str, copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied(engine)
    file = folder / VOCABULARIES[engine]
    file.write_bytes(file.read_bytes().replace(b"w1", b"\xff1", 1))
    refused(folder, file.name)


# ----------------------------------------------------------------------------------------------------- Hugging Face

CONFIGS: list[dict[str, Any]] = [
    {"auto_map": {"AutoModelForSeq2SeqLM": "code.Model"}},
    {"architectures": ["BartForConditionalGeneration"]},
    {"architectures": []},
    {"model_type": "m2m_100"},
    {"model_type": ["fsmt"]},
    {"activation_function": "os.system"},
    {"d_model": 0},
    {"d_model": -16},
    {"d_model": 1 << 40},
    {"d_model": 16.5},
    {"d_model": True},
    {"encoder_layers": 10**9},
    {"encoder_layers": 2},
    {"decoder_layers": 0},
    {"decoder_layers": None},
    {"encoder_attention_heads": 0},
    {"encoder_attention_heads": 3},
    {"decoder_ffn_dim": 1 << 30},
    {"src_vocab_size": 55},
    {"src_vocab_size": 0},
    {"tgt_vocab_size": 1 << 50},
    {"max_position_embeddings": 1 << 20},
    {"max_position_embeddings": 1 << 50},
    {"scale_embedding": "yes"},
    {"tie_word_embeddings": None},
]


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_fields_of_the_configuration_are_checked(
    changes: dict[str, Any],
    copied: Callable[[str], Path],  # noqa: F811
) -> None:
    folder = copied("huggingface")
    change(folder / "config.json", **changes)
    refused(folder)


def test_ids_of_the_vocabulary_have_no_gap(copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("huggingface")
    change(folder / "vocab.json", w0=1000)
    refused(folder, "vocab.json")


def test_other_files_and_fields_of_transformers_are_not_read(copied: Callable[[str], Path]) -> None:  # noqa: F811
    """Files that from_pretrained and the Auto classes would open are replaced by pipes, and must not be opened."""
    folder = copied("huggingface")
    expected = Translator(folder).translate(["w1 w2"])
    change(folder / "config.json", quantization_config={"quant_method": "x"}, num_beams=10**9, torch_dtype="x", langs=3)
    for name in (
        "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "code.py",
        "pytorch_model.bin", "pytorch_model.bin.index.json", "modeling_fsmt.py", "README.md", "source.spm",
    ):  # fmt: skip
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    assert Translator(folder).translate(["w1 w2"]) == expected


def rewritten(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(str(folder / "model.safetensors"))
    edit(weights)
    save_file(weights, str(folder / "model.safetensors"))


FC1 = "model.encoder.layers.0.fc1.weight"
WEIGHTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a matrix of a wrong shape": lambda w: w.update({FC1: torch.zeros(17, 16)}),
    "a transposed matrix": lambda w: w.update({"model.encoder.embed_tokens.weight": torch.zeros(16, 54)}),
    "integers": lambda w: w.update({FC1: torch.zeros(16, 16, dtype=torch.int64)}),
    "two types": lambda w: w.update({FC1: torch.zeros(16, 16, dtype=torch.float16)}),
    "a missing weight": lambda w: w.pop(FC1),
    "an extra weight": lambda w: w.update({"model.encoder.layers.9.fc1.weight": torch.zeros(16, 16)}),
    "no weights": lambda w: w.clear(),
}


@pytest.mark.parametrize("how", WEIGHTS)
def test_weights_must_match_the_configuration(how: str, copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("huggingface")
    rewritten(folder, WEIGHTS[how])
    refused(folder, "model.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        {FC1: {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}},
        {FC1: {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {FC1: {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"../../x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        [],
    ],
    ids=["huge", "backwards", "negative", "a path", "a list"],
)
def test_headers_of_the_weights_are_checked(header: Any, copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("huggingface")
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4))
    refused(folder, "model.safetensors")


def test_pickled_weights_are_not_loaded(copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("huggingface")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused(folder, "model.safetensors")


# ------------------------------------------------------------------------------------------------------------- ONNX


def edited(folder: Path, edit: Callable[[Any], Any], name: str = onnx_runner.STEP) -> None:
    import onnx

    model = onnx.load_model(str(folder / name), load_external_data=False)
    edit(model)
    (folder / name).write_bytes(model.SerializeToString())


def add_node(model: Any, *arguments: Any, **options: Any) -> None:
    from onnx import helper

    model.graph.node.append(helper.make_node(*arguments, **options))


def subgraph() -> Any:
    from onnx import TensorProto, helper

    kept = helper.make_tensor_value_info("kept", TensorProto.BOOL, [])
    true = helper.make_node("Constant", [], ["kept"], value_int=1)
    return helper.make_graph([true], "body", [], [kept])


def add_tensor(model: Any, name: str, type_: int, shape: list[int], **fields: Any) -> Any:
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type = name, type_
    tensor.dims.extend(shape)
    for key, value in fields.items():
        setattr(tensor, key, value)
    return tensor


def elsewhere(model: Any, location: str, length: int = 4, **more: int) -> None:
    tensor = add_tensor(model, "outside", 1, [length // 4], data_location=1)
    for key, value in {"location": location, "offset": 0, "length": length, **more}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)


def divide_integers(model: Any) -> None:
    add_tensor(model, "zero", 7, [1], raw_data=bytes(8))
    add_node(model, "Div", ["step", "zero"], ["nothing"])


def lie_about_integers(model: Any) -> None:
    from onnx import TensorProto, helper

    divide_integers(model)
    model.graph.value_info.append(helper.make_tensor_value_info("nothing", TensorProto.FLOAT, [1]))


def add_function(model: Any) -> None:
    function = model.functions.add()
    function.name, function.domain = "f", "own"


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "a loop": lambda m: add_node(m, "Loop", ["", "mask"], ["x"], body=subgraph()),
    "a branch": lambda m: add_node(m, "If", ["mask"], ["x"], then_branch=subgraph(), else_branch=subgraph()),
    "a scan": lambda m: add_node(m, "Scan", ["keys"], ["x"], body=subgraph(), num_scan_inputs=1),
    "a subgraph of a known operator": lambda m: add_node(m, "Add", ["keys", "keys"], ["x"], body=subgraph()),
    "an operator that no export has": lambda m: add_node(m, "ImageDecoder", ["keys"], ["x"]),
    "an operator of another library": lambda m: add_node(m, "Add", ["keys", "keys"], ["x"], domain="com.microsoft"),
    "operators of a library": lambda m: m.opset_import.add(domain="own", version=1),
    "operators of a future version": lambda m: setattr(m.opset_import[0], "version", 99),
    "a function": add_function,
    "training": lambda m: m.training_info.add(),
    "sparse numbers": lambda m: m.graph.sparse_initializer.add(),
    "a constant in a file outside the folder": lambda m: elsewhere(m, "../private"),
    "a constant in a device": lambda m: elsewhere(m, "/dev/zero"),
    "a constant in another file": lambda m: elsewhere(m, RECORD),
    "a constant in a missing file": lambda m: elsewhere(m, f"{onnx_runner.STEP}.data"),
    "a huge constant": lambda m: add_tensor(m, "huge", 1, [1 << 40, 1 << 20], raw_data=bytes(4)),
    "a huge constant without bytes": lambda m: add_tensor(m, "huge", 1, [1 << 40]),
    "a huge constant with few numbers": lambda m: add_tensor(m, "huge", 7, [1 << 38]).int64_data.append(1),
    "a negative size": lambda m: add_tensor(m, "negative", 1, [-1], raw_data=bytes(4)),
    "strings": lambda m: add_tensor(m, "strings", 8, [1]).string_data.append(b"x"),
    "a division of integers": divide_integers,
    "a division of integers that claims to divide floats": lie_about_integers,
    "a repeated name": lambda m: add_tensor(m, m.graph.initializer[0].name, 1, [1], raw_data=bytes(4)),
    "a missing input": lambda m: m.graph.input.pop(),
    "an extra output": lambda m: m.graph.output.append(m.graph.input[0]),
    "no nodes": lambda m: m.graph.ClearField("node"),
    "no graph": lambda m: m.ClearField("graph"),
    "no metadata": lambda m: m.ClearField("metadata_props"),
    "keys of a wrong shape": lambda m: setattr(m.graph.input[5].type.tensor_type.shape.dim[2], "dim_value", 10**12),
    "another output": lambda m: (
        setattr(next(node for node in m.graph.node if "new_keys" in node.output), "name", "x"),
        swap(m, "new_keys", "new_values"),
    ),
}


def swap(model: Any, one: str, other: str) -> None:
    """Replace an output with a constant of a different shape."""
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == one:
                node.output[place] = "unused"
    model.graph.output[1].type.tensor_type.ClearField("shape")
    add_tensor(model, one, 1, [1], raw_data=bytes(4))


@pytest.mark.parametrize("how", GRAPHS)
def test_graph_with_unexpected_parts_is_refused(how: str, copied: Callable[[str], Path], tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "private").write_bytes(bytes(4))
    folder = copied("onnx")
    edited(folder, GRAPHS[how])
    refused(folder, onnx_runner.STEP)


def key(field: int, content: bytes) -> bytes:
    """Return a field of a message, with its length."""
    length, head = len(content), bytearray()
    for number in (field << 3 | 2, length):
        while number > 127:
            head.append(number & 127 | 128)
            number >>= 7
        head.append(number)
    return bytes(head) + content


def nested(levels: int) -> bytes:
    found = b""
    for _ in range(levels):
        found = key(4, key(1, found))  # a sequence of sequences
    return found


FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "text": lambda raw: b"hello",
    "an endless number": lambda raw: raw + b"\xff" * 50,
    "a length beyond the file": lambda raw: raw + b"\x3a\xff\xff\xff\xff\x0f",
    "a second graph": lambda raw: raw + key(7, b""),
    "deep types": lambda raw: key(7, key(13, key(2, nested(5000)))) + raw,
    "an unknown field": lambda raw: raw + key(1000, b"x"),
    "a group": lambda raw: raw + b"\x3b\x3c",
    "many fields": lambda raw: raw + b"\x72\x00" * 3_000_000,
    "a graph that is a number": lambda raw: b"\x38\x01",
    "a version that is text": lambda raw: raw.replace(b"\x08\x0a", b"\x0a\x01\x0a", 1),
}


@pytest.mark.parametrize("how", FILES)
def test_messages_of_a_graph_are_checked(how: str, copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("onnx")
    file = folder / onnx_runner.ENCODER
    file.write_bytes(FILES[how](file.read_bytes()))
    refused(folder, file.name)


def test_encoder_in_place_of_the_decoder_step_is_refused(copied: Callable[[str], Path]) -> None:  # noqa: F811
    folder = copied("onnx")
    shutil.copy(folder / onnx_runner.ENCODER, folder / onnx_runner.STEP)
    refused(folder, onnx_runner.STEP)


def test_memory_of_a_graph_is_limited(copied: Callable[[str], Path]) -> None:  # noqa: F811
    """The graph computes the outer product of two vectors of a million numbers, which needs 4 TB."""

    def edit(model: Any) -> None:
        add_tensor(model, "column", 1, [1_000_000, 1], raw_data=bytes(4_000_000))
        add_tensor(model, "row", 1, [1, 1_000_000], raw_data=bytes(4_000_000))
        for node in model.graph.node:
            for place, name in enumerate(node.output):
                if name == "log_p":
                    node.output[place] = "before"
        add_node(model, "Mul", ["column", "row"], ["large"])
        add_node(model, "ReduceMax", ["large"], ["most"], keepdims=0)
        add_node(model, "Add", ["most", "before"], ["log_p"])

    folder = copied("onnx")
    edited(folder, edit)
    reason = refused(folder, onnx_runner.STEP)
    assert "memory" in reason, reason


def test_weights_outside_the_graph_are_read_from_its_own_file(copied: Callable[[str], Path]) -> None:  # noqa: F811
    import onnx

    folder = copied("onnx")
    expected = Translator(folder).translate(["w1 w2"])
    name = onnx_runner.STEP
    model = onnx.load_model(str(folder / name))
    onnx.save_model(model, str(folder / name), save_as_external_data=True, location=f"{name}.data", size_threshold=100)
    assert Translator(folder).translate(["w1 w2"]) == expected
    data = folder / f"{name}.data"
    data.write_bytes(data.read_bytes()[:-1])
    refused(folder, name)


# ------------------------------------------------------------------------------------------------- random damage


@pytest.mark.parametrize("tries", [pytest.param(60), pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.parametrize("engine", ENGINES)
def test_damaged_exports_translate_or_are_refused(engine: str, tries: int, made: Path, tmp_path: Path) -> None:  # noqa: F811
    program = ROOT / "tests" / "support" / "damaged_exports.py"
    command = [sys.executable, program, made / engine, tries, tmp_path / "damaged"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = run_within(60 + 2 * tries, command, env=environment)
    *cases, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"{done.returncode} at {cases[-1:]} {last}: {done.stderr[-2000:]}"
    counts = json.loads(last)
    assert counts["refused"] + counts["translated"] == tries and counts["refused"] > tries // 3
