"""The language model in examples/gpt.py: it trains with every structure, and no position sees a later one."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from support.scripts import imported
from support.shells import shell
from support.stacks import move
from support.structures import each

pytestmark = pytest.mark.once

FILE = Path(__file__).resolve().parents[2] / "examples" / "gpt.py"
SIZES = {"LAYERS": 3, "DIM": 32, "CONTEXT": 16}
VOCABULARY = 16


@pytest.fixture
def gpt() -> ModuleType:
    """Import the example, and make its model small."""
    module = imported(FILE)
    assert vars(module).keys() > SIZES.keys()
    vars(module).update(SIZES)
    return module


def linears(layer: Any) -> dict[str, Any]:
    return {"query": layer.query, "key": layer.key, "value": layer.value, "output": layer.output,
            "fc1": layer.mlp[0], "fc2": layer.mlp[2]}  # fmt: skip


def test_example_has_at_most_100_lines() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 100


@each
def test_loss_of_every_structure_falls(gpt: ModuleType, name: str) -> None:
    windows = (torch.arange(100) % 5).unfold(0, gpt.CONTEXT + 1, 1)
    torch.manual_seed(1)
    before = gpt.GPT(name, VOCABULARY).eval().loss(windows).item()
    model = gpt.train(name, windows, VOCABULARY, updates=20)
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    after = model.loss(windows).item()
    assert math.isfinite(before) and after < before - 0.5


@each
def test_no_position_sees_a_later_one(gpt: ModuleType, name: str) -> None:
    torch.manual_seed(1)
    model = move(gpt.GPT(name, VOCABULARY).double().eval(), 0.05)
    text = torch.randint(VOCABULARY, (2, gpt.CONTEXT))
    changed = text.clone()
    changed[:, 9] = (text[:, 9] + 1) % VOCABULARY
    differs = (model(text) != model(changed)).any(-1)
    assert not differs[:, :9].any() and differs[:, 9:].all()


def test_structures_set_initial_values_outside_their_sites(gpt: ModuleType) -> None:
    torch.manual_seed(1)
    beta = (8 * gpt.LAYERS) ** -0.25
    for name, linear in linears(gpt.GPT("deep_norm", VOCABULARY).layers[1]).items():
        gain = 1 if name in ("query", "key") else beta
        assert linear.weight.std().item() == pytest.approx(gain * (2 / sum(linear.weight.shape)) ** 0.5, rel=0.1)
    windows = torch.randint(VOCABULARY, (8, gpt.CONTEXT + 1))
    weights = [layer.mlp_site.skip_weight for layer in gpt.train("admin", windows, VOCABULARY, updates=1).layers]
    assert weights[0].mean() > 1.01 and weights[2].mean() > weights[1].mean() > weights[0].mean()
    (first, *_) = gpt.GPT("rezero", VOCABULARY).layers
    assert first.attention_site.branch_scalar is first.mlp_site.branch_scalar


def test_command_prints_a_row_for_each_structure(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("0123456789" * 200)
    flags = ["--text", text, "--updates", 2, "--residual", "post_ln", "mhc"]
    header, *rows = shell(sys.executable, FILE, *flags, cwd=tmp_path).splitlines()
    assert header.split() == ["structure", "parameters", "nats", "per", "character", "seconds"]
    assert [row.split()[0] for row in rows if row] == ["post_ln", "mhc"]
