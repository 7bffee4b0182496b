"""How many programs of a kernel a GPU runs at once, and how many programs a launch starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fairseq_resid.ops import occupancy
from fairseq_resid.ops.occupancy import Limits

pytestmark = pytest.mark.once

H100 = Limits(132, shared=228 << 10)


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "programs"),
    [
        (209, 2, 0, 4),  # 216 registers are allocated: each quarter of the register file has room for 2 warps
        (168, 2, 0, 6),
        (169, 2, 0, 4),
        (128, 2, 0, 8),
        (128, 8, 0, 2),
        (168, 8, 0, 1),
        (255, 16, 0, 1),  # too many registers for one program, but the driver decides
        (32, 1, 0, 16),
        (32, 32, 0, 2),
        (32, 2, 100 << 10, 2),
    ],
)
def test_resident_programs_follow_registers_and_shared_memory(
    registers: int, warps: int, shared: int, programs: int
) -> None:
    assert H100.programs_at_once(registers, warps, shared) == 132 * programs


def test_wider_warps_need_more_registers() -> None:
    """An MI300X has 512 registers for each lane of a quarter, and warps of 64 threads."""
    wide = Limits(304, registers=131072, warp=64)
    assert wide.programs_at_once(128, 1) == 304 * 16
    assert wide.programs_at_once(256, 2) == 304 * 4


@pytest.mark.parametrize(
    ("rows", "at_once", "sums", "programs"),
    [
        (4096, 792, 4 * 4 * 512, 683),  # λ = 2, C = 512: 6 rows each, all programs at once
        (4096, 396, 4 * 6 * 1024, 373),  # λ = 3, C = 1024
        (131_072, 792, 4 * 4 * 512, 790),
        (792, 792, 4 * 4 * 512, 396),  # the sums of 792 programs would cost more than a second row does
        (5, 792, 4 * 4 * 512, 5),
        (1, 792, 4 * 4 * 512, 1),
    ],
)
def test_number_of_programs_balances_occupancy_and_sums(rows: int, at_once: int, sums: int, programs: int) -> None:
    assert H100.programs(rows, at_once, sums) == programs


def test_every_program_has_a_row() -> None:
    for rows in range(1, 3000, 7):
        programs = H100.programs(rows, 528, 8192)
        assert 1 <= programs <= min(rows, 528)
        assert (programs - 1) * -(-rows // programs) < rows


def test_limits_support_versions_that_report_less(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(multi_processor_count=80, warp_size=64)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: known)
    occupancy.limits.cache_clear()
    assert occupancy.limits(torch.device("cuda", 0)) == Limits(80, warp=64)
    occupancy.limits.cache_clear()
