"""Read a checkpoint file as data: numbers, text, containers, argparse namespaces, numpy values and tensors.

torch.load is not used, in any version. Even its weights-only mode calls functions with arguments from the file:
`bytearray` of any size, a codec that doubles its input, numpy dtypes with pointers. It also decompresses records, and
enlarges a storage that is too small for its tensor. Here, a file can only call the functions in this module, which
check their arguments, and the memory used is proportional to the file size.

    zip        torch >= 1.6: ROOT/data.pkl, and ROOT/data/KEY for every storage; all uncompressed
    legacy     older: pickles of a magic number, a version, the system, the content and its storage keys; then the
               storages
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

# The magic number of torch's legacy format, and its only version.
LEGACY_MARK, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
# Limits on the number of reads of a pickle program. A tensor needs 55 reads, and a value in a list needs one. Each read
# can allocate 70 bytes. The smallest tensor occupies 290 bytes of an archive.
FREE_READS, BYTES_A_READ, MOST_READS = 300_000, 5, 8_000_000
DEPTH = 100  # maximum depth of nested containers
STORAGES = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    }.items()
}  # fmt: skip
# Numeric numpy dtypes: no objects, strings or fields.
NUMBERS = {np.dtype(code).str[1:] for code in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
LEAVES = (str, bytes, int, float, bool, type(None), torch.dtype, np.dtype)


DAMAGED = "damaged or not a checkpoint"


class Refused(Exception):
    """The reason why a file is not read."""


class _Short(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:
        return f"<{type(x).__name__}>"  # the object's own repr may never end


def shown(value: Any) -> str:
    """Return a short one-line representation of an untrusted value."""
    short = _Short()
    short.maxlevel, short.maxstring = 2, 80
    # reprlib would show a subclass of str by its name alone.
    return short.repr(str(value) if isinstance(value, str) else value)[:200]


@dataclass(frozen=True)
class Storage:
    """The bytes of one or more tensors, and their dtype."""

    data: torch.UntypedStorage
    dtype: torch.dtype


def require(fact: bool, what: str) -> None:
    if not fact:
        raise Refused(what)


def are_sizes(value: Any) -> bool:
    return type(value) is tuple and all(type(size) is int and 0 <= size < 1 << 62 for size in value)


# --- functions that a pickle program may call -----------------------------------------------------------------------


def rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Tensor:
    """Return a tensor on a storage, after checking that the storage contains all of its elements."""
    require(type(storage) is Storage, "a tensor without a storage")
    require(are_sizes((offset,)) and are_sizes(shape) and are_sizes(stride), "invalid tensor shape")
    require(len(shape) == len(stride) <= 32, f"a tensor with {len(shape)} dimensions and {len(stride)} strides")
    held = storage.data.nbytes() // storage.dtype.itemsize
    count, last = 1, offset
    for size, step in zip(shape, stride, strict=True):
        count, last = count * size, last + (size - 1) * step
    if count and not (count <= held and last < held):
        raise Refused(
            f"a tensor of shape {shown(shape)} has {shown(count)} elements, but its storage has only {held:,}"
        )
    return torch.empty(0, dtype=storage.dtype).set_(storage.data, offset, shape, stride)


def rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def encode(text: Any, encoding: Any) -> bytes:
    """Return bytes that pickle protocol 2 has written as text."""
    require(type(text) is str and encoding in ("latin1", "latin-1"), "bytes that are not encoded as latin-1")
    return bytes(text, "latin-1")


def no_bytes() -> bytes:
    return b""


def dtype(code: Any, *_: Any) -> np.dtype[Any]:
    require(code in NUMBERS if type(code) is str else False, f"unsupported numpy dtype {shown(code)}")
    return np.dtype(code)


def scalar(kind: Any, data: Any) -> Any:
    require(isinstance(kind, np.dtype) and type(data) is bytes and len(data) == kind.itemsize, "invalid numpy number")
    return np.frombuffer(data, kind)[0]


def rebuild_array(kind: Any, shape: Any, _: Any) -> np.ndarray[Any, Any]:
    """Return an empty array, which the `BUILD` instruction fills."""
    require(kind is rebuild_array and are_sizes(shape) and shape == (0,), "invalid array type or shape")
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
    "numpy.ndarray": rebuild_array,  # only an argument of _reconstruct, never called itself
    # numpy 1 writes numpy.core, numpy 2 writes numpy._core.
    **{f"numpy.{core}.multiarray.scalar": scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": rebuild_array for core in ("core", "_core")},
}
DTYPES = {str(dtype): dtype for dtype in STORAGES.values()}


class Program:
    """The bytes of a pickle program, with limits on reads and copies.

    memory: a file object in memory, so that no read can allocate more than the file
    """

    def __init__(self, memory: Any, size: int) -> None:
        self.memory, self.reads, self.bytes_left = memory, 0, size
        self.most = min(FREE_READS + size // BYTES_A_READ, MOST_READS)

    def read(self, count: int) -> bytes:
        self.reads += 1
        require(self.reads <= self.most, "too many values for a file of this size")
        data: bytes = self.memory.read(count)
        require(len(data) == count, DAMAGED)
        return data

    def copy(self, count: int) -> None:
        """Count copied bytes, because a file may refer to the same text or numbers many times."""
        self.bytes_left -= count
        require(self.bytes_left >= 0, "too much data for a file of this size")

    def readline(self) -> bytes:
        line: bytes = self.memory.readline()
        return line


_python: Any = pickle._Unpickler  # the implementation in Python


class Unpickler(_python):
    """pickle's Python implementation, limited to protocol 2's instructions for data and to the functions in CALLS."""

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
        """Look up a name in our tables. Nothing is imported."""
        full = f"{module}.{name}"
        for known in (CALLS, STORAGES, DTYPES):
            if full in known:
                return known[full]
        raise Refused(f"contains {shown(full)[1:-1]}, which weights-only loading does not allow")

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage of a key, ignoring its device."""
        require(type(pid) is tuple and len(pid) in (5, 6) and pid[0] == "storage", "invalid reference to a storage")
        _, kind, key, _, count, *view = pid
        require(isinstance(kind, torch.dtype) and type(key) is str, "unknown storage type")
        require(are_sizes((count,)) and view in ([], [None]), "invalid storage size")
        return Storage(self.storage(key, count * kind.itemsize), kind)

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        require(type(arguments) is tuple, DAMAGED)
        if function is OrderedDict:
            require(not arguments, "an OrderedDict with arguments")
        else:  # only functions of CALLS can be on the stack
            require(type(function) is FunctionType, DAMAGED)
        if function is encode:
            self.program.copy(sum(len(text) for text in arguments if type(text) is str))
        made = function(*arguments)
        if function is rebuild_tensor and len(arguments) > 6:
            made = self.resolved(made, arguments[6])
        self.append(made)

    def resolved(self, tensor: Tensor, metadata: Any) -> Tensor:
        """Resolve the lazy negation or conjugation of a saved tensor."""
        is_known = type(metadata) is dict and metadata.keys() <= {"neg", "conj"}
        require(metadata is None or (is_known and all(type(bit) is bool for bit in metadata.values())),
                "unknown tensor metadata")  # fmt: skip
        for bit in metadata or ():
            if metadata[bit]:
                self.program.copy(tensor.nbytes)
                tensor = torch.neg(tensor) if bit == "neg" else torch.conj_physical(tensor)
        return tensor

    def load_newobj(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        require(kind is argparse.Namespace and type(arguments) is tuple and not arguments, "object of unknown type")
        self.append(argparse.Namespace())

    def load_build(self) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if type(made) is argparse.Namespace:
            require(type(state) is dict, "invalid argparse.Namespace")
            is_safe = all(type(name) is str and not name.startswith("__") for name in state)
            require(is_safe, "invalid names in an argparse.Namespace")
            vars(made).update(state)
        elif type(made) is OrderedDict:  # _metadata of a state dict
            is_known = type(state) is dict and state.keys() <= {"_metadata"}
            require(is_known and all(isinstance(value, dict) for value in state.values()), "a dict with attributes")
            vars(made).update(state)
        elif isinstance(made, np.dtype):
            order = ("|", "<" if sys.byteorder == "little" else ">")
            require(type(state) is tuple and len(state) == 8, "invalid numpy dtype")
            require(state[1] in order and state[2:] == (None, None, None, -1, -1, 0), "unsupported byte order or dtype")
        elif type(made) is np.ndarray:
            require(type(state) is tuple and len(state) == 5, "invalid numpy array")
            _, shape, kind, in_columns, data = state
            require(are_sizes(shape) and len(shape) <= 32 and isinstance(kind, np.dtype), "invalid numpy array")
            require(type(in_columns) is bool and type(data) is bytes, "invalid numpy array")
            count = 1
            for size in shape:
                count *= size
            fits = count * kind.itemsize == len(data)
            require(fits, f"an array of shape {shown(shape)} does not fit its {len(data):,} bytes of data")
            self.program.copy(len(data))
            made.__setstate__((1, shape, kind, in_columns, data))
        else:
            raise Refused("object of unknown type")

    def _into_list(self, items: list[Any]) -> None:
        require(type(self.stack[-1]) is list, DAMAGED)
        self.stack[-1].extend(items)

    def _into_dict(self, items: list[Any]) -> None:
        into = self.stack[-1]
        require(type(into) in (dict, OrderedDict) and len(items) % 2 == 0, DAMAGED)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing anything else may never end.
            is_plain = type(key) in (str, float, bool, type(None)) or (type(key) is int and key.bit_length() < 64)
            require(is_plain, f"a dict with the unsupported key {shown(key)}")
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


# --- file formats ---------------------------------------------------------------------------------------------------


def view(memory: mmap.mmap, start: int, count: int) -> torch.UntypedStorage:
    """Return `count` bytes of a mapped file as a storage. Writing to it changes only memory, not the file."""
    if not count:
        return torch.UntypedStorage(0)
    return torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=count).untyped_storage()


