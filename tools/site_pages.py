"""Hook of MkDocs: brings in pages from the root of the repository, and links between both places.

A link to a file that is not on the site becomes its text. A list that follows a paragraph without
an empty line gets one, as GitHub reads it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the root, and their names on the site."""

_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_TIGHT = re.compile(r"^(?![ \t]|[-*|>#]|\d+\.)(.*\S)\n(?=- |\d+\. )", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the root."""
    for origin, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / origin).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_given: Any) -> str:
    """Mends links and lists outside code blocks."""
    return mended(markdown, page.file.src_uri)


def mended(markdown: str, name: str) -> str:
    """Returns the text of a page of the site with links that lead somewhere on the site."""
    from_root = name in PAGES.values()
    base = "" if from_root else posixpath.join("docs", posixpath.dirname(name))

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found.group()
        place = posixpath.normpath(posixpath.join(base, path))
        if place in PAGES:
            there = PAGES[place]
        elif place.startswith("docs/"):
            there = place.removeprefix("docs/")
        else:
            return text
        there = posixpath.relpath(there, posixpath.dirname(name) or ".")
        return f"{mark}[{text}]({there}{hash_}{anchor})"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(link, _TIGHT.sub(r"\1\n\n", part)) for part in parts[::2]]
    return "".join(parts)
