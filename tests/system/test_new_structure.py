"""Follow the page on adding a structure to the letter in a copy of the project, and run all structure tests there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import gallery

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
FILES = re.findall(r"`([\w/]+/scaled_branch\.py)`.*?^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)).splitlines()
CLASS, TEST_FILE = "fairseq_resid/connections/scaled_branch.py", "tests/structures/scaled_branch.py"
# Tests that run for every structure, including the new one: one test of each kind.
MATRIX = """
    test_site_equals_its_formula test_site_passes_gradcheck test_output_dtype_equals_input_dtype
    test_any_leading_shape_is_accepted test_whole_stack_equals_its_formula
    test_stack_works_under_autocast test_final_norm_follows_flag_or_source
    test_every_structure_trains_and_generates
    test_deep_model_starts_with_finite_values test_lopsided_model_starts_with_finite_values_and_reloads
    test_numbers_up_to_the_limit_stay_finite test_random_cases_equal_fp64_formula
    test_incremental_decoding_equals_the_full_forward test_padding_and_batch_order_change_nothing
    test_our_checkpoints_load test_every_parameter_learns test_activation_checkpointing_keeps_loss_and_gradients
    test_layerdrop_skips_layers_only_in_training test_layers_to_keep_prunes_both_stacks
    test_names_in_checkpoints_are_frozen test_coefficients_of_every_structure_are_measured
    test_glossary_has_every_structure
    test_drawing_agrees_with_the_class test_gallery_is_up_to_date
    test_added_parameters_match_a_built_model
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a copy of the project that contains the class shown on the page."""
    copy = tmp_path / "project"
    hidden = shutil.ignore_patterns(".*", "data-bin", "checkpoints", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=hidden)
    assert [path for path, _ in FILES] == [CLASS, TEST_FILE]
    (copy / CLASS).write_text(FILES[0][1], encoding="utf-8")
    return copy


def shell(command: str, folder: Path) -> tuple[int, str]:
    """Run a command in the copy, whose package precedes the installed one; return the exit code and the output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, text=True, **both)
    return done.returncode, done.stdout


def outcomes(report: Path) -> dict[str, list[str]]:
    """Return {outcome: test functions} from a pytest report."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found.setdefault(kinds[0] if kinds else "passed", []).append(case.attrib["name"].split("[")[0])
    return found


def test_structure_consists_of_two_files(tree: Path) -> None:
    freeze, generate, check, train = COMMANDS
    assert train.startswith("fairseq-train ")  # test_readme.py runs it
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    (tree / TEST_FILE).write_text(FILES[1][1], encoding="utf-8")
    code, output = shell(freeze, tree)
    assert code == 0 and "added: scaled_branch\n" in output, output
    code, output = shell(generate, tree)
    assert code == 0, output
    rows = gallery.split((tree / "README.md").read_text(encoding="utf-8"), "structures")[1].splitlines()
    assert sum(row.startswith("| `scaled_branch` | LN(x + wF), w learned | Your name 2026 |") for row in rows) == 1
    page = (tree / "docs" / "structures.md").read_text(encoding="utf-8")
    assert "### scaled_branch\n" in page and r"$y = \mathrm{LN}(x + wF)$, $w$ learned" in page
    assert (tree / "docs" / "drawings" / "structures" / "scaled_branch.svg").is_file()
    changed = {str(path.relative_to(tree)) for path, content in before.items() if path.read_bytes() != content}
    stored = {"tests/stored/state_dict_names.json", "tests/stored/parameter_counts.json"}
    # The table of docs/export.md lists only structures that fold; this one does not.
    assert changed == {"README.md", "docs/structures.md", *stored}
    code, output = shell(f"{check} -q -p no:cacheprovider --junitxml report.xml", tree)
    found = outcomes(tree / "report.xml")
    assert code == 0 and found.keys() <= {"passed", "skipped"}, output[-4000:]
    assert set(MATRIX.split()) <= set(found["passed"]) and "test_start_value" in found["passed"]


def test_structure_of_another_package_passes_the_same_tests(tmp_path: Path) -> None:
    """The class is that of the page with the import that the page gives; the package has an entry point."""
    name, module = "scaled_branch", "your_package.scaled_branch"
    line = " ".join(re.findall(r"`(from fairseq_resid\.connections import [^`]*)`", PAGE)[0].split())
    text = re.sub(r"(from \.[\w.]+ import .*\n)+", f"{line}\n", FILES[0][1])
    package, record = tmp_path / "your_package", tmp_path / "your_package-1.0.dist-info"
    for folder in (package, record):
        folder.mkdir()
    (package / "__init__.py").touch()
    (package / "scaled_branch.py").write_text(text, encoding="utf-8")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: your_package\nVersion: 1.0\n")
    entry = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[0]
    assert f'\n{name} = "{module}"\n' in entry
    (record / "entry_points.txt").write_text(f"[fairseq_resid.structures]\n{name} = {module}\n")
    file, report = tmp_path / "formula of mine.py", tmp_path / "report.xml"
    command = f"python -m pytest -n 0 -q -p no:cacheprovider --structure '{name}={file}' --junitxml {report}"
    assert f"python -m pytest --structure {name}=path/to/tests/{name}.py\n" in PAGE

    def tested(formula: str, flags: str = "") -> dict[str, list[str]]:
        file.write_text(formula, encoding="utf-8")
        _, output = shell(f"PYTHONPATH={tmp_path}:{ROOT} {command} {flags}", ROOT)
        assert report.is_file(), output[-4000:]
        return outcomes(report)

    found = tested(FILES[1][1])
    of_this_project = {"test_names_in_checkpoints_are_frozen", "test_gallery_is_up_to_date"}
    assert found.keys() <= {"passed", "skipped"}, found
    assert {*MATRIX.split(), "test_start_value"} - of_this_project <= set(found["passed"])
    wrong = FILES[1][1].replace('x + p["branch_weight"]', '2 * x + p["branch_weight"]')
    assert wrong != FILES[1][1]
    only = "tests/connections/test_connections.py -k test_site_equals_its_formula"
    assert "test_site_equals_its_formula" in tested(wrong, only)["failure"]


def test_class_without_its_test_file_fails_one_test(tree: Path) -> None:
    code, output = shell(f"{COMMANDS[2]} -q -p no:cacheprovider --junitxml report.xml", tree)
    found = outcomes(tree / "report.xml")
    assert code == 1 and found["failure"] == ["test_every_structure_has_its_test_file"], output[-4000:]
    assert "error" not in found
    assert f"scaled_branch has no test file: write {TEST_FILE} with its formula" in output
