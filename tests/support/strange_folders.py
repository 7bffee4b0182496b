"""Run, study and data folders as the project writes them, and the commands that read each of their files."""

from __future__ import annotations

import contextlib
import functools
import gzip
import html
import io
import json
import random
import shlex
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import yaml

from fairseq_resid import records
from fairseq_resid.__main__ import main
from fairseq_resid.analysis import results as analysis_results
from fairseq_resid.analysis import style
from fairseq_resid.data.captions import features, karpathy
from fairseq_resid.data.captions import folder as caption_folder
from fairseq_resid.data.images import folder as image_folder
from fairseq_resid.data.images import manifest as image_manifest
from fairseq_resid.data.text import folder as text_folder
from fairseq_resid.data.text import manifest
from fairseq_resid.evaluation.baselines import Baselines
from fairseq_resid.files import pack
from fairseq_resid.foreign import CONTROL
from fairseq_resid.runs import recipe
from fairseq_resid.runs.run import AverageNote, FileState, Results, Run, RunRecord, Scored
from fairseq_resid.study import archive, kept, plan
from fairseq_resid.tasks import answers, captioning, classifying
from fairseq_resid.tasks.text import caption_scores, likelihood
from fairseq_resid.tasks.text.caption_scores import CIDER, CaptionScore
from fairseq_resid.tasks.translating import DecodingNote
from support import captions, strange_values, studies
from support.scored_runs import data_folder, evaluated

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 20  # maximum processor time of a command
HANG = 300  # wall-clock seconds after which a command counts as hanging
REPORTS = 0.25  # share of the cases of a file in which the command is a report
UNSTRUCTURED = 40  # number of fields assumed for a log, a recipe or a file of lines
DRAWN = 0.03  # share of the cases in which plots are drawn; in all others they are only computed
IMAGES, CLASSES, SHAPE = 24, ["ant", "bee", "cow"], (3, 4, 4)

IMAGE_STUDY = """
title: Farm
recipe: {recipe}
measure: error
flags: --arch preact_resnet20
baseline: plain
arms: {{plain: --residual xskip, recursive: --residual rskip_ln}}
plan: [{{setting: recipe, arms: [plain, recursive], seeds: 2}}]
"""
IMAGE_FLAGS = (
    "--task image_classification --criterion image_classification --optimizer sgd --momentum 0.9 --lr 0.05 "
    "--batch-size 32 --stage-blocks 1,1,1 --max-update 12 --save-interval-updates 4 --no-epoch-checkpoints --cpu"
)


@dataclass(frozen=True)
class StrangeFile:
    """A file to alter: the function that alters one of its fields, and the commands and functions that read the file.

    commands: command lines, run in the folder; readers: functions of the folder, which may raise ValueError or OSError
    is_noted: whether a report must name the file in a note if the first reader refuses it
    """

    alter: Callable[[random.Random, bytes, int], bytes]
    commands: tuple[str, ...] = ()
    readers: tuple[Callable[[Path], Any], ...] = ()
    is_noted: bool = False

    def content(self, path: Path) -> bytes:
        whole = path.read_bytes()
        return gzip.decompress(whole) if path.suffix == ".gz" else whole

    def fields(self, path: Path) -> int:
        """Return the number of fields of a file, which are altered in turn."""
        if self.alter not in (strange_values.as_json, strange_values.as_yaml):
            return UNSTRUCTURED
        return len(strange_values.fields(yaml.safe_load(self.content(path))))


def read(kind: type, name: str) -> Callable[[Path], Any]:
    return lambda folder: records.read(folder / name, kind)


def image_data(folder: Path) -> None:
    """Read a data folder of images as training does."""
    from fairseq_resid.tasks.images import ImageDataset

    known = image_folder.ImageRecord.checked(folder / "farm-bin")
    for split in known.counts:
        dataset = ImageDataset(folder / "farm-bin", split, known, 1, split == "train", 0, False)
        if len(dataset):
            dataset.collater([0, len(dataset) - 1])


