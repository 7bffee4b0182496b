"""A wheel is complete: its command works outside the source tree, and its structures need only torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fairseq_resid.__main__ import COMMANDS
from support.shells import run_within

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
# The commands that pip would create from fairseq's entry points if fairseq were installed in the new environment.
SCRIPTS = {"fairseq-train": "train", "fairseq-generate": "generate", "fairseq-preprocess": "preprocess"}
SMALL = """
    data-bin/tiny --share-all-embeddings --optimizer adam --lr 0.005 --criterion label_smoothed_cross_entropy
    --distributed-world-size 1 --max-tokens 800 --max-update 4 --save-interval-updates 1 --no-epoch-checkpoints
    --disable-validation --cpu
"""


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
OFFLINE = ["--no-deps", "--no-index", "--no-build-isolation"]


def copy_of_source(folder: Path) -> Path:
    hidden = shutil.ignore_patterns(".*", "data-bin", "checkpoints", "*.egg-info", "__pycache__", "build")
    return Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=hidden))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Build a wheel; return it and the output of pip and setuptools."""
    folder = tmp_path_factory.mktemp("built")
    source = copy_of_source(folder / "source")
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([*PIP, "--verbose", "wheel", source, *OFFLINE, "-w", folder], text=True, **both)
    assert done.returncode == 0, done.stdout[-4000:]
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout


def environment_with(wheel: Path, folder: Path) -> Path:
    """Create FOLDER/venv with the wheel but without its dependencies; return its site-packages."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*PIP, "--quiet", "--python", python, "install", wheel, *OFFLINE], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    return site


def with_dependencies(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yield an installed distribution and everything that it requires, each distribution once."""
    seen.add(name)
    distribution = metadata.distribution(name)
    yield distribution
    for required in map(Requirement, distribution.requires or []):
        applies = required.marker is None or required.marker.evaluate({"extra": ""})
        if applies and required.name not in seen:
            yield from with_dependencies(required.name, seen)


