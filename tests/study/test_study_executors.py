"""Executors of studies: local processes, submitit, Slurm; failed runs, interrupts, bad options."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid.study import executors, study
from fairseq_resid.study.work import StudyFolders
from support.studies import SMALL, calls

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]


def test_failed_run_is_reported_and_others_continue(stub: Any, tmp_path: Path, capsys: Capture) -> None:
    words = stub(bad=("flat.base.0.002.tuning",), text=SMALL)
    assert study.main([*words, "--jobs", "2"]) == 1
    said = capsys.readouterr()
    assert "flat.base.0.002.tuning: failed: fairseq-resid study: error: no space" in said.err
    assert "use --retry to try it again" in said.err and "flat.base.0.002.tuning.out" in said.err
    # The base arm has no best value because one of its tuning runs failed, but the sas arm is complete.
    tuning = {f"flat.{arm}.{lr}.tuning" for arm in ("base", "sas") for lr in (0.001, 0.002, 0.004)}
    assert len(calls(tmp_path)) == 7 and {*calls(tmp_path)} == tuning | {"flat.sas.0.002.seed1"}
    assert study.main(words) == 1 and len(calls(tmp_path)) == 7  # no retry without --retry
    (tmp_path / "work" / "mended").touch()
    assert study.main([*words, "--retry"]) == 0
    assert calls(tmp_path)[7:] == ["flat.base.0.002.tuning", "flat.base.0.002.seed1"]
    assert study.main(words) == 0 and len(calls(tmp_path)) == 9  # nothing runs twice
    assert "no runs missing" in capsys.readouterr().out


def test_no_run_starts_after_the_given_hours(stub: Any, tmp_path: Path) -> None:
    words = stub(text=SMALL, seconds=0.5)
    assert study.main([*words, "--jobs", "1", "--hours", "0.0001"]) == 0
    assert calls(tmp_path) == ["flat.base.0.001.tuning"]


def finish(executor: executors.LocalExecutor) -> dict[str, int]:
    """Return the exit codes of all runs."""
    codes: dict[str, int] = {}
    while executor.running:
        codes |= executor.ended()
        time.sleep(0.05)
    return codes


def test_runs_get_separate_cores(tmp_path: Path) -> None:
    here = executors.LocalExecutor(2, 1, tmp_path / "logs")
    show = "import os, time; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS']); time.sleep(0.5)"
    here.start({name: [sys.executable, "-c", f"import time; time.sleep(0.3)\n{show}"] for name in "ab"})
    assert here.room() == 0
    assert finish(here) == {"a": 0, "b": 0} and here.room() == 2
    said = [(tmp_path / "logs" / f"{name}.out").read_text() for name in "ab"]
    if len(os.sched_getaffinity(0)) > 1:
        assert said[0] != said[1]
    assert all(text.endswith(" 1\n") and text.count(",") == 0 for text in said)


def test_runs_get_separate_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: Any, capsys: Capture) -> None:
    assert executors.group_gpus(["0", "1", "2", "3"], 2) == ["0,1", "2,3"]
    here = executors.LocalExecutor(4, 1, tmp_path / "logs", ["0,1", "2,3"])
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    here.start({name: [sys.executable, "-S", "-c", show] for name in "abcd"})
    assert finish(here) == dict.fromkeys("abcd", 0)
    assert [(tmp_path / "logs" / f"{name}.out").read_text().strip() for name in "abcd"] == ["0,1", "2,3"] * 2
    monkeypatch.setattr(study.devices, "gpus", lambda: [None] * 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert study.visible_gpus() == ["5", "6", "7"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert study.visible_gpus() == ["0", "1", "2"]
    monkeypatch.undo()
    monkeypatch.setattr(study, "visible_gpus", lambda: ["0", "1", "2"])
    options = study.parse(argparse.ArgumentParser(), ["x.yaml", "--gpus", "1"])
    executor, slots = study.make_executor(options, StudyFolders(Path("x.yaml"), tmp_path, tmp_path))
    assert slots == 3 and isinstance(executor, executors.LocalExecutor)
    assert executor.threads is None and executor.gpus == ["0", "1", "2"]  # not limited to one core
    assert study.main([*stub(text=SMALL), "--gpus", "2"]) == 2
    assert "--gpus 2: 3 visible GPUs do not divide into groups of 2" in capsys.readouterr().err


def test_interrupt_stops_the_runs_too(stub: Any, tmp_path: Path) -> None:
    words = stub(text=SMALL, seconds=60)
    code = f"import sys; sys.path[:0] = {[str(ROOT), str(tmp_path)]!r}; import study_in_a_child"
    (tmp_path / "study_in_a_child.py").write_text(
        f"import sys\nsys.path.append({str(ROOT / 'tests')!r})\nfrom support import studies\n"
        "from fairseq_resid.study import study\nfrom fairseq_resid.runs import launch\nfrom pathlib import Path\n"
        "launch.check_data = lambda _: None\n"
        f"study.command = studies.stubbed(Path({str(tmp_path / 'stub.py')!r}))\n"
        f"sys.exit(study.main({[*words, '--jobs', '2']!r}))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and not ((tmp_path / "work" / "calls").is_file() and len(calls(tmp_path)) == 2):
            time.sleep(0.1)
        assert len(calls(tmp_path)) == 2
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 143 and "interrupted; the same command resumes" in errors
    assert not subprocess.run(["pgrep", "-f", str(tmp_path / "stub.py")], capture_output=True, text=True).stdout
    assert not (tmp_path / "work" / "failed").exists()


def test_runs_are_submitted_by_submitit(stub: Any, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("submitit")
    words = stub(text=SMALL, bad=("flat.sas.0.004.tuning",))
    assert study.main([*words, "--cluster", "local", "--cluster-option", "timeout_min=5"]) == 1
    assert sorted(calls(tmp_path))[:2] == ["flat.base.0.001.tuning", "flat.base.0.002.seed1"]
    assert len(calls(tmp_path)) == 8
    assert "flat.sas.0.004.tuning: failed: fairseq-resid study: error: no space" in capsys.readouterr().err


SLURM = {
    # This sbatch assigns a job number and starts a background process that runs the tasks one after the other.
    "sbatch": """#!{python}
