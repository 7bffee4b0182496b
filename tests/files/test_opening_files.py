"""Files are opened by `fairseq_resid/files.py`, which refuses pipes, devices and giant files. No other module opens
files.

The exceptions are listed here with their reasons.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_resid"
# Methods that read a file, whatever the object: open, path.open, gzip.open, Image.open, path.read_text, ...
ANYWHERE = {
    *(
        "open",
        "fdopen",
        "read_text",
        "read_bytes",
        "open_memmap",
        "memmap",
        "mmap",
        "fromfile",
        "loadtxt",
        "genfromtxt",
    ),
    *("safe_load", "full_load", "unsafe_load", "load_all", "GzipFile", "BZ2File", "LZMAFile", "ZipFile", "TarFile"),
    *("FileIO", "load_from_file", "copyfile", "copyfileobj", "copytree", "getline", "genfromtxt"),
}
# Names that read a file only as functions of these modules.
OF_MODULE = {
    "load": {"np", "numpy", "json", "yaml", "pickle", "torch", "marshal", "tomllib", "joblib", "plistlib"},
    "copy": {"shutil"},
    "copy2": {"shutil"},
    "input": {"fileinput"},
}
WRITING = {"w", "wb", "a", "ab", "x", "xb"}  # the modes in which `open` cannot read

STREAM = "a result of files.open_any_size or files.read_bytes"
NO_FILE = "a method of our own that does not open files itself"
CHECKPOINT = "a checkpoint, with its own checks"
OWN_TEXT = "a text of any size that this preparation has just written"
ALLOWED = {
    "cli/frame.py:open_streams": "the null device",
    "cli/frame.py:reader_has_gone": "the null device",
    "cli/machine.py:processor": "/proc/cpuinfo",
    "data/captions/features.py:NpzFeatures._open": STREAM,
    "data/captions/features.py:_array": STREAM,
    "data/captions/folder.py:mapped": "numbers of any size, mapped; opened by files.open_any_size",
    "data/extract.py": STREAM,
    "data/fetch.py:_attempt": "a download that resumes: read and written",
    "data/images/by_class.py:_decode": STREAM,
    "data/images/folder.py:open_split": "images of any size, mapped; checked with is_file before",
    "data/images/prepare.py:_make": NO_FILE,
    "data/images/sources.py:Release._member": STREAM,
    "data/text/binarise.py:make": OWN_TEXT,
    "data/text/shards.py:_join": STREAM,
    "data/text/subwords.py:sample": OWN_TEXT,
    "data/text/subwords.py:used": OWN_TEXT,
    "data/text/text_steps.py:encode": OWN_TEXT,
    "data/unpacking.py:_zipped": STREAM,
    "tasks/text/decoding.py:decode": "output that our own command has just written",
    "tasks/classifying.py:ImageClassification.load_examples": NO_FILE,
    "evaluation/mosaics.py:features_of": NO_FILE,
    "export/onnx_file.py:check": "a graph of any size, mapped; opened by files.open_regular",
    "fairseq_patches/dictionaries.py:read": "a dictionary, read as by fairseq",
    "fairseq_patches/loading.py": CHECKPOINT,
    "fairseq_patches/reader.py": CHECKPOINT,
    "fairseq_patches/writing.py": CHECKPOINT,
    "records.py:from_yaml": "YAML from files.read_bytes, loaded safely, without aliases and tags",
    "report/report.py:build": "a file of this package",
    "runs/recovery.py:restore": CHECKPOINT,
    "study/archive.py:pack": "an archive that is written",
    "study/archive.py:unpack": "run folders that data/extract.py unpacked",
    "tasks/images.py:ImageClassificationTask.load_dataset": NO_FILE,
}


def calls(tree: ast.AST, where: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield every call in a module with the function or method that contains it."""
    for node in ast.iter_child_nodes(tree):
        inside = where
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = f"{where}.{node.name}" if where else node.name
        if isinstance(node, ast.Call):
            yield where or "<module>", node
        yield from calls(node, inside)


def opens(call: ast.Call) -> str:
    """Return the name of a call that may read a file; "" for any other call."""
    function = call.func
    if isinstance(function, ast.Name):
        name, of = function.id, ""
    elif isinstance(function, ast.Attribute):
        name, of = function.attr, ast.unparse(function.value)
    else:
        return ""
    if name not in ANYWHERE and of.split(".")[-1] not in OF_MODULE.get(name, ()):
        return ""
    if name == "open":
        modes = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        if any(isinstance(mode, ast.Constant) and mode.value in WRITING for mode in modes):
            return ""
    # `files` is the only module that opens files: files.read_bytes(path), or read_bytes(path) imported from it.
    if of == "files" or (not of and name == "read_bytes"):
        return ""
    return f"{of}.{name}" if of else name


def found(source: str) -> list[tuple[str, int, str]]:
    return [(where, call.lineno, name) for where, call in calls(ast.parse(source)) if (name := opens(call))]


def test_only_listed_functions_open_files_themselves() -> None:
    used, strange = set(), []
    for file in sorted(PACKAGE.rglob("*.py")):
        module = file.relative_to(PACKAGE).as_posix()
        for where, line, name in found(file.read_text()) if module != "files.py" else ():
            key = next((key for key in (f"{module}:{where}", module) if key in ALLOWED), None)
            if key is None:
                strange.append(f"{module}:{line}: {where}: {name}")
            else:
                used.add(key)
    assert not strange, (
        "open files by fairseq_resid.files, or list the function in ALLOWED with a reason:\n" + "\n".join(strange)
    )
    assert used == ALLOWED.keys(), "these no longer open files: remove them from ALLOWED"


@pytest.mark.parametrize(
    "source",
    [
        "open(path)", "open(path, 'r+b')", "path.open()", "path.open('rb')", "path.read_text()", "path.read_bytes()",
        "gzip.open(path)", "gzip.GzipFile(path)", "np.load(path)", "json.load(file)", "yaml.load(text)",
        "yaml.safe_load(text)", "torch.load(path)", "pickle.load(file)", "tarfile.open(path)", "zipfile.ZipFile(path)",
        "np.memmap(path)", "os.open(path, os.O_RDONLY)", "shutil.copyfile(a, b)", "Image.open(path)",
        "def f():\n    with open(path) as file:\n        pass", "[line for line in open(path)]",
    ],
)  # fmt: skip
def test_reading_calls_are_recognised(source: str) -> None:
    assert found(source)


@pytest.mark.parametrize("source", ["path.open('wb')", "open(p, mode='w')", "files.read_bytes(p)", "read_lines(p)"])
def test_writing_and_checked_calls_are_not_reading_calls(source: str) -> None:
    assert not found(source)
