"""Every command of every page runs, in a copy of the tree: the long ones with flags that make them short."""

from __future__ import annotations

import os
import random
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_resid.data.text import custom
from fairseq_resid.data.text.phrasebook import grammar as phrasebook
from fairseq_resid.study import archive
from support import mirror

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# In this order: what one page makes, the next one uses.
FOLDERS = "data-prep scripts/recipes fairseq_resid fairseq_resid/evaluation fairseq_resid/connections"
FOLDERS += " . fairseq_resid/analysis fairseq_resid/data/images studies"
PAGES = [(ROOT / folder / "README.md").read_text(encoding="utf-8") for folder in FOLDERS.split()]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", "\n".join(PAGES), flags=re.DOTALL | re.MULTILINE)
SCRIPT = "".join(block for kind, block in BLOCKS if kind == "bash")
COMMANDS = list(dict.fromkeys(re.sub(r"\\\n +", "", SCRIPT).splitlines()))  # a long command has several lines

# Ten checkpoints are averaged, and the end of an epoch leaves none: 12 updates.
SIZE = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32"
SIZE += " --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64"
SMALL = SIZE + " --max-update 12 --save-interval-updates 1 --disable-validation"


# Ten epochs, whose checkpoints are averaged.
PUBLISHED = SIZE + " --max-epoch 10 --max-tokens 8192"


def mirrored(target: str) -> str:
    return f"--mirror file://$PWD/mirrors/{target} --downloads downloads/{target} --allow-other-data --vocab-size 250"


# The small texts of Multi30k.
MULTI30K = ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
# What is put behind a command so that it ends soon. Whatever is not here runs as it stands.
SHORTENED = {
    "data-prep/iwslt15-en-vi.sh": mirrored("vi"),
    "data-prep/wmt14-en-de.sh": mirrored("de"),
    "data-prep/wmt14-en-fr.sh": f"{mirrored('fr')} --limit 100",  # the disk asked for is that of the real corpus
    "data-prep/multi30k-en-de.sh --profile published": "--allow-other-data --allow-low-ceiling",
    "data-prep/multi30k-en-de.sh": "--allow-other-data",
    "scripts/train.sh multi30k-en-de-published": PUBLISHED,
    # The folder that these two make is there.
    "fairseq-resid prepare phrasebook": "--train 400 --valid 20 --test 20",
    "fairseq-resid prepare custom": "--vocab-size 300 --out data-bin/second",
    "data-prep/cifar": "--mirror file://$PWD/mirrors/cifar --downloads downloads --allow-other-data --valid 10",
    "scripts/train.sh multi30k-en-de": SMALL,
    "scripts/train.sh cifar10-small": "--max-update 4 --stage-blocks 1,1,1 --batch-size 16",
    "fairseq-resid study": "--plan",
    "torchrun": SMALL,
    "fairseq-train": "--max-update 2 --disable-validation",
}
# Commands that use what others make, and none of another group: two workers can share the groups.
GROUPS = {
    "corpora": r"data-prep/(iwslt|wmt)|scripts/train\.sh wmt14",
    "images": r"cifar|prepare-images",
    "phrasebook": r"scaled_branch|fairseq_resid\.connections|data-bin/phrasebook|prepare phrasebook",
    "published": r"profile published|multi30k-en-de-published",
    "studies": r"multi30k-en-de-4k|studies/",
    "multi30k": r"multi30k-en-de",
}
# Run by .ci/run: the quickstart whole, with what must come out of it; the tests run this very test. test_wheel.py
# installs with pip, test_new_structure.py runs the others.
RUN_ELSEWHERE = (
    "scripts/quickstart.sh",
    "scripts/setup.sh",
    "scripts/test.sh",
    "scripts/test.sh --all",
    "pip install .",
    'pip install ".[fairseq]"',
    "python tests/support/frozen.py",
    "python -m pytest --structure scaled_branch",
)