import os, subprocess, sys
root = {folder!r}
number = len([name for name in os.listdir(root) if name.endswith(".job")]) + 100
job = f"{{root}}/{{number}}.job"
open(job, "w").write(open(sys.argv[1]).read())
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen([sys.executable, f"{{root}}/tasks", job, str(number)], **quiet, start_new_session=True)
print(f"Submitted batch job {{number}}")
""",
    "tasks": """
import os, re, subprocess, sys
job, number = sys.argv[1:]
text = open(job).read()
count = int(re.search(r"--array=0-(\\d+)", text)[1]) + 1 if "--array" in text else 0
for task in range(count or 1):
    name = f"{{number}}_{{task}}" if count else number
    own = dict(SLURM_JOB_ID=str(int(number) + task), SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_NODEID="0",
               SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_JOB_NODELIST="here")
    if count:
        own |= dict(SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID=str(task))
    with open({folder!r} + f"/{{name}}.said", "w") as said:
        done = subprocess.run(["bash", job], env={{**os.environ, **own}}, stdout=said, stderr=said)
    with open({folder!r} + "/states", "a") as states:
        states.write(f"{{name}}|{{'FAILED' if done.returncode else 'COMPLETED'}}|here\\n")
""",
    "sacct": """#!/bin/sh
echo "JobID|State|NodeList"
cat {folder}/states 2>/dev/null || true
""",
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] || shift; shift; done
exec "$@"
""",
    "scancel": "#!/bin/sh\n",
}


def test_simulated_slurm_runs_job_arrays(
    stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Every round of runs is one job array."""
    pytest.importorskip("submitit")
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in SLURM.items():
        program = folder / name
        program.write_text(text.format(python=sys.executable, folder=str(folder)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    words = stub(text=SMALL)
    options = ["slurm_partition=gpu", "timeout_min=90", "gpus_per_node=1", "slurm_array_parallelism=4"]
    given = [word for option in options for word in ("--cluster-option", option)]
    assert study.main([*words, "--cluster", "slurm", *given]) == 0, [path.read_text() for path in folder.glob("*.said")]
    assert len(calls(tmp_path)) == 8
    first = (folder / "100.job").read_text()
    assert "#SBATCH --array=0-5%4" in first and "#SBATCH --partition=gpu" in first and "#SBATCH --time=90" in first
    assert "--signal=USR2" in first  # submitit requeues the job before its time limit
    assert (folder / "101.job").is_file()


def test_preempted_run_is_queued_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    command = executors.Command(["true"], tmp_path / "logs" / "run.out")
    assert command.checkpoint().function is command
    command()
    slow = executors.Command(["sleep", "60"], tmp_path / "slow.out")

    def leave(*_: Any) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    try:
        with pytest.raises(SystemExit):
            slow()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 20  # the child was killed before it could finish
    with pytest.raises(RuntimeError, match="exit code 1"):
        executors.Command(["false"], tmp_path / "run.out")()


def test_preempted_run_exits_only_after_slurm_has_requeued_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preempted run waits before it exits, so that Slurm can requeue it first."""
    waited: list[float] = []
    monkeypatch.setattr(executors.time, "sleep", waited.append)
    ended = {"kill -USR2 $$; kill -USR1 $$; exit 7": 7, "kill -TERM $$": -15, "exit 143": 143}
    for text, code in ended.items():
        with pytest.raises(RuntimeError, match=f"exit code {code}$"):
            executors.Command(["bash", "-c", text], tmp_path / "run.out")()
    assert waited == [executors.KILLED_WITHIN] * 2


def test_missing_data_is_reported_before_the_first_run(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert study.main([str(file), "--work", str(tmp_path / "work")]) == 2
    out, error = capsys.readouterr()
    assert error == "fairseq-resid study: error: data-bin/trial: no such data folder\n" and "started" not in out
    assert not (tmp_path / "work" / "failed").exists()
