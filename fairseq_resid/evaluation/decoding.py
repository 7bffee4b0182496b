"""Decoding with stock fairseq-generate, as a command that the user sees and can repeat."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ..commands import children
from ..folders.files import read_lines

# fairseq divides a score by len^lenpen, tensor2tensor by ((5 + len) / 6)^lenpen: the same 0.6 differs a little.
SETTINGS = {"beam": "4", "lenpen": "0.6", "max-len-a": "1", "max-len-b": "50", "max-tokens": "4096"}


class DecodingError(ValueError):
    """fairseq-generate failed, or did not translate every sentence."""


def command(data: Path, checkpoint: Path, subset: str, post_process: str | None, cpu: bool = False) -> list[str]:
    """Return the fairseq-generate command that translates DATA's `subset` with a checkpoint."""
    words = [children.program("fairseq-generate"), str(data), "--user-dir", children.user_dir()]
    words += ["--task", "translation", "--path", str(checkpoint)]
    words += ["--gen-subset", subset]
    words += [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
    words += ["--post-process", post_process] if post_process else []
    words += ["--cpu"] if cpu else []
    return words


def decode(words: list[str], log: Path, lock: int | None = None) -> None:
    """Run a fairseq-generate command with its output in `log`, its progress and messages on stderr as they come.

    Raises: DecodingError naming exit code and log where it fails.
    """
    children.show(words, f" > {shlex.quote(str(log))}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        code = children.run(words, output, lock)
    if code:
        raise DecodingError(f"fairseq-generate failed with exit code {code}; messages above, output in {log}")


def read_hypotheses(log: Path) -> list[str]:
    """Return the hypotheses with their pieces joined (the D- lines) of a fairseq-generate log in the order of the data.

    Raises: DecodingError naming the log where a sentence has no hypothesis or more than one.
    """
    found: dict[int, str] = {}
    for line in read_lines(log):
        if match := re.fullmatch(r"D-(\d+)\t[^\t]*\t(.*)", line, flags=re.DOTALL):
            number = int(match[1])
            if number in found:
                raise DecodingError(f"{log}: two hypotheses for sentence {number}")
            found[number] = match[2]
    missing = sorted(set(range(max(found, default=-1) + 1)) - found.keys())
    if missing:
        raise DecodingError(f"{log}: no hypothesis for sentence {missing[0]} ({len(missing)} such sentences)")
    return [found[number] for number in sorted(found)]
