"""The plots of one analysis, each in its own file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..scoring import kinds
from ..scoring.task import article
from .results import BINS, OFF, Analysis, Site
from .style import COLOURS, KINDS, MARKS, figure, letter, plain

MOST_LINES = 6  # coefficients per plot; analysis.json contains all of them

Value = Callable[[Site], float | None]


def stacks(analysis: Analysis) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in analysis.sites.values():
        found.setdefault(site.stack, []).append(site)
    return found


def names(analysis: Analysis, having: str) -> list[str]:
    """Return the coefficients to draw: at most MOST_LINES of those with the data `having`, a field of Coefficient."""
    every = (pair for site in analysis.sites.values() for pair in site.coefficients.items())
    return list(dict.fromkeys(name for name, found in every if getattr(found, having) not in (None, [])))[:MOST_LINES]


def over_layers(
    row: Iterable[Any], analysis: Analysis, value: Value, start: Value | None = None, spread: Value | None = None
) -> None:
    """Draw a quantity over the layers, with one axis per stack, named in its title, and a line per kind of sublayer.

    start: the quantity in the initial model, drawn dashed; spread: half the width of a band around the line
    """
    for axis, (stack, sites) in zip(row, stacks(analysis).items(), strict=True):
        for kind in dict.fromkeys(site.kind for site in sites):
            number = list(KINDS).index(kind) if kind in KINDS else len(KINDS)
            same = [site for site in sites if site.kind == kind]

            def points(of: Value, same: list[Site] = same) -> tuple[list[int], list[float]]:
                known = [(site.layer + 1, found) for site in same if (found := of(site)) is not None]
                return [x for x, _ in known], [y for _, y in known]

            x, y = points(value)
            label = plain(KINDS.get(kind, kind)) if x else "_"
            axis.plot(x, y, color=COLOURS[number], marker=MARKS[number], ms=4, label=label)
            if start is not None:
                axis.plot(*points(start), color=COLOURS[number], linestyle="--", linewidth=0.8, label="_")
            if spread is not None:
                low, high = ([m + sign * d for m, d in zip(y, points(spread)[1], strict=True)] for sign in (-1, 1))
                axis.fill_between(x, low, high, color=COLOURS[number], alpha=0.12, linewidth=0)
        axis.set_title(plain(stack))
        axis.set_xlabel("block" if any(site.kind == "conv" for site in sites) else "layer")
        axis.xaxis.get_major_locator().set_params(integer=True)


def named(row: Any, label: str) -> None:
    """Add a quantity to the titles of a row of axes, and to its first axis."""
    for axis in row:
        axis.set_title(f"{axis.get_title()}: {label}")
    row[0].set_ylabel(label)


def coefficients(analysis: Analysis, path: Path) -> None:
    """Draw the mean and spread of each coefficient over the layers, as in the SAS paper, figure 3.

    Dashed lines show the initial model.
    """
    if not (shown := names(analysis, "mean")):
        return
    with figure(path, len(shown), len(stacks(analysis)), sharex="col", sharey="row", legend=4) as axes:
        for row, name in zip(axes, shown, strict=True):
            mean, start, spread = (
                lambda site, name=name, part=part: getattr(site.coefficients.get(name), part, None)
                for part in ("mean", "start", "sd")
            )
            over_layers(row, analysis, mean, start, spread)
            named(row, letter(name))


def histograms(analysis: Analysis, path: Path) -> None:
    """Draw the distribution of each coefficient over [0, 1] at each site.

    Darker means more frequent. Each row shows the shares of the values in [0, 1], which sum to 1.
    """
    if not (shown := names(analysis, "histogram")):
        return
    rows = list(analysis.sites)
    with figure(path, 1, len(shown), (7.0, 0.8 + 0.14 * len(rows)), sharey=True) as axes:
        for axis, name in zip(axes[0], shown, strict=True):
            table = []
            for site in analysis.sites.values():
                counts = site.coefficients[name].histogram if name in site.coefficients else [0] * BINS
                table.append([count / max(1, sum(counts)) for count in counts])
            shape = {"aspect": "auto", "extent": (0, 1, len(rows), 0), "interpolation": "nearest"}
            axis.imshow(table, cmap="Blues", vmin=0, **shape)
            axis.set_title(letter(name))
            axis.set_xlabel("value")
            axis.set_yticks([number + 0.5 for number in range(len(rows))], [plain(row) for row in rows], fontsize=6)
            axis.grid(False)


def norms(analysis: Analysis, path: Path) -> None:
    """Draw the norms of the shortcut, the branch and the output, and the branch's share of the output."""
    quantities: dict[str, Value] = {
        "|shortcut|": lambda site: site.shortcut,
        "|branch F|": lambda site: site.branch,
        "|output y|": lambda site: site.output,
        "|y − y without F| / |y|": lambda site: site.share,
    }
    shape = len(quantities), len(stacks(analysis)), (7.0, 1.9)
    with figure(path, *shape, sharex="col", sharey="row", legend=4) as axes:
        for row, (label, value) in zip(axes, quantities.items(), strict=True):
            over_layers(row, analysis, value)
            named(row, label)
        for axis in axes[-1]:
            axis.axhline(OFF, color="black", linewidth=0.6, linestyle=":")


