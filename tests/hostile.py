"""Checkpoints that somebody has made to do harm, and what each of the loaders does with them.

`write(folder, healthy, command)` writes one file of every kind. Run as `python hostile.py FOLDER`, it gives every file
to both loaders in a process of its own, and prints what came of it.
"""

from __future__ import annotations

import argparse
import copyreg
import io
import json
import os
import pickle
import signal
import struct
import sys
import tarfile
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

State = dict[str, Any]
EXTENSION = 200  # a code of copyreg's that nobody has
SECONDS = 15  # that a load may take on a busy machine

# --- pickles, written by hand ---------------------------------------------------------------------------------------


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


def archive(file: Path, program: bytes, packed: int = zipfile.ZIP_STORED, record: bytes = bytes(16)) -> None:
    """Write a zip archive as torch does, with one storage of four numbers."""
    with zipfile.ZipFile(file, "w", packed) as made:
        made.writestr("archive/data.pkl", program)
        made.writestr("archive/byteorder", sys.byteorder)
        made.writestr("archive/data/0", record)
        made.writestr("archive/version", "3\n")


def programs(command: str) -> dict[str, bytes]:
    """Return programs that run a command, or would use far more memory or time than their length, by name."""
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
        "REDUCE of what was called": call("collections", "OrderedDict") + run + b"\x85R",
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
        "persistent id of a line": b"Pstorage\n",
        "persistent id of a function": hook,
        "persistent id of a dict": b"}Q",
        "persistent id of an old module": b"(" + text("module") + system + run + text("x") + b"tQ",
        "array of objects": array + b"(K\x01K\x01\x85" + objects + b"\x89]" + call("os", "system", run) + b"atb",
        "dtype that is set": floats + b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb",
        "dtype of objects": objects,
    }
    doubling = latin("ab" * 100)
    for _ in range(40):
        doubling = named("_codecs", "encode") + b"(" + doubling + text("hex_codec") + b"tR"
    # Each is left on the stack: the tuple of all of them ends the program.
    laughs = b"(]" + put(0) + b"".join(b"]" + get(n) + b"a" + get(n) + b"a" + put(n + 1) for n in range(60)) + b"t"
    tuples = b"()" + put(0) + b"".join(get(n) + get(n) + b"\x86" + put(n + 1) for n in range(60)) + b"t"
    bombs = {
        "lists that hold each other twice": laughs,
        "lists that hold each other twice, named": b"}" + text("x") + laughs + b"s",
        "tuples that hold each other twice": tuples,
        "a key whose hash takes for ever": b"}" + tuples + b"K\x01s",
        "a key that is deep": b"}" + b")" + b"\x85" * 100_000 + b"K\x01s",
        "a list that holds itself": b"]" + put(0) + get(0) + b"a",
        "a namespace that holds itself": itself,
        "100,000 lists deep": b"]" * 100_000 + b"a" * 99_999,
        "100,000 tuples deep": b")" + b"\x85" * 100_000,
        "a million empty lists": b"(" + b"]" * 1_000_000 + b"t",
        "keys that collide": b"}(" + b"".join(integer(n * (2**61 - 1)) + b"N" for n in range(20_000)) + b"u",
        "a memo of four thousand million": b"]" + put(2**32 - 1) + get(7),
        "a text longer than the file": b"X" + struct.pack("<I", 2**32 - 1) + b"x",
        "a bytearray of 100 GB": call("__builtin__", "bytearray", integer(10**11)),
        "a tensor of 400 GB by its class": call("torch", "FloatStorage", integer(10**11)),
        "bytes doubled forty times": doubling,
        "an array of 800 GB": call("numpy", "ndarray", sizes(10**11), floats),
        "an array of 800 GB, rebuilt": call(core, "_reconstruct", ndarray, sizes(10**11), latin("d")),
        "an array of 80 GB in 8 bytes": array + b"(K\x01" + sizes(10**10) + floats + b"\x89" + eight + b"tb",
        "an array of 8e9 objects": call("numpy", "ndarray", sizes(10**9), objects),
        "a tensor spread out to 1e12": tensor((10**6, 10**6), (0, 0)),
        "a tensor spread out to 1e12 by overlaps": tensor((10**6, 10**6), (1, 1)),
        "a tensor past its storage": tensor((4,), (1,), 1),
        "a tensor of steps past its storage": tensor((2, 2), (10**9, 1)),
        "a tensor before its storage": tensor((4,), (-1,)),
        "a tensor of 65 dimensions": tensor((1,) * 65, (1,) * 65),
        "a tensor of more than 2^63": tensor((2**62, 2**62), (1, 1)),
        "a storage larger than its record": tensor((10**9,), (1,), 0, 10**9),
        "a storage of no record": storage("1", 4),
        "a storage of another's file": storage("../../etc/passwd", 4),
        "a sparse tensor": call("torch._utils", "_rebuild_sparse_tensor", named("torch", "sparse_coo"), b")"),
        "a quantised tensor": call(rebuild, "_rebuild_qtensor", storage("0", 4), b"K\x00", sizes(10**12), sizes(0)),
        "a meta tensor": call(rebuild, "_rebuild_meta_tensor_no_storage", whole, sizes(10**12), sizes(1), b"\x89"),
        "a name of 10 MB": named("os" * 5_000_000, "system"),
    }
    return {f"code: {name}": code for name, code in codes.items()} | {
        f"bomb: {name}": code for name, code in bombs.items()
    }


