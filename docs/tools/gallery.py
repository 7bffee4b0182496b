"""Write the gallery in docs/structures.md, all drawings, and the tables in README.md and docs/export.md.

    python docs/tools/gallery.py

They are generated from the registry, the docstrings of the classes, and benchmarks/results/. Text outside the markers
of a page is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import drawings  # noqa: E402
import formulas  # noqa: E402
import residual_join  # noqa: E402
import structure_table  # noqa: E402
from fairseq_resid import connections  # noqa: E402

PAGE = ROOT / "docs" / "structures.md"
JOIN = ROOT / "docs" / "drawings" / "residual_join.svg"
DRAWINGS = ROOT / "docs" / "drawings" / "structures"
RESULTS = ROOT / "benchmarks" / "results"

# Any site of a model with 6 + 6 layers: whether a structure folds does not depend on the site.
PLACE = connections.Place(8, "encoder", "self_attn", 0, False, 0, 12, {"encoder": 6, "decoder": 6})
README = ROOT / "README.md"
EXPORT_PAGE = ROOT / "docs" / "export.md"


def engines(name: str) -> tuple[str, str, str]:
    """Return whether CTranslate2, ONNX and Hugging Face transformers support a structure with default options."""
    folds = connections.structure(name).folds
    reason, graph = "", None
    if folds is not None:
        try:
            graph = folds(connections.build(name, PLACE)).graph
        except connections.CannotFold as error:
            reason = str(error)
    if graph is None:
        only = f"with {reason.rpartition('only ')[2].removesuffix(' folds')}" if "only " in reason else "no"
        return only, "yes", only
    stock_class = {"post_norm": "FSMT", "pre_norm": "M2M100"}.get(graph, "no")
    return "yes", "yes", stock_class


def engine_table(names: list[str]) -> str:
    """Return the table of structures and engines."""
    lines = ["| structure | CTranslate2 | ONNX | Hugging Face |", "|---|---|---|---|"]
    supported = {name: engines(name) for name in names}
    only_onnx = ("no", "yes", "no")
    lines += [f"| `{name}` | {' | '.join(found)} |" for name, found in supported.items() if found != only_onnx]
    lines += [f"| all others | {' | '.join(only_onnx)} |"]
    return "\n".join(lines) + "\n"


def split(page: str, topic: str) -> tuple[str, str, str]:
    """Return the text of a page before the table on a topic, the table, and the text after it.

    Raises: ValueError unless the page contains each marker of the table once.
    """
    begin, end = f"<!-- {topic}: made by python docs/tools/gallery.py -->\n\n", f"\n<!-- end of {topic} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must contain exactly one line {begin.strip()} and one line {end.strip()}")
    before, rest = page.split(begin)
    inside, after = rest.split(end)
    return before + begin, inside, end + after


def export_page(names: list[str]) -> str:
    """Return docs/export.md with an updated table of engines."""
    before, _, after = split(EXPORT_PAGE.read_text(encoding="utf-8"), "engines")
    return before + engine_table(names) + after


def readme(names: list[str]) -> str:
    """Return README.md with an updated table of structures and their updated number in the text above it."""
    before, _, after = split(README.read_text(encoding="utf-8"), "structures")
    return re.sub(r"\d+(?= residual structures)", str(len(names)), before) + structure_table.table(names) + after


def speed(benchmark: str, name: str) -> str:
    """Return the median speed of a structure relative to stock fairseq, in the latest benchmark of small models."""
    files = (RESULTS / "cpu-family").glob(f"{benchmark}-small*.json")
    results = sorted((json.loads(file.read_text(encoding="utf-8")) for file in files), key=lambda one: one["date"])
    found = [one["structures"][name]["to_stock"]["median"] for one in results if name in one["structures"]]
    return f"{found[-1]:.2f}" if found else "not measured"


def starts_deep(name: str) -> str:
    """Return the learning rates at which 18 + 18 layers of a structure start to train."""
    rows = json.loads((RESULTS / "depth" / "18-18.json").read_text(encoding="utf-8"))["rows"]
    mine = [row for row in rows if row["structure"] == name]
    if not mine:
        return "not measured"
    rates = [f"{row['lr']:g}" for row in mine if row["trains"]]
    return "yes" if len(rates) == len(mine) else f"at {rates[0]} only" if rates else "no"


def option(known: connections.Option) -> str:
    """Return an option as a row of a table."""
    default = known.default if isinstance(known.default, str) else f"{known.default:g}"
    allowed = known.allowed.removeprefix("must be ").removeprefix("choose ")
    return f"| `--{known.name.replace('_', '-')}` | {default} | {allowed} | {known.help} |"


def marked(text: str) -> str:
    """Return plain text with Markdown characters escaped, except in `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part[:1] == "`" else re.sub(r"([\\*_|<>\[\]$])", r"\\\1", part) for part in parts)


