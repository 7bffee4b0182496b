"""Python code on the pages of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(page: str, word: str) -> str:
    """Return the Python block that contains a word. The page must have only one such block."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (found,) = [
        block for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if word in block
    ]
    return found
