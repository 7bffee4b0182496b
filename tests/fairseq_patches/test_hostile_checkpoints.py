"""Malicious checkpoints: no code runs, nothing hangs, memory is bounded, and a one-line error names the file."""

from __future__ import annotations

import argparse
import contextlib
import copyreg
import io
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_resid import fairseq_patches as compat
from fairseq_resid.__main__ import main
from fairseq_resid.fairseq_patches import loading, reader
from support import hostile
from support.shells import run_within

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., Any]
Capture = pytest.CaptureFixture[str]
MOST_MIB = 70  # growth while loading; a healthy checkpoint of 4 MiB takes 16
MOST_MIB_OF_A_COMMAND = 500  # growth during a command; less than the smallest bomb would allocate


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the path of a file that planted code would create, then check that it does not exist."""
    file = tmp_path_factory.mktemp("marker") / "code-has-run"
    yield file
    assert not file.exists(), "planted code has run"


@pytest.fixture(scope="module")
def planted(sas_checkpoint: Path, marker: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one malicious file of every kind, by name."""
    return hostile.write(tmp_path_factory.mktemp("hostile") / "planted", sas_checkpoint, f"touch {marker}")


@pytest.fixture(scope="module")
def outcomes(planted: dict[str, Path], sas_checkpoint: Path, marker: Path) -> dict[str, Any]:
    """Return the results of both loaders for each malicious file and for the healthy one."""
    names = {**planted, "healthy": sas_checkpoint}
    command = [sys.executable, "-m", "support.hostile", ":".join(map(str, names.values()))]
    done = run_within(1000, command, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[str(file)] for name, file in names.items()}


# Mapped weights are not read until they are used, so their values are not checked.
HARMLESS = {("weights: NaN", "load_checkpoint"), ("weights: infinite", "load_checkpoint")}


def test_no_loader_accepts_hostile_checkpoints(
    planted: dict[str, Path], outcomes: dict[str, Any], marker: Path, fault: Command
) -> None:
    wrong = []
    kinds = [name for name in planted if name not in hostile.MISFITS]
    for name in kinds:
        for loader, said in outcomes[name]["said"].items():
            is_named = str(planted[name]) in said and "\n" not in said and len(said) < 900
            if (name, loader) not in HARMLESS and (said.startswith(("loaded ", "died ")) or not is_named):
                wrong.append((name, loader, said[:300]))
        if outcomes[name]["grown"] > MOST_MIB:
            wrong.append((name, "took", f"{outcomes[name]['grown']:.0f} MiB"))
    assert not wrong, "\n".join(map(str, wrong))
    assert not marker.exists()
    assert set(outcomes["healthy"]["said"].values()) == {"loaded dict"}
    fault(
        f"hostile checkpoints of {len(kinds)} kinds (code, bombs, config, weights, other files), given to both loaders",
        2 * len(kinds),
        "no code ran; all except NaN in mapped weights were refused by a one-line error that names the file; at most "
        f"{max(outcomes[name]['grown'] for name in kinds):.0f} MiB of memory "
        f"(a healthy one: {outcomes['healthy']['grown']:.0f}), "
        f"{max(outcomes[name]['seconds'] for name in kinds):.1f} s",
    )


# --- the commands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Victim:
    """A run folder of hostile checkpoints, a data folder and the test fixtures that run commands."""

    run: Path
    data: Path
    tools: dict[str, Command]

    @property
    def last(self) -> Path:
        return self.run / "checkpoint_last.pt"


Outcome = tuple[object, str]  # exit code, output


def command_of(*words: object) -> Callable[[Victim], Outcome]:
    """Return a function that runs a command of fairseq-resid; RUN, LAST, DATA and OUT are replaced by paths."""

    def run(place: Victim) -> Outcome:
        paths = {"RUN": place.run, "LAST": place.last, "DATA": place.data, "OUT": place.run / "out.pt"}
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code: object = main([str(paths.get(str(word), word)) for word in words])
            except SystemExit as end:  # Python would print it on one line
                code = end.code
                print(end.code, file=said)
        return code, said.getvalue()

    return run


def fairseq(name: str, *flags: object) -> Callable[[Victim], Outcome]:
    def run(place: Victim) -> Outcome:
        done = place.tools["cli"](name, place.data, "--path", place.last, *flags, check=False)
        return done.code, done.error + ("Traceback" if "Traceback" in done.output else "")

    return run


def resume(place: Victim) -> Outcome:
    save = place.run.parent / f"{place.run.name}.resumed"
    flags = ["--arch", "transformer_sas_tiny", "--restore-file", place.last]
    done = place.tools["train"](save, *flags, check=False)
    assert not save.exists() or list(save.iterdir()) == []
    return done.code, done.error + ("Traceback" if "Traceback" in done.output else "")


