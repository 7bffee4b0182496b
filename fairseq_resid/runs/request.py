"""A requested training run: a recipe, an architecture and flags, checked and planned for this machine."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from ..cli import children, machine
from ..data import folders
from . import devices, plan, recipe, settings
from .run import Run
from .training_command import FLAG, TrainingCommand

# Flags that this command sets itself.
RESERVED_FLAGS = ("--save-dir", "--log-file", "--log-format", "--user-dir", "--arch")
SIZES = ("--encoder-embed-dim", "--encoder-ffn-embed-dim", "--encoder-layers")


@dataclass(frozen=True)
class Request:
    """A training run, checked as far as possible without reading its data.

    rank: of this process, if a launcher started several; evaluate: the recipe's options of `fairseq-resid evaluate`
    """

    run: Run
    plan: plan.Plan
    command: TrainingCommand
    gpus: list[devices.Gpu]
    rank: devices.Rank | None
    evaluate: list[str] = field(default_factory=list)

    @property
    def is_first(self) -> bool:
        """Whether this is the only process, or rank 0."""
        return self.rank is None or self.rank.rank == 0


def request(
    name: str,
    arch: str,
    extra: list[str],
    folder: Path | None = None,
    effective_batch: int | None = None,
    precision: str = "auto",
) -> Request:
    """Check and plan a training run; name: of a recipe; extra: further flags of fairseq-train, which take precedence.

    folder: the run folder (default: checkpoints/RECIPE-ARCH)
    Raises: ValueError naming the invalid recipe, architecture, flag or run folder.
    """
    base, own = place_data(recipe.read(name), arch, extra)
    given = base.and_then(own)
    run = Run(folder or Path("checkpoints") / f"{Path(name).stem}-{arch}")
    if folders.is_data_folder(run.path):
        raise ValueError(f"--run {run.path}: is a data folder; must be a new folder or a run folder")
    gpus = [] if "--cpu" in given else devices.gpus()
    rank = devices.rank(os.environ, given, len(gpus))
    planned = plan.plan_training(base, own, gpus, rank, effective_batch, precision)
    command = build_command(base, arch, run, own, [*planned.argv, *(rank.flags if rank else ())])
    evaluation = recipe.evaluation(name)
    try:
        settings.parse(evaluation)
    except ValueError as error:
        raise ValueError(f"recipe {name}: [evaluate]: {error}") from None
    return Request(run, planned, command, gpus, rank, evaluation)


class Argument(str):
    __slots__ = ()


def place_data(argv: Sequence[str], arch: str, extra: Sequence[str]) -> tuple[TrainingCommand, TrainingCommand]:
    """Return the recipe's command, with the user's data folder if one is given, and the user's flags.

    Raises: ValueError naming a flag that is set here or that fairseq-train does not have, or the data folders unless
    there is exactly one; see also `check_architecture`.
    """
    roughly = dict(TrainingCommand.parse([*argv, *extra]).flags)  # a value may be followed by the data folder
    # This check must come first: fairseq's parser imports the folder of --user-dir, which runs the code in it.
    for flag in roughly:
        if flag in RESERVED_FLAGS:
            raise ValueError(
                f"{flag}: set by this command; choose the folder with --run and the architecture with --arch"
            )
    check_architecture(arch, {flag: values[0] for flag, values in roughly.items() if values})
    recipes = list(takewhile(lambda word: not FLAG.match(word), argv))
    rest, mine = (list(map(Argument, part)) for part in (argv[len(recipes) :], extra))
    given = positional([*(recipes or ["DATA"])[:1], *rest, "--arch", arch, *mine])
    data = given or recipes
    if len(data) != 1:
        raise ValueError(f"data folder: {', '.join(data) or 'none'} given; exactly one is needed")
    # Compare by identity, because a flag can have an equal value.
    kept = [[str(item) for item in part if not any(item is other for other in given)] for part in (rest, mine)]
    base, own = map(TrainingCommand.parse, kept)
    return replace(base, data=str(data[0])), own


def positional(argv: Sequence[str]) -> list[str]:
    """Check a command with fairseq-train's own parser; return all positional arguments except the first.

    Only this parser knows which arguments are values of a flag.
    Raises: ValueError naming the flag and the problem.
    """
    from fairseq import options, utils

    from .. import models  # noqa: F401  (patches fairseq)

    utils.import_user_module(argparse.Namespace(user_dir=str(machine.PACKAGE)))  # the flags of models and tasks

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    parser = options.get_training_parser()
    parser.error = refuse  # argparse would print the usage of every flag and exit
    _, unknown = options.parse_args_and_arch(parser, list(argv), parse_known=True)
    if wrong := [word for word in unknown if FLAG.match(word)]:
        flag = wrong[0].partition("=")[0]
        raise ValueError(f"{flag}: fairseq-train has no such flag")
    return unknown


def check_architecture(arch: str, given: Mapping[str, str]) -> None:
    """Check that an architecture is for the kind of data of the recipe's task, and that its size is the recipe's.

    given: values of flags; fairseq's parser has the flags of the architecture's model, so it could only name others
    Raises: ValueError naming similar architectures, the architecture and the task, or both sizes.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY

    from ..models import TASKS
    from ..models.architectures import FAMILIES

    if arch not in ARCH_CONFIG_REGISTRY:  # fairseq would list all of them
        near = difflib.get_close_matches(arch, ARCH_CONFIG_REGISTRY, n=4) or ["transformer", "transformer_sas"]
        raise ValueError(f"--arch {arch}: no such architecture; similar ones: {', '.join(near)}")
    task = given.get("--task", folders.TEXT.task)
    kind, wanted = map(folders.of_task, (TASKS.get(ARCH_MODEL_NAME_REGISTRY[arch], folders.TEXT.task), task))
    if kind is not wanted:
        raise ValueError(
            f"--arch {arch}: a model for {kind.content}, but the recipe's task is {task}; choose one for "
            f"{wanted.content}"
        )
    families = ["transformer", *FAMILIES]
    if arch in families:
        return  # a family does not set a size
    preset = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](preset)
    for flag in SIZES:
        own = getattr(preset, flag[2:].replace("-", "_"), None)
        if own is not None and (asked := given.get(flag, str(own))) != str(own):
            raise ValueError(
                f"--arch {arch}: has {flag} {own}, but the recipe has {asked}; use an architecture without "
                f"a size ({', '.join(families)}) or give {flag} {own}"
            )


def build_command(
    base: TrainingCommand, arch: str, run: Run, own: TrainingCommand, planned: Sequence[str]
) -> TrainingCommand:
    """Return the training command of a recipe. The user's flags come last and take precedence."""
    set_here = ["--user-dir", children.user_dir(), "--arch", arch, *planned, "--save-dir", str(run.path)]
    set_here += ["--log-format", "json"]
    start = base.without(plan.PLANNED_FLAGS).and_then(TrainingCommand.parse(set_here))
    return start.and_then(own.without(plan.PLANNED_FLAGS))
