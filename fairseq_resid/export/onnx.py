"""ONNX: write a model of any residual structure for ONNX Runtime (onnx_runner.py) or another runtime.

encoder.onnx and decoder_step.onnx compute the modules of onnx_graph.py for any number and length of sentences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import records
from .engine import Record, check_package, quiet, symbols
from .onnx_runner import ENCODER, INPUTS, OUTPUTS, STEP, VOCABULARIES
from .onnx_runner import Model as Model

QUANTIZATIONS = ("int8", "float32")
OPSET = 18
MOST = 1 << 40  # bytes of a constant
EXTERNAL = 1_800_000_000  # bytes; an ONNX file is limited to 2 GiB, so larger weights are stored in FILE.data


def write(model: Any, source_dictionary: Any, target_dictionary: Any, folder: Path, record: Record) -> None:
    """Write the graphs and vocabularies of a fairseq Transformer in eval mode to a folder.

    Raises: ValueError naming the setting that the graphs do not support.
    """
    for package in ("onnx", "onnxscript"):
        check_package("onnx", package)
    import torch
    from torch.export import Dim

    from .onnx_graph import DecoderStep, Encoder, check

    check(model)
    for name, dictionary in zip(VOCABULARIES, (source_dictionary, target_dictionary), strict=True):
        records.write(folder / name, symbols(dictionary))
    batch, source, target = Dim("batch"), Dim("source"), Dim("target")
    is_int8 = record.quantization == "int8"
    encoder, decoder = Encoder(model, is_int8).eval(), DecoderStep(model, is_int8).eval()
    device = next(model.parameters()).device
    # torch.export turns sizes 0 and 1 into constants, and treats equal sizes as the same dimension.
    tokens = torch.full((2, 5), source_dictionary.eos(), device=device)
    with torch.no_grad():
        memory = encoder(tokens)
    attention = model.decoder.layers[0].self_attn
    keys = torch.zeros(len(model.decoder.layers), 2, attention.num_heads, 3, attention.head_dim, device=device)
    token, step = torch.full((2,), target_dictionary.eos(), device=device), torch.tensor(3, device=device)
    # Passing the same tensor twice would create a single input.
    given = (token, step, *memory, keys, keys.clone())
    source_sizes, target_sizes = {1: batch, 3: source}, {1: batch, 3: target}
    sizes = ({0: batch}, None, {0: batch, 1: source}, source_sizes, source_sizes, target_sizes, target_sizes)
    export(encoder, (tokens,), ({0: batch, 1: source},), folder / ENCODER, is_int8)
    export(decoder, given, sizes, folder / STEP, is_int8)


def export(graph: Any, given: tuple[Any, ...], sizes: tuple[Any, ...], file: Path, is_int8: bool) -> None:
    """Write a graph to a file. given: example inputs; sizes: for each input, its dynamic dimensions by name."""
    import torch
    from onnxscript.optimizer import fold_constants, remove_unused_nodes

    names = INPUTS[file.name], OUTPUTS[file.name]
    with quiet(), torch.no_grad():
        program: Any = torch.onnx.export(
            graph,
            given,
            dynamo=True,
            dynamic_shapes=sizes,
            input_names=names[0],
            output_names=names[1],
            opset_version=OPSET,
            verbose=False,
        )
        if is_int8:  # turn parts and transposed copies of weights into constants: only constants are quantised
            split_weights(program.model.graph)
            fold_constants(program.model, onnx_shape_inference=False, input_size_limit=MOST, output_size_limit=MOST)
            remove_unused_nodes(program.model)
        for node in program.model.graph:
            node.metadata_props.clear()  # the source code of each node, including paths on this machine
        size = sum(weight.const_value.nbytes for weight in program.model.graph.initializers.values())
        program.save(str(file), external_data=size > EXTERNAL)
    if is_int8:
        quantise(file)


def split_weights(graph: Any) -> None:
    """Replace every node that splits a weight with its results. fold_constants skips nodes with several outputs."""
    import numpy as np
    import onnx_ir

    for node in list(graph):
        if node.op_type == "Split" and node.inputs[0].const_value is not None:
            weight = node.inputs[0].const_value.numpy()
            parts = np.split(weight, len(node.outputs), axis=node.attributes["axis"].as_int())
            for output, part in zip(node.outputs, parts, strict=True):
                value = onnx_ir.val(f"{output.name}_weight", const_value=onnx_ir.tensor(part))
                graph.register_initializer(value)
                output.replace_all_uses_with(value)
            graph.remove(node, safe=True)


def quantise(file: Path) -> None:
    """Replace the weights of a graph's matrix products with 8-bit weights and one scale per column, in one file."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet():
        quantize_dynamic(
            file, file, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
        )
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)  # weights of the graph before
