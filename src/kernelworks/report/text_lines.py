"""Lines of a report that fit a terminal: cells side by side, paragraphs under a hanging indent, commands to paste.

Everything here measures in cells of the terminal, as a wide character takes two. No line is wider than it is asked to
be, except for a single word that no line could hold: a terminal breaks that by itself, and it can still be pasted.
"""

from __future__ import annotations

import collections
import re
import shlex
from collections.abc import Container, Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

__all__ = [
    "Cell", "cells", "command_lines", "fold_items", "folded_by_reason", "last_parts", "paragraph", "section",
    "shared_reasons", "without_reason",
]  # fmt: skip

Cell = str | Text
TIE = "\0"
LEAST_WORDS = 3  # of a reason: fewer in parentheses are a name
UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|us|ns|min|MB|GB/s|GFLOP/s)\b)|(?<=\d) (?=\+- )|(?<=\+-) (?=\d)")


def _line(text: Cell) -> Text:
    line = text if isinstance(text, Text) else Text(text)
    line.no_wrap, line.overflow = True, "ignore"
    return line


def cells(columns: Sequence[tuple[Cell, int]], indent: int = 0) -> Text:
    """One line of cells, each with its width: above 0 the text stands at its left, below 0 at its right. What is wider
    than its cell moves the others on."""
    line = Text(" " * indent)
    for text, width in columns:
        cell = text.copy() if isinstance(text, Text) else Text(text)
        space = Text(" " * max(0, abs(width) - cell_len(cell.plain)))
        line.append_text(cell + space if width > 0 else space + cell)
    line.rstrip()
    return _line(line)


def paragraph(text: Cell, width: int, indent: int = 0, first: Cell = "", style: str = "") -> list[Text]:
    """Words of a text in lines of ``width`` cells, all but the first ``indent`` cells in; ``first`` stands at the
    beginning of the first line, in the place of its indent."""
    words = text.split(" ") if isinstance(text, Text) else [Text(word) for word in _words(text)]
    head = first.copy() if isinstance(first, Text) else Text(first)
    lines = [head + Text(" " * max(1 if head.plain else indent, indent - cell_len(head.plain)))]
    empty = True
    for word in words:
        if not word.plain:
            continue
        if not empty and cell_len(lines[-1].plain) + 1 + cell_len(word.plain) > width:
            lines.append(Text(" " * indent))
            empty = True
        if not empty:
            lines[-1].append(" ")
        lines[-1].append(word.plain, style=style) if style else lines[-1].append_text(word)
        empty = False
    return [_line(line) for line in lines if line.plain.strip()]


def _words(text: str) -> list[str]:
    """The words of a text; a figure and its unit are one."""
    return [word.replace(TIE, " ") for word in UNIT.sub(TIE, text).split(" ")]


def fold_items(
    items: Iterable[str], width: int, indent: int, first: Cell = "", style: str = "", between: str = ", "
) -> list[Text]:
    """A list of items, one behind the other, in the lines of a paragraph."""
    return paragraph(between.join(items), width, indent, first, style)


def shared_reasons(texts: Iterable[str]) -> dict[str, int]:
    """The reasons in parentheses that more than one of these texts ends with, and how many do."""
    found = collections.Counter(_reason_of(text)[1] for text in texts)
    return {reason: count for reason, count in found.items() if reason and count > 1}


def without_reason(text: str, reasons: Container[str]) -> str:
    """A text without the reason in parentheses that it ends with, if that is one of these."""
    first, reason = _reason_of(text)
    return first if reason in reasons else text


def _reason_of(text: str) -> tuple[str, str]:
    """What stands before the last parenthesis of a text, and what is in it; "" if the text ends otherwise."""
    first, opened, reason = text.rpartition(" (")
    if not opened or not reason.endswith(")") or ")" in reason[:-1] or len(reason.split()) < LEAST_WORDS:
        return text, ""
    return first, reason[:-1]


def folded_by_reason(lines: Iterable[str]) -> list[str]:
    """Lines of the form ``WHAT: REASON``, those of one reason as one line with what they are about."""
    whats: dict[str, list[str]] = {}
    for line in lines:
        what, colon, reason = line.partition(": ")
        whats.setdefault(reason if colon else line, []).append(what if colon else "")
    return [f"{', '.join(some)}: {reason}" if some != [""] else reason for reason, some in whats.items()]


def command_lines(words: Sequence[str], width: int, indent: int, first: Cell = "") -> list[Text]:
    """A shell command that can be pasted as it stands: what does not fit a line goes on after a backslash."""
    lines = [first.copy() if isinstance(first, Text) else Text(first)]
    lines[0].append(" " * max(0, indent - cell_len(lines[0].plain)))
    empty = True
    for number, word in enumerate(words):
        quoted, last = shlex.quote(word), number == len(words) - 1
        room = width - (0 if last else 2)  # for the backslash of a line that goes on
        if not empty and cell_len(lines[-1].plain) + 1 + cell_len(quoted) > room:
            lines[-1].append(" \\", style="bold")
            lines.append(Text(" " * (indent + 2)))
            empty = True
        lines[-1].append(quoted if empty else f" {quoted}", style="bold")
        empty = False
    return [_line(line) for line in lines]


def section(title: str, columns: Sequence[tuple[Cell, int]] = ()) -> Text:
    """The heading of a section: its title in capitals, then those of its columns, dim."""
    line = Text(title.upper(), style="bold")
    for index, (text, width) in enumerate(columns):
        heading = str(text)
        if index == 0:
            width = (
                max(width - len(title), len(heading) + 1) if width > 0 else min(width + len(title), -len(heading) - 1)
            )
        space = " " * max(0, abs(width) - len(heading))
        line.append(heading + space if width > 0 else space + heading, style="not bold dim")
    line.rstrip()
    return _line(line)


def last_parts(path: str, width: int) -> str:
    """A dotted path cut at a dot from the left until it fits: ``..layer.*.attention``; its last name at the least, with
    the indices behind it, which say nothing alone."""
    parts = path.split(".")
    if cell_len(path) <= width:
        return path
    least = next((count for count, part in enumerate(reversed(parts), 1) if part[:1].isalpha() or part[:1] in "_<"), 1)
    while len(parts) > least and cell_len(".".join(parts)) + 2 > width:
        parts.pop(0)
    return ".." + ".".join(parts)
