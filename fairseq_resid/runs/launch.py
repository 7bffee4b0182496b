"""Run stock fairseq-train in a run folder. The same command, run again, resumes training if it has not finished.

RUN/run.json contains the full command, the plan, the seed, and whether training has finished, and for every session
the commit, versions and hardware. A command with different settings is refused, because the resumed run would represent
neither the old settings nor the new ones.

Under torchrun or srun, every process runs this module. Each process determines its rank (devices.rank), and all of them
run the same checks. Only rank 0 writes files, except that every other process writes its own log, train.rankN.log.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from .. import records
from ..cli import children, frame, machine
from ..console import say
from ..data import folders
from . import plan, recipe, recovery
from .display import Display, summary
from .request import Request, request
from .run import Hardware, Run, RunRecord, Session
from .training_command import PLACE_FLAGS, PROGRAM, TrainingCommand
from .training_log import last_session

# The number of spin rounds before an idle thread sleeps; docs/training.md has the measurement.
SPIN_COUNT = "1000"
# Use mmap only for blocks above 4 GiB, and keep up to 8 GiB of freed memory.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}
THREADS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
VARIABLES = (*THREADS, *ALLOCATOR)  # that run.json records
PACKAGES = ("torch", "fairseq", "fairseq-fixed", "apex", "numpy", "sacrebleu", "sentencepiece")
# Flags for communication between processes. They do not affect the trained model.
PROCESS_FLAGS = (
    "--distributed-init-method",
    "--distributed-rank",
    "--distributed-no-spawn",
    "--distributed-port",
    "--device-id",
)
BACKEND_FLAGS = ("--distributed-backend", "--ddp-backend")
RESETS = ("--reset-optimizer", "--reset-dataloader", "--reset-lr-scheduler", "--reset-meters")
STOPPING = "\nStopping after this update and saving a checkpoint. Press Ctrl-C again to stop now.\n"
# Lines of fairseq-train.
OUT_OF_TIME = re.compile("Stopping training due to cumulative_training_time")
SKIPPED = re.compile(r"([0-9,]+) samples have invalid sizes and will be skipped, max_positions=(\([^)]*\)|[0-9]+)")


def train(asked: Request) -> None:
    """Train or resume a run, unless it has finished.

    Raises: ValueError if the run was started with different settings; ChildProcessError if fairseq-train fails;
    SystemExit if a signal ends it.
    """
    run, command = asked.run, asked.command
    with run.lock() if asked.is_first else nullcontext() as lock:
        if is_finished(command, run):
            if asked.is_first:
                say(f"{run.path}: already trained")
                keep_evaluation(run, asked.evaluate)
            return
        has_begun = any(run.path.glob("checkpoint*.pt"))
        record = add_session(asked, run.read_record() if has_begun else None)
        if "--restore-file" in command and run.last.is_file():  # fairseq would load that file again, not this run's
            command = command.without(("--restore-file", *RESETS))
        log = run.train_log if asked.rank is None or asked.is_first else run.file(f"train.rank{asked.rank.rank}.log")
        log.parent.mkdir(parents=True, exist_ok=True)  # any process may be the first
        begun = run.training_summary().num_updates if has_begun else 0
        code = execute(asked, command, record.sessions[-1].variables, log, lock, begun or 0)
        if code > 128:
            raise SystemExit(code)  # killed by a signal that this process did not receive
        if code:
            raise children.failure(PROGRAM, code, log, ChildProcessError)
        if asked.is_first:
            records.write(run.record, replace(record, finished=reached_end(command, run)))
            tell_outcome(command, run)


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


def settings(command: TrainingCommand) -> TrainingCommand:
    """Return the flags that identify a training run, excluding paths, processes and the batch plan."""
    ignored = (*PLACE_FLAGS, *PROCESS_FLAGS, *BACKEND_FLAGS, *plan.PLANNED_FLAGS)
    return replace(command.without(ignored), data=os.path.normpath(command.data) if command.data else "")


def keep_evaluation(run: Run, evaluate: list[str]) -> None:
    """Record the recipe's evaluation options in run.json of a finished run, if they have changed since."""
    known = run.read_record()
    if known is not None and known.evaluate != evaluate:
        records.write(run.record, replace(known, evaluate=evaluate))
        say(f"{run.path}: run.json now has the recipe's evaluation options: {shlex.join(evaluate) or 'none'}")