def text_data(folder: Path) -> None:
    """Read a data folder of text as training, evaluation and translation do."""
    text_folder.check(folder / "data", verify=True)
    corpus = text_folder.Corpus.read(folder / "data")
    corpus.references("test")
    text_folder.read(folder / "data").forms()


def caption_data(folder: Path) -> None:
    """Read a data folder of captions as training and the report do."""
    from fairseq.data import Dictionary

    from fairseq_resid.tasks.captions import CaptionDataset

    data = caption_folder.CaptionData(folder / "pets-bin", caption_folder.CaptionRecord.checked(folder / "pets-bin"))
    words = Dictionary.load(str(data.path / caption_folder.DICTIONARY))
    for split in data.record.counts:
        dataset = CaptionDataset(data, split, words, by_image=False, shuffles=split == "train")
        if len(dataset):
            dataset.collater([0, len(dataset) - 1])
        data.references(split)
        data.thumbnails(split)


def region_features(folder: Path) -> None:
    """Read the features of all images as preparation does."""
    source = features.open_features(folder / "features.tsv")
    width = None
    for image in (str(each["cocoid"]) for each in captions.images()):
        if image in source:
            width = source.regions(image, width)[0].shape[1]


def log(folder: Path) -> None:
    """Read train.log as evaluation and resumed training do."""
    from fairseq_resid.runs.display import Display
    from fairseq_resid.runs.training_command import TrainingCommand

    run = Run(folder / "b")
    run.training_summary()
    with Display("b", TrainingCommand.parse(["--max-update", "100", "--max-epoch", "9"])) as shown:
        for line in run.log_lines():
            shown.take(line)


def study(name: str) -> Callable[[Path], Any]:
    """Check a study as it is checked before its first run."""

    def check(folder: Path) -> None:
        plan.check_study(plan.read_study(folder / name), folder / name)

    return check


def note(name: str) -> Callable[[Path], Any]:
    return read(kept.Note, name)