@pytest.fixture(scope="module")
def torch_only(built: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel, and with links to torch and its dependencies in the tests' environment."""
    folder = tmp_path_factory.mktemp("torch_only")
    site = environment_with(built[0], folder)
    for distribution in with_dependencies("torch", set()):
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    return folder


@pytest.fixture(scope="module")
def installed(built: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel that borrows all other packages from the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    site = environment_with(built[0], folder)
    python = folder / "venv" / "bin" / "python"
    borrowed = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    for name, module in SCRIPTS.items():
        script = python.with_name(name)
        script.write_text(f"#!{python}\nfrom fairseq_cli.{module} import cli_main\ncli_main()\n")
        script.chmod(0o755)
    return folder


def shell(command: str, folder: Path, text: str | None = None, timeout: float = 300) -> str:
    environment = {
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},  # mostly the package index
    }
    words = ["bash", "-c", command]
    done = run_within(timeout, words, text, cwd=folder, env=environment, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def test_wheel_is_built_without_warnings(built: tuple[Path, str]) -> None:
    lines = [line.strip() for line in built[1].splitlines() if "warning" in line.lower()]
    assert [line for line in lines if "byte-compiling is disabled" not in line] == []


def test_wheel_has_type_information(torch_only: Path) -> None:
    (site,) = (torch_only / "venv" / "lib").glob("python*/site-packages")
    assert (site / "fairseq_resid" / "py.typed").is_file()


def test_wheel_requires_only_torch_and_extras_require_the_rest(torch_only: Path) -> None:
    (site,) = (torch_only / "venv" / "lib").glob("python*/site-packages")
    described: Message = next(iter(metadata.distributions(name="fairseq_resid", path=[str(site)]))).metadata
    required = [Requirement(text) for text in described.get_all("Requires-Dist", [])]

    def needed(python: str, extra: str) -> set[str]:
        where = {"python_version": python, "extra": extra}
        return {each.name for each in required if each.marker is None or each.marker.evaluate(where)}

    assert needed("3.12", "") == {"torch"}
    assert needed("3.10", "fairseq") > {"torch", "fairseq", "sacrebleu"} and "fairseq-fixed" in needed(
        "3.11", "fairseq"
    )
    assert needed("3.10", "fairseq") ^ needed("3.11", "fairseq") == {"fairseq", "fairseq-fixed"}


def test_structures_need_only_torch(torch_only: Path) -> None:
    code = "import torch, importlib.util as u; from fairseq_resid import connections, ops; x = torch.randn(3, 2, 16)\n"
    code += "for name in connections.own_names():\n"
    code += "    place = connections.Place(16, 'encoder', 'self_attn', 0, False, 0, 2, {'encoder': 1, 'decoder': 1})\n"
    code += "    site = connections.build(name, place)\n"
    code += "    state = site.enter(x)\n"
    code += "    assert site(state, site.branch_input(state)).isfinite().all(), name\n"
    code += "print([name for name in ('fairseq', 'numpy', 'msgspec', 'rich', 'yaml') if u.find_spec(name)])"
    assert shell(f'python -W ignore -c "{code}"', torch_only).splitlines()[-1] == "[]"


def test_language_model_needs_only_torch(torch_only: Path) -> None:
    shown = shell(f"python -W ignore {ROOT / 'examples' / 'gpt.py'} --residual post_ln --updates 2", torch_only)
    assert "\npost_ln " in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_fairseq_says_what_to_install(torch_only: Path, command: str) -> None:
    shown = shell(f'fairseq-resid {command} --help 2>&1; echo "exit code $?"', torch_only).splitlines()
    assert len(shown) == 2 and shown[1] == "exit code 3"
    assert shown[0].startswith(f"fairseq-resid {command}: error: fairseq is not installed; ")
    assert 'pip install ".[fairseq]"' in shown[0]


def test_help_and_user_dir_work_without_fairseq(torch_only: Path) -> None:
    assert "usage: fairseq-resid COMMAND" in shell("fairseq-resid", torch_only)
    assert Path(shell("fairseq-resid user-dir", torch_only).strip(), "models", "__init__.py").is_file()


@pytest.mark.long
def test_pip_installs_structures_and_then_everything(tmp_path: Path) -> None:
    """Install from the package index into an empty environment, with the same versions as scripts/setup.sh."""
    source = copy_of_source(tmp_path / "source")
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    pins = "fairseq-0.12.2" if sys.version_info < (3, 11) else "fairseq-fixed"
    pins = ROOT / "constraints" / f"{pins}.txt"
    pip = f"PIP_CONSTRAINT={pins} python -m pip install --quiet"
    if sys.version_info < (3, 11):
        shell(f"{pip} --upgrade pip", tmp_path)  # the pinned pip; later versions refuse fairseq 0.12.2
    shell(f"{pip} {source}", tmp_path, timeout=1800)
    assert "fairseq" not in shell("python -m pip list | grep -v fairseq_resid", tmp_path)
    shell("python -c 'from fairseq_resid import connections; connections.build(\"sas\", 8)'", tmp_path)
    assert "is not installed" in shell("! fairseq-resid train --help 2>&1", tmp_path)
    shell(f'{pip} "{source}[fairseq]"', tmp_path, timeout=1800)
    shell("python -m pip check && fairseq-resid train --help && fairseq-train --help", tmp_path)


def test_wheel_has_all_recipes_and_manifests(installed: Path) -> None:
    code = "from fairseq_resid.runs import recipe; from fairseq_resid.data.text import manifest; "
    code += "print(recipe.__file__, *recipe.available(), *manifest.names(), recipe.read('quickstart')[0])"
    file, *names = shell(f'python -c "{code}"', installed).split()
    assert file.startswith(str(installed / "venv"))
    recipes = [path.stem for path in sorted((ROOT / "scripts" / "recipes").glob("*.txt"))]
    manifests = sorted(path.stem for path in (ROOT / "fairseq_resid" / "data" / "text" / "manifests").glob("*.yaml"))
    assert recipes and names == [*recipes, *manifests, "data-bin/phrasebook"]


def test_wheel_command_prepares_trains_evaluates_and_translates(installed: Path, raw_text: dict[str, Path]) -> None:
    prefixes = " ".join(f"--{split} {path}" for split, path in raw_text.items())
    prepare = "fairseq-resid prepare custom --name tiny --source en --target xx --vocab-size 90 --workers 1"
    assert "+ fairseq-preprocess " in shell(f"{prepare} {prefixes} --out data-bin/tiny", installed)
    (installed / "tiny.txt").write_text(SMALL)
    shown = shell("fairseq-resid train tiny.txt --arch transformer_sas_tiny --run run", installed)
    package = shell("fairseq-resid user-dir", installed).strip()
    assert package.startswith(str(installed / "venv")) and f"--user-dir {package} " in shown
    shown = shell("fairseq-resid evaluate run --last 2 --subset test --cpu", installed)
    assert "run test: BLEU averaged " in shown and (installed / "run" / "card.md").is_file()
    lines = shell("fairseq-resid translate run --cpu 2>/dev/null", installed, "the red fox sees a king .\n\n")
    assert len(lines.splitlines()) == 2 and lines.splitlines()[0] and not lines.splitlines()[1]
    flags = "--optimizer adam --max-tokens 800 --max-update 1 --no-save --disable-validation --cpu"
    stock = f'fairseq-train data-bin/tiny --user-dir "$(fairseq-resid user-dir)" --arch transformer_sas_tiny {flags}'
    assert "num_updates" in shell(stock, installed) or "done training" in shell(stock, installed)
