"""Run stock fairseq-train in a run folder. The same command, run again, resumes training if it has not finished.

RUN/run.json contains the full command, the plan, the seed, and whether training has finished, and for every session
the commit, versions and hardware. A command with different settings is refused, because the resumed run would represent
neither the old settings nor the new ones.

Under torchrun or srun, every process runs this module. Each process determines its rank (devices.rank), and all of them
run the same checks. Only rank 0 writes files, except that every other process writes its own log, train.rankN.log.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from .. import records
from ..cli import children, frame, machine
from ..console import say
from ..data import folders
from . import devices, plan, recipe, recovery
from . import settings as evaluation_settings
from .display import Display, summary
from .run import SESSION, Hardware, Run, RunRecord, Session
from .training_command import FLAG, PROGRAM, TrainingCommand

# The number of spin rounds before an idle thread sleeps; docs/training.md has the measurement.
SPIN_COUNT = "1000"
# Use mmap only for blocks above 4 GiB, and keep up to 8 GiB of freed memory.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}
# Environment variables that run.json records.
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", *ALLOCATOR)
PACKAGES = ("torch", "fairseq", "fairseq-fixed", "apex", "numpy", "sacrebleu", "sentencepiece")
# Flags that this command sets itself.
RESERVED_FLAGS = ("--save-dir", "--log-file", "--log-format", "--user-dir")
# Flags for communication between processes. They do not affect the trained model.
BACKEND_FLAGS = ("--distributed-backend", "--ddp-backend")
# Flags for the rank of a process and the rendezvous. They do not affect the trained model.
PROCESS_FLAGS = (
    "--distributed-init-method",
    "--distributed-rank",
    "--distributed-no-spawn",
    "--distributed-port",
    "--device-id",
)
STOPPING = "\nStopping after this update and saving a checkpoint. Press Ctrl-C again to stop now.\n"
OUT_OF_TIME = "Stopping training due to cumulative_training_time"  # a line of fairseq-train
SKIPPED = re.compile(r"([0-9,]+) samples have invalid sizes and will be skipped, max_positions=(\([^)]*\)|[0-9]+)")
# Flags for folders and the time limit. They do not affect the trained model.
RESETS = ("--reset-optimizer", "--reset-dataloader", "--reset-lr-scheduler", "--reset-meters")
PLACE_FLAGS = ("--user-dir", "--save-dir", "--log-file", "--stop-time-hours")


def check_architecture(arch: str, given: TrainingCommand) -> None:
    """Check that fairseq has an architecture, and that its kind of data and its size match the recipe.

    Raises: ValueError naming similar architectures, or both sizes; see `check_task`.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY

    from ..models import OWN_MODELS
    from ..models.architectures import FAMILIES

    families = ["transformer", *FAMILIES]
    if arch not in ARCH_CONFIG_REGISTRY:
        ours = [name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model in ("transformer", *OWN_MODELS)]
        near = difflib.get_close_matches(arch, ours, n=4, cutoff=0.5) or ["transformer", "transformer_sas"]
        raise ValueError(f"--arch {arch}: no such architecture; similar ones: {', '.join(near)}")
    check_task(arch, given)
    if arch in families:
        return  # a family does not set a size
    preset = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](preset)
    for flag, values in dict(given.flags).items():
        name = flag[2:].replace("-", "_")
        if name in ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers") and values:
            own = str(getattr(preset, name, values[0]))
            if own != values[0]:
                raise ValueError(
                    f"--arch {arch}: has {flag} {own}, but the recipe has {values[0]}; use an architecture without "
                    f"a size ({', '.join(families)}) or give {flag} {own}"
                )