KNOWN = "analyze b --sentences 9999"  # reads the analysis instead of the checkpoint
TEXT_RUN = "report a b --out page.html", "report b a --out page.html"
IMAGE_RUN = "report x y --out page.html", "report y x --out page.html"
CAPTION_RUN = "report p q --out page.html", "report q p --out page.html"
OF_TRIAL = "study trial.yaml --plan", "study trial.yaml --results", "report a b --study trial.yaml --out page.html"
OF_FARM = "study farm.yaml --plan", "study farm.yaml --results", "report x y --study farm.yaml --out page.html"
T, F = "trial/flat.sas.0.004.seed1", "farm/recipe.recursive.seed2"
FILES = {
    "b/run.json": StrangeFile(
        strange_values.as_json,
        (*TEXT_RUN, "card b", "compare a b", "compare b a --markdown", "curves a b --out curves.svg", "attention b",
         "evaluate b", "analyze b", "translate b"),
        (read(RunRecord, "b/run.json"),), is_noted=True,
    ),
    "b/results.json": StrangeFile(
        strange_values.as_json,
        (*TEXT_RUN, "card b", "card a b", "table a b", "table b --markdown", "table b --at-least 3", "compare a b",
         "compare a b --model last --markdown"),
        (read(Results, "b/results.json"),), is_noted=True,
    ),
    "b/results.test1.json": StrangeFile(
        strange_values.as_json, ("card b", "report a b --subset test1 --out page.html"),
        (read(Results, "b/results.test1.json"),), is_noted=True,
    ),
    "b/averaged.json": StrangeFile(strange_values.as_json, readers=(read(AverageNote, "b/averaged.json"),)),
    "b/decode/test.averaged.json": StrangeFile(
        strange_values.as_json, readers=(read(DecodingNote, "b/decode/test.averaged.json"),)
    ),
    "b/analysis/analysis.json": StrangeFile(strange_values.as_json, (*TEXT_RUN, "report b --out page.html", KNOWN),
        (lambda folder: analysis_results.read_analysis(folder / "b/analysis/analysis.json"),), is_noted=True),
    "b/train.log": StrangeFile(strange_values.as_log, (*TEXT_RUN, "curves a b --out curves.svg",
                                                       "curves b --by hours --out curves.svg"), (log,)),
    "baselines.json": StrangeFile(
        strange_values.as_json,
        ("table a b --baselines baselines.json", "table a --markdown --baselines baselines.json"),
    ),
    "data/corpus.json": StrangeFile(
        strange_values.as_json, (*TEXT_RUN, "compare a b", "translate b --data data", "evaluate b --data data"),
        (text_data,),
    ),
    "y/run.json": StrangeFile(
        strange_values.as_json, (*IMAGE_RUN, "card y", "compare x y", "table x y", "curves x y --out curves.svg"),
        (read(RunRecord, "y/run.json"),), is_noted=True,
    ),
    "y/results.json": StrangeFile(
        strange_values.as_json, (*IMAGE_RUN, "card y", "compare x y", "table x y --markdown"),
        (read(Results, "y/results.json"),), is_noted=True,
    ),
    "y/decode/test.last.images": StrangeFile(strange_values.as_fields, (*IMAGE_RUN, "compare x y")),
    "farm-bin/images.json": StrangeFile(strange_values.as_json, ("study farm.yaml --plan",), (image_data,)),
    "q/run.json": StrangeFile(
        strange_values.as_json,
        (*CAPTION_RUN, "card q", "compare p q", "table p q", "curves p q --out curves.svg"),
        (read(RunRecord, "q/run.json"),), is_noted=True,
    ),
    "q/results.json": StrangeFile(
        strange_values.as_json, (*CAPTION_RUN, "card q", "compare p q", "table p q --markdown"),
        (read(Results, "q/results.json"),), is_noted=True,
    ),
    "q/decode/test.averaged.cider": StrangeFile(strange_values.as_fields, (*CAPTION_RUN, "compare p q")),
    "pets-bin/captions.json": StrangeFile(strange_values.as_json, CAPTION_RUN, (caption_data,)),
    "pets-bin/train.captions.tsv": StrangeFile(strange_values.as_fields, readers=(caption_data,)),
    "pets-bin/ref/test.tsv": StrangeFile(strange_values.as_fields, CAPTION_RUN, (caption_data,)),
    "dataset_coco.json": StrangeFile(
        strange_values.as_json, readers=(lambda folder: karpathy.read_corpus(folder / "dataset_coco.json"),)
    ),
    "features.tsv": StrangeFile(strange_values.as_fields, readers=(region_features,)),
    "trial.yaml": StrangeFile(strange_values.as_yaml, OF_TRIAL, (study("trial.yaml"),), is_noted=True),
    f"{T}/study.json": StrangeFile(strange_values.as_json, OF_TRIAL, (note(f"{T}/study.json"),), is_noted=True),
    f"{T}/run.json": StrangeFile(strange_values.as_json, OF_TRIAL[1:]),
    f"{T}/train.log.gz": StrangeFile(strange_values.as_log, OF_TRIAL[1:]),
    f"{T}/decode/test.averaged.nll.gz": StrangeFile(strange_values.as_fields, OF_TRIAL[1:]),
    f"{T}/decode/test.averaged.bleu.gz": StrangeFile(strange_values.as_fields, OF_TRIAL[1:]),
    "farm.yaml": StrangeFile(strange_values.as_yaml, OF_FARM, (study("farm.yaml"),), is_noted=True),
    f"{F}/study.json": StrangeFile(strange_values.as_json, OF_FARM, (note(f"{F}/study.json"),), is_noted=True),
    f"{F}/decode/test.last.images.gz": StrangeFile(strange_values.as_fields, OF_FARM[1:]),
    "recipe.txt": StrangeFile(
        strange_values.as_words,
        ("train recipe.txt --arch transformer_resid --residual sas --dry-run", "study of-recipe.yaml --plan"),
        (lambda folder: recipe.evaluation(str(folder / "recipe.txt")), study("of-recipe.yaml")),
    ),
    "manifest.yaml": StrangeFile(
        strange_values.as_yaml, readers=(lambda folder: manifest.read(folder / "manifest.yaml"),)
    ),
    "image-manifest.yaml": StrangeFile(
        strange_values.as_yaml, readers=(read(image_manifest.ImageManifest, "image-manifest.yaml"),)
    ),
}  # fmt: skip

