"""cli/frame.py, quiet.py and __main__.py: behaviour that all commands share."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from fairseq_resid import __main__ as console
from fairseq_resid.cli import frame, quiet
from fairseq_resid.fairseq_patches import UserError

pytestmark = pytest.mark.once

Capture = pytest.CaptureFixture[str]


def command(work: Callable[[], int | None]) -> Callable[..., int]:
    @frame.command("try", "Try it.", again="resumes")
    def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int | None:
        parser.parse_args(argv)
        return work()

    return main


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("--flag 3:\n\twrong"), 2, "fairseq-resid try: error: --flag 3: wrong\n"),
        (UserError("--residual xskip: no"), 2, "fairseq-resid try: error: --residual xskip: no\n"),
        (ChildProcessError("fairseq-train failed"), 1, "fairseq-resid try: error: fairseq-train failed\n"),
        (KeyboardInterrupt(), 130, "fairseq-resid try: interrupted; the same command resumes\n"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(error: BaseException, code: int, said: str, capsys: Capture) -> None:
    assert command(raising(error))([]) == code
    assert capsys.readouterr().err == said


def test_signal_that_killed_a_child_is_an_interrupt(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        command(raising(SystemExit(128 + signal.SIGTERM)))([])
    assert end.value.code == 143 and "interrupted; the same command resumes" in capsys.readouterr().err


def chatter() -> int:
    logging.getLogger("fairseq.tasks.translation").info("[en] dictionary: 804 types")
    logging.getLogger("fairseq.tasks.translation").error("an error")
    logging.getLogger("elsewhere").warning("a warning of another")
    warnings.warn("torch.cuda.amp.autocast is deprecated", FutureWarning, stacklevel=1)
    warnings.warn("something new", UserWarning, stacklevel=1)
    return int(quiet.is_verbose())


def warned(*flags: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        command(chatter)([*flags])
    return [str(warning.message) for warning in caught]


def test_library_logs_are_silenced_only_inside_the_block(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSEQ_RESID_VERBOSE", "")
    caplog.set_level(logging.INFO)
    assert warned() == ["something new"]
    assert [record.message for record in caplog.records] == ["an error", "a warning of another"]
    caplog.clear()
    assert len(warned("--verbose")) == 2 and len(caplog.records) == 3
    assert len(warned()) == 2


def test_console_command_lists_every_command(capsys: Capture) -> None:
    for module, _ in console.COMMANDS.values():
        assert callable(import_module(f"fairseq_resid.{module}").main)
    assert console.main([]) == 0 and set(console.COMMANDS) <= set(capsys.readouterr().out.split())


CLOSED = """
import os, sys
from fairseq_resid.cli import frame
@frame.command("closed", "")
def main(parser, argv):
    print("out"); print("err", file=sys.stderr)
    with open("made", "w") as file:
        assert file.fileno() > 2, file.fileno()
        os.system("echo into another file")
    return 0
sys.exit(main([]))
"""


def test_closed_streams_neither_fail_nor_corrupt_files(tmp_path: Path) -> None:
    script = tmp_path / "closed.py"
    script.write_text(CLOSED)
    line = f'"{sys.executable}" "{script}" <&- >&- 2>&-'
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made").read_text() == ""
