"""Settings in a checkpoint that fairseq would evaluate: code is refused, literals are accepted."""

from __future__ import annotations

import argparse
import ast
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fairseq_resid.models  # noqa: F401  (applies the patches)

Command = Callable[..., Any]


def resaved(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a changed copy of one of our checkpoints."""
    state = torch.load(source, weights_only=False)
    change(state)
    torch.save(state, target)
    return target


EVALUATORS = {"eval", "eval_str_list", "eval_str_dict", "eval_bool"}


def evaluated_names() -> tuple[set[str], set[str]]:
    """Return the names of the settings that fairseq evaluates, and all other expressions that it evaluates."""
    names: set[str] = set()
    others: set[str] = set()

    def visit(node: ast.AST, local: frozenset[str]) -> None:
        if isinstance(node, ast.FunctionDef) and node.name in EVALUATORS:
            return  # the definitions of utils.eval_str_list and the like
        if isinstance(node, ast.Lambda):  # type=lambda x: ...: a flag on the user's own command line
            local = local | {argument.arg for argument in node.args.args}
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", None)
            if isinstance(node.func, ast.Attribute) and node.func.attr != "eval":  # model.eval(), editdistance.eval()
                called = node.func.attr
            if called in EVALUATORS and node.args:
                value = node.args[0]
                if isinstance(value, ast.Call) and getattr(value.func, "id", None) == "getattr":
                    value = value.args[1]
                if isinstance(value, ast.Subscript):
                    value = value.slice
                if isinstance(value, ast.Attribute):
                    names.add(value.attr)
                elif isinstance(value, ast.Constant):
                    names.add(value.value)
                elif isinstance(value, ast.Name):
                    names.update({value.id} - local)
                else:
                    others.add(ast.unparse(value))
        for child in ast.iter_child_nodes(node):
            visit(child, local)

    spec = find_spec("fairseq")
    assert spec is not None and spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "eval" in text and file.relative_to(package).parts[0] != "examples":
            visit(ast.parse(text), frozenset())
    return names, others


def test_every_setting_that_fairseq_evaluates_is_known() -> None:
    from fairseq_resid.fairseq_patches import loading

    names, others = evaluated_names()
    assert {"adam_betas", "xformers_att_config", "conv_feature_layers"} <= names, "the scan misses known settings"
    assert names <= loading.EVALUATED, f"add to loading.EVALUATED: {sorted(names - loading.EVALUATED)}"
    # In codedataset.py, fairseq evaluates line.strip(), a line of a data file.
    assert others <= {"line.strip()"}, f"fairseq evaluates other expressions: {sorted(others)}"


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a file that planted code would create, then check that it does not exist."""
    file = tmp_path / "code-has-run"
    yield file
    assert not file.exists(), "planted code has run"


def code(marker: Path) -> str:
    return f"__import__('os').system('touch {marker}')"


PLACES: dict[str, Callable[[dict[str, Any], Any], object]] = {
    "adam_betas": lambda state, value: state["cfg"]["optimizer"].update(adam_betas=value),
    "encoder_xformers_att_config": lambda state, value: setattr(
        state["cfg"]["model"], "encoder_xformers_att_config", value
    ),
    "conv_feature_layers": lambda state, value: setattr(
        state["cfg"]["model"], "nested", [{"inner": ({"x": argparse.Namespace(conv_feature_layers=value)},)}]
    ),
    "lamb_betas": lambda state, value: state.update(args=argparse.Namespace(lamb_betas=value)),
}


@pytest.mark.parametrize("name", PLACES)
def test_code_anywhere_in_a_config_is_refused(name: str, sas_checkpoint: Path, tmp_path: Path, marker: Path) -> None:
    from fairseq import checkpoint_utils

    from fairseq_resid.fairseq_patches import UserError

    file = resaved(sas_checkpoint, tmp_path / "planted.pt", lambda state: PLACES[name](state, code(marker)))
    with pytest.raises(UserError, match=name) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(file))
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["(0.9, 0.98)", "[(512, 3)] * 20", "", None])
@pytest.mark.parametrize("name", list(PLACES)[:3])
def test_literals_in_a_config_are_accepted(name: str, value: str | None, sas_checkpoint: Path, tmp_path: Path) -> None:
    from fairseq import checkpoint_utils

    file = resaved(sas_checkpoint, tmp_path / "harmless.pt", lambda state: PLACES[name](state, value))
    assert checkpoint_utils.load_checkpoint_to_cpu(str(file))["model"]


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda text: np.frombuffer(text, dtype=np.uint8).copy()])
def test_code_as_bytes_or_buffer_is_refused(
    kind: Callable[[bytes], Any], sas_checkpoint: Path, tmp_path: Path, marker: Path
) -> None:
    """Python's eval also runs bytes and buffers, and weights-only loading allows them."""
    from fairseq import checkpoint_utils

    from fairseq_resid.fairseq_patches import UserError

    assert eval(kind(b"1 + 1")) == 2
    file = resaved(
        sas_checkpoint,
        tmp_path / "planted.pt",
        lambda state: setattr(state["cfg"]["model"], "encoder_layers", kind(code(marker).encode())),
    )
    with pytest.raises(UserError):
        checkpoint_utils.load_checkpoint_to_cpu(str(file))


