"""--log-coefficients: the mean of every coefficient of every site in fairseq's training log, at log intervals."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor, nn

from ..connections import ResidualConnection, components, sites


class CoefficientLog:
    """Adds hooks to the sites of a model, but only for the updates that fairseq logs."""

    def __init__(self, model: nn.Module, interval: int) -> None:
        self.sites = sites(model)
        self.interval = interval
        self.hooks: list[Any] = []

    def before(self, update: int) -> None:
        """Add hooks for update `update` + 1 if fairseq logs it, and remove those of the previous update."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        if (update + 1) % self.interval == 0:
            for name, site in self.sites.items():
                self.hooks.append(site.register_forward_hook(partial(note, name)))


def note(name: str, site: ResidualConnection, given: tuple[Tensor, Tensor], _: Tensor) -> None:
    """Log the mean of each coefficient of a site over all positions, computed from the branch before dropout."""
    if not site.training:
        return
    state, f_out = given
    with torch.no_grad():
        for label, value in site.coefficients(state, f_out).items():
            for part, each in components(label, value, f_out.shape[:-1]):
                metrics.log_scalar(f"{part}.{name}", float(each.float().mean()), priority=2000, round=4)