def add_session(asked: Request, known: RunRecord | None) -> RunRecord:
    """Return the content of run.json with a session that starts now; rank 0 repairs checkpoint_last.pt and writes it.

    known: the present content, if the run has checkpoints
    """
    run = asked.run
    session = Session(
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine.commit(),
        Hardware(machine.processor(), machine.cores(), [gpu.line for gpu in asked.gpus]),
        {"python": machine.python(), **machine.versions(PACKAGES)},
        variables=variables(os.environ, has_gpus=bool(asked.gpus)),
    )
    command = asked.command.without(PROCESS_FLAGS)
    changed = changes(known, command, session) if known else []
    sessions = [*(known.sessions if known else []), replace(session, changes=changed)]
    seed = command.integer("--seed", 1)
    record = RunRecord(command.argv, False, asked.plan.record(), seed, sessions, asked.evaluate)
    if asked.is_first:
        for change in changed:
            say(f"{run.path}: resuming with {change}; run.json records both")
        if known and known.finished:  # first: the other processes must not take the repaired run for a finished one
            records.write(run.record, replace(known, finished=False))
        recovery.repair_to_resume(run, command)
        records.write(run.record, record)
    return record


def variables(environ: Mapping[str, str], has_gpus: bool) -> dict[str, str]:
    """Return the environment variables of a session for threads and memory: the user's, or else ours.

    By default, a thread of GNU OpenMP spins for milliseconds before it sleeps. If other processes are busy, spinning
    threads take cores from the threads they wait for, and training becomes many times slower.
    Training on a CPU allocates and frees the same large tensors in every step, and the kernel clears the pages each
    time, unless glibc keeps freed memory. docs/training.md has the measurements.
    """
    found = {name: environ[name] for name in VARIABLES if name in environ}
    if not found.keys() & set(THREADS):
        found["GOMP_SPINCOUNT"] = SPIN_COUNT
    return found if has_gpus or found.keys() & ALLOCATOR.keys() else {**found, **ALLOCATOR}


def changes(before: RunRecord, command: TrainingCommand, session: Session) -> list[str]:
    """Return a phrase for each difference of a session from the previous one (batches, commit, versions)."""
    found = []
    old, new = (plan.Batches.of(one) for one in (TrainingCommand.parse(before.command), command))
    if old and new and old != new:
        rest = (
            "the same batches in the same order"
            if (old.size, old.effective) == (new.size, new.effective)
            else "the rest of the epoch is re-batched: some examples repeat and others are skipped"
        )
        found.append(f"{new.product} instead of {old.product}: {rest}")
    if before.sessions:
        last = before.sessions[-1]
        found += ["a different commit"] if last.commit != session.commit else []
        found += ["different versions"] if last.versions != session.versions else []
    return found


def execute(
    asked: Request, command: TrainingCommand, chosen: dict[str, str], log: Path, lock: int | None, begun: int
) -> int:
    """Run fairseq-train with its output appended to `log`, and return its exit code; rank 0 shows the progress.

    chosen: environment variables; begun: updates of earlier sessions
    """
    argv = [children.program(PROGRAM), *command.arguments]
    environment = {**chosen, **(asked.rank.environment if asked.rank else {})}
    with log.open("ab") as file:
        if not asked.is_first:
            return children.run(argv, file, lock, file, environment)
        children.show(argv, f" >> {shlex.quote(str(log))} 2>&1")
        with Display(asked.run.name, command, begun) as shown, children.followed(log, shown.take):
            return children.run(argv, file, lock, file, environment, STOPPING)


def reached_end(command: TrainingCommand, run: Run) -> bool:
    """Return whether the last session was not stopped by --stop-time-hours before it reached --max-update."""
    most = command.integer("--max-update") or math.inf
    return not last_session(run.train_log, OUT_OF_TIME) or most <= (run.training_summary().num_updates or 0)


def tell_outcome(command: TrainingCommand, run: Run) -> None:
    """Print a summary of training, and warn about skipped examples, which fairseq only logs, and exploded gradients."""
    done = run.training_summary()
    say(f"{run.path}: trained: {summary(done)}")
    warnings = [
        f"fairseq skipped {count} examples, which are longer than the model's positions {most}"
        for count, most in dict.fromkeys(found.groups() for found in last_session(run.train_log, SKIPPED))
    ]
    if done.explosion:
        is_clipped = 0 < float(command.value("--clip-norm", "0")) <= 1
        remedy = "a lower --lr" + ("" if is_clipped else " or --clip-norm 1")
        warnings.append(f"the gradient exploded ({done.explosion}); try {remedy}")
    for warning in warnings:
        say(f"{run.path}: warning: {warning}", file=sys.stderr)


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
    options, extra = parser.parse_known_args(argv)
    asked = request(options.recipe, options.arch, extra, options.run, options.effective_batch, options.precision)
    if asked.is_first:
        say(f"{asked.run.path}: {asked.plan.line()}")
        if options.dry_run:
            children.show(asked.command.argv)
    if not options.dry_run:
        check_data(asked.command)
        train(asked)
