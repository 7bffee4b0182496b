"""Decoding with stock fairseq-generate, as a command that is printed so that the user can repeat it."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..cli import children
from ..cli.progress import Progress
from ..data.text.folder import Corpus
from ..fairseq_patches.dictionaries import FLAG, is_allowed
from ..files import read_lines
from ..runs.settings import DECODING
from ..runs.trained_on import setting

POSITIONS = ("--max-source-positions", "--max-target-positions")


def search_settings(settings: Mapping[str, str]) -> dict[str, int | float]:
    """Return the beam-search settings as keyword arguments for fairseq's functions."""
    return {
        "beam": int(settings["beam"]),
        "lenpen": float(settings["lenpen"]),
        "max_len_a": float(settings["max-len-a"]),
        "max_len_b": int(settings["max-len-b"]),
    }


def translation_flags(cfg: Any, corpus: Corpus) -> tuple[str, ...]:
    """Return the flags that give fairseq-generate the translation task of training; cfg: of the checkpoint.

    Without them, fairseq would infer the direction from the names of the files, and would use its own defaults.
    """
    task = setting(cfg, "task")
    is_reverse = f"{corpus.source}-{corpus.target}" != corpus.pair
    given = [("source_lang", corpus.source), ("target_lang", corpus.target)] if is_reverse else []
    found = {name: setting(task, name) for name in ("max_source_positions", "max_target_positions")}
    given += [(name, str(value)) for name, value in found.items() if value not in (None, 1024)]
    # fairseq turns a default of True off, and a default of False on, by naming the flag.
    switches = {"left_pad_source": True, "left_pad_target": False, "truncate_source": False}
    changed = [(name,) for name, default in switches.items() if setting(task, name) not in (None, default)]
    return tuple(word for name, *value in given + changed for word in (f"--{name.replace('_', '-')}", *value))


def generate_command(
    data: Path,
    checkpoint: Path,
    subset: str,
    post_process: str | None,
    cpu: bool = False,
    settings: Mapping[str, str] = DECODING,
    task: Sequence[str] = ("--task", "translation"),
) -> list[str]:
    """Return the fairseq-generate command that decodes DATA's `subset` with a checkpoint; task: flags of the task."""
    argv = [children.program("fairseq-generate"), str(data), "--user-dir", children.user_dir()]
    argv += [*task, "--path", str(checkpoint)]
    argv += ["--gen-subset", subset]
    longest = max([int(value) for flag, value in pairwise(task) if flag in POSITIONS], default=0)
    settings = {**settings, "max-tokens": str(max(longest, int(settings["max-tokens"])))}  # every sentence fits a batch
    argv += [item for name, value in settings.items() for item in (f"--{name}", value)]
    argv += ["--post-process", post_process] if post_process else []
    argv += ["--cpu"] if cpu else []
    argv += [FLAG] if is_allowed() else []
    return argv


def decode(argv: list[str], log: Path, lock: int | None = None, sentences: int | None = None) -> None:
    """Run a fairseq-generate command with its output in `log`, and show progress.

    sentences: the number of sentences to decode
    Raises: ChildProcessError with the exit code, the log file and its last lines if the command fails.
    """
    children.show(argv, f" > {shlex.quote(str(log))}")
    log.parent.mkdir(parents=True, exist_ok=True)
    messages = log.with_suffix(".err")
    with (
        log.open("w+b") as output,
        # Keep stderr separate until the end, so that a message cannot split the line of a hypothesis.
        messages.open("w+b") as errors,
        Progress(f"decode {log.stem}", sentences, "sentences") as progress,
        children.followed(log, lambda line: progress.advance(line.startswith("D-"))),
    ):
        code = children.run(argv, output, lock, errors)
        errors.seek(0)
        shutil.copyfileobj(errors, output)
    messages.unlink()
    if code:
        raise children.failure("fairseq-generate", code, log, ChildProcessError)


def read_hypotheses(log: Path) -> list[str]:
    """Return the hypotheses (D- lines, subwords joined) of a fairseq-generate log, in the order of the data.

    Raises: ChildProcessError naming the log if a sentence has no hypothesis.
    """
    hypotheses: dict[int, str] = {}
    for line in read_lines(log):
        if match := re.fullmatch(r"D-(\d+)\t[^\t]*\t(.*)", line, flags=re.DOTALL):
            hypotheses[int(match[1])] = match[2]
    missing = sorted(set(range(max(hypotheses, default=-1) + 1)) - hypotheses.keys())
    if missing:
        raise ChildProcessError(
            f"{log}: no hypothesis for sentence {missing[0]} ({len(missing)} sentences without one)"
        )
    return [hypotheses[number] for number in sorted(hypotheses)]