# Nine runs of a study and their tuning: statistics of all 122 take longer, and test_study_plan.py makes them.
KEPT_RUNS = re.compile(r"6\+6\.(post_ln|rskip_ln|sas)\.0\.004\.(seed[123]|tuning)")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose environment is this one; multi30k/, flowers/, mirrors/ hold made-up data."""
    copy = tmp_path_factory.mktemp("readme") / "project"
    hidden = shutil.ignore_patterns(".*", "data-bin", "checkpoints", "*.egg-info", "__pycache__")

    shutil.copytree(ROOT, copy, ignore=hidden)
    depth = copy / "studies" / "multi30k-depth"
    archive.unpack(depth)
    for run in archive.run_folders(depth):
        if not KEPT_RUNS.fullmatch(run.name):
            shutil.rmtree(run)
    (depth / "results.json").unlink()  # names the whole archive
    archive.pack(depth)
    setup = copy / "scripts" / "setup.sh"
    setup.write_text("#!/bin/sh\n# The environment is set up: these tests run in it.\n")
    choose = random.Random(1)
    words = ["".join(choose.choices(string.ascii_lowercase, k=choose.randint(4, 9))) for _ in range(6000)]
    (copy / "checkpoints").mkdir()
    (copy / "multi30k").mkdir()
    for name, lines in (("train", 1500), *dict.fromkeys(MULTI30K, 9).items()):
        for side in ("en", "de"):
            text = "".join(" ".join(choose.choices(words, k=8)) + "\n" for _ in range(lines))
            (copy / "multi30k" / f"{name}.{side}").write_text(text)
    for target in ("de", "fr"):
        mirror.wmt14(copy / "mirrors" / target, target)
    stanford = mirror.iwslt15(tmp_path_factory.mktemp("iwslt15"), "stanford")
    (copy / "mirrors" / "vi").mkdir()
    for form, name in (("train", "train"), ("dev-2012", "tst2012"), ("test-2013", "tst2013")):
        members = {f"{name}.{side}": (stanford / f"{name}.{side}").read_bytes() for side in ("en", "vi")}
        mirror.archive(copy / "mirrors" / "vi" / f"{form}-en-vi.tgz", dict(members))
    for name in ("cifar10", "cifar100"):
        mirror.cifar(copy / "mirrors" / "cifar", name, mirror.cifar_members(name, 50, 20))
    mirror.images(copy / "flowers", ("aster", "rose"), 10, 3)
    # As scripts/quickstart.sh makes it.
    phrasebook.write(copy / "raw", phrasebook.files(phrasebook.generate(1, 400, 20, 20)))
    prefixes = {split: copy / "raw" / split for split in ("train", "valid", "test")}
    custom.build("phrasebook-en-vi", prefixes, "en", "vi", 300, copy / "data-bin" / "phrasebook")
    (structure,) = [block for kind, block in BLOCKS if kind == "python" and "from .registry import" in block]
    (copy / "fairseq_resid" / "connections" / "scaled_branch.py").write_text(structure)
    return copy


def shell(command: str, folder: Path) -> str:
    environment = {
        **os.environ,
        "FAIRSEQ_RESID_VENV": sys.prefix,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": "",
    }
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, text=True, **both)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def group(command: str) -> str:
    """The group of a command: the first whose pattern it contains."""
    return next((name for name, pattern in GROUPS.items() if re.search(pattern, command)), "none")


@pytest.mark.parametrize("name", GROUPS)
def test_commands(name: str, tree: Path) -> None:
    """One after the other: what one makes, the next uses."""
    for command in [each for each in COMMANDS if group(each) == name and each not in RUN_ELSEWHERE]:
        flags = next((flags for start, flags in SHORTENED.items() if command.startswith(start)), "")
        shell(f"{command} {flags}", tree)


def test_every_command_is_in_a_group() -> None:
    assert {command for command in COMMANDS if group(command) == "none"} <= set(RUN_ELSEWHERE)


def test_python_blocks() -> None:
    (use,) = [block for kind, block in BLOCKS if kind == "python" and "connections.build(" in block]
    known = {"x": torch.randn(5, 2, 512), "sublayer": torch.nn.Linear(512, 512)}
    exec(use, known)
    assert known["y"].shape == (5, 2, 512)


def test_there_are_commands_and_every_script_is_among_them() -> None:
    shown = " ".join(COMMANDS)
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/*.py"), *ROOT.glob("data-prep/*.sh")]
    scripts = [path for path in scripts if not path.is_symlink()]
    parts = {"environment.sh", "removed.sh"}  # sourced or run by others
    assert {path.name for path in scripts if path.name not in shown} == parts


REMOVED = [path for path in sorted(ROOT.glob("scripts/*.sh")) if path.is_symlink()]


@pytest.mark.parametrize("script", REMOVED, ids=lambda path: path.stem)
def test_removed_script_says_what_to_type(script: Path) -> None:
    done = subprocess.run([str(script), "RUN"], capture_output=True, text=True)
    command = "data-prep/multi30k-en-de.sh" if script.stem == "multi30k" else f"fairseq-resid {script.stem}"
    said = f"scripts/{script.name}: removed in version 0.7; type: {command}"
    assert done.returncode == 2 and done.stderr.startswith(said)
