"""What is printed on a terminal, as HTML: the same words in real tables, the same colours as the pages'."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

__all__ = ["html"]

# rich's names of colours -> the pages' own, which mean the same on the terminal (terminal.STYLES)
COLOURS = {
    "green": "good", "blue": "memory", "yellow": "compute", "magenta": "transcendental", "red": "bad",
    "cyan": "allocation", "bright_red": "host", "bright_yellow": "sync", "bright_black": "muted",
    "bright_magenta": "native", "bright_blue": "waiting", "bright_cyan": "communication",
    "bright_green": "contention", "dark_red": "series1", "navy_blue": "series2", "orange4": "series3",
    "purple4": "series4", "blue_violet": "accent",
}  # fmt: skip

_console = Console(color_system="standard", force_terminal=True, width=10_000)


def html(shown: RenderableType) -> str:
    """A renderable of this package's reports as a piece of HTML. Raises TypeError for one that they do not use."""
    if isinstance(shown, Group):
        return _lines(shown.renderables)
    if isinstance(shown, Table):
        return _table(shown)
    if isinstance(shown, Tree):
        branches = "".join(f"<li>{html(branch.label)}{_branches(branch)}</li>" for branch in shown.children)
        return f'{html(shown.label)}<ul class="plain">{branches}</ul>'
    if isinstance(shown, Padding):
        return f'<div style="padding-left:2ch">{html(shown.renderable)}</div>'
    if isinstance(shown, (str, Text)):
        return f"<div>{_words(shown)}</div>"
    raise TypeError(f"no HTML for {type(shown).__name__}")


def _branches(tree: Tree) -> str:
    inner = "".join(f"<li>{html(branch.label)}{_branches(branch)}</li>" for branch in tree.children)
    return f'<ul class="plain">{inner}</ul>' if inner else ""


def _lines(shown: Iterable[RenderableType]) -> str:
    return "\n".join(html(one) for one in shown if not isinstance(one, Text) or one.plain)


def _words(text: RenderableType) -> str:
    """Text with its styles; lines end where they do on the terminal."""
    if not isinstance(text, (str, Text)):
        return html(text)
    if isinstance(text, str):
        return escape(text).replace("\n", "<br>")
    parts = []
    whole = _console.get_style(text.style, default="")
    for segment in text.render(_console, end=""):
        words = escape(segment.text).replace("\n", "<br>")
        css = _css(whole + segment.style if segment.style else whole)
        parts.append(f'<span style="{css}">{words}</span>' if css else words)
    return "".join(parts)


def _css(style: Style) -> str:
    parts = []
    if style.color is not None and style.color.name in COLOURS:
        parts.append(f"color:var(--{COLOURS[style.color.name]})")
    elif style.dim:
        parts.append("color:var(--muted)")
    if style.bold:
        parts.append("font-weight:600")
    return ";".join(parts)


def _table(table: Table) -> str:
    columns = [(column, list(column.cells)) for column in table.columns]
    number = [' class="number"' if column.justify == "right" else "" for column, _ in columns]
    head = ""
    if table.show_header:
        cells = "".join(
            f'<th scope="col"{n}>{_words(column.header)}</th>' for n, (column, _) in zip(number, columns, strict=True)
        )
        head = f"<thead><tr>{cells}</tr></thead>"
    titles = [escape(str(column.header)).replace("\n", " ") for column, _ in columns]
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td{n} data-label="{title if i else ""}"><div>{_words(cells[row])}</div></td>'
            for i, (n, title, (_, cells)) in enumerate(zip(number, titles, columns, strict=True))
        )
        + "</tr>"
        for row in range(table.row_count)
    )
    title = f"<h2>{_words(table.title)}</h2>" if table.title else ""
    caption = f'<p class="note" style="margin-top:8px">{_words(table.caption)}</p>' if table.caption else ""
    kind = "" if table.show_header else ' class="pairs"'
    return f'{title}<div class="scroll"><table{kind}>{head}<tbody>{rows}</tbody></table></div>{caption}'
