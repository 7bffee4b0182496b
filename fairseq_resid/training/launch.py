"""Run stock fairseq-train into a run folder, so that the same call resumes it, or finds it finished.

RUN/run.json holds the full command and versions, and whether the training finished. A call with another command is
refused: a run resumed under changed settings is neither the one nor the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import commands
from ..files import write_atomically
from ..runs import Run
from . import recipe

PACKAGES = ("torch", "fairseq", "fairseq-fixed", "numpy", "sacrebleu", "sentencepiece")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a training depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def build_command(words: list[str], arch: str, run: Run, user_dir: str, extra: list[str]) -> list[str]:
    """Return the fairseq-train command of a recipe's words: flags given by hand come last, and win."""
    paths = ["--save-dir", str(run.path), "--log-format", "json", "--log-file", str(run.train_log)]
    return ["fairseq-train", *words, "--user-dir", user_dir, "--arch", arch, *paths, *extra]


def changes(before: list[str], now: list[str]) -> str:
    """Return what differs between two commands, as words for an error."""
    gone = [word for word in before if word not in now]
    new = [word for word in now if word not in before]
    if not gone and not new:
        return "the same words in another order or number"
    return f"was {shlex.join(gone) or 'nothing'}, now {shlex.join(new) or 'nothing'}"


def train(command: list[str], run: Run) -> bool:
    """Train, or resume, or return False where the run has finished already.

    Raises: ValueError where the run was begun by another command; ChildProcessError where fairseq-train fails.
    """
    record_file = run.path / "run.json"
    record = {"command": command, "finished": False, "versions": versions()}
    if record_file.is_file():
        found = json.loads(record_file.read_text(encoding="utf-8"))
        if found["command"] != command:
            raise ValueError(
                f"{run.path}: was begun with other settings ({changes(found['command'], command)}); "
                "give those again, or choose another --run folder"
            )
        if found["finished"]:
            print(f"{run.path}: trained already", flush=True)
            return False
    elif run.path.is_dir() and any(run.path.glob("checkpoint*.pt")):
        raise ValueError(f"{run.path}: holds checkpoints but no run.json; choose another --run folder")
    run.path.mkdir(parents=True, exist_ok=True)  # fairseq opens --log-file before it makes --save-dir
    write_atomically(record_file, json.dumps(record, indent=2) + "\n")
    words = [commands.program(command[0]), *command[1:]]
    commands.show(words)
    code = subprocess.run(words, check=False).returncode
    if code:
        raise ChildProcessError(f"fairseq-train failed with exit code {code}; its log is {run.train_log}")
    write_atomically(record_file, json.dumps(record | {"finished": True}, indent=2) + "\n")
    return True


def main(arguments: list[str] | None = None) -> int:
    """Command line of scripts/train.sh."""
    parser = argparse.ArgumentParser(
        prog="train.sh",
        description="Train by a recipe with stock fairseq-train. Run again, it resumes, or reuses what is finished.",
        epilog=f"recipes: {', '.join(recipe.available())}. Any other flag goes to fairseq-train.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="name of a recipe, or a file of fairseq-train flags")
    parser.add_argument("--arch", required=True, help="transformer, transformer_sas, transformer_rskip_ln, ...")
    parser.add_argument("--run", type=Path, help="run folder (default: checkpoints/RECIPE-ARCH)")
    args, extra = parser.parse_known_args(arguments)
    try:
        words = recipe.read(args.recipe)
        run = Run(args.run or Path("checkpoints") / f"{Path(args.recipe).stem}-{args.arch}")
        train(build_command(words, args.arch, run, commands.user_dir(), extra), run)
    except (ValueError, OSError) as error:
        print(f"train.sh: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train.sh: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # progress shows when it happens, in a log too
    sys.exit(main())
