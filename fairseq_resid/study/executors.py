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
from typing import Any, Protocol


class StartedRun(Protocol):
    """A run that has been started."""

    def code(self) -> int | None:
        """Return the exit code of the run, or None while it is running."""


class Executor(Protocol):
    """Starts runs. `room` returns the number of runs that can be started now, and `stop` ends all started runs."""

    def room(self) -> int: ...

    def stop(self) -> None: ...

    def start(self, commands: Mapping[str, list[str]]) -> dict[str, StartedRun]:
        """Start a command for each name."""


@dataclass
class Process:
    """A run on this machine, in one slot."""

    child: subprocess.Popen[bytes]
    slot: int

    def code(self) -> int | None:
        return self.child.poll()


@dataclass
class LocalExecutor:
    """Executes runs on this machine, `slots` at a time.

    threads: threads of each run, on its own cores; None: every run may use all cores
    logs: folder for the output of each run, NAME.out
    gpus: CUDA_VISIBLE_DEVICES of each slot, in order; empty: every run sees the same GPUs as this process
    """

    slots: int
    threads: int | None
    logs: Path
    gpus: Sequence[str] = ()
    started: list[Process] = field(default_factory=list)

    def _free(self) -> list[int]:
        taken = {process.slot for process in self.started if process.code() is None}
        return [slot for slot in range(self.slots) if slot not in taken]

    def _cores(self, slot: int, threads: int) -> set[int]:
        """Return the cores of a slot; if there are more threads than cores, the last slots share cores."""
        every = sorted(os.sched_getaffinity(0))
        return {every[(slot * threads + thread) % len(every)] for thread in range(threads)}

    def room(self) -> int:
        return len(self._free())

    def stop(self) -> None:
        for process in self.started:
            process.child.terminate()
        for process in self.started:
            process.child.wait()

    def start(self, commands: Mapping[str, list[str]]) -> dict[str, StartedRun]:
        jobs: dict[str, StartedRun] = {}
        for (name, command), slot in zip(commands.items(), self._free(), strict=False):
            self.logs.mkdir(parents=True, exist_ok=True)
            own = {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
            if self.gpus:
                own["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
            with (self.logs / f"{name}.out").open("w+b") as output:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **own},
                )
            jobs[name] = process = Process(child, slot)
            self.started.append(process)
            if self.threads and hasattr(os, "sched_setaffinity"):  # Linux
                os.sched_setaffinity(child.pid, self._cores(slot, self.threads))
        return jobs


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
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with (
            self.output.open("w+b") as output,
            subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, preexec_fn=unannounced
            ) as child,
        ):
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


@dataclass
class Submitted:
    """A run submitted through submitit."""

    job: Any
    is_debug: bool  # it runs when exception() is called; done() would open a debugger on failure

    def code(self) -> int | None:
        if not self.is_debug and not self.job.done():
            return None
        return 0 if self.job.exception() is None else 1


class SubmititExecutor:
    """Executes runs through submitit, either on Slurm or with submitit's `local` and `debug` executors.

    All runs that are ready form one job array.

    logs: folder for the output of each run, NAME.out, and for submitit's own files
    parameters: passed to submitit's AutoExecutor.update_parameters, such as timeout_min, gpus_per_node, slurm_partition
    Raises: ValueError if submitit is missing, the cluster is unavailable, or submitit does not know a parameter.
    """

    def __init__(self, kind: str, logs: Path, parameters: Mapping[str, Any]) -> None:
        self.kind, self.logs, self.started = kind, logs.resolve(), list[Any]()
        try:
            import submitit
        except ImportError:
            raise ValueError(f'--cluster {kind}: requires submitit; run pip install "fairseq_resid[cluster]"') from None
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

    def stop(self) -> None:
        for job in self.started:
            job.cancel(check=False)

    def start(self, commands: Mapping[str, list[str]]) -> dict[str, StartedRun]:
        try:
            with self.executor.batch():
                jobs = {
                    name: self.executor.submit(Command(command, self.logs / f"{name}.out"))
                    for name, command in commands.items()
                }
        except RuntimeError as error:
            raise ValueError(f"--cluster {self.kind}: the runs were not accepted: {str(error).strip()}") from None
        self.started += jobs.values()
        return {name: Submitted(job, self.kind == "debug") for name, job in jobs.items()}
