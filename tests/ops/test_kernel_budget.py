"""What the compiled kernels use: registers, barriers, resident warps, memory traffic. No GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kernels import compiled

pytestmark = pytest.mark.once  # torch and triton alone

BUDGET = Path(__file__).resolve().parents[1] / "support" / "kernel_budget.py"


def test_usual_kernels_keep_their_budget(tmp_path: Path) -> None:
    assert compiled(BUDGET, tmp_path, "sm_90", "--quick").stdout == "sm_90: 5 kernels\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kernels"), [("sm_75", 14), ("sm_80", 53), ("sm_90", 99), ("sm_100", 53), ("gfx942", 14)]
)
def test_kernels_compile_within_their_budget(target: str, kernels: int, tmp_path: Path) -> None:
    """What launches run, without spills; `python tests/support/kernel_budget.py --update` accepts new numbers."""
    assert compiled(BUDGET, tmp_path, target).stdout == f"{target}: {kernels} kernels\n"