def _members(file: BufferedReader, size: int) -> tuple[str, dict[str, zipfile.ZipInfo]]:
    """Return the root folder of an archive, and its records by name."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    for member in members:
        is_stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
        require(is_stored and not member.flag_bits & 1, f"record {shown(member.filename)} is compressed or encrypted")
    require(sum(member.file_size for member in members) <= size, "its records are larger than the file")
    names = {member.filename: member for member in members}
    roots = [name.removesuffix("/data.pkl") for name in names if name.endswith("/data.pkl")]
    require(len(roots) == 1, "not a checkpoint: a zip archive without data.pkl")
    require(f"{roots[0]}/constants.pkl" not in names, "a TorchScript archive, not a checkpoint")
    return roots[0], names


def _read_zip(file: BufferedReader, memory: mmap.mmap, is_mapped: bool) -> Any:
    root, names = _members(file, len(memory))

    def place(name: str) -> tuple[int, int]:
        require(name in names, f"record {shown(name)} is missing")
        member = names[name]
        head = memory[member.header_offset : member.header_offset + 30]
        require(len(head) == 30 and head[:4] == b"PK\3\4", DAMAGED)
        start = member.header_offset + 30 + sum(struct.unpack("<HH", head[26:]))
        require(start + member.file_size <= len(memory), DAMAGED)
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
                require(file.readinto(data.data) == held, DAMAGED)
                require(zlib.crc32(data.data) == names[name].CRC, f"damaged ({name})")
                found[name] = torch.from_numpy(data).untyped_storage()
        held = found[name].nbytes()
        require(count <= held, f"a storage of {count:,} bytes has only {held:,} bytes of data")
        return found[name]

    if f"{root}/byteorder" in names:
        is_native = content(f"{root}/byteorder") == sys.byteorder.encode()
        require(is_native, f"its byte order differs from this machine's ({sys.byteorder})")
    program = Program(BytesIO(content(f"{root}/data.pkl")), len(memory))
    return checked(Unpickler(program, storage).load(), program)


def _read_legacy(memory: mmap.mmap) -> Any:
    memory.seek(0)
    program = Program(memory, len(memory))
    found: dict[str, torch.UntypedStorage] = {}
    claimed = 0

    def no_storage(key: str, count: int) -> torch.UntypedStorage:
        raise Refused(DAMAGED)

    def storage(key: str, count: int) -> torch.UntypedStorage:
        nonlocal claimed
        if key not in found:
            claimed += count
            require(claimed <= len(memory), "its storages are larger than the file")
            found[key] = torch.UntypedStorage(count)
        require(count == found[key].nbytes(), "a storage with two different sizes")
        return found[key]

    head = [Unpickler(program, no_storage).load() for _ in range(3)]
    require(head[:2] == [LEGACY_MARK, LEGACY_VERSION], DAMAGED)
    state = checked(Unpickler(program, storage).load(), program)
    keys = Unpickler(program, no_storage).load()
    require(type(keys) is list and sorted(map(str, keys)) == sorted(found), DAMAGED)
    for key in keys:
        program.read(8)  # the number of elements
        data = view(memory, memory.tell(), found[key].nbytes())
        found[key].copy_(data)
        memory.seek(data.nbytes(), os.SEEK_CUR)
    return state


def parts(value: Any) -> Iterator[Any]:
    """Yield the values of a container."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict):
        yield from value.values()
        yield from vars(value).values() if isinstance(value, OrderedDict) else ()
    elif isinstance(value, (list, tuple)):
        yield from value


