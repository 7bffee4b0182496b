"""Convert formulas of the registry, which are plain text, to Markdown with LaTeX between dollar signs.

>>> markdown("LN(αx + F), α and initialisation by depth")
'$\\\\mathrm{LN}(\\\\alpha x + F)$, $\\\\alpha$ and initialisation by depth'

One-letter names and expressions built from them are math: sums, products, indices, LN(...), dropout(...), √, σ.
A word of two letters or more is prose, except products such as αx and aF.
"""

from __future__ import annotations

import re

COMMANDS = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "λ": r"\lambda", "μ": r"\mu", "σ": r"\sigma", "τ": r"\tau",
    "ω": r"\omega", "Σ": r"\sum", "Π": r"\prod", "√": r"\sqrt", "⊙": r"\odot", "·": r"\cdot", "×": r"\times", "−": "-",
    "..": r"\dots", "≤": r"\le", "≥": r"\ge", "∈": r"\in", "LN": r"\mathrm{LN}", "dropout": r"\mathrm{dropout}",
    "softmax": r"\mathrm{softmax}", "tanh": r"\tanh", "exp": r"\exp", "SiLU": r"\mathrm{SiLU}",
    "ReLU": r"\mathrm{ReLU}",
}  # fmt: skip
FUNCTIONS = {name for name in COMMANDS if name.isascii() and name.isalpha()}
DIGITS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
TOKEN = re.compile(r"`[^`]*`|[^\W\d_₀-₉]+(?:'[a-z]+|'+)?|\d+(?:\.\d+)?|[₀-₉]+|\.\.|[_^]\{[^}]*\}|[_^]\w|\s+|.")
OPERATORS = set("+−=/·⊙×√()^_≤≥∈")
# Words of two letters that look like a product.
PROSE = {"of", "at", "or", "in", "as", "is", "by", "to", "an", "if", "on", "no", "it", "be", "us", "we"}


def is_product(word: str) -> bool:
    """Return whether a word is a product of names such as αx, aF or Wx, or one of the functions."""
    letters = word.rstrip("'")
    if letters in FUNCTIONS or len(letters) == 1:
        return True
    return len(letters) <= 3 and letters.lower() not in PROSE and not (letters.islower() and letters.isascii())


def latex(formula: str) -> str:
    """Return math in plain text, such as (1−α)x + √F, as LaTeX."""
    made = ""
    for token in TOKEN.findall(formula):
        if token[0] in "_^" and len(token) > 1:
            made += f"{token[0]}{{{latex(token[1:].strip('{}'))}}}"
        elif token[0] in "₀₁₂₃₄₅₆₇₈₉":
            made += f"_{{{token.translate(DIGITS)}}}"
        elif token == "√":
            made += r"\sqrt "
        elif token in COMMANDS:
            made += COMMANDS[token] + (" " if COMMANDS[token][-1].isalpha() else "")
        elif token[0].isalpha():
            made += "".join(COMMANDS.get(letter, letter) + (" " if letter in COMMANDS else "") for letter in token)
        else:
            made += token
    made = re.sub(r"\\sqrt (\([^()]*\))", r"\\sqrt{\1}", made)
    return re.sub(r"\s+", " ", re.sub(r"\s+(?=[),;^_}])", "", made)).strip()


def markdown(formula: str) -> str:
    """Return a formula of the registry as Markdown, with its math between dollar signs."""
    tokens = TOKEN.findall(formula)
    variables = {
        letter for token in tokens if is_product(token) for letter in token if len(token) == 2 and token[0].isalpha()
    }
    kinds = []  # kind of each token: math, prose, or either, depending on its neighbours
    depth = 0  # depth of parentheses
    for index, token in enumerate(tokens):
        following = next((each for each in tokens[index + 1 :] if not each.isspace()), "")
        before = next((each for each in tokens[index - 1 :: -1] if not each.isspace()), "") if index else ""
        depth += (token == "(") - (token == ")")
        if token.isspace() or token == ".." or (token in ",;:" and depth):
            kinds.append("either")
        elif token in ",;:" or token[0] == "`":
            kinds.append("prose")
        elif (token == "a" and "a" not in variables) or token == "A":
            kinds.append("math" if following[:1] in OPERATORS or before[-1:] in OPERATORS else "prose")
        elif token == "a":
            kinds.append("prose" if before.isalpha() and not is_product(before) else "math")
        elif token[0].isalpha():
            is_call = token not in FUNCTIONS or following in ("(", "_") or following[:1] in "₀₁₂₃₄₅₆₇₈₉_"
            kinds.append("math" if is_product(token) and is_call else "prose")
        else:
            kinds.append(
                "math" if token[0] in OPERATORS or token[0].isdigit() or token[0] in "₀₁₂₃₄₅₆₇₈₉_^" else "prose"
            )
    return _joined(tokens, kinds)


def _joined(tokens: list[str], kinds: list[str]) -> str:
    """Return tokens with dollar signs around each run of math; spaces between math tokens belong to the run."""
    made, index = "", 0
    while index < len(tokens):
        if kinds[index] != "math":
            made += tokens[index]
            index += 1
            continue
        end = index
        for later in range(index, len(tokens)):
            if kinds[later] == "prose":
                break
            if kinds[later] == "math":
                end = later
        made += f"${latex(''.join(tokens[index : end + 1]))}$"
        index = end + 1
    return made