def hub(place: Victim) -> Outcome:
    from fairseq_resid.models import ResidualTransformerModel

    try:
        ResidualTransformerModel.from_pretrained(str(place.run), place.last.name, data_name_or_path=str(place.data))
    except compat.UserError as error:
        return 1, str(error)
    return 0, ""


COMMANDS: dict[str, Callable[[Victim], Outcome]] = {
    "generate": fairseq("fairseq-generate"),
    "interactive": fairseq("fairseq-interactive", "--source-lang", "en", "--target-lang", "xx"),
    "resume": resume,
    "hub": hub,
    "average": command_of("average", "--inputs", "RUN", "--last", 2, "--output", "OUT"),
    "evaluate": command_of("evaluate", "RUN", "--data", "DATA", "--last", 1, "--subset", "test", "--cpu"),
    "analyze": command_of("analyze", "RUN", "--data", "DATA", "--no-ablation", "--cpu"),
    "translate": command_of("translate", "RUN", "--data", "DATA", "--cpu"),
}
# Commands for image models, which do not decode.
OF_IMAGES = ("evaluate", "analyze", "average")
TOO_LARGE = [name for name in hostile.MISFITS if name.startswith("misfit: config with")]
# Averaging cannot detect a misfit that all files share. A training run takes its model from the command line.
PASSES = {("average", name) for name in hostile.MISFITS} | {("resume", name) for name in TOO_LARGE}
NUMBERED = {"checkpoint1.pt", "checkpoint2.pt"}
# Evaluation averages checkpoints before it builds a model.
MAY_BE_WRITTEN = {"misfit": {"averaged.pt", "averaged.json", "decode/test.averaged.log"}}
SAMPLE = ["code: os.system", "file: a named pipe", "weights: NaN"]


def attack(place: Victim, pairs: Iterable[tuple[str, str]], planted: dict[str, Path]) -> tuple[int, float]:
    """Run each pair of (command, file) that is not in PASSES, with the file at every path that the command reads.

    Returns: the number of pairs that were run, and the largest growth in memory in MiB
    """
    wrong, most = [], 0.0
    tried = [pair for pair in pairs if pair not in PASSES]
    for command, name in tried:
        shutil.rmtree(place.run, ignore_errors=True)
        place.run.mkdir()
        source = planted[name]
        for file in ("checkpoint_last.pt", "checkpoint1.pt", "checkpoint2.pt"):
            if source.is_fifo():
                os.mkfifo(place.run / file)
            elif source.is_dir() or source.is_symlink():
                (place.run / file).symlink_to(source)
            else:
                shutil.copyfile(source, place.run / file)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
        before = hostile.memory("VmRSS")
        code, said = COMMANDS[command](place)
        grown = (hostile.memory("VmHWM") - before) / 1024
        most = max(most, grown)
        if grown > MOST_MIB_OF_A_COMMAND:
            wrong.append((command, name, f"took {grown:.0f} MiB"))
        is_named = re.search(rf"{place.run}/(checkpoint\w+|averaged)\.pt", said)
        if code in (0, None) or not is_named or "Traceback" in said or len(said) > 2500:
            wrong.append((command, name, code, said[-600:]))
        made = {str(file.relative_to(place.run)) for file in place.run.rglob("*") if file.is_file()}
        if made - MAY_BE_WRITTEN.get(name.partition(":")[0], set()) - {"checkpoint_last.pt", *NUMBERED, ".lock"}:
            wrong.append((command, name, "wrote", made))
    assert not wrong, "\n".join(map(str, wrong))
    return len(tried), most


@pytest.fixture
def place(
    tmp_path: Path, corpus: Path, train: Command, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Victim]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the red fox sees a king .\n")))
    copyreg.add_extension("os", "system", hostile.EXTENSION)
    yield Victim(tmp_path / "run", corpus, {"train": train, "cli": cli})
    copyreg.remove_extension("os", "system", hostile.EXTENSION)


def test_commands_refuse_a_sample_of_hostile_checkpoints(
    place: Victim, planted: dict[str, Path], sas_checkpoint: Path, marker: Path
) -> None:
    attack(place, zip(COMMANDS, itertools.cycle(SAMPLE)), planted)
    attack(place, [("hub", name) for name in TOO_LARGE], planted)
    assert not marker.exists()


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_all_hostile_checkpoints(
    command: str, place: Victim, planted: dict[str, Path], marker: Path, fault: Command
) -> None:
    begun = time.monotonic()
    tried, most = attack(place, itertools.product([command], planted), planted)
    assert not marker.exists()
    fault(
        f"hostile checkpoints of {len(planted)} kinds in a run folder, given to {command}",
        tried,
        "each failed with an error that names the file; no code ran, no result was written; "
        f"memory grew by at most {most:.0f} MiB; {time.monotonic() - begun:.0f} s",
    )


