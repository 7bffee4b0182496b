"""The report: one page that opens from disk, says what is missing, and can be read by everybody."""

from __future__ import annotations

import html
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_compare import data, evaluated  # noqa: F401  (a fixture)

from fairseq_resid import connections
from fairseq_resid.analysis import analyze
from fairseq_resid.analysis.results import BINS, Analysis, Coefficient, Site
from fairseq_resid.folders import records
from fairseq_resid.folders.run import Fingerprint, Run
from fairseq_resid.report import differences, findings, glossary, report

pytestmark = pytest.mark.once

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)


def coefficient(mean: float, start: float = 0.5) -> Coefficient:
    histogram = [0] * BINS
    histogram[min(BINS - 1, int(mean * BINS))] = 10
    return Coefficient(mean, 0.1, start, histogram, 0, 0, [mean, None], [mean])


def site(stack: str, layer: int, kind: str, without: float = 3.2, **means: float) -> Site:
    made = {name: coefficient(mean) for name, mean in means.items()}
    return Site(stack, layer, kind, 8.0, 4.0, 8.0 + layer, 0.3, without, 1.0 + layer, 2.0, made)


def analysis(name: str, structure: str, sites: list[Site], **options: Any) -> Analysis:
    named = {f"{each.stack}.{each.layer}.{each.kind}": each for each in sites}
    return Analysis(
        name, "averaged.pt", 100, structure, options, "data", "valid", 10, True, 99, 3.0, 8.0, named,
        Fingerprint("averaged.pt", 1, 1),
    )  # fmt: skip


def sas(alpha: float = 0.95) -> Analysis:
    sites = [
        site(stack, layer, kind, alpha=alpha, beta=0.1 + 0.2 * layer, gamma=0.4 - 0.1 * layer)
        for stack in ("encoder", "decoder")
        for layer in range(2)
        for kind in ("self_attn", "ffn")
    ]
    return analysis("sas", "sas", sites, sas_gamma="coupled")


def analysed(run: Path, found: Analysis) -> None:
    (run / "analysis").mkdir()
    records.write(analyze.file(Run(run)), found)