# --- files ----------------------------------------------------------------------------------------------------------


class Runs:
    """An object whose unpickling runs a shell command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Text(str):
    """A str that is none."""


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def files(command: str) -> dict[str, Callable[[Path, State], object]]:
    """Return what writes a file that is no healthy checkpoint, by name: `make(file, state of a healthy one)`."""

    def old(file: Path, value: Any) -> None:
        torch.save(value, file, _use_new_zipfile_serialization=False)

    def old_with(code: bytes) -> Callable[[Path, State], object]:
        def make(file: Path, state: State) -> None:
            start = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}))
            file.write_bytes(start + state_of(code) + pickle.dumps(["0"], 2) + struct.pack("<q4f", 4, 1, 2, 3, 4))

        return make

    def tar(file: Path, state: State) -> None:
        with tarfile.open(file, "w") as made:
            for name in ("storages", "tensors", "pickle"):
                data = pickle.dumps(Runs(command), 2)
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                made.addfile(entry, io.BytesIO(data))

    def inflated(file: Path, state: State) -> None:
        archive(file, state_of(tensor((4,), (1,))), zipfile.ZIP_DEFLATED, bytes(100_000_000))

    def program_inflated(file: Path, state: State) -> None:
        archive(file, state_of(b"]" * 50_000_000), zipfile.ZIP_DEFLATED)

    def overlapping(file: Path, state: State) -> None:
        archive(file, state_of(tensor((4,), (1,))))
        with zipfile.ZipFile(file, "a") as made:
            again = made.getinfo("archive/data/0")
            for number in range(1, 50):
                entry = zipfile.ZipInfo(f"archive/data/{number}")
                for name in ("file_size", "compress_size", "header_offset", "CRC"):
                    setattr(entry, name, getattr(again, name))
                entry.file_size = entry.compress_size = 10**6
                made.filelist.append(entry)
            made._didModify = True  # type: ignore[attr-defined]

    def bytes_of(content: bytes) -> Callable[[Path, State], object]:
        return lambda file, state: file.write_bytes(content)

    def cut(file: Path, state: State) -> None:
        torch.save(state, file)
        os.truncate(file, file.stat().st_size // 2)

    def one_bit(file: Path, state: State) -> None:
        torch.save(state, file)
        content = bytearray(file.read_bytes())
        place = content.index(b"data.pkl") + 200
        content[place] ^= 4
        file.write_bytes(content)

    return {
        "file: old format that runs code": lambda file, state: old(file, state | {"extra_state": Runs(command)}),
        "file: old format whose mark runs code": lambda file, state: file.write_bytes(pickle.dumps(Runs(command), 2)),
        "file: old format with a storage of 400 GB": old_with(storage("0", 10**11)),
        "file: old format with a tensor spread out": old_with(tensor((10**6, 10**6), (0, 0))),
        "file: tar format": tar,
        "file: TorchScript": lambda file, state: torch.jit.script(Scripted()).save(str(file)),
        "file: packed weights of 100 MB": inflated,
        "file: packed program of 50 MB": program_inflated,
        "file: fifty records in one place": overlapping,
        "file: text": bytes_of(b"a text\nof two lines\n"),
        "file: a web page": bytes_of(b"<!DOCTYPE html>\n<html><body>Not Found</body></html>\n"),
        "file: empty": bytes_of(b""),
        "file: cut off": cut,
        "file: a zip archive of something else": lambda file, state: zipfile.ZipFile(file, "w").writestr("a", "b"),
        "file: a bit of its program is wrong": one_bit,
        "file: a folder": lambda file, state: file.mkdir(),
        "file: a named pipe": lambda file, state: os.mkfifo(file),
        "file: a link to itself": lambda file, state: file.symlink_to(file),
        "file: endless": lambda file, state: file.symlink_to("/dev/zero"),
        "file: a list": lambda file, state: torch.save([torch.zeros(2)], file),
        "file: an object of another class": lambda file, state: torch.save(state | {"extra_state": Text("x")}, file),
    }  # fmt: skip


def changes(command: str) -> dict[str, Callable[[State], object]]:
    """Return what changes a healthy checkpoint, by name: `change(state)`."""
    code = f"__import__('os').system({command!r})"

    def setting(section: str, name: str, value: Any) -> Callable[[State], object]:
        def change(state: State) -> None:
            config = state["cfg"][section]
            (vars(config) if isinstance(config, argparse.Namespace) else config)[name] = value

        return change

    def weight(change: Callable[[OrderedDict[str, Any], str], object]) -> Callable[[State], object]:
        return lambda state: change(state["model"], next(name for name in state["model"] if name.endswith(".weight")))

    def filled(value: float) -> Callable[[State], object]:
        return weight(lambda model, name: model[name].view(-1)[:3].fill_(value))

    def laughing(state: State) -> None:
        value: Any = ["ha"]
        for _ in range(60):
            value = [value, value]
        state["cfg"]["model"].laughs = value

    def into_itself(state: State) -> None:
        state["cfg"]["again"] = state["cfg"]

    nested = [{"inner": ({"x": argparse.Namespace(conv_feature_layers=code)},)}]
    return {
        "config: code": setting("optimizer", "adam_betas", code),
        "config: code in the model's": setting("model", "encoder_xformers_att_config", code),
        "config: code as bytes": setting("model", "encoder_layers", code.encode()),
        "config: code as a bytearray": setting("model", "encoder_layers", bytearray(code.encode())),
        "config: code as an array": setting("model", "encoder_layers", np.frombuffer(code.encode(), np.uint8).copy()),
        "config: code far inside": setting("model", "nested", nested),
        "config: code in a str of another class": setting("optimizer", "adam_betas", Text(code)),
        "config: code in the old args": lambda state: state.update(args=argparse.Namespace(lamb_betas=code)),
        "config: a literal of 80 GB": setting("model", "encoder_layers", "[0] * 10000000000"),
        "config: a literal of literals": setting("model", "encoder_layers", "[0]" + " * 1000" * 5),
        "config: the environment": setting("common", "wandb_project", "${oc.env:HOME}"),
        "config: the environment, as of old": setting("common", "wandb_project", "x${env:HOME}"),
        "config: the environment in a list": setting("common", "names", ["${oc.env:HOME}"]),
        "config: a config out of nothing": lambda state: state["cfg"].update(
            optimizer="${oc.create:{adam_betas:" + repr(code) + "}}"
        ),
        "config: text": lambda state: state.update(cfg=f"optimizer: {{adam_betas: {code!r}}}"),
        "config: old args that are text": lambda state: state.update(args="adam_betas: (1, 2)"),
        "config: lists that hold each other twice": laughing,
        "config: that holds itself": into_itself,
        "config: 20,000 settings": lambda state: state["cfg"].update({f"x{n}": n for n in range(20_000)}),
        "weights: NaN": filled(float("nan")),
        "weights: infinite": filled(float("inf")),
        "weights: a list": weight(lambda model, name: model.update({name: [1.0, 2.0]})),
        "weights: none at all": lambda state: state.pop("model"),
        "weights: of no names": lambda state: state.update(model=[torch.zeros(3)]),
        "history: text": lambda state: state.update(optimizer_history="num_updates"),
        "history: updates that are text": lambda state: state["optimizer_history"][-1].update(num_updates="many"),
    }


def one_weight(change: Callable[[Any, str], object]) -> Callable[[State], object]:
    """Let `change(model, name)` change one of the weights that are no embeddings."""
    return lambda state: change(
        state["model"],
        next(name for name, weight in state["model"].items() if weight.dim() > 1 and "embed" not in name),
    )


def asks_for(of_text: dict[str, Any], of_images: dict[str, Any]) -> Callable[[State], object]:
    """Let the model's config ask for something else."""

    def change(state: State) -> None:
        settings = vars(state["cfg"]["model"])
        settings.update(of_text if "encoder_layers" in settings else of_images)

    return change


