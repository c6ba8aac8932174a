"""The site of the documentation: `make docs`. Everything it shows lies in this folder or in the program."""

from __future__ import annotations

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

sys.path[:0] = [str(Path(__file__).parent / "_sphinx"), str(Path(__file__).parents[1])]

project = "ncclforensics"
copyright = "the authors of ncclforensics, Apache-2.0"  # noqa: A001  # the name that Sphinx reads
extensions = ["myst_parser", "sphinx.ext.autodoc", "reference_pages", "message_pages"]
exclude_patterns = ["_sphinx"]
html_theme = "furo"
html_title = "ncclforensics"
html_show_sourcelink = False
html_copy_source = False
html_extra_path = ["report.schema.json", "difference.schema.json", "history.schema.json", "simulated.schema.json"]
# Shown as text: Pygments does not know these languages, and a drawing would need a script from elsewhere.
lexers |= dict.fromkeys(("lark", "jsonc", "mermaid"), TextLexer())
highlight_language = "text"
default_role = "code"  # docstrings mark names with single backticks

myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
