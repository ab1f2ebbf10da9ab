"""A printed page as PDF, in the font DejaVu Sans that matplotlib brings.

The text is set in the largest of a few sizes that fits on one page. If none does, it goes on to
further pages. The file holds no date of its making, so its bytes depend on the page alone.
"""

from datetime import UTC, datetime
from pathlib import Path

import matplotlib
from fpdf import FPDF
from fpdf.enums import MethodReturnValue, XPos, YPos

from sotto.runs.printed.page import Page

_SIZES = (9.0, 8.4, 7.8, 7.2, 6.6)
"""Font sizes, in points."""
_MARGIN = 12.0
"""Margin of the paper, in millimetres."""
_NAMES = 27.0
"""Width of the names of facts, in millimetres."""
_GOOD, _BAD = (0, 115, 79), (179, 64, 10)
_MADE = datetime(1970, 1, 1, tzinfo=UTC)
"""The date of making in every file, because the true one would change the bytes."""


def pdf(page: Page) -> bytes:
    """Returns the page as a PDF file of format A4."""
    for size in _SIZES:
        drawn = _drawn(page, size)
        if drawn.page_no() == 1:
            break
    return bytes(drawn.output())


def _drawn(page: Page, size: float) -> FPDF:
    paper = FPDF(format="A4")
    paper.set_creation_date(_MADE)
    paper.set_margins(_MARGIN, _MARGIN)
    paper.set_auto_page_break(True, _MARGIN)
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paper.add_font("dejavu", "", fonts / "DejaVuSans.ttf")
    paper.add_font("dejavu", "B", fonts / "DejaVuSans-Bold.ttf")
    known = [set(font.cmap) for font in paper.fonts.values()]  # type: ignore[union-attr]
    paper.add_page()
    height = size * 0.46  # of a line, in millimetres

    def write(text: str, width: float = 0, points: float = size, bold: bool = False) -> None:
        paper.set_font("dejavu", "B" if bold else "", points)
        line = points * 0.46
        paper.multi_cell(
            width, line, _drawable(text, known), align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT
        )

    paper.set_title(_drawable(page.title, known))
    write(page.title, points=size + 2, bold=True)
    paper.ln(height / 2)
    paper.set_text_color(*(_GOOD if page.good else _BAD))
    write(page.verdict, points=22, bold=True)
    paper.set_text_color(0)
    for reason in page.reasons:
        write(reason)
    paper.ln(height / 2)
    paper.set_draw_color(223, 228, 232)
    for name, value in page.facts:
        paper.set_font("dejavu", "", size)
        room = paper.epw - _NAMES
        needed = paper.multi_cell(
            room, height, _drawable(value, known), dry_run=True, output=MethodReturnValue.HEIGHT
        )
        if paper.will_page_break(float(needed)):  # type: ignore[arg-type]
            paper.add_page()
        top = paper.get_y()
        paper.set_text_color(91, 102, 112)
        write(name, _NAMES)
        paper.set_text_color(0)
        paper.set_xy(_MARGIN + _NAMES, top)
        write(value, room)
        paper.line(_MARGIN, paper.get_y(), _MARGIN + paper.epw, paper.get_y())
    for title, lines in page.sections:
        paper.ln(height / 2)
        if paper.will_page_break(3 * height):
            paper.add_page()
        write(title, bold=True)
        for line in lines:
            top = paper.get_y()
            if paper.will_page_break(height):
                paper.add_page()
                top = paper.get_y()
            write("•", 4)
            paper.set_xy(_MARGIN + 3, top)
            write(line, paper.epw - 3)
    return paper


def _drawable(text: str, known: list[set[int]]) -> str:
    """Returns the text with each character that a font lacks spelled out, as in `\\u4e2d`."""
    return "".join(
        one if all(ord(one) in font for font in known) else one.encode("unicode_escape").decode()
        for one in text
    )
