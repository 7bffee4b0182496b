"""files.py and records.py: atomic writes, locks, typed records."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from fairseq_resid import records
from fairseq_resid.files import locked, replacing, write_text

pytestmark = pytest.mark.once

HOLD = """
import sys, time
from pathlib import Path
from fairseq_resid.files import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@dataclass(frozen=True)
class Known:
    name: str
    sizes: dict[str, int] = field(default_factory=dict)


def test_file_is_replaced_atomically(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_text(file, "old\n")
    with pytest.raises(RuntimeError), replacing(file) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert file.read_text() == "old\n" and [path.name for path in tmp_path.iterdir()] == ["file"]
    with replacing(file) as partial:
        partial.write_text("new")
        assert file.read_text() == "old\n"
    assert file.read_text() == "new" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_locked_file_is_refused_or_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="somebody is there"), locked(lock, "somebody is there"):
            pass
        holder.stdin.write("\n")
        holder.stdin.flush()
        with locked(lock, "somebody is there", wait=True) as descriptor:
            assert descriptor > 2 and holder.wait() == 0


def test_lock_is_recreated_after_its_folder_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with locked(folder / ".lock", "busy"):
        pass
    (folder / ".lock").unlink()
    with locked(folder / ".lock", "busy"):
        assert (folder / ".lock").is_file()


def test_records_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    records.write(file, Known("Đường", {"a": 1}))
    assert file.read_text(encoding="utf-8") == '{\n  "name": "Đường",\n  "sizes": {\n    "a": 1\n  }\n}\n'
    assert records.read(file, Known) == Known("Đường", {"a": 1})
    file.write_text('{"name": "x", "of_a_later_version": 1}')
    assert records.read(file, Known) == Known("x")
    assert records.read_if_there(tmp_path / "none.json", Known) is None


def test_damaged_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    file.write_text('{"name": 1}')
    with pytest.raises(ValueError, match=r"known\.json: damaged, .*Expected `str`, got `int` - at `name`"):
        records.read(file, Known, "the command")
    assert records.remembered(file, Known) is None


class Scalars(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    number: float = 0.0
    count: int = 0
    either: str | float = ""
    flags: dict[str, str] = {}
    flag: bool = False


@pytest.mark.parametrize("text", ["no", "on", "1:30", "1_000", "010", "2026-01-01"])
def test_yaml_text_without_quotes_stays_text(tmp_path: Path, text: str) -> None:
    """YAML 1.1, which PyYAML reads, has other values for all of these; `no` is the code of Norwegian."""
    file = tmp_path / "s.yaml"
    file.write_text(f"text: {text}\neither: {text}\nflags: {{{text}: {text}}}\n")
    assert records.read(file, Scalars) == Scalars(text, either=text, flags={text: text})
    for name, kind in (("number", "float"), ("count", "int"), ("flag", "bool")):
        file.write_text(f"{name}: {text}\n")
        with pytest.raises(ValueError, match=f"s.yaml: Expected `{kind}`, got `str` - at `{name}`$"):
            records.read(file, Scalars)


@pytest.mark.parametrize("text", ["1e-3", "1.0e-3", "0.001"])
def test_yaml_number_in_any_notation_is_a_number(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"number: {text}\neither: {text}\n")
    assert records.read(file, Scalars) == Scalars(number=0.001, either=0.001)


@pytest.mark.parametrize("text", ["true", "1e5"])
def test_yaml_text_that_needs_quotes_is_reported(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"text: {text}")
    with pytest.raises(ValueError, match=r"s\.yaml: Expected `str`, got `\w+` - at `text`; put the text in quotes"):
        records.read(file, Scalars)
    file.write_text(f"text: '{text}'\n")
    assert records.read(file, Scalars) == Scalars(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("flags:\n  x: a\n  y: b\n  'x': c", r"s\.yaml: line [124]: (text|x) is given twice$"),
        ("txt: x", "unknown field `txt`"),
    ],
)
def test_yaml_key_that_is_unknown_or_given_twice_is_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ValueError, match=error):
        records.read(tmp_path / "s.yaml", Scalars)
