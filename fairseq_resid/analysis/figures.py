"""Compute the analysis of one model: every site, before and after training, and with each branch removed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import connections
from ..cli.progress import Progress
from ..connections import ResidualConnection, sites
from ..fairseq_patches.loading import check_finite, load_checkpoint
from ..runs.made_from import FileState
from ..runs.run import NUMBERED
from ..runs.trained_on import is_trained_on, num_updates
from ..scoring import kinds
from ..scoring.loading import Loaded
from .model import choose_examples
from .observe import Moments, gradient_norms, nll_without, observe, settle_statistics
from .results import Analysis, Coefficient, Site

ONE = torch.Size((1, 1))  # a single position of one sentence


def learned(loaded: Loaded, notes: list[str]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the position-independent coefficients at each numbered checkpoint, in the format of Analysis.learning.

    Checkpoints that cannot be read, or that belong to another model, are skipped, with a note.
    """
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    model, run = loaded.initial(), loaded.run

    def fixed(site: ResidualConnection) -> dict[str, Tensor]:
        x = torch.zeros(*ONE, site.place.dim, device=loaded.device)
        with torch.no_grad():
            values = site.coefficients(site.enter(x), x)
        return {name: value for name, value in values.items() if not connections.is_positional(value, ONE)}

    having = {name: site for name, site in sites(model).items() if fixed(site)}
    for path in [*run.numbered("epoch"), *run.numbered("update")] if having else ():
        try:
            state = load_checkpoint(path)
            check_finite(state["model"], path)
            model.load_state_dict(state["model"])
        except (ValueError, SystemExit) as error:
            notes.append(f"skipped: {str(error).splitlines()[0]}")
            continue
        named = NUMBERED["update"].fullmatch(path.name)
        updates = num_updates(state) or (int(named[1]) if named else None)
        if updates is None:
            notes.append(f"skipped: {path}: its number of updates is unknown")
            continue
        for name, site in having.items():
            for label, value in fixed(site).items():
                for part, each in connections.components(label, value, ONE):
                    found.setdefault(name, {}).setdefault(part, []).append(
                        (updates, float(each.detach().float().mean()))
                    )
    return {name: {part: sorted(row) for part, row in rows.items()} for name, rows in found.items()}


def analyze(loaded: Loaded, subset: str, sentences: int, max_tokens: int, ablate: bool) -> Analysis:
    """Analyse one model on the given number of examples from a subset of its data."""
    notes: list[str] = []
    if file := loaded.started_from():
        notes.append(f"started from {file}; the values before training are those of a new model")
    task = kinds.of_checkpoint(loaded.cfg)
    chosen = choose_examples(loaded, subset, sentences, notes)
    model, initial = loaded.model, loaded.initial()
    everything = sites(model)
    if not everything:
        raise ValueError(f"{loaded.run.path}: the network has no residual sites to analyse")
    passes = 4 + len(everything) * ablate

    def text() -> Any:
        return task.batches(loaded, subset, chosen, max_tokens)

    settle_statistics(initial, text())
    with Progress(f"{loaded.run.path}: reading {len(chosen):,} {task.words.examples}", passes, "times") as progress:
        found, nll, tokens = observe(model, text())
        progress.advance(1)
        start, start_nll, _ = observe(initial, text())
        progress.advance(1)
        gradients = gradient_norms(model, text())
        progress.advance(1)
        start_gradients = gradient_norms(initial, text())
        progress.advance(1)
        without: dict[str, float] = {}
        for name, site in everything.items() if ablate else ():
            without[name] = nll_without(model, site, text())
            progress.advance(1)

    def coefficient(site: str, name: str, moments: Moments) -> Coefficient:
        at_start = start.sites[site].coefficients.get(name)
        made = moments.coefficient()
        return made if at_start is None else replace(made, start=at_start.mean)

    figures = {
        name: Site(
            stack=site.place.stack,
            layer=site.place.layer,
            kind=site.place.kind,
            shortcut=found.sites[name].shortcut.mean,
            branch=found.sites[name].branch.mean,
            output=found.sites[name].output.mean,
            share=found.sites[name].share.mean,
            nll_without=without.get(name),
            gradient=gradients[name],
            start_gradient=start_gradients[name],
            coefficients={
                part: coefficient(name, part, moments) for part, moments in found.sites[name].coefficients.items()
            },
        )
        for name, site in everything.items()
    }
    residual = str(loaded.cfg.model.residual)
    if not any(site.coefficients for site in figures.values()):
        notes.append(f"the structure {residual} has no coefficients to show")
    return Analysis(
        run=loaded.run.name,
        checkpoint=loaded.checkpoint.name,
        updates=loaded.updates,
        structure=residual,
        options={name: getattr(loaded.cfg.model, name) for name in connections.options(residual)},
        data=str(loaded.data),
        subset=subset,
        sentences=len(chosen),
        is_whole=len(chosen) == int(task.fits(loaded, subset).sum()),
        tokens=tokens,
        nll=nll,
        start_nll=start_nll,
        sites=figures,
        made_from=FileState.of(loaded.checkpoint),
        learning=learned(loaded, notes),
        example=task.words.example,
        is_training_data=is_trained_on(loaded.cfg, subset),
        notes=notes,
    )
