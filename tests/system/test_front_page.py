"""The README and related pages: length, drawing, links, a structure in twelve lines, the quickstart's caveat."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import gallery
import residual_join
from fairseq_resid import connections

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def test_readme_is_short() -> None:
    before, _, after = gallery.split(README, "structures")
    assert len((before + after).split()) < 950, "options, caveats and numbers belong in docs/"


def test_lines_outside_tables_have_at_most_100_columns() -> None:
    prose = re.sub(r"^```text\n.*?^```$", "", README, flags=re.DOTALL | re.MULTILINE)  # the quickstart's table
    assert [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_first_command_is_on_the_first_screen() -> None:
    assert README[: README.index("```bash")].count("\n") < 20


def test_readme_counts_the_structures() -> None:
    command = "python docs/tools/gallery.py"
    assert f"{len(connections.own_names())} residual structures" in README, f"the number is out of date: run {command}"


def test_drawing_has_both_formulas_and_colours_for_dark_mode() -> None:
    picture = ElementTree.fromstring(residual_join.svg())
    texts = ["".join(node.itertext()) for node in picture.iter(f"{SVG}text")]
    assert set(residual_join.FORMULAS) < set(texts) and set(residual_join.FORMULAS.values()) < set(texts)
    assert residual_join.FORMULAS["transformer_sas"].removeprefix("y = ") in connections.structure("sas").formula
    style = picture.findtext(f"{SVG}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for first, second in residual_join.COLOURS.values():
        assert first in light and second in dark


def test_drawing_is_legible_at_400_pixels() -> None:
    sizes = [int(size) for size in re.findall(r"font:[a-z ]*(\d+)px", residual_join.style())]
    assert sizes and min(sizes) * 400 / residual_join.WIDTH >= 10


def test_links_of_project_files_lead_to_files() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
        assert targets, page
        pages = [target for target in targets if re.fullmatch(r"docs/[\w-]+\.md", target)]  # checked in the site
        assert [target for target in targets if target not in pages and not (ROOT / target).exists()] == [], page


def test_structure_in_the_readme_works_unchanged() -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "register(" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    code += (
        "from fairseq_resid import connections\n"
        'site = connections.build("scaled", 8)\n'
        "x, f = torch.randn(2, 3, 8), torch.randn(2, 3, 8)\n"
        "torch.testing.assert_close(site.eval()(x, f), torch.nn.functional.layer_norm(x + f, (8,)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_quickstart_says_that_differences_mean_nothing() -> None:
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    script = (ROOT / "scripts" / "quickstart.sh").read_text(encoding="utf-8")
    caveat = shown.splitlines()[-1]
    assert "differences in this table mean nothing" in caveat and f"untested='{caveat}'" in script
    after_table = script[script.index("fairseq-resid table ") :].splitlines()
    assert '"$untested"' in after_table[2], "directly below the table"
    assert '--untested "$untested"' in script, "in the report too"
