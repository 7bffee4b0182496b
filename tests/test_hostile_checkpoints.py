"""Checkpoints that are made to do harm: nothing runs, nothing hangs, memory is bounded, one line names the file."""

from __future__ import annotations

import contextlib
import copyreg
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile
import pytest

from fairseq_resid import compat
from fairseq_resid.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
Command = Callable[..., Any]
Capture = pytest.CaptureFixture[str]
MOST_MIB = 70  # more than before the loads; for the healthy one, of 4 MiB, it is 16


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that appears where planted code has run."""
    file = tmp_path_factory.mktemp("marker") / "code-has-run"
    yield file
    assert not file.exists(), "planted code has run"


@pytest.fixture(scope="module")
def planted(sas_checkpoint: Path, marker: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of every kind, by name."""
    return hostile.write(tmp_path_factory.mktemp("hostile") / "planted", sas_checkpoint, f"touch {marker}")


@pytest.fixture(scope="module")
def outcomes(planted: dict[str, Path], sas_checkpoint: Path, marker: Path) -> dict[str, Any]:
    """What both loaders did with each, and with the healthy one."""
    names = {**planted, "healthy": sas_checkpoint}
    command = [sys.executable, hostile.__file__, ":".join(map(str, names.values()))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[str(file)] for name, file in names.items()}


# Of these a loader alone takes no harm; and weights that are mapped are looked at by whoever uses them.
HARMLESS = {
    ("bomb: a memo of four thousand million", "load_checkpoint"),
    ("weights: NaN", "load_checkpoint"),
    ("weights: infinite", "load_checkpoint"),
}


def test_no_loader_takes_what_is_made_to_do_harm(
    planted: dict[str, Path], outcomes: dict[str, Any], marker: Path, fault: Command
) -> None:
    wrong = []
    kinds = [name for name in planted if name not in hostile.MISFITS]
    for name in kinds:
        for loader, said in outcomes[name]["said"].items():
            is_named = str(planted[name]) in said and "\n" not in said and len(said) < 900
            if (name, loader) not in HARMLESS and (said.startswith(("loaded ", "died ")) or not is_named):
                wrong.append((name, loader, said[:300]))
        if outcomes[name]["grown"] > MOST_MIB:
            wrong.append((name, "took", f"{outcomes[name]['grown']:.0f} MiB"))
    assert not wrong, "\n".join(map(str, wrong))
    assert not marker.exists()
    assert set(outcomes["healthy"]["said"].values()) == {"loaded dict"}
    fault(
        f"hostile checkpoints of {len(kinds)} kinds (code, bombs, config, weights, other files), given to both loaders",
        2 * len(kinds),
        "no code ran; all that could do harm is refused by one line that names the file; at most "
        f"{max(outcomes[name]['grown'] for name in kinds):.0f} MiB of memory "
        f"(a healthy one: {outcomes['healthy']['grown']:.0f}), "
        f"{max(outcomes[name]['seconds'] for name in kinds):.1f} s",
    )


# --- the commands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A run folder of hostile checkpoints, and what else a command needs."""

    run: Path
    data: Path
    tools: dict[str, Command]

    @property
    def last(self) -> Path:
        return self.run / "checkpoint_last.pt"


Outcome = tuple[object, str]  # exit code, all that was said


def command_of(*words: object) -> Callable[[Place], Outcome]:
    """Return what runs a command of fairseq-resid; RUN, LAST, DATA and OUT stand for themselves."""

    def run(place: Place) -> Outcome:
        paths = {"RUN": place.run, "LAST": place.last, "DATA": place.data, "OUT": place.run / "out.pt"}
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code: object = main([str(paths.get(str(word), word)) for word in words])
            except SystemExit as end:  # python prints it, on one line
                code = end.code
                print(end.code, file=said)
        return code, said.getvalue()

    return run


def fairseq(name: str, *flags: object) -> Callable[[Place], Outcome]:
    def run(place: Place) -> Outcome:
        done = place.tools["cli"](name, place.data, "--path", place.last, *flags, check=False)
        return done.code, done.error + ("Traceback" if "Traceback" in done.output else "")

    return run