CORPUS_RECORD = {
    "name": "tiny", "source": "en", "target": "xx", "vocab_size": 90, "asked": {"clean": True, "limit": None},
    "texts": {"train t.en": {"file": "t.en", "lines": 3, "sha256": "00"}}, "differences": ["a"], "unverified": ["b"],
    "lines": {"train": {"in": 3, "out": 3, "dropped": {}}}, "tokens": {"train": {"en": 4, "xx": 5}},
    "round_trip": {"test": {"exact": 1, "of": 2, "bleu": 99.0, "signature": "s", "lost": {"form": 1}, "example":
        {"line": 1, "cause": "form", "reference": "a", "restored": "b"}}},
    "overlap": {"test": {"source": [1], "target": [], "pair": []}}, "text": {"form": "plain", "normalize": "none"},
    "restore": {"post_process": None}, "bleu_tokenize": "13a", "sizes": {"ref/test.xx": 0},
    "checksums": {"ref/test.xx": ""}, "profile": "",
}  # fmt: skip


def log_lines(count: int) -> str:
    """Return a log as fairseq writes it, with the end of an epoch and a validation."""
    lines = []
    for at in range(1, count + 1):
        time = f"2024-01-01 00:0{at % 10}:00 | INFO | "
        lines.append(f"{time}train_inner | " + json.dumps({"epoch": at, "num_updates": f"{at}", "loss": f"{9 - at}",
                     "wps": "100", "gnorm": "1.5", "update": at / 2}))  # fmt: skip
        lines.append(f"{time}valid | " + json.dumps({"epoch": at, "valid_loss": "3.1", "valid_nll_loss": "3.0",
                     "valid_error": "40.5", "valid_num_updates": f"{at}"}))  # fmt: skip
        lines.append(f"{time}train | " + json.dumps({"epoch": at, "train_loss": "4", "train_wpb": "90", "train_ups":
                     "2", "train_train_wall": "3", "train_num_updates": f"{at}"}))  # fmt: skip
    return "\n".join(lines)


def image_results(run: Path, data: Path, seed: int) -> None:
    """Write the files that evaluation writes to the run folder of an image model."""
    choose = random.Random(seed)
    found = [answers.Answer(at % 3, choose.randrange(3), choose.random()) for at in range(IMAGES)]
    (run / "decode").mkdir(parents=True)
    answers.write_answers(classifying.answers_file(Run(run), "test"), found)
    scores = {"error": answers.error(found), "NLL": sum(one.nll for one in found) / IMAGES}
    records.write(run / "results.json", {
        "architecture": "preact_resnet20", "parameters": 100, "corpus": "farm", "subset": "test", "data": str(data),
        "training": {"num_updates": 9, "unit": "images", "train_seconds": 3.0, "tokens_per_second": 30.0},
        "sentences": IMAGES, "scores": {"last": {
            name: {"score": round(score, 4), "signature": classifying.SIGNATURES[name]}
            for name, score in scores.items()
        }},
    })  # fmt: skip


def write_image_data(folder: Path) -> None:
    folder.mkdir()
    counts = {"train": IMAGES, "valid": IMAGES, "test": IMAGES}
    for split in counts:
        made = np.zeros(IMAGES, dtype=image_folder.dtype(SHAPE))
        made["label"] = np.arange(IMAGES) % len(CLASSES)
        np.save(folder / f"{split}.npy", made)
    record = image_folder.ImageRecord(
        name="farm", classes=CLASSES, shape=SHAPE, counts=counts, mean=[0.5] * 3, deviation=[0.2] * 3, source="folder",
        sizes={f"{split}.npy": (folder / f"{split}.npy").stat().st_size for split in counts},
    )  # fmt: skip
    records.write(folder / image_folder.RECORD, record)


