"""The documentation site: it builds without a warning, needs no network, and no link in it is broken."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
HAS_SPHINX = all(importlib.util.find_spec(name) for name in ("sphinx", "furo", "myst_parser", "latex2mathml"))
needs_sphinx = pytest.mark.skipif(not HAS_SPHINX, reason="no Sphinx: it is installed on Python 3.11 and later")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


class Page(HTMLParser):
    """Links, anchors, images and loaded files of a page."""

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
    """The site, built from the pages of this tree."""
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


def browse(url: str, width: int, profile: Path, wait: int = 6000) -> tuple[str, str]:
    """The page after its scripts, and what the browser logged. No name is resolved."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={profile}", f"--virtual-time-budget={wait}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", url], capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr


LOOK = """<script>window.addEventListener("load", () => {
  document.documentElement.setAttribute("data-look", JSON.stringify({
    drawn: [...document.images].map(i => i.naturalWidth > 0),
    page: document.documentElement.scrollWidth, width: innerWidth,
    fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("file:")) }));
});</script></body>"""


@needs_sphinx
@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_a_browser_window(width: int, site: Path, pages: dict[Path, Page], tmp_path: Path) -> None:
    """No page is wider than the window, every image is drawn, nothing is fetched, the console has no error."""
    copy = shutil.copytree(site, tmp_path / "site")
    for name in ("index", "structures", "install", "api/connections"):
        file = copy / f"{name}.html"
        file.write_text(file.read_text(encoding="utf-8").replace("</body>", LOOK), encoding="utf-8")
        dom, log = browse(file.as_uri(), width, tmp_path / "profile")
        found = re.search(r'data-look="([^"]*)"', dom)
        assert found is not None, log[-2000:]
        seen = json.loads(html.unescape(found[1]))
        # Headless Chromium has no window narrower than 500 pixels.
        assert seen["page"] <= seen["width"] and all(seen["drawn"]) and not seen["fetched"], (name, seen)
        assert "CONSOLE" not in log, log[-2000:]


@needs_sphinx
@needs_browser
def test_search_works_from_the_file_system(site: Path, tmp_path: Path) -> None:
    dom, log = browse(f"{(site / 'search.html').as_uri()}?q=rskip_ln", 1280, tmp_path)
    results = re.search(r'<ul[^>]*class="search".*?</ul>', dom, re.DOTALL)
    assert results is not None and "connections.html" in results[0]
    assert "CONSOLE" not in log, log[-2000:]
