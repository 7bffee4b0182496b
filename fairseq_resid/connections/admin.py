"""A learned weight per channel of the shortcut, with initial values from a first pass: Admin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor

from .core import Options, Place, ResidualConnection, Structure, option, register
from .wskip_ln import WeightedSkipLayerNorm, fold


@dataclass(frozen=True)
class AdminOptions(Options):
    """Options of admin."""

    admin_start: str = option(
        "profiled",
        "where the initial value of w comes from. profiled: a first pass; closed: the number of sublayers",
        choices=("profiled", "closed"),
        is_initial=True,
    )

    def is_profiled(self) -> bool:
        """Return whether a first pass sets w."""
        return self.admin_start == "profiled"


class Admin(WeightedSkipLayerNorm):
    """Starts the shortcut's weight at the standard deviation accumulated so far, so that all branches count equally.

    Formula:  LN(w ⊙ x + F), w learned, initialised from one forward pass
    Source:   Liu 2020 (Admin), Understanding the Difficulty of Training Transformers, section 4.3, whose ω is w, and
              its code (LiyuanLucasLiu/Transformer-Clinic, transformer_layer.py); the closed form is admin-torch's
    Start:    profiled, from a first pass in training mode, separately for each stack: w_1 = 1,
              w²_{i+1} = Var(w_i x_i) + Var(F_i) over all entries, F after dropout; each w is used as soon as it is set;
              closed: w = √((n + 1) / ln(n + 1) - 1), n the number of sublayers in the stack
    """

    def start(self, place: Place, options: Any) -> float:
        if options.is_profiled():
            return 1.0
        place.require_depths()
        return math.sqrt((place.sites + 1) / math.log(place.sites + 1) - 1)

    @classmethod
    @contextmanager
    def profile(cls, sites: Sequence[ResidualConnection]) -> Iterator[None]:
        gathered = 1.0

        def measured(site: ResidualConnection, x: Tensor, f_out: Tensor) -> Tensor:
            nonlocal gathered
            weight = cast(Admin, site).skip_weight
            weight.fill_(math.sqrt(gathered))
            f = site.dropout(f_out)
            gathered = float((x.float() * weight).var(correction=0) + f.float().var(correction=0))
            return site.combine(x, f)

        for site in sites:
            site.forward = partial(measured, site)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for site in sites:
                del site.forward  # restores the method of the class


register(
    "admin",
    Structure(
        AdminOptions,
        Admin,
        is_profiled=AdminOptions.is_profiled,
        folds=fold,
        family="Scaling",
        use_when="Deep post-norm models. A new model first runs one forward pass to set initial values, unless "
        "`--admin-start closed` is given.",
    ),
)
