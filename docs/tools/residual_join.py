"""Draw the residual join for the README."""

from __future__ import annotations

import drawings

WIDTH, HEIGHT = 640, 292
ALT = "The shortcut x and the branch F = dropout(f(x)) meet in the residual join, whose output is y"
# In the order of the README's introduction: the architecture and the formula of its join.
FORMULAS = {
    "transformer_sas": "y = αx + βF + (1−α)(1−β)·LN(x + F)",
    "transformer_rskip_ln": "y = LN(x + LN(x + F))",
}
COLOURS = {**drawings.COLOURS, "join": ("#0969da", "#1f6feb")}
del COLOURS["norm"]


def style() -> str:
    """Return the style sheet, with the dark colours in a media query."""
    rules = "rect.page{{fill:{page}}} text{{fill:{text}}} path{{stroke:{line}}} .head{{fill:{line}}}"
    rules += " rect.box{{fill:{box};stroke:{line}}} rect.join{{fill:{join}}} text.join{{fill:#ffffff}}"
    light, dark = (rules.format(**{name: pair[mode] for name, pair in COLOURS.items()}) for mode in (0, 1))
    fixed = "text{font:20px sans-serif} text.math{font:italic 22px serif} text.code{font:17px monospace}"
    fixed += " path{fill:none;stroke-width:2} rect{stroke-width:2}"
    return f"{fixed} {light} @media (prefers-color-scheme: dark){{{dark}}}"


def box(x: int, y: int, width: int, height: int, *lines: str, kind: str = "box") -> list[str]:
    """Return a rounded box with a centred label of one or more lines. The label of a join is bold."""
    weight = ' font-weight="bold"' if kind == "join" else ""
    middle = f'x="{x + width // 2}" text-anchor="middle"'
    first = y + height // 2 + 7 - 12 * (len(lines) - 1)
    return [
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>',
        *(f'<text class="{kind}"{weight} y="{first + 24 * n}" {middle}>{line}</text>' for n, line in enumerate(lines)),
    ]


def arrow(*points: tuple[int, int]) -> list[str]:
    """Return an arrow through these points. Its last segment must point to the right."""
    x, y = points[-1]
    path = "M" + " L".join(f"{a} {b}" for a, b in (*points[:-1], (x - 8, y)))
    head = f"M{x - 10} {y - 6} L{x} {y} L{x - 10} {y + 6} Z"
    return [f'<path d="{path}"/>', f'<path class="head" stroke="none" d="{head}"/>']


def math(x: int, y: int, text: str) -> str:
    """Return a symbol or formula."""
    return f'<text class="math" x="{x}" y="{y}">{text}</text>'


def svg() -> str:
    """Return the SVG."""
    top, bottom, fork, join = 50, 150, 66, 450
    parts = [f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>']
    parts += [math(22, 107, "x"), f'<path d="M40 100 H{fork}"/>']
    parts += arrow((fork, 100), (fork, top), (join, top))
    parts += arrow((fork, 100), (fork, bottom), (100, bottom))
    parts += ['<text x="252" y="40" text-anchor="middle">shortcut</text>', math(428, 40, "x")]
    parts += box(100, 122, 178, 56, "attention or", "feed-forward")
    parts += [*arrow((278, bottom), (304, bottom)), *box(304, 126, 92, 48, "dropout")]
    parts += [*arrow((396, bottom), (join, bottom)), math(412, 140, "F")]
    parts += box(join, 26, 108, 148, "residual", "join", kind="join")
    parts += [*arrow((join + 108, 100), (600, 100)), math(608, 107, "y")]
    for number, (name, formula) in enumerate(FORMULAS.items()):
        y = 222 + 46 * number
        parts += [f'<text class="code" x="22" y="{y}">{name}</text>', math(246, y, formula)]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<title>{ALT}</title>", f"<style>{style()}</style>", *parts, "</svg>"]) + "\n"