def section(name: str) -> str:
    """Return the section of a structure."""
    made = connections.structure(name)
    shown = {"Where": "Where", "Source": "Source", "Start": "Initial values", "State": "State"}
    fields = {"Source": made.source} | made.fields
    aliases = ", ".join(f"`{alias}`" for alias in connections.aliases(name))
    formula = re.sub(r"`(\w+)`", r"[`\1`](#\1)", formulas.markdown(made.formula))
    plain = made.formula.replace("`", "")
    lines = [f"### {name}", "", f"![Drawing of {name}: {plain}](drawings/structures/{name}.svg)", ""]
    if formula.startswith("$") and re.search("^[^=]*[xF][^=]*$", formula.split("$")[1]):
        formula = f"$y = {formula[1:]}"
    lines += [formula, "", marked(made.summary), ""]
    if made.use_when:
        lines += [f"**When to use it:** {made.use_when}", ""]
    rows = list(connections.options(name).values())
    if rows:
        lines += ["| Option | Default | Allowed | Meaning |", "|---|---|---|---|", *map(option, rows), ""]
    lines += ["| Parameters | Training speed | Decoding speed | Trains at 18 + 18 layers |", "|---|---|---|---|"]
    values = [structure_table.polynomial(name), speed("training", name), speed("decoding", name)]
    lines += [f"| {' | '.join([*values, starts_deep(name)])} |", ""]
    lines += [f"- {title}: {marked(fields[field])}" for field, title in shown.items() if field in fields]
    lines += ["- A norm ends the stack, unless `--final-norm none` is given."] if made.final_norm else []
    lines += [f"- Other names: {aliases}"] if aliases else []
    return "\n".join([*lines, ""])


def page(names: list[str]) -> str:
    """Return docs/structures.md with an updated gallery of these structures, by family."""
    before, _, after = split(PAGE.read_text(encoding="utf-8"), "gallery")
    families = dict.fromkeys(connections.structure(name).family for name in names)
    known = structure_table.FAMILIES
    parts = []
    for family in sorted(families, key=lambda each: known.index(each) if each in known else len(known)):
        parts.append(f"## {family}\n")
        parts += [section(name) for name in names if connections.structure(name).family == family]
    return before + "\n".join(parts) + after


def files(names: list[str]) -> dict[Path, str]:
    """Return the text of every generated file."""
    drawn = {DRAWINGS / f"{name}.svg": drawings.svg(name) for name in names}
    pages = {README: readme(names), PAGE: page(names), EXPORT_PAGE: export_page(names)}
    return {**pages, JOIN: residual_join.svg(), **drawn}


def main() -> None:
    """Write the generated files, and delete drawings of structures that no longer exist."""
    made = files(connections.own_names())
    DRAWINGS.mkdir(parents=True, exist_ok=True)
    for file in DRAWINGS.glob("*.svg"):
        if file not in made:
            file.unlink()
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
