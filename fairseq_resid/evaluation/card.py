"""The card of a run, to be published with its checkpoints: a page that shows the data, the command, the
hardware, all scores with their signatures, and the path of the log.

fairseq-resid card RUN...
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..cli import frame
from ..cli.progress import clock
from ..console import code, markdown
from ..runs.run import EVALUATE, Hardware, Results, Run, RunRecord
from ..runs.training_log import TrainingSummary
from ..scoring.task import NLL


def card_of(run: Run) -> str:
    """Return the card of an evaluated run as Markdown.

    Raises: ValueError if no subset has been evaluated, or if a file is damaged; FileNotFoundError if it is not a run.
    """
    run.require()
    files = run.files("results*.json")[::-1]
    subsets = [run.read_results(subset_of(file)) for file in files]
    if not subsets:
        raise ValueError(f"{run.path}: no results.json: run {EVALUATE} {run.path} first")
    return "\n".join([*facts(run, run.read_record(), subsets), "", *scores(subsets)]) + "\n"


def subset_of(file: Path) -> str:
    return file.name.removeprefix("results").removesuffix(".json").removeprefix(".") or "test"


def facts(run: Run, record: RunRecord | None, subsets: Sequence[Results]) -> list[str]:
    """Return a heading and a Markdown list with the facts about architecture, data, training and hardware.

    If the subsets were scored at different times or with different settings, each has lines of its own.
    """
    results = next((one for one in subsets if one.subset == "test"), subsets[0])
    training, plan = results.training, record.plan if record else {}
    sessions = record.sessions if record else []
    unfinished = ", not finished" if record and not record.finished else ""

    def each(texts: Sequence[str]) -> str:
        return markdown("; then ".join(dict.fromkeys(text for text in texts if text)))

    def by_subset(name: str, text: Callable[[Results], str]) -> dict[str, str]:
        found = {f"{name}, {markdown(one.subset)}": text(one) for one in subsets}
        return found if len(set(found.values())) > 1 else {name: text(results)}

    lines = {
        "architecture": f"{code(results.architecture)}, {results.parameters:,} parameters",
        "data": f"{markdown(results.corpus)}, {code(results.data)}",
        "not as released": markdown("; ".join(results.not_as_released)),
        "not verified": markdown(", ".join(results.unverified)),
        "preparation": markdown(prepared(results.preparation)),
        "command": code(shlex.join(record.command)) if record else "not recorded",
        "effective batch": markdown(f"{amount(plan['effective batch'])} {plan['unit']} on {plan['devices']}")
        if {"effective batch", "unit", "devices"} <= plan.keys()
        else "",
        "precision": markdown(plan.get("precision", "")),
        "seed": "" if record is None or record.seed is None else markdown(record.seed),
        "hardware": each([machine(session.hardware) for session in sessions]) or "not recorded",
        **by_subset("training", lambda one: trained(one.training) + unfinished),
        "gradient": f"exploded: {training.explosion}" if training.explosion else "",
        "sessions": each([session.started for session in sessions]),
        "changed on resume": each([change for session in sessions for change in session.changes]),
        "versions": each([", ".join(f"{name} {it}" for name, it in session.versions.items()) for session in sessions]),
        "commit": each([session.commit or "" for session in sessions]),
        **by_subset("averaged", lambda one: markdown(", ".join(one.averaged_checkpoints))),
        **by_subset(
            "decoding", lambda one: markdown(", ".join(f"{name} {value}" for name, value in one.decoding.items()))
        ),
        "log": code(run.train_log) if run.train_log.is_file() else "",
    }
    return [f"## {markdown(run.name)}", "", *(f"- {name}: {value}" for name, value in lines.items() if value)]


def trained(training: TrainingSummary) -> str:
    """Return the length, duration and speed of training."""
    seconds, speed, unit = training.train_seconds, training.tokens_per_second, markdown(training.unit)
    updates = "not recorded" if training.num_updates is None else f"{training.num_updates:,} updates"
    if training.num_updates is not None and training.started_at:
        updates += f", {training.num_updates - training.started_at:,} of them in this run"
    return updates + (f", {clock(seconds)}, {speed:,.0f} {unit}/s" if seconds and speed else "")


def amount(value: int | str) -> str:
    """Return an amount from a plan, with thousands separators if it is a number."""
    return f"{value:,}" if isinstance(value, int) else value


def prepared(settings: dict[str, Any]) -> str:
    named = ("name", "source", "target")  # shown elsewhere on the card
    given = {name: value for name, value in settings.items() if name not in named and value not in (None, "")}
    return ", ".join(f"{name} {value}" for name, value in given.items())


def machine(hardware: Hardware) -> str:
    gpus = f"; {', '.join(hardware.gpus)}" if hardware.gpus else ""
    return f"{hardware.cpu}, {hardware.cores} {'core' if hardware.cores == 1 else 'cores'}{gpus}"


def scores(subsets: Sequence[Results]) -> list[str]:
    names = {"averaged": "average"}

    def cell(text: str) -> str:
        return markdown(text, in_table=True)

    models = list(dict.fromkeys(name for results in subsets for name in results.scores)) or ["averaged", "last"]
    lines = [
        f"| set | score | {' | '.join(cell(names.get(name, name)) for name in models)} | signature |",
        f"|---|---|{'---:|' * len(models)}---|",
    ]
    for results in subsets:
        signatures: dict[str, str] = {}
        for by_label in results.scores.values():
            for label, score in by_label.items():
                signatures.setdefault(label, score.signature)
        for label, signature in signatures.items():
            digits = 4 if label == NLL else 2
            found = [results.scores.get(name, {}).get(label) for name in models]
            numbers = " | ".join("-" if score is None else f"{score.score:.{digits}f}" for score in found)
            subset = f"{results.subset} (trained on)" if results.is_training_data else results.subset
            lines.append(f"| {cell(subset)}, {results.sentences:,} | {cell(label)} | {numbers} | {cell(signature)} |")
    return lines


@frame.command("card", "Print the cards of evaluated runs: model, data, training and every score.")
def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=f"a run folder that {EVALUATE} has scored")
    options = parser.parse_args(argv)
    print("\n".join([card_of(Run(path)) for path in options.runs]), end="")
