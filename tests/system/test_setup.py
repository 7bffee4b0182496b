"""Run all of scripts/setup.sh with a fake Python, so that nothing is downloaded."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from support.shells import run_within

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash") or "/bin/bash"

# A fake Python that writes its arguments to $CALLS and answers like Python 3.11. A venv that it creates contains the
# same program. If $PIP_PRINTS is set, its pip prints the value and fails.
FAKE_PYTHON = rf"""
if [[ $* == *'config list'* ]]; then echo "${{CONFIGURED:-}}"; exit; fi
ninja=${{SHOW_NINJA:+$(ninja --version 2>/dev/null)}}
printf '%s\n' "$*${{PIP_EXTRA_INDEX_URL:+ --extra-index-url $PIP_EXTRA_INDEX_URL}}$ninja" >>"$CALLS"
case "$2 $3" in
    *version_info*) echo "${{FAKE_VERSION:-3.11}}" ;;
    *get_path*) echo {sysconfig.get_path("include")} ;;
    *_base_executable*) echo "$BASE" ;;
    *'version("torch")'*) echo torch==2.9.0+cpu ;;
    '-m venv')
        rm -rf "$5"
        mkdir -p "$5/bin" "$5/lib/python${{FAKE_VERSION:-3.11}}/site-packages"
        cp "$0" "$5/bin/python"
        echo "version = 3.11.7" >"$5/pyvenv.cfg" ;;
    '-m pip')
        if [[ -n ${{PIP_PRINTS:-}} ]]; then echo "$PIP_PRINTS" && exit 1; fi
        site="${{0%/bin/python}}/lib/python${{FAKE_VERSION:-3.11}}/site-packages"
        mkdir -p "$site/torch" "$site/torch-2.9.0.dist-info" "$site/__pycache__" ;;
