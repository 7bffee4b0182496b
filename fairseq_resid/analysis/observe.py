"""What happens at every site while a model reads a text."""

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
from .model import Batch, token_nll
from .results import BINS, FREQUENCIES, POSITIONS, Coefficient


@dataclass
class Moments:
    """Sums of one quantity over positions, in fp64: the same whatever the batches are."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    histogram: Tensor = field(default_factory=lambda: torch.zeros(BINS + 2, dtype=torch.float64))
    by: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # sums and counts

    def add(self, values: Tensor) -> None:
        """Count every value of a tensor."""
        values = values.detach().double().cpu().flatten()
        self.count += values.numel()
        self.total += float(values.sum())
        self.squares += float(values.square().sum())
        # Below 0, the parts of [0, 1], above 1; 1 itself is in the last part.
        part = torch.floor(values * BINS).clamp(-1, BINS) + 1
        part[(values >= 1) & (values <= 1 + 1e-6)] = BINS
        self.histogram += torch.bincount(part.long(), minlength=BINS + 2)

    def add_by(self, what: str, values: Tensor, classes: Tensor, number: int) -> None:
        """Count one value for each position under the class of that position."""
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
        sums, counts = self.by[what]
        return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]

    def coefficient(self) -> Coefficient:
        """Return all of it as analysis.json has it."""
        if not self.by:  # the same everywhere
            return Coefficient(self.mean, self.sd)
        below, *histogram, above = map(int, self.histogram.tolist())
        return Coefficient(
            self.mean, self.sd, None, histogram, below, above, self.means_by("position"), self.means_by("frequency")
        )


@dataclass
class Observed:
    """The figures of one site."""

    shortcut: Moments = field(default_factory=Moments)
    branch: Moments = field(default_factory=Moments)
    output: Moments = field(default_factory=Moments)
    share: Moments = field(default_factory=Moments)
    coefficients: dict[str, Moments] = field(default_factory=dict)


def frequency_classes(dictionary: Any) -> Tensor:
    """Return the class of every token by its rank in the dictionary, whose order is by frequency."""
    ranks = torch.arange(len(dictionary)) - dictionary.nspecial + 1
    bounds = torch.tensor([round(10 ** (step / 2)) for step in range(2, 1 + FREQUENCIES)])
    classes = torch.bucketize(ranks, bounds)
    classes[: dictionary.nspecial] = 0
    return classes


class Observer:
    """Counts, at every site of a model, what `observe` says; by `with` around its forward passes."""

    def __init__(self, model: nn.Module, task: Any) -> None:
        self.model = model
        self.sites = {name: Observed() for name in sites(model)}
        self.classes = {
            "encoder": frequency_classes(task.source_dictionary),
            "decoder": frequency_classes(task.target_dictionary),
        }
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
        kept = self.batch.kept[stack]
        state, f = given
        found = self.sites[name]
        end = getattr(self.model, stack).layer_norm
        # A copy: a state that grows is appended to once.
        without = site.combine(state.clone(), torch.zeros_like(f))
        shown = [read(end, each)[kept].float() for each in (state, y, without)]
        x, output, rest = shown
        found.shortcut.add(x.norm(dim=-1))
        found.branch.add(f[kept].float().norm(dim=-1))
        norm = output.norm(dim=-1)
        found.output.add(norm)
        found.share.add((output - rest).norm(dim=-1) / norm.clamp(min=1e-12))
        places = self.batch.places[stack][kept]
        classes = self.classes[stack].to(kept.device)[self.batch.tokens[stack][kept]]
        for label, value in site.coefficients(state, f).items():
            has_positions = is_positional(value, kept.shape)
            for part, values in components(label, value, kept.shape):
                moments = found.coefficients.setdefault(part, Moments())
                if not has_positions:
                    if not moments.count:
                        moments.add(values)
                    continue
                values = values[kept]
                moments.add(values)
                one = values.float().flatten(1).mean(1) if values.dim() > 1 else values.float()
                moments.add_by("position", one, places, POSITIONS)
                moments.add_by("frequency", one, classes, FREQUENCIES)


def read(end: Any, state: Tensor) -> Tensor:
    """Return C channels of a state: of a wide one what the stack's end would read off it, before its norm."""
    leave = getattr(end, "leave", None)
    return state if leave is None else leave(state)  # type: ignore[no-any-return]


def observe(model: nn.Module, task: Any, batches: Iterable[Batch]) -> tuple[Observer, float, int]:
    """Return the figures of every site, and NLL in nats per target token and the number of tokens."""
    observer, nll, tokens = Observer(model, task), 0.0, 0
    with torch.no_grad(), observer.reading():
        for batch in batches:
            observer.batch = batch
            nll += float(token_nll(model, batch).double().sum())
            tokens += int(batch.kept["decoder"].sum())
    return observer, nll / max(tokens, 1), tokens


@contextmanager
def without_branch(site: ResidualConnection) -> Iterator[None]:
    """Set the site's F to 0 in the block."""
    forward = site.forward
    site.forward = lambda state, f_out: forward(state, torch.zeros_like(f_out))  # type: ignore[method-assign]
    try:
        yield
    finally:
        del site.forward  # the class's again


def nll_without(model: nn.Module, site: ResidualConnection, batches: Iterable[Batch]) -> float:
    """Return the NLL per target token with the site's F set to 0."""
    nll, tokens = 0.0, 0
    with torch.no_grad(), without_branch(site):
        for batch in batches:
            nll += float(token_nll(model, batch).double().sum())
            tokens += int(batch.kept["decoder"].sum())
    return nll / max(tokens, 1)


def gradient_norms(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """Return |d(summed NLL of a sentence)/dy| of every site's output, in eval mode, mean over sentences."""
    outputs: dict[str, Tensor] = {}

    def note(name: str, site: nn.Module, given: Any, y: Tensor) -> Tensor:
        if not y.requires_grad:
            y = y.detach().requires_grad_()
        y.retain_grad()
        outputs[name] = y
        return y

    sums = dict.fromkeys(sites(model), 0.0)
    sentences = 0
    with ExitStack() as hooks:
        for name, site in sites(model).items():
            hooks.callback(site.register_forward_hook(partial(note, name)).remove)
        for batch in batches:
            outputs.clear()
            with torch.enable_grad():
                token_nll(model, batch).sum().backward()
            for name, y in outputs.items():
                if y.grad is not None:  # (T, B, ...): sentences do not see each other
                    norms = y.grad.double().transpose(0, 1).flatten(1).norm(dim=1)
                    sums[name] += float(norms.sum())
            model.zero_grad(set_to_none=True)
            sentences += batch.sentences
    return {name: total / max(sentences, 1) for name, total in sums.items()}
