"""Run all commands of all pages in a copy of the tree; flags shorten the long ones."""

from __future__ import annotations

import os
import random
import re
import shutil
import string
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_resid import connections
from fairseq_resid.study import archive
from support import captions, mirror, shells
from support.preparing import build
from support.training_here import commands_here

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
# The pages whose commands run first, in this order, because each page uses files of earlier pages.
FIRST = """
    docs/install.md docs/data.md docs/training.md docs/evaluation.md docs/contributing.md README.md
    docs/images-and-captions.md docs/studies.md docs/results.md
"""
FOUND = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
FOUND += ROOT.glob("*/*/*/README.md")
FILES = list(dict.fromkeys([*(ROOT / name for name in FIRST.split() if (ROOT / name).is_file()), *sorted(FOUND)]))
PAGES = {file: file.read_text(encoding="utf-8") for file in FILES if file.name != "CHANGELOG.md"}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", "\n".join(PAGES.values()), flags=re.DOTALL | re.MULTILINE)
SCRIPT = "".join(block for kind, block in BLOCKS if kind == "bash")
LINES = re.sub(r"\\\n +", "", SCRIPT).splitlines()  # a long command has several lines
COMMANDS = list(dict.fromkeys(line.partition("  #")[0].rstrip() for line in LINES))

# Ten updates, because ten checkpoints are averaged.
SIZE = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32"
SIZE += " --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64"
SMALL = SIZE + " --max-update 10 --save-interval-updates 1 --disable-validation"


# Ten epochs; their checkpoints are averaged. A test set of nine pairs replaces the training set.
PUBLISHED = SIZE + " --max-epoch 10 --max-tokens 8192 --train-subset test1"


def mirrored(target: str) -> str:
    return f"--mirror file://$PWD/mirrors/{target} --downloads downloads/{target} --allow-other-data --vocab-size 250"


