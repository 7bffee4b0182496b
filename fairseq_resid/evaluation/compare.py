"""Whether one run is better than another: paired significance tests by sacrebleu, and the spread over seeds.

    fairseq-resid compare BASELINE RUN [RUN...] [--model averaged|last] [--subset test] [--markdown]

Every run is tested against the first one, on the hypotheses that fairseq-resid evaluate left. p is the chance of so
large a difference between two systems that are equally good: by paired bootstrap (1,000 resamples) and by approximate
randomisation (10,000 trials). Runs whose commands differ only by --seed form a group: mean ± standard deviation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import records
from ..cli import frame
from ..data.text.folder import Corpus
from ..fairseq_patches import load_checkpoint
from ..files import read_lines
from ..runs.run import EVALUATE, Record, Results, Run
from ..runs.trained_on import find_data
from ..runs.training_command import TrainingCommand
from . import images, layout, scoring

HEADINGS = ("run", "architecture", "BLEU", "difference", "95% interval", "p bootstrap", "p randomisation")
LEFT = 2  # columns of text
TOLERANCE = 0.001  # results.json holds four decimals
# Of a training command: what two runs of one setting have each for itself.
OWN_FLAGS = ("--seed", "--save-dir", "--log-file", "--user-dir")


@dataclass(frozen=True)
class Candidate:
    """One evaluated run: its results, the hypotheses of one of its models, and the references."""

    path: Path
    results: Results
    hypotheses: list[str]
    references: list[str]
    tokenize: str
    setting: str
    seed: str

    @property
    def name(self) -> str:
        return Run(self.path).name


def read(path: Path, model: str, subset: str, data: Path | None) -> Candidate:
    """Read what fairseq-resid evaluate left in a run folder.

    Raises: ValueError or FileNotFoundError naming the file that is missing, damaged, or not of these results.
    """
    run = Run(path)
    results = run.read_results(subset)
    if results.bleu is None:
        raise ValueError(f"{run.results(subset)}: of an image model")
    expected = float(getattr(results.bleu, model))
    corpus = Corpus.read(data or data_of(run, results))
    hypotheses = read_lines(run.decode / f"{subset}.{model}.hyp")
    references = read_lines(corpus.reference(subset))
    score = scoring.bleu(hypotheses, references, corpus.tokenize)
    if abs(score.value - expected) > TOLERANCE or score.signature != results.signature:
        text = run.decode / f"{subset}.{model}.hyp"
        raise ValueError(
            f"{run.results(subset)}: says BLEU {expected:.2f} {results.signature}, but {text} has {score.value:.2f} "
            f"{score.signature} against {corpus.reference(subset)}: run {EVALUATE} {path} again"
        )
    return Candidate(path, results, hypotheses, references, corpus.tokenize, *training(run))


def data_of(run: Run, results: Results) -> Path:
    """Return the data folder of a run's results; if they name it from another folder, as evaluation finds it."""
    named = Path(results.data)
    return named if named.is_dir() or not run.last.is_file() else find_data(run, load_checkpoint(run.last))


def comparable(results: Results, model: str) -> dict[str, object]:
    """Return what two results must have in common to be compared, in a user's words."""
    facts: dict[str, object] = {
        "corpus": results.corpus,
        "test set": results.subset,
        "sentences": results.sentences,
        "BLEU": results.signature,
        "decoding": results.decoding,
    }
    return {**facts, "averaged checkpoints": len(results.averaged_checkpoints)} if model == "averaged" else facts


def training(run: Run) -> tuple[str, str]:
    """Return a training's command without the flags that differ between seeds, and its seed.

    If no command is known, the folder stands for it.
    """
    record = records.remembered(run.record, Record)
    if record is None:
        return str(run.path.resolve()), ""
    command = TrainingCommand.parse(record.command)
    return json.dumps(command.without(OWN_FLAGS).argv), command.value("--seed", "1")


def check(candidates: Sequence[Candidate], model: str) -> None:
    """Raise ValueError naming both runs and what differs if two scores cannot be compared."""
    first = candidates[0]
    for other in candidates[1:]:
        mine, theirs = comparable(first.results, model), comparable(other.results, model)
        for what in mine:
            if mine[what] != theirs[what]:
                raise ValueError(
                    f"{first.path} and {other.path} cannot be compared: {what} is {mine[what]} in the one and "
                    f"{theirs[what]} in the other"
                )
        if first.references != other.references:
            digests = [hashlib.sha256("\n".join(it.references).encode()).hexdigest()[:12] for it in (first, other)]
            raise ValueError(
                f"{first.path} and {other.path} cannot be compared: their reference texts differ "
                f"(sha256 {digests[0]}..., {digests[1]}...)"
            )