class Page(html.parser.HTMLParser):
    """What a page holds: ids, links, images, headings, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        if tag == "img":
            self.images.append(given)

    def handle_data(self, data: str) -> None:  # noqa: F811
        self.text.append(data)


@pytest.fixture
def runs(data: Path) -> list[Path]:  # noqa: F811
    wanted = {"base": 0.6, "sas": 0.8}
    made = [evaluated(data, name, quality, flags=f"--arch {name} --lr 1") for name, quality in wanted.items()]
    (data / "ref" / "test.en").write_text("".join(f"source {number}\n" for number in range(120)))
    lines = [json.dumps({"epoch": 1, "num_updates": at, "loss": 9 - at, "wall": at}) for at in (1, 2, 3)]
    for run in made:
        (run / "train.log").write_text("\n".join(lines))
    analysed(made[1], sas())
    return made


@pytest.fixture
def page(runs: list[Path], tmp_path: Path) -> Path:
    out = tmp_path / "report.html"
    assert report.main([*map(str, runs), "--out", str(out)]) == 0
    return out


def test_the_page_is_whole_and_needs_no_network(page: Path) -> None:
    text = page.read_text()
    found = Page(text)
    assert len(found.ids) == len(set(found.ids)) and {link[1:] for link in found.links} == set(found.ids)
    assert all(link.startswith("#") for link in found.links)
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", text) and "script" not in found.tags
    assert len(found.images) == 7  # curves, and six plots of the analysis
    for image in found.images:
        assert str(image["src"]).startswith("data:image/svg+xml;base64,") and len(str(image["alt"])) > 20
    assert '<html lang="en">' in text and 'name="viewport"' in text and "prefers-color-scheme: dark" in text
    assert len(text.encode()) < 1_000_000
    said = " ".join(found.text)
    assert "base has no analysis" in said and "fairseq-resid analyze" in said
    assert "nrefs:1|bs:1000|seed:12345|case:mixed" in said and "p bootstrap" in said


def test_settings_that_differ_come_first(page: Path, runs: list[Path]) -> None:
    rows = report.settings([Run(run) for run in runs])
    assert [row[0] for row in rows if row[2]] == ["--arch", "--save-dir"]
    assert rows[0] == ("--arch", ["base", "sas"], True) and ("--lr", ["1", "1"], False) in rows
    assert page.read_text().index("<code>--arch</code>") < page.read_text().index("<code>--lr</code>")


def test_what_a_user_calls_things_is_no_markup(data: Path, tmp_path: Path) -> None:  # noqa: F811
    run = evaluated(data, "a <b> & 'c'", 0.5, flags="--arch <script>")
    analysed(run, sas())
    assert report.main([str(run), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "a &lt;b&gt; &amp;" in text
    assert {link[1:] for link in Page(text).links} == set(Page(text).ids)


def test_runs_with_nothing_in_them(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty").mkdir()
    assert report.main([str(tmp_path / "empty"), "--out", str(tmp_path / "report.html")]) == 0
    said = " ".join(Page((tmp_path / "report.html").read_text()).text)
    for missing in ("has no scores here", "has no analysis", "no records of a training", "No run was evaluated"):
        assert missing in said
    assert report.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such run folder" in capsys.readouterr().err


def test_runs_that_cannot_be_compared(data: Path, tmp_path: Path) -> None:  # noqa: F811
    first, other = evaluated(data, "one", 0.6), evaluated(data, "two", 0.7, corpus="another")
    assert report.main([str(first), str(other), "--out", str(tmp_path / "report.html")]) == 0
    said = " ".join(Page((tmp_path / "report.html").read_text()).text)
    assert "cannot be compared: corpus is tiny in the one and another in the other" in said
    assert "arch_one" in said and "arch_two" in said and "p bootstrap" not in said


def test_findings_of_sas() -> None:
    found = {each.claim: each for each in findings.findings(sas())}
    assert found["α is above 0.9 nearly everywhere"].agrees is True
    assert found["β rises with depth"].agrees is True
    assert "encoder lower half 0.10, upper half 0.30" in found["β rises with depth"].found
    assert found["(1−α)(1−β) is larger low in the stack"].agrees is True
    assert found["every branch is used"].agrees is True
    assert findings.findings(sas(0.4))[0].agrees is False


def test_findings_of_other_structures() -> None:
    sites = [site("encoder", 0, "ffn", ratio=2.7), site("decoder", 0, "ffn", without=3.001, ratio=2.3)]
    found = {each.claim: each for each in findings.findings(analysis("r", "rskip_ln", sites, skip_lambda=2))}
    ratio = next(each for claim, each in found.items() if "ratio" in claim)
    assert ratio.agrees is True and "mean 2.50, 0.50 at the start; by site 2.30 to 2.70" in ratio.found
    assert found["every branch is used"].agrees is False
    assert found["every branch is used"].found == "1 of 2: decoder.0.ffn"
    plain = findings.findings(analysis("p", "post_ln", [site("encoder", 0, "ffn")]))
    assert [each.claim for each in plain] == ["the gradient norm is much the same over depth", "every branch is used"]


def test_words_that_differ() -> None:
    words = differences.marked("the red dog sees a a cat", "the dog sees a cat .")
    assert [word.text for word in words if word.is_marked] == ["red", "a"]
    found = differences.samples(
        ["s1", "s2", "s3"], ["a b c d", "e f g h", "i j k l"],
        {"x": ["a b c d", "e f g h", "i j k l"], "y": ["a b c d", "e f", "m n o p"]},
    )  # fmt: skip
    assert [each.number for each in found] == [3, 2]  # the same translation of 1
    assert found[0].translations[1][0] == "y" and all(word.is_marked for word in found[0].translations[1][1])


@pytest.mark.parametrize("name", list(dict.fromkeys(map(connections.canonical, connections.names()))))
def test_the_glossary_has_every_structure(name: str) -> None:
    found = glossary.entry(name)
    assert found.about.endswith(".") and "Formula" in found.fields and "Source" in found.fields
    assert "Source:" not in found.fields["Formula"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    """Every figure is drawn, nothing is wider than the window but what scrolls by itself, no error on the console."""
    look = """
      <script>window.addEventListener("load", () => {
        const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".wide, .formula"));
        document.documentElement.setAttribute("data-look", JSON.stringify({
          drawn: [...document.images].map(i => i.naturalWidth > 0 && i.getBoundingClientRect().width > 100),
          over: wide.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName),
          width: innerWidth }));
      });</script></body>"""
    copy = tmp_path / "looked.html"
    copy.write_text(page.read_text().replace("</body>", look))
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120)
    match = re.search(r'data-look="([^"]*)"', done.stdout)
    assert match is not None, done.stderr[-2000:]
    seen = json.loads(html.unescape(match[1]))
    assert seen["drawn"] == [True] * 7 and not seen["over"], seen
    assert "CONSOLE" not in done.stderr
