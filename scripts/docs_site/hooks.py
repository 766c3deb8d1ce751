"""Events of mkdocs, which mkdocs.yml names: generated pages, navigation, search, figures, links, formulas."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "src")]

from docs_site.dark import in_both_themes, recoloured  # noqa: E402
from docs_site.mathml import with_mathml  # noqa: E402
from docs_site.navigation import navigation  # noqa: E402
from docs_site.reference import reference_pages  # noqa: E402

# Files of the repository that are pages of the site, too.
TAKEN_OVER = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "src/abbe/embedded/MODEL_CARD.md": "reference/embedded-model.md",
}
# A search shows pages that explain before results, and these before the reference, which names everything: a hit in a
# title counts a thousand times one in a text, so the reference's titles must count less than that.
BOOST = {
    "how-to": 10.0,
    "explanation": 8.0,
    "examples": 2.0,
    "results": 0.01,
    **dict.fromkeys(("gallery.md", "reference", "changelog.md", "contributing.md"), 0.002),
}
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_config(config: Any) -> Any:
    config.nav = navigation(Path(config.docs_dir), reference_pages())
    return config


def on_files(files: Files, config: Any) -> Files:
    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    for source, path in TAKEN_OVER.items():
        text = _relinked((ROOT / source).read_text(encoding="utf-8"), source, path)
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "other-tools.md", content=_other_tools()))
    for figure in sorted((ROOT / "docs" / "figures").glob("*.svg")):
        dark = recoloured(figure.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"figures/{figure.stem}-dark.svg", content=dark))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    boost = BOOST.get(page.file.src_uri.partition("/")[0])
    if boost is not None:
        page.meta.setdefault("search", {"boost": boost})
    return in_both_themes(_relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri))


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    return with_mathml(html)


def _other_tools() -> str:
    """A section of the README."""
    title, section = "Beside other tools", (ROOT / "README.md").read_text(encoding="utf-8")
    section = section.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return _relinked(f"# {title}\n{section}", "README.md", "other-tools.md")


def _relinked(markdown: str, source: str, path: str) -> str:
    """Links to files of the repository that are pages or pictures of the site lead there."""

    def replaced(match: re.Match[str]) -> str:
        opened, target, anchor, closed = match.groups()
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if inside in TAKEN_OVER:
            goal = TAKEN_OVER[inside]
        elif inside.startswith("docs/") and not source.startswith("docs/"):
            goal = inside.removeprefix("docs/")
        else:
            return match[0]
        return f"{opened}{posixpath.relpath(goal, posixpath.dirname(path) or '.')}{anchor or ''}{closed}"

    return _LINK.sub(replaced, markdown)
