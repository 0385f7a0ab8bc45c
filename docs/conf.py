"""The pages of this repository as a site: `make docs` writes it to site/, and checks every link.

Sphinx reads the whole repository, so that links between pages are those of a checkout.
"""

from __future__ import annotations

project = "minishark"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "data/README.md"]
# Sphinx looks through all other folders, which takes longer than the pages.
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "nightly",
    "site",
    "data/tpch",
    "tests",
    "**/__pycache__",
]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 5
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = "minishark"
html_copy_source = False
html_show_sphinx = False
highlight_language = "none"