@pytest.fixture(scope="module")
def image_run(cli: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a data folder of images, and a checkpoint of a small ResNet after two updates."""
    from support.image_models import FLAGS, write_data

    data = write_data(tmp_path_factory.mktemp("hostile-images") / "farm")
    flags = [word for word in shlex.split(FLAGS) if word != "--cpu"]
    save = data.parent / "run"
    cli("fairseq-train", data, *flags, "--arch", "preact_resnet20", "--max-update", 2, "--save-dir", save)
    return data, save / "checkpoint_last.pt"


@pytest.mark.long
def test_image_commands_refuse_all_hostile_checkpoints(
    place: Victim, image_run: tuple[Path, Path], marker: Path, tmp_path: Path, fault: Command
) -> None:
    begun = time.monotonic()
    data, healthy = image_run
    planted = hostile.write(tmp_path / "planted", healthy, f"touch {marker}")
    tried, most = attack(replace(place, data=data), itertools.product(OF_IMAGES, planted), planted)
    assert not marker.exists()
    fault(
        f"hostile checkpoints of {len(planted)} kinds in the run folder of an image model, given to "
        + ", ".join(OF_IMAGES),
        tried,
        "each failed with an error that names the file; no code ran, no result was written; "
        f"memory grew by at most {most:.0f} MiB; {time.monotonic() - begun:.0f} s",
    )


# --- details --------------------------------------------------------------------------------------------------------


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
def test_healthy_checkpoint_loads_as_in_torch(old_format: bool, sas_checkpoint: Path, tmp_path: Path) -> None:
    """Names, types, order, values, strides and shared memory are equal, and mapped files stay unchanged."""
    expected = torch.load(sas_checkpoint, weights_only=False)
    expected["extra_state"]["numpy"] = [np.float64(1.5), np.arange(6).reshape(2, 3).T, np.bool_(True)]
    expected["extra_state"]["views"] = [torch.arange(6).view(2, 3).t(), torch.zeros(0, 3), torch.ones(2).bfloat16()]
    file = tmp_path / "x.pt"
    torch.save(expected, file, _use_new_zipfile_serialization=not old_format)
    with file.open("rb") as opened:
        copied = reader.read(opened, str(file))
        mapped = reader.read(opened, str(file), is_mapped=True)
    for found in (copied, mapped):
        assert_same(found, expected)
        assert found["model"]._metadata == expected["model"]._metadata
        tied = found["model"]["encoder.embed_tokens.weight"], found["model"]["decoder.output_projection.weight"]
        assert tied[0].data_ptr() == tied[1].data_ptr()
    mapped["model"]["encoder.embed_tokens.weight"].zero_()  # changes only memory, not the file
    with file.open("rb") as opened:
        assert_same(reader.read(opened, str(file)), expected)


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


def test_sharded_checkpoints_skip_the_size_check(sas_checkpoint: Path, corpus: Path, tmp_path: Path) -> None:
    """A shard contains only a part of the weights, so it does not limit the size of the model."""
    from fairseq import checkpoint_utils

    state = torch.load(sas_checkpoint, weights_only=False)
    state["cfg"]["model"].max_source_positions = 1_000_000
    file = tmp_path / "x.pt"
    for name in ("x.pt", "x_part0.pt", "x_part1.pt"):
        torch.save(state, tmp_path / name)
    load, data = checkpoint_utils.load_model_ensemble_and_task, {"data": str(corpus)}
    assert load([str(file)], data, strict=False, num_shards=2)[0]
    with pytest.raises(compat.UserError, match="its config describes a model of at least 64,"):
        load([str(file)], data)


def test_files_and_user_dir_in_config_are_not_opened(
    sas_checkpoint: Path, place: Victim, marker: Path, generate: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights replace initial embeddings; decoding options and a user-dir are read only from the command line."""
    package, pipe, file = place.run.parent / "planted_package", place.run.parent / "pipe", place.last
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    os.mkfifo(pipe)
    place.run.mkdir()
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
        assert hub(place) == (0, "")
        assert f"{file}: its config has bpe=" in caplog.text and "which is ignored" in caplog.text
    assert generate(file, "--beam", 1).hypotheses == generate(sas_checkpoint, "--beam", 1).hypotheses
    assert not marker.exists()