def check_task(arch: str, given: TrainingCommand) -> None:
    """Check that an architecture and the task of a recipe are for the same kind of data: text, images or captions.

    Raises: ValueError naming the architecture and the task.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    from ..models import TASKS

    task = given.value("--task", folders.TEXT.task)
    kind = folders.of_task(TASKS.get(ARCH_MODEL_NAME_REGISTRY[arch], folders.TEXT.task))
    if kind is not folders.of_task(task):
        raise ValueError(
            f"--arch {arch}: a model for {kind.content}, but the recipe's task is {task}; choose one for "
            f"{folders.of_task(task).content}"
        )


def check_own_flags(given: TrainingCommand) -> None:
    """Check that neither the recipe nor the user gives a flag that this command sets.

    Raises: ValueError naming the flag.
    """
    for flag in (*RESERVED_FLAGS, "--arch"):
        if flag in given:
            raise ValueError(
                f"{flag}: set by this command; choose the folder with --run and the architecture with --arch"
            )


def check_tensorboard(given: TrainingCommand) -> None:
    """Check that TensorBoard is installed if it is requested. Otherwise fairseq only logs a warning.

    Raises: ValueError naming the package to install.
    """
    if "--tensorboard-logdir" in given and not (find_spec("tensorboard") or find_spec("tensorboardX")):
        raise ValueError("--tensorboard-logdir: TensorBoard is not installed; install it with pip install tensorboard")


def spinning(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that limit how long waiting OpenMP threads spin.

    By default, a thread of GNU OpenMP spins for milliseconds before it sleeps. If other processes are busy, spinning
    threads take cores from the threads they wait for, and training becomes many times slower. The user's settings
    take precedence.
    """
    own = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}
    return {} if own & environ.keys() else {"GOMP_SPINCOUNT": SPIN_COUNT}


