"""Checkpoint averaging: the mean of the weights of several checkpoints of one training run.

Formula:  w = (w_1 + ... + w_n) / n, for each floating-point tensor
Dtype:    summed in fp32 (fp64 stays fp64) and cast back to the tensor's dtype. Integer and boolean tensors are copied
          from the newest file: they are counters or flags, whose mean is meaningless (fairseq's script divides
          the sum of integers by n, rounding down).
Tying:    tensors that share memory in the files (such as the output projection and the embedding) are averaged once and
          share memory in the result.

The rest of the result (cfg, task state, meters) is copied from the newest file, so fairseq-generate loads it like any
other checkpoint. The optimizer state is dropped. `averaged_from` records the file name, SHA-256 and number of updates
of each input. The newest file is the one with the most updates; if several tie, it is the last one named.

Files are memory-mapped and read one at a time, so memory holds only the sum and one model.
"""

from __future__ import annotations

import argparse
import re
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .. import connections
from ..cli import frame
from ..cli.progress import Progress
from ..console import say
from ..fairseq_patches import dictionaries
from ..fairseq_patches.loading import check_finite, load_checkpoint
from ..files import replacing, sha256, zip_damage
from ..runs import settings
from ..runs.run import Numbering, Run, saved_at
from ..runs.trained_on import num_updates, setting

# The names that fairseq-train gives to checkpoints.
TRAINED = re.compile(r"checkpoint([0-9]+|_[0-9]+_[0-9]+|_last|_best|\.best_.*)\.pt")
# name -> (shape, dtype, first name with the same memory)
Layout = dict[str, tuple[torch.Size, torch.dtype, str]]


def last_checkpoints(folder: Path, last: int, by: Numbering | None = None) -> list[Path]:
    """Return the last `last` numbered checkpoints of a run folder, oldest first.

    Raises: ValueError if the folder has too few checkpoints, or if it has both epoch- and update-numbered checkpoints
    and `by` is not given.
    """
    run = Run(folder)
    files = {kind: run.numbered(kind) for kind in ((by,) if by else ("epoch", "update"))}
    kinds = [kind for kind, of_kind in files.items() if of_kind]
    if len(kinds) > 1:
        examples = " and ".join(f"{kind}-numbered checkpoints ({files[kind][-1].name})" for kind in kinds)
        raise ValueError(f"{folder}: contains {examples}; select one with --by epoch or --by update")
    kind = kinds[0] if kinds else by
    numbered = files[kind] if kind else []
    if not numbered and by is None:
        raise ValueError(
            f"{folder}: no numbered checkpoints to average; train with --save-interval-updates N, at most the number "
            "of updates, or without --no-epoch-checkpoints"
        )
    if len(numbered) < last:
        names = ", ".join(file.name for file in numbered) or "none"
        sort = f"{kind}-numbered" if kind else "numbered"
        noun = "checkpoint" if len(numbered) == 1 else "checkpoints"
        raise ValueError(f"{folder}: --last {last}, but it contains only {len(numbered)} {sort} {noun}: {names}")
    return numbered[-last:]


def epoch_checkpoints(folder: Path, first: int, last: int, by: Numbering | None = None) -> list[Path]:
    """Return the checkpoints of epochs `first` to `last`: one for each epoch, or all that were saved by updates.

    by: see `last_checkpoints`; None also selects the update-numbered checkpoints of a folder without others
    Raises: ValueError naming the first missing checkpoint, or the epochs whose checkpoints were deleted.
    """
    run = Run(folder)
    saved = run.numbered("update") if by != "epoch" else []
    if saved and (by == "update" or not run.numbered("epoch")):
        files = [file for file in saved if first <= saved_at(file)[0] <= last]
        # fairseq deletes the oldest checkpoints first: an older one shows that all of these are there.
        if not files or saved_at(saved[-1])[0] < last or (first > 1 and saved[0] == files[0]):
            raise ValueError(
                f"{folder}: --epochs {first}-{last} requires all checkpoints of these epochs, and an earlier one; "
                "keep them with a larger --keep-interval-updates"
            )
        return files
    files = []
    for number in range(first, last + 1):
        file = folder / f"checkpoint{number}.pt"
        if not file.is_file():
            raise ValueError(f"{file}: no such checkpoint; --epochs {first}-{last} requires one for each epoch")
        files.append(file)
    return files


