"""When kernels run: devices, dtypes, the self-check, a broken or missing triton, compilation."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_resid import connections
from fairseq_resid.ops import dispatch, fused, self_check
from support.kernels import DEVICE, DTYPES, compiled, draw, site, twin

pytestmark = pytest.mark.once  # needs only torch and triton

ROOT = Path(__file__).resolve().parents[2]

CHAINS = ["chain", "weighted_chain", "branch_norm"]
KERNELS = ("dropout", "chain_forward", "chain_backward", "sas_forward", "sas_backward")


@pytest.fixture
def forgetful() -> Any:
    """The dispatcher with empty caches."""

    def clear() -> None:
        for remembered in (dispatch._say, dispatch._misfit):
            remembered.cache_clear()

    clear()
    yield
    clear()


@pytest.fixture
def no_interpreter(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher as on a machine without a GPU and without TRITON_INTERPRET."""
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)


def kind(
    kernel: str, dtype: torch.dtype = torch.float32, c: int = 64, norms: int = 1, **dtypes: torch.dtype | None
) -> self_check.Kind:
    mixed = {"x_dtype": dtype, "f_dtype": dtype, "autocast": None, **dtypes}
    return self_check.Kind(kernel, norms, DEVICE, channels=c, **mixed)  # type: ignore[arg-type]


def cpu(dtype: torch.dtype = torch.float32, c: int = 64) -> tuple[Tensor, Tensor]:
    return torch.randn(2, c).to(dtype), torch.randn(2, c).to(dtype)


def test_auto_backend_on_cpu_is_eager_and_logged_once(forgetful: None, caplog: pytest.LogCaptureFixture) -> None:
    made = twin(site("rskip_ln"), "auto").cpu()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            x, f = cpu()
            assert torch.equal(made(x, f), made.combine(x, f))
    assert caplog.messages == ["residual backend: eager (the kernels need a GPU)"]


def test_triton_backend_is_logged_once(forgetful: None, caplog: pytest.LogCaptureFixture) -> None:
    made = site("rskip_ln")
    with caplog.at_level(logging.INFO):
        for seed in (1, 2):
            made(draw(1, 64, seed=seed), draw(1, 64, seed=seed))
    assert caplog.messages == ["residual backend: triton"]


@pytest.mark.parametrize(
    ("dtype", "c", "reason"),
    [
        (torch.float64, 64, "float64 is not one of fp32, fp16, bf16"),
        (torch.float32, 63, "C = 63: must be from 64 to 8192"),
        (torch.float32, 8193, "C = 8193: must be from 64 to 8192"),
    ],
)
def test_unsupported_input_is_refused_by_triton_backend(dtype: torch.dtype, c: int, reason: str) -> None:
    made = site("post_ln", c).to(dtype)
    x, f = (t.to(DEVICE) for t in cpu(dtype, c))
    with pytest.raises(ValueError, match=f"residual backend triton: {reason}"):
        made(x, f)
    expected = made.combine(x, f)
    assert torch.equal(made.eval()(x, f), expected)
    assert torch.equal(twin(made, "auto").train()(x, f), expected)


def test_model_trained_with_triton_decodes_on_cpu(no_interpreter: None, caplog: pytest.LogCaptureFixture) -> None:
    made = site("sas").cpu()
    x, f = cpu()
    with pytest.raises(ValueError, match=r"residual backend triton: the kernels need a GPU.*on cpu"):
        made(x, f)
    with caplog.at_level(logging.INFO):
        assert torch.equal(made.eval()(x, f), made.combine(x, f))
    assert caplog.messages == ["residual backend: eager (the kernels need a GPU, but the tensors are on cpu)"]


def test_shortcut_and_branch_must_have_same_shape() -> None:
    made = site("post_ln")
    x = draw(2, 64, seed=1)
    with pytest.raises(ValueError, match=r"f_out \[1, 64\]: must have the shape of the state \[2, 64\]"):
        made(x, x[:1])
    with pytest.raises(ValueError, match="f_out"):
        made.eval()(x, x[:1])
    assert made.train()(x[:0], x[:0]).shape == (0, 64)


