"""Project files: citation, pre-commit hooks, CI workflow, files of a wheel."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_resid import __version__

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    return yaml.safe_load(text_of(name))


def linters() -> dict[str, str]:
    """Return {name: command} of the stages that scripts/test.sh runs before pytest."""
    stages = re.findall(r"^ *stage ([\w-]+) (.+)$", text_of("scripts/test.sh"), re.MULTILINE)
    return {name: command for name, command in stages if name != "pytest"}


def test_citation_has_the_required_fields_and_the_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "MIT"
    assert citation["version"] == __version__, "set the version in CITATION.cff to that of fairseq_resid/version.py"
    for each in (citation, *citation["references"]):
        assert {"title", "authors", "type"} <= each.keys()
        assert all(author.keys() in ({"name"}, {"family-names", "given-names"}) for author in each["authors"])


def test_citation_and_readme_name_the_same_papers() -> None:
    shown = " ".join(text_of("README.md").split())
    for paper in read_yaml("CITATION.cff")["references"]:
        assert paper["url"] in shown and f"*{paper['title']}.*" in shown
        assert paper["doi"].rsplit("/", 1)[1] in paper["url"] and str(paper["year"]) in shown
        assert all(author["family-names"] in shown for author in paper["authors"])


def test_hooks_run_the_linters_of_the_test_script() -> None:
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    found = linters()
    assert repository["repo"] == "local" and hooks.keys() == found.keys() and len(found) == 4
    for name, command in found.items():
        if name == "shellcheck":  # pre-commit passes files to the hook; test.sh lists them with a function
            assert command == "check_shell" and hooks[name]["types"] == ["shell"]
        else:
            assert hooks[name]["entry"] == command and hooks[name]["pass_filenames"] is False


def test_workflow_runs_every_check() -> None:
    workflow = read_yaml(".github/workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"] and workflow["permissions"] == {"contents": "read"}
    versions = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert versions == ["3.10", "3.13"], "stock fairseq needs 3.10, fairseq-fixed supports the newest"
    assert workflow[True].keys() == {"push", "pull_request"}  # YAML parses `on` as true


def test_workflow_that_never_ran_says_so_at_its_top() -> None:
    assert "has never run" in text_of(".github/workflows/ci.yml").partition("\nname:")[0]


def test_wheel_contains_every_file_of_the_package() -> None:
    (patterns,) = re.findall(r"^recursive-include fairseq_resid (.+)$", text_of("MANIFEST.in"), re.MULTILINE)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "fairseq_resid"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git tree")
    names = [Path(line).name for line in listed.stdout.decode().splitlines() if not (ROOT / line).is_symlink()]
    assert "py.typed" in names and len(names) > 100
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split())] == []


def test_contributing_names_commands_and_files_that_exist() -> None:
    page = text_of("CONTRIBUTING.md")
    blocks = re.findall(r"^```text\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    commands = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    usage = text_of("scripts/test.sh") + text_of("scripts/setup.sh")
    for program, *words in commands:
        assert program in ("source", "python") or (ROOT / program).is_file()
        assert all(
            f"{word} " in usage
            for word in words
            if program.startswith("scripts") and word.startswith("--") and word != "--"
        )
        assert all((ROOT / word).is_file() for word in words if word.endswith(".py"))
    assert ["scripts/test.sh"] in commands and ["scripts/test.sh", "--all"] in commands
