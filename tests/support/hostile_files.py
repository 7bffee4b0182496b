"""Files that are not healthy checkpoints, and malicious changes to healthy ones."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import struct
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.hostile_pickles import Runs, state_of, storage, tensor

State = dict[str, Any]


def archive(file: Path, program: bytes, packed: int = zipfile.ZIP_STORED, record: bytes = bytes(16)) -> None:
    """Write a zip archive as torch does, with one storage of four numbers."""
    with zipfile.ZipFile(file, "w", packed) as made:
        made.writestr("archive/data.pkl", program)
        made.writestr("archive/byteorder", sys.byteorder)
        made.writestr("archive/data/0", record)
        made.writestr("archive/version", "3\n")


class Text(str):
    """A subclass of str."""


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def files(command: str) -> dict[str, Callable[[Path, State], object]]:
    """Return functions by name, each of which writes an unhealthy checkpoint: `make(file, healthy state)`."""

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
        "file: old format whose start runs code": lambda file, state: file.write_bytes(pickle.dumps(Runs(command), 2)),
        "file: old format with a storage of 400 GB": old_with(storage("0", 10**11)),
        "file: old format with an expanded tensor": old_with(tensor((10**6, 10**6), (0, 0))),
        "file: tar format": tar,
        "file: TorchScript": lambda file, state: torch.jit.script(Scripted()).save(str(file)),
        "file: packed weights of 100 MB": inflated,
        "file: packed program of 50 MB": program_inflated,
        "file: fifty records in one place": overlapping,
        "file: text": bytes_of(b"a text\nof two lines\n"),
        "file: a web page": bytes_of(b"<!DOCTYPE html>\n<html><body>Not Found</body></html>\n"),
        "file: empty": bytes_of(b""),
        "file: cut off": cut,
        "file: a zip archive of another kind": lambda file, state: zipfile.ZipFile(file, "w").writestr("a", "b"),
        "file: one wrong bit in its program": one_bit,
        "file: a folder": lambda file, state: file.mkdir(),
        "file: a named pipe": lambda file, state: os.mkfifo(file),
        "file: a link to itself": lambda file, state: file.symlink_to(file),
        "file: endless": lambda file, state: file.symlink_to("/dev/zero"),
        "file: a list": lambda file, state: torch.save([torch.zeros(2)], file),
        "file: an object of another class": lambda file, state: torch.save(state | {"extra_state": Text("x")}, file),
    }  # fmt: skip


def changes(command: str) -> dict[str, Callable[[State], object]]:
    """Return functions by name, each of which changes a healthy checkpoint: `change(state)`."""
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
        "config: code in the model config": setting("model", "encoder_xformers_att_config", code),
        "config: code as bytes": setting("model", "encoder_layers", code.encode()),
        "config: code as a bytearray": setting("model", "encoder_layers", bytearray(code.encode())),
        "config: code as an array": setting("model", "encoder_layers", np.frombuffer(code.encode(), np.uint8).copy()),
        "config: deeply nested code": setting("model", "nested", nested),
        "config: code in a str of another class": setting("optimizer", "adam_betas", Text(code)),
        "config: code in the old args": lambda state: state.update(args=argparse.Namespace(lamb_betas=code)),
        "config: a literal of 80 GB": setting("model", "encoder_layers", "[0] * 10000000000"),
        "config: a literal of literals": setting("model", "encoder_layers", "[0]" + " * 1000" * 5),
        "config: the environment": setting("common", "wandb_project", "${oc.env:HOME}"),
        "config: the environment, old syntax": setting("common", "wandb_project", "x${env:HOME}"),
        "config: the environment in a list": setting("common", "names", ["${oc.env:HOME}"]),
        "config: a config created by a resolver": lambda state: state["cfg"].update(
            optimizer="${oc.create:{adam_betas:" + repr(code) + "}}"
        ),
        "config: text": lambda state: state.update(cfg=f"optimizer: {{adam_betas: {code!r}}}"),
        "config: old args that are text": lambda state: state.update(args="adam_betas: (1, 2)"),
        "config: lists that contain each other twice": laughing,
        "config: contains itself": into_itself,
        "config: 20,000 settings": lambda state: state["cfg"].update({f"x{n}": n for n in range(20_000)}),
        "weights: NaN": filled(float("nan")),
        "weights: infinite": filled(float("inf")),
        "weights: a list": weight(lambda model, name: model.update({name: [1.0, 2.0]})),
        "weights: missing": lambda state: state.pop("model"),
        "weights: without names": lambda state: state.update(model=[torch.zeros(3)]),
        "history: text": lambda state: state.update(optimizer_history="num_updates"),
        "history: text as update number": lambda state: state["optimizer_history"][-1].update(num_updates="many"),
    }


def one_weight(change: Callable[[Any, str], object]) -> Callable[[State], object]:
    """Apply `change(model, name)` to the first weight that is not an embedding."""
    return lambda state: change(
        state["model"],
        next(name for name, weight in state["model"].items() if weight.dim() > 1 and "embed" not in name),
    )


def config_with(of_text: dict[str, Any], of_images: dict[str, Any]) -> Callable[[State], object]:
    """Return a function that changes the model config."""

    def change(state: State) -> None:
        settings = vars(state["cfg"]["model"])
        settings.update(of_text if "encoder_layers" in settings else of_images)

    return change


# Mismatches between config and weights, which are noticed only when the model is built: `change(healthy state)`.
MISFITS: dict[str, Callable[[State], object]] = {
    "misfit: a weight is missing": one_weight(lambda model, name: model.pop(name)),
    "misfit: an extra weight": one_weight(lambda model, name: model.update({f"{name}.more": model[name]})),
    "misfit: a wrong shape": one_weight(lambda model, name: model.update({name: torch.zeros(3, 5)})),
    "misfit: whole numbers": one_weight(lambda model, name: model.update({name: model[name].long()})),
    "misfit: complex numbers": one_weight(lambda model, name: model.update({name: model[name].to(torch.complex64)})),
    "misfit: config with layers of 20 GB": config_with(
        {"encoder_ffn_embed_dim": 10**8}, {"stage_channels": "16,32,20000"}
    ),
    "misfit: config with embeddings of 40 GB": config_with(
        {"encoder_embed_dim": 10**8, "decoder_embed_dim": 10**8}, {"stage_channels": "16,30000,60000"}
    ),
    "misfit: config with six thousand layers": config_with({"decoder_layers": 6000}, {"stage_blocks": "1,1,6000"}),
    "misfit: config with positions of 800 MB": config_with(
        {"max_source_positions": 3_000_000}, {"stage_blocks": "1,1000000,1"}
    ),
    "misfit: config with 2^62 positions": config_with(
        {"max_target_positions": 2**62}, {"stage_channels": f"8,8,{2**62}"}
    ),
}
