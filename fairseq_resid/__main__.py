"""The console command `fairseq-resid`, also `python -m fairseq_resid`: a table of the project's commands."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from .cli.frame import reader_has_gone
from .cli.machine import PACKAGE
from .version import __version__

# Name: the module whose main() it is, and what it does.
COMMANDS = {
    "prepare": ("data.text.prepare", "make a data folder: of a known corpus, of your own text, of the phrasebook"),
    "prepare-images": ("data.images.prepare", "make a data folder of images: CIFAR-10, CIFAR-100, a folder by class"),
    "train": ("runs.launch", "train by a recipe, or resume"),
    "evaluate": ("evaluation.evaluate", "average the last checkpoints, decode, score"),
    "average": ("evaluation.averaging", "average checkpoints"),
    "translate": ("evaluation.translate", "translate raw text"),
    "compare": ("evaluation.compare", "test whether one run is better than another"),
    "table": ("evaluation.table", "print a table of evaluated runs"),
    "card": ("evaluation.card", "print the card of an evaluated run"),
    "analyze": ("analysis.analyze", "say what every site of a model learned, as figures and plots"),
    "study": ("study.study", "run what is missing of a study of many runs, and say what it found"),
    "report": ("report.report", "write one HTML page of several runs"),
    "curves": ("analysis.curves", "draw the curves of several trainings in one plot"),
    "attention": ("analysis.attention", "draw where a model looks while it translates a sentence"),
    "baselines": ("evaluation.baselines", "BLEU of translators that learn nothing"),
}
USER_DIR = "user-dir"
# The structures need torch only, and pip installs no more without the extra.
INSTALL = """install what the commands need: pip install ".[fairseq]" in the project's folder, or scripts/setup.sh"""


def usage() -> str:
    """Return the help."""
    about = {name: what for name, (_, what) in COMMANDS.items()}
    about[USER_DIR] = 'print the folder for fairseq: fairseq-train --user-dir "$(fairseq-resid user-dir)" ...'
    lines = [f"  {name:14} {what}" for name, what in about.items()]
    return "\n".join(
        [
            "usage: fairseq-resid COMMAND ...    (fairseq-resid COMMAND --help says more)",
            "",
            f"fairseq_resid {__version__}: residual structures for Transformer translation models, on fairseq.",
            "",
            *lines,
        ]
    )


def is_missing(name: str, package: str) -> int:
    """Say that a command lacks a package and how to install it; returns the exit code."""
    print(f"fairseq-resid {name}: error: {package} is not installed; {INSTALL}", file=sys.stderr)
    return 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 2 if the command does not exist, 3 if a package is missing."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        try:
            print(usage(), flush=True)
        except BrokenPipeError:
            return reader_has_gone()
    elif name == "--version":
        print(__version__)
    elif name == USER_DIR:
        print(PACKAGE)
    elif name in COMMANDS:
        if find_spec("fairseq") is None:  # asked before torch is imported, which complains if NumPy is missing
            return is_missing(name, "fairseq")
        try:
            code: int = import_module(f".{COMMANDS[name][0]}", __package__).main(rest)
        except KeyboardInterrupt:  # while the command's libraries were imported
            return 130
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", __package__):
                raise
            return is_missing(name, package)
        return code
    else:
        near = difflib.get_close_matches(name, [*COMMANDS, USER_DIR], n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        print(f"fairseq-resid: error: {name}: no such command{meant}\n\n{usage()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