def gradients(analysis: Analysis, path: Path) -> None:
    """Draw the gradient norm at each site's output, as in the SAS paper, figure 4, and the rSkip paper, figure 3.

    Dashed lines show the initial model.
    """
    if all(site.gradient is None for site in analysis.sites.values()):
        return
    with figure(path, 1, len(stacks(analysis)), sharey=True, legend=4) as axes:
        over_layers(axes[0], analysis, lambda site: site.gradient, lambda site: site.start_gradient)
        for axis in axes[0]:
            axis.set_yscale("log")
        axes[0][0].set_ylabel(f"|∂ NLL of {article(kinds.of_example(analysis.example).words.example)} / ∂y|")


def losses(analysis: Analysis, path: Path) -> None:
    """Draw the increase in NLL when the branch of one site is set to 0."""
    if all(site.nll_without is None for site in analysis.sites.values()):
        return
    with figure(path, 1, len(stacks(analysis)), sharey=True, legend=4) as axes:
        over_layers(
            axes[0], analysis, lambda site: None if site.nll_without is None else site.nll_without - analysis.nll
        )
        for axis in axes[0]:
            axis.axhline(0, color="black", linewidth=0.6)
        axes[0][0].set_ylabel("NLL increase without F, nats")


def places(analysis: Analysis, path: Path) -> None:
    """Draw coefficient means by position in the sentence and by token frequency, with one line per site."""
    if not (shown := names(analysis, "by_position")):
        return
    with figure(path, len(shown), 2, (7.0, 2.2), sharey="row", legend=4) as axes:
        for row, name in zip(axes, shown, strict=True):
            for number, (stack, sites) in enumerate(stacks(analysis).items()):
                colour = COLOURS[number % len(COLOURS)]
                for found in (site.coefficients[name] for site in sites if name in site.coefficients):
                    for axis, values in zip(row, (found.by_position, found.by_frequency), strict=True):
                        points = [(x + 1, y) for x, y in enumerate(values) if y is not None]
                        if points:
                            axis.plot(*zip(*points, strict=True), color=colour, alpha=0.5, linewidth=0.8)
                row[0].plot([], [], color=colour, label=plain(stack))
            row[0].set_ylabel(letter(name))
            row[0].set_xlabel("position in the sentence")
            row[1].set_xlabel("token frequency class (1 = most frequent)")


def learning(analysis: Analysis, path: Path) -> None:
    """Draw the means of position-independent coefficients during training (rSkip paper, figure 4)."""
    shown = list(dict.fromkeys(name for found in analysis.learning.values() for name in found))[:MOST_LINES]
    if not shown:
        return
    colours = {stack: COLOURS[number % len(COLOURS)] for number, stack in enumerate(stacks(analysis))}
    with figure(path, len(shown), 1, legend=4) as axes:
        for (axis,), name in zip(axes, shown, strict=True):
            for site, found in analysis.learning.items():
                if name in found:
                    colour = colours[analysis.sites[site].stack]
                    axis.plot(*zip(*found[name], strict=True), color=colour, linewidth=0.8, alpha=0.7)
            for stack, colour in colours.items():
                axis.plot([], [], color=colour, label=plain(stack))
            axis.set_xlabel("updates")
            axis.set_ylabel(letter(name))


PLOTS = (coefficients, histograms, places, learning, norms, gradients, losses)


def draw_analysis(analysis: Analysis, folder: Path) -> dict[str, Path]:
    """Write all plots for which the analysis has data; return their paths by name."""
    written = {}
    for plot in PLOTS:
        path = folder / f"{plot.__name__}.svg"
        path.unlink(missing_ok=True)  # from an earlier analysis
        plot(analysis, path)
        if path.exists():
            written[plot.__name__] = path
    return written
