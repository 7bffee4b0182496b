"""From a run folder to RUN/analysis: what every site of its model learned, as figures and as plots.

    fairseq-resid analyze RUN...

analysis.json holds all figures (analysis/results.py), *.svg are its plots.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import records
from ..cli import frame
from ..foreign import say
from ..runs.run import FileState, Run
from . import plots
from .results import Analysis, read_analysis


def analysis_file(run: Run) -> Path:
    """Return the path of a run's analysis."""
    return run.path / "analysis" / "analysis.json"


def remembered_analysis(run: Run) -> Analysis | None:
    """Return a run's analysis; None for whatever reason it cannot be read."""
    try:
        return read_analysis(analysis_file(run))
    except (OSError, ValueError):
        return None


def summary(analysis: Analysis) -> list[str]:
    """Return what a user reads of it at once."""
    lines = [
        f"{analysis.structure}, {analysis.checkpoint}: NLL {analysis.nll:.3f} {analysis.amount}"
        + (f" ({analysis.start_nll:.3f} at the start)" if analysis.start_nll else "")
    ]
    off = analysis.off()
    lines.append(f"sites whose branch is switched off: {', '.join(off)}" if off else "no site's branch is switched off")
    return lines + analysis.notes


@frame.command(
    "analyze",
    "Say what every site of a run's model learned: coefficients, norms, the branch's share, gradient norms, what the "
    "model loses without each branch. Writes RUN/analysis/analysis.json and plots.",
    again="begins again",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run `fairseq-resid analyze`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    add("--data", type=Path, help="the data folder (default: the one that the run was trained on)")
    add("--subset", default="valid", metavar="NAME", help="the part of the data that is read (default valid)")
    add(
        "--sentences",
        type=int,
        default=400,
        metavar="N",
        help="how many, or images, spread evenly over it (default 400)",
    )
    add("--max-tokens", type=int, default=4096, metavar="N", help="padded positions of a batch (default 4096)")
    add("--checkpoint", metavar="FILE", help="a checkpoint in the run folder (default: averaged.pt, else the last)")
    add("--no-ablation", action="store_true", help="do not set each branch to 0 in turn, which takes longest")
    add("--cpu", action="store_true", help="stay on the CPU even if there is a GPU")
    options = parser.parse_intermixed_args(argv)
    for flag in ("sentences", "max_tokens"):
        if getattr(options, flag) < 1:
            parser.error(f"--{flag.replace('_', '-')} {getattr(options, flag)}: must be at least 1")
    # fairseq is imported here, where its libraries are kept quiet.
    from .figures import analyze
    from .model import load_for_analysis

    failed = 0
    for path in options.runs:
        run = Run(path)
        try:
            source = FileState.of(run.checkpoint(options.checkpoint))
            found = remembered_analysis(run)
            if found is None or not found.is_of(source, options.subset, options.sentences, not options.no_ablation):
                loaded = load_for_analysis(path, options.data, options.checkpoint, options.cpu)
                found = analyze(loaded, options.subset, options.sentences, options.max_tokens, not options.no_ablation)
                analysis_file(run).parent.mkdir(exist_ok=True)
                records.write(analysis_file(run), found)
            else:
                say(f"{analysis_file(run)}: of the same checkpoint with the same settings, kept")
        except (ValueError, OSError) as error:  # the other runs are analysed all the same
            if len(options.runs) == 1:
                raise
            failed += 1
            say(f"{parser.prog}: error: {error}", file=sys.stderr)
            continue
        written = plots.draw_analysis(found, analysis_file(run).parent)
        for line in summary(found):
            say(f"{path}: {line}")
        say(f"{analysis_file(run).parent}: analysis.json, {', '.join(plot.name for plot in written.values())}")
    return 2 if failed else 0
