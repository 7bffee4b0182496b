"""Run stock fairseq-train into a run folder, so that the same call resumes it, or finds it finished.

RUN/run.json holds the full command, the plan and the seed, of every session in which it was trained the commit,
versions and hardware, and whether the training finished. A call with another command is refused: a run resumed under
changed settings is neither the one nor the other.

Started by torchrun or srun, every process runs this: each finds out which one it is (devices.rank), all check the same
things, and rank 0 alone writes.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from ..commands import children, flags
from ..folders import data as data_folder
from ..folders.files import write_text
from ..folders.run import Run
from . import devices, plan, recipe

PACKAGES = ("torch", "fairseq", "fairseq-fixed", "apex", "triton", "numpy", "sacrebleu", "sentencepiece")
# Set by train.sh itself.
OWN = ("--save-dir", "--log-file", "--log-format", "--user-dir")
# Which process of a training this is, and how they meet: not what it trains.
WHICH = (
    "--distributed-init-method",
    "--distributed-rank",
    "--distributed-no-spawn",
    "--distributed-port",
    "--device-id",
)
# Where a training is, and how long a session of it may take: not what it trains.
WHERE = ("--user-dir", "--save-dir", "--log-file", "--stop-time-hours")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a training depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the source tree that this runs from, None where it is in no git tree."""
    git = ["git", "-C", str(children.PACKAGE)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        # Quietly: another repository may hold the environment that this is installed in.
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", "version.py"], capture_output=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "."], capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    if tracked.returncode:
        return None
    return head if changed.returncode == 0 else f"{head} with changes"


def check_architecture(arch: str, words: Sequence[str]) -> None:
    """Check that fairseq knows an architecture, and that its size is not another than the recipe's.

    Raises: ValueError naming near ones, or the sizes.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY

    from ..models.architectures import FAMILIES

    families = ["transformer", *FAMILIES]
    if arch not in ARCH_CONFIG_REGISTRY:
        ours = [name for name in ARCH_CONFIG_REGISTRY if name.startswith("transformer")]
        near = difflib.get_close_matches(arch, ours, n=4, cutoff=0.5) or ["transformer", "transformer_sas"]
        raise ValueError(f"--arch {arch}: no such architecture; near ones: {', '.join(near)}")
    if arch in families:
        return  # a family: its size is the recipe's
    preset = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](preset)
    for flag, values in flags.options(words).items():
        name = flag[2:].replace("-", "_")
        if name in ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers") and values:
            own = str(getattr(preset, name, values[0]))
            if own != values[0]:
                raise ValueError(
                    f"--arch {arch} has {flag} {own}, and the recipe {values[0]}: name the family alone "
                    f"({', '.join(families)}), or give {flag} {own}"
                )


def check_words(words: Sequence[str], extra: Sequence[str]) -> None:
    """Check the words of a recipe and of the user by themselves.

    Raises: ValueError for a flag that would move what belongs into the run folder.
    """
    for part in (words, extra):
        for flag in flags.options(part):
            if flag in (*OWN, "--arch"):
                raise ValueError(f"{flag}: set by train.sh; the folder is chosen by --run, the architecture by --arch")


def build_command(words: Sequence[str], arch: str, run: Run, extra: Sequence[str], planned: Sequence[str]) -> list[str]:
    """Return the fairseq-train command of a recipe's words: flags given by hand come last, and win."""
    paths = ["--save-dir", str(run.path), "--log-format", "json", "--log-file", str(run.train_log)]
    recipe_words, own_words = (flags.without(part, plan.DECIDED) for part in (words, extra))
    start = ["fairseq-train", *recipe_words, "--user-dir", children.user_dir(), "--arch", arch, *planned]
    return [*start, *paths, *own_words]


def check_flags(words: Sequence[str]) -> list[str]:
    """Check the words of a command as fairseq-train will read them; return those that are no flags, but for the first.

    Which words are values of a flag only fairseq's own parser knows.
    Raises: ValueError naming the flag, and what is wrong with it or near ones.
    """
    from fairseq import options

    from .. import models  # noqa: F401  (their flags)

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    parser = options.get_training_parser()
    parser.error = refuse  # instead of showing every flag there is, and leaving
    _, unknown = options.parse_args_and_arch(parser, list(words), parse_known=True)
    if wrong := [word for word in unknown if flags.FLAG.match(word)]:
        flag = wrong[0].partition("=")[0]
        near = difflib.get_close_matches(flag, parser._option_string_actions, n=3)
        raise ValueError(
            f"{flag}: fairseq-train has no such flag" + (f"; near ones: {', '.join(near)}" if near else "")
        )
    return unknown


class Word(str):
    """A word of a command line that is told from an equal one."""

    __slots__ = ()


def place_data(words: Sequence[str], arch: str, extra: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the recipe's words, its data folder replaced by one that the user gives, and the user's without it.

    Raises: ValueError unless there is one data folder; what `check_flags` raises.
    """
    recipes = list(flags.options(words).get("", ()))
    rest, mine = (list(map(Word, part)) for part in (flags.without(words, [""]), extra))
    given = check_flags([*(recipes or ["DATA"])[:1], *rest, "--arch", arch, *mine])
    data = given or recipes
    if len(data) != 1:
        raise ValueError(f"one data folder is needed, and these are given: {', '.join(data) or 'none'}")
    # By identity: a flag can have an equal value.
    kept = [[str(word) for word in part if not any(word is other for other in given)] for part in (rest, mine)]
    return [*map(str, data), *kept[0]], kept[1]


def check_data(words: Sequence[str]) -> None:
    """Check that the data folder of a command is there and whole.

    Raises: ValueError naming it, what is missing, and the script that makes it.
    """
    data = flags.options(words).get("", ("",))[-1]
    for folder in map(Path, filter(None, data.split(":"))):  # fairseq takes shards of a training set as A:B
        script = Path("data-prep") / f"{folder.name}.sh"
        made = f"; {script} makes it" if (children.PACKAGE.parent / script).is_file() else ""
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such data folder{made}")
        for pattern in ("dict.*.txt", "train*.bin", "train*.idx"):
            if len(list(folder.glob(pattern))) < 2:
                raise ValueError(f"{folder}: not a whole data folder: it has no {pattern} of both languages{made}")
        data_folder.check(folder)


def settings(command: Sequence[str]) -> list[str]:
    """Return what of a command makes one training another, however it is spelled."""
    words = flags.without(command[1:], (*WHERE, *WHICH))
    default = {"--distributed-world-size": ("1",), "--update-freq": ("1",)}
    found = flags.groups(words)
    data = [os.path.normpath(word) for flag, values in found if not flag for word in values]
    return [
        *data,
        *(word for flag, values in found if flag and values != default.get(flag) for word in (flag, *values)),
    ]


def read_record(run: Run) -> dict[str, Any] | None:
    """Return what run.json says, None where there is none.

    Raises: ValueError naming the file where it is damaged.
    """
    if not run.record.is_file():
        return None
    try:
        found = json.loads(run.record.read_text(encoding="utf-8"))
        settings(found["command"])
        return {**found, "finished": bool(found["finished"])}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{run.record}: damaged, or not written by scripts/train.sh") from None


def repair_last_checkpoint(run: Run) -> None:
    """Put the newest whole numbered checkpoint in the place of a checkpoint_last.pt that is missing or not whole.

    fairseq writes numbered checkpoints whole or not at all, but checkpoint_last.pt as a plain copy: a full disk or a
    kill leaves a truncated one, and fairseq resumes from nothing else. Without it, it begins anew, and then deletes
    its own checkpoints in place of the older ones, whose numbers are higher.

    Raises: ValueError where there are checkpoints and none is whole.
    """
    if zipfile.is_zipfile(run.last):
        return
    numbered = run.numbered("update") or run.numbered("epoch")
    whole = [file for file in numbered if zipfile.is_zipfile(file)]
    if whole:
        print(f"{run.last}: missing or not whole; going on from {whole[-1].name}", flush=True)
        partial = run.last.with_name(f"{run.last.name}.partial")
        shutil.copyfile(whole[-1], partial)
        os.replace(partial, run.last)
    elif numbered or run.last.exists():
        raise ValueError(
            f"{run.path}: none of its checkpoints is whole; choose another --run folder, or remove this one"
        )


def is_finished(command: Sequence[str], run: Run) -> bool:
    """Return whether a run was trained to its end by this very command.

    Raises: ValueError where the folder holds checkpoints of another one.
    """
    found = read_record(run)
    if not any(run.path.glob("checkpoint*.pt")):
        return False
    if found is None:
        raise ValueError(f"{run.path}: holds checkpoints but no run.json; choose another --run folder")
    if differences := flags.changes(settings(found["command"]), settings(command)):
        raise ValueError(
            f"{run.path}: was begun with other settings ({'; '.join(differences)}); give those again, on as many "
            "devices, choose another --run folder, or remove this one"
        )
    return bool(found["finished"])


def reached_end(command: Sequence[str], run: Run) -> bool:
    """Return whether a training that ended well came to its end, and was not stopped by --stop-time-hours."""
    given = flags.options(command)
    if "--stop-time-hours" not in given:
        return True
    done = run.training_summary()
    most = [flags.integer(given, flag) for flag in ("--max-update", "--max-epoch")]
    return any(
        limit and (number or 0) >= limit for limit, number in zip(most, (done.num_updates, done.epochs), strict=True)
    )


def train(
    command: Sequence[str], run: Run, record: dict[str, Any], session: dict[str, Any], rank: devices.Rank | None = None
) -> bool:
    """Train, or resume, or return False where the run has finished already.

    record: what run.json says of the run beside its command; session: what it says of this time
    Raises: ValueError where the run was begun by another command; ChildProcessError where fairseq-train fails.
    """
    first = rank is None or rank.rank == 0
    with run.lock() if first else nullcontext() as lock:
        if is_finished(command, run):
            if first:
                print(f"{run.path}: trained already", flush=True)
            return False
        begun = any(run.path.glob("checkpoint*.pt"))
        before = (read_record(run) or {}).get("sessions", []) if begun else []
        record = {"command": flags.without(command, WHICH), "finished": False, **record, "sessions": [*before, session]}
        for key in ("commit", "versions"):
            if first and before and before[-1].get(key) != session[key]:
                print(f"{run.path}: goes on with other {key}; run.json keeps both", flush=True)
        if first:
            repair_last_checkpoint(run)
            write_text(run.record, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        words = [children.program(command[0]), *command[1:]]
        if first:
            children.show(words)
        code = children.run(words, lock=lock, environment=rank.environment if rank else {})
        if code:
            raise ChildProcessError(f"fairseq-train failed with exit code {code}; what it said is above")
        if first:
            record["finished"] = reached_end(command, run)
            write_text(run.record, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        return True


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the launcher's own options, and the words for fairseq-train."""
    parser = argparse.ArgumentParser(
        prog="train.sh",
        description="Train by a recipe with stock fairseq-train, on every GPU there is, or on the CPU. Run again, it "
        "resumes, or reuses what is finished.",
        epilog=f"recipes: {', '.join(recipe.available())}. Any other flag goes to fairseq-train. On several machines "
        "start it by torchrun (torchrun ... --no-python -- scripts/train.sh RECIPE ...) or srun (srun scripts/train.sh "
        "RECIPE ...), a process for each device.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("recipe", help="name of a recipe, or a file of fairseq-train flags; a data folder after it replaces its own")
    add("--arch", required=True, help="transformer, transformer_sas, transformer_rskip_ln, transformer_resid, ...")
    add("--run", type=Path, help="run folder (default: checkpoints/RECIPE-ARCH)")
    add(
        "--effective-batch",
        type=int,
        metavar="N",
        help="another effective batch than the recipe's, in its unit; --max-tokens is what one device takes at most",
    )
    add(
        "--precision",
        choices=("auto", *plan.PRECISIONS),
        default="auto",
        help="default auto: bf16 or fp16 where the GPU is made for it, else fp32",
    )
    add("--dry-run", action="store_true", help="print the plan and the command, and do nothing")
    options, extra = parser.parse_known_args(arguments)
    if options.effective_batch is not None and options.effective_batch < 1:
        parser.error(f"--effective-batch {options.effective_batch}: 1 or more is needed")
    return options, extra


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of scripts/train.sh; returns the exit code: 2 for bad input, 1 where fairseq-train failed."""
    args, extra = parse(arguments)
    try:
        words = recipe.read(args.recipe)
        check_words(words, extra)
        check_architecture(args.arch, [*words, *extra])
        # Before fairseq reads the flags: it takes --bf16 for a TPU's, and says so.
        plan.own_precision(flags.options([*words, *extra]))
        words, extra = place_data(words, args.arch, extra)
        run = Run(args.run or Path("checkpoints") / f"{Path(args.recipe).stem}-{args.arch}")
        if run.path.exists() and not run.path.is_dir():
            raise ValueError(f"--run {run.path}: is a file")
        given = flags.options([*words, *extra])
        found = [] if "--cpu" in given else devices.gpus()
        rank = devices.rank(os.environ, given, len(found))
        planned = plan.make(words, extra, found, rank, args.effective_batch, args.precision)
        command = build_command(words, args.arch, run, extra, [*planned.words, *(rank.flags if rank else ())])
        first = rank is None or rank.rank == 0
        if first:
            print("\n".join(planned.lines()), flush=True)
        if args.dry_run:
            if first:
                children.show(command)
            return 0
        check_data(command[1:])
        record = {"plan": planned.record(), "seed": flags.integer(given, "--seed", 1, least=0)}
        session = {
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
            "hardware": devices.hardware(found),
            "versions": versions(),
        }
        train(command, run, record, session, rank)
    except (ValueError, OSError) as error:
        print(f"train.sh: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, ChildProcessError) else 2
    except SystemExit:
        print("train.sh: interrupted; the same command resumes", file=sys.stderr)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