@pytest.mark.parametrize("name", ["adam_betas", "encoder_xformers_att_config"])
@pytest.mark.parametrize("way", ["generate", "resume", "hub"])
def test_code_in_a_config_is_refused_by_every_command(
    way: str,
    name: str,
    sas_checkpoint: Path,
    tmp_path: Path,
    marker: Path,
    corpus: Path,
    train: Command,
    generate: Command,
) -> None:
    from fairseq_resid.fairseq_patches import UserError
    from fairseq_resid.models import ResidualTransformerModel

    file = resaved(sas_checkpoint, tmp_path / "planted.pt", lambda state: PLACES[name](state, code(marker)))
    if way == "hub":
        with pytest.raises(UserError, match=name) as caught:
            ResidualTransformerModel.from_pretrained(str(tmp_path), "planted.pt", data_name_or_path=str(corpus))
        error = str(caught.value)
    elif way == "generate":
        done = generate(file, check=False)
        assert done.code == 1
        error = done.error
    else:
        save = tmp_path / "run"
        done = train(save, "--arch", "transformer_sas_tiny", "--restore-file", file, check=False)
        assert done.code == 1 and list(save.iterdir()) == []
        error = done.error
    assert str(file) in error and name in error


LITERALS = ["(0.9, 0.98)", "[(512, 3)] * 20", "[1] + [2] * 3", "{'a': [1, -2, +3]}", "True", "None", " 1 ", "'f(1)'"]
CODES = [
    "print(1)", "x", "x.y", "[x for x in (1,)]", "(lambda: 1)()", "f'{print(1)}'", "1 if print() else 2", "{print()}",
    "(x := 1)", "[1][0]", "2 ** 9", "not x", "*x", "...()", "`1`", "import os", "1; 2", "", "(", "a" * 9, "(" * 10_000,
    "'\0'", "__import__('os')", "[].__class__", "{**x}", "{'a': f()}", "-f()", "1 + f()", "await f()", "1 < f()",
    "[0] * -f()", "1" * 20_000,
]  # fmt: skip


@pytest.mark.parametrize("text", LITERALS)
def test_literals_are_recognised(text: str) -> None:
    from fairseq_resid.fairseq_patches.loading import is_literal

    assert is_literal(text)


@pytest.mark.parametrize("text", CODES, ids=lambda text: text[:12])
def test_code_is_not_a_literal(text: str) -> None:
    from fairseq_resid.fairseq_patches.loading import is_literal

    assert not is_literal(text)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
literals = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(scalars, inner) | st.tuples(inner, inner), max_leaves=8
)
tokens = st.lists(st.sampled_from([*"()[]{},:+-*.='\"x1 ", "f(", "lambda", " if ", " for ", " in ", "print", "f'{"]))


@given(literals)
@settings(max_examples=60, deadline=None)
def test_repr_of_every_value_is_a_literal(value: Any) -> None:
    from fairseq_resid.fairseq_patches.loading import is_literal

    assert is_literal(repr(value))


@given(st.text() | tokens.map("".join))
@settings(max_examples=300, deadline=None)
def test_literal_refers_to_no_name(text: str) -> None:
    """An expression without names cannot call anything."""
    from fairseq_resid.fairseq_patches.loading import is_literal

    if is_literal(text):
        compiled = compile(text.strip(), "literal", "eval")
        assert compiled.co_names == () and not any(hasattr(item, "co_code") for item in compiled.co_consts)


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_numpy_values_load_in_both_spellings(core: str, sas_checkpoint: Path, tmp_path: Path) -> None:
    """numpy 1 writes numpy.core.multiarray, numpy 2 writes numpy._core.multiarray."""
    from fairseq import checkpoint_utils

    values = {"a": np.float64(1.5), "b": np.float32(2.5), "c": np.int64(3), "d": np.arange(4), "e": np.zeros((2, 2))}
    written = resaved(sas_checkpoint, tmp_path / "written.pt", lambda state: state.update(extra_state=values))
    file = tmp_path / "respelled.pt"
    with zipfile.ZipFile(written) as old, zipfile.ZipFile(file, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename.endswith("/data.pkl"):
                names = ("numpy.core.multiarray", "numpy._core.multiarray")
                assert any(name.encode() in data for name in names)
                for name in names:
                    data = data.replace(f"c{name}\n".encode(), f"c{core}.multiarray\n".encode())
            new.writestr(item, data)
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(file))["extra_state"]
    for key, value in values.items():
        assert type(loaded[key]) is type(value) and loaded[key].dtype == value.dtype
        np.testing.assert_array_equal(loaded[key], value)
