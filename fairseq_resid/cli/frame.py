"""The common frame of all commands: parser, error messages, exit codes, interrupts, --verbose.

exit code   0 success
            1 a program that the command runs has failed, or a result is below the required minimum
            2 bad input: one line on stderr describes it
            3 a package is missing: one line on stderr says what to install
            128 + N interrupted by signal N; 141 if the reader of its output has exited
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ..console import further_lines, say
from . import quiet

Work = Callable[[argparse.ArgumentParser, Sequence[str] | None], int | None]


class MissingPackage(ValueError):
    """A package is missing, or this Python is too old for it; the message says what to install."""


def command(name: str, description: str, again: str = "", **settings: Any) -> Callable[[Work], Callable[..., int]]:
    """Make `work(parser, argv)` the main function of a command line: `main(argv)`, which returns the exit code.

    name: the command's name after `fairseq-resid`
    again: the effect of running the same command again after an interrupt, such as "resumes"
    settings: keyword arguments of argparse.ArgumentParser
    """

    def decorate(work: Work) -> Callable[..., int]:
        if work.__module__ == "__main__" and (spec := sys.modules["__main__"].__spec__):
            print(f"python -m {spec.name}: removed in version 1.0; use fairseq-resid {name}", file=sys.stderr)
            sys.exit(2)

        @functools.wraps(work)
        def main(argv: Sequence[str] | None = None) -> int:
            parser = argparse.ArgumentParser(prog=f"fairseq-resid {name}", description=description, **settings)
            parser.add_argument(
                "--verbose",
                action="store_true",
                default=argparse.SUPPRESS,
                help="show all output of fairseq and other libraries, and tracebacks",
            )
            if "--verbose" in (sys.argv if argv is None else argv):
                os.environ[quiet.VARIABLE] = "1"
            try:
                open_streams()
                with quiet.libraries():
                    return work(parser, argv) or 0
            except KeyboardInterrupt:
                return _interrupted(parser.prog, again, 130)
            except BrokenPipeError:
                return reader_has_gone()
            except (ValueError, OSError) as error:
                if quiet.is_verbose():
                    traceback.print_exc()
                show_error(parser.prog, error)
                return 3 if isinstance(error, MissingPackage) else 1 if isinstance(error, ChildProcessError) else 2
            except SystemExit as end:  # last, because UserError is also a ValueError
                if isinstance(end.code, int) and end.code > 128:
                    _interrupted(parser.prog, again, end.code)
                raise

        return main

    return decorate


def integer(least: int) -> Callable[[str], int]:
    """Return an argparse type: an integer that is at least `least`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: must be an integer of at least {least}")
        return int(text)

    return parse


def open_streams() -> None:
    """Redirect a closed stdin, stdout or stderr to the null device.

    Otherwise the next opened file gets its descriptor, and subprocesses write into that file. `sys.stdin` stays None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # gets the lowest free number
            os.set_inheritable(number, True)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def reader_has_gone() -> int:
    """Return the exit code for a closed output pipe, and discard further output, which Python could not flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def show_error(prog: str, error: Exception) -> None:
    """Print an error as one line of a command, followed by its additional lines, such as the end of a log."""
    say(f"{prog}: error: {' '.join(str(error).split())}", *further_lines(error), file=sys.stderr)


def _interrupted(prog: str, again: str, code: int) -> int:
    say(f"{prog}: interrupted" + (f"; the same command {again}" if again else ""), file=sys.stderr)
    return code