def allocating(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that let glibc keep freed memory. The user's settings take precedence.

    Training on a CPU allocates and frees the same large tensors in every step, and the kernel clears the pages each
    time. docs/training.md has the measurement. Other C libraries ignore the variables.
    """
    return {} if ALLOCATOR.keys() & environ.keys() else dict(ALLOCATOR)


def build_command(
    recipe: TrainingCommand, arch: str, run: Run, extra: TrainingCommand, planned: Sequence[str]
) -> TrainingCommand:
    """Return the training command of a recipe. The user's flags come last and take precedence."""
    own = ["--user-dir", children.user_dir(), "--arch", arch, *planned, "--save-dir", str(run.path)]
    own += ["--log-format", "json"]
    start = recipe.without(plan.PLANNED_FLAGS).and_then(TrainingCommand.parse(own))
    return start.and_then(extra.without(plan.PLANNED_FLAGS))


def check_flags(argv: Sequence[str]) -> list[str]:
    """Check a command with fairseq-train's own parser; return all positional arguments except the first.

    Only this parser knows which arguments are values of a flag.
    Raises: ValueError naming the flag, and the problem or similar flags.
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
        near = difflib.get_close_matches(flag, parser._option_string_actions, n=3)
        raise ValueError(
            f"{flag}: fairseq-train has no such flag" + (f"; similar ones: {', '.join(near)}" if near else "")
        )
    return unknown


class Argument(str):
    """An argument of a command line, compared by identity."""

    __slots__ = ()


def place_data(argv: Sequence[str], arch: str, extra: Sequence[str]) -> tuple[TrainingCommand, TrainingCommand]:
    """Return the recipe's command, with the user's data folder if one is given, and the user's flags.

    Raises: ValueError unless there is exactly one data folder; see also `check_own_flags` and `check_flags`.
    """
    # This check must come first: fairseq's parser imports the folder of --user-dir, which runs the code in it.
    check_own_flags(TrainingCommand.parse([*argv, *extra]))
    recipes = list(takewhile(lambda word: not FLAG.match(word), argv))
    rest, mine = (list(map(Argument, part)) for part in (argv[len(recipes) :], extra))
    given = check_flags([*(recipes or ["DATA"])[:1], *rest, "--arch", arch, *mine])
    data = given or recipes
    if len(data) != 1:
        raise ValueError(f"data folder: {', '.join(data) or 'none'} given; exactly one is needed")
    # Compare by identity, because a flag can have an equal value.
    kept = [[str(item) for item in part if not any(item is other for other in given)] for part in (rest, mine)]
    recipe, own = map(TrainingCommand.parse, kept)
    return replace(recipe, data=str(data[0])), own


def check_data(command: TrainingCommand) -> None:
    """Check that the data folder of a command exists and is complete.

    Raises: ValueError naming the folder, the missing files, and the command that prepares a known corpus.
    """
    kind = folders.of_task(command.value("--task", folders.TEXT.task))
    for folder in map(Path, filter(None, command.data.split(":"))):  # fairseq accepts shards of a training set as A:B
        maker = kind.maker(folder.name)
        hint = f"; to make it, run {maker}" if maker else ""
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such data folder{hint}")
        kind.check(folder, hint)


def settings(command: TrainingCommand) -> TrainingCommand:
    """Return the flags that identify a training run, excluding paths, processes and the batch plan."""
    ignored = (*PLACE_FLAGS, *PROCESS_FLAGS, *BACKEND_FLAGS, *plan.PLANNED_FLAGS)
    return replace(command.without(ignored), data=os.path.normpath(command.data) if command.data else "")


def repair_last_checkpoint(run: Run, command: TrainingCommand) -> None:
    """Replace a missing or damaged checkpoint_last.pt with the newest intact checkpoint.

    fairseq resumes only from this file. Without it, training starts from scratch, and fairseq then deletes the new
    checkpoints instead of the old ones, whose numbers are higher. A crash of the machine, or fairseq without the
    plugin, can leave a truncated file.

    Raises: ValueError if there are checkpoints but none is intact, or the intact ones have no optimizer state.
    """
    if recovery.is_whole(run.last):
        return
    whole = recovery.newest_whole(run)
    if whole and "--no-save-optimizer-state" in command:
        raise ValueError(
            f"{run.last}: missing or damaged, and the other checkpoints have no optimizer state "
            "(--no-save-optimizer-state); choose another --run folder or remove this one"
        )
    if whole:
        say(f"{run.last}: missing or damaged; resuming from {whole.name}")
        recovery.restore(run, whole)
    elif run.last.exists() or recovery.other_checkpoints(run):
        raise ValueError(f"{run.path}: all checkpoints are damaged; choose another --run folder or remove this one")


def is_finished(command: TrainingCommand, run: Run) -> bool:
    """Return whether this command has already finished training the run, and its last checkpoint is intact.

    If checkpoint_last.pt is lost, training resumes from an earlier checkpoint, unless these have no optimizer state.

    Raises: ValueError if the folder contains checkpoints of another command.
    """
    record = run.read_record()
    if not any(run.path.glob("checkpoint*.pt")):
        return False
    if record is None:
        raise ValueError(f"{run.path}: contains checkpoints but no run.json; choose another --run folder")
    begun = TrainingCommand.parse(record.command)
    differences = settings(begun).changes(settings(command))
    before, now = (plan.Batches.of(one) for one in (begun, command))
    if before and now and not now.has_same_shape(before):
        differences += begun.only(plan.PLANNED_FLAGS).changes(command.only(plan.PLANNED_FLAGS))
    if differences:
        is_longer = record.finished and any(one.startswith(("--max-update", "--max-epoch")) for one in differences)
        more = f"; to train longer, give another --run folder and --restore-file {run.last}" if is_longer else ""
        raise ValueError(
            f"{run.path}: was started with different settings ({'; '.join(differences)}); use the same settings, "
            f"choose another --run folder or remove this one{more}"
        )
    can_resume = not any(flag in command for flag in ("--no-save-optimizer-state", "--no-last-checkpoints"))
    return record.finished and (recovery.is_whole(run.last) or not can_resume)


def reached_end(command: TrainingCommand, run: Run) -> bool:
    """Return whether the last session was not stopped by --stop-time-hours before it reached --max-update."""
    is_out_of_time = False
    for line in run.log_lines():
        is_out_of_time = OUT_OF_TIME in line or (is_out_of_time and SESSION not in line)
    most = command.integer("--max-update") or math.inf
    return not is_out_of_time or most <= (run.training_summary().num_updates or 0)


def skipped_examples(run: Run) -> list[str]:
    """Return a phrase for each set of examples that fairseq left out in the last session, with the positions allowed.

    fairseq only logs it.
    """
    found: dict[str, None] = {}
    for line in run.log_lines():
        if SESSION in line:
            found.clear()
        elif skipped := SKIPPED.search(line):
            found[f"{skipped[1]} examples, which are longer than the model's positions {skipped[2]}"] = None
    return list(found)


def keep_evaluation(run: Run, evaluate: list[str]) -> None:
    """Record the recipe's evaluation options in run.json of a finished run, if they have changed since."""
    known = run.read_record()
    if known is not None and known.evaluate != evaluate:
        records.write(run.record, replace(known, evaluate=evaluate))
        say(f"{run.path}: run.json now has the recipe's evaluation options: {shlex.join(evaluate) or 'none'}")


def train(command: TrainingCommand, run: Run, record: RunRecord, rank: devices.Rank | None = None) -> bool:
    """Train or resume; return False if the run has already finished.

    record: the new run.json, which contains only this session
    Raises: ValueError if the run was started with different settings; ChildProcessError if fairseq-train fails;
    SystemExit if a signal ends it.
    """
    is_first = rank is None or rank.rank == 0
    with run.lock() if is_first else nullcontext() as lock:
        if is_finished(command, run):
            if is_first:
                say(f"{run.path}: already trained")
                keep_evaluation(run, record.evaluate)
            return False
        has_begun = any(run.path.glob("checkpoint*.pt"))
        known = run.read_record() if has_begun else None
        before = known.sessions if known else []
        changed = changes(known, record) if known else []
        record = replace(record, sessions=[*before, replace(record.sessions[-1], changes=changed)])
        if is_first:
            for change in changed:
                say(f"{run.path}: resuming with {change}; run.json records both")
            if known and known.finished:  # first: the other processes must not take the repaired run for a finished one
                records.write(run.record, replace(known, finished=False))
            repair_last_checkpoint(run, command)
            records.write(run.record, record)
        executed = command
        if "--restore-file" in command and run.last.is_file():  # fairseq would load that file again, not this run's
            executed = command.without(("--restore-file", *RESETS))
        argv = [children.program(PROGRAM), *executed.arguments]
        log = run.train_log if is_first else run.file(f"train.rank{rank.rank if rank else 0}.log")
        log.parent.mkdir(parents=True, exist_ok=True)  # any process may be the first
        begun = run.training_summary().num_updates if has_begun else 0
        if is_first:
            children.show(argv, f" >> {shlex.quote(str(log))} 2>&1")
        variables = {**record.sessions[-1].variables, **(rank.environment if rank else {})}
        with log.open("ab") as file:
            if is_first:
                with Display(run.name, command, begun or 0) as shown, children.followed(log, shown.take):
                    code = children.run(argv, file, lock, file, variables, STOPPING)
            else:
                code = children.run(argv, file, lock, file, variables)
        if code > 128:
            raise SystemExit(code)  # killed by a signal that this process did not receive
        if code:
            raise children.failure(PROGRAM, code, log, ChildProcessError)
        if is_first:
            records.write(run.record, replace(record, finished=reached_end(command, run)))
            done = run.training_summary()
            say(f"{run.path}: trained: {summary(done)}")
            for skipped in skipped_examples(run):
                say(f"{run.path}: warning: fairseq skipped {skipped}", file=sys.stderr)
            if done.explosion and not float(command.value("--clip-norm", "0")):
                exploded = f"the gradient exploded ({done.explosion}); try --clip-norm 1 or a lower --lr"
                say(f"{run.path}: warning: {exploded}", file=sys.stderr)
        return True


@dataclass(frozen=True)
class Request:
    """A requested training run, checked as far as possible without reading its data."""

    run: Run
    plan: plan.Plan
    command: TrainingCommand
    seed: int
    gpus: list[devices.Gpu]
    rank: devices.Rank | None
    evaluate: list[str] = field(default_factory=list)

    def record(self) -> RunRecord:
        """Return the content of run.json, with one session, which starts now."""
        chosen = {**spinning(os.environ), **({} if self.gpus else allocating(os.environ))}
        session = Session(
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine.commit(),
            Hardware(machine.processor(), machine.cores(), [gpu.line for gpu in self.gpus]),
            {"python": machine.python(), **machine.versions(PACKAGES)},
            variables={**{name: os.environ[name] for name in VARIABLES if name in os.environ}, **chosen},
        )
        command = self.command.without(PROCESS_FLAGS).argv
        return RunRecord(command, False, self.plan.record(), self.seed, [session], self.evaluate)


def request(
    name: str,
    arch: str,
    extra: list[str],
    folder: Path | None = None,
    effective_batch: int | None = None,
    precision: str = "auto",
) -> Request:
    """Check a requested training run and plan it: a recipe, an architecture and additional flags of fairseq-train.

    folder: the run folder (default: checkpoints/RECIPE-ARCH)
    Raises: ValueError naming the invalid recipe, architecture, flag or run folder.
    """
    recipe_argv = recipe.read(name)
    check_architecture(arch, TrainingCommand.parse([*recipe_argv, *extra]))
    base, own = place_data(recipe_argv, arch, extra)
    run = Run(folder or Path("checkpoints") / f"{Path(name).stem}-{arch}")
    if folders.is_data_folder(run.path):
        raise ValueError(f"--run {run.path}: is a data folder; must be a new folder or a run folder")
    given = base.and_then(own)
    check_tensorboard(given)
    gpus = [] if "--cpu" in given else devices.gpus()
    rank = devices.rank(os.environ, given, len(gpus))
    planned = plan.plan_training(base, own, gpus, rank, effective_batch, precision)
    command = build_command(base, arch, run, own, [*planned.argv, *(rank.flags if rank else ())])
    seed = given.integer("--seed", 1)
    evaluation = recipe.evaluation(name)
    try:
        evaluation_settings.parse(evaluation)
    except ValueError as error:
        raise ValueError(f"recipe {name}: [evaluate]: {error}") from None
    return Request(run, planned, command, seed, gpus, rank, evaluation)


def changes(before: RunRecord, now: RunRecord) -> list[str]:
    """Return a phrase for each difference from the previous session (batches, commit, versions)."""
    found = []
    old, new = (plan.Batches.of(TrainingCommand.parse(record.command)) for record in (before, now))
    if old and new and old != new:
        rest = (
            "the same batches in the same order"
            if (old.size, old.effective) == (new.size, new.effective)
            else "the rest of the epoch is re-batched: some examples repeat and others are skipped"
        )
        found.append(f"{new.product} instead of {old.product}: {rest}")
    if before.sessions:
        last, this = before.sessions[-1], now.sessions[-1]
        found += ["a different commit"] if last.commit != this.commit else []
        found += ["different versions"] if last.versions != this.versions else []
    return found


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this command and the arguments for fairseq-train."""
    add = parser.add_argument
    add(
        "recipe",
        help="name of a recipe, or a file of fairseq-train flags; a data folder given as well replaces the recipe's",
    )
    add("--arch", required=True, help="transformer, transformer_sas, transformer_rskip_ln, transformer_resid, ...")
    add("--run", type=Path, help="run folder (default: checkpoints/RECIPE-ARCH)")
    add(
        "--effective-batch",
        type=frame.integer(1),
        metavar="N",
        help="effective batch, in the unit of the recipe (default: as in the recipe); --max-tokens limits one device",
    )
    add(
        "--precision",
        choices=("auto", *plan.PRECISIONS),
        default="auto",
        help="default auto: bf16 or fp16 (images: amp) on GPUs with hardware support, otherwise fp32",
    )
    add("--dry-run", action="store_true", help="print the plan and the command without training")
    return parser.parse_known_args(argv)


@frame.command(
    "train",
    "Train with a recipe and stock fairseq-train, on all visible GPUs or on the CPU. Run the same command again to "
    "resume.",
    again="resumes",
    epilog=f"recipes: {', '.join(recipe.available())}. All other flags are passed to fairseq-train. On several "
    "machines, start one process per device with torchrun (torchrun ... --no-python -- scripts/train.sh RECIPE ...) "
    "or srun (srun scripts/train.sh RECIPE ...).",
    allow_abbrev=False,
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid train`."""
    args, extra = parse(parser, argv)
    requested = request(args.recipe, args.arch, extra, args.run, args.effective_batch, args.precision)
    is_first = requested.rank is None or requested.rank.rank == 0
    if is_first:
        say(f"{requested.run.path}: {requested.plan.line()}")
    if args.dry_run:
        if is_first:
            children.show(requested.command.argv)
        return
    check_data(requested.command)
    train(requested.command, requested.run, requested.record(), requested.rank)
