"""The error message of a command that must fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def error_of(capsys: pytest.CaptureFixture[str], command: str, main: Callable[[], int]) -> str:
    """Run the function of a command, which must refuse its arguments, and return its one-line error."""
    capsys.readouterr()
    try:
        code = main()
    except SystemExit as end:  # raised by argparse
        code = int(end.code or 0)
    said = capsys.readouterr().err.splitlines()
    assert code == 2 and "Traceback" not in "\n".join(said)
    return said[-1].removeprefix(f"fairseq-resid {command}: error: ")
