"""A table with notes below it, for terminals, logs and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..console import markdown as as_markdown
from ..console import printable

Rows = Sequence[Sequence[str]]


def markdown(headings: Sequence[str], rows: Rows, notes: Sequence[str], left: int) -> str:
    """Return the table as Markdown; the first `left` columns are left-aligned text, and the others are numbers."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    written = [[as_markdown(cell, in_table=True) for cell in cells] for cells in rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, rule, *written))
    return table + "\n" + "  \n".join(map(as_markdown, notes)) + "\n"


def show(headings: Sequence[str], rows: Rows, notes: Sequence[str], left: int, console: Console) -> None:
    """Print the table without truncating cells.

    On a terminal, cells are wrapped to fit its width; elsewhere, the table is as wide as needed.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < left else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    if not console.is_terminal:
        console.width = max(
            console.width, table.__rich_measure__(console, console.options.update(width=10_000)).maximum
        )
    console.print(table)
    for line in notes:
        console.print(Text(printable(line)), soft_wrap=True)
