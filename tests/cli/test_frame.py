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
from pathlib import Path

import pytest

from fairseq_resid import __main__ as console
from fairseq_resid.cli import children, frame, quiet
from fairseq_resid.console import further_lines
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


def test_closed_pipe_only_changes_the_exit_code() -> None:
    code = (
        "import sys\n"
        "from fairseq_resid.cli import frame\n"
        "@frame.command('try', '')\n"
        "def main(parser, argv):\n"
        "    for number in range(100_000): print(number)\n"
        "sys.exit(main([]))\n"
    )
    pipe = f'{sys.executable} -c "$CODE" | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", pipe], env={**os.environ, "CODE": code}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (141, "0\n", "")


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


def test_log_is_followed_to_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    taken: list[str] = []
    code = "import time\nfor n in range(3): print(n); time.sleep(0.05)"
    with log.open("ab") as file, children.followed(log, taken.append):
        assert children.run([sys.executable, "-c", code], file) == 0
        file.write(b"cut in the mid")
        file.flush()
    assert [line for line in taken if line] == ["0", "1", "2", "cut in the mid"]


@pytest.mark.parametrize(
    ("end", "message", "shown"),
    [
        ("fairseq_resid: error: a.pt: damaged", "failed: a.pt: damaged; its output is in {log}", []),

        ("an Error: of it", "failed with exit code 1; the last lines of {log}:", ["first", "an Error: of it"]),

    ],
)  # fmt: skip
def test_failure_shows_the_cause_or_the_end_of_the_log(
    end: str, message: str, shown: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(f"first\n{end}\n")
    error = children.failure("fairseq-train", 1, log, ChildProcessError)
    assert str(error) == f"fairseq-train {message.format(log=log)}"
    assert further_lines(error) == [f"    {line}" for line in shown]


def test_console_command_lists_every_command() -> None:
    from importlib import import_module

    for module, _ in console.COMMANDS.values():
        assert callable(import_module(f"fairseq_resid.{module}").main)
    done = subprocess.run([sys.executable, "-m", "fairseq_resid"], capture_output=True, text=True)
    assert done.returncode == 0 and set(console.COMMANDS) <= set(done.stdout.split())


def test_module_of_a_command_names_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "fairseq_resid.evaluation.card"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.endswith("use fairseq-resid card\n")


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
