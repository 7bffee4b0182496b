"""Render formulas as MathML, which browsers display without a script or a web font."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml import converter
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def mathml(latex: str, display: str, node: nodes.Node | None = None) -> str:
    """Return a formula as MathML. A formula that cannot be converted gives a warning, which fails the build."""
    try:
        return converter.convert(latex, display=display)
    except Exception as error:
        LOG.warning("formula %r: %s: %s", latex, type(error).__name__, error, location=node)
        return ""


def visit_inline(self: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(mathml(node.astext(), "inline", node))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula on a separate line."""
    self.body.append(f'<div class="math">{mathml(node.astext(), "block", node)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
