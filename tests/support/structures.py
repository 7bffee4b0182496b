"""The structures under test, each with its file tests/structures/NAME.py.

The file of a structure writes its formula a second time. Everything in it but the first has a default:

    def formula(x, f, p, options, place):       # y; p: the parameters of the site by name; f: the branch after dropout
    def branch_input(x, p, options, place):     # what the branch sees: x
    def stack(stack, x):                        # a whole stack (support/stacks.py), where a state is wider than C; then
                                                # `formula` may be left out
    EXAMPLES = [{}, ...]                        # options the formula is checked with: each choice and each `example=`
    VARIANTS = {"free": {"sas_gamma": "free"}}  # options with other parameters: tested as models, their names frozen
    DEEP = {"residual_norm": "layer"}           # options with which 24 + 24 layers start finite; None if there are none
    LIMITS = [{}, ...]                          # more options for numbers up to the limit of a dtype
    COEFFICIENTS = {"alpha"}                    # names of `coefficients`
    IS_RANDOM = True                            # training differs from evaluation without dropout of the branch too
    IS_SLOW = True                              # the formula goes through loops: try small cases only
    HAS_GATE = True                             # it multiplies by a function of sums that may come out as anything
    def extra(c, options):                      # parameters of a site beyond the 2C of stock's norm
    def state(site, x):                         # a state that a site can begin with: site.enter(x)
    def weight_sum(site):                       # S in docs/adding-a-structure.md: 2, or the largest row sum of a matrix

Its `test_*` functions, for start values and special cases, are collected like those of any test file.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairseq_resid import connections
from support.formulas import largest_row

FOLDER = Path(__file__).resolve().parent.parent / "structures"
Options = dict[str, Any]
MISSING = """{name} has no test file: write tests/structures/{name}.py with its formula, for example

    from support.formulas import norm

    def formula(x, f, p, options, place):
        return norm(x + f, p)

where p holds the parameters of a site by name; docs/adding-a-structure.md has a whole example"""


def registered() -> list[str]:
    """The structures of this package, in the order of registration."""
    return connections.own_names()


def has_file(name: str) -> bool:
    return (FOLDER / f"{name}.py").is_file()


ALL = [name for name in registered() if has_file(name)]
NAMES = sorted(ALL)  # those to be tested: one alone with --structure NAME


def select(name: str) -> None:
    """Test one structure alone; called before any test file is imported."""
    if name not in registered():
        raise pytest.UsageError(f"--structure {name}: choose one of {', '.join(registered())}")
    NAMES[:] = [name] if name in ALL else []


class Spec:
    """What the file of a structure defines, and the defaults of the rest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: ModuleType = importlib.import_module(f"structures.{name}")
        self.formula: Callable[..., Any] | None = self.get("formula", None)
        self.stack: Callable[..., Any] | None = self.get("stack", None)
        assert self.formula or self.stack, f"tests/structures/{name}.py: define formula(x, f, p, options, place)"
        self.branch_input: Callable[..., Any] = self.get("branch_input", lambda x, p, options, place: x)
        self.variants: dict[str, Options] = {name: {}}
        self.variants |= {f"{name} {label}": options for label, options in self.get("VARIANTS", {}).items()}
        self.examples: list[Options] = self.get("EXAMPLES", None) or option_cases(name)
        self.deep: Options | None = self.get("DEEP", {})
        self.limits: list[Options] = self.get("LIMITS", [])
        self.coefficients: set[str] | None = self.get("COEFFICIENTS", None)
        self.is_random: bool = self.get("IS_RANDOM", False)
        self.is_slow: bool = self.get("IS_SLOW", False)
        self.has_gate: bool = self.get("HAS_GATE", False)
        self.extra: Callable[..., int] | None = self.get("extra", None)
        self.state: Callable[..., Any] = self.get("state", lambda site, x: site.enter(x))
        self.weight_sum: Callable[[Any], float] = self.get("weight_sum", lambda site: max(2.0, largest_row(site)))

    def get(self, name: str, default: Any) -> Any:
        return getattr(self.module, name, default)


@functools.cache
def spec(name: str) -> Spec:
    return Spec(name)


def has_kernel(name: str, options: dict[str, Any]) -> bool:
    """Whether the kernels compute a structure with these options."""
    return connections.structure(name).has_kernel(connections.resolve(name, options))


def option_cases(name: str) -> list[Options]:
    """The defaults, and settings that together hold every choice and every example of the options that go together."""
    known = connections.options(name).values()
    values = {option.name: option.examples for option in known if option.examples}
    turns = max(map(len, values.values()), default=0)
    cases: list[Options] = [{}]
    cases += [{key: allowed[turn % len(allowed)] for key, allowed in values.items()} for turn in range(turns)]
    return cases


def label(case: Any) -> str:
    if isinstance(case, dict):
        return "-".join(f"{key}={value}" for key, value in case.items()) or "defaults"
    return str(case)


def over(arguments: str, cases: list[Any], ids: Any = label) -> Callable[[Any], Any]:
    """Parametrize a test over cases of structures, and mark it as a test of every structure."""
    names = arguments.split()
    parametrize = pytest.mark.parametrize(names if len(names) > 1 else arguments, cases, ids=ids)
    return lambda test: pytest.mark.structures(parametrize(test))


def variants() -> dict[str, tuple[str, Options]]:
    """Every structure with its defaults and with every variant, by label."""
    return {label: (name, options) for name in NAMES for label, options in spec(name).variants.items()}


def sites_of(names: list[str]) -> list[str]:
    """The structures of which one site has a formula."""
    return [name for name in names if spec(name).formula is not None]


def examples(names: list[str]) -> list[tuple[str, Options]]:
    return [(name, options) for name in names for options in spec(name).examples]


def each(test: Any) -> Any:
    """Parametrize a test over `name`."""
    return pytest.mark.structures(pytest.mark.parametrize("name", NAMES)(test))


def each_variant(test: Any) -> Any:
    """Parametrize a test over `name` and `options`: the defaults and the variants of every structure."""
    made = variants()
    return over("name options", list(made.values()), list(made))(test)


def each_example(test: Any) -> Any:
    """Parametrize a test over `name` and `options`: the examples of every structure of which a site has a formula."""
    return over("name options", examples(sites_of(NAMES)))(test)


def each_site(test: Any) -> Any:
    """Parametrize a test over `name` and `options`: the variants of every structure of which a site has a formula."""
    made = {label: case for label, case in variants().items() if case[0] in sites_of(NAMES)}
    return over("name options", list(made.values()), list(made))(test)