# What only whoever builds the model can see: `change(state of a healthy one)`.
MISFITS: dict[str, Callable[[State], object]] = {
    "misfit: a weight is missing": one_weight(lambda model, name: model.pop(name)),
    "misfit: a weight too many": one_weight(lambda model, name: model.update({f"{name}.more": model[name]})),
    "misfit: another shape": one_weight(lambda model, name: model.update({name: torch.zeros(3, 5)})),
    "misfit: whole numbers": one_weight(lambda model, name: model.update({name: model[name].long()})),
    "misfit: complex numbers": one_weight(lambda model, name: model.update({name: model[name].to(torch.complex64)})),
    "misfit: asks for layers of 20 GB": asks_for({"encoder_ffn_embed_dim": 10**8}, {"stage_channels": "16,32,20000"}),
    "misfit: asks for embeddings of 40 GB": asks_for(
        {"encoder_embed_dim": 10**8, "decoder_embed_dim": 10**8}, {"stage_channels": "16,30000,60000"}
    ),
    "misfit: asks for six thousand layers": asks_for({"decoder_layers": 6000}, {"stage_blocks": "1,1,6000"}),
    "misfit: asks for positions of 800 MB": asks_for(
        {"max_source_positions": 3_000_000}, {"stage_blocks": "1,1000000,1"}
    ),
    "misfit: asks for 2^62 positions": asks_for({"max_target_positions": 2**62}, {"stage_channels": f"8,8,{2**62}"}),
}


