"""Print every error message of the package in one list, for review: python tests/support/messages.py"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_resid"
ERROR = re.compile(r"(Error|Refused|Exit|argparse\.ArgumentTypeError)$")
METHODS = ("error", "say", "warn", "warning")


def text(node: ast.expr) -> str:
    """Return a string expression as one line, with {…} for the inserted values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text(node.left) + text(node.right)
    return "{" + ast.unparse(node) + "}"


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every exception that is raised and every warning that is printed."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func)
        if ERROR.search(name) or name.rpartition(".")[2] in METHODS:
            yield node.lineno, " ".join(text(node.args[0]).split())


def main() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        for line, message in sorted(messages(file.read_text(encoding="utf-8"))):
            print(f"{file.relative_to(PACKAGE.parent)}:{line}: {message}")


if __name__ == "__main__":
    main()
