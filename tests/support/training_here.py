"""Run `train` and `study` with fairseq-train in this process, because a new one takes seconds, or in two processes."""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from conftest import run_fairseq
from fairseq_resid.__main__ import main
from fairseq_resid.cli import children
from support.process_groups import start_two


def _run(words: list[str], output: IO[bytes] | None = None, *_: Any, **__: Any) -> int:
    if output is None:  # PYTHON -m fairseq_resid COMMAND
        return main(words[3:])
    command = Path(words[0]).name
    workers = [] if command == "fairseq-preprocess" else ["--num-workers", "0"]
    found = run_fairseq(command, [*words[1:], *workers])
    output.write(found.output.encode())
    return found.code


@contextlib.contextmanager
def children_here(*modules: types.ModuleType) -> Iterator[None]:
    """Let these modules of the package run their commands in this process, without worker processes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "children", types.SimpleNamespace(**{**vars(children), "run": _run}))
        yield


def commands_here() -> contextlib.AbstractContextManager[None]:
    """Run fairseq-train and the analysis of a study in this process."""
    from fairseq_resid.runs import launch
    from fairseq_resid.study import work

    return children_here(launch, work)


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
    """Return the content of run.json."""
    both = start_two(recipe, run, *flags)
    outputs = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    assert record["finished"]
    return record
