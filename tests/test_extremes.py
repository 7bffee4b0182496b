"""Numbers at the edge: limits of the formats, overflow, deep and lopsided models, random shapes and options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.once

Fault = Callable[[str, int, str], None]
Steps = list[tuple[float, float, bool, bool]]

# --- gradients that overflow: fairseq's loss scaling ---------------------------------------------------------------

# Without flattening: fairseq flattens on a GPU.
OPTIMIZERS = ["--fp16 --fp16-no-flatten-grads", "--memory-efficient-fp16"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Of every training step: the loss scale before and after it, whether it counts, and whether weights changed."""
    from fairseq.trainer import Trainer

    import fairseq_resid.models  # noqa: F401  (the bridges, before what is put around them)

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
@pytest.mark.parametrize(
    "residual",
    [
        "rskip_ln --skip-lambda 8",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("post_ln", "sas", "hyper", "xskip")),
    ],
)
def test_an_overflow_of_gradients_costs_its_update_alone(
    residual: str, optimizer: str, train: Any, steps: Steps, tmp_path: Path, fault: Fault
) -> None:
    flags = ["--residual", *residual.split(), *optimizer.split(), "--fp16-init-scale", 2**16, "--dropout", 0]
    output = train(tmp_path, *flags).output
    overflows = [step for step in steps if not step[2]]
    assert len(overflows) >= 3 and output.count("gradient overflow detected") == len(overflows)
    for before, after, counts, changed in steps:
        assert after == (before if counts else before / 2)
        assert counts or not changed
    assert [changed for _, _, counts, changed in steps if counts] == [False, True, True, True]  # the first lr is 0
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    unset = {name for name in saved["model"] if name.endswith("_float_tensor")}  # stock never sets it
    assert all(saved["model"][name].isfinite().all() for name in saved["model"].keys() - unset)
    fault(
        f"gradients overflow fp16: `{residual}`, `{optimizer}`, loss scale 2^16 at first",
        len(overflows),
        "the update is skipped, weights stay bit by bit, the loss scale is halved; 4 updates follow",
    )


@pytest.mark.both
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loss_scale_at_its_least_ends_in_the_named_error(
    optimizer: str, train: Any, tmp_path: Path, fault: Fault
) -> None:
    flags = [*optimizer.split(), "--fp16-init-scale", 2**20, "--min-loss-scale", 2**16]
    done = train(tmp_path, *flags, check=False)
    assert done.code == 1 and "Traceback" not in done.output
    assert done.error.startswith("fairseq_resid: error: the training diverged at update 1 (learning rate")
    assert done.output.count("gradient overflow detected") == 3
    assert [file.name for file in tmp_path.iterdir()] == ["crash.pt"]
    fault(f"`{optimizer}`: overflows until --min-loss-scale", 4, "one line: the training diverged at update 1 (...)")
