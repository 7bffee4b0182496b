"""Analyse the model of a run: coefficients, norms, gradients and ablation of every site, as numbers and plots.

    fairseq-resid analyze RUN...

writes RUN/analysis/analysis.json (analysis/results.py) and its plots, RUN/analysis/*.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .. import records
from ..cli import frame
from ..console import say
from ..fairseq_patches.dictionaries import add_flag
from ..runs.run import Run
from . import plots
from .results import Analysis, read_analysis


def analysis_file(run: Run) -> Path:
    return run.file("analysis/analysis.json")


def remembered_analysis(run: Run) -> Analysis | None:
    try:
        return read_analysis(analysis_file(run))
    except (OSError, ValueError):
        return None


def summary(analysis: Analysis) -> list[str]:
    """Return the lines that the command prints about an analysis."""
    lines = [
        f"{analysis.structure}, {analysis.checkpoint}: NLL {analysis.nll:.3f} {analysis.amount}"
        + (f" ({analysis.start_nll:.3f} before training)" if analysis.start_nll else "")
    ]
    off = analysis.off()
    lines.append(f"sites with a switched-off branch: {', '.join(off)}" if off else "no site's branch is switched off")
    return lines + analysis.notes


@frame.command(
    "analyze",
    "Analyse every residual site of a run's model: coefficients, norms, the branch's share of the output, gradient "
    "norms, and the increase in NLL without each branch. Writes RUN/analysis/analysis.json and plots.",
    again="starts from scratch",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run `fairseq-resid analyze`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    add("--data", type=Path, help="data folder (default: the data that the run was trained on)")
    add("--subset", default="valid", metavar="NAME", help="subset of the data to read (default valid)")
    add(
        "--sentences",
        type=frame.integer(1),
        default=400,
        metavar="N",
        help="number of sentences or images, spread evenly over the subset (default 400)",
    )
    add(
        "--max-tokens",
        type=frame.integer(1),
        default=4096,
        metavar="N",
        help="padded positions per batch (default 4096)",
    )
    add("--checkpoint", metavar="FILE", help="a checkpoint in RUN (default: averaged.pt, or else checkpoint_last.pt)")
    add("--no-ablation", action="store_true", help="skip setting each branch to 0 in turn, the slowest step")
    add_flag(parser)
    add("--cpu", action="store_true", help="use the CPU even if a GPU is available")
    options = parser.parse_intermixed_args(argv)
    # fairseq is imported here, after frame.command has silenced its libraries.
    from .figures import analyze
    from .model import load_for_analysis

    failed = 0
    for path in options.runs:
        run = Run(path)
        try:
            source = run.checkpoint(options.checkpoint)
            found = remembered_analysis(run)
            asked = (options.data, options.subset, options.sentences, not options.no_ablation)
            if found is None or not found.is_of(source, *asked):
                loaded = load_for_analysis(path, options.data, options.checkpoint, options.cpu)
                found = analyze(loaded, options.subset, options.sentences, options.max_tokens, not options.no_ablation)
                analysis_file(run).parent.mkdir(exist_ok=True)
                records.write(analysis_file(run), replace(found, is_own_data=options.data is None))
            else:
                say(f"{analysis_file(run)}: made from the same checkpoint with the same settings, reused")
        except (ValueError, OSError) as error:  # continue with the other runs
            if len(options.runs) == 1:
                raise
            failed += 1
            frame.show_error(parser.prog, error)
            continue
        written = plots.draw_analysis(found, analysis_file(run).parent)
        for line in summary(found):
            say(f"{path}: {line}")
        say(f"{analysis_file(run).parent}: analysis.json, {', '.join(plot.name for plot in written.values())}")
    return 2 if failed else 0
