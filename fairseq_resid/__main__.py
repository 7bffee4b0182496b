"""The console command `fairseq-resid`, also `python -m fairseq_resid`: dispatches to the project's commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from .cli.frame import reader_has_gone
from .cli.machine import PACKAGE
from .version import __version__

# Command name: (module with its main(), description).
COMMANDS = {
    "prepare": ("data.text.prepare", "prepare a data folder from a known corpus or your own text"),
    "prepare-images": ("data.images.prepare_images", "prepare images: CIFAR-10, CIFAR-100, or one folder per class"),
    "prepare-captions": (
        "data.captions.prepare_captions",
        "prepare captions and region features, as of COCO",
    ),
    "train": ("runs.launch", "train with a recipe, or resume a training run"),
    "evaluate": ("evaluation.evaluate", "average the last checkpoints, decode and score"),
    "average": ("evaluation.averaging", "average checkpoints"),
    "translate": ("evaluation.translate", "translate raw text"),
    "export": ("export.export", "write a trained model for CTranslate2, ONNX Runtime or Hugging Face"),
    "compare": ("evaluation.compare", "test whether one run is better than another"),
    "table": ("evaluation.table", "print a table of evaluated runs"),
    "card": ("evaluation.card", "print the model card of an evaluated run"),
    "analyze": ("analysis.analyze", "show what each residual site of a model learned, as numbers and plots"),
    "study": ("study.study", "execute the missing runs of a study and write its results"),
    "report": ("report.report", "write an HTML report on several runs"),
    "curves": ("analysis.curves", "plot the training curves of several runs"),
    "attention": ("analysis.attention", "plot the attention of a model while it translates a sentence"),
}
USER_DIR = "user-dir"
# The structures only need torch, so a plain pip install omits the dependencies of the commands.
INSTALL = (
    'install the dependencies of the commands: pip install ".[fairseq]" in the project\'s folder, or scripts/setup.sh'
)


def usage() -> str:
    about = {name: what for name, (_, what) in COMMANDS.items()}
    about[USER_DIR] = 'print the folder for fairseq: fairseq-train --user-dir "$(fairseq-resid user-dir)" ...'
    return (
        "usage: fairseq-resid COMMAND ...    (options of a command: fairseq-resid COMMAND --help)\n\n"
        f"fairseq_resid {__version__}: residual structures for Transformers, on fairseq.\n\n"
        + "\n".join(f"  {name:16} {what}" for name, what in about.items())
    )


def is_missing(name: str, package: str) -> int:
    """Report that a command needs a missing package and how to install it; return the exit code."""
    print(f"fairseq-resid {name}: error: {package} is not installed; {INSTALL}", file=sys.stderr)
    return 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 if the command does not exist, 3 if a package is missing."""
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
        if find_spec("fairseq") is None:  # before importing torch, which warns if NumPy is missing
            return is_missing(name, "fairseq")
        try:
            code: int = import_module(f".{COMMANDS[name][0]}", __package__).main(rest)
        except KeyboardInterrupt:  # pressed while the command's libraries were imported
            return 130
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", __package__):
                raise
            return is_missing(name, package)
        return code
    else:
        print(f"fairseq-resid: error: {name}: no such command\n\n{usage()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
