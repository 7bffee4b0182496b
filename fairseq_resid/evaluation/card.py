"""A run on a page: data, command, hardware, scores with their signatures, log. To publish beside its checkpoints.

python -m fairseq_resid.evaluation.card RUN...
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..folders.run import Run


def read(path: Path) -> dict[str, Any] | None:
    """Return a JSON file of a run folder, None where there is none.

    Raises: ValueError naming the file where it is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ValueError(f"{path}: damaged: not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged: not an object")
    return found


def write(run: Run) -> str:
    """Return the card of an evaluated run as Markdown.

    Raises: ValueError where no subset was evaluated, or a file is damaged.
    """
    record = read(run.record) or {}
    found = {file.name: read(file) for file in sorted(run.path.glob("results*.json"), reverse=True)}
    subsets = [results for results in found.values() if results is not None]
    if not subsets:
        raise ValueError(f"{run.path}: no results.json: run scripts/evaluate.sh {run.path} first")
    try:
        return "\n".join([*facts(run, record, subsets[0]), "", *scores(subsets)]) + "\n"
    except (KeyError, TypeError, AttributeError) as error:
        files = ", ".join([run.record.name, *found])
        raise ValueError(f"{run.path}: one of {files} is damaged, or of another version: {error!r}") from None


def facts(run: Run, record: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """Return what was trained, on what, how and where, as a list."""
    plan, training = record.get("plan", {}), results["training"]
    sessions = record.get("sessions", [])
    seconds, speed = training["train_seconds"], training["tokens_per_second"]

    def each(texts: Sequence[str]) -> str:
        return "; then ".join(dict.fromkeys(text for text in texts if text))

    lines = {
        "architecture": f"`{results['architecture']}`, {results['parameters']:,} parameters",
        "data": f"{results['corpus']}, `{results['data']}`",
        "not as released": "; ".join(results.get("not_as_released", [])),
        "not verified": ", ".join(results.get("unverified", [])),
        "preparation": prepared(results.get("preparation", {})),
        "command": f"`{shlex.join(record['command'])}`" if record else "not recorded",
        "effective batch": f"{plan['effective batch']:,} {plan['unit']} on {plan['devices']}" if plan else "",
        "precision": plan.get("precision", ""),
        "seed": str(record.get("seed", "")),
        "hardware": each([machine(session["hardware"]) for session in sessions]) or "not recorded",
        "training": f"{training['num_updates'] or 0:,} updates"
        + (f", {timedelta(seconds=round(seconds))}, {speed:,.0f} target tokens/s" if seconds and speed else "")
        + ("" if record.get("finished", True) else ", not finished"),
        "sessions": each([session["started"] for session in sessions]),
        "versions": each(
            [", ".join(f"{name} {it}" for name, it in session["versions"].items()) for session in sessions]
        ),
        "commit": each([session["commit"] or "" for session in sessions]),
        "averaged": ", ".join(results["averaged_checkpoints"]),
        "decoding": ", ".join(f"{name} {value}" for name, value in results["decoding"].items()),
        "log": f"`{run.train_log}`" if run.train_log.is_file() else "",
    }
    return [f"## {run.name}", "", *(f"- {name}: {value}" for name, value in lines.items() if value)]


def prepared(settings: dict[str, Any]) -> str:
    """Return the settings that a data folder was made with, on a line."""
    named = ("name", "source", "target")  # they stand elsewhere
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name not in named and value is not None)


def machine(hardware: dict[str, Any]) -> str:
    """Return a machine on a line."""
    gpus = f"; {', '.join(hardware['gpus'])}" if hardware["gpus"] else ""
    return f"{hardware['cpu']}, {hardware['cores']} cores{gpus}"


def scores(subsets: Sequence[dict[str, Any]]) -> list[str]:
    """Return every score of every subset as a table."""
    lines = ["| set | score | average | last | signature |", "|---|---|---:|---:|---|"]
    for results in subsets:
        averaged, last = results["scores"]["averaged"], results["scores"]["last"]
        for label, score in averaged.items():
            numbers = f"{score['score']:.2f} | {last[label]['score']:.2f}"
            signature = score["signature"].replace("|", "\\|")
            lines.append(f"| {results['subset']}, {results['sentences']:,} | {label} | {numbers} | {signature} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the cards of runs; returns the exit code: 2 for a folder that is no evaluated run."""
    parser = argparse.ArgumentParser(prog="python -m fairseq_resid.evaluation.card", description="Print cards of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, after scripts/evaluate.sh")
    options = parser.parse_args(arguments)
    try:
        cards = [write(Run(path)) for path in options.runs]
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(cards), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
