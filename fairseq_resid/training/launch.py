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
import shutil
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
    """Return the fairseq-train command of a recipe's words: flags given by hand come last, and win.

    Raises: ValueError for a flag that would move what belongs into the run folder.
    """
    for word in extra:
        if word.split("=")[0] in ("--save-dir", "--log-file", "--log-format", "--user-dir"):
            raise ValueError(f"{word}: set by train.sh; the folder is chosen by --run")
    paths = ["--save-dir", str(run.path), "--log-format", "json", "--log-file", str(run.train_log)]
    return ["fairseq-train", *words, "--user-dir", user_dir, "--arch", arch, *paths, *extra]


def changes(before: list[str], now: list[str]) -> str:
    """Return what differs between two commands, as words for an error."""
    gone = [word for word in before if word not in now]
    new = [word for word in now if word not in before]
    if not gone and not new:
        return "the same words in another order or number"
    return f"was {shlex.join(gone) or 'nothing'}, now {shlex.join(new) or 'nothing'}"


def settings(command: list[str]) -> list[str]:
    """Return what of a command makes one training another: all of it but the plugin's folder."""
    at = command.index("--user-dir")
    return command[:at] + command[at + 2 :]


def read_record(run: Run) -> dict[str, Any] | None:
    """Return what run.json says, None where there is none.

    Raises: ValueError naming the file where it is damaged.
    """
    if not run.record.is_file():
        return None
    try:
        found = json.loads(run.record.read_text(encoding="utf-8"))
        settings(found["command"])
        return {"command": found["command"], "finished": bool(found["finished"])}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{run.record}: damaged, or not written by scripts/train.sh") from None


def mend_last(run: Run) -> None:
    """Put the newest numbered checkpoint in the place of a checkpoint_last.pt that is not whole.

    fairseq writes numbered checkpoints whole or not at all, but checkpoint_last.pt as a plain copy: a full disk or a
    kill leaves a truncated one, and fairseq resumes from nothing else.
    """
    numbered = run.numbered("update") or run.numbered("epoch")
    if numbered and run.last.is_file() and not zipfile.is_zipfile(run.last):
        print(f"{run.last}: not whole; going on from {numbered[-1].name}", flush=True)
        partial = run.last.with_name(f"{run.last.name}.partial")
        shutil.copyfile(numbered[-1], partial)
        os.replace(partial, run.last)


def train(command: list[str], run: Run) -> bool:
    """Train, or resume, or return False where the run has finished already.

    Raises: ValueError where the run was begun by another command; ChildProcessError where fairseq-train fails.
    """
    with run.lock() as lock:
        found = read_record(run)
        begun = any(run.path.glob("checkpoint*.pt"))
        if begun and found is None:
            raise ValueError(f"{run.path}: holds checkpoints but no run.json; choose another --run folder")
        if begun and found and settings(found["command"]) != settings(command):
            raise ValueError(
                f"{run.path}: was begun with other settings ({changes(found['command'], command)}); "
                "give those again, choose another --run folder, or remove this one"
            )
        if begun and found and found["finished"]:
            print(f"{run.path}: trained already", flush=True)
            return False
        mend_last(run)
        record = {"command": command, "finished": False, "versions": versions()}
        write_atomically(run.record, json.dumps(record, indent=2) + "\n")
        words = [commands.program(command[0]), *command[1:]]
        commands.show(words)
        code = commands.run(words, lock=lock)
        if code:
            raise ChildProcessError(f"fairseq-train failed with exit code {code}; its log is {run.train_log}")
        write_atomically(run.record, json.dumps(record | {"finished": True}, indent=2) + "\n")
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
    except SystemExit:
        print("train.sh: interrupted; the same command resumes", file=sys.stderr)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
