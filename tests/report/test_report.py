"""The report is a page that opens from disk, lists missing parts, and is accessible."""

from __future__ import annotations

import base64
import html
import html.parser
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fairseq_resid import records
from fairseq_resid.analysis import analyze
from fairseq_resid.analysis.results import BINS, Analysis, Coefficient, Site
from fairseq_resid.evaluation import compare
from fairseq_resid.report import differences, findings, glossary, report
from fairseq_resid.runs.made_from import FileState
from fairseq_resid.runs.run import Run
from fairseq_resid.scoring.task import Texts
from fairseq_resid.study import plan
from fairseq_resid.study import plots as study_plots
from support import browser, structures, studies
from support.scored_runs import data_folder, evaluated

pytestmark = pytest.mark.once


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
        FileState("averaged.pt", 1, 1),
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
    records.write(analyze.analysis_file(Run(run)), found)


class Page(html.parser.HTMLParser):
    """The content of a page: ids, links, images, headings and text."""

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

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return data_folder(tmp_path / "data")


def make_runs(folder: Path) -> list[Path]:
    """Make two runs and their data, FOLDER/data."""
    data, wanted = data_folder(folder / "data"), {"base": 0.6, "sas": 0.8}
    made = [evaluated(data, name, quality, flags=f"--arch {name} --lr 1") for name, quality in wanted.items()]
    (data / "ref" / "test.en").write_text("".join(f"source {number}\n" for number in range(120)))
    lines = [json.dumps({"epoch": 1, "num_updates": at, "loss": 9 - at, "wall": at}) for at in (1, 2, 3)]
    for run in made:
        (run / "train.log").write_text("\n".join(lines))
    analysed(made[1], sas())
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two runs. Tests must not write to them."""
    return make_runs(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> Path:
    out = runs[0].with_name("report.html")
    assert report.main([*map(str, runs), "--out", str(out)]) == 0
    return out


def test_page_is_complete_and_needs_no_network(page: Path) -> None:
    text = page.read_text()
    found = Page(text)
    assert len(found.ids) == len(set(found.ids)) and {link[1:] for link in found.links} == set(found.ids)
    assert all(link.startswith("#") for link in found.links)
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", text) and "script" not in found.tags
    assert len(found.images) == 7  # the curves and six plots of the analysis
    for image in found.images:
        assert str(image["src"]).startswith("data:image/svg+xml;base64,") and len(str(image["alt"])) > 20
    assert '<html lang="en">' in text and 'name="viewport"' in text and "prefers-color-scheme: dark" in text
    assert len(text.encode()) < 1_000_000
    said = " ".join(found.text)
    assert "base has no analysis" in said and "fairseq-resid analyze" in said
    assert "nrefs:1|bs:1000|seed:12345|case:mixed" in said and "p bootstrap" in said


def test_page_opens_with_scores_and_folds_equal_settings(page: Path, runs: list[Path]) -> None:
    rows = report.settings([Run(run) for run in runs], [])
    assert [row[0] for row in rows if row[2]] == ["--arch", "--save-dir"]
    assert rows[0] == ("--arch", ["base", "sas"], True) and ("--lr", ["1", "1"], False) in rows
    text = page.read_text()
    assert re.findall(r'<section id="([\w-]+)"', text) == [
        "scores", "curves", "samples", "settings", "findings", "run-sas", "glossary",
    ]  # fmt: skip
    shown, folded = text[text.index('id="settings"') :].split("<details>")
    assert "<code>--arch</code>" in shown and "<code>--lr</code>" not in shown
    assert "<code>--lr</code>" in folded.split("</details>")[0]


def test_both_scores_are_shown_and_a_reason_replaces_the_p_value(runs: list[Path], page: Path, tmp_path: Path) -> None:
    out, reason = tmp_path / "report.html", "One seed: differences mean nothing."
    assert report.main([*map(str, runs), "--untested", reason, "--out", str(out)]) == 0
    for file in (page, out):
        text = " ".join(" ".join(Page(file.read_text()).text).split())
        assert (reason in text) == (file == out) and ("p bootstrap" in text) == (file == page)
        assert "BLEU avg BLEU last" in text
        for run in runs:
            bleu = Run(run).read_results().bleu
            assert bleu and f"arch_{run.name} {bleu['averaged']:.2f} {bleu['last']:.2f}" in text


def test_runs_with_the_same_folder_name_keep_their_own_outputs(data: Path, tmp_path: Path) -> None:
    runs = [evaluated(data, "one/baseline", 0.9), evaluated(data, "two/baseline", 0.5)]
    assert report.main([*map(str, runs), "--out", str(tmp_path / "same.html")]) == 0
    text = (tmp_path / "same.html").read_text()
    assert all(f"{run}" in text for run in runs) and "differ most" in text
    found = compare.with_distinct_names([compare.read_candidate(run, "averaged", "test") for run in runs])
    assert found[0].task.texts(found).outputs == {str(each.path): each.outputs.hypotheses for each in found}


def test_names_given_by_users_are_escaped(data: Path, tmp_path: Path) -> None:
    run = evaluated(data, "a <b> & 'c'", 0.5, flags="--arch <script>")
    analysed(run, sas())
    assert report.main([str(run), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "a &lt;b&gt; &amp;" in text
    assert {link[1:] for link in Page(text).links} == set(Page(text).ids)


def test_scores_are_shown_without_the_data(tmp_path: Path) -> None:
    runs, data, elsewhere = make_runs(tmp_path), tmp_path / "data", tmp_path / "elsewhere"
    out = tmp_path / "report.html"
    data.rename(elsewhere)
    assert report.main([*map(str, runs), "--out", str(out)]) == 0
    said = " ".join(Page(out.read_text()).text)
    named = ", ".join(run.name for run in runs)
    assert f"{named}: not tested, and shown without outputs: {data}: no such data folder; pass it with --data" in said
    assert "parameters" in said and "tokens/s" in said and "Tested against" not in said
    for run in runs:
        bleu = Run(run).read_results().bleu
        assert bleu and f" {bleu['averaged']:.2f} " in said
    assert report.main([*map(str, runs), "--data", str(elsewhere), "--out", str(out)]) == 0
    text = out.read_text()
    assert "no such data folder" not in text and "Tested against" in text and 'id="samples"' in text


def test_run_on_missing_data_is_left_out_of_the_scores(tmp_path: Path) -> None:
    runs = make_runs(tmp_path)
    results = json.loads((runs[1] / "results.json").read_text())
    (runs[1] / "results.json").write_text(json.dumps({**results, "data": "data-bin/gone"}))
    assert report.main([*map(str, runs), "--out", str(tmp_path / "report.html")]) == 0
    said = " ".join(Page((tmp_path / "report.html").read_text()).text)
    assert f"{runs[1].name}: left out of the scores: " in said and "gone: no such data folder" in said


def test_incomparable_runs_are_explained(data: Path, tmp_path: Path) -> None:
    first, other = evaluated(data, "one", 0.6), evaluated(data, "two", 0.7, corpus="another")
    assert report.main([str(first), str(other), "--out", str(tmp_path / "report.html")]) == 0
    said = " ".join(Page((tmp_path / "report.html").read_text()).text)
    assert "cannot be compared: corpus differs (tiny and another)" in said
    assert "arch_one" in said and "arch_two" in said and "p bootstrap" not in said


def test_page_shows_a_study(tmp_path: Path) -> None:
    file = studies.written(tmp_path)
    trial = plan.read_study(file)
    studies.all_kept(tmp_path / "trial", trial)
    out = tmp_path / "report.html"
    assert report.main(["--study", str(file), "--out", str(out)]) == 0
    found = Page(out.read_text())
    assert found.ids == ["study-trial"] and found.links == ["#study-trial"] and len(found.images) == 5
    said = " ".join(found.text)
    assert "NLL minus the baseline's" in said and "-0.2000" in said and "No runs are missing." in said
    parts = ["No runs are missing.", "NLL minus the baseline's", "Scores", "How to read this section", "Test sets:"]
    assert [said.index(part) for part in parts] == sorted(said.index(part) for part in parts)
    shown = [html.unescape(name) for name in re.findall(r'alt="([^"]*)"', out.read_text())]
    assert shown == [f"{study_plots.CAPTIONS[name]}." for name in ("effects", "settings", "gap", "curves", "tuning")]


def test_findings_include_single_layers_and_missing_coefficients() -> None:
    """Findings also cover a stack whose only layer is a middle one, and a site without coefficients."""
    lonely = analysis("l", "sas", [site("encoder", 9, "ffn", alpha=0.9), site("encoder", 9, "conv")])
    found = {each.claim: each.found for each in findings.findings(lonely)}
    assert found["α is above 0.9 nearly everywhere"].startswith("α > 0.9 at 0 of 1 sites")


def test_findings_report_gates_of_sas() -> None:
    found = {each.claim: each for each in findings.findings(sas())}
    assert "α > 0.9 at " in found["α is above 0.9 nearly everywhere"].found
    assert "encoder lower half 0.1, upper half 0.3" in found["β rises with depth"].found
    assert "lower half" in found["(1−α)(1−β) is larger in the lower layers"].found
    assert found["every branch is used"].found.startswith("not used: 0 of ")
    assert findings.findings(sas(0.4))[0].found.startswith("α > 0.9 at 0 of ")


def test_findings_report_ratio_and_unused_branches() -> None:
    sites = [site("encoder", 0, "ffn", ratio=2.7), site("decoder", 0, "ffn", without=3.001, ratio=2.3)]
    found = {each.claim: each for each in findings.findings(analysis("r", "rskip_ln", sites, skip_lambda=2))}
    ratio = next(each for claim, each in found.items() if "ratio" in claim)
    assert "mean 2.50, median 2.50 (at the start 0.50); by site 2.30 to 2.70" in ratio.found
    assert found["every branch is used"].found == "not used: 1 of 2: decoder.0.ffn"
    plain = findings.findings(analysis("p", "post_ln", [site("encoder", 0, "ffn")]))
    assert [each.claim for each in plain] == [
        "the gradient norm is flatter over depth than in the baseline",
        "every branch is used",
    ]


def test_findings_compare_gradients_with_the_baseline() -> None:
    def of(*norms: float) -> Analysis:
        sites = [replace(site("encoder", layer, "ffn"), gradient=norm) for layer, norm in enumerate(norms)]
        return analysis("r", "post_ln", sites)

    steep, flat = of(1.0, 8.0), of(1.0, 2.0)
    found = [
        next(each.found for each in findings.findings(mine, base) if "gradient" in each.claim)
        for mine, base in ((flat, steep), (flat, flat), (flat, None))
    ]
    alone = "encoder: largest / smallest 2.0"
    assert found == [f"{alone}, baseline 8.0", alone, alone]


def test_findings_compare_nll_with_the_baseline() -> None:
    base, better = sas(), replace(sas(), nll=2.5)
    (first,) = [each for each in findings.findings(better, base) if "predicts" in each.claim]
    assert first.found == "2.500 nats per token on 10 sentences of valid, baseline 3.000"
    for other in (None, base, replace(better, sentences=9), replace(better, data="elsewhere")):
        assert not any("predicts" in each.claim for each in findings.findings(base, other))


@pytest.mark.parametrize(
    ("formula", "html_text"),
    [
        ("y_k = LN_k(x + y_{k-1})", "y<sub>k</sub> = LN<sub>k</sub>(x + y<sub>k-1</sub>)"),
        ("W in R^{C×C}, a < b", "W in R<sup>C×C</sup>, a &lt; b"),
        ("(layers)^(-1/2)", "(layers)<sup>-1/2</sup>"),
        ("Σ_{j≤i} a_ij X_j'", "Σ<sub>j≤i</sub> a<sub>ij</sub> X<sub>j&#39;</sub>"),
        ("ω_1 = 1", "ω<sub>1</sub> = 1"),
        ("`post_ln`; x_l", "<code>post_ln</code>; x<sub>l</sub>"),
    ],
)
def test_formulas_are_typeset(formula: str, html_text: str) -> None:
    assert glossary.typeset(formula) == html_text


def test_differing_words_are_marked() -> None:
    words = differences.marked("the red dog sees a a cat", "the dog sees a cat .")
    assert [word for word, is_marked in words if is_marked] == ["red", "a"]
    texts = Texts(
        ["s1", "s2", "s3"], [["a b c d"], ["e f g h"], ["i j k l"]],
        {"x": ["a b c d", "e f g h", "i j k l"], "y": ["a b c d", "e f", "m n o p"]},
    )  # fmt: skip
    found = differences.samples(texts)
    assert [each["number"] for each in found] == [3, 2]  # both models translate sentence 1 in the same way
    assert found[0]["outputs"][1][0] == "y" and all(is_marked for _, is_marked in found[0]["outputs"][1][1])


def test_words_are_marked_by_the_most_similar_reference() -> None:
    pictures = np.zeros((1, 2, 3, 3), np.uint8)
    texts = Texts(["image 1"], [["two dogs", "a cat on grass"]], {"x": ["a cat on snow"]}, pictures)
    (sample,) = differences.samples(texts)
    ((_, words, _),) = sample["outputs"]
    assert [word for word, is_marked in words if is_marked] == ["snow"]
    shown = Image.open(io.BytesIO(base64.b64decode(sample["picture"])))
    assert shown.format == "PNG" and shown.size == (3, 2)


@structures.each
def test_glossary_has_every_structure(name: str) -> None:
    found = glossary.entry(name)
    assert found["about"].endswith(".") and found["formulas"] and "Source" in found["notes"]
    lines = [line for formula in found["formulas"] for line in formula]
    assert not any("Source:" in line for line in lines)
    assert not re.search(r"[_^{}]", re.sub("<code>.*?</code>", "", "".join(lines)))


@browser.needed
@pytest.mark.parametrize("width", [390, 1280])
def test_page_renders_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    """All figures render, only scrollable parts are wider than the window, and the console shows no error."""
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
    dom, log = browser.browse(copy.as_uri(), width, tmp_path)
    match = re.search(r'data-look="([^"]*)"', dom)
    assert match is not None, log[-2000:]
    seen = json.loads(html.unescape(match[1]))
    assert seen["drawn"] == [True] * 7 and not seen["over"], seen
    assert "CONSOLE" not in log
