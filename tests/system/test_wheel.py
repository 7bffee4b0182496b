"""A wheel is whole: installed outside the source tree, its one command does the main job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
# As pip makes them of fairseq's entry points: this environment has no fairseq of its own.
SCRIPTS = {"fairseq-train": "train", "fairseq-generate": "generate", "fairseq-preprocess": "preprocess"}
SMALL = """
    data-bin/tiny --share-all-embeddings --optimizer adam --lr 0.005 --criterion label_smoothed_cross_entropy
    --distributed-world-size 1 --max-tokens 800 --max-update 4 --save-interval-updates 1 --no-epoch-checkpoints
    --disable-validation --cpu
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel in it; it borrows the packages of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    hidden = shutil.ignore_patterns(".*", "data-bin", "checkpoints", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT, source, symlinks=True, ignore=hidden)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", source, *offline, "-w", folder / "wheels"], check=True)
    shutil.rmtree(source)
    (wheel,) = (folder / "wheels").glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", wheel, *offline], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    borrowed = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    for name, module in SCRIPTS.items():
        script = python.with_name(name)
        script.write_text(f"#!{python}\nfrom fairseq_cli.{module} import cli_main\ncli_main()\n")
        script.chmod(0o755)
    return folder


def shell(command: str, folder: Path, text: str | None = None) -> str:
    environment = {
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, text=True, input=text, timeout=300, **both
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def test_it_has_all_recipes_and_manifests(installed: Path) -> None:
    code = "from fairseq_resid.runs import recipe; from fairseq_resid.data.text import manifest; "
    code += "print(recipe.__file__, *recipe.available(), *manifest.names(), recipe.read('quickstart')[0])"
    file, *names = shell(f'python -c "{code}"', installed).split()
    assert file.startswith(str(installed / "venv"))
    recipes = [path.stem for path in sorted((ROOT / "scripts" / "recipes").glob("*.txt"))]
    manifests = sorted(path.stem for path in (ROOT / "fairseq_resid" / "corpora" / "manifests").glob("*.yaml"))
    assert recipes and names == [*recipes, *manifests, "data-bin/phrasebook"]


def test_it_has_the_table_of_the_phrasebook(installed: Path) -> None:
    shown = shell("fairseq-resid prepare phrasebook --out raw --train 60 --valid 5 --test 5", installed)
    assert "train 60, valid 5, test 5 pairs" in shown
    assert len((installed / "raw" / "train.vi").read_text(encoding="utf-8").splitlines()) == 60


def test_its_command_prepares_trains_evaluates_and_translates(installed: Path, raw_text: dict[str, Path]) -> None:
    prefixes = " ".join(f"--{split} {path}" for split, path in raw_text.items())
    prepare = "fairseq-resid prepare custom --name tiny --source en --target xx --vocab-size 90 --workers 1"
    assert "+ fairseq-preprocess " in shell(f"{prepare} {prefixes} --out data-bin/tiny", installed)
    (installed / "tiny.txt").write_text(SMALL)
    shown = shell("fairseq-resid train tiny.txt --arch transformer_sas_tiny --run run", installed)
    package = shell("fairseq-resid user-dir", installed).strip()
    assert package.startswith(str(installed / "venv")) and f"--user-dir {package} " in shown
    shown = shell("fairseq-resid evaluate run --last 2 --subset test --cpu", installed)
    assert "run test: BLEU averaged " in shown and (installed / "run" / "card.md").is_file()
    assert "\nrun  " in shell("fairseq-resid table run", installed)
    shell("fairseq-resid average --inputs run --last 3 --output three.pt", installed)
    assert (installed / "three.pt").is_file()
    lines = shell("fairseq-resid translate run --cpu 2>/dev/null", installed, "the red fox sees a king .\n\n")
    assert len(lines.splitlines()) == 2 and lines.splitlines()[0] and not lines.splitlines()[1]
    shutil.copytree(installed / "run", installed / "twin")
    assert "p bootstrap" in shell("fairseq-resid compare run twin --markdown", installed)
    flags = "--optimizer adam --max-tokens 800 --max-update 1 --no-save --disable-validation --cpu"
    stock = f'fairseq-train data-bin/tiny --user-dir "$(fairseq-resid user-dir)" --arch transformer_sas_tiny {flags}'
    assert "num_updates" in shell(stock, installed) or "done training" in shell(stock, installed)


def test_what_it_refuses(installed: Path) -> None:
    help_, unknown = shell("fairseq-resid", installed), shell("! fairseq-resid evalute run 2>&1", installed)
    for name in ("prepare", "train", "evaluate", "average", "compare", "translate", "user-dir"):
        assert f"\n  {name} " in help_
    assert unknown.startswith("fairseq-resid: error: evalute: no such command; did you mean evaluate?\n")
    assert "prepare phrasebook" not in unknown and shell("fairseq-resid --version", installed).strip()
