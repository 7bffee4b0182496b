"""All kernels compile for several generations of GPUs and stay within their budget. No GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kernels import BUDGET, compiled

pytestmark = [pytest.mark.once, pytest.mark.slow]  # needs only torch and triton


@pytest.mark.parametrize(
    ("target", "kernels"), [("sm_75", 22), ("sm_80", 77), ("sm_90", 143), ("sm_100", 77), ("gfx942", 22)]
)
def test_kernels_compile_within_their_budget(target: str, kernels: int, tmp_path: Path) -> None:
    """Every kernel that a launch would run compiles without spilling registers.

    `python tests/support/kernel_budget.py --update` accepts new numbers.
    """
    assert compiled(BUDGET, tmp_path, target).stdout == f"{target}: {kernels} kernels\n"
