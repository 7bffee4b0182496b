"""Draw a structure's site, based on its formula in the registry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.sax.saxutils import escape

from fairseq_resid import connections

WIDTH, HEIGHT = 420, 136
SUM_HEIGHT = 34  # height of a part of the sum that reads both paths
# Colours in light and dark mode. The drawing has its own background, because the page may not follow the system's mode.
COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "line": ("#59636e", "#9198a1"),
    "box": ("#f6f8fa", "#151b23"),
    "norm": ("#ddf4ff", "#12345a"),
}


@dataclass(frozen=True)
class Site:
    """The parts of a structure that its drawing shows.

    shortcut, branch: the factor or function on each path; before: the function on the input of the branch
    sums: parts of the sum that read both paths; after: the norm of the sum; repeats: label of a repeated sum and norm
    is_wide: the state has more than C channels; is_mixed: the branch is read off the state and written back to it
    """

    shortcut: str = ""
    branch: str = ""
    before: str = ""
    sums: tuple[str, ...] = ()
    after: str = ""
    repeats: str = ""
    is_wide: bool = False
    is_mixed: bool = False


def split(text: str, separators: str) -> list[str]:
    """Return the parts of a formula between separators outside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter in separators and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def inside(text: str, function: str) -> str | None:
    """Return the argument if a formula is a single call of this function, such as the x of LN(x)."""
    found = re.fullmatch(rf"{function}\((.*)\)", text)
    return (
        found[1]
        if found and all(found[1][:end].count("(") >= found[1][:end].count(")") for end in range(len(found[1])))
        else None
    )


def factor(term: str, name: str) -> str:
    """Return the factor or function of a path in a term: α of αx, LN of LN(F)."""
    if found := re.match(rf"(\w{{2,}})\({name}\b", term):
        return found[1]
    rest = term.replace(name, "", 1).strip(" ·⊙")
    return inside(rest, "") or rest


def site(name: str) -> Site:
    """Return the parts that the drawing of a structure shows."""
    formula = connections.structure(name).formula
    is_wide = connections.has_wide_state(name)
    if named := re.match(r"`(\w+)`", formula):
        base = site(named[1])
        return Site(**{**vars(base), "is_wide": is_wide})
    first = split(formula, ",;")[0].split("=")[-1].strip()
    if (
        not re.search(r"\bx\b|x\)|[^\W\d_]x", first)
        or ("F" not in first and "f(" not in first)
        or re.search(r"\w{8,} \w", first)
    ):
        return Site(is_wide=is_wide, is_mixed=True)
    if is_wide:
        return Site(is_wide=True, is_mixed=True)
    total = inside(first, r"LN₁?")
    shortcut: list[str] = []
    branch, before, sums = "", "", []
    for term in split(total if total is not None else first, "+"):
        if call := re.search(r"f\((.*)\)", term):
            branch, before = factor(term.replace(call[0], "F"), "F"), call[1].replace("(x)", "")
        elif "F" in term and "x" in term:
            sums.append(term)
        elif "F" in term:
            branch = factor(term, "F")
        else:
            shortcut.append(factor(term, "x") if "x" in term else f"+{term}")
    if not before and (call := re.search(r"F from f\((.*)\)", formula)):
        before = call[1].replace("(x)", "")
    after = "LN" if total is not None else ""
    repeats = "x again, λ − 1 times" if "y_{k−1}" in formula else ""
    return Site("".join(shortcut), branch, before, tuple(sums), after, repeats)


def svg(name: str) -> str:
    """Return the drawing of a structure as SVG."""
    shown = site(name)
    top, bottom, join = 42, 104, 268
    height = HEIGHT + SUM_HEIGHT * len(shown.sums)
    lanes = (-5, 0, 5) if shown.is_wide else (0,)
    parts = [f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>', text(22, 78, "x", "math")]
    parts += [line(34, 73, 46, 73), line(46, top, 46, bottom), line(46, bottom, join, bottom)]
    parts += [line(46, top + lane, join, top + lane) for lane in lanes]
    parts += [text(148, top - 20, "state" if shown.is_wide else "shortcut"), line(join, bottom, join, top)]
    if shown.shortcut:
        parts += box(148, top, shown.shortcut)
    if shown.before or shown.is_mixed:
        parts += box(86, bottom, "read" if shown.is_mixed else shown.before)
    parts += [*box(148, bottom, "f", "math"), text(180, bottom - 8, "F", "math")]
    if shown.branch:
        parts += box(218, bottom, shown.branch)
    for number, term in enumerate(shown.sums):
        y = bottom + 42 + SUM_HEIGHT * number
        parts += [line(46, bottom, 46, y), line(180, bottom, 180, y), line(46, y, 300, y)]
        parts += [f'<path d="M300 {y} V62 L{join} {top}"/>', *box(168, y, term)]
    if shown.repeats:
        parts += [f'<path d="M336 {top} V{top + 38} H306 L{join} {top}"/>', text(348, top + 56, shown.repeats)]
    parts += [line(join, top + lane, 390, top + lane) for lane in lanes]
    parts += box(join, top, "write") if shown.is_mixed else [circle(join, top), text(join, top + 5, "+")]
    if shown.after:
        parts += box(336, top, shown.after)
    parts += [f'<path class="head" d="M388 {top - 6} L398 {top} L388 {top + 6} Z"/>', text(408, top + 5, "y", "math")]
    title = f"{name}: {connections.structure(name).formula}".replace("`", "")
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{style()}</style>", *parts, "</svg>"]) + "\n"


def style() -> str:
    """Return the style sheet, with the dark colours in a media query."""
    rules = "rect.page{{fill:{page}}} text{{fill:{text}}} path,rect,circle{{stroke:{line}}} rect.page{{stroke:none}}"
    rules += " path.head{{fill:{line};stroke:none}} rect.box,circle{{fill:{box}}} rect.norm{{fill:{norm}}}"
    light, dark = (rules.format(**{name: pair[mode] for name, pair in COLOURS.items()}) for mode in (0, 1))
    fixed = "text{font:14px sans-serif;text-anchor:middle} text.math{font:italic 16px serif} path{fill:none}"
    return f"{fixed} path,rect,circle{{stroke-width:1.5}} {light} @media (prefers-color-scheme: dark){{{dark}}}"


def line(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return a line."""
    return f'<path d="M{x} {y} L{to_x} {to_y}"/>'


def text(x: int, y: int, said: str, kind: str = "") -> str:
    """Return centred text."""
    return f'<text{f" class={chr(34)}{kind}{chr(34)}" if kind else ""} x="{x}" y="{y}">{escape(said)}</text>'


def circle(x: int, y: int) -> str:
    """Return the circle of a sum."""
    return f'<circle cx="{x}" cy="{y}" r="14"/>'


def box(x: int, y: int, said: str, kind: str = "") -> list[str]:
    """Return a box around a label, centred."""
    width = max(30, 10 + 8 * len(said))
    look = "norm" if "LN" in said else "box"
    return [
        f'<rect class="{look}" x="{x - width // 2}" y="{y - 14}" width="{width}" height="28" rx="5"/>',
        text(x, y + 5, said, kind),
    ]
