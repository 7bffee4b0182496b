"""Makes or repairs the virtual environment: what scripts/setup.sh does as soon as it has found a Python.

    setup_environment.py check VENV [--with-tests] [--python-version 3.11]    exit code 0: there is nothing to do
    setup_environment.py make VENV [--with-tests]

`check` is run by the environment's own Python: if that is broken, there is something to do. `make` runs under the
Python that the environment is made from, because it may have to delete the environment's own. Both use the standard
library only and import nothing of this project, because nothing is installed yet.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

# Not resolved: scripts/setup.sh names this file by the path that the stamp holds.
ROOT = Path(__file__).absolute().parent.parent
CPU_MB, CUDA_MB = 2500, 9000  # free disk that an environment needs, by the build of torch
STEPS = 5
STAMP, LOCK, LOG = ".setup-stamp", ".setup-lock", "setup.log"  # in the environment's folder
GO_ON = "scripts/setup.sh goes on from here."
ANOTHER_PLACE = "Choose another place: FAIRSEQ_RESID_VENV=FOLDER scripts/setup.sh"
EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}

# A pattern in pip's output, and what is said then; the first that fits counts. {} stands for the text found.
REASONS = {
    r"No space left on device|Errno 28|Disk quota exceeded": (
        f"the disk is full. Make room (pip's downloads: pip cache purge). {ANOTHER_PLACE}"
    ),
    r"Permission denied|Errno 13|Read-only file system": (
        "a folder cannot be written to (see the line with 'Permission denied' or 'Read-only')."
    ),
    r"CERTIFICATE_VERIFY_FAILED|SSLError": (
        "the package index was reached, but its certificate is not trusted here (PIP_CERT names a certificate file)."
    ),
    r"Temporary failure in name resolution|Name or service not known|nodename nor servname|NewConnectionError"
    r"|ConnectTimeoutError|ReadTimeoutError|ProxyError|Network is unreachable|Connection (?:refused|reset|aborted)"
    r"|RemoteDisconnected|Max retries exceeded": (
        "no package index could be reached. Check the network, the proxy (https_proxy) or pip's index (PIP_INDEX_URL)."
    ),
    r"THESE PACKAGES DO NOT MATCH THE HASHES": (
        "a download was damaged. Run scripts/setup.sh again; if it stays so: pip cache purge"
    ),
    r"fatal error: Killed|internal compiler error|MemoryError|Cannot allocate memory|Signals\.SIGKILL"
    r"|exit (?:code|status):? -9": "memory ran out. Close other programs, or MAX_JOBS=1 scripts/setup.sh",
    r"Python\.h: No such file|command '[^']*(?:g\+\+|gcc|cc|clang)[^']*' failed|error: command .* failed"
    r"|Failed (?:to build|building)|Unable to find a compatible": (
        "fairseq could not be compiled. It needs a C++ compiler and Python's headers; the log has the compiler's words."
    ),
    # The second half is ResolutionImpossible where nothing was collected: with its retries off, pip says no more
    # than that about an index that does not answer.
    r"from versions: none|\A(?![\s\S]*^(?:Collecting|Processing|Requirement already))[\s\S]*ResolutionImpossible": (
        "the package index was not reached, or does not have the package. Check the network and PIP_INDEX_URL."
    ),
    r"No matching distribution found for .*": "the package index has no version that fits: {}",
    r"Could not find a version": "the package index has no version that fits: see the log",
    r"ResolutionImpossible|conflicting dependencies": (
        "the versions asked for exclude each other (is FAIRSEQ_RESID_TORCH set?)."
    ),
}


class Failure(Exception):
    """The setup cannot go on: the exit code, and the lines that say why."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(*lines)
        self.code, self.lines = code, lines


