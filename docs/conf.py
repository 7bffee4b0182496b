"""Configuration of Sphinx for the documentation. scripts/docs.sh builds it."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "tools")]
os.environ.setdefault("MPLBACKEND", "agg")

from fairseq_resid.version import __version__  # noqa: E402

project = "fairseq_resid"
language = "en"
author = "fairseq_resid contributors"
release = version = __version__
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "docstrings", "links"]
exclude_patterns = ["_build", "tools"]
source_suffix = {".md": "markdown"}

smartquotes = False  # they would turn the -- of a flag into a dash

myst_enable_extensions = ["alert", "dollarmath"]
myst_heading_anchors = 4  # the anchors of a code host

html_theme = "furo"
html_title = f"fairseq_resid {release}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_domain_indices = False
html_show_search_summary = False  # it fetches pages, which a browser refuses to do from the file system
html_theme_options = {"top_of_page_buttons": []}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
