"""The usual compiled kernels stay within their budget of registers, barriers, resident warps and memory traffic.

No GPU is needed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kernels import BUDGET, compiled

pytestmark = pytest.mark.once  # needs only torch and triton


def test_usual_kernels_keep_their_budget(tmp_path: Path) -> None:
    assert compiled(BUDGET, tmp_path, "sm_90", "--quick").stdout == "sm_90: 7 kernels\n"
