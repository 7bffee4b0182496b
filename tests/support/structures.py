"""The structures under test. Each has a file tests/structures/NAME.py.

The file of a structure implements its formula a second time. Everything except `formula` has a default:

    def formula(x, f, p, options, place):       # y; p: the site's parameters by name; f: the branch after dropout
    def branch_input(x, p, options, place):     # the input to the branch (default: x)
    def stack(stack, x):                        # a whole stack (support/stacks.py), if the state is wider than C;
                                                # `formula` is then optional
    EXAMPLES = [{}, ...]                        # options for checking the formula: each choice and each `example=`
    VARIANTS = {"free": {"sas_gamma": "free"}}  # options that change the parameters: tested as models, names frozen
    DEEP = {"residual_norm": "layer"}           # options with which 24 + 24 layers start with finite values;
                                                # None if there are none
    LIMITS = [{}, ...]                          # further options for numbers up to the limit of a dtype
    COEFFICIENTS = {"alpha"}                    # names of `coefficients`
    IS_RANDOM = True                            # training differs from evaluation even without dropout of the branch
    IS_SLOW = True                              # the formula uses Python loops: only small cases are tested
    STOPS_GRADIENT = True                       # the gradient is not the derivative: gradcheck is skipped
    HAS_GATE = True                             # multiplies by a gate, whose rounding error is not bounded
    def extra(c, options):                      # number of parameters of a site beyond the 2C of fairseq's norm
    def width(c, options):                      # a number of channels >= c that the options allow (default: c)
    def state(site, x):                         # an initial state of a site (default: site.enter(x))
    def weight_sum(site):                       # S in docs/contributing.md: 2, or the largest row sum of a matrix

Its `test_*` functions, for initial values and special cases, are collected like those of any test file.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairseq_resid import connections
from support.formulas import largest_row

FOLDER = Path(__file__).resolve().parent.parent / "structures"
FILES: dict[str, Path] = {}  # of structures of other packages
Options = dict[str, Any]
MISSING = """{name} has no test file: write tests/structures/{name}.py with its formula, for example

    from support.formulas import norm

    def formula(x, f, p, options, place):
        return norm(x + f, p)

where p maps names to the parameters of a site; docs/contributing.md has a complete example"""


def registered() -> list[str]:
    """Return the structures of this package in alphabetical order."""
    return connections.own_names()


def file_of(name: str) -> Path:
    """Return the test file of a structure, which need not exist."""
    return FILES.get(name, FOLDER / f"{name}.py")


def has_file(name: str) -> bool:
    return file_of(name).is_file()


ALL = [name for name in registered() if has_file(name)]
NAMES = sorted(ALL)  # the structures to test: only some with --structure NAME


def select(chosen: list[str]) -> list[str]:
    """Restrict the tests to these structures, and return their names. Call this before any test file is imported.

    chosen: names, or NAME=FILE for a structure of another package with its test file
    """
    FILES.update((name, Path(file)) for name, is_given, file in (one.partition("=") for one in chosen) if is_given)
    names = [one.partition("=")[0] for one in chosen]
    known = [name for name in connections.names() if name == connections.canonical(name)]
    for name in names:
        if name not in known:
            raise pytest.UsageError(f"--structure {name}: choose one of {', '.join(known)}")
        if not is_ours(name) and not has_file(name):
            raise pytest.UsageError(
                f"--structure {name}: of another package; give --structure {name}=FILE, its test file"
            )
    NAMES[:] = sorted(filter(has_file, set(names)))
    return names


def is_ours(name: str) -> bool:
    """Return whether a structure is of this project, which lists the parameters and draws the formulas of its own."""
    return name in registered()


def load(name: str) -> ModuleType:
    """Import the test file of a structure."""
    if name not in FILES:
        return importlib.import_module(f"structures.{name}")
    found = importlib.util.spec_from_file_location(f"structures.{name}", FILES[name])
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Spec:
    """The definitions in the file of a structure, with defaults for those that are missing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module: ModuleType = load(name)
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
        self.stops_gradient: bool = self.get("STOPS_GRADIENT", False)
        self.has_gate: bool = self.get("HAS_GATE", False)
        self.extra: Callable[..., int] | None = self.get("extra", None)
        self.width: Callable[..., int] = self.get("width", lambda c, options: c)
        self.state: Callable[..., Any] = self.get("state", lambda site, x: site.enter(x))
        self.weight_sum: Callable[[Any], float] = self.get("weight_sum", lambda site: max(2.0, largest_row(site)))

    def get(self, name: str, default: Any) -> Any:
        return getattr(self.module, name, default)


@functools.cache
def spec(name: str) -> Spec:
    return Spec(name)


def option_cases(name: str) -> list[Options]:
    """Return the defaults and settings that together cover every choice and every example of each option."""
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
    """Return every structure with its defaults and with every variant, by label."""
    return {label: (name, options) for name in NAMES for label, options in spec(name).variants.items()}


def sites_of(names: list[str]) -> list[str]:
    """Return the structures that have a formula for a single site."""
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
    """Parametrize a test over `name` and `options`: the examples of every structure with a formula for a site."""
    return over("name options", examples(sites_of(NAMES)))(test)


def each_site(test: Any) -> Any:
    """Parametrize a test over `name` and `options`: the variants of every structure with a formula for a site."""
    made = {label: case for label, case in variants().items() if case[0] in sites_of(NAMES)}
    return over("name options", list(made.values()), list(made))(test)
