"""Untrusted files in run, study and data folders: devices, pipes, compression bombs and huge files are refused."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_resid import files, records
from fairseq_resid.analysis import curves
from fairseq_resid.runs import recipe
from fairseq_resid.runs.run import Run, RunRecord

pytestmark = pytest.mark.once
# Each function reads RUN/NAME through the function that opens untrusted files.
READERS: dict[str, Callable[[Path], object]] = {
    "train.log": lambda path: list(Run(path.parent).log_lines()),
    "run.json": lambda path: records.read(path, RunRecord),
    "study.yaml": lambda path: records.read(path, dict),
    "test.hyp": files.read_lines,
}


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [zeros, pipe, giant])
def test_devices_pipes_and_huge_files_are_refused(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    wrong = "bytes; at most" if make is giant else "(not a regular file|leads to /dev/zero)"
    with pytest.raises(ValueError, match=rf"{name}: .*{wrong}"):
        READERS[name](tmp_path / name)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("content", [b"\0", b"\n", b"line\n"], ids=["one line", "empty lines", "lines"])
def test_refusing_a_decompression_bomb_takes_little_memory(content: bytes, tmp_path: Path) -> None:
    """A small file contains 3 GB of repeated text. A separate process reads it, and its memory is measured."""
    with gzip.open(tmp_path / "train.log.gz", "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(content * (10_000_000 // len(content)))
    code = "import sys\nfrom pathlib import Path\nfrom fairseq_resid import files\n"
    code += "try:\n    files.read_lines(Path(sys.argv[1]))\nexcept ValueError as error:\n    print(error)\n"
    code += "(peak,) = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
    code += "print(int(peak) // 1024)"
    command = [sys.executable, "-c", code, str(tmp_path / "train.log")]
    error, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "train.log" in error and ("too large" in error or "NUL" in error)
    assert int(megabytes) < 900


def test_long_lines_are_refused_and_ordinary_ones_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * files.MOST_LINE_BYTES + b"\n")
    with pytest.raises(ValueError, match="a:1: too large"):
        files.read_lines(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"x" * (files.MOST_LINE_BYTES - 1) + b"\nlast")
    assert [len(line) for line in files.read_lines(tmp_path / "a")] == [files.MOST_LINE_BYTES - 1, 4]


def test_log_longer_than_any_real_log_is_refused(tmp_path: Path) -> None:
    line = '{"epoch": 1, "num_updates": 3, "loss": 2}\n'
    (tmp_path / "train.log").write_text(line * 200_001)
    for read in (Run(tmp_path).training_summary, lambda: curves.read_curves(Run(tmp_path))):
        with pytest.raises(
            ValueError, match=r"train\.log:200001: too large: at most 67,108,864 bytes in 200,000 lines"
        ):
            read()


def test_log_that_restarts_at_every_line_is_read_quickly(tmp_path: Path) -> None:
    for count in (range(150_000), range(150_000, 0, -1)):
        (tmp_path / "train.log").write_text(
            "".join(f'{{"epoch": {n}, "valid_loss": 2, "train_num_updates": {n}}}\n' for n in count)
        )
        begun = time.process_time()
        Run(tmp_path).training_summary()
        curves.read_curves(Run(tmp_path))
        assert time.process_time() - begun < 20


def test_results_of_many_models_with_many_scores_are_refused(tmp_path: Path) -> None:
    """A card of 5,000 models, each with its own score, would have 25 million cells."""
    scores = {f"m{n}": {f"s{n}": {"score": 1, "signature": "s"}} for n in range(5000)}
    summary = {"architecture": "a", "parameters": 1, "corpus": "c", "subset": "test", "training": {}}
    (tmp_path / "results.json").write_text(json.dumps({**summary, "scores": scores}))
    with pytest.raises(
        ValueError, match=r"results\.json: .*scores: 5,000 models and 5,000 scores: must be at most 100"
    ):
        Run(tmp_path).read_results()


@pytest.mark.parametrize("words", [["a"] * 10_001, ["a" * 200_000]])
def test_overlong_recorded_command_is_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"command": ["fairseq-train", *words], "finished": True}))
    with pytest.raises(
        ValueError, match=r"run\.json: damaged, .*characters: must be at most 10,000 words and 131,072 char"
    ):
        Run(tmp_path).read_record()
    (tmp_path / "recipe.txt").write_text("--lr " + " ".join(words) + " a" * 70_000)
    with pytest.raises(ValueError, match=r"recipe\.txt: .* characters of flags: must be at most 131,072"):
        recipe.read(str(tmp_path / "recipe.txt"))


def test_oversized_recipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "recipe.txt").open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(ValueError, match=r"recipe\.txt: 200,000,000 bytes; at most 1,048,576 are read"):
        recipe.read(str(tmp_path / "recipe.txt"))


HOSTILE_YAML = {
    "an integer in base 60": ("a: " + "1:" * 4000 + "1", "1:1"),
    "a tagged integer in base 60": ("a: !!int " + "1:" * 4000 + "1", "line 1: a tag is not allowed"),
    "a longer integer": (
        "a: " + "1:" * 100_000 + "1",
        "line 1: 200,001 characters in one value; at most 10,000 are read",
    ),
    "a number of 41 digits": ("a:\n- " + "9" * 41, "line 2: a number of 41 characters; at most 40 are read"),
    "a deep list": ("a: " + "[" * 200_000, "line 1: nested too deeply; at most 32 levels are read"),
    "deep lists on one line": ("- " * 100_000, "line 1: nested too deeply"),
    "a date that does not exist": ("a: 2024-99-99", "2024-99-99"),
    "a merge": ("<<: {a: x}", ""),
    "a repeated key": ("a: x\nb: [{c: 1, c: 2}]", "line 2: c is given twice"),
    "many items": ("a: [" + "x," * 130_000 + "]", "x"),
    "more than 256 KB": ("a: x\n" + "#" * (1 << 18), "262,149 bytes; at most 262,144 are read"),
}


@pytest.mark.parametrize("text", HOSTILE_YAML)
def test_hostile_yaml_is_refused_or_read_as_text(text: str, tmp_path: Path) -> None:
    content, expected = HOSTILE_YAML[text]
    (tmp_path / "study.yaml").write_text(content)
    begun = time.process_time()
    try:
        found = str(records.read(tmp_path / "study.yaml", dict).get("a", ""))
    except ValueError as error:
        found = str(error)
        assert found.startswith(f"{tmp_path / 'study.yaml'}: ") and "\n" not in found
    assert expected in found and time.process_time() - begun < 20


def test_yaml_has_the_types_of_version_1_2() -> None:
    values = "[1, -2, 010, 0x1F, 0o17, .5, 1e-3, -.inf, ~, true, yes, 1_0, 1:30, 2024-01-01, '1']"
    expected = [1, -2, 10, 31, 15, 0.5, 0.001, -math.inf, None, True, "yes", "1_0", "1:30", "2024-01-01", "1"]
    assert records.from_yaml(values) == expected


def test_aliases_in_yaml_are_refused(tmp_path: Path) -> None:
    """Nine levels of nine aliases expand to 9^9 values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (tmp_path / "study.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"study\.yaml: line 2: an alias is not allowed"):
        records.read(tmp_path / "study.yaml", dict)


def test_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.log").mkdir()
    with pytest.raises(ValueError, match=r"train\.log: no such file"):
        files.read_lines(tmp_path / "train.log")
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path / "train.log")