def checked(state: Any, program: Program) -> Any:
    """Check that a program's result consists only of data and can be traversed quickly, and return it.

    Nested lists that each contain the next one twice are small in a file, but traversing them takes exponential time.
    """
    left = 2 * program.reads  # twice the number of values if nothing is shared
    layers = [iter([state])]
    while layers:
        for value in layers[-1]:
            left -= 1
            require(left >= 0, "too many values for a file of this size")
            if not isinstance(value, (*LEAVES, Tensor, np.ndarray, np.generic)):
                is_container = type(value) in (dict, OrderedDict, list, tuple, argparse.Namespace)
                require(is_container, f"contains {shown(value)}, which weights-only loading does not allow")
                require(len(layers) < DEPTH, f"containers nested more than {DEPTH} levels deep")
                layers.append(parts(value))
                break
        else:
            layers.pop()
    return state


def read(file: BufferedReader, name: str, is_mapped: bool = False) -> Any:
    """Read a checkpoint on the CPU.

    is_mapped: read tensors from the file only when they are used; the file must not change until then
    Raises: ValueError naming the file if it is damaged, not a checkpoint or contains more than data.
    """
    try:
        require(os.fstat(file.fileno()).st_size > 0, "empty file")
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return _read_zip(file, memory, is_mapped) if memory[:2] == b"PK" else _read_legacy(memory)
    except Refused as error:
        raise ValueError(f"{name}: cannot be loaded: {error}") from None
    except (OSError, MemoryError):
        raise
    except Exception:  # a damaged file can raise any exception
        raise ValueError(f"{name}: cannot be loaded: {DAMAGED}") from None
