"""The documentation site builds without warnings, works offline, and has no broken links."""

from __future__ import annotations

import html
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

import drawings
import formulas
import gallery
from fairseq_resid import connections
from support import browser, structures
from support.structures import each

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
HAS_SPHINX = all(importlib.util.find_spec(name) for name in ("sphinx", "furo", "myst_parser", "latex2mathml"))
needs_sphinx = pytest.mark.skipif(not HAS_SPHINX, reason="no Sphinx: it is installed on Python 3.11 and later")


class Page(HTMLParser):
    """The links, anchors, images and loaded files of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.formulas = 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        self.formulas += tag == "math"
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        if tag == "img":
            self.images.append(values)
        key = "href" if tag == "link" else "src"
        if tag in ("link", "script", "img", "iframe", "source") and values.get(key):
            self.loaded.append(values[key] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from the pages of this tree; return its folder."""
    folder = tmp_path_factory.mktemp("site")
    sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    command = [*sphinx, "-d", folder / "doctrees", ROOT / "docs", folder / "html"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


@needs_sphinx
def test_every_markdown_page_is_in_the_site(pages: dict[Path, Page], site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    made = {file.relative_to(site).with_suffix("") for file in pages}
    assert {path for path in sources if path.parts[0] != "_build"} <= made
    named = {unquote(urlsplit(link).path) for link in pages[site / "index.html"].links}
    assert {f"{path}.html" for path in sources if path.parts[0] not in ("_build", "index", "api")} <= named


@needs_sphinx
def test_no_internal_link_is_broken(pages: dict[Path, Page]) -> None:
    broken, checked = [], 0
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            checked += 1
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{file.name}: {link}")
    assert not broken and checked > 500


@needs_sphinx
def test_no_page_loads_anything_from_the_network(pages: dict[Path, Page], site: Path) -> None:
    remote = [f"{file.name}: {url}" for file, page in pages.items() for url in page.loaded if urlsplit(url).netloc]
    assert not remote
    for style in site.rglob("*.css"):
        urls = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style.read_text(encoding="utf-8"))
        assert not [url for pair in urls for url in pair if url and urlsplit(url).scheme not in ("", "data")], style


@needs_sphinx
def test_every_image_has_alternative_text(pages: dict[Path, Page]) -> None:
    images = [(file.name, image) for file, page in pages.items() for image in page.images]
    without = [f"{name}: {image.get('src')}" for name, image in images if len((image.get("alt") or "").split()) < 2]
    assert images and not without


@needs_sphinx
def test_formulas_are_mathml(pages: dict[Path, Page], site: Path) -> None:
    assert pages[site / "index.html"].formulas >= 3
    for file in pages:
        text = file.read_text(encoding="utf-8")
        assert "<merror" not in text and not re.search(r"\\(mathrm|alpha|frac|sqrt)\b", text), file


LOOK = """<script>window.addEventListener("load", () => {
  document.documentElement.setAttribute("data-look", JSON.stringify({
    drawn: [...document.images].map(i => i.naturalWidth > 0),
    page: document.documentElement.scrollWidth, width: innerWidth,
    fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("file:")) }));
});</script></body>"""


@needs_sphinx
@browser.needed
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_a_browser_window(width: int, site: Path, pages: dict[Path, Page], tmp_path: Path) -> None:
    """No page is wider than the window, all images render, nothing is fetched, and the console shows no error."""
    copy = shutil.copytree(site, tmp_path / "site")
    for name in ("index", "structures", "install", "api/connections"):
        file = copy / f"{name}.html"
        file.write_text(file.read_text(encoding="utf-8").replace("</body>", LOOK), encoding="utf-8")
        dom, log = browser.browse(file.as_uri(), width, tmp_path)
        found = re.search(r'data-look="([^"]*)"', dom)
        assert found is not None, log[-2000:]
        seen = json.loads(html.unescape(found[1]))
        # A window of headless Chromium is at least 500 pixels wide, so the page reports its actual width.
        assert seen["page"] <= seen["width"] and all(seen["drawn"]) and not seen["fetched"], (name, seen)
        assert "CONSOLE" not in log, log[-2000:]


@needs_sphinx
@browser.needed
def test_search_works_from_the_file_system(site: Path, tmp_path: Path) -> None:
    dom, log = browser.browse(f"{(site / 'search.html').as_uri()}?q=rskip_ln", 1280, tmp_path)
    results = re.search(r'<ul[^>]*class="search".*?</ul>', dom, re.DOTALL)
    assert results is not None and "structures.html" in results[0]
    assert "CONSOLE" not in log, log[-2000:]


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


@each
@needs_sphinx
def test_every_formula_becomes_mathml(name: str) -> None:
    converter = importlib.import_module("latex2mathml.converter")
    for latex in re.findall(r"\$([^$]+)\$", formulas.markdown(connections.structure(name).formula)):
        tree = ElementTree.fromstring(converter.convert(latex))
        assert "".join(tree.itertext()).strip() and "\\" not in "".join(tree.itertext())


@pytest.mark.parametrize(
    ("formula", "markdown"),
    [
        (
            "LN(αx + F), α and initialisation by depth",
            r"$\mathrm{LN}(\alpha x + F)$, $\alpha$ and initialisation by depth",
        ),
        ("x + aF, a learned, initially 0, one per layer", "$x + aF$, $a$ learned, initially $0$, one per layer"),
        ("dropout(x, 0.5) + F", r"$\mathrm{dropout}(x, 0.5) + F$"),
        ("y_k = LN_k(x + y_{k−1}), k = 2..λ", r"$y_{k} = \mathrm{LN}_{k}(x + y_{k-1})$, $k = 2\dots \lambda$"),
        ("`post_ln`; a layer's last norm", "`post_ln`; a layer's last norm"),
        ("(1−t)x + tF, or a gate of x and F", "$(1-t)x + tF$, or a gate of $x$ and $F$"),
        ("the branch sees LN of a mean", "the branch sees LN of a mean"),
        ("x + f(LN(x)/√l), l the layer", r"$x + f(\mathrm{LN}(x)/\sqrt l)$, $l$ the layer"),
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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("post_ln", {"after": "LN"}),
        ("keel", {"shortcut": "α", "before": "LN", "after": "LN"}),
        ("sas", {"shortcut": "α", "branch": "β", "sums": ("(1−α)(1−β)·LN(x + F)",)}),
        ("sandwich_ln", {"before": "LN", "branch": "LN"}),
        ("linear_shortcut", {"shortcut": "W+b"}),
        ("hyper", {"is_wide": True, "is_mixed": True}),
    ],
)
def test_drawing_shows_norms_and_streams_of_the_site(name: str, expected: dict[str, object]) -> None:
    assert drawings.site(name) == drawings.Site(**expected)


@pytest.mark.structures
def test_gallery_is_up_to_date() -> None:
    if any(not structures.has_file(name) for name in structures.registered()):
        pytest.skip("a structure has no test file yet")  # a different test then fails
    made = gallery.files(structures.ALL)
    stale = [file for file, text in made.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    stale += [file for file in gallery.DRAWINGS.glob("*") if file not in made]
    assert not stale, "the gallery is out of date: run python docs/tools/gallery.py"


def test_page_without_its_markers_is_refused() -> None:
    page = "<!-- engines: made by python docs/tools/gallery.py -->\n\nold\n\n<!-- end of engines -->\nafter\n"
    assert gallery.split("before\n" + page, "engines")[1] == "old\n"
    for bad in ("no markers\n", page + page):
        with pytest.raises(ValueError, match="exactly one line <!-- engines: made by"):
            gallery.split(bad, "engines")


def test_gallery_shows_every_option_and_measurement() -> None:
    section = gallery.section("rskip_ln")
    assert "| `--skip-lambda` | 2 | an integer >= 1 and <= 100 | " in section
    rows = json.loads((gallery.RESULTS / "cpu-family" / "training-small.json").read_text())["structures"]
    assert f"| 60C | {rows['rskip_ln']['to_stock']['median']:.2f} | " in section
    assert gallery.starts_deep("rezero") == "yes" and gallery.starts_deep("post_ln") == "no"
    assert gallery.starts_deep("rskip_ln") == "at 0.002 only"


def test_every_path_on_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w-]+/)+(?:\w+\.py)?|\w+\.py)`", page)
    roots = (ROOT, ROOT / "fairseq_resid")
    assert len(named) > 30 and not [path for path in named if not any((root / path).exists() for root in roots)]


@needs_sphinx
def test_links_of_a_code_host_become_links_of_the_site() -> None:
    converted = importlib.import_module("links").converted
    docs = ROOT / "docs"
    assert (
        converted("[a](../CHANGELOG.md#x) `[b](../CHANGELOG.md)`", docs) == "[a](changelog.md#x) `[b](../CHANGELOG.md)`"
    )
    code, note = "```text\n[a](../CHANGELOG.md)\n```", "```{note}\n[a](../CHANGELOG.md)\n```\n[a](../CHANGELOG.md)"
    assert converted(code, docs) == code
    assert converted("[a\nb](../CHANGELOG.md)", docs) == "[a\nb](changelog.md)"
    assert converted(note, docs) == note.replace("../CHANGELOG.md", "changelog.md")
    assert converted("[the plan](../scripts/setup.sh)", docs) == "the plan (`scripts/setup.sh`)"
    assert converted("[up](docs/upgrading.md) [web](https://a.org)", ROOT) == "[up](upgrading.md) [web](https://a.org)"
    assert (
        converted("![a plot](results/cpu/training-small.png)", ROOT / "benchmarks")
        == "![a plot](../benchmarks/results/cpu/training-small.png)"
    )
    assert converted("[gone](nowhere.md)", docs) == "[gone](nowhere.md)"  # Sphinx reports this link


def test_learned_rskip_ratio_is_cited_with_its_section() -> None:
    """The paper gives the ratio 2.64 in section 4.3, for images."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "fairseq_resid").rglob("*.py"), ROOT / "README.md"]
    named = [
        (page, match) for page in pages for match in re.finditer(r"[^\n]*(?<![−+-])\b2\.64\b.*\n.*", page.read_text())
    ]
    assert len(named) >= 3 and all("rSkip paper, section 4.3" in match[0] for _, match in named), named
