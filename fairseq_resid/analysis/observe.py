"""Measure every residual site during forward and backward passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..connections import ResidualConnection, components, is_positional, sites
from ..scoring.task import Batch
from .results import BINS, Coefficient


@dataclass
class Moments:
    """Sums of one quantity over positions, in fp64, so that they hardly depend on the batch size."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    histogram: Tensor = field(default_factory=lambda: torch.zeros(BINS + 2, dtype=torch.float64))
    by: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # sums and counts
    is_positional: bool = True  # otherwise it is the same at all positions

    def add(self, values: Tensor) -> None:
        """Add every value of a tensor."""
        values = values.detach().double().cpu().flatten()
        self.count += values.numel()
        self.total += float(values.sum())
        self.squares += float(values.square().sum())
        # Bins: below 0, equal parts of [0, 1], above 1. The value 1 is in the last part.
        part = torch.floor(values * BINS).clamp(-1, BINS) + 1
        part[(values >= 1) & (values <= 1 + 1e-6)] = BINS
        self.histogram += torch.bincount(part.long(), minlength=BINS + 2)

    def add_by(self, what: str, values: Tensor, classes: Tensor, number: int) -> None:
        """Add one value per position to the sum for the class of that position."""
        sums, counts = self.by.setdefault(what, (torch.zeros(number).double(), torch.zeros(number).double()))
        classes = classes.cpu().clamp(max=number - 1)
        sums += torch.bincount(classes, weights=values.detach().double().cpu(), minlength=number)
        counts += torch.bincount(classes, minlength=number)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def sd(self) -> float:
        return math.sqrt(max(self.squares / self.count - self.mean**2, 0.0)) if self.count else math.nan

    def means_by(self, what: str) -> list[float | None]:
        sums, counts = self.by.get(what, (torch.zeros(0), torch.zeros(0)))
        return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]

    def coefficient(self) -> Coefficient:
        """Return the moments in the format of analysis.json."""
        if not self.is_positional:
            return Coefficient(self.mean, self.sd)
        below, *histogram, above = map(int, self.histogram.tolist())
        return Coefficient(
            self.mean, self.sd, None, histogram, below, above, self.means_by("position"), self.means_by("frequency")
        )


@dataclass
class Observed:
    """The measurements at one site."""

    shortcut: Moments = field(default_factory=Moments)
    branch: Moments = field(default_factory=Moments)
    output: Moments = field(default_factory=Moments)
    share: Moments = field(default_factory=Moments)
    coefficients: dict[str, Moments] = field(default_factory=dict)


class Observer:
    """Collects the measurements at every site of a model; run forward passes in `with observer.reading()`."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.sites = {name: Observed() for name in sites(model)}
        self.batch: Batch | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, site in sites(self.model).items():
                handle = site.register_forward_hook(partial(self.note, name))
                hooks.callback(handle.remove)
            yield

    def note(self, name: str, site: nn.Module, given: tuple[Tensor, Tensor], y: Tensor) -> None:
        assert isinstance(site, ResidualConnection) and self.batch is not None
        stack = site.place.stack
        mask = self.batch.kept(stack)
        state, f = given
        positions = f.shape[:-1]

        def kept(values: Tensor) -> Tensor:
            """Return one row for each position that is not padding."""
            return values.flatten(0, len(positions) - 1) if mask is None else values[mask]

        found = self.sites[name]
        end = getattr(getattr(self.model, stack, None), "layer_norm", None)
        without = site.combine(state, torch.zeros_like(f))
        x, output, rest = (kept(channels_of(end, each, site.dim)).float() for each in (state, y, without))
        found.shortcut.add(x.norm(dim=-1))
        found.branch.add(kept(f).float().norm(dim=-1))
        norm = output.norm(dim=-1)
        found.output.add(norm)
        found.share.add((output - rest).norm(dim=-1) / norm.clamp(min=1e-12))
        for label, value in site.coefficients(state, f).items():
            has_positions = is_positional(value, positions)
            for part, values in components(label, value, positions):
                moments = found.coefficients.setdefault(part, Moments(is_positional=has_positions))
                if not has_positions:
                    if not moments.count:
                        moments.add(values)
                    continue
                values = kept(values)
                moments.add(values)
                one = values.float().flatten(1).mean(1) if values.dim() > 1 else values.float()
                for what, (classes, number) in self.batch.classes(stack).items():
                    moments.add_by(what, one, classes, number)


def channels_of(end: Any, state: Tensor, dim: int) -> Tensor:
    """Return the C channels of a state; a wide state is reduced as it is before the stack's final norm.

    dim: C. A state that is wide only within a layer (b2t) begins with x.
    """
    leave = getattr(end, "leave", None)
    return state[..., :dim] if leave is None else leave(state)  # type: ignore[no-any-return]


def observe(model: nn.Module, batches: Iterable[Batch]) -> tuple[Observer, float, int]:
    """Return the measurements, the NLL in nats per target token or image, and the number of tokens or images."""
    observer, nll, count = Observer(model), 0.0, 0
    with torch.no_grad(), observer.reading():
        for batch in batches:
            observer.batch = batch
            nll += float(batch.nll(model).double().sum())
            count += batch.predicted
    return observer, nll / max(count, 1), count


def settle_statistics(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Set the running statistics of the batch norms of a new model to their means over these batches.

    Before the first update, the means are 0 and the variances 1, so the norms would have no effect in eval mode.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean
        norm.train()
    with torch.no_grad():
        for batch in batches:
            batch.nll(model)
    for norm in norms:
        norm.eval()


@contextmanager
def without_branch(site: ResidualConnection) -> Iterator[None]:
    """Set the site's F to 0 inside the `with` block."""
    forward = site.forward
    site.forward = lambda state, f_out: forward(state, torch.zeros_like(f_out))  # type: ignore[method-assign]
    try:
        yield
    finally:
        del site.forward  # restores the method of the class


def nll_without(model: nn.Module, site: ResidualConnection, batches: Iterable[Batch]) -> float:
    """Return the NLL per target token or image with the site's F set to 0."""
    nll, count = 0.0, 0
    with torch.no_grad(), without_branch(site):
        for batch in batches:
            nll += float(batch.nll(model).double().sum())
            count += batch.predicted
    return nll / max(count, 1)


def gradient_norms(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return |d(summed NLL of an example)/dy| of every site's output, in eval mode, averaged over examples."""
    outputs: dict[str, Tensor] = {}

    def note(name: str, site: nn.Module, given: Any, y: Tensor) -> Tensor:
        if not y.requires_grad:
            y = y.detach().requires_grad_()
        y.retain_grad()
        outputs[name] = y
        return y

    sums = dict.fromkeys(sites(model), 0.0)
    examples = 0
    with ExitStack() as hooks:
        for name, site in sites(model).items():
            hooks.callback(site.register_forward_hook(partial(note, name)).remove)
        for batch in batches:
            outputs.clear()
            with torch.enable_grad():
                batch.nll(model).sum().backward()
            count = 0
            for name, y in outputs.items():
                if y.grad is not None:  # the gradient of each example depends only on its own NLL
                    norms = batch.by_example(y.grad.double()).flatten(1).norm(dim=1)
                    sums[name] += float(norms.sum())
                    count = len(norms)
            model.zero_grad(set_to_none=True)
            examples += count
    return {name: total / max(examples, 1) for name, total in sums.items()}
