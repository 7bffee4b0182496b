"""Execute the runs of a study on this machine, or on a cluster through submitit. Each run is a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class LocalExecutor:
    """Executes runs on this machine, `slots` at a time.

    threads: threads of each run, on its own cores; None: every run may use all cores
    logs: folder for the output of each run, NAME.out
    gpus: CUDA_VISIBLE_DEVICES of each slot, in order; empty: every run sees the same GPUs as this process
    running: the process of each run, and its slot
    """

    slots: int
    threads: int | None
    logs: Path
    gpus: Sequence[str] = ()
    running: dict[str, tuple[subprocess.Popen[bytes], int]] = field(default_factory=dict)

    def room(self) -> int:
        """Return the number of runs that can be started now."""
        return self.slots - len(self.running)

    def start(self, commands: Mapping[str, list[str]]) -> None:
        taken = {slot for _, slot in self.running.values()}
        free = [slot for slot in range(self.slots) if slot not in taken]
        for (name, command), slot in zip(commands.items(), free, strict=False):
            own = {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
            if self.gpus:
                own["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
            child = start_process(command, self.logs / f"{name}.out", env={**os.environ, **own})
            self.running[name] = child, slot
            if self.threads and hasattr(os, "sched_setaffinity"):  # Linux
                # If there are more threads than cores, the last slots share cores.
                every = sorted(os.sched_getaffinity(0))
                first = slot * self.threads
                os.sched_setaffinity(
                    child.pid, {every[core % len(every)] for core in range(first, first + self.threads)}
                )

    def ended(self) -> dict[str, int]:
        """Return the exit codes of the runs that have ended since the last call."""
        codes = {name: code for name, (child, _) in self.running.items() if (code := child.poll()) is not None}
        self.running = {name: one for name, one in self.running.items() if name not in codes}
        return codes

    def stop(self) -> None:
        for child, _ in self.running.values():
            child.terminate()
        for child, _ in self.running.values():
            child.wait()


def start_process(command: Sequence[str], output: Path, **options: Any) -> subprocess.Popen[bytes]:
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w+b") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, **options)


def group_gpus(visible: Sequence[str], each: int) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES for groups of `each` GPUs.

    Raises: ValueError if the GPUs do not divide evenly into such groups.
    """
    if not visible or len(visible) % each:
        raise ValueError(f"--gpus {each}: {len(visible)} visible GPUs do not divide into groups of {each}")
    return [",".join(visible[at : at + each]) for at in range(0, len(visible), each)]


TIMEOUTS = 100
ANNOUNCED = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm sends these before the time limit, at submitit's request
KILLED_WITHIN = 600  # seconds from SIGTERM to SIGKILL, at most: Slurm's KillWait or GraceTime


class Command:
    """The command that submitit runs. If its job is preempted, it is queued again and resumes the run."""

    def __init__(self, argv: Sequence[str], output: Path) -> None:
        self.argv = list(argv)
        self.output = output

    def __call__(self) -> None:
        with start_process(self.argv, self.output, preexec_fn=unannounced) as child:
            try:
                code = child.wait()
            except BaseException:  # preempted: submitit exits without ending training
                child.terminate()
                raise
        if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            # Slurm signals all processes of a job that it preempts or cancels. submitit ignores this signal, but an
            # exception here would mark a requeued run as failed.
            time.sleep(KILLED_WITHIN)
        if code:
            raise RuntimeError(f"exit code {code}")

    def checkpoint(self, *_: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def unannounced() -> None:
    """Ignore ANNOUNCED in this process and its children: Slurm sends these signals to all processes of a job.

    Only submitit should handle them.
    """
    for number in ANNOUNCED:
        signal.signal(number, signal.SIG_IGN)


class SubmititExecutor:
    """Executes runs through submitit, either on Slurm or with submitit's `local` and `debug` executors.

    All runs that are ready form one job array.

    logs: folder for the output of each run, NAME.out, and for submitit's own files
    parameters: passed to submitit's AutoExecutor.update_parameters, such as timeout_min, gpus_per_node, slurm_partition
    Raises: ValueError if submitit is missing, the cluster is unavailable, or submitit does not know a parameter.
    """

    def __init__(self, kind: str, logs: Path, parameters: Mapping[str, Any]) -> None:
        self.kind, self.logs, self.running = kind, logs.resolve(), dict[str, Any]()
        try:
            import submitit
        except ImportError:
            raise ValueError(f'--cluster {kind}: requires submitit; run pip install ".[fairseq,cluster]"') from None
        try:
            # A run may need several time slots: it resumes in the next one.
            self.executor = submitit.AutoExecutor(
                folder=logs / "submitit", cluster=kind, slurm_max_num_timeout=TIMEOUTS
            )
            self.executor.update_parameters(**parameters)
        except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"--cluster {kind}: {str(error).splitlines()[0]}") from None

    def room(self) -> int:
        return sys.maxsize

    def start(self, commands: Mapping[str, list[str]]) -> None:
        try:
            with self.executor.batch():
                jobs = {
                    name: self.executor.submit(Command(command, self.logs / f"{name}.out"))
                    for name, command in commands.items()
                }
        except RuntimeError as error:
            raise ValueError(f"--cluster {self.kind}: the runs were not accepted: {str(error).strip()}") from None
        self.running |= jobs  # those that were not accepted cannot be cancelled

    def ended(self) -> dict[str, int]:
        # A job of the debug executor runs when exception() is called; its done() would open a debugger on failure.
        jobs = {name: job for name, job in self.running.items() if self.kind == "debug" or job.done()}
        codes = {name: 0 if job.exception() is None else 1 for name, job in jobs.items()}
        self.running = {name: job for name, job in self.running.items() if name not in codes}
        return codes

    def stop(self) -> None:
        for job in self.running.values():
            job.cancel(check=False)
