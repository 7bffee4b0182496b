"""Symbolic links in run, study and data folders from others: nothing outside such a folder is read or written."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairseq_resid import files
from fairseq_resid.data import folders
from fairseq_resid.data.images import folder as image_folder
from fairseq_resid.data.text.folder import Corpus
from fairseq_resid.runs.run import Run
from fairseq_resid.study import archive, executors, kept, plan, study, work
from fairseq_resid.tasks.text import decoding
from support import strange_folders, studies
from support.strange_folders import FILES, F, T

pytestmark = pytest.mark.once

OPENED: list[str] | None = None


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if OPENED is not None and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        OPENED.append(os.path.realpath(os.fsdecode(arguments[0])))


sys.addaudithook(note_opened)


@contextmanager
def none_opened_in(outside: Path) -> Iterator[None]:
    """Fail if Python code opens a file in this folder."""
    global OPENED
    OPENED = []
    try:
        yield
        assert [name for name in OPENED if Path(name).is_relative_to(outside)] == []
    finally:
        OPENED = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("links").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        strange_folders.build(made)
    return made


@contextmanager
def linked(path: Path, outside: Path) -> Iterator[Path]:
    """Move a file or folder to `outside` and leave a link to it; yield its new path."""
    moved = outside / path.name
    shutil.move(path, moved)
    path.symlink_to(moved)
    try:
        yield moved
    finally:
        path.unlink()
        shutil.move(moved, path)


IN_FOLDERS = {name: file for name, file in FILES.items() if "/" in name and file.commands and "farm-bin" not in name}
FOLDERS = {
    "b/decode": IN_FOLDERS["b/results.json"].commands,
    "b/analysis": ("report a b --out page.html",),
    "data/ref": ("compare a b", "report a b --out page.html"),
    "trial": ("study trial.yaml --plan", "study trial.yaml --results", "report --study trial.yaml --out page.html"),
    T: ("study trial.yaml --plan", "study trial.yaml --results"),
    f"{T}/decode": ("study trial.yaml --results",),
    F: ("study farm.yaml --results",),
}


@pytest.mark.parametrize("name", [*IN_FOLDERS, *FOLDERS])
def test_commands_name_the_link_and_open_nothing_outside(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    shown = []
    with linked(folder / name, tmp_path), none_opened_in(tmp_path), strange_folders.without_drawing():
        for words in IN_FOLDERS[name].commands if name in IN_FOLDERS else FOLDERS[name]:
            Path("page.html").unlink(missing_ok=True)
            code, out, err = strange_folders.run_command(words)
            page = Path("page.html").read_text() if Path("page.html").exists() else ""
            assert "Traceback" not in err and (code == 2) == ("error: " in err), words
            shown.append(out + err + page)
    assert any(f"{name}" in text and f"leads to {tmp_path}" in text for text in shown), shown


def test_links_within_a_folder_and_to_the_folder_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "scratch" / "run"
    real.mkdir(parents=True)
    (real / "train.log.1").write_text("a line\n")
    (real / "train.log").symlink_to("train.log.1")
    (tmp_path / "run").symlink_to(real)
    assert [*Run(tmp_path / "run").log_lines()] == ["a line\n"]


@pytest.mark.parametrize("name", ["train.log", "decode", "run.json", "results.json", "card.md"])
def test_links_out_of_a_run_folder_are_refused(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match=rf"{name}: leads to .*other, outside .*run; replace links"):
        files.inside(run, name)
    with pytest.raises(ValueError, match="outside"):
        {
            "train.log": lambda run: [*run.log_lines()],
            "decode": lambda run: run.decode,
            "run.json": lambda run: run.record,
            "results.json": lambda run: run.read_results(),
            "card.md": lambda run: run.card,
        }[name](Run(run))


def test_compressed_log_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """train.log.gz is read when there is no train.log."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log.gz").symlink_to(tmp_path / "other.gz")
    with pytest.raises(ValueError, match=r"train\.log\.gz: leads to .*other\.gz, outside"):
        list(Run(run).log_lines())


def test_checkpoints_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "kept.pt").write_bytes(b"x")
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.last.symlink_to("../kept.pt")
    (run.path / "checkpoint3.pt").symlink_to("../kept.pt")
    assert run.checkpoint() == run.last and [file.name for file in run.numbered("epoch")] == ["checkpoint3.pt"]


