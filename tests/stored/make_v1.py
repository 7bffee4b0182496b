"""Make stored/v1 with version 1.0.0: files that every later version must read, and the results that it must repeat.

    python tests/stored/make_v1.py

Run this script only in a checkout of version 1.0.0, and never again: files made by a later version would hide that it
cannot read those of version 1.0.0. It takes about 15 minutes on one core.

It writes made.tar.xz, whose contents support/stored_v1.py lists, expected.json with the flags and results, and
yaml.json with the values of every YAML file that the package reads. Sentences whose two best translations have nearly
the same score are left out of expected.json, because rounding on another CPU could exchange them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

RESID = str(Path(sys.executable).parent / "fairseq-resid")
TIME = 1_767_225_600  # of every stored file: 2026-01-01 00:00 UTC
CLOSEST = 1e-3  # smallest difference between the scores of the two best translations
UPDATES, CAPTION_UPDATES, IMAGE_UPDATES = 300, 150, 60
SOURCE, TARGET = (
    shlex.split(words) for words in ("ba be bi bo da de di do ga ge gi go", "ma me mi mo na ne ni no ra re ri ro")
)
PAIRS = {"test": 24, "valid": 20, "train": 600}
# Two encoder layers and one decoder layer, so that the numbers of the layers and the depths of the stacks matter.
LAYERS = "--encoder-layers 2 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0"
SIZE = f"{LAYERS} --encoder-embed-dim 8 --encoder-ffn-embed-dim 16"
ADAM = """
    --optimizer adam --adam-betas (0.9,0.98) --lr 0.02 --lr-scheduler inverse_sqrt --warmup-updates 50 --clip-norm 1
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-epoch 0
"""
ONLY_LAST = "--disable-validation --no-epoch-checkpoints"
TEXT = shlex.split(f"{SIZE} --share-all-embeddings {ADAM} --batch-size 64 {ONLY_LAST}")
CAPTIONS = shlex.split(f"--task image_captioning {SIZE} {ADAM} --batch-size 32 {ONLY_LAST}")
IMAGES = shlex.split(f"""
    --task image_classification --criterion image_classification --optimizer sgd --momentum 0.9 --weight-decay 0.0001
    --lr 0.05 --lr-scheduler fixed --batch-size 16 --max-epoch 0 --stage-blocks 1,1,1 --stage-channels 8,8,16
    {ONLY_LAST}
