"""Train with `fairseq-resid train` and `study`: in this process, because a new one takes seconds, or in two."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from conftest import ROOT, run_fairseq
from fairseq_resid.__main__ import main
from fairseq_resid.cli import children
from fairseq_resid.runs import launch
from fairseq_resid.study import work as study_work
from support.ports import free_port


def _run(words: list[str], output: IO[bytes] | None = None, *_: Any) -> int:
    if output is None:  # PYTHON -m fairseq_resid COMMAND
        return main(words[3:])
    found = run_fairseq("fairseq-train", words[1:])
    output.write(found.output.encode())
    return found.code


@contextlib.contextmanager
def commands_here() -> Iterator[None]:
    """Run fairseq-train and the analysis of a study in this process; no worker processes may be requested."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (launch, study_work):
            patch.setattr(module, "children", types.SimpleNamespace(**{**vars(children), "run": _run}))
        yield


def train(recipe: Path, run: Path, *flags: str) -> int:
    with commands_here():
        return main(["train", str(recipe), "--run", str(run), *flags])


def study(file: Path, work: Path, *runs: str) -> None:
    """Execute all runs of a study, and then the study, which finds them finished."""
    words = ["study", str(file), "--work", str(work)]
    with commands_here():
        for run in runs:
            assert main([*words, "--only", run]) == 0
    assert main(words) == 0


def train_in_two_processes(recipe: Path, run: Path, *flags: str) -> dict[str, Any]:
    """Train under torchrun; return the content of run.json."""
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--no-python"]
    command = [*torchrun, "--master-port", str(free_port()), "--", str(ROOT / "scripts" / "train.sh"), str(recipe)]
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": sys.prefix}
    done = subprocess.run(
        [*command, "--run", str(run), *flags], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    assert record["finished"]
    return record