@pytest.mark.parametrize(
    ("capability", "dtype", "reason"),
    [
        ((6, 1), torch.float32, "float32 needs compute capability 7.0, not 6.1"),
        ((7, 0), torch.float16, ""),
        ((7, 5), torch.bfloat16, "bfloat16 needs compute capability 8.0, not 7.5"),
        ((8, 0), torch.bfloat16, ""),
        ((12, 0), torch.float32, ""),
    ],
)
def test_compute_capability_decides_kernel_support(
    capability: tuple[int, int], dtype: torch.dtype, reason: str, no_interpreter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(dispatch.self_check, "fault", lambda *_: "")
    kind = self_check.Kind("chain", 1, torch.device("cuda", 0), torch.float32, dtype, None, 512)
    assert dispatch._misfit(kind) == reason


def test_broken_triton_is_detected_before_use(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nmore")

    monkeypatch.setattr(fused, "_drop", fail)
    made = site("rskip_ln")
    with pytest.raises(ValueError, match=r"residual backend triton: triton does not run: Failed to find C comp"):
        made(draw(2, 64, seed=1), draw(2, 64, seed=2))
    with caplog.at_level(logging.INFO):
        made.eval()(draw(2, 64, seed=1), draw(2, 64, seed=2))
    assert caplog.messages == ["residual backend: eager (triton does not run: Failed to find C compiler.)"]


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
        if (kernel, result, structure) != ("chain_backward", 5, "branch_norm"):  # it writes no dx
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
    """The check uses the site's number of norms and dtypes, and several backward programs.

    It runs with and without dropout, and with and without saving.
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


def test_kernels_that_spill_registers_are_not_used(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Four norms that spill rule out neither fewer norms of the same width nor other kernels."""

    class Compiled(fused._Compiled):
        def __init__(self, name: str, arguments: Any, options: dict[str, Any]) -> None:
            super().__init__(name, arguments, options)
            self.spills = int(name == "chain_backward" and options["NORMS"] == 4)

    monkeypatch.setattr(fused, "_Compiled", Compiled)
    monkeypatch.setattr(fused, "_compiled", {})
    said = "residual backend: eager (C = 64: the compiled kernels spill registers on this device)"
    x, f = draw(2, 64, seed=1), draw(2, 64, seed=2)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            site("rskip_ln", skip_lambda=4).eval()(x, f)
    assert caplog.messages == [said]
    with pytest.raises(ValueError, match="spill registers"):  # chains of 4 and of 2 norms; the former is known
        site("rskip_ln", skip_lambda=6)(x, f)
    for name, options in (("rskip_ln", {"skip_lambda": 2}), ("sandwich_ln", {}), ("sas", {})):
        site(name, **options)(x, f)
    assert caplog.messages == [said]


def test_launch_uses_the_device_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    current, launched = [0], []

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.index = device.index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    class Compiled:
        compiled = None

        def __init__(self, *_: object) -> None:
            assert current[-1] == device

        def launch(self, programs: int, *_: object) -> None:
            launched.append((current[-1], programs))

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(fused, "_Compiled", Compiled)
    for device in (0, 1):
        fused._launch("dropout", 7, SimpleNamespace(device=torch.device("cuda", device)), C=64)
    assert launched == [(0, 7), (1, 7)] and current == [0]


def test_wrong_backends_are_refused() -> None:
    with pytest.raises(ValueError, match="backend='cuda': choose one of auto, eager, triton"):
        connections.build("post_ln", 64, backend="cuda")
    for name, options in (("highway", {}), ("sas", {"sas_gate": "single"}), ("sas", {"sas_gamma": "free"})):
        with pytest.raises(ValueError, match=f"backend='triton': no kernel supports name='{name}'"):
            connections.build(name, 64, backend="triton", **options)
        connections.build(name, 64, backend="auto", **options)


def test_package_works_without_triton() -> None:
    """Without triton, everything can be imported and auto is eager."""
    script = """
import sys
ABSENT = ("triton", "fairseq")  # the latter only because it takes seconds to import
class Filter:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Filter(finder) for finder in sys.meta_path]
import torch
from fairseq_resid import connections
x = torch.randn(2, 64)
assert connections.build("rskip_ln", 64)(x, x).shape == x.shape
assert "triton" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr


def test_second_launch_passes_the_same_arguments(tmp_path: Path) -> None:
    """Triton's own compiler compiles the kernels; a fake driver launches them, also with other number types."""
    assert compiled(ROOT / "tests" / "support" / "launch_kernels.py", tmp_path).stdout.split() == ["5"]