""")
IMAGE_MODELS = {"preact": ["--arch", "preact_resnet20", "--residual", "sas"]}
IMAGE_MODELS |= {arch: ["--arch", arch] for arch in ("rir", "resnet_init")}
CAPTION_MODEL = ["--arch", "captioning_rskip_ln"]
RECIPE = f"""data-bin/text
{LAYERS} --encoder-embed-dim 16 --encoder-ffn-embed-dim 32
{" ".join(ADAM.split())}
--share-all-embeddings --batch-size 64 --num-workers 0 --cpu
--max-update 600 --save-interval-updates 100 --keep-interval-updates 2 --no-epoch-checkpoints
--validate-interval-updates 100 --log-interval 20
[evaluate]
--last 2 --beam 4 --max-len-b 4
"""
RUNS = {
    "finished": ["--arch", "transformer_resid", "--residual", "wskip_ln"],
    "unfinished": ["--arch", "transformer_sas"],
}
STORED = ("raw", "data-bin", "recipe.txt", "models", "checkpoints", "exported")
ENGINES = ("ctranslate2", "onnx", "huggingface")


def cli(command: str, *words: object) -> Any:
    """Run a fairseq command in this process with the plugin, like the fixture `cli` of the tests."""
    from conftest import Result, fairseq_state_kept

    main = importlib.import_module(command.replace("fairseq-", "fairseq_cli.")).cli_main
    text = io.StringIO()
    flags = ["--user-dir", "fairseq_resid", "--cpu", "--num-workers", "0"]
    with fairseq_state_kept(text), contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        sys.argv = [command, *map(str, words), *flags]
        main()
    return Result(0, text.getvalue())


def resid(*words: object, text: str | None = None) -> str:
    """Run a command of fairseq-resid in the work folder, as a user does; return its output."""
    command = [RESID, *map(str, words)]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}")
    return done.stdout


def write_text() -> list[str]:
    """Write the raw text of a small language, whose translation reverses the order of words; return preparing flags."""
    choose, known = random.Random(1), set()
    raw = Path("raw/text")
    raw.mkdir(parents=True)
    for split, count in PAIRS.items():
        sides: tuple[list[str], list[str]] = [], []
        while len(sides[0]) < count:
            words = [choose.randrange(len(SOURCE)) for _ in range(choose.randint(2, 6))]
            source = " ".join(SOURCE[word] for word in words)
            if split == "train" or source not in known:
                known.add(source)
                sides[0].append(source)
                sides[1].append(" ".join(TARGET[word] for word in reversed(words)))
        for language, lines in zip(("en", "xx"), sides, strict=True):
            (raw / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    prefixes = [word for split in PAIRS for word in (f"--{split}", f"raw/text/{split}")]
    return shlex.split("prepare custom --name tiny --source en --target xx --vocab-size 46 --workers 1") + prefixes


def write_images() -> list[str]:
    """Write images of three classes, which differ in their colours; return the flags that prepare them."""
    generator = np.random.default_rng(3)
    for number, label in enumerate(("ant", "bee", "cow")):
        colour = generator.integers(60, 190, 3)
        for split, count in (("train", 24), ("test", 10)):
            folder = Path("raw/images", split, label)
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(colour + generator.integers(-90, 90, (8, 8, 3)), 0, 255).astype(np.uint8)
                pixels[number::3] //= 2
                Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return shlex.split("prepare-images custom --raw raw/images --valid 9 --workers 1")


def write_captions() -> list[str]:
    """Write captions and the features of their images; return the flags that prepare them."""
    from support import captions

    raw = Path("raw/captions")
    raw.mkdir()
    images = captions.images({"train": 24, "restval": 8, "val": 6, "test": 12})
    captions.write_json(raw / "dataset.json", images)
    captions.write_tsv(raw / "features.tsv", [image["cocoid"] for image in images])
    return shlex.split(
        "prepare-captions custom --captions raw/captions/dataset.json --features raw/captions/features.tsv"
    )


def far_apart(found: dict[int, list[tuple[float, str]]]) -> dict[int, tuple[str, float]]:
    """Return the best output of every example for which the second one has a clearly lower score."""
    return {number: (two[0][1], two[0][0]) for number, two in found.items() if two[0][0] - two[1][0] > CLOSEST}


def train(data: Path, checkpoint: Path, flags: list[str], updates: int) -> None:
    """Train a model in this process, and keep only its last checkpoint."""
    cli("fairseq-train", data, *flags, "--max-update", updates, "--save-dir", checkpoint.parent)
    (checkpoint.parent / "checkpoint_last.pt").rename(checkpoint)


def measured(data: Path, checkpoint: Path, flags: list[str], updates: int) -> dict[str, Any]:
    """Return the flags of a model, and the steps of one further update."""
    from support import stored_v1

    steps = stored_v1.one_update(cli, data, checkpoint, Path("next"), flags, updates + 1)
    steps = {name: float(f"{length:.6g}") for name, length in steps.items()}
    shutil.rmtree("next")
    return {"flags": shlex.join(flags), "update": updates + 1, "steps": steps}


def text_models() -> dict[str, Any]:
    """Make a checkpoint of every structure."""
    from fairseq_resid import connections
    from support import stored_v1

    data, found = Path("data-bin/text"), {}
    chosen = {name: ["--residual", name] for name in connections.own_names()}
    chosen["pre_ln rms"] = ["--residual", "pre_ln", "--norm", "rms"]
    for name, flags in chosen.items():
        file, flags = Path("models", f"{name}.pt"), ["--arch", "transformer_resid", *flags, *TEXT]
        train(data, file, flags, UPDATES)
        outputs = stored_v1.translations(cli, data, file)
        kept = far_apart(outputs)
        print(f"{name}: {len(kept)} of {len(outputs)} translations, {file.stat().st_size:,} bytes", flush=True)
        log_p = stored_v1.log_probabilities(cli, data, file)
        found[name] = {**measured(data, file, flags, UPDATES), "outputs": kept, "log_p": log_p}
    return found


def caption_model() -> dict[str, Any]:
    """Make a checkpoint of a captioning model."""
    from support import stored_v1

    data, file, flags = Path("data-bin/captions"), Path("models/captioning.pt"), [*CAPTION_MODEL, *CAPTIONS]
    train(data, file, flags, CAPTION_UPDATES)
    task = ["--task", "image_captioning"]
    outputs = stored_v1.translations(cli, data, file, *task, "--by-image", "--max-len-b", "12")
    kept = far_apart(outputs)
    print(f"captions: {len(kept)} of {len(outputs)}", flush=True)
    log_p = stored_v1.log_probabilities(cli, data, file, *task)
    return {**measured(data, file, flags, CAPTION_UPDATES), "outputs": kept, "log_p": log_p}


def image_models() -> dict[str, Any]:
    """Make a run folder for every image model, with one checkpoint."""
    from support import stored_v1

    data, found = Path("data-bin/images"), {}
    for name, flags in IMAGE_MODELS.items():
        run, flags = Path("checkpoints", name), [*flags, *IMAGES]
        train(data, run / "checkpoint_last.pt", flags, IMAGE_UPDATES)
        log_p = stored_v1.class_log_probabilities(data, run / "checkpoint_last.pt")
        found[name] = {**measured(data, run / "checkpoint_last.pt", flags, IMAGE_UPDATES), "log_p": log_p}
        found[name]["evaluate"] = stored_v1.score_lines(resid("evaluate", run, "--cpu"))
        shutil.rmtree(run / "decode")
        for made in (*run.glob("results*.json"), run / "card.md"):
            made.unlink()
    return found


def runs() -> dict[str, Any]:
    """Make a finished and evaluated run, and one that was stopped and will be finished by the tests."""
    from support import stored_v1

    Path("recipe.txt").write_text(RECIPE)
    commands = {name: ["train", "recipe.txt", *flags, "--run", f"checkpoints/{name}"] for name, flags in RUNS.items()}
    resid(*commands["finished"])
    evaluated = stored_v1.score_lines(resid("evaluate", "checkpoints/finished", "--cpu"))
    source = Path("data-bin/text/ref/test.en").read_text()
    translated = resid("translate", "checkpoints/finished", "--cpu", text=source)
    with subprocess.Popen([RESID, *commands["unfinished"]]) as process:
        while not list(Path("checkpoints/unfinished").glob("checkpoint_*_500.pt")):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    shutil.copytree("checkpoints/unfinished", "as-stopped")
    resid(*commands["unfinished"])
    later = stored_v1.score_lines(resid("evaluate", "checkpoints/unfinished", "--cpu", "--subset", "test"))
    shutil.rmtree("checkpoints/unfinished")
    Path("as-stopped").rename("checkpoints/unfinished")
    return {
        "finished": {"train": commands["finished"], "evaluate": evaluated, "translate": translated.splitlines()},
        "unfinished": {"train": commands["unfinished"], "evaluate": later},
    }


def exports() -> dict[str, Any]:
    """Export the finished run for every engine."""
    from support import stored_v1

    source, found = Path("data-bin/text/ref/test.en").read_text(), {}
    for engine in ENGINES:
        out = f"exported/{engine}"
        resid("export", "checkpoints/finished", "--to", engine, "--out", out)
        lines = stored_v1.score_lines(resid("evaluate", out, "--subset", "test"))
        found[engine] = {"translate": resid("translate", out, text=source).splitlines(), "evaluate": lines}
    return found


def with_time(value: Any) -> Any:
    """Return a JSON value in which every time of a file is TIME."""
    if isinstance(value, dict):
        return {name: TIME * 10**9 if name == "mtime_ns" else with_time(each) for name, each in value.items()}
    return [with_time(each) for each in value] if isinstance(value, list) else value


def make_relocatable(work: Path) -> None:
    """Remove all paths of this machine from text files, and give all files the same time."""
    from support.stored_v1 import PLACE

    paths = {str(work): PLACE, str(ROOT): "fairseq_resid-1.0.0", sys.prefix: "venv", sys.base_prefix: "python"}
    for lock in work.rglob(".lock"):
        lock.unlink()
    for file in (file for name in STORED for file in [work / name, *(work / name).rglob("*")] if file.is_file()):
        if file.suffix in (".json", ".log", ".md"):
            text = file.read_text(encoding="utf-8")
            if "mtime_ns" in text:
                text = json.dumps(with_time(json.loads(text)), indent=2) + "\n"
            for path, name in paths.items():
                text = text.replace(path, name)
            file.write_text(text, encoding="utf-8")
        os.utime(file, (TIME, TIME))


def archive(out: Path) -> None:
    """Pack everything in the work folder, without the owner of the files."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime, member.mode = TIME, 0o755 if member.isdir() else 0o644
        return member

    with tarfile.open(out, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as made:
        for name in STORED:
            made.add(name, filter=anonymous)


def yaml_values() -> dict[str, Any]:
    """Return the values of the manifests and studies."""
    from fairseq_resid import records

    files = [*sorted((ROOT / "fairseq_resid").rglob("*.yaml")), *sorted((ROOT / "studies").glob("*.yaml"))]
    return {str(file.relative_to(ROOT)): records.from_yaml(file.read_bytes()) for file in files}


def versions() -> dict[str, str]:
    """Return the versions with which the files were made."""
    names = ("torch", "numpy", "fairseq", "fairseq-fixed", "sacrebleu", "ctranslate2", "onnxruntime", "transformers")
    known = {each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions()}
    return {"fairseq_resid": "1.0.0", **{name: known[name] for name in names if name in known}}


def write_json(name: str, value: Any) -> None:
    (HERE / "v1" / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Make everything in a temporary folder."""
    from fairseq_resid import models, version  # noqa: F401  (registers the architectures)

    assert version.__version__ == "1.0.0"
    flags = {"text": write_text(), "images": write_images(), "captions": write_captions()}
    flags = {kind: [*words, "--out", f"data-bin/{kind}"] for kind, words in flags.items()}
    for file in filter(Path.is_file, Path("raw").rglob("*")):
        os.utime(file, (TIME, TIME))  # the record of the captions contains the time of the features
    for words in flags.values():
        resid(*words)
    made = {"versions": versions(), "prepare": flags, "text": text_models(), "captions": caption_model()}
    made |= {"images": image_models(), "runs": runs(), "exports": exports()}
    work = Path.cwd()
    make_relocatable(work)
    archive(HERE / "v1" / "made.tar.xz")
    write_json("expected.json", made)
    write_json("yaml.json", yaml_values())


if __name__ == "__main__":
    (HERE / "v1").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        # Commands that find the package in the current folder record it as `fairseq_resid`, without its path. fairseq
        # imports it from there; in this process it must be the same copy.
        Path("fairseq_resid").symlink_to(ROOT / "fairseq_resid")
        sys.path.insert(0, temporary)
        os.environ["PYTHONPATH"] = str(ROOT)
        main()
