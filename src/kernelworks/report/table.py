"""Tables that fit a terminal: no column is narrower than its longest word. Where there is no room for that, each row
becomes two lines: what stands in its first column, and below it the others with their headings."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from kernelworks.report.text_lines import paragraph

__all__ = ["Table"]

UNLIMITED_CELLS = 10_000  # cells
LEAST_CUT = 12  # cells of a column whose texts may be cut


class Table(rich.table.Table):
    """A table of rich's that stands in a narrow terminal too."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = min(options.max_width, self.width or options.max_width)
        widest = options.update(width=UNLIMITED_CELLS, max_width=UNLIMITED_CELLS) if self.columns else options
        ranges = [self._range(console, widest, column) for column in self.columns]
        fitted = self._with_widths([low for low, _ in ranges])
        spare = room - _whole_width(console, widest, fitted)
        if self.columns and spare < 0:
            yield from self._stacked(room)
            return
        wanted = [high - low for low, high in ranges]
        share = 1.0 if sum(wanted) <= spare else spare / sum(wanted)
        widths = [low + int(share * more) for (low, _), more in zip(ranges, wanted, strict=True)]
        yield from rich.table.Table.__rich_console__(self._with_widths(widths), console, options)

    def _range(self, console: Console, options: ConsoleOptions, column: rich.table.Column) -> tuple[int, int]:
        """The width of a column's longest word, and of its longest line."""
        texts = [*([column.header] if self.show_header else []), *column.cells]
        found = [Measurement.get(console, options, _text(text)) for text in texts]
        high = max((one.maximum for one in found), default=1)
        low = high if column.no_wrap else max((one.minimum for one in found), default=1)
        if column.no_wrap and column.overflow == "ellipsis":
            low = min(low, LEAST_CUT)
        return low, max(low, min(high, column.max_width or high))

    def _with_widths(self, widths: list[int]) -> Table:
        fitted = copy.copy(self)
        fitted.columns = [copy.copy(column) for column in self.columns]
        fitted.expand, fitted.width = False, None
        for column, width in zip(fitted.columns, widths, strict=True):
            column.width, column.ratio, column.min_width, column.max_width = width, None, None, None
        return fitted

    def _stacked(self, width: int) -> Iterator[RenderableType]:
        if self.title:
            yield Text(str(self.title), style="bold")
        rows = list(zip(*(list(column.cells) for column in self.columns), strict=True))
        headings = [" ".join(str(column.header).split()) if self.show_header else "" for column in self.columns]
        for cells in rows:
            first, *others = (_named(h, cell) for h, cell in zip(headings, cells, strict=True))
            yield from _paragraphs(first, width, 0)
            beside = Text(", ").join(text for text in others if text.plain.strip())
            if beside.plain:
                yield from _paragraphs(beside, width, 2)
        if self.caption:
            yield from _paragraphs(_text(self.caption), width, 0)


def _whole_width(console: Console, options: ConsoleOptions, fitted: Table) -> int:
    return rich.table.Table.__rich_measure__(fitted, console, options).maximum


def _text(cell: RenderableType) -> RenderableType:
    return Text(cell) if isinstance(cell, str) else cell


def _named(heading: str, cell: RenderableType) -> Text:
    """A cell with its heading."""
    text = cell if isinstance(cell, Text) else Text(str(cell))
    words = Text(" ").join(text.split("\n"))
    return Text.assemble((f"{heading} ", "dim"), words) if heading and words.plain.strip() else words


def _paragraphs(cell: RenderableType, width: int, indent: int) -> Iterator[RenderableType]:
    if not isinstance(cell, Text):
        yield Padding(cell, (0, 0, 0, indent))
        return
    for line in cell.split("\n"):
        if max((cell_len(word) for word in line.plain.split()), default=0) <= width - indent:
            yield from paragraph(line, width, indent, " " * indent)
        else:
            yield Padding(Text.assemble(line, overflow="fold"), (0, 0, 0, indent))
