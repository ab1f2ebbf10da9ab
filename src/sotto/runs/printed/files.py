"""Writing of printed pages, in the format that the name of the file asks for."""

from collections.abc import Callable
from pathlib import Path

from sotto.extras import require
from sotto.files import replacing
from sotto.runs.printed.page import Page


def writer(path: Path) -> Callable[[Page], None]:
    """Returns a function that writes a page to `path`, atomically.

    Call this before any work: it checks that the page can be written.

    Raises:
        ValueError: the name ends in neither .pdf nor .html, the folder is missing, or the package
            for PDF is not installed.
    """
    if path.suffix not in (".pdf", ".html"):
        raise ValueError(f"--page writes a .pdf or an .html file, got {path.name!r}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for the page; make it first")
    if path.suffix == ".pdf":
        require("fpdf")

    def write(page: Page) -> None:
        if path.suffix == ".pdf":
            from sotto.runs.printed.pdf import pdf as drawn  # needs the extra
        else:
            from sotto.runs.printed.html import html as drawn
        with replacing(path) as file:
            file.write(drawn(page))

    return write
