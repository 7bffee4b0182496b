"""The files that version 1.0.0 made, and the measurements that are repeated on them.

stored/v1/made.tar.xz contains, with paths relative to the folder in which every command was run:

    raw/                          the raw text, images and captions
    data-bin/{text,images,captions}
    recipe.txt                    of the two runs
    models/NAME.pt                a checkpoint with optimizer state for every structure; `pre_ln rms` has --norm rms
    models/captioning.pt
    checkpoints/{finished,unfinished}, checkpoints/{preact,rir,resnet_init}: runs; the last three are of image models
    exported/{ctranslate2,onnx,huggingface}

Text files contain PLACE instead of this folder's path. All files have the same time, which the notes of the finished
run repeat. stored/v1/expected.json has the flags and the results.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "stored" / "v1"
PLACE = "@PLACE@"
DECODING = shlex.split("--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 4 --batch-size 32")
# Softmax does not depend on the bias of the keys, whose gradient consists of rounding errors. Only 0.12.2 stores the
# other name, which is not a parameter.
IGNORED = re.compile(r"k_proj\.bias$|_float_tensor$")
Cli = Callable[..., Any]


def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
    return found


def unpack(folder: Path) -> Path:
    """Unpack the stored files into a folder, with its path in place of PLACE."""
    with tarfile.open(FOLDER / "made.tar.xz") as archive:
        archive.extractall(folder, filter="data")
        times = {folder / member.name: member.mtime for member in archive.getmembers() if member.isfile()}
    for file, time in times.items():
        if file.suffix in (".json", ".log"):
            file.write_text(file.read_text(encoding="utf-8").replace(PLACE, str(folder)), encoding="utf-8")
            os.utime(file, (time, time))
    return folder


def best_two(output: str) -> dict[int, list[tuple[float, str]]]:
    """Return the hypotheses of fairseq-generate by sentence, best first: (score, text)."""
    found: dict[int, list[tuple[float, str]]] = {}
    for number, score, text in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.MULTILINE):
        found.setdefault(int(number), []).append((float(score), text))
    return found


def translations(cli: Cli, data: Path, checkpoint: Path, *flags: str) -> dict[int, list[tuple[float, str]]]:
    """Return the two best outputs of a model for every example of the test set."""
    return best_two(cli("fairseq-generate", data, "--path", checkpoint, *DECODING, "--nbest", 2, *flags).output)


def log_probabilities(cli: Cli, data: Path, checkpoint: Path, *flags: str) -> dict[int, float]:
    """Return log₂ p of the reference of every example of the test set, as a mean over its tokens."""
    scored = cli("fairseq-generate", data, "--path", checkpoint, "--score-reference", "--batch-size", 32, *flags)
    return {number: found[0][0] for number, found in best_two(scored.output).items()}


def class_log_probabilities(data: Path, checkpoint: Path) -> list[list[float]]:
    """Return ln p of every class for every image of the test set."""
    import torch
    from fairseq import checkpoint_utils, utils

    import fairseq_resid

    utils.import_user_module(Namespace(user_dir=str(Path(fairseq_resid.__file__).parent)))
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(data)})
    task.load_dataset("test")
    dataset = task.dataset("test")
    batch = dataset.collater([dataset[number] for number in range(len(dataset))])
    with torch.no_grad():
        answers = model.eval()(**batch["net_input"])
        found: list[list[float]] = model.get_normalized_probs(answers, log_probs=True).tolist()
    return found


def score_lines(output: str) -> list[str]:
    """Return the lines with scores that `fairseq-resid evaluate` printed, without the version of sacrebleu."""
    lines = re.findall(r"^(?:checkpoints|exported)/\w+ (?:valid|test): .*$", output, re.MULTILINE)
    return [re.sub(r"version:[\w.]+", "version", line) for line in lines]


def one_update(cli: Cli, data: Path, checkpoint: Path, out: Path, flags: list[str], update: int) -> dict[str, float]:
    """Train one update from a checkpoint; return the length of every parameter's step.

    Nine tenths of Adam's step come from the restored state, so the steps show which parameter got which state. The
    batch contains all training examples, because the two versions of fairseq order them differently.
    """
    import torch

    last = ["--restore-file", checkpoint, "--max-update", update, "--save-dir", out, "--batch-size", 1000]
    cli("fairseq-train", data, *flags, *last)
    before, after = (torch.load(file, weights_only=False)["model"] for file in (checkpoint, out / "checkpoint_last.pt"))
    return {
        name: (after[name] - before[name]).norm().item()
        for name in before
        if before[name].is_floating_point() and not IGNORED.search(name)
    }
