"""Hyper-connections between fractions of one state: Frac-Connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .core import InvalidOption, Place, ResidualConnection, Structure, option, register
from .hyper import HyperConnection, HyperOptions


@dataclass(frozen=True)
class FractionOptions(HyperOptions):
    """Options of frac."""

    hyper_streams: int = option(2, "number m of fractions, a divisor of the width", least=1, most=32, example=4)

    def check_width(self, dim: int) -> None:
        if dim % self.hyper_streams:
            raise InvalidOption("hyper_streams", self.hyper_streams, f"must divide the {dim} channels")


class FractionalConnection(HyperConnection):
    """Hyper-connections between m fractions of one C-wide state, which mix channels instead of copies.

    Formula:  A_r x + BF, F from f(LN(A_m x)), on m fractions of x and F
    Where:    x in R^{m×C/m}, A_m and A_r in R^{m×m}, B in R^m; static or dynamic as in hyper, LN' over C/m of each
              fraction
    Source:   Zhu 2025, Frac-Connections, arXiv 2503.14125, eq. 6 to 15 and algorithms 2 and 3. The
              hyper-connections package differs: its B adds every fraction of the branch to every fraction of the
              state. The paper tries m = 2 and 4
    Start:    A_m = A_r = I, B = 1, W = 0, s = 0.01: a pre-norm stack
    """

    divides_state = True
    enter = ResidualConnection.enter

    def __init__(self, place: Place, options: FractionOptions, *rest: Any) -> None:
        options.check_width(place.dim)
        super().__init__(place, options, *rest)


register(
    "frac",
    Structure(
        FractionOptions,
        FractionalConnection,
        final_norm=True,
        family="Several streams",
        use_when="Learned connections as in `hyper`, in a state no wider than that of a plain Transformer.",
    ),
)
