"""Convert the links of Markdown pages, which are written for a code host, to links of the site.

A page of the project outside docs/ that SHOWN names becomes a page of the site: the text of the file replaces that of
the stub in docs/. Links to it lead to that page. A link to any other file outside docs/ becomes the path of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Page of the site: the file that it shows.
SHOWN = {"changelog": "CHANGELOG.md"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?![a-z]+:|#)([^()\s#]+)(#[^()\s]*)?\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^()\s]+)\)")
CODE = re.compile(r"(`[^`\n]*\]\([^`\n]*`)")  # links in code are not links


def converted(text: str, folder: Path) -> str:
    """Return the text of a page, whose links are relative to `folder`, with links relative to docs/."""
    pages = {(ROOT / file).resolve(): name for name, file in SHOWN.items() if (DOCS / f"{name}.md").is_file()}

    def link(found: re.Match[str]) -> str:
        shown, target, anchor = found[1], found[2], found[3] or ""
        path = (folder / target).resolve()
        if path in pages:
            return f"[{shown}]({pages[path]}.md{anchor})"
        if path.is_relative_to(DOCS) or not path.exists():  # a missing file gives a warning
            return f"[{shown}]({os.path.relpath(path, DOCS)}{anchor})"
        name = str(path.relative_to(ROOT))
        return shown if f"`{name}`" == shown or shown == name else f"{shown} (`{name}`)"

    def image(found: re.Match[str]) -> str:
        return f"![{found[1]}]({os.path.relpath((folder / found[2]).resolve(), DOCS)})"

    def prose(part: str) -> str:
        pieces = CODE.split(part)
        pieces[::2] = [LINK.sub(link, IMAGE.sub(image, piece)) for piece in pieces[::2]]
        return "".join(pieces)

    made, waiting, fence = "", "", ""  # prose waits, because a link may continue on the next line
    for line in text.splitlines(keepends=True):
        is_fence = line.startswith("```")
        if is_fence:
            fence = "" if fence else line
        if is_fence or (fence and (not fence.startswith("```{") or fence.startswith("```{eval-rst}"))):
            made, waiting = made + prose(waiting) + line, ""
        else:
            waiting += line
    return made + prose(waiting)


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Convert the links of a page when Sphinx reads it."""
    folder = (DOCS / name).parent
    if name in SHOWN:
        file = ROOT / SHOWN[name]
        app.env.note_dependency(str(file))
        source[0], folder = file.read_text(encoding="utf-8"), file.parent
    if folder.is_relative_to(DOCS) and folder != DOCS:
        return  # pages of the API reference
    source[0] = converted(source[0], folder)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
