"""The links of the documentation lead somewhere, and its generated parts are up to date."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

import drawings
import formulas
import gallery
from fairseq_resid import connections
from support import structures
from support.structures import each

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host gives to the headings of a Markdown page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_markdown_pages_lead_somewhere() -> None:
    folders = ("", "docs", "studies", "benchmarks", "checkpoints", "data-prep", "tests", "scripts", "fairseq_resid")
    pages = [page for folder in folders for page in sorted((ROOT / folder).glob("*.md"))]
    pages += [*ROOT.glob("*/*/README.md"), *ROOT.glob("studies/*/results.md")]
    broken = []
    for page in pages:
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target, anchor in re.findall(r"\]\((?![a-z]+:)([^()\s#]*)(?:#([^()\s]*))?\)", prose):
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert len(pages) > 30 and not broken


# Messages of the shell, pip, Python, torch and fairseq on the page of troubleshooting.
FOREIGN = """
    invalid choice: 'transformer_sas'|FileNotFoundError|fairseq-resid: command not found|Weights only load failed
    CUDA out of memory|attempting to recover from OOM|libtorchaudio.so
    mutable default <class 'fairseq.dataclass.configs.CommonConfig'> for field
    Ignoring version 2.0.6 of omegaconf since it has invalid metadata
"""


def test_quoted_messages_exist() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    entries = "\n".join(re.findall(r"^(?:### .*|\| `[^`]*` \|)", page, re.MULTILINE))
    quoted = [span for span in re.findall(r"`([^`]+)`", entries) if not re.match(r"--[\w-]+ \w+$", span)]
    known = "\n".join(script.read_text(encoding="utf-8") for script in (ROOT / "scripts").glob("*.sh"))
    for source in (ROOT / "fairseq_resid").rglob("*.py"):
        nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        known += "\n".join(
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
    parts = {part.strip() for span in quoted if span not in FOREIGN for part in span.split("...")}
    assert len(quoted) > 35 and not {part for part in parts if part not in known}, "update docs/troubleshooting.md"


# Characters in the registry's formulas, by their LaTeX commands.
SIGNS = {command: sign for sign, command in formulas.COMMANDS.items() if command != "-"}


def plain(markdown: str) -> str:
    """Return a Markdown formula in the registry's notation, without spaces and without characters that mark indices."""
    text = markdown.replace("$", "")
    for command in sorted(SIGNS, key=len, reverse=True):
        text = re.sub(re.escape(command) + ("(?![a-zA-Z])" if command[-1].isalpha() else ""), SIGNS[command], text)
    return re.sub(r"[\s_{}]", "", text)


@each
def test_formula_in_latex_has_every_symbol(name: str) -> None:
    formula = connections.structure(name).formula
    expected = re.sub(r"[\s_{}]", "", formula.translate(formulas.DIGITS)).replace("−", "-")
    assert plain(formulas.markdown(formula)) == expected


@pytest.mark.parametrize(
    ("formula", "markdown"),
    [
        (
            "LN(αx + F), α and initialisation by depth",
            r"$\mathrm{LN}(\alpha x + F)$, $\alpha$ and initialisation by depth",
        ),
        ("y_k = LN_k(x + y_{k−1}), k = 2..λ", r"$y_{k} = \mathrm{LN}_{k}(x + y_{k-1})$, $k = 2\dots \lambda$"),
        ("(1−t)x + tF, or a gate of x and F", "$(1-t)x + tF$, or a gate of $x$ and $F$"),
        ("the branch sees LN of a mean", "the branch sees LN of a mean"),
        ("x + F/√(2l)", r"$x + F/\sqrt{(2l)}$"),
    ],
)
def test_math_is_distinguished_from_prose(formula: str, markdown: str) -> None:
    assert formulas.markdown(formula) == markdown


@each
def test_drawing_agrees_with_the_class(name: str) -> None:
    """The drawing has a norm before the branch if the branch input differs from x."""
    shown, made = drawings.site(name), connections.structure(name)
    reads = made.connection.branch_input is not connections.ResidualConnection.branch_input
    if "`" not in made.formula:  # some sites use the formula of another structure
        assert bool(shown.before or shown.is_mixed) == reads
    assert shown.is_mixed <= shown.is_wide == connections.has_wide_state(name) or "`" in made.formula
    tree = ElementTree.fromstring(drawings.svg(name))
    assert tree.find("{*}title").text.startswith(f"{name}: ")


@pytest.mark.structures
def test_gallery_is_up_to_date() -> None:
    if any(not structures.has_file(name) for name in structures.registered()):
        pytest.skip("a structure has no test file yet")  # a different test then fails
    made = gallery.files(structures.ALL)
    stale = [file for file, text in made.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    stale += [file for file in gallery.DRAWINGS.glob("*") if file not in made]
    assert not stale, "the gallery is out of date: run python docs/tools/gallery.py"