# The texts of Multi30k that are replaced by small made-up texts.
MULTI30K = ("val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
OWN_RECIPE = "scripts/train.sh my-recipe.txt data-bin/phrasebook --arch transformer_sas"
# Flags that are appended to commands to make them run faster. All other commands run unchanged.
SHORTENED = {
    "data-prep/iwslt15-en-vi.sh": mirrored("vi"),
    "data-prep/wmt14-en-de.sh": mirrored("de"),
    "data-prep/wmt14-en-fr.sh": f"{mirrored('fr')} --limit 100",  # the required disk space is that of the real corpus
    "data-prep/multi30k-en-de.sh --profile published": "--raw multi30k --allow-other-data --allow-low-ceiling",
    "data-prep/multi30k-en-de.sh": "--raw multi30k --allow-other-data",
    "scripts/train.sh multi30k-en-de-published": PUBLISHED,
    # The next two commands would otherwise create a folder that already exists.
    "data-prep/phrasebook.py": "--train 400 --valid 20 --test 20",
    "fairseq-resid prepare custom": "--vocab-size 300 --out data-bin/second",
    "data-prep/cifar": "--mirror file://$PWD/mirrors/cifar --downloads downloads --allow-other-data --valid 10",
    "scripts/train.sh multi30k-en-de": SMALL,
    "scripts/train.sh quickstart": SMALL,
    f"{OWN_RECIPE} --max-update 1000": f"{SMALL} --max-update 12",
    OWN_RECIPE: SMALL,
    "data-prep/coco-captions.sh": "--allow-other-data",
    "data-prep/mosaic-captions.py": "--mosaics 60 6 8",
    "scripts/train.sh coco-captions-self-critical": f"{SMALL} --effective-batch 4",
    "scripts/train.sh coco-captions": f"{SMALL} --effective-batch 8",
    "scripts/train.sh mosaic-captions-self-critical": f"{SMALL} --effective-batch 4",
    "scripts/train.sh mosaic-captions": f"{SMALL} --effective-batch 100",
    "scripts/train.sh cifar10-small": "--max-update 4 --stage-blocks 1,1,1 --batch-size 16",
    "scripts/evaluate.sh checkpoints/quickstart": "",
    "scripts/evaluate.sh": "--subset test",  # every decoding starts a process
    "fairseq-resid study": "--plan",
    "torchrun": f"{SIZE} --max-update 2 --disable-validation",
    "fairseq-train": "--max-update 2 --disable-validation",
    "python examples/gpt.py": "--updates 2",
}
# Groups of commands that depend on each other but not on other groups, so that two workers can share them.
GROUPS = {
    "corpora": r"data-prep/(iwslt|wmt)|scripts/train\.sh wmt14",
    "captions": r"mosaic|coco",
    "images": r"cifar|prepare-images",
    "language model": r"examples/gpt\.py",
    "documentation": r"scripts/docs\.sh|docs/tools",
    "quickstart": r"checkpoints/quickstart",
    "phrasebook": r"scaled_branch|import connections|fairseq_resid\.connections|data-(bin|prep)/phrasebook|my-rec",
    "published": r"profile published|multi30k-en-de-published",
    "studies": r"multi30k-en-de-4k|studies/",
    "multi30k": r"multi30k-en-de",
}
# These commands replace scripts/quickstart.sh.
QUICKSTART = (
    f"scripts/train.sh quickstart --arch transformer {SMALL}",
    "scripts/evaluate.sh checkpoints/quickstart-transformer",
)
# .ci/run runs the whole quickstart and checks its result. test_wheel.py installs with pip, and test_new_structure.py
# runs the last two commands.
RUN_ELSEWHERE = (
    "scripts/quickstart.sh",
    "scripts/setup.sh",
    "pip install .",
    'pip install ".[fairseq]"',
    "python tests/support/frozen.py",
    "python -m pytest --structure scaled_branch",
)


# Only eleven runs of a study and three tuning runs are kept, because the statistics of all 122 runs take longer and
# test_study_plan.py covers them.
KEPT_RUNS = re.compile(
    r"6\+6\.((post_ln|rskip_ln|sas)\.0\.004\.(seed[123]|tuning)|(rskip_ln|sas\+bias3)\.0\.008\.seed1)"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with this environment and with made-up data in multi30k/, flowers/ and mirrors/."""
    copy = tmp_path_factory.mktemp("readme") / "project"
    hidden = shutil.ignore_patterns(".*", "data-bin", "checkpoints", "*.egg-info", "__pycache__")

    shutil.copytree(ROOT, copy, ignore=hidden)
    depth = copy / "studies" / "multi30k-depth"
    archive.unpack(depth)
    for run in archive.run_folders(depth):
        if not KEPT_RUNS.fullmatch(run.name):
            shutil.rmtree(run)
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
    described = captions.images({"train": 50, "restval": 10, "val": 4, "test": 6})
    captions.write_json(copy / "dataset_coco.json", described)
    (copy / "bottom-up").mkdir()
    captions.write_tsv(copy / "bottom-up" / "features.tsv", [image["cocoid"] for image in described])
    # The raw text and the data folder that scripts/quickstart.sh creates.
    shell("data-prep/phrasebook.py --out raw --train 400 --valid 20 --test 20", copy)
    prefixes = {split: copy / "raw" / split for split in ("train", "valid", "test")}
    flags = ["--name", "phrasebook-en-vi", "--target", "vi", "--vocab-size", 300]
    assert build(prefixes, copy / "data-bin" / "phrasebook", *flags) == 0
    (structure,) = [block for kind, block in BLOCKS if kind == "python" and "from .core import" in block]
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


def is_simple(command: str) -> bool:
    """Return whether a command is one of fairseq-resid and uses the shell for nothing but braces."""
    return bool(re.match(r"scripts/(train|evaluate)\.sh |fairseq-resid ", command)) and not re.search(
        r"[|<>$]", command
    )


def run_here(command: str, folder: Path) -> None:
    """Run a simple command in this process, which has already imported torch and fairseq."""
    expanded = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    program, *words = expanded.stdout.splitlines()
    script = [Path(program).stem] if program.endswith(".sh") else []
    with commands_here():
        done = shells.resid(folder, *script, *words)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def group(command: str) -> str:
    """Return the group of a command: the first group whose pattern occurs in the command."""
    return next((name for name, pattern in GROUPS.items() if re.search(pattern, command)), "none")


@pytest.mark.parametrize("name", GROUPS)
def test_commands_on_the_pages_run(name: str, tree: Path) -> None:
    """The commands run in order, because each command uses the output of earlier commands.

    The first of each kind runs in a shell, as for a user, and later ones in this process.
    """
    if name == "documentation" and not find_spec("sphinx"):
        pytest.skip("no Sphinx: it is installed on Python 3.11 and later")
    if name == "captions" and not (find_spec("pycocoevalcap") and shutil.which("java")):
        pytest.skip("no pycocoevalcap, or no Java")
    if name == "quickstart":
        for command in QUICKSTART:
            run_here(command, tree)
    for command in [each for each in COMMANDS if group(each) == name and each not in RUN_ELSEWHERE]:
        flags = next((flags for start, flags in SHORTENED.items() if command.startswith(start)), "")
        run = run_here if is_simple(command) and command not in FIRST_OF_A_KIND else shell
        run(f"{command} {flags}", tree)
    if name == "documentation":
        pages = [page.read_text(encoding="utf-8") for page in (tree / "docs" / "_build" / "html").rglob("*.html")]
        assert len(pages) > 20 and not any("<merror" in page for page in pages)  # a formula that is not LaTeX


# The first command of each script, and of each subcommand of fairseq-resid.
FIRST_OF_A_KIND = {
    " ".join(command.split()[:2]) if command.startswith("fairseq-resid ") else command.split()[0]: command
    for command in reversed(COMMANDS)
    if command.strip()
}.values()


def test_every_command_is_in_a_group() -> None:
    assert {command for command in COMMANDS if group(command) == "none"} <= set(RUN_ELSEWHERE)


def test_pytorch_example_is_the_same_on_every_page() -> None:
    uses = [block for kind, block in BLOCKS if kind == "python" and "sublayer(site.branch_input(x))" in block]
    known = {"x": torch.randn(5, 2, 512), "sublayer": torch.nn.Linear(512, 512)}
    for use in uses:
        exec(use, known)
        assert known["y"].shape == (5, 2, 512)
    assert len(uses) == 2 and len(set(uses)) == 1  # README.md, docs/pytorch.md


def test_places_of_a_gpt_are_those_of_build_stack() -> None:
    known: dict[str, Any] = {"connections": connections}
    places, stack = [block for kind, block in BLOCKS if kind == "python" and re.search(r"depths = |dim=128", block)]
    exec(places, known)
    sites, _ = connections.build_stack("pre_ln", 512, 12, stack="decoder")
    assert [known["attention_site"].place, known["mlp_site"].place] == [site.place for site in sites[0]]
    exec(stack, known)
    assert len(known["sites"]) == 4 and known["mlp_site"].place.stack == "decoder"


def test_structure_in_the_readme_works_unchanged() -> None:
    (code,) = [block for kind, block in BLOCKS if kind == "python" and 'register("scaled"' in block]
    code += (
        "from fairseq_resid import connections\n"
        'site = connections.build("scaled", 8)\n'
        "x, f = torch.randn(2, 3, 8), torch.randn(2, 3, 8)\n"
        "torch.testing.assert_close(site.eval()(x, f), torch.nn.functional.layer_norm(x + f, (8,)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_encoder_on_the_pytorch_page_runs_with_every_structure() -> None:
    (page,) = [block for kind, block in BLOCKS if kind == "python" and "class Encoder(nn.Module)" in block]
    known: dict[str, Any] = {"x": torch.randn(5, 2, 512)}
    exec(page, known)
    assert known["y"].shape == (5, 2, 512)
    x = torch.randn(5, 2, 16)
    for name in connections.names():
        encoder = known["Encoder"](name, dim=16, heads=2, layers=3)
        y = encoder(x)
        y.sum().backward()
        assert y.shape == x.shape and y.isfinite().all(), name
        assert all(parameter.grad is not None for parameter in encoder.parameters()), name


def test_model_is_built_with_fairseq_as_the_page_shows(tree: Path) -> None:
    (page,) = [block for kind, block in BLOCKS if kind == "python" and "options.get_args(" in block]
    script = tree / "build_model.py"
    script.write_text(f"{page}\nprint(type(model).__name__, model.args.arch)\n")
    assert shell("python build_model.py", tree).split()[-1] == "transformer_sas_tiny"


def test_pages_contain_commands_and_use_every_script() -> None:
    shown = " ".join(COMMANDS)
    scripts = [
        *ROOT.glob("scripts/*.sh"),
        *ROOT.glob("scripts/*.py"),
        *ROOT.glob("data-prep/*.sh"),
        *ROOT.glob("data-prep/*.py"),
    ]
    # These scripts are sourced or run by other scripts, are kept for users whose own scripts predate
    # `fairseq-resid average`, or would run this test again.
    parts = {"environment.sh", "average_checkpoints.py", "test.sh"}
    assert {path.name for path in scripts if path.name not in shown} == parts