def test_lock_and_partial_name_do_not_follow_links(tmp_path: Path) -> None:
    """Someone else's run folder may contain links that lead out of it, under any name that we write."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in (".lock", "results.json.partial", "train.log"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(ValueError, match=r"\.lock: is a symbolic link"), files.locked(tmp_path / ".lock", "busy"):
        pass
    with pytest.raises(ValueError, match=r"train\.log: is a symbolic link"):
        files.open_to_append(tmp_path / "train.log")
    files.write_text(tmp_path / "results.json", "new")
    assert precious.read_text() == "mine" and (tmp_path / "results.json").read_text() == "new"


def test_writing_does_not_hang_on_pipes(tmp_path: Path) -> None:
    for name in ("card.md.partial", "train.log"):
        os.mkfifo(tmp_path / name)
    files.write_text(tmp_path / "card.md", "new")
    assert (tmp_path / "card.md").read_text() == "new"
    with pytest.raises(OSError, match=r"train\.log"):
        files.open_to_append(tmp_path / "train.log")


def test_device_or_pipe_is_not_replaced_by_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(ValueError, match=f"{name}: not a regular file; the output must be one"):
            files.write_text(tmp_path / name, "new")
        assert not (tmp_path / name).is_file() and (tmp_path / name).exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_last_lines_of_a_giant_log_are_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"\none\ntwo\xff\nthree\n")
    assert files.last_lines(tmp_path / "log", 3) == ["one", "two\ufffd", "three"]
