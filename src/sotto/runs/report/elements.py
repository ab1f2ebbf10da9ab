"""The style sheet and the HTML elements of report.html; every text is escaped."""

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

_STYLE = """
:root { --ink: #1d2329; --soft: #5b6670; --line: #e3e7ea; --paper: #ffffff; --good: #00734f;
        --bad: #b3400a; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7f8; color: var(--ink);
       font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 860px; margin: 32px auto; padding: 40px 48px 56px; background: var(--paper);
       border: 1px solid var(--line); border-radius: 10px; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 44px 0 10px; padding-top: 18px; border-top: 1px solid var(--line); }
h3 { font-size: 15px; margin: 20px 0 4px; }
p { margin: 8px 0; }
.soft, figcaption, .how { color: var(--soft); font-size: 14px; }
li .how { display: block; }
.card { margin: 24px 0 8px; padding: 20px 24px; border: 1px solid var(--line);
        border-left: 5px solid var(--good); border-radius: 8px; background: #fafcfb; }
.card.bad { border-left-color: var(--bad); background: #fdf9f7; }
.status { font-weight: 600; color: var(--good); }
.bad .status { color: var(--bad); }
.epsilon { font-size: 42px; font-weight: 650; line-height: 1.15; letter-spacing: -0.5px; }
.epsilon small { font-size: 17px; font-weight: 400; color: var(--soft); letter-spacing: 0; }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.figures div { flex: 1 1 130px; padding: 12px 14px; border: 1px solid var(--line);
               border-radius: 8px; }
.figures b { display: block; font-size: 18px; font-weight: 600; white-space: nowrap; }
figure { margin: 14px 0 26px; }
img { width: 100%; height: auto; display: block; }
figcaption { margin-top: 4px; }
ul { margin: 4px 0 12px; padding-left: 22px; }
li { margin: 3px 0; }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.bar { width: 70%; }
td.bar div { height: 16px; background: var(--good); border-radius: 3px; }
.wide { overflow-x: auto; }
.columns { columns: 2; column-gap: 36px; }
.columns table tr { break-inside: avoid; }
.columns td.number, p { overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre { padding: 12px 16px; background: #f5f7f8; border-radius: 6px; white-space: pre-wrap;
      overflow-wrap: anywhere; }
@media (max-width: 640px) { main { padding: 24px 18px; margin: 0; border: 0; }
                            .columns { columns: 1; } }
@media print { body { background: none; } main { border: 0; margin: 0; } }
"""


def page(title: str, body: Iterable[str]) -> str:
    """Returns a whole page; `body` must be HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """Returns the heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, soft: bool = False) -> str:
    """Returns a paragraph; a soft one is smaller and grey."""
    return f"<p{' class=soft' if soft else ''}>{escape(text)}</p>"


def picture(path: Path, caption: str) -> str:
    """Returns a PNG, embedded in the page, with a caption."""
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def tiles(values: Mapping[str, str]) -> str:
    """Returns a row of large numbers, each over its name."""
    inside = "".join(
        f"<div><b>{escape(value)}</b><span class=soft>{escape(name)}</span></div>"
        for name, value in values.items()
    )
    return f'<div class="figures">{inside}</div>'


def bullets(title: str, lines: Iterable[tuple[str, str]]) -> str:
    """Returns a titled list of sentences with optional remarks; an empty list gives no HTML."""
    items = "".join(
        f"<li>{escape(text)}" + (f' <span class="how">{escape(aside)}</span>' if aside else "")
        for text, aside in lines
    )
    return f"<h3>{escape(title)}</h3><ul>{items}</ul>" if items else ""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table with a header."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bars(counts: Mapping[str, int]) -> str:
    """Returns a histogram: a horizontal bar for each number, beside its name."""
    most = max([1, *counts.values()])
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{count:,}</td>'
        f'<td class="bar"><div style="width:{100 * count / most:.1f}%"></div></td></tr>'
        for name, count in counts.items()
    )
    return f"<table>{rows}</table>"


def settings(values: Mapping[str, str]) -> str:
    """Returns names and values in two columns."""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=number>{escape(value)}</td></tr>"
        for name, value in values.items()
    )
    return f'<div class="columns"><table>{rows}</table></div>'