def caption_results(run: Path, data: Path, seed: int) -> None:
    """Write the files that evaluation writes to the run folder of a captioning model."""
    choose = random.Random(seed)
    references = caption_folder.CaptionData(data, caption_folder.CaptionRecord.of(data)).references("test")
    scores = [
        CaptionScore(image, choose.uniform(0, 300), len(texts))
        for image, texts in zip(references.ids, references.texts, strict=True)
    ]
    (run / "decode").mkdir(parents=True)
    caption_scores.write_scores(captioning.scores_file(Run(run), "test", captioning.AVERAGED), scores)
    (run / "decode" / "test.averaged.hyp").write_text("".join(f"{texts[0]}\n" for texts in references.texts))
    words = [likelihood.Sentence(choose.uniform(1, 9), 5) for texts in references.texts for _ in texts]
    likelihood.write_nll(run / "decode" / "test.averaged.nll", words)
    mean = sum(one.cider for one in scores) / len(scores)
    scored = {CIDER: {"score": round(mean, 4), "signature": "nrefs:2"}, "NLL": {"score": 1.2, "signature": "nats"}}
    records.write(run / "results.json", {
        "architecture": "captioning_resid", "parameters": 100, "corpus": "custom", "subset": "test", "data": str(data),
        "training": {"num_updates": 9, "train_seconds": 3.0, "tokens_per_second": 30.0},
        "sentences": len(scores), "signature": "nrefs:2", "averaged_checkpoints": ["a", "b"],
        "scores": {"averaged": scored, "last": scored},
    })  # fmt: skip


def short_analysis(file: Path) -> dict[str, Any]:
    """Return an analysis with three of its sites."""
    found: dict[str, Any] = json.loads(file.read_bytes())
    sites = [*found["sites"]][:2] + [*found["sites"]][-1:]
    named = {part: {site: found[part][site] for site in sites if site in found[part]} for part in ("sites", "learning")}
    return {**found, **named}


def build(folder: Path) -> None:
    """Make the folders, in which every command of `FILES` ends with exit code 0 or is refused."""
    known = archive.runs_folder(ROOT / "studies" / "multi30k-depth") / "6+6.sas.0.004.seed1"
    data = data_folder(folder / "data")
    sizes = {"sizes": {"ref/test.xx": (data / "ref" / "test.xx").stat().st_size}, "checksums": {}}
    records.write(data / "corpus.json", {**CORPUS_RECORD, **sizes})
    (data / "ref" / "test.en").write_text("".join(f"source {number}\n" for number in range(120)))
    record = json.loads((known / "run.json").read_bytes())
    one = FileState("checkpoint1.pt", 10, 10)
    for name, quality in (("a", 0.6), ("b", 0.8)):
        run = evaluated(data, name, quality, flags=f"--arch {name} --lr 1")
        kept_results = json.loads((known / "results.json").read_bytes())
        results = {**kept_results, **json.loads((run / "results.json").read_bytes())}
        results["training"] = kept_results["training"]
        records.write(run / "results.json", results)
        records.write(run / "results.test1.json", {**results, "subset": "test1"})
        command = json.loads((run / "run.json").read_bytes())["command"]
        records.write(run / "run.json", {**record, "command": command, "evaluate": ["--beam", "5", "--last", "3"]})
        (run / "train.log").write_text(log_lines(4))
        (run / "analysis").mkdir()
        (run / "averaged.pt").write_bytes(b"not a checkpoint")
        analysis = short_analysis(known / "analysis" / "analysis.json")
        made_from = {"is_whole": True, "made_from": FileState.of(run / "averaged.pt")}
        records.write(run / "analysis" / "analysis.json", {**analysis, **made_from})
        records.write(run / "averaged.json", AverageNote([one, one], one))
        records.write(
            run / "decode" / "test.averaged.json", DecodingNote([one], "d", [one], {"beam": "4"}, {"form": "x"})
        )
    records.write(folder / "baselines.json", Baselines(1.5, 2.5, "sig"))

    write_image_data(folder / "farm-bin")
    for seed, name in enumerate("xy"):
        image_results(folder / name, folder / "farm-bin", seed)
        records.write(folder / name / "run.json", {**record, "command": ["fairseq-train", "d", "--seed", str(seed)]})
        (folder / name / "train.log").write_text(log_lines(3))

    known_images = captions.images()
    dataset = captions.write_json(folder / "dataset_coco.json", known_images)
    table = captions.write_tsv(folder / "features.tsv", [image["cocoid"] for image in known_images])
    if captions.main(folder / "pets-bin", dataset, table):
        raise RuntimeError("the captions could not be prepared")
    for seed, name in enumerate("pq"):
        caption_results(folder / name, folder / "pets-bin", seed)
        records.write(folder / name / "run.json", {**record, "command": ["fairseq-train", "d", "--seed", str(seed)]})
        (folder / name / "train.log").write_text(log_lines(3))

    trial_file = studies.written(folder, studies.SMALL)
    trial = plan.read_study(trial_file)
    for name in studies.all_kept(folder / "trial", trial):
        records.write(folder / "trial" / name / "run.json", record)
    (folder / "image-recipe.txt").write_text(f"{folder / 'farm-bin'}\n{IMAGE_FLAGS}\n")
    farm_file = studies.written(folder, IMAGE_STUDY.format(recipe=folder / "image-recipe.txt"), "farm")
    farm = plan.read_study(farm_file)
    for run in plan.runs(farm, {}):
        place = folder / "farm" / run.name
        image_results(place, folder / "farm-bin", run.seed)
        pack(classifying.answers_file(Run(place), "test"), place / "decode")
        classifying.answers_file(Run(place), "test").unlink()
        scores = {"last": {name: Scored(20.0 + run.seed, "unit") for name in ("error", "NLL")}}
        flags = shlex.join(plan.flags_of(farm, run).arguments)
        made = kept.Note("farm", run, flags, "finished", {"last": 2.0}, scores, 60.0, 100)
        records.write(kept.note_file(place), made)
        records.write(place / "run.json", record)
        (place / "train.log").write_text(log_lines(3))

    (folder / "recipe.txt").write_bytes((recipe.FOLDER / "multi30k-en-de-published.txt").read_bytes())
    studies.written(
        folder, studies.SMALL.replace("recipe: quickstart", f"recipe: {folder / 'recipe.txt'}"), "of-recipe"
    )
    (folder / "manifest.yaml").write_bytes((manifest.MANIFESTS / "multi30k-en-de.yaml").read_bytes())
    (folder / "image-manifest.yaml").write_bytes((image_manifest.MANIFESTS / "cifar10.yaml").read_bytes())