esac
"""


def program(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


class Tree:
    """A copy of the files that setup.sh reads, with a fake Python and the record of its calls."""

    def __init__(self, folder):
        self.root, self.calls_file = folder / "a tree", folder / "calls"
        for name in ("setup.py", "pyproject.toml", "scripts/setup.sh", "fairseq_resid/version.py"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        shutil.copytree(ROOT / "constraints", self.root / "constraints")
        self.venv = self.root / ".venv"
        self.site = self.venv / "lib" / "python3.11" / "site-packages"
        self.python = program(folder / "fake" / "python3.11", FAKE_PYTHON)
        self.home = folder

    def setup(self, *arguments, code=0, **variables):
        """Run setup.sh; return its output and its calls of pip and venv."""
        self.calls_file.write_text("")
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("FAIRSEQ_RESID_", "PYENV_", "PIP_"))
        }
        own = {"HOME": str(self.home), "CALLS": str(self.calls_file), "BASE": str(self.python)}
        environment = {**kept, **own, "FAIRSEQ_RESID_NEED_MB": "0", "CONFIGURED": "index-url", **variables}
        command = [BASH, str(self.root / "scripts" / "setup.sh"), *arguments]
        done = run_within(60, command, env=environment, cwd=self.home)
        assert done.returncode == code, done.stdout + done.stderr
        calls = [line.removeprefix("-I -m ") for line in self.calls_file.read_text().splitlines()]
        return done.stdout + done.stderr, [call for call in calls if call.startswith(("pip", "venv"))]

    def make(self, *arguments, code=0, **variables):
        return self.setup("--python", str(self.python), *arguments, code=code, **variables)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.fixture
def made(tree):
    tree.make()
    return tree


def bare_path(folder):
    """Return a PATH on which there is no Python."""
    folder.mkdir()
    for name in ("dirname", "cat", "ls", "grep"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


# ----------------------------------------------------------------------------------------- which Python


def test_pyenv_python_is_found_despite_a_dead_shim(tree, tmp_path):
    path = bare_path(tmp_path / "bin")
    program(path / "python3.11", "exit 127")
    good = program(tmp_path / ".pyenv/versions/3.11.7/bin/python3.11", FAKE_PYTHON)
    assert tree.setup("--find-python", "3.11", PATH=str(path))[0] == f"{good}\n"
    tree.setup("--find-python", "3.12", code=3, PATH=str(path))
    for named in ("3.11", "python3.11"):
        needs = {"PATH": f"{path}:/usr/bin:/bin", "FAIRSEQ_RESID_NEED_MB": "999999999"}
        output, _ = tree.setup("--python", named, code=3, **needs)
        assert "999999999 MB are needed" in output, "setup.sh found no Python"


def test_real_interpreter_is_accepted_and_an_old_one_refused(tree, tmp_path):
    version = "{}.{}".format(*sys.version_info)
    output, _ = tree.setup("--find-python", version, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert Path(output.strip()).name == f"python{version}"
    old = program(tmp_path / "python3.9", 'echo "Python 3.9 is not supported" >&2; exit 1')
    output, _ = tree.setup("--python", str(old), code=3)
    assert "Python 3.9 is not supported; allowed: Python 3.10, 3.11, 3.12 or 3.13" in output


# ------------------------------------------------------------------------------------ installed packages


def test_first_run_installs_in_order_under_constraints(tree):
    output, calls = tree.make("--with-tests")
    assert calls[0] == f"venv --clear {tree.venv}"
    tools, fairseq, package = [call.partition(" -c ")[2] for call in calls[1:]]
    assert tools == f"{tree.venv}/constraints.txt pip==25.3 torch numpy cython setuptools wheel"
    assert fairseq.endswith(" --no-build-isolation fairseq-fixed")
    assert package.endswith(f" --no-build-isolation -e {tree.root}[fairseq,test]")
    assert (tree.venv / "constraints.txt").read_bytes() == (tree.root / "constraints/fairseq-fixed.txt").read_bytes()
    assert f"Activate the environment: source {tree.venv}/bin/activate" in output


@pytest.mark.skipif(sys.platform != "linux", reason="on Linux, PyPI's build of torch is for CUDA")
def test_machine_without_gpu_gets_the_cpu_build(tree, tmp_path):
    needs = {"FAIRSEQ_RESID_NEED_MB": "", "CONFIGURED": ""}
    output, calls = tree.make(**needs)
    assert "the CPU build of torch is used" in output
    assert all(call.endswith("--extra-index-url https://download.pytorch.org/whl/cpu") for call in calls[1:])
    gpu = program(tmp_path / "gpu" / "nvidia-smi", "true").parent
    for other in ({"PATH": f"{gpu}:{os.environ['PATH']}"}, {"CONFIGURED": "global.index-url='https://mirror'"}):
        shutil.rmtree(tree.venv)
        output, calls = tree.make(**{**needs, **other})
        assert "CPU build" not in output and not any("index" in call for call in calls)
    (tree.root / "setup.py").write_text("# changed\n")
    assert not any("index" in call for call in tree.make(**needs)[1]), "an update keeps a CUDA build"
    (tree.site / "torch-2.9.0+cpu.dist-info").mkdir()
    (tree.root / "setup.py").write_text("# changed again\n")
    assert all(call.endswith("/whl/cpu") for call in tree.make(**needs)[1])


@pytest.mark.parametrize(("variables", "most"), [({}, 4), ({"CUDA_HOME": "/usr/local/cuda"}, 1)])
def test_extensions_that_compile_at_the_same_time_do_not_use_ninja(tree, tmp_path, variables, most):
    ninja = program(tmp_path / "ninja" / "ninja", 'echo " with ninja"').parent
    _, calls = tree.make(SHOW_NINJA="1", PATH=f"{ninja}:{os.environ['PATH']}", **variables)
    assert [call.endswith(" with ninja") for call in calls[1:]] == [True, False, True]
    expected = f"[build_ext]\nparallel = {min(most, os.cpu_count())}\n"
    assert (tree.venv / "build" / "config").read_text() == expected


def test_python_310_gets_stock_fairseq_in_isolation(tree):
    _, calls = tree.make(FAKE_VERSION="3.10")
    assert " pip==24.0 torch " in calls[1] and calls[2].endswith("/constraints.txt fairseq")
    assert calls[3].endswith(f" -e {tree.root}[fairseq]")


def test_another_torch_unpins_packages_that_depend_on_it(tree):
    _, calls = tree.make(FAIRSEQ_RESID_TORCH="torch>=2.6")
    assert " torch>=2.6 numpy " in calls[1]
    kept = (tree.root / "constraints/fairseq-fixed.txt").read_text().splitlines()
    written = (tree.venv / "constraints.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in kept if line not in written] == ["torch", "torchaudio", "triton"]
    assert written[-1] == "torch==2.9.0+cpu"


def test_setup_of_complete_environment_takes_less_than_a_second(made):
    start = time.perf_counter()
    output, calls = made.setup()
    assert time.perf_counter() - start < 1
    assert output == f"setup: nothing to do: {made.venv} is complete (Python 3.11)\n" and not calls


def test_later_plain_run_keeps_the_test_tools(made):
    assert "[fairseq,test]" in made.make("--with-tests")[1][-1]
    assert "nothing to do" in made.setup()[0] and "nothing to do" in made.setup("--with-tests")[0]
    (made.root / "setup.py").write_text("# changed\n")
    _, calls = made.setup()
    assert len(calls) == 3 and "[fairseq,test]" in calls[-1], "pip updates the environment in place"


def test_changed_input_updates_the_environment(made):
    for file in ("setup.py", "constraints/fairseq-fixed.txt", "fairseq_resid/version.py"):
        with open(made.root / file, "a") as text:
            text.write("# changed\n")
        assert [call.split()[0] for call in made.setup()[1]] == ["pip"] * 3, file
        assert "nothing to do" in made.setup()[0]


def test_link_that_pip_replaced_by_a_copy_is_mended_in_place(made):
    link = made.site / "__editable__.fairseq_resid-1.pth"
    link.touch()
    (made.root / "setup.py").write_text("# changed\n")
    made.setup()
    assert "nothing to do" in made.setup()[0]
    link.unlink()
    assert [call.split()[0] for call in made.setup()[1]] == ["pip"] * 3


def test_broken_environment_is_rebuilt(made, tmp_path):
    def deleted_package():
        shutil.rmtree(made.site / "torch")

    def dead_interpreter():
        (made.venv / "bin/python").unlink()
        (made.venv / "bin/python").symlink_to("/nowhere/python3")

    def no_stamp():
        (made.venv / ".setup-stamp").unlink()

    def empty_stamp():
        (made.venv / ".setup-stamp").write_text("")

    for broken in (deleted_package, dead_interpreter, no_stamp, empty_stamp):
        broken()
        assert made.make()[1][0] == f"venv --clear {made.venv}", broken
        assert "nothing to do" in made.setup()[0]
    made.root = made.root.rename(tmp_path / "moved")
    made.venv = made.root / ".venv"
    assert made.setup()[1][0] == f"venv --clear {made.venv}"


# ---------------------------------------------------------------------------------------- missing requirements


def test_full_disk_is_refused_before_anything_is_written(tree):
    output, calls = tree.make(code=3, FAIRSEQ_RESID_NEED_MB="999999999")
    assert "MB of free disk space; 999999999 MB are needed" in output and not calls and not tree.venv.exists()


def test_unrelated_folder_is_left_alone(tree):
    tree.venv.mkdir()
    (tree.venv / "thesis.tex").write_text("years of work")
    assert ": not a Python environment, and not empty" in tree.make(code=3)[0]
    assert [path.name for path in tree.venv.iterdir()] == ["thesis.tex"]


def test_pip_failure_is_explained_and_next_run_rebuilds(tree):
    line = "OSError: [Errno 28] No space left on device"
    output, calls = tree.make(code=1, PIP_PRINTS=line)
    assert line in output and "The disk is full" in output and "failed: [2/4] torch" in output and len(calls) == 2
    assert line in (tree.venv / "setup.log").read_text()
    assert tree.make()[1][0].startswith("venv")


def test_second_setup_waits_for_the_first(made):
    if not shutil.which("flock"):
        pytest.skip("no flock on this machine")
    holder = subprocess.Popen(["flock", str(made.root), "sh", "-c", "echo held; sleep 1"], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    output, _ = made.setup()
    assert output.startswith("setup: waiting for another setup.sh to finish\nsetup: nothing to do")
    holder.communicate()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "--core"),
        ("--all --references", ""),
        ("-k gate", "-k gate"),
        ("--all -- -m long", "-m long"),
    ],
)
def test_test_script_runs_core_tests_unless_it_gets_arguments(tmp_path, words, expected):
    (tmp_path / "scripts").mkdir()
    shutil.copy2(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    program(tmp_path / "scripts" / "setup.sh", "true")
    program(tmp_path / "venv" / "bin" / "python", 'echo "python $*"')
    for file in ("constraints/references.txt", "venv/references/list.txt"):  # already installed
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": str(tmp_path / "venv")}
    command = [BASH, str(tmp_path / "scripts" / "test.sh"), "--no-lint", *words.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    (shown,) = [line for line in done.stdout.splitlines() if line.startswith("python -m pytest")]
    assert done.returncode == 0 and shown.endswith(f"--max-worker-restart=0 {expected}".rstrip()), done.stdout