def write(folder: Path, healthy: Path, command: str) -> dict[str, Path]:
    """Write a file of every kind; return them by name. Those of `MISFITS` are no trouble to a loader alone."""
    folder.mkdir()
    made: dict[str, Path] = {}

    def fresh() -> State:
        state: State = torch.load(healthy, weights_only=False)
        return state

    def file(name: str) -> Path:
        made[name] = folder / f"{len(made)}.pt"
        return made[name]

    for name, code in programs(command).items():
        archive(file(name), state_of(code))
    state = fresh()
    for name, make in files(command).items():
        make(file(name), state)
    for name, change in changes(command).items():
        state = fresh()
        change(state)
        torch.save(state, file(name))
    for name, misfit in MISFITS.items():
        state = fresh()
        misfit(state)
        torch.save(state, file(name))
    return made


# --- the loaders, each load in a process of its own -----------------------------------------------------------------


def memory(key: str) -> int:
    """Return a figure of this process in KiB."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if key in line)


def loaded(loaders: dict[str, Callable[[str], object]], file: Path) -> dict[str, Any]:
    """Give a file to each loader in a child; return what they said, how many MiB they took at most, and the seconds."""
    reading, writing = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        said = {}
        for name, load in loaders.items():
            try:
                said[name] = f"loaded {type(load(str(file))).__name__}"
            except (ValueError, OSError) as error:
                said[name] = str(error)
            except BaseException as error:
                said[name] = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps([said, (memory("VmHWM") - before) / 1024]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        content = answer.read()
    _, status = os.waitpid(child, 0)
    said, grown = json.loads(content) if content else (dict.fromkeys(loaders, f"died with status {status}"), 0.0)
    return {"said": said, "grown": grown, "seconds": time.monotonic() - begun}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from fairseq import checkpoint_utils

    import fairseq_resid.models  # noqa: F401  (bridges fairseq)
    from fairseq_resid.compat import load_checkpoint

    torch.set_num_threads(1)
    copyreg.add_extension("os", "system", EXTENSION)
    loaders = {"load_checkpoint": load_checkpoint, "fairseq": checkpoint_utils.load_checkpoint_to_cpu}
    found = {file: loaded(loaders, Path(file)) for file in sys.argv[1].split(":")}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
