"""Read and check an ONNX file before ONNX Runtime opens it: the operators, types and sizes of the graph.

The file is a Protocol Buffers message. It is read here without the package onnx, which ONNX Runtime does not require
either. A field or an operator that exports do not use is refused. An accepted graph therefore contains no loops,
branches, functions or operators of other libraries, and FILE.data is the only other file that it reads.

Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files import ANY_SIZE, bounded, open_regular
from ..foreign import printable

# All operators that exports use, from ONNX's own domain. None of them runs a subgraph. tests/export/test_onnx.py loads
# an export of every structure, and fails with the name of a missing operator.
OPERATORS = {
    "Add", "Cast", "Clip", "Concat", "CumSum", "Div", "DynamicQuantizeLinear", "Equal", "Erf", "Exp", "Expand",
    "Gather", "Gelu", "Gemm", "LayerNormalization", "Log", "LogSoftmax", "MatMul", "MatMulInteger", "Mul", "Neg",
    "Not", "Pow", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Shape",
    "Sigmoid", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
DIVIDING = ("Div", "Mod")  # a division of integers by zero would end the process
FLOAT = 1
BYTES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}  # bytes per number, by the index of its type
OPSETS = (18, 24)
MOST_FIELDS, MOST_SIZE = 1_000_000, 1 << 40

# The fields of each message by number: a kind from WIRES, or the message that it contains; * means that it may be
# repeated. ONNX Runtime's parser ignores a field with a different wire type, so checking the value of such a field
# would prove nothing.
WIRES = {"number": (0,), "numbers": (0, 2), "float": (5,), "floats": (5, 2), "text": (2,)}
MESSAGES: dict[str, dict[int, str]] = {
    "model": {
        **{1: "number", 2: "text", 3: "text", 4: "text", 5: "number", 6: "text"},
        **{7: "graph", 8: "opset*", 14: "entry*"},
    },
    "opset": {1: "text", 2: "number"},
    "entry": {1: "text", 2: "text"},
    "graph": {
        **{1: "node*", 2: "text", 5: "tensor*", 10: "text"},
        **{11: "value*", 12: "value*", 13: "value*", 16: "entry*"},
    },
    "node": {1: "text*", 2: "text*", 3: "text", 4: "text", 5: "attribute*", 6: "text", 7: "text", 9: "entry*"},
    "attribute": {
        **{1: "text", 2: "float", 3: "number", 4: "text", 5: "tensor"},
        **{7: "floats*", 8: "numbers*", 13: "text", 20: "number"},
    },
    "tensor": {
        **{1: "numbers*", 2: "number", 4: "floats*", 5: "numbers*", 7: "numbers*", 8: "text", 9: "text"},
        **{12: "text", 13: "entry*", 14: "number", 16: "entry*"},
    },
    "value": {1: "text", 2: "type", 3: "text", 4: "entry*"},
    "type": {1: "tensor type", 6: "text"},
    "tensor type": {1: "number", 2: "shape"},
    "shape": {1: "dimension*"},
    "dimension": {1: "number", 2: "text", 3: "text"},
}


class Message:
    """A message, whose fields are numbers, parts of the file, or messages.

    Raises: ValueError for a damaged message, or one with a field that exports do not use.
    """

    def __init__(self, content: memoryview, kind: str, budget: Iterator[int]) -> None:
        self.fields: dict[int, list[Any]] = {}
        known, place = MESSAGES[kind], 0
        while place < len(content):
            if next(budget, None) is None:
                raise ValueError(f"more than {MOST_FIELDS:,} fields")
            key, place = varint(content, place)
            number, wire = key >> 3, key & 7
            if number not in known:
                raise ValueError(f"{kind} with field {number}: no export has one")
            inner = known[number].rstrip("*")
            value: Any
            if wire not in WIRES.get(inner, (2,)):
                raise ValueError(f"{kind}: wrong type of field {number}")
            if wire == 0:
                value, place = varint(content, place)
            else:
                length, place = varint(content, place) if wire == 2 else (4, place)
                value, place = content[place : place + length], place + length
            if place > len(content):
                raise ValueError(f"{kind}: ends early")
            if number in self.fields and not known[number].endswith("*"):
                raise ValueError(f"{kind}: repeats field {number}")
            self.fields.setdefault(number, []).append(value if inner in WIRES else Message(value, inner, budget))

    def messages(self, number: int) -> list[Message]:
        """Return the messages in a field."""
        return self.fields.get(number, [])

    def texts(self, number: int) -> list[str]:
        """Return the texts in a field."""
        return [bytes(value).decode("utf-8") for value in self.fields.get(number, [])]

    def text(self, number: int) -> str:
        """Return the text in a field, or "" if there is none."""
        return "".join(self.texts(number))

    def numbers(self, number: int) -> list[int]:
        """Return the integers in a field."""
        found = []
        for value in self.fields.get(number, []):
            place = 0
            while isinstance(value, memoryview) and place < len(value):
                one, place = varint(value, place)
                found.append(one)
            if not isinstance(value, memoryview):
                found.append(value)
        return found

    def number(self, field: int) -> int:
        """Return the integer in a field, or 0 if there is none."""
        return sum(self.numbers(field))

    def size(self, number: int) -> int:
        """Return the number of bytes in a field."""
        return sum(len(value) if isinstance(value, memoryview) else 1 for value in self.fields.get(number, []))


def varint(content: memoryview, place: int) -> tuple[int, int]:
    """Return an unsigned number of variable length and the position after it."""
    found = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        byte = content[place]
        place += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, place
    raise ValueError("an unterminated number")


def check(file: Path) -> None:
    """Check that a graph contains only parts that exports contain.

    Raises: OSError if the file does not exist; ValueError naming it and the problem.
    """
    with open_regular(file, ANY_SIZE) as stream:
        try:
            check_model(memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)), file)
        except ValueError as error:  # mmap raises it too, for an empty file
            raise ValueError(f"{file}: damaged, or not written by fairseq-resid export: {error}") from None


def check_model(content: memoryview, file: Path) -> None:
    """Check a model. Raises: ValueError naming the first wrong part."""
    model = Message(content, "model", iter(range(MOST_FIELDS)))
    for opset in model.messages(8):
        if opset.text(1) or not OPSETS[0] <= opset.number(2) <= OPSETS[1]:
            named = f"{printable(opset.text(1)[:40])} {opset.number(2)}"
            raise ValueError(f"operators {named}: must be ONNX's own, version {OPSETS[0]} to {OPSETS[1]}")
    graphs = model.messages(7)
    if len(graphs) != 1 or len(model.messages(8)) != 1:
        raise ValueError("must have one graph and one version of the operators")
    graph = graphs[0]
    types = check_names(graph)
    for tensor in graph.messages(5):
        check_tensor(tensor, file)
    for node in graph.messages(1):
        name = node.text(4)
        if node.text(7) or name not in OPERATORS:
            raise ValueError(f"operator {printable(node.text(7)[:40])} {printable(name[:40])}: no export has it")
        for attribute in node.messages(5):
            for tensor in attribute.messages(5):
                check_tensor(tensor, file)
        # ONNX Runtime refuses a file that states a wrong type for a value.
        if name in DIVIDING and any(types.get(output) != FLOAT for output in node.texts(2)):
            raise ValueError(f"operator {name} on numbers other than floats: no export has it")


def check_names(graph: Message) -> dict[str, int]:
    """Check that no value is produced twice or declared twice, and return the declared types.

    Raises: ValueError naming the first such value.
    """
    made = [value.text(1) for value in graph.messages(11)] + [tensor.text(8) for tensor in graph.messages(5)]
    made += [output for node in graph.messages(1) for output in node.texts(2) if output]
    typed = [(value.text(1), value.messages(2)) for field in (11, 12, 13) for value in graph.messages(field)]
    for names in (made, [name for name, _ in typed]):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise ValueError(f"value {printable(name[:80])}: repeated")
            seen.add(name)
    return {name: tensor.number(1) for name, kinds in typed for kind in kinds for tensor in kind.messages(1)}


def check_tensor(tensor: Message, file: Path) -> None:
    """Check that a constant has as many bytes as its shape requires, in this file or in FILE.data.

    Raises: ValueError naming the constant.
    """
    name, width = printable(tensor.text(8)[:80]), BYTES.get(tensor.number(2), 0)
    count = 1
    for size in tensor.numbers(1):
        count = bounded(count * size, 0, MOST_SIZE)
    stored = [tensor.size(field) for field in (4, 5, 7)]
    outside = {entry.text(1): entry.text(2) for entry in tensor.messages(13)}
    if outside or tensor.number(14):
        data = file.with_name(f"{file.name}.data")
        if outside.pop("location", "") != data.name or not outside.keys() <= {"offset", "length", "checksum"}:
            raise ValueError(f"constant {name}: stored in another file; must be stored in {data.name}")
        numbers = [outside.get("offset", "0"), outside.get("length", "")]
        if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in numbers):
            raise ValueError(f"constant {name}: has no valid offset and length in {data.name}")
        start, length = map(int, numbers)
        is_whole = start + length <= data.stat().st_size and not any(stored) and 9 not in tensor.fields
    elif 9 in tensor.fields:
        is_whole, length = not any(stored), tensor.size(9)
    else:  # each number takes at least one byte
        is_whole, length = count <= max(stored), count * width
    if not width or not is_whole or length != count * width:
        raise ValueError(f"constant {name}: {length:,} bytes for {count:,} numbers of type {tensor.number(2)}")
