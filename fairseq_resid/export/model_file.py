"""Read and check the headers of model.bin, the weights of a CTranslate2 model, because the engine checks little itself.

    version of the format (u32), kind of model (string), version of the kind (u32)
    number of variables (u32); for each: name (string), number of dimensions (u8), sizes (u32 each), type (u8),
    number of bytes (u32), content
    number of aliases (u32); for each: alias, name of a variable (strings)

A string is stored as its length (u16, including a final NUL) and its bytes. All numbers are little-endian.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..files import ANY_SIZE, bounded, open_regular
from ..foreign import printable

KIND = (6, "TransformerSpec", 7)
# The struct format of each type, by its number in the file: float32, int8, int16, int32, float16, bfloat16.
FORMS = ("<f", "<b", "<h", "<i", "<e", "<H")
BYTES = tuple(struct.calcsize(form) for form in FORMS)
FLOAT, INT8, INT16 = 0, 1, 2
FLOATS = (0, 4, 5)
MOST_NAMES, MOST_NAME = 100_000, 200
STACKS = ("encoder", "decoder")
# The type and the allowed values of each setting; None for any positive number.
SETTINGS: dict[str, tuple[int, tuple[int, ...] | None]] = {
    **{f"{stack}/activation": (INT8, (0, 1, 2, 3)) for stack in STACKS},
    **{f"{stack}/pre_norm": (INT8, (0, 1)) for stack in STACKS},
    **{f"{stack}/num_heads": (INT16, None) for stack in STACKS},
    **{f"{stack}/scale_embeddings": (FLOAT, None) for stack in STACKS},
    "encoder/embeddings_merge": (INT8, (0,)),
    "encoder/multi_query_attention": (INT8, (0,)),
    "decoder/alibi": (INT8, (0,)),
    "decoder/alibi_use_positive_positions": (INT8, (0,)),
    "decoder/alignment_heads": (INT16, (1,)),
    "decoder/alignment_layer": (INT16, (-1,)),
    "decoder/scale_alibi": (INT8, (0,)),
    "decoder/start_from_zero_embedding": (INT8, (0,)),
}
TWICE = {  # the norms around each sublayer of a graph that has two of them
    "self_attention": ("input_layer_norm", "post_attention_layer_norm"),
    "attention": ("external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm"),
    "ffn": ("pre_feedforward_layer_norm", "post_feedforward_layer_norm"),
}


@dataclass(frozen=True)
class Variable:
    """The header of a variable, and its value if it is one number."""

    shape: tuple[int, ...]
    type: int
    value: float | None = None


@dataclass(frozen=True)
class Sizes:
    """The numbers of rows in the tables of a stack."""

    words: int
    positions: int


def check(file: Path) -> tuple[Sizes, Sizes]:
    """Check that a model has the variables, shapes and types that an export has, and return the sizes of both sides.

    Raises: OSError if it does not exist; ValueError naming the file and the problem.
    """
    try:
        return check_variables(read(file))
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{file}: damaged, or not written by fairseq-resid export: {error}") from None


def read(file: Path) -> dict[str, Variable]:
    """Return the headers of all variables by name and by alias.

    Raises: OSError; struct.error, UnicodeDecodeError or ValueError for a damaged file.
    """
    found: dict[str, Variable] = {}
    with open_regular(file, ANY_SIZE) as stream:
        size = os.fstat(stream.fileno()).st_size
        kind = number(stream, "<I"), word(stream), number(stream, "<I")
        if kind != KIND:
            raise ValueError(f"kind {printable(kind)}: must be {KIND}")
        for _ in range(bounded(number(stream, "<I"), 1, MOST_NAMES)):
            name = word(stream)
            shape = tuple(number(stream, "<I") for _ in range(bounded(number(stream, "<B"), 0, 2)))
            type_ = bounded(number(stream, "<B"), 0, len(BYTES) - 1)
            length, end = number(stream, "<I"), math.prod(shape) * BYTES[type_]
            if name in found:
                raise ValueError(f"{name}: given twice; must be unique")
            if length != end or length == 0:
                raise ValueError(
                    f"{name}: {length:,} bytes: must be {end:,} for shape {shape}, which must not be empty"
                )
            if shape:
                stream.seek(length, os.SEEK_CUR)
            found[name] = Variable(shape, type_, None if shape else number(stream, FORMS[type_]))
        for _ in range(bounded(number(stream, "<I"), 0, MOST_NAMES)):
            alias, name = word(stream), word(stream)
            if {alias, f"{alias}_scale"} & found.keys():
                raise ValueError(f"{alias}: {alias} or {alias}_scale is given twice; must be unique")
            if name not in found:
                raise ValueError(f"{alias}: an alias of {name}, which does not exist; must be an alias of a variable")
            found[alias] = found[name]
            if f"{name}_scale" in found:  # the engine does the same
                found[f"{alias}_scale"] = found[f"{name}_scale"]
        if stream.tell() != size:
            raise ValueError(f"{size:,} bytes: must be {stream.tell():,}")
    return found


def number(stream: BinaryIO, form: str) -> Any:
    """Read and return a number."""
    return struct.unpack(form, stream.read(struct.calcsize(form)))[0]


def word(stream: BinaryIO) -> str:
    """Read and return a string, which may only contain the characters of names."""
    raw = stream.read(bounded(number(stream, "<H"), 1, MOST_NAME))
    if not re.fullmatch(rb"[A-Za-z0-9_/]+\0", raw):
        raise ValueError(f"name {raw[:40]!r}: must consist of ASCII letters, digits, _ and /, and end with NUL")
    return raw[:-1].decode()


def check_variables(found: dict[str, Variable]) -> tuple[Sizes, Sizes]:
    """Compare variables with those of an export of the same sizes. Raises: ValueError naming the first wrong one."""
    left = dict(found)
    settings = {}
    for name, (type_, allowed) in SETTINGS.items():
        settings[name] = take(left, name, (), (type_,)).value or 0
        if not (settings[name] in allowed if allowed else 0 < settings[name] < 1e6):
            raise ValueError(f"{name}: {settings[name]}: must be {allowed or 'a positive number'}")
    source = matrix_of(found, "encoder/embeddings_0/weight")[1]
    sizes = []
    for stack, table in (("encoder", "encoder/embeddings_0"), ("decoder", "decoder/embeddings")):
        words, width = matrix_of(found, f"{table}/weight")
        positions = matrix_of(found, f"{stack}/position_encodings/encodings")[0]
        take(left, f"{stack}/position_encodings/encodings", (positions, width))
        take_matrix(left, table, words, width)
        for name in ("layernorm_embedding", "layer_norm"):
            if f"{stack}/{name}/gamma" in left:
                take_norm(left, f"{stack}/{name}", width)
        if width % int(settings[f"{stack}/num_heads"]):
            raise ValueError(f"{stack}/num_heads: must divide the width {width}")
        is_twice = f"{stack}/layer_0/input_layer_norm/gamma" in found
        if is_twice and not settings[f"{stack}/pre_norm"]:
            raise ValueError(f"{stack}/pre_norm: must be 1 if there are norms on both sides of a sublayer")
        for layer in layers(found, stack):
            take_layer(left, layer, width, source if stack == "decoder" else None, is_twice)
        sizes.append(Sizes(words, positions))
    take_linear(left, "decoder/projection", sizes[1].words, width)
    if left:
        raise ValueError(f"{min(left)}: not a variable of such a model")
    arrays = {name: each.type for name, each in found.items() if each.shape and not name.endswith("/weight_scale")}
    if len({type_ for name, type_ in arrays.items() if name.endswith("/weight")}) > 1:
        raise ValueError("weights of different types: all must have the same type")
    if len({type_ for type_ in arrays.values() if type_ in FLOATS}) > 1:
        raise ValueError("floating-point arrays of different types: all must have the same type")
    return sizes[0], sizes[1]


def layers(found: dict[str, Variable], stack: str) -> Iterator[str]:
    """Yield the names of the layers of a stack."""
    count = 0
    while f"{stack}/layer_{count}/ffn/linear_0/weight" in found:
        yield f"{stack}/layer_{count}"
        count += 1


def take_layer(left: dict[str, Variable], layer: str, width: int, source: int | None, is_twice: bool) -> None:
    """Check and remove the variables of a layer.

    source: the width of the encoder for a layer of the decoder, or None; is_twice: whether a sublayer has two norms
    """
    inner = matrix_of(left, f"{layer}/ffn/linear_0/weight")[0]
    linears = {"self_attention": [(3 * width, width), (width, width)], "ffn": [(inner, width), (width, inner)]}
    if source is not None:
        linears["attention"] = [(width, width), (2 * width, source), (width, width)]
    for part, shapes in linears.items():
        for place, (rows, columns) in enumerate(shapes):
            take_linear(left, f"{layer}/{part}/linear_{place}", rows, columns)
        for norm in TWICE[part] if is_twice else [f"{part}/layer_norm"]:
            take_norm(left, f"{layer}/{norm}", width)


def take_norm(left: dict[str, Variable], name: str, width: int) -> None:
    """Check and remove the variables of a LayerNorm."""
    for part in ("gamma", "beta"):
        take(left, f"{name}/{part}", (width,))


def take_linear(left: dict[str, Variable], name: str, rows: int, columns: int) -> None:
    """Check and remove the variables of a linear map."""
    take_matrix(left, name, rows, columns)
    if f"{name}/bias" in left:
        take(left, f"{name}/bias", (rows,))


def take_matrix(left: dict[str, Variable], name: str, rows: int, columns: int) -> None:
    """Check and remove a matrix, and its scales if its values are integers."""
    found = take(left, f"{name}/weight", (rows, columns), (*FLOATS, INT8, INT16))
    if found.type in (INT8, INT16):
        take(left, f"{name}/weight_scale", (rows,) if found.type == INT8 else (), (FLOAT,))


def matrix_of(found: dict[str, Variable], name: str) -> tuple[int, int]:
    """Return the shape of a matrix. Raises: ValueError naming it if it is missing or not a matrix."""
    shape = found[name].shape if name in found else ()
    if len(shape) != 2:
        raise ValueError(f"{name}: missing, or not a matrix")
    return shape[0], shape[1]


def take(left: dict[str, Variable], name: str, shape: tuple[int, ...], types: tuple[int, ...] = FLOATS) -> Variable:
    """Check and remove a variable. Raises: ValueError naming it if it is missing or its shape or type is wrong."""
    variable = left.pop(name, None)
    if variable is None or variable.shape != shape or variable.type not in types:
        has = "missing" if variable is None else f"type {variable.type} and shape {variable.shape}"
        raise ValueError(f"{name}: {has}: must have type {' or '.join(map(str, types))} and shape {shape}")
    return variable
