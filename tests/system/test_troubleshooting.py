"""docs/troubleshooting.md explains messages that exist in this version."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# Messages of the shell, Python, torch and fairseq.
FOREIGN = {
    "invalid choice: 'transformer_sas'",
    "FileNotFoundError",
    "fairseq-resid: command not found",
    "Weights only load failed",
    "CUDA out of memory",
    "attempting to recover from OOM",
    "libtorchaudio.so",
}
HEADINGS = re.findall(r"^### (.*`.*)$", PAGE, flags=re.MULTILINE)
ROWS = re.findall(r"^\| (`[^`]*`) \|", PAGE, flags=re.MULTILINE)


def quoted() -> list[str]:
    """Return the messages in headings and tables. "..." stands for a variable part."""
    spans = [span for text in (*HEADINGS, *ROWS) for span in re.findall(r"`([^`]+)`", text)]
    return [span for span in spans if not re.match(r"--[\w-]+ \w+$", span)]


def texts() -> list[str]:
    """Return all scripts, and all strings of the package except docstrings, with f-strings split into parts."""
    found = [script.read_text(encoding="utf-8") for script in (ROOT / "scripts").glob("*.sh")]
    for source in (ROOT / "fairseq_resid").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        constants = [node for node in nodes if isinstance(node, ast.Constant) and node not in docstrings]
        found += [node.value for node in constants if isinstance(node.value, str)]
    return found


def test_page_explains_many_messages() -> None:
    assert len(quoted()) > 35
    assert set(quoted()) >= FOREIGN


def test_explained_messages_exist() -> None:
    known = texts()
    for message in quoted():
        for part in message.split("..."):
            wanted = part.strip()
            assert message in FOREIGN or any(wanted in text for text in known), (
                f"docs/troubleshooting.md explains {message!r}, but no message contains {wanted!r}: "
                "update the wording on the page, or remove the entry"
            )
