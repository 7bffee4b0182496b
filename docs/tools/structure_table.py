"""The table of structures in the README, and the parameters that each structure adds."""

from __future__ import annotations

from fractions import Fraction

from torch import nn

from fairseq_resid import connections

FAMILIES = ("Plain", "Scaling", "Gates", "Norms", "Several streams", "Depth")  # in this order; others follow
LAYERS = 6  # layers of each stack of the model whose parameters are counted
KINDS = {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}


def added_parameters(name: str, dim: int, layers: int = LAYERS) -> int:
    """Return the number of parameters that a structure with default options adds to fairseq's post-norm model."""
    depths = dict.fromkeys(KINDS, layers)
    parts = nn.ModuleList()
    count = 0
    for stack, kinds in KINDS.items():
        sites, end = connections.build_stack(name, dim, layers, kinds=kinds, stack=stack, depths=depths)
        parts += [site for layer in sites for site in layer] + [end]
        count -= 2 * dim * layers * len(kinds)
    return count + sum(parameter.numel() for parameter in parts.parameters())


def polynomial(name: str) -> str:
    """Return `added_parameters` as a polynomial in C, such as 120C² + 120C + 60.

    If the number is not a polynomial of degree 2 or less, return its value at C = 512.
    """
    low, middle, high = (Fraction(added_parameters(name, dim)) for dim in (2, 4, 8))
    square = ((high - low) / 6 - (middle - low) / 2) / 4
    linear = (middle - low) / 2 - 6 * square
    constant = low - 2 * linear - 4 * square
    if 256 * square + 16 * linear + constant != added_parameters(name, 16):
        return f"{added_parameters(name, 512):,} (C = 512)"
    terms = [
        f"{'−' if factor < 0 else '+'} {'' if abs(factor) == 1 and power else abs(factor)}{power}"
        for factor, power in ((square, "C²"), (linear, "C"), (constant, ""))
        if factor
    ]
    text = " ".join(terms) or "0"
    return "−" + text[2:] if text.startswith("−") else text.removeprefix("+ ")


def row(name: str) -> str:
    """Return a structure's row: its names, formula and paper."""
    made = connections.structure(name)
    names = ", ".join(f"`{each}`" for each in (name, *connections.aliases(name)))
    return f"| {names} | {made.formula} | {made.source} |"


def table(names: list[str]) -> str:
    """Return the table of these structures, grouped by family."""
    lines = ["| name | formula | paper |", "|---|---|---|"]
    families = dict.fromkeys(connections.structure(name).family for name in names)
    for family in sorted(families, key=lambda each: FAMILIES.index(each) if each in FAMILIES else len(FAMILIES)):
        lines.append(f"| **{family}** | | |")
        lines += [row(name) for name in names if connections.structure(name).family == family]
    return "\n".join(lines) + "\n"
