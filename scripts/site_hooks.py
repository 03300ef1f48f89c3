"""Hooks of `mkdocs build`: files of the repository that the pages link to go into the site, so that no link is dead."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)\)")
"""A link from a page out of `docs/`: it works as it stands where the repository is browsed."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = [file.content_string for file in files.documentation_pages()]
    for linked in sorted({path for page in pages for path in OUTSIDE.findall(page)}):
        if linked.endswith(".md"):
            raise ValueError(f"{linked} is linked to, but is no page of the site; link to a page in docs/ instead.")
        files.append(File.generated(config, linked, abs_src_path=str(ROOT / linked)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return OUTSIDE.sub(r"](\1)", markdown)
