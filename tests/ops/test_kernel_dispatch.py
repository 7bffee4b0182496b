"""When kernels run: devices, dtypes, a broken or missing triton, compilation."""

from __future__ import annotations

import logging
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
from support.kernels import DEVICE, compiled, draw, site, twin

pytestmark = pytest.mark.once  # needs only torch and triton

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def forgetful() -> Any:
    """Empty the caches of the dispatcher before and after the test."""

    def clear() -> None:
        for remembered in (dispatch._say, dispatch._misfit):
            remembered.cache_clear()

    clear()
    yield
    clear()


@pytest.fixture
def no_interpreter(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the dispatcher behave as on a machine without a GPU and without TRITON_INTERPRET."""
    monkeypatch.setattr(dispatch, "_INTERPRETED", False)


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
        (torch.float64, 64, "dtype float64: must be float32, float16 or bfloat16"),
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


def test_kernels_that_spill_registers_are_not_used(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the kernel for four norms spills registers, kernels for fewer norms and other kernels are still used."""

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
    with pytest.raises(ValueError, match="spill registers"):  # chains of 4 and 2 norms; that of 4 is known to spill
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
    """Without triton, `connections` can be imported, and the backend auto uses eager PyTorch."""
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
    """Triton's own compiler compiles the kernels, and a fake driver launches them with scales of several types."""
    assert compiled(ROOT / "tests" / "support" / "launch_kernels.py", tmp_path).stdout.split() == ["5"]
