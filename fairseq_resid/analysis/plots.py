"""The plots of one analysis, each in its own file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..scoring import kinds
from ..scoring.task import article
from .results import BINS, OFF, Analysis, Site
from .style import COLOURS, KINDS, MARKS, figure, letter, plain

MOST_LINES = 6  # coefficients per plot; analysis.json contains all of them


def stacks(analysis: Analysis) -> dict[str, dict[str, Site]]:
    found: dict[str, dict[str, Site]] = {}
    for name, site in analysis.sites.items():
        found.setdefault(site.stack, {})[name] = site
    return found


def by_kind(sites: dict[str, Site]) -> dict[str, list[Site]]:
    """Return the sites of a stack by kind, each ordered by layer."""
    found: dict[str, list[Site]] = {}
    for site in sites.values():
        found.setdefault(site.kind, []).append(site)
    return found


def number_of(kind: str) -> int:
    """Return the index of a kind of sublayer, which determines its colour and marker in every plot."""
    return list(KINDS).index(kind) if kind in KINDS else len(KINDS)


def legend(axes: Any) -> None:
    """Put one legend for all lines below the panels."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    axes.flat[0].figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=4, fontsize=8)


def lines(axis: Any, sites: dict[str, Site], value: Callable[[Site], float | None], **style: Any) -> None:
    """Draw one quantity over the layers, with one line per kind of sublayer."""
    for kind, row in by_kind(sites).items():
        number = number_of(kind)
        points = [(site.layer + 1, y) for site in row if (y := value(site)) is not None]
        if points:
            settings = {
                "color": COLOURS[number],
                "marker": MARKS[number],
                "label": plain(KINDS.get(kind, kind)),
                "ms": 4,
            }
            settings |= style
            axis.plot(*zip(*points, strict=True), **settings)
    axis.set_xlabel("block" if "conv" in by_kind(sites) else "layer")
    axis.xaxis.get_major_locator().set_params(integer=True)


def names(analysis: Analysis) -> list[str]:
    return list(dict.fromkeys(name for site in analysis.sites.values() for name in site.coefficients))


def coefficients(analysis: Analysis, path: Path) -> None:
    """Draw the mean and spread of each coefficient over the layers, as in the SAS paper, figure 3.

    At most MOST_LINES coefficients are drawn. Dashed lines show the initial model.
    """
    shown, parts = names(analysis)[:MOST_LINES], stacks(analysis)
    with figure(path, len(shown), len(parts), sharex="col", sharey="row") as axes:
        for row, name in zip(axes, shown, strict=True):
            for axis, (stack, sites) in zip(row, parts.items(), strict=True):
                having = {key: site for key, site in sites.items() if name in site.coefficients}
                lines(axis, having, lambda site, name=name: site.coefficients[name].mean)  # type: ignore[misc]
                lines(
                    axis, having, lambda site, name=name: site.coefficients[name].start,  # type: ignore[misc]
                    linestyle="--", linewidth=0.8, marker="", label="_",
                )  # fmt: skip
                for kind, sublayers in by_kind(having).items():
                    spread = [(s.layer + 1, s.coefficients[name].mean, s.coefficients[name].sd) for s in sublayers]
                    x, mean, sd = zip(*spread, strict=True)
                    low, high = ([m + sign * d for m, d in zip(mean, sd, strict=True)] for sign in (-1, 1))
                    axis.fill_between(x, low, high, color=COLOURS[number_of(kind)], alpha=0.12, linewidth=0)
                axis.set_title(f"{plain(stack)}: {letter(name)}")
            row[0].set_ylabel(letter(name))
        legend(axes)


def histograms(analysis: Analysis, path: Path) -> None:
    """Draw the distribution of each coefficient over [0, 1] at each site.

    Darker means more frequent. Each row shows the shares of the values in [0, 1], which sum to 1.
    """
    shown = [name for name in names(analysis) if any(s.coefficients[name].histogram for s in having(analysis, name))]
    shown = shown[:MOST_LINES]
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


def having(analysis: Analysis, name: str) -> list[Site]:
    return [site for site in analysis.sites.values() if name in site.coefficients]


def norms(analysis: Analysis, path: Path) -> None:
    """Draw the norms of the shortcut, the branch and the output, and the branch's share of the output."""
    parts = stacks(analysis)
    quantities: list[tuple[str, Callable[[Site], float | None]]] = [
        ("|shortcut|", lambda site: site.shortcut),
        ("|branch F|", lambda site: site.branch),
        ("|output y|", lambda site: site.output),
        ("|y − y without F| / |y|", lambda site: site.share),
    ]
    with figure(path, len(quantities), len(parts), (7.0, 1.9), sharex="col", sharey="row") as axes:
        for row, (label, value) in zip(axes, quantities, strict=True):
            for axis, (stack, sites) in zip(row, parts.items(), strict=True):
                lines(axis, sites, value)
                axis.set_title(f"{plain(stack)}: {label}")
            row[0].set_ylabel(label)
        for axis in axes[-1]:
            axis.axhline(OFF, color="black", linewidth=0.6, linestyle=":")
        legend(axes)