# ------------------------------------------------------------------------------------------------------------- cases


class TookTooLong(BaseException):
    """A command used more than SECONDS of processor time or hung. No handler of Exception catches this error."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TookTooLong

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, HANG)}
    before = {number: signal.signal(number, end) for number, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, (number, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def run_command(words: str) -> tuple[int, str, str]:
    """Run a command line of `fairseq-resid` in this process; return its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words.split())
        except SystemExit as end:  # raised by argparse
            code = end.code if isinstance(end.code, int) else 3
    return code, out.getvalue(), err.getvalue()


def command_outcome(words: str) -> tuple[str, bool]:
    """Run a command; return the problem with its outcome, "" if there is none, and whether it refused its input."""
    try:
        with limited():
            code, out, err = run_command(words)
    except TookTooLong:
        return f"over {SECONDS} s of processor time", False
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {traceback.extract_tb(error.__traceback__)[-1]}", False
    if code not in (0, 1, 2) or "Traceback" in err:
        return f"exit code {code}: {err[-300:]}", False
    if strange := [line for line in (out + err).split("\n") if CONTROL.search(line)]:
        return f"control characters reach the terminal: {strange[0][:200]!r}", False
    lines = err.splitlines()
    if code == 2 and (len(lines) != 1 or not lines[0].startswith(f"fairseq-resid {words.split()[0]}: error: ")):
        return f"not one line of error: {err[:300]!r}", False
    return lost_of_report(words, code) if words.startswith("report") else "", code != 0


def lost_of_report(words: str, code: int) -> str:
    """Return a message if the report failed or lacks parts that do not depend on the strange file, otherwise ""."""
    healthy = [run for run in ("a", "x", "p") if f" {run} " in f" {words} "]
    if not healthy:
        return ""
    if code != 0:
        return f"report lost: exit code {code}"
    page = Path("page.html").read_text(encoding="utf-8")
    parts = {"curves": "Training and validation by update.", "settings": "--seed"}
    if healthy == ["a"]:
        parts["analysis"] = 'id="run-a"'
        if "--study" in words:
            parts["second analysis"] = 'id="run-b"'
    lost = [name for name, text in parts.items() if text not in page]
    return f"report lost: {', '.join(lost)}" if lost else ""


