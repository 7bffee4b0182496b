"""Numbers up to the limit of a dtype, and gradients that overflow."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_resid import connections
from support import stacks, structures
from support.structures import spec

pytestmark = pytest.mark.once

Steps = list[tuple[float, float, bool, bool]]

FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


# --- numbers up to the limit of a format ---------------------------------------------------------------------------

C = 64
# Limits of the sum that a norm normalises, from docs/contributing.md. The sum of 8192 squares must fit into fp32.
LARGEST_SUM = {torch.float16: 65000.0, torch.bfloat16: 1e17, torch.float32: 1e17}
# Every structure that has a norm, or that does not overflow without one.
NORMED: list[tuple[str, dict[str, Any]]] = [
    (name, options)
    for name in structures.NAMES
    for options in [spec(name).deep, *spec(name).limits]
    if options is not None
]


def weight_sum(site: Any) -> float:
    """Return the total weight of a formula's largest sum, S in docs/contributing.md."""
    return float(spec(site.described["residual"]).weight_sum(site))


def edge_cases(most: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows of x and F: random, equal, zero, subnormal, opposite, with one huge number or alternating signs."""
    drawn = [stacks.inputs(2, C, seed=seed) for seed in (0, 1)]
    tiny = torch.finfo(dtype).smallest_normal / 4
    ones, one = torch.ones(1, C).double(), torch.zeros(1, C).double()
    signs, zero = ones.clone(), torch.zeros(1, C).double()
    one[:, 3], signs[:, ::2] = 1, -1
    units = [(x / x.abs().max(), f / f.abs().max()) for x, f in drawn]
    units += [(ones, ones), (zero, zero), (one, one), (one, -one), (signs, signs), (signs, -signs), (signs, zero)]
    units += [(zero, signs), (ones, zero)]
    rows = [(most * x, most * f) for x, f in units] + [(tiny * x, tiny * f) for x, f in units]
    return torch.cat([x for x, _ in rows]).to(dtype), torch.cat([f for _, f in rows]).to(dtype)


def results(site: Any, end: nn.Module | None, x: Tensor, f: Tensor) -> dict[str, Tensor]:
    """Return the outputs of a site and of the end of a stack, and the gradients of their means with mixed signs."""
    x, f = x.clone().requires_grad_(), f.clone().requires_grad_()
    state = spec(site.described["residual"]).state(site, x)
    found = {"seen": site.branch_input(state), "y": site(state, f)}
    found["end"] = end(found["y"]) if end is not None else found["y"]
    named = {"x": x, "F": f, **dict(site.named_parameters())}
    mean = [torch.full_like(value, 1 / value.numel()) for value in found.values()]
    signs = [value * (1 - 2 * (torch.arange(value.numel()).view(value.shape) * 7 % 11 % 2)) for value in mean]
    gradients = torch.autograd.grad(list(found.values()), list(named.values()), signs, allow_unused=True)
    return found | {f"d{name}": value for name, value in zip(named, gradients, strict=True) if value is not None}


def check_limits(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    place = replace(stacks.HERE, dim=C)
    site = connections.build(name, place, **options).to(dtype)
    end = connections.build_stream(name, place, connections.resolve_final_norm(name, None), **options)
    site, end = site.eval(), end if end is None else end.to(dtype)
    x, f = edge_cases(LARGEST_SUM[dtype] / weight_sum(site), dtype)
    wide = copy.deepcopy(site).double()
    exact = results(wide, copy.deepcopy(end).double() if end is not None else None, x.double(), f.double())
    found = results(site, end, x, f)
    half = torch.finfo(dtype).max / 2
    fits = {key: right.abs() <= half for key, right in exact.items()}
    in_range = all(bool(fits[key].all()) for key in ("dx", "dF"))
    # A gate's logit sums huge numbers of both signs, so rounding errors can change it completely. The same is true of
    # the norm of equal numbers.
    is_compared = not spec(name).has_gate
    spread = x.isclose(x[:, :1]).all(-1).logical_not()
    tolerance = 24 * torch.finfo(dtype).eps
    for key, value in found.items():
        what = f"{name} {options}: {key}"
        if not key.startswith("d"):
            assert value.isfinite().all(), what
            if is_compared:
                torch.testing.assert_close(value[spread].double(), exact[key][spread], rtol=tolerance, atol=tolerance)
        elif in_range or key in ("dx", "dF"):
            assert value[fits[key]].isfinite().all(), what


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.structures
def test_numbers_up_to_the_limit_stay_finite(dtype: str) -> None:
    for name, options in NORMED:
        check_limits(name, options, FLOATS[dtype])


@pytest.mark.parametrize(
    ("name", "options"),
    [("post_ln", {}), ("xskip_ln", {"skip_lambda": 8, "branch_scale": 3}), ("b2t", {}), ("keel", {})],
)
def test_stated_limits_are_tight(name: str, options: dict[str, Any]) -> None:
    """At the limit, the sum of x and an equal F is finite in fp16; 2% above the limit, it overflows."""
    site = stacks.make(name, options, dim=C, dtype=torch.float16, noise=0.0)
    for factor, is_finite in ((1.0, True), (1.02, False)):
        x = torch.full((1, C), factor * LARGEST_SUM[torch.float16] / weight_sum(site), dtype=torch.float16)
        x[:, ::2] *= -1
        assert bool(site(x, x).isfinite().all()) == is_finite


# --- gradients that overflow: fairseq's loss scaling ---------------------------------------------------------------

# Gradients are not flattened, because fairseq only flattens them on a GPU.
OPTIMIZERS = ["--fp16 --fp16-no-flatten-grads", "--memory-efficient-fp16"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Record each step: the loss scale before and after, whether the step counts, and whether the weights changed."""
    from fairseq.trainer import Trainer

    import fairseq_resid.models  # noqa: F401  (the patches must be applied before those below)

    seen: Steps = []
    original = Trainer.train_step

    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        def state() -> tuple[float, int, list[Tensor]]:
            weights = [parameter.detach().clone() for parameter in self.model.parameters()]
            return self.optimizer.scaler.loss_scale, self.get_num_updates(), weights

        scale, updates, weights = state()
        result = original(self, *args, **kwargs)
        after = state()
        changed = any(not torch.equal(one, other) for one, other in zip(weights, after[2], strict=True))
        seen.append((scale, after[0], after[1] > updates, changed))
        return result

    monkeypatch.setattr(Trainer, "train_step", train_step)
    return seen


@pytest.mark.both
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradient_overflow_skips_only_its_update(optimizer: str, train: Any, steps: Steps, tmp_path: Path) -> None:
    residual = ["--residual", "rskip_ln", "--skip-lambda", 8]
    flags = [*residual, *optimizer.split(), "--fp16-init-scale", 2**16, "--dropout", 0]
    output = train(tmp_path, *flags).output
    overflows = [step for step in steps if not step[2]]
    assert len(overflows) >= 3 and output.count("gradient overflow detected") == len(overflows)
    for before, after, counts, changed in steps:
        assert after == (before if counts else before / 2)
        assert counts or not changed
    assert [changed for _, _, counts, changed in steps if counts] == [False, True, True, True]  # the first lr is 0
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    unset = {name for name in saved["model"] if name.endswith("_float_tensor")}  # fairseq never sets this buffer
    assert all(saved["model"][name].isfinite().all() for name in saved["model"].keys() - unset)


@pytest.mark.both
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_minimum_loss_scale_raises_the_divergence_error(optimizer: str, train: Any, tmp_path: Path) -> None:
    flags = [*optimizer.split(), "--fp16-init-scale", 2**20, "--min-loss-scale", 2**16]
    done = train(tmp_path, *flags, check=False)
    assert done.code == 1 and "Traceback" not in done.output
    assert done.error.startswith("fairseq_resid: error: training diverged at update 1 (learning rate")
    assert done.output.count("gradient overflow detected") == 3
    assert [file.name for file in tmp_path.iterdir()] == ["crash.pt"]
