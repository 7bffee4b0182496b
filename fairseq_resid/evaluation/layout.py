"""A table with notes below it, for terminals, logs and Markdown, and the options of the commands that print one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..console import markdown as escaped
from ..console import printable
from ..data.text.bleu import TOKENIZERS

Rows = Sequence[Sequence[str]]
LEFT = 2  # columns of text: run and architecture


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", type=Path, help="data folder (default: the one named in the results)")
    add("--tokenize", choices=TOKENIZERS, help="score again with this tokeniser of sacrebleu (default: as evaluated)")
    add("--markdown", action="store_true", help="print Markdown")


def write_table(headings: Sequence[str], rows: Rows, notes: Sequence[str], as_markdown: bool) -> None:
    if as_markdown:
        print(markdown(headings, rows, notes), end="")
    else:
        show(headings, rows, notes, Console(highlight=False))


def markdown(headings: Sequence[str], rows: Rows, notes: Sequence[str], left: int = LEFT) -> str:
    """Return the table as Markdown; the first `left` columns are left-aligned text, and the others are numbers."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    written = [[escaped(cell, in_table=True) for cell in cells] for cells in rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, rule, *written))
    return table + "\n" + "  \n".join(map(escaped, notes)) + "\n"


def show(headings: Sequence[str], rows: Rows, notes: Sequence[str], console: Console) -> None:
    """Print the table without truncating cells.

    On a terminal, cells are wrapped to fit its width; elsewhere, the table is as wide as needed.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < LEFT else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    if not console.is_terminal:
        console.width = max(
            console.width, table.__rich_measure__(console, console.options.update(width=10_000)).maximum
        )
    console.print(table)
    for line in notes:
        console.print(Text(printable(line)), soft_wrap=True)
