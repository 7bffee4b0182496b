"""Checkpoints are read as data: as by torch, without running code, and a bad file is refused in one line."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairseq_resid.models  # noqa: F401  (applies the patches)
from fairseq_resid.__main__ import main
from fairseq_resid.fairseq_patches import UserError, load_checkpoint, loading, reader

Command = Callable[..., Any]
State = dict[str, Any]


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a file that planted code would create, then check that it does not exist."""
    file = tmp_path / "code-has-run"
    yield file
    assert not file.exists(), "planted code has run"


class Runs:
    """An object whose pickle runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Text(str):
    """A class that is not allowed."""


def first_weight(state: State, value: Callable[[torch.Tensor], Any]) -> None:
    name = next(name for name, weight in state["model"].items() if weight.dim() > 1 and "embed" not in name)
    state["model"][name] = value(state["model"][name])


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_a_bit(file: Path) -> None:
    """Change a weight, which torch alone would not notice."""
    with zipfile.ZipFile(file) as archive:
        record = max(archive.infolist(), key=lambda one: one.file_size)
    content = bytearray(file.read_bytes())
    content[record.header_offset + 30 + record.file_size // 2] ^= 64
    file.write_bytes(content)


# What is changed in the content of a checkpoint, given a command: `change(state, command)`.
CONTENTS: dict[str, Callable[[State, str], Any]] = {
    "code in the pickle": lambda state, command: state.update(extra_state=Runs(command)),
    "code in a setting": lambda state, command: state["cfg"]["optimizer"].update(
        adam_betas=f"__import__('os').system({command!r})"
    ),
    "code in the old args": lambda state, command: state.update(
        args=argparse.Namespace(lamb_betas=f"__import__('os').system({command!r})")
    ),
    "a resolver of OmegaConf": lambda state, command: state["cfg"]["common"].update(wandb_project="${oc.env:HOME}"),
    "a config of text": lambda state, command: state.update(cfg="optimizer: {adam_betas: (1, 2)}"),
    "an object of another class": lambda state, command: state.update(extra_state=Text("x")),
    "no weights": lambda state, command: state.pop("model"),
}
# What is done to the file.
FILES: dict[str, Callable[[Path], Any]] = {
    "cut off": truncate,
    "a wrong bit in the weights": flip_a_bit,
    "a web page": lambda file: file.write_text("<!DOCTYPE html>\n<html><body>Not Found</body></html>\n"),
    "another archive": lambda file: zipfile.ZipFile(file, "w").writestr("a", "b"),
    "empty": lambda file: file.write_bytes(b""),
    "code in an old format": lambda file: file.write_bytes(pickle.dumps(Runs(f"touch {file.parent}/code-has-run"), 2)),
}


@pytest.mark.parametrize("kind", [*CONTENTS, *FILES])
def test_bad_checkpoint_is_refused_in_one_line(kind: str, sas_checkpoint: Path, tmp_path: Path, marker: Path) -> None:
    from fairseq import checkpoint_utils

    file = tmp_path / "a.pt"
    state = torch.load(sas_checkpoint, weights_only=False)
    if kind in CONTENTS:
        CONTENTS[kind](state, f"touch {marker}")
    torch.save(state, file)
    if kind in FILES:
        FILES[kind](file)
    loaders: list[Callable[[str], Any]] = [checkpoint_utils.load_checkpoint_to_cpu]
    if kind != "a wrong bit in the weights":  # mapped weights are not read until they are used
        loaders.append(load_checkpoint)
    for load in loaders:
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: ") as error:
            load(str(file))
        assert "\n" not in str(error.value) and len(str(error.value)) < 900


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, sas_checkpoint: Path, tmp_path: Path) -> None:
    from fairseq import checkpoint_utils

    state = torch.load(sas_checkpoint, weights_only=False)
    first_weight(state, lambda weight: weight.fill_(value))
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"a\.pt: .* has NaN or infinite values"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "a.pt"))


@pytest.mark.parametrize("change", [torch.Tensor.long, lambda weight: torch.zeros(3, 5)], ids=["dtype", "shape"])
@pytest.mark.parametrize("command", ["generate", "resume", "average", "translate"])
def test_commands_refuse_a_checkpoint_that_does_not_fit(
    command: str,
    change: Any,
    sas_checkpoint: Path,
    corpus: Path,
    tmp_path: Path,
    generate: Command,
    train: Command,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "checkpoint_last.pt"
    state = torch.load(sas_checkpoint, weights_only=False)
    first_weight(state, change)
    torch.save(state, file)
    if command == "generate":
        done = generate(file, check=False)
        code, said = done.code, done.error
    elif command == "resume":
        done = train(tmp_path / "new", "--arch", "transformer_sas_tiny", "--restore-file", file, check=False)
        code, said = done.code, done.error
    elif command == "average":
        flags = ["--inputs", str(file), str(sas_checkpoint), "--output", str(tmp_path / "out.pt")]
        code, said = main(["average", *flags]), capfd.readouterr().err
        assert not (tmp_path / "out.pt").exists()
    else:
        code, said = main(["translate", str(tmp_path), "--data", str(corpus), "--cpu"]), capfd.readouterr().err
    assert code == 1 or code == 2
    assert str(file) in said and "Traceback" not in said


@pytest.mark.parametrize("kind", ["code in the pickle", "code in a setting", "cut off"])
def test_commands_refuse_a_bad_checkpoint(
    kind: str, sas_checkpoint: Path, corpus: Path, tmp_path: Path, marker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    state = torch.load(sas_checkpoint, weights_only=False)
    if kind in CONTENTS:
        CONTENTS[kind](state, f"touch {marker}")
    for name in ("checkpoint_last.pt", "checkpoint1.pt"):
        torch.save(state, run / name)
        if kind in FILES:
            FILES[kind](run / name)
    data = ["--data", str(corpus), "--cpu"]
    for words in (
        ["evaluate", str(run), *data, "--last", "1"],
        ["translate", str(run), *data],
        ["analyze", str(run), *data],
    ):
        assert main(words) in (1, 2)
        said = capfd.readouterr().err
        assert str(run / "checkpoint") in said and "Traceback" not in said


def test_every_unpickling_call_in_fairseq_is_known() -> None:
    """LOADERS lists all modules of fairseq, except its examples, that call torch.load on untrusted files.

    Two more modules call it, on data sent between fairseq's own processes and on a file that only fairseq writes.
    """
    spec = find_spec("fairseq")
    assert spec is not None and spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    found = set()
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        if parts[1] != "examples" and re.search(r"\btorch\.load\(", file.read_text(encoding="utf-8")):
            found.add(".".join(parts))
    own = {"fairseq.distributed.utils", "fairseq.modules.quantization.pq.em"}
    assert {"fairseq.checkpoint_utils", *own} <= found, "the scan misses known calls of torch.load"
    unknown = found - own - set(loading.LOADERS)
    assert not unknown, f"fairseq calls torch.load in {sorted(unknown)}: add them to loading.LOADERS"


@pytest.mark.parametrize("old_format", [False, True])
def test_checkpoint_loads_as_in_torch(old_format: bool, sas_checkpoint: Path, tmp_path: Path) -> None:
    """Names, types, order, values, strides and shared memory are equal, and mapped files stay unchanged."""
    expected = torch.load(sas_checkpoint, weights_only=False)
    expected["extra_state"]["numpy"] = [np.float64(1.5), np.arange(6).reshape(2, 3).T, np.bool_(True)]
    expected["extra_state"]["views"] = [torch.arange(6).view(2, 3).t(), torch.zeros(0, 3), torch.ones(2).bfloat16()]
    file = tmp_path / "x.pt"
    torch.save(expected, file, _use_new_zipfile_serialization=not old_format)
    copied, mapped = reader.read(file), reader.read(file, is_mapped=True)
    for found in (copied, mapped):
        assert_same(found, expected)
        assert found["model"]._metadata == expected["model"]._metadata
        tied = found["model"]["encoder.embed_tokens.weight"], found["model"]["decoder.output_projection.weight"]
        assert tied[0].data_ptr() == tied[1].data_ptr()
    mapped["model"]["encoder.embed_tokens.weight"].zero_()  # changes only memory, not the file
    assert_same(reader.read(file), expected)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, argparse.Namespace):
        found, expected = vars(found), vars(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.stride() == expected.stride() and torch.equal(found, expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def test_files_and_user_dir_in_config_are_not_opened(
    sas_checkpoint: Path,
    corpus: Path,
    marker: Path,
    tmp_path: Path,
    generate: Command,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Weights replace initial embeddings; decoding options and a user-dir are read only from the command line."""
    from fairseq_resid.models import ResidualTransformerModel

    package, pipe, file = tmp_path / "planted_package", tmp_path / "pipe", tmp_path / "a.pt"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    os.mkfifo(pipe)
    state = torch.load(sas_checkpoint, weights_only=False)
    state["cfg"]["common"]["user_dir"] = str(package)
    for name in ("encoder_embed_path", "decoder_embed_path"):
        setattr(state["cfg"]["model"], name, str(pipe))
    state["cfg"]["generation"].update(replace_unk=str(pipe), lm_path=str(pipe))
    state["cfg"]["tokenizer"] = {"_name": "moses", "source_lang": "../../en"}
    for bpe in (
        argparse.Namespace(_name="subword_nmt", bpe_codes=str(pipe), bpe_separator="@@"),
        {"_name": "sentencepiece", "sentencepiece_model": str(pipe)},
        {"_name": "gpt2", "gpt2_encoder_json": "http://127.0.0.1:9/", "gpt2_vocab_bpe": "http://127.0.0.1:9/"},
    ):
        state["cfg"]["bpe"] = bpe
        torch.save(state, file)
        ResidualTransformerModel.from_pretrained(str(tmp_path), file.name, data_name_or_path=str(corpus))
        assert f"{file}: its config has bpe=" in caplog.text and "which is ignored" in caplog.text
    assert generate(file, "--beam", 1).hypotheses == generate(sas_checkpoint, "--beam", 1).hypotheses
    assert not marker.exists()