def significance(candidates: Sequence[Candidate]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return a row for every run, tested against the first, and the signatures of both tests."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [(str(it.path), it.hypotheses) for it in candidates]
    references = [candidates[0].references]
    tokenize = candidates[0].tokenize
    tested: dict[str, list[Any]] = {}
    signatures = []
    for kind in ("bs", "ar"):
        metric = BLEU(tokenize=tokenize, force=tokenize == "none")
        signature, scores = PairedTest(systems, {"BLEU": metric}, references, test_type=kind)()
        tested[kind] = list(scores["BLEU"])
        signatures.append(f"BLEU {signature['BLEU'].format()}")
    rows: list[tuple[str, ...]] = []
    for candidate, bootstrap, randomisation in zip(candidates, tested["bs"], tested["ar"], strict=True):
        tests = ("", "baseline", "baseline")
        if rows:
            difference = f"{bootstrap.score - tested['bs'][0].score:+.2f}"
            tests = (difference, f"{bootstrap.p_value:.4f}", f"{randomisation.p_value:.4f}")
            if candidate.hypotheses == candidates[0].hypotheses:
                # No resample differs, and sacrebleu counts how many differ more than the whole: 1 of 1,001.
                tests = (difference, "1.0000", "1.0000")
        interval = f"{bootstrap.mean:.2f} ± {bootstrap.ci:.2f}"
        architecture = str(candidate.results.architecture)
        rows.append((candidate.name, architecture, f"{bootstrap.score:.2f}", tests[0], interval, *tests[1:]))
    return rows, signatures


@dataclass(frozen=True)
class Seed:
    """One run of a setting: what it is called, its seed, its score."""

    name: str
    architecture: str
    setting: str
    seed: str
    score: float


def by_setting(runs: Sequence[Seed], spread: Callable[[list[float]], str]) -> list[str]:
    """Return a line for every setting that was run with several seeds; spread: what is said of their scores."""
    groups: dict[str, list[Seed]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    lines = []
    for group in groups.values():
        names = ", ".join(run.name for run in group)
        if len({run.seed for run in group}) < len(group):
            lines.append(f"{names}: the same settings, and some have the same seed: there is no spread over seeds")
        elif len(group) > 1:
            said = spread([run.score for run in group])
            lines.append(f"{group[0].architecture}, {len(group)} seeds ({names}): {said}")
    return lines


def seeds(candidates: Sequence[Candidate], model: str) -> list[str]:
    """Return a line for every setting of translation runs that was run with several seeds."""

    def spread(scores: list[float]) -> str:
        return f"BLEU {statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"

    return by_setting(
        [
            Seed(one.name, one.results.architecture, one.setting, one.seed, float(getattr(one.results.bleu, model)))
            for one in candidates
        ],
        spread,
    )


def image_seeds(paths: Sequence[Path], subset: str) -> list[str]:
    """Return a line for every setting of image runs that was run with several seeds."""
    runs = []
    for run in map(Run, paths):
        found = run.read_results(subset)
        score = images.score_of(run, found, images.ERROR)
        runs.append(Seed(run.name, f"{found.architecture} {subset}", *training(run), score))
    return by_setting(runs, lambda errors: f"error {images.over_runs(errors)}")


@frame.command(
    "compare",
    "Test every run against the first by paired bootstrap and approximate randomisation (sacrebleu), on what "
    f"{EVALUATE} left. Runs that differ only by their seed get a line with mean ± standard deviation.",
)
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    """Run `fairseq-resid compare`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="evaluated run folders; the first is the baseline")
    add(
        "--model",
        choices=("averaged", "last"),
        default="averaged",
        help="whose translations (default averaged); of images always the last model",
    )
    add("--subset", default="test", help="the part of the data (default test)")
    add("--data", type=Path, help="the data folder (default: the one named in the results)")
    add("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(argv)
    if len(options.runs) < 2:
        parser.error(f"{len(options.runs)} run: two or more are needed to compare")
    if len({path.resolve() for path in options.runs}) < len(options.runs):
        parser.error("the same run is named twice")
    headings, rows, notes = compared(options.runs, options.model, options.subset, options.data)
    if options.markdown:
        print(layout.markdown(headings, rows, notes, LEFT), end="")
    else:
        layout.show(headings, rows, notes, LEFT, Console(highlight=False))


def compared(
    paths: Sequence[Path], model: str, subset: str, data: Path | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Return headings, rows and notes of evaluated runs, the first of which is the baseline.

    Raises: ValueError or FileNotFoundError naming the runs that cannot be compared, or the file that is damaged.
    """
    kinds = {Run(path).read_results(subset).bleu is None: path for path in paths}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[True]} and {kinds[False]} cannot be compared: the one is of images, the other of text"
        )
    if True in kinds:
        rows, notes = images.compared(paths, subset)
        return images.HEADINGS, rows, [*notes, *image_seeds(paths, subset)]
    candidates = [read(path, model, subset, data) for path in paths]
    check(candidates, model)
    rows, signatures = significance(candidates)
    results = candidates[0].results
    return HEADINGS, rows, [f"{results.corpus} {results.subset}, {model}", *signatures, *seeds(candidates, model)]
