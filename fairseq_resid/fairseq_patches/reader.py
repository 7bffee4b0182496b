"""A checkpoint file read as data: numbers, text, containers, argparse namespaces, numbers of numpy, tensors.

torch.load is not used, on any torch. Its weights-only mode calls what a file names with the file's own arguments:
`bytearray` of any size, a codec that doubles its input, numpy dtypes that hold pointers. It inflates packed records and
enlarges a storage that is too small for its tensor. Here a file runs the functions of this module alone, each checks
what it is given, and what is made takes memory in proportion to the file.

    zip        torch >= 1.6: ROOT/data.pkl, ROOT/data/KEY for every storage; all stored, none packed
    legacy     before: pickles of a mark, a version, the system, the content and its storage keys; then the storages
"""

from __future__ import annotations

import argparse
import mmap
import os
import pickle
import reprlib
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

# What torch writes first into a file that is no zip archive, and the only version of that format.
LEGACY_MARK, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
# Reads that a program may take, of which a tensor takes 55 and a value in a list 1: each can make 70 bytes of memory.
# The smallest tensor takes 290 bytes of an archive.
FREE_READS, BYTES_A_READ, MOST_READS = 300_000, 5, 8_000_000
DEPTH = 100  # of containers in containers
STORAGES = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    }.items()
}  # fmt: skip
# Plain numbers: no objects, no text, no fields.
NUMBERS = {np.dtype(code).str[1:] for code in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
LEAVES = (str, bytes, int, float, bool, type(None), torch.dtype, np.dtype)


class Refused(Exception):
    """Why a file is not read."""


class _Short(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:
        return f"<{type(x).__name__}>"  # its own repr may be endless


def shown(value: Any) -> str:
    """Return what a file holds as a short text on one line, whatever it is."""
    short = _Short()
    short.maxlevel, short.maxstring = 2, 80
    return short.repr(value)[:200]


@dataclass(frozen=True)
class Storage:
    """The bytes that tensors lie in, and what they are numbers of."""

    data: torch.UntypedStorage
    dtype: torch.dtype


def require(fact: bool, what: str) -> None:
    if not fact:
        raise Refused(what)


def are_sizes(value: Any) -> bool:
    return type(value) is tuple and all(type(size) is int and 0 <= size < 1 << 62 for size in value)


# --- what a program may call ----------------------------------------------------------------------------------------


def rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Tensor:
    """Return a view of a storage that holds every element."""
    require(type(storage) is Storage, "a tensor without a storage")
    require(are_sizes((offset,)) and are_sizes(shape) and are_sizes(stride), "a tensor whose shape is none")
    require(len(shape) == len(stride) <= 32, f"a tensor of {len(shape)} dimensions and {len(stride)} strides")
    held = storage.data.nbytes() // storage.dtype.itemsize
    count, last = 1, offset
    for size, step in zip(shape, stride, strict=True):
        count, last = count * size, last + (size - 1) * step
    if count and not (count <= held and last < held):
        raise Refused(f"a tensor of shape {shown(shape)}, of whose {shown(count)} elements it holds {held:,}")
    return torch.empty(0, dtype=storage.dtype).set_(storage.data, offset, shape, stride)


def rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def encode(text: Any, encoding: Any) -> bytes:
    """Return the bytes that pickle has written as text."""
    require(type(text) is str and encoding in ("latin1", "latin-1"), "bytes in another code than latin-1")
    return bytes(text, "latin-1")


def no_bytes() -> bytes:
    return b""


def dtype(code: Any, *_: Any) -> np.dtype[Any]:
    require(code in NUMBERS if type(code) is str else False, f"numpy's dtype {shown(code)}")
    return np.dtype(code)


def scalar(kind: Any, data: Any) -> Any:
    require(isinstance(kind, np.dtype) and type(data) is bytes and len(data) == kind.itemsize, "a damaged number")
    return np.frombuffer(data, kind)[0]


def rebuild_array(kind: Any, shape: Any, _: Any) -> np.ndarray[Any, Any]:
    """Return an empty array, which `BUILD` fills."""
    require(kind is rebuild_array and are_sizes(shape) and shape == (0,), "an array of another type or shape")
    return np.zeros(0)


CALLS: dict[str, Any] = {
    "collections.OrderedDict": OrderedDict,
    "argparse.Namespace": argparse.Namespace,
    "torch._utils._rebuild_tensor_v2": rebuild_tensor,
    "torch._utils._rebuild_tensor": rebuild_tensor,
    "torch._utils._rebuild_parameter": rebuild_parameter,
    "_codecs.encode": encode,
    "__builtin__.bytes": no_bytes,
    "numpy.dtype": dtype,
    "numpy.ndarray": rebuild_array,  # named, never called by its name
    # numpy 1 writes numpy.core, numpy 2 numpy._core.
    **{f"numpy.{core}.multiarray.scalar": scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": rebuild_array for core in ("core", "_core")},
}
DTYPES = {str(dtype): dtype for dtype in STORAGES.values()}


class Program:
    """The bytes of a pickle, whose reads are counted. memory: a file in memory, so that no read is longer than it."""

    def __init__(self, memory: Any, size: int) -> None:
        self.memory, self.reads, self.bytes_left = memory, 0, size
        self.most = min(FREE_READS + size // BYTES_A_READ, MOST_READS)

    def read(self, count: int) -> bytes:
        self.reads += 1
        require(self.reads <= self.most, "more values than a file of its size can need")
        data: bytes = self.memory.read(count)
        require(len(data) == count, "damaged, or no checkpoint")
        return data

    def copy(self, count: int) -> None:
        """Count bytes that the program copies: a file may name the same text or numbers often."""
        self.bytes_left -= count
        require(self.bytes_left >= 0, "more data than a file of its size can hold")

    def readline(self) -> bytes:
        line: bytes = self.memory.readline()
        return line


_python: Any = pickle._Unpickler  # the one that is written in Python


class Unpickler(_python):
    """pickle's own machine in Python, with the instructions of protocol 2 that data need, and with `CALLS` alone."""

    dispatch: ClassVar[dict[int, Any]] = {
        code[0]: _python.dispatch[code[0]]
        for code in (
            pickle.PROTO, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT,
            pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE, pickle.EMPTY_TUPLE,
            pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.EMPTY_DICT,
            pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT, pickle.GLOBAL, pickle.BINPERSID,
        )
    }  # fmt: skip

    def __init__(self, program: Program, storage: Any) -> None:
        super().__init__(program)
        self.program, self.storage = program, storage

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name: nothing is imported."""
        full = f"{module}.{name}"
        for known in (CALLS, STORAGES, DTYPES):
            if full in known:
                return known[full]
        raise Refused(f"it holds {shown(full)[1:-1]}, which weights-only loading refuses")

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage of a key, whatever device it was on."""
        require(type(pid) is tuple and len(pid) in (5, 6) and pid[0] == "storage", "a reference to no storage")
        _, kind, key, _, count, *view = pid
        require(isinstance(kind, torch.dtype) and type(key) is str, "a storage of an unknown kind")
        require(are_sizes((count,)) and view in ([], [None]), "a storage of no size")
        return Storage(self.storage(key, count * kind.itemsize), kind)

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        require(type(arguments) is tuple, "damaged, or no checkpoint")
        if function is OrderedDict:
            require(not arguments, "a dict made of something else")
        else:  # no other function can come onto the stack than those of CALLS
            require(type(function) is FunctionType, "damaged, or no checkpoint")
        if function is encode:
            self.program.copy(sum(len(text) for text in arguments if type(text) is str))
        made = function(*arguments)
        if function is rebuild_tensor and len(arguments) > 6:
            made = self.resolved(made, arguments[6])
        self.append(made)

    def resolved(self, tensor: Tensor, metadata: Any) -> Tensor:
        """Return the numbers of a tensor that was saved as a lazy negative or conjugate."""
        is_known = type(metadata) is dict and metadata.keys() <= {"neg", "conj"}
        require(metadata is None or (is_known and all(type(bit) is bool for bit in metadata.values())),
                "a tensor with metadata of an unknown kind")  # fmt: skip
        for bit in metadata or ():
            if metadata[bit]:
                self.program.copy(tensor.nbytes)
                tensor = torch.neg(tensor) if bit == "neg" else torch.conj_physical(tensor)
        return tensor

    def load_newobj(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        require(kind is argparse.Namespace and type(arguments) is tuple and not arguments, "an object of no known type")
        self.append(argparse.Namespace())

    def load_build(self) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if type(made) is argparse.Namespace:
            require(type(state) is dict, "a namespace of no names")
            require(all(type(name) is str and not name.startswith("__") for name in state), "a namespace of no names")
            vars(made).update(state)
        elif type(made) is OrderedDict:  # a state dict's versions
            is_known = type(state) is dict and state.keys() <= {"_metadata"}
            require(is_known and all(isinstance(value, dict) for value in state.values()), "a dict with attributes")
            vars(made).update(state)
        elif isinstance(made, np.dtype):
            order = ("|", "<" if sys.byteorder == "little" else ">")
            require(type(state) is tuple and len(state) == 8, "a damaged dtype")
            require(state[1] in order and state[2:] == (None, None, None, -1, -1, 0), "a dtype of another machine")
        elif type(made) is np.ndarray:
            require(type(state) is tuple and len(state) == 5, "a damaged array")
            _, shape, kind, in_columns, data = state
            require(are_sizes(shape) and len(shape) <= 32 and isinstance(kind, np.dtype), "a damaged array")
            require(type(in_columns) is bool and type(data) is bytes, "a damaged array")
            count = 1
            for size in shape:
                count *= size
            require(count * kind.itemsize == len(data), f"an array of shape {shown(shape)} in {len(data):,} bytes")
            self.program.copy(len(data))
            made.__setstate__((1, shape, kind, in_columns, data))
        else:
            raise Refused("an object of no known type")

    def _into_list(self, items: list[Any]) -> None:
        require(type(self.stack[-1]) is list, "damaged, or no checkpoint")
        self.stack[-1].extend(items)

    def _into_dict(self, items: list[Any]) -> None:
        into = self.stack[-1]
        require(type(into) in (dict, OrderedDict) and len(items) % 2 == 0, "damaged, or no checkpoint")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of anything else can take for ever.
            is_plain = type(key) in (str, float, bool, type(None)) or (type(key) is int and key.bit_length() < 64)
            require(is_plain, f"a dict with the key {shown(key)}")
            into[key] = value

    def load_append(self) -> None:
        self._into_list([self.stack.pop()])

    def load_appends(self) -> None:
        self._into_list(self.pop_mark())

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._into_dict([key, value])

    def load_setitems(self) -> None:
        self._into_dict(self.pop_mark())

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.APPEND[0]] = load_append
    dispatch[pickle.APPENDS[0]] = load_appends
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


# --- the formats ----------------------------------------------------------------------------------------------------


def view(memory: mmap.mmap, start: int, count: int) -> torch.UntypedStorage:
    """Return bytes of a mapped file as a storage. What is written to it stays in memory."""
    if not count:
        return torch.UntypedStorage(0)
    return torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=count).untyped_storage()


def _members(file: BufferedReader, size: int) -> tuple[str, dict[str, zipfile.ZipInfo]]:
    """Return the root of an archive, and what is in it by name."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    for member in members:
        is_stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
        require(is_stored and not member.flag_bits & 1, f"its record {shown(member.filename)} is packed")
    require(sum(member.file_size for member in members) <= size, "its records are larger than the file")
    names = {member.filename: member for member in members}
    roots = [name.removesuffix("/data.pkl") for name in names if name.endswith("/data.pkl")]
    require(len(roots) == 1, "no checkpoint: a zip archive without data.pkl")
    require(f"{roots[0]}/constants.pkl" not in names, "a TorchScript archive, not a checkpoint")
    return roots[0], names


def _read_zip(file: BufferedReader, memory: mmap.mmap, is_mapped: bool) -> Any:
    root, names = _members(file, len(memory))

    def place(name: str) -> tuple[int, int]:
        require(name in names, f"it has no {shown(name)}")
        member = names[name]
        head = memory[member.header_offset : member.header_offset + 30]
        require(len(head) == 30 and head[:4] == b"PK\3\4", "damaged, or no checkpoint")
        start = member.header_offset + 30 + sum(struct.unpack("<HH", head[26:]))
        require(start + member.file_size <= len(memory), "damaged, or no checkpoint")
        return start, member.file_size

    def content(name: str) -> bytes:
        start, count = place(name)
        data = memory[start : start + count]
        require(zlib.crc32(data) == names[name].CRC, f"damaged ({name})")
        return data

    found: dict[str, torch.UntypedStorage] = {}

    def storage(key: str, count: int) -> torch.UntypedStorage:
        name = f"{root}/data/{key}"
        if name not in found:
            start, held = place(name)
            if is_mapped:
                found[name] = view(memory, start, held)
            else:
                data = np.empty(held, np.uint8)
                file.seek(start)
                require(file.readinto(data.data) == held, "damaged, or no checkpoint")
                require(zlib.crc32(data.data) == names[name].CRC, f"damaged ({name})")
                found[name] = torch.from_numpy(data).untyped_storage()
        held = found[name].nbytes()
        require(count <= held, f"a storage of {count:,} bytes, of which it holds {held:,}")
        return found[name]

    if f"{root}/byteorder" in names:
        require(content(f"{root}/byteorder") == sys.byteorder.encode(), "written on a machine of another byte order")
    program = Program(BytesIO(content(f"{root}/data.pkl")), len(memory))
    return checked(Unpickler(program, storage).load(), program)


def _read_legacy(memory: mmap.mmap) -> Any:
    memory.seek(0)
    program = Program(memory, len(memory))
    found: dict[str, torch.UntypedStorage] = {}
    claimed = 0

    def no_storage(key: str, count: int) -> torch.UntypedStorage:
        raise Refused("damaged, or no checkpoint")

    def storage(key: str, count: int) -> torch.UntypedStorage:
        nonlocal claimed
        if key not in found:
            claimed += count
            require(claimed <= len(memory), "its storages are larger than the file")
            found[key] = torch.UntypedStorage(count)
        require(count == found[key].nbytes(), "a storage of two sizes")
        return found[key]

    head = [Unpickler(program, no_storage).load() for _ in range(3)]
    require(head[:2] == [LEGACY_MARK, LEGACY_VERSION], "damaged, or no checkpoint")
    state = checked(Unpickler(program, storage).load(), program)
    keys = Unpickler(program, no_storage).load()
    require(type(keys) is list and sorted(map(str, keys)) == sorted(found), "damaged, or no checkpoint")
    for key in keys:
        program.read(8)  # how many elements
        data = view(memory, memory.tell(), found[key].nbytes())
        found[key].copy_(data)
        memory.seek(data.nbytes(), os.SEEK_CUR)
    return state


def parts(value: Any) -> Iterator[Any]:
    """Yield what a container holds."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict):
        yield from value.values()
        yield from vars(value).values() if isinstance(value, OrderedDict) else ()
    elif isinstance(value, (list, tuple)):
        yield from value


def checked(state: Any, program: Program) -> Any:
    """Return what a program has made, if it is data alone, and whoever walks through it comes to an end.

    A list that holds another one twice, which holds another one twice, ... is short in a file and endless to walk.
    """
    left = 2 * program.reads  # twice what there is if nothing is shared
    layers = [iter([state])]
    while layers:
        for value in layers[-1]:
            left -= 1
            require(left >= 0, "more values than a file of its size can need")
            if not isinstance(value, (*LEAVES, Tensor, np.ndarray, np.generic)):
                is_container = type(value) in (dict, OrderedDict, list, tuple, argparse.Namespace)
                require(is_container, f"it holds {shown(value)}, which weights-only loading refuses")
                require(len(layers) < DEPTH, f"containers in containers, more than {DEPTH} deep")
                layers.append(parts(value))
                break
        else:
            layers.pop()
    return state


def read(file: BufferedReader, name: str, is_mapped: bool = False) -> Any:
    """Return what a checkpoint holds, on the CPU.

    is_mapped: tensors are read from the file when they are used, and the file may not change until then
    Raises: ValueError naming the file if it is damaged, no checkpoint, or holds what is no data.
    """
    try:
        require(os.fstat(file.fileno()).st_size > 0, "empty")
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return _read_zip(file, memory, is_mapped) if memory[:2] == b"PK" else _read_legacy(memory)
    except Refused as error:
        raise ValueError(f"{name}: cannot be loaded: {error}") from None
    except (OSError, MemoryError):
        raise
    except Exception:  # a damaged file can raise anything
        raise ValueError(f"{name}: cannot be loaded: damaged, or no checkpoint") from None
