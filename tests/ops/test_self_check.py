"""The check of the kernels before their first use."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_resid.ops import fused, self_check
from support.kernels import DEVICE, DTYPES

pytestmark = pytest.mark.once  # needs only torch and triton

CHAINS = ["chain", "weighted_chain", "branch_norm"]
KERNELS = ("dropout", "chain_forward", "chain_backward", "sas_forward", "sas_backward")


def kind(
    kernel: str, dtype: torch.dtype = torch.float32, c: int = 64, norms: int = 1, **dtypes: torch.dtype | None
) -> self_check.Kind:
    mixed = {"x_dtype": dtype, "f_dtype": dtype, "autocast": None, **dtypes}
    return self_check.Kind(kernel, norms, DEVICE, channels=c, **mixed)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.0, math.nan])
@pytest.mark.parametrize(
    ("kernel", "result"),
    [
        ("dropout", 1),
        ("chain_forward", 2),
        *(("chain_backward", result) for result in (0, 5, 6)),
        ("sas_forward", 3),
        *(("sas_backward", result) for result in (0, 6, 7, 8)),
    ],
)
def test_self_check_rejects_a_wrong_kernel(
    kernel: str, result: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = fused._kernels()
    structures = {"dropout": ["sas"], "sas_forward": ["sas"], "sas_backward": ["sas"]}.get(kernel, CHAINS)

    class Spoiled:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any, **options: Any) -> None:
                getattr(right, kernel)[grid](*arguments, **options)
                if arguments[result] is not None:
                    arguments[result].fill_(value)

            return launch

    kernels = {name: getattr(right, name) for name in KERNELS} | {kernel: Spoiled()}
    monkeypatch.setattr(fused, "_kernels", lambda: SimpleNamespace(triton=right.triton, **kernels))
    for structure in structures:
        monkeypatch.setattr(fused, "_compiled", {})
        if (kernel, result, structure) != ("chain_backward", 5, "branch_norm"):  # branch_norm writes no dx
            assert "the kernels are wrong on this device: relative error " in self_check.fault(kind(structure))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("c", [64, 100, 512, 8192])
def test_self_check_leaves_torch_state_unchanged(c: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast(DEVICE.type, torch.bfloat16):
        assert self_check.fault(kind("sas" if c < 8192 else "chain", dtype, c)) == ""
    assert torch.equal(torch.get_rng_state(), before)


def test_self_check_runs_what_the_site_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check uses the site's dtypes and number of norms, and several backward programs.

    It runs the kernels with and without dropout, and with and without saving statistics.
    """
    seen: list[dict[str, Any]] = []
    launch = fused._launch

    def record(name: str, rows: int, *arguments: Any, **options: Any) -> Any:
        tensors = [argument.dtype for argument in arguments if isinstance(argument, Tensor)]
        seen.append({"name": name, "rows": rows, "dtypes": tensors, **options})
        return launch(name, rows, *arguments, **options)

    monkeypatch.setattr(fused, "_launch", record)
    mixed = kind("chain", c=100, norms=3, f_dtype=torch.bfloat16, autocast=torch.bfloat16)
    assert self_check.fault(mixed) == ""
    chains = [launched for launched in seen if launched["name"].startswith("chain")]
    assert {launched["NORMS"] for launched in chains} == {3} and {launched["C"] for launched in chains} == {100}
    forward = [launched for launched in chains if launched["name"] == "chain_forward"]
    assert {(one["DROPOUT"], one["SAVE"]) for one in forward} == {
        (p, save) for p in (True, False) for save in (True, False)
    }
    assert {tuple(one["dtypes"][:3]) for one in forward} == {(torch.float32, torch.bfloat16, torch.float32)}
    assert {one["DROPOUT"] for one in chains if one["name"] == "chain_backward"} == {True, False}
    assert seen[0]["rows"] > fused.INTERPRETED_PROGRAMS > 1
    seen.clear()
    assert self_check.fault(kind("chain", norms=9)) == ""  # split into chains of four norms: 4, 4 and 1
    assert {launched["NORMS"] for launched in seen if "NORMS" in launched} == {4, 1}
