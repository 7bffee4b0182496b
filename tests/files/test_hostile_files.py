"""Randomly damaged files of every format that the project reads: each is read, or a ValueError names it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairseq_resid import files, records
from fairseq_resid.analysis import curves
from fairseq_resid.analysis import results as analysis_results
from fairseq_resid.data.images import by_class
from fairseq_resid.data.images import folder as images
from fairseq_resid.data.images.manifest import ImageManifest
from fairseq_resid.data.text import folder as data
from fairseq_resid.data.text import manifest
from fairseq_resid.data.text.preparation import Unfinished
from fairseq_resid.runs import recipe
from fairseq_resid.runs.display import Display
from fairseq_resid.runs.run import Run, log_record
from fairseq_resid.runs.training_command import TrainingCommand
from fairseq_resid.study import archive, kept, plan
from fairseq_resid.tasks import answers as image_answers
from fairseq_resid.tasks.text import decoding, likelihood
from fairseq_resid.tasks.translating import TRANSLATION
from support import hostile_lines

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
KEPT = archive.runs_folder(ROOT / "studies" / "multi30k-depth") / "6+6.sas.0.004.seed1"
TRIES = [pytest.param(40), pytest.param(3000, marks=pytest.mark.long)]


def whole_log(path: Path) -> None:
    """Read a train.log with every function that reads one."""
    run = Run(path.parent)
    run.training_summary()
    command = TrainingCommand.parse(["--max-update", "100", "--max-epoch", "9"])
    with contextlib.redirect_stdout(io.StringIO()), Display("x", command) as shown:
        for line in run.log_lines():
            shown.take(line)
    (path.parent / "kept").mkdir(exist_ok=True)
    kept.write_log(run, Run(path.parent / "kept"))
    curves.read_curves(run)


def images_of(path: Path) -> None:
    known = images.ImageRecord(
        name="x", classes=["a"], shape=(3, 2, 2), counts={"train": 4}, mean=[0.0], deviation=[1.0], source="folder"
    )
    np.array(images.open_split(path.parent, "train", known))


def corpus(path: Path) -> None:
    data.Corpus.read(path.parent)
    data.check(path.parent)
    data.read(path.parent).forms()


def image_corpus(path: Path) -> None:
    images.ImageRecord.of(path.parent)
    images.ImageRecord.checked(path.parent)


def all_lines(path: Path) -> None:
    with files.reading(path.with_suffix("")) as lines:
        list(lines)
    files.read_lines(path.with_suffix(""))


# File name, undamaged content, reader.
READERS: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], Any]]] = {
    "run.json": ("run.json", (KEPT / "run.json").read_bytes, lambda path: Run(path.parent).read_record()),
    "results.json": ("results.json", (KEPT / "results.json").read_bytes, lambda path: Run(path.parent).read_results()),
    "study.json": ("study.json", (KEPT / "study.json").read_bytes, lambda path: records.read(path, kept.Note)),
    "analysis.json": (
        "analysis.json",
        (KEPT / "analysis" / "analysis.json").read_bytes,
        analysis_results.read_analysis,
    ),
    "text.json": ("text.json", lambda: b'{"name": "x", "limit": 3}', lambda path: records.read(path, Unfinished)),
    "corpus.json": ("corpus.json", lambda: json.dumps(CORPUS, indent=2).encode(), corpus),
    "images.json": ("images.json", lambda: json.dumps(IMAGES, indent=2).encode(), image_corpus),
    "manifest": ("m.yaml", (manifest.MANIFESTS / "multi30k-en-de.yaml").read_bytes, manifest.read),
    "image manifest": (
        "m.yaml",
        (ROOT / "fairseq_resid" / "data" / "images" / "manifests" / "cifar10.yaml").read_bytes,
        lambda path: records.read(path, ImageManifest),
    ),
    "study": ("s.yaml", (ROOT / "studies" / "multi30k-depth.yaml").read_bytes, plan.read_study),
    "recipe": ("r.txt", (recipe.FOLDER / "quickstart.txt").read_bytes, lambda path: recipe.read(str(path))),
    "train.log": ("train.log", lambda: (KEPT / "train.log").read_bytes()[-20_000:], whole_log),
    "compressed log": (
        "train.log.gz",
        lambda: gzip.compress((KEPT / "train.log").read_bytes()),
        lambda path: list(Run(path.parent).log_lines()),
    ),
    "compressed text": ("t.gz", lambda: gzip.compress(b"one\ntwo\n" * 50), all_lines),
    "generate's log": (
        "g.log",
        lambda: b"S-0\ta\nT-0\tb\nH-0\t-1\tb\nD-0\t-1\tb\nD-1\t-1\tc\n",
        decoding.read_hypotheses,
    ),
    "nll": ("t.nll", lambda: b"1.2345\t7\n" * 20, likelihood.read_nll),
    "answers": ("t.images", lambda: b"1\t2\t0.5\n" * 20, image_answers.read_answers),
    "bleu": (
        "decode/test.averaged.bleu",
        lambda: b"9\t8\t7\t6\t5\t4\t9\t8\t7\t6\n" * 20,
        lambda path: TRANSLATION.measures["BLEU"].parts(Run(path.parent.parent), "test"),
    ),
    "text": ("t.txt", lambda: "eins\nzwei ä\n".encode() * 9, files.read_lines),
    "images": ("train.npy", lambda: npy(), images_of),
    "image file": ("0.png", lambda: png("PNG"), lambda path: by_class._decode(by_class.ImageFile(path, str(path)))),
    "JPEG": ("0.jpg", lambda: png("JPEG"), lambda path: by_class._decode(by_class.ImageFile(path, str(path)))),
    "TIFF": ("0.tif", lambda: png("TIFF"), lambda path: by_class._decode(by_class.ImageFile(path, str(path)))),
}
CORPUS = {
    "name": "x", "source": "en", "target": "xx", "vocab_size": 90, "asked": {"clean": True, "limit": None},
    "texts": {"train t.en": {"file": "t.en", "lines": 3, "sha256": "00"}}, "differences": ["a"], "unverified": [],
    "lines": {"train": {"in": 3, "out": 3, "dropped": {}}}, "tokens": {"train": {"en": 4, "xx": 5}},
    "round_trip": {"test": {"exact": 1, "of": 2, "bleu": 99.0, "signature": "s", "lost": {"form": 1}, "example":
        {"line": 1, "cause": "form", "reference": "a", "restored": "b"}}},
    "overlap": {"test": {"source": [1], "target": [], "pair": []}}, "text": {"form": "plain", "normalize": "none"},
    "restore": {"post_process": "sentencepiece", "model": "spm.model"}, "bleu_tokenize": "13a",
    "sizes": {"corpus.json": 3, "a/b": 1}, "checksums": {"a/b": "00"},
}  # fmt: skip
IMAGES = {
    "name": "x", "classes": ["a", "b"], "shape": [3, 2, 2], "counts": {"train": 4}, "mean": [0.5, 0.5, 0.5],
    "deviation": [0.2, 0.2, 0.2], "source": "folder", "sizes": {"train.npy": 1}, "checksums": {"train.npy": "00"},
}  # fmt: skip


def npy() -> bytes:
    file = io.BytesIO()
    images.begin(file, (3, 2, 2), 4)
    return file.getvalue() + bytes(4 * 14)


def png(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(file, kind)
    return file.getvalue()


GROUPS = {
    "run.json, results.json, study.json, analysis.json, corpus.json, images.json, text.json": [
        name for name in READERS if name.endswith(".json")
    ],
    "manifests, study files, recipes": ["manifest", "image manifest", "study", "recipe"],
    "train.log, logs of fairseq-generate, scores of sentences, texts, plain and compressed": [
        "train.log", "compressed log", "compressed text", "generate's log", "nll", "answers", "bleu", "text",
    ],
    "train.npy, PNG, JPEG and TIFF files": ["images", "image file", "JPEG", "TIFF"],
}  # fmt: skip


def damage(what: str, choose: random.Random, content: bytes, number: int) -> bytes:
    """Return content with damaged bytes or, for every second JSON file or log, with altered values."""
    if what.endswith(".json") and number % 2:
        return json.dumps(hostile_lines.altered(choose, json.loads(content))).encode()
    if what == "train.log" and number % 2:
        lines = content.split(b"\n")
        place = choose.choice([place for place, line in enumerate(lines) if b'| {"' in line])
        head, brace, rest = lines[place].partition(b"{")
        lines[place] = head + json.dumps(hostile_lines.altered(choose, json.loads(brace + rest))).encode()
        return b"\n".join(lines)
    return hostile_lines.damaged(choose, content)


def tried(what: str, tries: int, folder: Path) -> int:
    """Damage and read a file `tries` times; return how often it was refused."""
    name, whole, read = READERS[what]
    content, choose = whole(), random.Random(what)
    refused = 0
    for number in range(tries + 1):
        shutil.rmtree(folder, ignore_errors=True)
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_bytes(damage(what, choose, content, number) if number else content)
        try:
            read(file)
        except (ValueError, OSError) as error:
            assert number or what in ("corpus.json", "images.json"), error  # these name files that do not exist
            refused += 1
            assert str(folder) in str(error) and "\n" not in str(error), error
        except BaseException:
            print(f"{what}, attempt {number}: {file.read_bytes()[:2000]!r}")
            raise
    return refused


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("group", GROUPS)
def test_damaged_file_is_read_or_reported(group: str, tries: int, tmp_path: Path, fault: Callable[..., None]) -> None:
    refused = {what: tried(what, tries, tmp_path / "folder") for what in GROUPS[group]}
    # Lines of fairseq's log that are not records are skipped.
    assert all(count > tries // 50 for what, count in refused.items() if what != "train.log"), refused
    fault(
        f"damaged: {group}",
        tries * len(refused),
        f"{sum(refused.values()):,} were refused with a one-line error that names the file, all others were read; "
        "no other exception",
    )


def test_every_reader_is_tried() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(READERS)


NO_RECORDS = {
    "a word": '{"epoch": 1, "num_updates": "x"}',
    "a list": '{"epoch": 1, "num_updates": 3, "loss": []}',
    "nothing": '{"epoch": null, "num_updates": 3}',
    "infinite": '{"epoch": 1, "num_updates": 1e999}',
    "not a number": '{"epoch": 1, "update": NaN, "num_updates": 3}',
    "a fraction of an update": '{"epoch": 1, "num_updates": "1.5"}',
    "too many digits": '{"epoch": 1, "train_num_updates": 1' + 400 * "0" + "}",
    "deep": 50_000 * '{"a":' + "}",
}


@pytest.mark.parametrize("line", NO_RECORDS.values(), ids=NO_RECORDS)
def test_log_line_without_record_is_skipped(line: str, tmp_path: Path) -> None:
    """The records before and after it are read."""
    good = '2024-01-01 00:00:00 | INFO | train | {{"epoch": 1, "num_updates": "{}", "loss": "2"}}'
    (tmp_path / "train.log").write_text(
        "\n".join([good.format(3), f"x | INFO | train | {line}", good.format(4)]) + "\n"
    )
    assert log_record(line) is None
    whole_log(tmp_path / "train.log")
    assert [record["num_updates"] for record in Run(tmp_path).log_records()] == ["3", "4"]
    assert Run(tmp_path).training_summary().num_updates == 4


def test_training_summary_reads_records_without_epoch(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text('{"train_num_updates": "4", "train_wpb": "2", "loss": "3"}\n')
    whole_log(tmp_path / "train.log")
    assert Run(tmp_path).training_summary().num_updates == 4