class Stopped(BaseException):
    """A signal ended the setup. Like KeyboardInterrupt it is no Exception."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(*lines: str, error: bool = False) -> None:
    for line in lines:
        print(f"setup: {line}", file=sys.stderr if error else sys.stdout, flush=True)


def diagnose(output: str) -> str:
    """Say in plain words why an installation step failed, from what pip wrote."""
    for pattern, reason in REASONS.items():
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            return "Reason: " + reason.replace("{}", found.group())
    return "Reason: not one that is known; the end of the log is above."


# ------------------------------------------------------------------------------------------- environment


@dataclasses.dataclass(frozen=True)
class Environment:
    """The environment asked for: its folder, and what is to be in it."""

    venv: Path
    with_tests: bool = False
    python_version: str = ""  # "3.11"; empty: any
    torch: str = ""  # FAIRSEQ_RESID_TORCH
    root: Path = ROOT

    @property
    def python(self) -> str:
        return str(self.venv / "bin/python")

    @property
    def site_packages(self) -> Path:
        return self.venv / "lib" / f"python{self.python_version}" / "site-packages"

    def made_with(self) -> str:
        """The Python version in pyvenv.cfg, "3.11.7", read without starting that Python; empty if there is none."""
        with suppress(OSError):
            for line in (self.venv / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "version":
                    return value.strip()
        return ""

    def fingerprint(self) -> str:
        """Hash of everything that the environment is made from, its test tools apart."""
        inputs = [self.root / name for name in ("setup.py", "pyproject.toml", "fairseq_resid/version.py")]
        inputs += sorted((self.root / "constraints").glob("*.txt"))
        settings = ["format 1", str(self.root), str(self.venv), self.made_with(), self.torch]
        text = b"".join(os.fsencode(f"{setting}\n") for setting in settings)
        return hashlib.sha256(text + b"".join(path.read_bytes() for path in inputs)).hexdigest()

    def write_stamp(self) -> None:
        """Write what the environment was made from and what lies in it: only when everything is installed."""
        entries = [path for path in self.venv.glob("lib/python*/site-packages/[!.]*") if path.name != "__pycache__"]
        names = sorted(str(path.relative_to(self.venv)) for path in entries if path.exists())
        lines = [self.fingerprint(), f"extras={'test' if self.with_tests else 'none'}", *names]
        partial = self.venv / f"{STAMP}.partial"
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
        partial.replace(self.venv / STAMP)

    def read_stamp(self) -> list[str]:
        """The stamp's lines: fingerprint, extras, names; none where there is no stamp."""
        try:
            return (self.venv / STAMP).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            return []

    def has_test_tools(self) -> bool:
        """What the stamp says of them, which an older tree may have written."""
        return "extras=test" in self.read_stamp()[1:2]

    def is_complete(self) -> bool:
        """The stamp fits this tree, this environment and what is asked for, and nothing was deleted since."""
        lines = self.read_stamp()
        return (
            len(lines) > 2
            and os.access(self.python, os.X_OK)
            and self.python_version in ("", minor(self.made_with()))
            and (self.has_test_tools() or not self.with_tests)
            and lines[0] == self.fingerprint()
            and all((self.venv / name).exists() for name in lines[2:])
        )

    def is_foreign(self) -> bool:
        """The folder holds files, and none of them is from an environment or from a setup that was stopped."""
        known = any((self.venv / name).is_file() for name in ("pyvenv.cfg", LOCK))
        return not known and self.venv.is_dir() and any(self.venv.iterdir())

    def is_sound(self) -> bool:
        """Its Python and pip run, and it lies where it was made."""
        activate = self.venv / "bin/activate"
        if not self.made_with() or not os.access(self.python, os.X_OK) or not activate.is_file():
            return False
        # A moved environment still starts, but its commands name the old place in their first line.
        if os.path.abspath(self.venv) not in activate.read_text(encoding="utf-8", errors="surrogateescape"):
            return False
        with suppress(OSError):  # of another kind of machine, say
            pip = [self.python, "-I", "-m", "pip", "--version"]
            return subprocess.run(pip, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
        return False


def minor(version: str) -> str:
    """3.11 of 3.11.7."""
    return version.rpartition(".")[0]


def pins(constraints: Path, python_version: str) -> dict[str, str]:
    """{"torch": "2.13.0", ...} of a file in constraints/, for Python "3.11" and the like."""
    found = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        pin, _, marker = line.partition("; python_version ")
        since = re.fullmatch(r'(<|>=) "3\.(\d+)"', marker)
        if line.startswith("#") or "==" not in pin:
            continue
        if since is None or (since[1] == ">=") == (int(python_version.split(".")[1]) >= int(since[2])):
            name, version = pin.split("==")
            found[name] = version
    return found


def drop_half_installed(site_packages: Path) -> list[str]:
    """Remove the records of packages whose files are not all there, so that pip installs them again; their names.

    A pip that was killed leaves such packages, and believes them installed.
    """
    for leftover in site_packages.glob("~*"):
        shutil.rmtree(leftover, ignore_errors=True)
    dropped = []
    for info in sorted(site_packages.glob("*.dist-info")):
        try:
            with open(info / "RECORD", newline="", encoding="utf-8") as lines:
                files = [row[0] for row in csv.reader(lines) if row and not row[0].endswith(".pyc")]
        except (OSError, ValueError, csv.Error):
            files = []
        whole = files and (info / "METADATA").is_file() and all((site_packages / file).exists() for file in files)
        if not whole:
            dropped.append(info.name.split("-")[0])
            shutil.rmtree(info, ignore_errors=True)
    return dropped


# ------------------------------------------------------------------------------ what this machine lacks


def check_disk(folder: Path) -> None:
    """Ask the nearest folder that exists, `folder` or above it, for room and the permission to write."""
    wanted = os.environ.get("FAIRSEQ_RESID_NEED_MB") or str(CPU_MB)
    if not wanted.isdecimal():
        raise Failure(2, f"FAIRSEQ_RESID_NEED_MB={wanted} is not a whole number of MB.")
    while not folder.is_dir():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise Failure(3, f"{folder} is not writable. {ANOTHER_PLACE}")
    free = shutil.disk_usage(folder).free // 2**20
    if free < int(wanted):
        raise Failure(
            3,
            f"not enough disk: {free} MB free at {folder}, {wanted} MB needed (a CPU build of torch; a CUDA build"
            f" needs {CUDA_MB} MB).",
            f"Make room. {ANOTHER_PLACE}",
        )
    if free < CUDA_MB and platform.system() == "Linux":
        say(f"{free} MB free at {folder}: enough for a CPU build of torch, not for a CUDA build ({CUDA_MB} MB).")


def check_compiler() -> None:
    """Compile a file that includes Python.h: fairseq comes as source."""
    installed = [name for name in ("g++", "c++", "clang++") if shutil.which(name)]
    compiler = os.environ.get("CXX", "").split() or installed[:1]  # CXX may hold options: "ccache g++"
    if not compiler:
        raise Failure(
            3,
            "no C++ compiler: fairseq is built from source.",
            "Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++;"
            " macOS: xcode-select --install).",
        )
    include = "-I" + sysconfig.get_path("include")
    command = [*compiler, "-std=c++11", "-fsyntax-only", include, "-x", "c++", "-"]
    source = b"#include <Python.h>\n#include <vector>\n"
    try:
        done = subprocess.run(command, input=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        status, output = done.returncode, done.stdout.decode(errors="replace")
    except OSError as error:
        status, output = 127, str(error)
    if status:
        first = (output.splitlines() or [f"exit code {status}"])[0]
        raise Failure(
            3,
            f"the C++ compiler '{' '.join(compiler)}' cannot compile a file that includes Python.h and <vector>:",
            first,
            "Install g++ and Python's headers (Debian, Ubuntu: apt-get install g++ python3-dev).",
        )


# ------------------------------------------------------------------------------- steps, lock and signals


class Steps:
    """The numbered steps of one run: a line each on stdout with its seconds, what the commands write in the log."""

    def __init__(self, log: Path, keep_open: tuple[int, ...] = ()) -> None:
        self.log, self.keep_open = log, keep_open
        self.number = 0
        self.offset = 0  # where in the log the present step begins
        log.write_bytes(b"")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        self.number += 1
        heading = f"[{self.number}/{STEPS}] {text}"
        print(f"setup: {heading} ... ", end="", flush=True)
        with open(self.log, "ab") as log:
            log.write(os.fsencode(f"\n===== {heading}\n"))
            self.offset = log.tell()
        start = time.monotonic()
        try:
            yield
        except BaseException as error:
            end = "stopped" if isinstance(error, Stopped) else f"failed after {time.monotonic() - start:.0f} s"
            print(end, flush=True)
            raise
        print(f"{time.monotonic() - start:.0f} s", flush=True)

    def output(self) -> str:
        """What the present step has written to the log so far."""
        return self.log.read_bytes()[self.offset :].decode(errors="replace")

    def run(self, *command: str | Path, **variables: str) -> None:
        """Run a command with its output in the log; a signal ends it at once, with all that it has started."""
        # A signal that came while the child is started would leave it behind: it waits until the child is known.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
        with open(self.log, "ab") as log, unmasked_on_error(mask):
            # A session of its own, so that one signal reaches the compilers under pip too. The lock stays open in
            # it: should this process be killed, the next setup waits for what is still running.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**child_environment(), **variables},
                start_new_session=True,
                pass_fds=self.keep_open,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
            )
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            status = child.wait()
        except BaseException:
            end_all(child)
            raise
        if status:
            output = self.output()
            lines = [line for line in output.splitlines() if line.strip()]
            lines = [line for line in lines if not re.search("Location .* is ignored", line)]
            raise Failure(
                1,
                f"the last lines of {self.log}:",
                *(f"    {line[:300]}" for line in lines[-25:]),
                diagnose(output),
                f"What was downloaded is kept: the next {GO_ON}",
            )


@contextmanager
def unmasked_on_error(mask: set[int | signal.Signals]) -> Iterator[None]:
    """Take signals again, as `mask` has it, if the block fails."""
    try:
        yield
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise


def child_environment() -> dict[str, str]:
    """Foreign packages must not count as installed, and a "--user" in pip's configuration fails in an environment."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "PYTHONNOUSERSITE": "1", "PIP_USER": "0"}


def end_all(child: subprocess.Popen[bytes]) -> None:
    """End a child and its descendants, the hard way if they do not follow."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
            return


def stop(number: int, frame: FrameType | None) -> None:
    for other in EXIT_CODES:  # what is left to do is to end the child
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(EXIT_CODES[number])


def watch_signals() -> None:
    for number in EXIT_CODES:
        # What was ignored at the start, as under nohup, stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


@contextmanager
def locked(environment: Environment) -> Iterator[tuple[int, bool]]:
    """Hold the environment's lock: its descriptor, and whether another setup had it first."""
    try:
        environment.venv.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(environment.venv / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise Failure(3, f"{environment.venv} cannot be made or written: {error.strerror}. {ANOTHER_PLACE}") from error
    waited = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another setup of {environment.venv} is at work; waiting for it")
            waited = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            # A network file system without locks.
            say(f"no lock ({error.strerror}): let no other setup of {environment.venv} run at the same time.")
        yield descriptor, waited
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------- installation


def make_venv(environment: Environment, steps: Steps) -> None:
    """Keep the environment that is there, less what is half installed in it, or make it anew."""
    made_for = minor(environment.made_with())
    with steps.step(f"environment {environment.venv}"):
        if made_for not in ("", environment.python_version):
            print(f"(was Python {made_for}, made anew) ", end="", flush=True)
        elif environment.is_sound():
            dropped = drop_half_installed(environment.site_packages)
            if "pip" not in dropped:
                if dropped:
                    print(f"(repairing: {', '.join(dropped)}) ", end="", flush=True)
                return
        for path in sorted(environment.venv.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in (LOCK, LOG):
                path.unlink()
        steps.run(sys.executable, "-I", "-m", "venv", environment.venv)


def write_constraints(pinned: Path, target: Path, torch: str) -> None:
    """Copy the pins; for another torch without those that follow it, so that pip takes the ones that fit."""
    lines = pinned.read_text(encoding="utf-8").splitlines(keepends=True)
    follow_torch = ("torch==", "torchaudio==", "triton==") if torch else ()
    target.write_text("".join(line for line in lines if not line.startswith(follow_torch)), encoding="utf-8")


def install(environment: Environment, steps: Steps) -> None:
    """Install pip, torch, fairseq and this package under the constraints, then import them."""
    fairseq, pinned, duration = "fairseq-fixed", "fairseq-fixed.txt", "3 minutes"
    if environment.python_version == "3.10":
        fairseq, pinned, duration = "fairseq", "fairseq-0.12.2.txt", "half a minute"
    pinned_file = environment.root / "constraints" / pinned
    pin = pins(pinned_file, environment.python_version)
    constraints = environment.venv / "constraints.txt"
    write_constraints(pinned_file, constraints, environment.torch)
    python = [environment.python, "-I"]
    pip = [*python, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off", "--no-input"]
    pip += ["-c", str(constraints)]

    with steps.step(f"pip {pin['pip']}"):
        steps.run(*pip, f"pip=={pin['pip']}")

    with steps.step(f"{environment.torch or 'torch ' + pin['torch']}, numpy, build tools"):
        steps.run(*pip, environment.torch or "torch", "numpy", "cython", "setuptools", "wheel")
        if environment.torch:
            (torch,) = importlib.metadata.distributions(name="torch", path=[str(environment.site_packages)])
            with open(constraints, "a", encoding="utf-8") as file:
                file.write(f"torch=={torch.version}\n")

    compiled = f"{fairseq} {pin[fairseq]} (compiled on the first run: about {duration})"
    with steps.step(f"{compiled} and this package"):
        if fairseq == "fairseq":
            # 0.12.2's source archive lacks a file that its setup.py compiles where it sees torch: it is built
            # apart, without torch; PIP_CONSTRAINT, unlike -c, holds in that build too, so that numpy is ours.
            steps.run(*pip, fairseq, PIP_CONSTRAINT=str(constraints))
        else:
            # Built here, beside torch: apart from it pip would fetch a second torch.
            steps.run(*pip, "--no-build-isolation", fairseq)
        extra = "[test]" if environment.with_tests else ""
        steps.run(*pip, "--no-build-isolation", "-e", f"{environment.root}{extra}")

    imports = "import importlib.util, torch, fairseq, fairseq.data.data_utils_fast, sacrebleu, sentencepiece"
    found = "assert importlib.util.find_spec('fairseq_resid'), 'fairseq_resid is not importable'"
    versions = "print('torch', torch.__version__, 'CUDA', torch.version.cuda)"
    with steps.step("check"):
        steps.run(*python, "-c", f"{imports}; {found}; {versions}")


def make(environment: Environment) -> None:
    """Make or repair the environment with the Python that runs this."""
    start = time.monotonic()
    venv = environment.venv
    if environment.is_foreign():
        raise Failure(3, f"{venv} holds files and is no Python environment: nothing is done there.", ANOTHER_PLACE)
    check_disk(venv)
    check_compiler()
    with locked(environment) as (descriptor, waited):
        if waited and environment.is_complete():
            say_nothing_to_do(environment)
            return
        # What the stamp says is installed stays installed.
        with_tests = environment.with_tests or environment.has_test_tools()
        environment = dataclasses.replace(environment, with_tests=with_tests)
        (venv / STAMP).unlink(missing_ok=True)
        steps = Steps(venv / LOG, (descriptor,))
        say(f"Python {environment.python_version} ({sys.executable}); log: {steps.log}")
        torch_is_there = environment.torch or (environment.site_packages / "torch").is_dir()
        if platform.system() == "Linux" and not torch_is_there and not shutil.which("nvidia-smi"):
            say("no NVIDIA GPU seen: if the package index offers a CPU build of torch, that is smaller (see --help)")
        make_venv(environment, steps)
        install(environment, steps)
        environment.write_stamp()
        megabytes = sum(path.lstat().st_blocks for path in venv.rglob("*")) * 512 // 2**20
        versions = steps.output().splitlines()[-1]
        seconds = time.monotonic() - start
        say(f"done in {seconds:.0f} s: {versions}, {megabytes} MB. Activate it: source {venv}/bin/activate")


def leave(venv: Path) -> None:
    """Start again with the Python under the environment, if this is the environment's own: it cannot make itself."""
    if sys.prefix != sys.base_prefix and Path(sys.prefix).resolve() == venv.resolve():
        base = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))
        try:
            os.execv(base, [base, "-I", *sys.argv])
        except OSError as error:
            raise SystemExit(f"setup: the Python under {venv} cannot be started: {error}") from None


def say_nothing_to_do(environment: Environment) -> None:
    say(f"nothing to do: {environment.venv} is complete (Python {environment.made_with()})")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run by scripts/setup.sh, whose --help says more.", allow_abbrev=False)
    parser.add_argument("action", choices=["check", "make"])
    parser.add_argument("venv", type=Path, metavar="VENV", help="the environment's folder")
    parser.add_argument("--with-tests", action="store_true", help="with the test tools")
    parser.add_argument("--python-version", default="", metavar="3.11", help="check: of this Python (default: any)")
    options = parser.parse_args(arguments)
    if options.action == "make":
        leave(options.venv)
    # Folder names that the terminal's encoding lacks are no reason to end.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    version = options.python_version if options.action == "check" else "{}.{}".format(*sys.version_info)
    torch = os.environ.get("FAIRSEQ_RESID_TORCH", "")
    environment = Environment(options.venv, options.with_tests, version, torch, ROOT)
    if options.action == "check":
        if not environment.is_complete():
            return 1
        say_nothing_to_do(environment)
        return 0
    try:
        watch_signals()
        make(environment)
    except Failure as failure:
        say(*failure.lines, error=True)
        return failure.code
    except Stopped as stopped:
        say(f"stopped before the end; {GO_ON}", error=True)
        return stopped.code
    except OSError as error:
        say(f"{error}", f"What is done is kept: the next {GO_ON}", error=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
