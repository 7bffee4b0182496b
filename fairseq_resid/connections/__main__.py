"""python -m fairseq_resid.connections: print the table of structures, or insert it into the README."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import own_names
from .table import table, write


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fairseq_resid.connections", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table between the markers of this page")
    file = parser.parse_args().write
    if file is None:
        print(table(own_names()), end="")
        return 0
    try:
        write(file, own_names())
    except (OSError, ValueError) as error:
        parser.error(f"--write {file}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
