"""Writing of printed pages, as HTML or in another format that the name of the file asks for."""

from collections.abc import Callable
from html import escape
from pathlib import Path

from sotto.extras import require
from sotto.files import replacing
from sotto.runs.printed.page import Page

_STYLE = """
@page { size: A4; margin: 11mm 13mm; }
* { box-sizing: border-box; }
body { max-width: 190mm; margin: 8mm auto; padding: 0 5mm; color: #1d2329; background: #fff;
       font: 12.5px/1.38 "DejaVu Sans", "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 15px; margin: 0 0 6px; }
h2 { font-size: 12.5px; margin: 8px 0 1px; break-after: avoid; }
.verdict { margin: 0; padding: 5px 12px; border-left: 7px solid #b3400a; color: #b3400a;
           font-size: 30px; font-weight: 700; line-height: 1.2; }
.good .verdict { border-color: #00734f; color: #00734f; }
p { margin: 4px 0; }
table { width: 100%; margin-top: 6px; border-collapse: collapse; }
th, td { padding: 2px 8px 2px 0; border-bottom: 1px solid #dfe4e8; text-align: left;
         vertical-align: top; }
th { width: 27mm; color: #5b6670; font-weight: 400; }
ul { margin: 0; padding-left: 15px; }
@media print { body { margin: 0; padding: 0; max-width: none; font-size: 7.4pt; line-height: 1.28; }
               h2 { font-size: 7.6pt; margin-top: 4px; } h1 { font-size: 10pt; }
               .verdict { font-size: 22pt; print-color-adjust: exact; } }
"""


def writer(path: Path) -> Callable[[Page], None]:
    """Returns a function that writes a page to `path`, atomically.

    Call this before any work: it checks that the page can be written.

    Raises:
        ValueError: the name ends in neither .pdf nor .html, the folder is missing, or the package
            for PDF is not installed.
    """
    require_place(path, ".pdf", ".html")
    if path.suffix == ".pdf":
        require("fpdf")

    def write(page: Page) -> None:
        if path.suffix == ".pdf":
            from sotto.runs.printed.pdf import pdf  # needs the extra

            drawn = pdf(page)
        else:
            drawn = html(page)
        with replacing(path) as file:
            file.write(drawn)

    return write


def require_place(path: Path, *endings: str) -> None:
    """Refuses a page whose name has another ending, or that has no folder.

    Raises:
        ValueError: the name ends in none of `endings`, or the folder is missing.
    """
    if path.suffix not in endings:
        kinds = " or ".join(f"{'an' if one == '.html' else 'a'} {one}" for one in endings)
        raise ValueError(f"--page writes {kinds} file, got {path.name!r}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for the page; make it first")


def html(page: Page) -> bytes:
    """Returns the page as one HTML file without scripts and links; every text is escaped."""
    facts = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>\n" for name, value in page.facts
    )
    lists = "".join(
        f"<h2>{escape(title)}</h2>\n<ul>\n"
        + "".join(f"<li>{escape(line)}</li>\n" for line in lines)
        + "</ul>\n"
        for title, lines in page.sections
    )
    reasons = "".join(f"<p>{escape(one)}</p>\n" for one in page.reasons)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f'<body class="{"good" if page.good else "bad"}">\n<h1>{escape(page.title)}</h1>\n'
        f'<p class="verdict">{escape(page.verdict)}</p>\n{reasons}<table>\n{facts}</table>\n'
        f"{lists}</body>\n</html>\n"
    ).encode()