def resume(place: Place) -> Outcome:
    save = place.run.parent / f"{place.run.name}.resumed"
    flags = ["--arch", "transformer_sas_tiny", "--restore-file", place.last]
    done = place.tools["train"](save, *flags, check=False)
    assert not save.exists() or list(save.iterdir()) == []
    return done.code, done.error + ("Traceback" if "Traceback" in done.output else "")


def hub(place: Place) -> Outcome:
    from fairseq_resid.models import ResidualTransformerModel

    try:
        ResidualTransformerModel.from_pretrained(str(place.run), place.last.name, data_name_or_path=str(place.data))
    except compat.UserError as error:
        return 1, str(error)
    return 0, ""


COMMANDS: dict[str, Callable[[Place], Outcome]] = {
    "generate": fairseq("fairseq-generate"),
    "interactive": fairseq("fairseq-interactive", "--source-lang", "en", "--target-lang", "xx"),
    "resume": resume,
    "hub": hub,
    "average": command_of("average", "--inputs", "RUN", "--last", 2, "--output", "OUT"),
    "evaluate": command_of("evaluate", "RUN", "--data", "DATA", "--last", 1, "--subset", "test", "--cpu"),
    "analyze": command_of("analyze", "RUN", "--data", "DATA", "--no-ablation", "--cpu"),
    "translate": command_of("translate", "RUN", "--data", "DATA", "--cpu"),
}
# What averaging cannot see: the weights of files that are all alike.
PASSES = {("average", name) for name in hostile.MISFITS}
SAMPLE = ["code: os.system", "file: a named pipe", "weights: NaN", "misfit: another shape"]


def attack(place: Place, names: Sequence[str], planted: dict[str, Path], commands: Sequence[str]) -> int:
    """Give each command each file; return how often. The file is at every place where a command looks."""
    wrong = []
    for name in names:
        shutil.rmtree(place.run, ignore_errors=True)
        place.run.mkdir()
        # Moved, so that the message must name the place: a link would be followed.
        for file in ("checkpoint_last.pt", "checkpoint1.pt", "checkpoint2.pt"):
            source = planted[name]
            if source.is_fifo():
                os.mkfifo(place.run / file)
            elif source.is_dir() or source.is_symlink():
                (place.run / file).symlink_to(source)
            else:
                shutil.copyfile(source, place.run / file)
        before = sorted(place.run.rglob("*"))
        for command in commands:
            if (command, name) in PASSES:
                continue
            code, said = COMMANDS[command](place)
            lines = [line for line in said.splitlines() if "error" in line or str(place.run) in line]
            is_named = any(str(place.run / "checkpoint") in line for line in lines)
            if code in (0, None) or not is_named or "Traceback" in said or len(said) > 1500:
                wrong.append((command, name, code, said[-600:]))
            if added := [file for file in place.run.rglob("*") if file not in before and file.suffix != ".lock"]:
                wrong.append((command, name, "wrote", added))
    assert not wrong, "\n".join(map(str, wrong))
    return len(names) * len(commands) - sum((command, name) in PASSES for command in commands for name in names)


@pytest.fixture
def place(
    tmp_path: Path, corpus: Path, train: Command, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the red fox sees a king .\n")))
    copyreg.add_extension("os", "system", hostile.EXTENSION)
    yield Place(tmp_path / "run", corpus, {"train": train, "cli": cli})
    copyreg.remove_extension("os", "system", hostile.EXTENSION)


def test_every_command_refuses_some(place: Place, planted: dict[str, Path], sas_checkpoint: Path, marker: Path) -> None:
    attack(place, SAMPLE, planted, list(COMMANDS))
    assert not marker.exists()


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_all(
    command: str, place: Place, planted: dict[str, Path], marker: Path, fault: Command
) -> None:
    begun = time.monotonic()
    tried = attack(place, list(planted), planted, [command])
    assert not marker.exists()
    fault(
        f"hostile checkpoints of {len(planted)} kinds in a run folder, given to {command}",
        tried,
        "each ended in an error that names the file, no code ran, nothing was written; "
        f"{time.monotonic() - begun:.0f} s",
    )