def missing_note(first: Callable[[Path], Any], path: Path, folder: Path) -> str:
    """Return a message if a file cannot be read and the report does not say so, otherwise ""."""
    page = html.unescape(Path("page.html").read_text(encoding="utf-8"))
    return (
        "no note names the file"
        if reader_outcome(first, folder)[1] and str(path.relative_to(folder)) not in page
        else ""
    )


def reader_outcome(function: Callable[[Path], Any], folder: Path) -> tuple[str, bool]:
    """Return a message, empty if a reader returns or raises a one-line error, and whether it raised such an error."""
    try:
        with limited(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            function(folder)
    except TookTooLong:
        return f"over {SECONDS} s of processor time", False
    except (ValueError, OSError) as error:
        return ("" if str(error) and "\n" not in str(error) else f"not one line: {error!r}"), True
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {error}: {traceback.extract_tb(error.__traceback__)[-1]}", False
    return "", False


def blank_plot(rows: int = 1, columns: int = 1, **_: object) -> tuple[Any, Any]:
    """Return a figure and axes as pyplot.subplots does, but the axes accept every call and draw nothing."""
    axes = np.empty((rows, columns), dtype=object)
    for place in np.ndindex(axes.shape):
        axes[place] = MagicMock()
        axes[place].get_legend_handles_labels.return_value = [], []
        axes[place].get_lines.return_value = []
    drawn = MagicMock()
    drawn.savefig = lambda path, **_: path.write_text("<svg/>")
    return drawn, axes


@contextlib.contextmanager
def without_drawing() -> Iterator[None]:
    """Compute the plots without drawing them, because drawing takes most of the time."""
    from matplotlib import pyplot

    with patch.object(pyplot, "subplots", blank_plot), patch.object(style, "fix_layout"), patch.object(pyplot, "close"):
        yield


@dataclass(frozen=True)
class Case:
    """A file with a field altered at random, and the command that read it.

    fault: the problem, "" if there is none; is_refused: whether the command or function reported an error
    """

    name: str
    seed: int
    command: str
    fault: str
    is_refused: bool


@functools.cache
def turns(folder: Path) -> list[tuple[str, int, int]]:
    """Return all fields of all files in random order, each as (file, number of the field, number of fields)."""
    found = [(name, turn, count) for name in FILES for count in [FILES[name].fields(folder / name)]
             for turn in range(count)]  # fmt: skip
    return random.Random(0).sample(found, len(found))


def tried(folder: Path, seed: int, only: str = "") -> Case:
    """Alter the field whose turn it is, and run one of the commands or functions that read its file.

    The current folder must be `folder`. Its files are restored afterwards.
    """
    choose = random.Random(seed)
    known = [each for each in turns(folder) if only in each[0]]
    name, turn, fields = known[seed % len(known)]
    strange = FILES[name]
    path = folder / name
    whole = path.read_bytes()
    altered = strange.alter(choose, strange.content(path), turn + seed // len(known) * fields)
    path.write_bytes(gzip.compress(altered, 1) if name.endswith(".gz") else altered)
    quick = [*(words for words in strange.commands if not words.startswith("report")), *strange.readers]
    reports = [words for words in strange.commands if words.startswith("report")]
    reader = choose.choice(reports if not quick or (reports and choose.random() < REPORTS) else quick)
    draws = choose.random() < DRAWN
    try:
        with contextlib.nullcontext() if draws else without_drawing():
            outcome = command_outcome(reader) if isinstance(reader, str) else reader_outcome(reader, folder)
            if isinstance(reader, str) and reader in reports and strange.is_noted and not outcome[0]:
                outcome = missing_note(strange.readers[0], path, folder), outcome[1]
    finally:
        path.write_bytes(whole)
    return Case(name, seed, reader if isinstance(reader, str) else "a function", *outcome)
