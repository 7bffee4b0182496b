"""The content of CTranslate2's model.bin, for tests that change the file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Variable:
    shape: list[int]
    type: int
    content: bytes


@dataclass
class ModelBin:
    """A whole file: variables by name, and pairs of alias and name."""

    variables: dict[str, Variable]
    aliases: list[tuple[str, str]] = field(default_factory=list)
    kind: tuple[int, str, int] = (6, "TransformerSpec", 7)
    tail: bytes = b""

    @classmethod
    def read(cls, file: Path) -> ModelBin:
        raw, place = file.read_bytes(), 0

        def number(form: str) -> int:
            nonlocal place
            (found,) = struct.unpack_from(form, raw, place)
            place += struct.calcsize(form)
            return int(found)

        def take(count: int) -> bytes:
            nonlocal place
            place += count
            return raw[place - count : place]

        def word() -> str:
            return take(number("<H"))[:-1].decode()

        kind = number("<I"), word(), number("<I")
        variables = {}
        for _ in range(number("<I")):
            name = word()
            shape = [number("<I") for _ in range(number("<B"))]
            variables[name] = Variable(shape, number("<B"), take(number("<I")))
        return cls(variables, [(word(), word()) for _ in range(number("<I"))], kind)

    def write(self, file: Path) -> None:
        def word(text: str) -> bytes:
            return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

        parts = [struct.pack("<I", self.kind[0]), word(self.kind[1]), struct.pack("<I", self.kind[2])]
        parts.append(struct.pack("<I", len(self.variables)))
        for name, each in self.variables.items():
            sizes = struct.pack(f"<B{len(each.shape)}I", len(each.shape), *each.shape)
            parts += [word(name), sizes, struct.pack("<BI", each.type, len(each.content)), each.content]
        parts.append(struct.pack("<I", len(self.aliases)))
        parts += [word(alias) + word(name) for alias, name in self.aliases]
        file.write_bytes(b"".join(parts) + self.tail)
