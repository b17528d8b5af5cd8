"""One self-contained HTML document: no request leaves it, it is light or dark as its reader's system is, and it fits a
telephone. What every page is made of is here.

Every text that comes from a program (module names, sources, sentences) passes through ``html.escape``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from kernelworks.report import plot

__all__ = [
    "NO_REQUESTS", "REPORT_DIR", "STYLES", "colours", "context_line", "copied_code", "document", "figure_both",
    "read_texts", "table", "text_list", "versions_text",
]  # fmt: skip

REPORT_DIR = Path(__file__).resolve().parent
STYLES = ("style/page.css", "style/narrow.css")
SIZE_MARK = "{size}"
NO_REQUESTS = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def read_texts(names: Iterable[str]) -> str:
    """Style sheets or scripts of this package, one after the other."""
    return "".join((REPORT_DIR / name).read_text(encoding="utf-8") for name in names)


def document(
    title: str, body: Iterable[str], styles: Iterable[str] = STYLES, scripts: Iterable[str] = ("style/page.js",)
) -> str:
    """The whole page. Its last line says its size, since a page is sent round."""
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{NO_REQUESTS}">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{read_texts(styles)}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f'\n<footer class="context">One file of {SIZE_MARK} kB that makes no request.</footer>'
        + f"\n</main>\n<script>\n{read_texts(scripts)}</script>\n</body>\n</html>\n"
    )
    before, _, after = text.rpartition(SIZE_MARK)
    return f"{before}{len(text.encode()) / 1e3:.0f}{after}"


def colours(*, dark: bool) -> dict[str, str]:
    """The colours of page.css by their names, for pictures that stand on no page."""
    style = read_texts(["style/page.css"])
    light, night = (dict(re.findall(r"--(\w+): (#\w+)", root)) for root in re.findall(r":root \{(.*?)\}", style, re.S))
    return light | night if dark else light


def context_line(pieces: Iterable[str]) -> str:
    return f'<p class="context">{" &middot; ".join(escape(p) for p in pieces if p)}</p>'


def versions_text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def text_list(title: str, lines: Iterable[str], heading: str = "h2") -> str:
    """A heading and a list of sentences; nothing without any."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<{heading}>{escape(title)}</{heading}>\n<ul class="plain">{items}</ul>' if items else ""


def copied_code(code: str, label: str) -> str:
    """Lines of code or a command, with a button that copies them; ``label`` says what they are."""
    said = f'tabindex="0" role="group" aria-label="{escape(label)}"'
    return (
        f'<div class="copied"><pre {said}><code>{escape(code)}</code></pre>'
        '<button type="button" class="copy script">Copy</button></div>'
    )


def figure_both(draw: Callable[[float], str]) -> str:
    """A picture twice, for wide windows and for narrow ones; narrow.css shows the one that fits."""
    wide = draw(plot.WIDE_INCHES)
    if not wide:
        return ""
    return f'<div class="wide-only">{wide}</div><div class="narrow-only">{draw(plot.NARROW_INCHES)}</div>'


def table(title: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A plain table below its title; every column after the first holds numbers."""
    titles = list(headings)
    head = "".join(f'<th scope="col"{_number(i)}>{escape(h)}</th>' for i, h in enumerate(titles))
    labels = [f' data-label="{escape(title if i else "")}"' for i, title in enumerate(titles)]
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{_number(i)}{labels[i]}><span>{escape(cell)}</span></td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div><h2>{escape(title)}</h2>\n<div class="scroll">{whole}</div></div>'


def _number(index: int) -> str:
    return ' class="number"' if index else ""