def gradients(analysis: Analysis, path: Path) -> None:
    """Draw the gradient norm at each site's output, as in the SAS paper, figure 4, and the rSkip paper, figure 3.

    Dashed lines show the initial model.
    """
    parts = stacks(analysis)
    with figure(path, 1, len(parts), sharey=True) as axes:
        for axis, (stack, sites) in zip(axes[0], parts.items(), strict=True):
            lines(axis, sites, lambda site: site.gradient)
            lines(axis, sites, lambda site: site.start_gradient, linestyle="--", linewidth=0.8, marker="", label="_")
            axis.set_title(plain(stack))
            axis.set_yscale("log")
        axes[0][0].set_ylabel(f"|∂ NLL of {article(kinds.of_example(analysis.example).words.example)} / ∂y|")
        legend(axes)


def losses(analysis: Analysis, path: Path) -> None:
    """Draw the increase in NLL when the branch of one site is set to 0."""
    parts = stacks(analysis)
    with figure(path, 1, len(parts), sharey=True) as axes:
        for axis, (stack, sites) in zip(axes[0], parts.items(), strict=True):
            lines(axis, sites, lambda site: None if site.nll_without is None else site.nll_without - analysis.nll)
            axis.set_title(plain(stack))
            axis.axhline(0, color="black", linewidth=0.6)
        axes[0][0].set_ylabel("NLL increase without F, nats")
        legend(axes)


def places(analysis: Analysis, path: Path) -> None:
    """Draw coefficient means by position in the sentence and by token frequency, with one line per site."""
    shown = [name for name in names(analysis) if any(s.coefficients[name].by_position for s in having(analysis, name))]
    shown = shown[:MOST_LINES]
    with figure(path, len(shown), 2, (7.0, 2.2), sharey="row") as axes:
        for row, name in zip(axes, shown, strict=True):
            for number, (stack, sites) in enumerate(stacks(analysis).items()):
                for site in sites.values():
                    found = site.coefficients.get(name)
                    if found is None:
                        continue
                    for axis, values in zip(row, (found.by_position, found.by_frequency), strict=True):
                        points = [(x + 1, y) for x, y in enumerate(values) if y is not None]
                        if points:
                            colour = COLOURS[number % len(COLOURS)]
                            axis.plot(*zip(*points, strict=True), color=colour, alpha=0.5, linewidth=0.8)
                row[0].plot([], [], color=COLOURS[number % len(COLOURS)], label=plain(stack))
            row[0].set_ylabel(letter(name))
            row[0].set_xlabel("position in the sentence")
            row[1].set_xlabel("token frequency class (1 = most frequent)")
        legend(axes)


def learning(analysis: Analysis, path: Path) -> None:
    """Draw the means of position-independent coefficients during training (rSkip paper, figure 4)."""
    shown = list(dict.fromkeys(name for found in analysis.learning.values() for name in found))[:MOST_LINES]
    order = list(stacks(analysis))
    with figure(path, len(shown), 1) as axes:
        for (axis,), name in zip(axes, shown, strict=True):
            for site, found in analysis.learning.items():
                if name in found:
                    colour = COLOURS[order.index(analysis.sites[site].stack) % len(COLOURS)]
                    axis.plot(*zip(*found[name], strict=True), color=colour, linewidth=0.8, alpha=0.7)
            for number, stack in enumerate(order):
                axis.plot([], [], color=COLOURS[number % len(COLOURS)], label=plain(stack))
            axis.set_xlabel("updates")
            axis.set_ylabel(letter(name))
        legend(axes)


def draw_analysis(analysis: Analysis, folder: Path) -> dict[str, Path]:
    """Write all plots for which the analysis has data; return their paths by name."""
    plots: dict[str, tuple[Callable[[Analysis, Path], None], bool]] = {
        "coefficients": (coefficients, bool(names(analysis))),
        "histograms": (histograms, any(c.histogram for s in analysis.sites.values() for c in s.coefficients.values())),
        "places": (places, any(c.by_position for s in analysis.sites.values() for c in s.coefficients.values())),
        "learning": (learning, bool(analysis.learning)),
        "norms": (norms, True),
        "gradients": (gradients, any(site.gradient is not None for site in analysis.sites.values())),
        "losses": (losses, any(site.nll_without is not None for site in analysis.sites.values())),
    }
    written = {}
    for name, (plot, has_figures) in plots.items():
        path = folder / f"{name}.svg"
        if has_figures:
            plot(analysis, path)
            written[name] = path
        else:
            path.unlink(missing_ok=True)  # from an earlier analysis
    return written
