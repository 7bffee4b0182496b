"""The style of all plots, and `figure`, which draws each of them: a colour-blind-safe palette, the papers' letters."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import replacing

# Okabe and Ito 2008, ordered so that neighbours also differ in lightness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
KINDS = {
    "self_attn": "self-attention",
    "encoder_attn": "encoder attention",
    "ffn": "feed-forward",
    "conv": "convolution",
}
LETTERS = {"alpha": "α", "beta": "β", "gamma": "γ", "ratio": "effective ratio of x to F", "w": "w"}
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib and contains the Greek letters
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "fairseq_resid",  # makes the files reproducible
}
HASHED_ID = re.compile(r"\b[mp][0-9a-f]{10}\b")


def plain(name: str) -> str:
    """Return a user-supplied name as a plot label.

    Without escaping, matplotlib would read text between two $ as a formula and omit names that start with _ from the
    legend.
    """
    return ("\u200b" if name.startswith("_") else "") + name.replace("$", r"\$")


def letter(coefficient: str) -> str:
    """Return the label of a coefficient as in the papers: α for alpha, α[2] for alpha[2]."""
    name, bracket, rest = coefficient.partition("[")
    return plain(LETTERS.get(name, name) + bracket + rest)


def numbered(svg: str) -> str:
    """Number the ids of an SVG in order: matplotlib hashes coordinates, whose last digits depend on the CPU."""
    ids = {name: f"{name[0]}{number}" for number, name in enumerate(dict.fromkeys(HASHED_ID.findall(svg)))}
    return HASHED_ID.sub(lambda found: ids[found[0]], svg)


@contextmanager
def figure(
    path: Path,
    rows: int = 1,
    columns: int = 1,
    size: tuple[float, float] = (7.0, 2.6),
    panels: int | None = None,
    legend: int = 0,
    **more: Any,
) -> Iterator[Any]:
    """Yield the (rows, columns) axes of a figure, which is then written to `path` (svg, png or pdf) atomically.

    size: width and height of one row, in inches; panels: number of axes in use, by default all; the others are hidden
    legend: columns of a legend below the axes, with one entry for each label; 0 for no legend
    more: arguments of pyplot.subplots
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # otherwise it logs every font
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(SETTINGS):
        drawn, axes = pyplot.subplots(rows, columns, figsize=(size[0], size[1] * rows), squeeze=False, **more)
        try:
            for axis in axes.flat[panels:] if panels else ():
                axis.set_visible(False)
            yield axes
            if legend:
                found: dict[str, Any] = {}
                for axis in axes.flat:
                    for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                        found.setdefault(label, handle)
                drawn.legend(found.values(), found.keys(), loc="outside lower center", ncols=legend, fontsize=8)
            # Fix the layout and round the positions, because the solver's last digits differ between processes.
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")
            for axis in drawn.axes:
                axis.set_position([round(place, 4) for place in axis.get_position(original=True).bounds])
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"Date": None} if path.suffix == ".svg" else None
            with replacing(path) as partial:
                drawn.savefig(partial, format=path.suffix[1:], metadata=metadata)
                if path.suffix == ".svg":
                    partial.write_text(numbered(partial.read_text(encoding="utf-8")), encoding="utf-8")
        finally:
            pyplot.close(drawn)
