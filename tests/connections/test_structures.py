"""Every structure has a test file, formula, source, examples, frozen names and a row in the README."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import structure_table
from fairseq_resid import connections
from support import structures
from support.stacks import HERE, build, inputs, move
from support.structures import each, each_variant, spec

pytestmark = pytest.mark.once  # needs only torch


@pytest.mark.structures
def test_every_structure_has_its_test_file() -> None:
    missing = [name for name in structures.registered() if not structures.has_file(name)]
    assert not missing, "\n".join(structures.MISSING.format(name=name) for name in missing)
    files = {file.stem for file in structures.FOLDER.glob("[!_]*.py")}
    assert files <= set(structures.registered()), "remove the test files of structures that no class registers"


@each
def test_every_structure_states_its_formula_and_source(name: str) -> None:
    made = connections.structure(name)
    assert made.formula and made.source, (
        f'{name}: add "Formula:  y as x and F" and "Source:   Author year" to its docstring'
    )


class Halved(connections.ResidualConnection):
    """Halves the branch.

    Formula:  x + F/2,
              where F is the branch
    Source:   Someone 2026 (Half), section 3; not his code
    A last line.
    """


def test_formula_and_source_are_those_of_the_docstring_or_of_the_arguments() -> None:
    made = connections.Structure(connections.Options, Halved)
    assert (made.summary, made.formula, made.source) == (
        "Halves the branch.", "x + F/2, where F is the branch", "Someone 2026 (Half)"
    )  # fmt: skip
    assert made.fields["Source"] == "Someone 2026 (Half), section 3; not his code"
    made = connections.Structure(connections.Options, Halved, formula="x + 0.5F", source="Else, 2027")
    assert (made.formula, made.source) == ("x + 0.5F", "Else, 2027")

    class Undocumented(Halved):
        pass

    made = connections.Structure(connections.Options, Undocumented)
    assert (made.formula, made.source, made.fields) == ("", "", {})


@each
def test_every_numeric_option_has_an_example(name: str) -> None:
    for option in connections.options(name).values():
        assert option.examples, f"--{option.name}: give option(..., example=X), a value that the tests train with"
        connections.resolve(name, {option.name: option.examples[-1]} if not option.choices else {})


@each_variant
def test_structure_states_whether_it_has_a_norm(name: str, options: dict[str, Any]) -> None:
    """--norm is refused for structures on which it has no effect."""
    made = []

    def norm(dim: int) -> nn.Module:
        made.append(dim)
        return nn.RMSNorm(dim)

    place = replace(HERE, norm=norm)
    connections.build(name, place, **options)
    connections.build_stream(name, replace(place, kind="stream"), False, **options)
    chosen = connections.resolve(name, options)
    assert connections.uses_norm(name, chosen, final_norm=False) == bool(made), "set has_norm in its Structure"
    assert connections.uses_norm(name, chosen, final_norm=True)


def test_names_are_in_alphabetical_order_with_aliases_last() -> None:
    """--help, benchmarks and reports list the structures in this order."""
    own = connections.own_names()
    assert own == sorted(own)
    names = [name for name in connections.names() if name in own or connections.canonical(name) in own]
    assert names == [*own, "exclusive_gate", "peri_ln"]


@pytest.mark.parametrize(
    ("name", "polynomial"),
    [
        ("post_ln", "0"),
        ("xskip", "−60C"),
        ("rskip_ln", "60C"),
        ("rezero", "−60C + 12"),
        ("highway", "30C² − 30C"),
        ("sas", "120C² + 120C + 60"),
        ("dense_former", "4C + 54"),
        ("dlcl", "28C + 56"),
    ],
)
def test_added_parameters_equal_the_stated_polynomial(name: str, polynomial: str) -> None:
    assert structure_table.polynomial(name) == polynomial


@each_variant
def test_coefficients_of_large_fp16_states_equal_those_in_fp64(name: str, options: dict[str, Any]) -> None:
    """Products of the numbers do not fit in fp16."""
    torch.manual_seed(1)
    site = move(build(name, 64, **options).eval(), 0.1).half()
    x, f = (300 * value for value in inputs(3, 4, 64, dtype=torch.float16))
    state = spec(name).state(site, x)
    found = site.coefficients(state, f)
    exact = copy.deepcopy(site).double().coefficients(state.double(), f.double())
    for key, value in exact.items():
        torch.testing.assert_close(found[key].double(), value, rtol=0.02, atol=0.002)