def memory_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that two tensors share if and only if they are the same view of the same memory."""
    if tensor.numel() == 0:  # empty tensors have no memory to share
        return (id(tensor),)
    return (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def layout(model: dict[str, Any]) -> Layout:
    """Return the shape, dtype and tying of every tensor in a state dict."""
    first: dict[tuple[object, ...], str] = {}
    return {
        name: (tensor.shape, tensor.dtype, first.setdefault(memory_of(tensor), name))
        for name, tensor in model.items()
        if isinstance(tensor, torch.Tensor)
    }


def _check_sums(path: Path) -> None:
    # torch.save writes checksums, but torch.load does not verify them for a memory-mapped file.
    if zipfile.is_zipfile(path) and (damaged := zip_damage(path)):
        raise ValueError(f"{path}: cannot be loaded: damaged ({damaged})")


def _check_same(layouts: dict[Path, Layout]) -> None:
    (reference, expected), *others = layouts.items()
    for path, actual in others:
        if names := sorted(expected.keys() ^ actual.keys()):
            owner = reference if names[0] in expected else path
            raise ValueError(f"{reference} and {path} differ: only {owner} has {names[0]} ({len(names)} such keys)")
        for name in expected:
            if expected[name] != actual[name]:
                what = " and ".join(
                    f"{dtype} of shape {tuple(shape)} in the memory of {tied}"
                    for shape, dtype, tied in (expected[name], actual[name])
                )
                raise ValueError(f"{reference} and {path} differ in {name}: {what}")


def _model_config(state: dict[str, Any]) -> Any:
    config = setting(state["cfg"], "model") if state.get("cfg") else state.get("args")
    return argparse.Namespace(**config) if isinstance(config, dict) else config


def _check_same_structure(configs: dict[Path, Any]) -> None:
    """Raise ValueError if the residual structures of two models differ, even if their weights have the same shapes."""
    (reference, expected), *others = configs.items()
    for path, config in others:
        if found := connections.function_differences(expected, config):
            raise ValueError(f"{reference} and {path} are models of different structures: {found[0]} and {found[1]}")


def _check_same_dictionaries(words: dict[Path, dict[str, dict[str, str]]]) -> None:
    """Raise ValueError if two models have different dictionaries, even if these have the same size."""
    for side in dictionaries.SIDES:
        known = [(path, each[side]) for path, each in words.items() if each[side]["sha256"]]
        for path, found in known:
            reference, expected = known[0]
            if found["sha256"] != expected["sha256"] and not dictionaries.is_allowed():
                mine, theirs = (f"{one['file']} (SHA-256 {one['sha256'][:12]}...)" for one in (expected, found))
                raise ValueError(
                    f"{reference} and {path} are models of different dictionaries: {mine} and {theirs}; "
                    f"{dictionaries.FLAG} averages them anyway"
                )


def _add(model: dict[str, torch.Tensor], names: Sequence[str], sums: dict[str, torch.Tensor]) -> None:
    for name in names:
        tensor = model[name]
        if name in sums:
            sums[name].add_(tensor)
        else:
            sums[name] = tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32, copy=True)


def average(paths: Sequence[Path], output: Path) -> None:
    """Average the checkpoints `paths` and write the result to `output`.

    An existing file is replaced only when the new one is complete. A warning is printed if the checkpoints span more
    than a quarter of the training up to the newest of them, because the oldest are then much worse than the newest.

    Raises: ValueError naming the file that is damaged or contains NaN or infinite weights, or two files whose keys,
    shapes, dtypes, tying, residual structures or dictionaries differ; OSError if a file cannot be read or `output`
    cannot be written.
    """
    layouts: dict[Path, Layout] = {}
    configs: dict[Path, Any] = {}
    words: dict[Path, dict[str, dict[str, str]]] = {}
    inputs: list[dict[str, Any]] = []
    sums: dict[str, torch.Tensor] = {}
    with Progress(
        f"average {output}", 2 * sum(path.stat().st_size for path in paths if path.is_file()), "B"
    ) as progress:
        for path in paths:
            state = load_checkpoint(path)
            _check_sums(path)
            check_finite(state["model"], path)
            layouts[path] = layout(state["model"])
            configs[path] = _model_config(state)
            words[path] = dictionaries.identified(state, path)
            inputs.append({"file": path.name, "sha256": sha256(path), "num_updates": num_updates(state)})
            del state
            progress.advance(path.stat().st_size)
        _check_same(layouts)
        _check_same_structure(configs)
        _check_same_dictionaries(words)
        names = [
            name for name, (_, dtype, tied) in layouts[paths[0]].items() if dtype.is_floating_point and tied == name
        ]
        for path in paths:
            _add(load_checkpoint(path)["model"], names, sums)
            progress.advance(path.stat().st_size)

    newest = max(range(len(paths)), key=lambda index: (inputs[index]["num_updates"] or 0, index))
    state = load_checkpoint(paths[newest])
    model = OrderedDict(state["model"])
    for name, (_, dtype, tied) in layouts[paths[newest]].items():
        if dtype.is_floating_point:
            model[name] = sums.pop(name).div_(len(paths)).to(dtype) if tied == name else model[tied]
    state.pop("last_optimizer_state", None)
    state.update(model=model, averaged_from=inputs)

    try:
        with replacing(output) as partial:
            torch.save(state, partial)
    except RuntimeError as error:  # torch.save raises this for a full disk or a missing folder
        raise OSError(f"{output}: cannot be written: {str(error).splitlines()[0]}") from None
    updates = [number for each in inputs if (number := each["num_updates"])]
    if updates and (span := max(updates) - min(updates)) > max(updates) / 4:
        say(
            f"{output}: warning: averages checkpoints from update {min(updates):,} to {max(updates):,}, "
            f"{span / max(updates):.0%} of the training: the oldest are much worse than the newest; average fewer, for "
            "example with --last N",
            file=sys.stderr,
        )


@frame.command(
    "average",
    "Average the weights of several checkpoints of one training run. In a folder, checkpoint_best.pt and "
    "checkpoint_last.pt are ignored. The result has no optimizer state.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    add = parser.add_argument
    add("--inputs", nargs="+", type=Path, required=True, metavar="DIR|FILE", help="a run folder, or checkpoint files")
    settings.add_averaging_flags(parser)
    add("--output", type=Path, required=True, metavar="FILE", help="file to write")
    dictionaries.add_flag(parser)
    options = parser.parse_args(argv)
    inputs: list[Path] = options.inputs
    if len(inputs) == 1 and inputs[0].is_dir():
        inputs = last_checkpoints(inputs[0], options.last or settings.LAST, options.by)
    elif options.last is not None or options.by is not None:
        raise ValueError("--last and --by: only allowed if --inputs is a folder; otherwise all files are averaged")
    if options.output.exists() and TRAINED.fullmatch(options.output.name):
        raise ValueError(f"--output {options.output}: a checkpoint of fairseq-train; choose a name such as averaged.pt")
    average(inputs, options.output)
    if options.output.name == "averaged.pt":  # the note beside it described the average that `evaluate` had made
        options.output.with_name("averaged.json").unlink(missing_ok=True)
    say(f"{options.output}: average of {', '.join(path.name for path in inputs)}")
