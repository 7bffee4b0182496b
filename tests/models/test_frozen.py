"""Names, shapes, order and numbers of parameters in checkpoints are frozen."""

from __future__ import annotations

from typing import Any

import pytest

import structure_table
from support import frozen, models, structures
from support.structures import each_variant

CHANGED = "checkpoints of earlier versions have different {what}: change the class back, not the frozen file"


def label_of(name: str, options: dict[str, Any]) -> str:
    return next(label for label, case in structures.variants().items() if case == (name, options))


@pytest.fixture(scope="module")
def files() -> tuple[dict[str, Any], dict[str, Any]]:
    return frozen.read(frozen.NAMES), frozen.read(frozen.COUNTS)


def test_every_frozen_variant_is_tested(files: tuple[dict[str, Any], dict[str, Any]]) -> None:
    names, counts = files
    variants = {label for name in structures.ALL for label in structures.spec(name).variants}
    assert names.keys() - {frozen.COMMON} <= variants and counts.keys() <= variants, (
        "a structure or variant was removed"
    )


@each_variant
def test_names_in_checkpoints_are_frozen(
    name: str, options: dict[str, Any], files: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    if not structures.is_ours(name):
        pytest.skip("another package may freeze the names of its own structure")
    names, counts = files
    label = label_of(name, options)
    assert label in names and label in counts, f"{label} has no frozen names: run {frozen.COMMAND}"
    model = models.build(residual=name, **options)
    shapes = frozen.shapes_by_name(model)
    assert shapes == {**names[frozen.COMMON], **names[label]}, CHANGED.format(what="names or shapes")
    assert [key for key in shapes if key in names[label]] == list(names[label]), CHANGED.format(what="positions")
    assert models.parameters(model) == counts[label], CHANGED.format(what="numbers of parameters")


@structures.each
def test_added_parameters_match_a_built_model(name: str) -> None:
    made, stock = (models.parameters(models.build(residual=each)) for each in (name, "post_ln"))
    assert structure_table.added_parameters(name, 64, layers=2) == made - stock