def test_data_folder_cannot_lead_outside(tmp_path: Path) -> None:
    """Neither a link nor a name in corpus.json may lead outside."""
    data = strange_folders.data_folder(tmp_path / "data")
    corpus = Corpus.read(data)
    (data / "ref" / "valid.xx").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match="outside"):
        corpus.references("valid")
    with pytest.raises(ValueError, match="outside"):
        folders.TEXT.fingerprint(data)
    farm = tmp_path / "farm"
    farm.mkdir()
    (farm / "images.json").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match="outside"):
        image_folder.ImageRecord.of(farm)
    text = (data / "corpus.json").read_text()
    for model in ("../private", str(tmp_path / "private"), "sub/../../private"):
        named = '{"post_process": "subword_nmt", "model": "%s"}' % model  # noqa: UP031
        (data / "corpus.json").write_text(text.replace('{"post_process": null}', named))
        with pytest.raises(ValueError, match=r"private.*(outside|not a file of the data folder)"):
            Corpus.read(data).segmenter()


def test_logs_and_checkpoints_replace_links(tmp_path: Path) -> None:
    """This holds for logs of decoding and of a study's runs, and for checkpoints that training writes."""
    from fairseq_resid.fairseq_patches import writing

    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("a.log", "a.err", "run.out", "checkpoint1.pt.tmp", "job.out"):
        (tmp_path / name).symlink_to(precious)
    decoding.decode([sys.executable, "-c", "print('D-0\t0\ta')"], tmp_path / "a.log")
    assert decoding.read_hypotheses(tmp_path / "a.log") == ["a"]
    started = executors.LocalExecutor(1, None, tmp_path, []).start({"run": [sys.executable, "-c", "print('b')"]})
    assert started["run"].child.wait() == 0 and (tmp_path / "run.out").read_text() == "b\n"  # type: ignore[attr-defined]
    executors.Command([sys.executable, "-c", "print('c')"], tmp_path / "job.out")()
    assert (tmp_path / "job.out").read_text() == "c\n"
    with writing._writing(str(tmp_path / "checkpoint1.pt"), 1):
        (tmp_path / "checkpoint1.pt.tmp").write_text("weights")
    assert precious.read_text() == "mine"


def test_hypotheses_that_are_links_are_not_kept(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    (run.path / "decode").mkdir(parents=True)
    (tmp_path / "private").write_text("secret\n")
    (run.path / "decode" / "test.averaged.hyp").symlink_to(tmp_path / "private")
    planned = plan.Planned("s", "a", None, 1)
    with pytest.raises(ValueError, match=r"private.*(outside|not a file of the data folder)"):
        kept.keep_run(run, kept.Note("study", planned, "", "finished"), tmp_path / "kept" / "run")
    assert not (tmp_path / "kept" / "run").exists()


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("../../private"), os.mkfifo], ids=["link", "pipe"])
@pytest.mark.parametrize("name", ["decode/test.averaged.hyp", "x", "analysis"])
def test_pack_refuses_links_and_pipes(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    """Otherwise the archive would contain private text and lack linked folders."""
    (tmp_path / "private").write_text("secret\n")
    run = tmp_path / "study" / "run"
    (run / "decode").mkdir(parents=True)
    (run / "study.json").write_text("{}")
    make(run / name)
    with pytest.raises(ValueError, match=rf"{name}: not a regular file; only regular files"):
        archive.pack(tmp_path / "study")
    assert (run / "study.json").is_file() and not archive.archive_file(tmp_path / "study").exists()


def test_working_folder_is_not_written_through_links(tmp_path: Path) -> None:
    """RUN in the working folder, RUN in the kept folder, and failed/ are replaced by links, one at a time."""
    outside = tmp_path / "outside"
    outside.mkdir()
    trial_file = studies.written(tmp_path, studies.SMALL)
    trial = plan.read_study(trial_file)
    run = next(iter(plan.runs(trial, {})))
    place = work.StudyFolders(trial_file, tmp_path / "work", tmp_path / "trial")
    for link in (place.work / run.name, place.kept / run.name):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(outside)
        with pytest.raises(ValueError, match=f"{run.name}: leads to {outside}"):
            work.do_run(trial, run, place, weights=True)
        link.unlink()
    (place.work / "failed").symlink_to(outside)
    with pytest.raises(ValueError, match=rf"failed.*: leads to {outside}"):
        study.ended(study.State(trial, place, {}, {}), run.name, 1)
    assert list(outside.iterdir()) == []
